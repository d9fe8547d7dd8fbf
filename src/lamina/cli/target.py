"""Where a command works: on a directory (`--data`) or on a server (`--server`), never on both.

A command takes one parameter `where: Where` and is decorated with `placed`, which gives it the four
options that fill it: `--data`, `--archive`, `--server` and `--ca`. So no command forgets one.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lamina.errors import InvalidRequest, LaminaError

if TYPE_CHECKING:
    from lamina.api import StoreApi

Data: TypeAlias = Annotated[
    str | None, typer.Option("--data", envvar="LAMINA_DATA", help="A data directory.")
]
Server: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="LAMINA_SERVER",
        help="A server, grpc://host:port; its key is read from LAMINA_API_KEY.",
    ),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, for programs.")
]
Yes: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="Do it. Without it, only print what would be done.")
]
Archive: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--archive",
        envvar="LAMINA_ARCHIVE",
        help="The archive of a --data directory, s3://bucket/prefix or a directory.",
    ),
]
Authority: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ca",
        envvar="LAMINA_CA",
        metavar="FILE",
        help="PEM certificates to trust a grpc+tls:// server by; by default the system's.",
    ),
]
SCHEMES = ("grpc://", "grpc+tls://", "grpc+unix://")


@dataclass(frozen=True, slots=True)
class Where:
    """The target of a command, as its options name it."""

    data: str | None = None
    server: str | None = None
    archive: str | None = None
    authority: str | None = None

    @property
    def url(self) -> str | None:
        """The server's address with its scheme; `grpc://` if none is given."""
        if self.server is None or self.server.startswith(SCHEMES):
            return self.server
        if self.server.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"{self.server} is a server's HTTP port; commands talk to the Flight port:"
                " grpc://host:9300, or grpc+tls://"
            )
        return f"grpc://{self.server}"


_OPTIONS: dict[str, Any] = {
    "data": Data,
    "archive": Archive,
    "server": Server,
    "authority": Authority,
}


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the parameter `where` of a command by the options that fill it."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        where = Where(**{name: given.pop(name) for name in _OPTIONS})
        command(where=_named(where), **given)

    parameters = []
    for parameter in signature.parameters.values():
        if parameter.name != "where":
            parameters.append(parameter)
            continue
        parameters += [
            parameter.replace(name=name, annotation=option, default=None)
            for name, option in _OPTIONS.items()
        ]
    changed: Any = wrapper
    changed.__signature__ = signature.replace(parameters=parameters)
    return wrapper


def _named(where: Where) -> Where:
    """Lets an option win over the other one's environment variable."""
    if where.data is None or where.server is None:
        return where
    by_default = [where.data == os.environ.get("LAMINA_DATA")]
    by_default.append(where.server == os.environ.get("LAMINA_SERVER"))
    if all(by_default) or not any(by_default):
        raise InvalidRequest("name one: --data DIRECTORY or --server grpc://host:port, not both")
    return replace(where, data=None) if by_default[0] else replace(where, server=None)


def writable(where: Where, *, create: bool = False) -> StoreApi:
    """Opens the target for writing; makes a directory only with `create`."""
    remote = _remote(where)
    if remote is not None:
        return remote
    import lamina

    assert where.data is not None
    if "://" in where.data:
        raise InvalidRequest(
            f"{where.data} is an archive, which is only read; `lamina tier restore` makes a data"
            " directory from it"
        )
    if not create and not _is_data(where.data):
        raise InvalidRequest(
            f"{where.data} is not a data directory; `lamina topic create` makes one"
        )
    _refuse_foreign(where.data)
    return lamina.open(where.data, archive=where.archive)


def _is_data(path: str) -> bool:
    from lamina.storage import paths

    return os.path.isdir(os.path.join(path, paths.META))


def _refuse_foreign(path: str) -> None:
    """Refuses to make a store among the files of others, as in a home directory."""
    there = set(os.listdir(path)) - {"lost+found"} if os.path.isdir(path) else set()
    if there and not _is_data(path):
        raise InvalidRequest(
            f"{path} holds other files ({min(there)}); a data directory begins empty"
        )


def readable(where: Where) -> StoreApi:
    """Opens the target for reading; a directory, also beside its live writer."""
    remote = _remote(where)
    if remote is not None:
        return remote
    import lamina

    assert where.data is not None
    return lamina.open(where.data, read_only=True, archive=where.archive)


def refuse_nowhere(where: Where) -> None:
    """Refuses a target that is not named, not there, or does not answer; opens no store."""
    remote = _remote(where)
    if remote is not None:
        remote.close()
    elif where.data is not None and "://" not in where.data and not os.path.isdir(where.data):
        raise InvalidRequest(f"{where.data} is not a data directory")


def _remote(where: Where) -> StoreApi | None:
    if where.data is None and where.server is None:
        raise InvalidRequest(
            "say where: --data DIRECTORY or --server grpc://host:port, or set LAMINA_DATA or"
            " LAMINA_SERVER"
        )
    if where.url is None:
        return None
    import lamina
    from lamina.client.remote_store import greet
    from lamina.client.trust import certificates

    roots = None if where.authority is None else certificates(where.authority)
    store = lamina.connect(where.url, tls_root=roots)
    try:
        greet(store)
    except BaseException:
        store.close()
        raise
    return store


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a topic if the command line names a store."""
    from lamina.cli.names_on_disk import topics_in

    return _completions(context, incomplete, topics_in, lambda store: store.topics())


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a group if the command line names a store."""
    from lamina.cli.names_on_disk import groups_in

    return _completions(
        context, incomplete, groups_in, lambda store: sorted({name for _, name in store.groups()})
    )


def _completions(
    context: typer.Context,
    incomplete: str,
    on_disk: Callable[[str], list[str]],
    of_store: Callable[[StoreApi], list[str]],
) -> list[str]:
    """Completes a name that the store of a command line has; nothing if there is none."""
    data = context.params.get("data") or os.environ.get("LAMINA_DATA")
    server = context.params.get("server") or os.environ.get("LAMINA_SERVER")
    if context.params.get("server") and not context.params.get("data"):
        data = None  # as for the command: an option beats the variable of the other
    authority = context.params.get("authority") or os.environ.get("LAMINA_CA")
    try:
        if data is not None and "://" not in data:
            names = on_disk(data)
        else:
            with readable(Where(data, None if data else server, authority=authority)) as store:
                names = of_store(store)
    except (LaminaError, OSError):
        return []
    return [name for name in names if name.startswith(incomplete)]


TopicName: TypeAlias = Annotated[
    str, typer.Argument(help="The topic's name.", metavar="TOPIC", autocompletion=complete_topic)
]


def settings_of(pairs: list[str]) -> dict[str, str]:
    """Parses `key=value` pairs."""
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidRequest(f"a setting is key=value, not {pair!r}")
        found[key] = value
    return found
