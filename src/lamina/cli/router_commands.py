"""`lamina router …`: create, list, alter, delete."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lamina.cli.target import (
    Json,
    TopicName,
    Where,
    Yes,
    placed,
    readable,
    writable,
)
from lamina.errors import UnknownRouter

app = typer.Typer(
    help="Routers: rules that copy records of a wal topic to another as they are appended.",
    no_args_is_help=True,
    epilog="Example: lamina router list --data data",
)

RouterName = Annotated[str, typer.Argument(metavar="ROUTER", help="The router's name.")]
Tag = Annotated[str | None, typer.Option("--tag", help="Records with exactly this tag.")]
TagPrefix = Annotated[str | None, typer.Option("--tag-prefix", help="A prefix of the tag.")]
Node = Annotated[str | None, typer.Option("--node", help="Records of this node.")]


def _rule(tag: str | None, tag_prefix: str | None, node: str | None) -> dict[str, Any]:
    given = {"tag": tag, "tag_prefix": tag_prefix, "node": node}
    return {key: value.encode() for key, value in given.items() if value is not None}


@app.command(epilog="Example: lamina router create alerts sensors alarms --tag-prefix err --data d")
@placed
def create(
    name: RouterName,
    source: TopicName,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to copy to.")],
    *,
    tag: Tag = None,
    tag_prefix: TagPrefix = None,
    node: Node = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Creates a router: records appended to a topic from now on are copied to another."""
    from lamina.cli.output import emit

    with writable(where) as store:
        store.create_router(name, source, target, **_rule(tag, tag_prefix, node))
    emit([{"router": name, "status": "OK"}], as_json=as_json)


@app.command("list", epilog="Example: lamina router list --server grpc://localhost:9300")
@placed
def list_routers(*, where: Where, as_json: Json = False) -> None:
    """Lists routers."""
    from lamina.cli.output import emit

    rows = []
    with readable(where) as store:
        for each in store.routers():
            row: dict[str, Any] = {"router": each.name}
            row |= {"source": each.source, "target": each.target}
            for key in ("tag", "tag_prefix", "node"):
                pattern = getattr(each, key)
                row[key] = None if pattern is None else pattern.decode(errors="backslashreplace")
            rows.append(row)
    none = "no routers; `lamina router create NAME SOURCE TARGET` makes one"
    emit(rows, as_json=as_json, none=none)


@app.command(epilog="Example: lamina router alter alerts --target alarms2 --data data")
@placed
def alter(
    name: RouterName,
    *,
    target: Annotated[str | None, typer.Option("--target", help="Copy to this topic.")] = None,
    tag: Tag = None,
    tag_prefix: TagPrefix = None,
    node: Node = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Changes which records a router copies, or where to; other options stay as they are."""
    from lamina.cli.output import emit

    with writable(where) as store:
        store.alter_router(name, target=target, **_rule(tag, tag_prefix, node))
    emit([{"router": name, "status": "OK"}], as_json=as_json)


@app.command(epilog="Example: lamina router delete alerts --yes --data data")
@placed
def delete(
    name: RouterName,
    *,
    yes: Yes = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Deletes a router; its copies stay. A dry run without --yes."""
    from lamina.cli.output import emit

    with writable(where) if yes else readable(where) as store:
        if name not in [each.name for each in store.routers()]:
            raise UnknownRouter(f"there is no router {name!r}")
        if yes:
            store.delete_router(name)
    status = "deleted" if yes else "would be deleted (--yes)"
    emit([{"router": name, "status": status}], as_json=as_json)
