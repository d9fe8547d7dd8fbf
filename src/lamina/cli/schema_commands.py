"""`lamina schema …`: give a topic a schema, list its versions, show one of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.target import Json, TopicName, Where, placed, readable, writable
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.api import TopicSchema

app = typer.Typer(
    help="Schemas: what makes columns of a topic's values.",
    no_args_is_help=True,
    epilog="Example: lamina schema set orders order.avsc --data data",
)

SCHEMA_HELP = "A file with the schema, - for standard input: Avro, JSON Schema or Protobuf."
SCHEMA_BYTES_MAX = 4 << 20
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f"))
Encoding = Annotated[
    str | None, typer.Option("--encoding", help="avro, json or protobuf: how values are written.")
]
KeyColumn = Annotated[
    str | None, typer.Option("--key-column", help="The column that becomes the record's key.")
]


def read_schema(path: Path) -> str | bytes:
    """Returns what a file says: text, or a Protobuf descriptor, which has what no text has."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(SCHEMA_BYTES_MAX + 1)
        else:
            with path.open("rb") as source:
                data = source.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(f"{path} has more than {SCHEMA_BYTES_MAX:,} bytes: no schema has")
    if data.translate(None, _CONTROLS) != data:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _row(schema: TopicSchema) -> dict[str, Any]:
    return {
        "version": schema.version,
        "id": schema.id,
        "encoding": schema.encoding,
        "framing": schema.framing,
        "compatibility": schema.compatibility,
        "key": schema.key or None,
        "columns": len(schema.arrow.names),
    }


@app.command("set", epilog="Example: lamina schema set orders order.avsc --data data")
@placed
def set_schema(
    topic: TopicName,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help=SCHEMA_HELP),
    ],
    *,
    encoding: Encoding = None,
    key_column: KeyColumn = None,
    compatibility: Annotated[
        str | None,
        typer.Option("--compatibility", help="BACKWARD, FORWARD, FULL, …_TRANSITIVE or NONE."),
    ] = None,
    framing: Annotated[
        str | None,
        typer.Option("--framing", help="registry: the schema's id in front of values; or plain."),
    ] = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Gives a topic a schema, or the next version of it; its records stay as they are."""
    from lamina.cli.output import emit

    with writable(where) as store:
        made = store.set_schema(
            topic,
            read_schema(file),
            encoding=encoding,
            key=key_column,
            compatibility=compatibility,
            framing=framing,
        )
    emit([{"topic": topic, **_row(made)}], as_json=as_json)


@app.command("list", epilog="Example: lamina schema list orders --server grpc://localhost:9300")
@placed
def list_schemas(topic: TopicName, *, where: Where, as_json: Json = False) -> None:
    """Lists the versions of a topic's schema, the oldest first."""
    from lamina.cli.output import emit

    with readable(where) as store:
        rows = [_row(each) for each in store.schemas(topic)]
    none = f"topic {topic!r} has no schema; `lamina schema set {topic} FILE` gives it one"
    emit(rows, as_json=as_json, none=none)


@app.command(epilog="Example: lamina schema show orders --version 1 --data data")
@placed
def show(
    topic: TopicName,
    *,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Which version; the newest without it.")
    ] = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Shows the columns of a schema; --json adds its text, in Avro's language."""
    from lamina.cli.output import emit, say

    with readable(where) as store:
        found = store.schema(topic, version)
    columns = [
        {"column": each.name, "type": str(each.type), "nullable": each.nullable}
        for each in found.arrow
    ]
    if as_json:
        emit([{**_row(found), "columns": columns, "text": found.text}], as_json=True)
        return
    say(f"{topic}: version {found.version}, {found.encoding}, id {found.id}")
    emit(columns, as_json=False)
