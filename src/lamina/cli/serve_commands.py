"""`lamina serve`, `lamina config` and `lamina key …`."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated

import typer

from lamina.cli.target import Json, Yes, settings_of

keys = typer.Typer(
    help="API keys for a server.",
    no_args_is_help=True,
    epilog="Example: lamina key create --scope read --file keys.json",
)

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", envvar="LAMINA_CONFIG", help="A TOML file with a server table."),
]
Set = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="A server setting; repeatable.")
]
KeyFile = Annotated[
    str, typer.Option("--file", envvar="LAMINA_KEYS_FILE", help="The server's key file.")
]


_BEGAN_IN_TERMINAL = os.isatty(0)


def serve(
    *,
    data: Annotated[
        str, typer.Option("--data", envvar="LAMINA_DATA", help="The data directory to serve.")
    ],
    config: ConfigFile = None,
    archive: Annotated[
        str | None, typer.Option(help="The archive: s3://bucket/prefix, or a directory.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Be one server of this cluster: whoever holds it serves the archive."),
    ] = None,
    cluster_url: Annotated[
        str | None,
        typer.Option(help="The host by which clients and the other servers find this one."),
    ] = None,
    settings: Set = [],  # noqa: B006
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log only problems.")] = False,
) -> None:
    """Serves a data directory over Flight, HTTP and Kafka's protocol until SIGTERM or Ctrl-C.

    With --cluster it holds the cluster, or stands by until the server that holds it is gone.
    """
    from lamina.server.log_lines import LogOutput
    from lamina.server.service import Service
    from lamina.server.setting_table import ServerSettings
    from lamina.server.settings import resolve

    given = {"archive": archive, "cluster.name": cluster, "cluster.url": cluster_url}
    flags = ({"log.level": "warning"} if quiet else {}) | settings_of(settings)
    flags |= {key: value for key, value in given.items() if value is not None}

    def settle() -> ServerSettings:
        return resolve(config, os.environ, flags).settings

    chosen = settle()
    output = LogOutput(chosen)
    service = Service(data, chosen, settle)
    service.on_reload = output.apply
    service.catch_reloads(_has_lost_its_terminal)
    service.start()
    addresses = [service.flight_url, service.http_url]
    if service.kafka_address is not None:
        addresses.append(f"kafka://{service.kafka_address}")
    addresses += service.local_urls
    sys.stdout.write(f"ready {' '.join(addresses)}\n")
    sys.stdout.flush()
    service.run()
    logging.shutdown()
    # Streams of clients that are gone may still hold a thread of gRPC, which would be waited for.
    sys.stdout.flush()
    os._exit(0)


def _has_lost_its_terminal() -> bool:
    """Whether SIGHUP came because the terminal that the server was started in is gone."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return _BEGAN_IN_TERMINAL
    os.close(descriptor)
    return False


def config(*, config: ConfigFile = None, settings: Set = [], as_json: Json = False) -> None:  # noqa: B006
    """Shows every server setting: its value, where it was set, and what it does."""
    from lamina.cli.output import emit
    from lamina.server.setting_table import ServerSettings
    from lamina.server.settings import resolve, variable_of

    resolved = resolve(config, os.environ, settings_of(settings))
    values = resolved.settings.as_dict()
    rows = []
    for row in ServerSettings.explained():
        key = row["key"]
        shown = {"key": key, "value": values[key], "source": resolved.sources.get(key, "default")}
        if as_json:
            shown |= {"default": row["default"], "variable": variable_of(key)}
        rows.append(shown | {"unit": row["unit"], "consequence": row["consequence"]})
    emit(rows, as_json=as_json)


ProduceBytes = Annotated[
    int | None,
    typer.Option(help="Bytes it may append per second, -1 for any; else quota.produce.bytes."),
]
FetchBytes = Annotated[
    int | None,
    typer.Option(help="Bytes it may read per second, -1 for any; else quota.fetch.bytes."),
]


@keys.command(epilog="Example: lamina key create --scope write --prefix orders. --file keys.json")
def create(
    *,
    scope: Annotated[str, typer.Option(help="read, write (includes read) or admin (everything).")],
    prefix: Annotated[str, typer.Option(help="Only topics whose names start with this.")] = "",
    note: Annotated[str, typer.Option(help="Who the key is for.")] = "",
    produce_bytes: ProduceBytes = None,
    fetch_bytes: FetchBytes = None,
    file: KeyFile = "keys.json",
    as_json: Json = False,
) -> None:
    """Creates a key and prints it once: the file keeps only its hash."""
    from lamina.cli.output import emit, say
    from lamina.server import auth

    quotas = auth.Quotas(
        auth.AS_SETTING if produce_bytes is None else produce_bytes,
        auth.AS_SETTING if fetch_bytes is None else fetch_bytes,
    )
    key, text = auth.create(file, scope=scope, prefix=prefix, note=note, quotas=quotas)
    if as_json:
        emit([{"id": key.id, "scope": key.scope, "prefix": key.prefix, "key": text}], as_json=True)
    else:
        say(text)


@keys.command("list", epilog="Example: lamina key list --file keys.json")
def list_keys(*, file: KeyFile = "keys.json", as_json: Json = False) -> None:
    """Lists keys: their ids and what they may do."""
    from lamina.cli.output import emit
    from lamina.server import auth

    rows = [
        {
            "id": key.id,
            "scope": key.scope,
            "prefix": key.prefix,
            "note": key.note,
            "produce_bytes": None if key.produce_bytes == auth.AS_SETTING else key.produce_bytes,
            "fetch_bytes": None if key.fetch_bytes == auth.AS_SETTING else key.fetch_bytes,
        }
        for key in auth.load(file)
    ]
    none = "no keys; `lamina key create --scope read` makes one"
    emit(rows, as_json=as_json, none=none)


@keys.command(epilog="Example: lamina key delete 0123456789abcdef --yes --file keys.json")
def delete(
    identity: Annotated[str, typer.Argument(metavar="ID")],
    *,
    yes: Yes = False,
    file: KeyFile = "keys.json",
    as_json: Json = False,
) -> None:
    """Deletes a key; a server notices when it reloads. A dry run without --yes."""
    from lamina.cli.output import emit
    from lamina.errors import InvalidRequest
    from lamina.server import auth

    if identity not in {key.id for key in auth.load(file)}:
        raise InvalidRequest(f"{file} has no key {identity}")
    if yes:
        auth.delete(file, identity)
    status = "deleted" if yes else "would be deleted (--yes)"
    emit([{"id": identity, "status": status}], as_json=as_json)
