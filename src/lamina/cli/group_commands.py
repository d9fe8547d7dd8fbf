"""`lamina group …`: list, describe, seek, delete.

A group belongs to a topic, so one name may stand for several: a command means all of them, or those
of `--topics`. Columns have the names of Kafka's tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.target import (
    Json,
    Where,
    Yes,
    complete_group,
    placed,
    readable,
    writable,
)
from lamina.errors import InvalidRequest, UnknownGroup

if TYPE_CHECKING:
    from lamina.api import StoreApi

app = typer.Typer(
    help="Consumer groups: where they stand, and how to move them.",
    no_args_is_help=True,
    epilog="Example: lamina group list --data data",
)


GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's name.", autocompletion=complete_group)
]
Topics = Annotated[
    list[str], typer.Option("--topics", help="Only these topics; repeatable, or a,b.")
]


def _split(topics: list[str]) -> list[str]:
    return [name for each in topics for name in each.split(",") if name]


def _pairs(store: StoreApi, group: str, topics: list[str]) -> list[tuple[str, str]]:
    """Finds the topics that have a group of this name; raises UnknownGroup if one has none."""
    found = [pair for pair in store.groups() if pair[1] == group]
    wanted = _split(topics)
    missing = sorted(set(wanted) - {topic for topic, _ in found})
    if missing or not found:
        where = f"topic {missing[0]!r} has" if missing else "there is"
        raise UnknownGroup(f"{where} no group {group!r}")
    return [pair for pair in found if not wanted or pair[0] in wanted]


@app.command("list", epilog="Example: lamina group list --server grpc://localhost:9300")
@placed
def list_groups(
    *,
    topics: Topics = [],  # noqa: B006
    where: Where,
    as_json: Json = False,
) -> None:
    """Lists groups and how far they are behind."""
    from lamina.cli.output import emit

    wanted = _split(topics)
    rows = []
    with readable(where) as store:
        for topic, group in store.groups():
            if not wanted or topic in wanted:
                info = store.describe_group(topic, group)
                held = sum(part.inflight for part in info.partitions)
                rows.append({"group": group, "topic": topic, "lag": info.lag, "inflight": held})
    emit(rows, as_json=as_json, none="no groups; `lamina topic consume TOPIC -g NAME` makes one")


@app.command(epilog="Example: lamina group describe billing --data data")
@placed
def describe(
    group: GroupName,
    *,
    topics: Topics = [],  # noqa: B006
    members: Annotated[
        bool, typer.Option("--members", help="The members of a classic group, and what each reads.")
    ] = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Shows per partition what a group has acked and holds, and how far it is behind."""
    from lamina.cli.output import emit, size

    if members:
        if where.data is not None:
            raise InvalidRequest("members are known to the server that they joined: use --server")
        with readable(where) as store:
            found = _members(store, group, _split(topics), as_json=as_json)
            emit(found, as_json=as_json, none=f"group {group!r} has no members now")
        return
    rows: list[dict[str, Any]] = []
    with readable(where) as store:
        for topic, name in _pairs(store, group, topics):
            rows += [
                {
                    "group": name,
                    "topic": topic,
                    "partition": part.partition,
                    "current_offset": part.committed,
                    "log_end_offset": part.end,
                    "lag": part.records,
                    "lag_bytes": part.bytes if as_json else size(part.bytes),
                    "lag_seconds": round(part.seconds, 3),
                    "inflight": part.inflight,
                    "acked_ahead": part.acked_ahead,
                }
                for part in store.describe_group(topic, name).partitions
            ]
    emit(rows, as_json=as_json)


def _members(
    store: StoreApi, group: str, topics: list[str], *, as_json: bool
) -> Iterator[dict[str, Any]]:
    """Yields a row for each member; a share that is not Kafka's to read is None."""
    from lamina.wire.kafka.consumer_protocol import told_share

    about = store.describe_members(group)
    for each in about.members:
        share = told_share(about.protocol_type, each.assignment)
        if share is not None and topics:
            share = {topic: numbers for topic, numbers in share.items() if topic in topics}
        listed = [f"{name}({','.join(map(str, of))})" for name, of in sorted((share or {}).items())]
        yield {
            "group": about.group,
            "consumer_id": each.member_id,
            "instance_id": each.instance_id,
            "host": each.client_host,
            "client_id": each.client_id,
            "partitions": None if share is None else sum(map(len, share.values())),
            "assignment": share if as_json else " ".join(listed) or None,
            "assignor": about.protocol,
            "state": about.state,
        }


@app.command(epilog="Example: lamina group seek billing --to @-1h --yes --data data")
@placed
def seek(
    group: GroupName,
    *,
    to: Annotated[
        str | None, typer.Option("--to", help="To start, end, an offset, +N, -N, or @time.")
    ] = None,
    to_group: Annotated[str | None, typer.Option(help="To where another group stands.")] = None,
    to_file: Annotated[
        str | None, typer.Option(help="To the offsets in a file of lines TOPIC PARTITION OFFSET.")
    ] = None,
    topics: Topics = [],  # noqa: B006
    allow_new_topics: Annotated[
        bool, typer.Option(help="Create the group in topics that do not have it.")
    ] = False,
    yes: Yes = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Moves a group and forgets its leases and delivery counts. A dry run without --yes."""
    from lamina.cli import group_seek
    from lamina.cli.output import emit

    if sum(each is not None for each in (to, to_group, to_file)) != 1:
        raise InvalidRequest("say where to: one of --to, --to-group and --to-file")
    with writable(where) if yes else readable(where) as store:
        goal = group_seek.goal_of(store, to, to_group, to_file)
        there = {topic for topic, name in store.groups() if name == group}
        wanted = _split(topics) or sorted(goal.topics & there if to is None else there)
        if allow_new_topics and to is None and not topics:
            wanted = sorted(goal.topics)
        if not allow_new_topics:
            wanted = [topic for topic, _ in _pairs(store, group, wanted)]
        rows = group_seek.plan(store, group, goal, wanted)
        for row in rows if yes else ():
            group_seek.move(store, group, row)
    status = "moved" if yes else "would be moved (--yes)"
    emit([row | {"status": status} for row in rows], as_json=as_json)


@app.command(epilog="Example: lamina group delete billing --yes --data data")
@placed
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", autocompletion=complete_group)],
    *,
    topics: Topics = [],  # noqa: B006
    yes: Yes = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Deletes groups and everything they have acked. A dry run without --yes."""
    from lamina.cli.output import emit

    rows = []
    with writable(where) if yes else readable(where) as store:
        for pair in [pair for name in names for pair in _pairs(store, name, topics)]:
            lag = store.describe_group(*pair).lag
            if yes:
                store.delete_group(*pair)
            status = "deleted" if yes else "would be deleted (--yes)"
            rows.append({"group": pair[1], "topic": pair[0], "lag": lag, "status": status})
    emit(rows, as_json=as_json)
