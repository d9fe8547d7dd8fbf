"""Where a command works: on a directory (`--data`) or on a server (`--server`), never on both."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, TypeAlias

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
SCHEMES = ("grpc://", "grpc+tls://", "grpc+unix://")


def writable(
    data: str | None, server: str | None, *, create: bool = False, archive: str | None = None
) -> StoreApi:
    """Opens the target for writing; makes a directory only with `create`."""
    remote = _remote(data, server)
    if remote is not None:
        return remote
    import lamina

    assert data is not None
    if not create and not os.path.isdir(data):
        raise InvalidRequest(f"{data} is no data directory; `lamina topic create` makes one")
    return lamina.open(data, archive=archive)


def readable(data: str | None, server: str | None, *, archive: str | None = None) -> StoreApi:
    """Opens the target for reading; a directory, also beside its live writer."""
    remote = _remote(data, server)
    if remote is not None:
        return remote
    import lamina

    assert data is not None
    return lamina.open(data, read_only=True, archive=archive)


def _remote(data: str | None, server: str | None) -> StoreApi | None:
    if (data is None) == (server is None):
        raise InvalidRequest("say where: --data DIRECTORY or --server grpc://host:port")
    if server is None:
        return None
    import lamina

    return lamina.connect(server if server.startswith(SCHEMES) else f"grpc://{server}")


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the name of a topic if the command line names a store."""
    data = context.params.get("data") or os.environ.get("LAMINA_DATA")
    server = context.params.get("server") or os.environ.get("LAMINA_SERVER")
    try:
        with readable(data, None if data else server) as store:
            return [name for name in store.topics() if name.startswith(incomplete)]
    except LaminaError:
        return []


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
