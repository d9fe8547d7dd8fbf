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


def serve(
    *,
    data: Annotated[
        str, typer.Option("--data", envvar="LAMINA_DATA", help="The data directory to serve.")
    ],
    config: ConfigFile = None,
    settings: Set = [],  # noqa: B006
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log only problems.")] = False,
) -> None:
    """Serves a data directory over Flight, HTTP and Kafka's protocol until SIGTERM or Ctrl-C."""
    from lamina.server.service import Service
    from lamina.server.settings import resolve

    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    resolved = resolve(config, os.environ, settings_of(settings))
    service = Service(data, resolved.settings)
    service.start()
    addresses = [service.flight_url, service.http_url]
    if service.kafka_address is not None:
        addresses.append(f"kafka://{service.kafka_address}")
    sys.stdout.write(f"ready {' '.join(addresses)}\n")
    sys.stdout.flush()
    service.run()
    logging.shutdown()
    # Streams of clients that are gone may still hold a thread of gRPC, which would be waited for.
    sys.stdout.flush()
    os._exit(0)


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


@keys.command(epilog="Example: lamina key create --scope write --prefix orders. --file keys.json")
def create(
    *,
    scope: Annotated[str, typer.Option(help="read, write (includes read) or admin (everything).")],
    prefix: Annotated[str, typer.Option(help="Only topics whose names start with this.")] = "",
    note: Annotated[str, typer.Option(help="Who the key is for.")] = "",
    file: KeyFile = "keys.json",
    as_json: Json = False,
) -> None:
    """Creates a key and prints it once: the file keeps only its hash."""
    from lamina.cli.output import emit, say
    from lamina.server import auth

    key, text = auth.create(file, scope=scope, prefix=prefix, note=note)
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
        {"id": key.id, "scope": key.scope, "prefix": key.prefix, "note": key.note}
        for key in auth.load(file)
    ]
    emit(rows, as_json=as_json)


@keys.command(epilog="Example: lamina key delete 0123456789abcdef --yes --file keys.json")
def delete(
    identity: Annotated[str, typer.Argument(metavar="ID")],
    *,
    yes: Yes = False,
    file: KeyFile = "keys.json",
) -> None:
    """Deletes a key; a server notices when it is restarted. A dry run without --yes."""
    from lamina.cli.output import say
    from lamina.errors import InvalidRequest
    from lamina.server import auth

    if identity not in {key.id for key in auth.load(file)}:
        raise InvalidRequest(f"{file} has no key {identity}")
    if yes:
        auth.delete(file, identity)
    say(f"{identity}: {'deleted' if yes else 'would be deleted (--yes)'}")
