"""`lamina cat`: kcat's flags on a Lamina directory or server.

Modes: `-C` consume, `-P` produce, `-L` list, `-Q` query offsets by time; without one, produce if
something is piped in and consume otherwise. What needs consumer groups (`-G`) is not here.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.target import Data, Server, readable, settings_of, writable
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.cli.percent import Row

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0"}


def cat(
    *,
    consume: Annotated[bool, typer.Option("-C", help="Consume.")] = False,
    produce: Annotated[bool, typer.Option("-P", help="Produce from the standard input.")] = False,
    listing: Annotated[bool, typer.Option("-L", help="List topics and partitions.")] = False,
    query: Annotated[
        bool, typer.Option("-Q", help="Offset by time: -t topic:partition:ms.")
    ] = False,
    topic: Annotated[list[str], typer.Option("-t", help="Topic.")] = [],  # noqa: B006
    partition: Annotated[int | None, typer.Option("-p", help="Partition.", min=-1)] = None,
    offset: Annotated[
        str, typer.Option("-o", help="beginning, end, N, -N, s@ms, e@ms.")
    ] = "beginning",
    count: Annotated[int | None, typer.Option("-c", help="Stop after so many.", min=1)] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", help="Exit at the end.")] = False,
    format: Annotated[str | None, typer.Option("-f", help="%s %S %R %k %K %T %h %t %p %o")] = None,
    as_json: Annotated[bool, typer.Option("-J", help="JSON envelopes.")] = False,
    delimiter: Annotated[str, typer.Option("-D", help="Between records.")] = "\\n",
    key_delimiter: Annotated[str | None, typer.Option("-K", help="Between key and value.")] = None,
    key: Annotated[str | None, typer.Option("-k", help="The key of every record.")] = None,
    header: Annotated[list[str], typer.Option("-H", help="name=value; repeatable.")] = [],  # noqa: B006
    null: Annotated[bool, typer.Option("-Z", help="Empty is null; null is shown as NULL.")] = False,
    unbuffered: Annotated[bool, typer.Option("-u", help="Write each record at once.")] = False,
    quiet: Annotated[bool, typer.Option("-q", help="Say nothing beside the records.")] = False,
    property_: Annotated[
        list[str], typer.Option("-X", metavar="KEY=VALUE", help="acks=0|1|all.")
    ] = [],  # noqa: B006
    broker: Annotated[str | None, typer.Option("-b", help="A server, as --server.")] = None,
    data: Data = None,
    server: Server = None,
) -> None:
    """Consumes, produces, lists and queries with kcat's flags."""
    server = broker or server
    data = None if broker else data
    modes = [consume, produce, listing, query]
    if sum(modes) > 1:
        raise InvalidRequest("choose one of -C, -P, -L and -Q")
    if listing:
        _list(data, server, topic, as_json=as_json)
    elif query:
        _query(data, server, topic)
    elif produce or (not consume and not sys.stdin.isatty()):
        make = _maker(key, key_delimiter, header, null=null)
        asked = settings_of(property_)
        _produce(data, server, _only(topic), make, (delimiter, partition, asked))
    else:
        render = _renderer(format, delimiter, key_delimiter, null=null, as_json=as_json)
        stops = exit_at_end and offset != "end"
        chosen = [partition] if partition is not None and partition >= 0 else []
        for row in _rows(data, server, (_only(topic), chosen, offset), count, stops=stops):
            sys.stdout.buffer.write(render(row))
            if unbuffered or sys.stdout.isatty() or not stops:
                sys.stdout.buffer.flush()
        if stops and not quiet:
            sys.stderr.write(f"% Reached end of topic {_only(topic)}\n")


def _only(topics: list[str]) -> str:
    if len(topics) != 1:
        raise InvalidRequest("name one topic with -t")
    return topics[0]


def _unescaped(text: str) -> str:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


def _list(data: str | None, server: str | None, topics: list[str], *, as_json: bool) -> None:
    with readable(data, server) as store:
        names = [name for name in store.topics() if not topics or name in topics]
        described = [store.describe_topic(name) for name in names]
    if as_json:
        rows = [
            {
                "topic": info.name,
                "partitions": [{"partition": part.partition} for part in info.partitions],
            }
            for info in described
        ]
        sys.stdout.write(json.dumps({"topics": rows}) + "\n")
        return
    sys.stdout.write(f" {len(described)} topics:\n")
    for info in described:
        sys.stdout.write(f'  topic "{info.name}" with {len(info.partitions)} partitions:\n')
        for part in info.partitions:
            span = f"offsets {part.earliest_offset} to {part.durable_offset}"
            sys.stdout.write(f"    partition {part.partition}, {span}\n")


def _query(data: str | None, server: str | None, asked: list[str]) -> None:
    with readable(data, server) as store:
        for each in asked:
            parts = each.rsplit(":", 2)
            try:
                topic, partition, timestamp_ms = parts[0], int(parts[1]), int(parts[2])
            except (IndexError, ValueError) as error:
                raise InvalidRequest(f"-Q needs -t topic:partition:ms, not {each!r}") from error
            found = store.offset_for_time(topic, partition, timestamp_ms)
            shown = store.latest_offset(topic, partition) if found is None else found
            sys.stdout.write(f"{topic} [{partition}] offset {shown}\n")


def _maker(key: str | None, key_delimiter: str | None, headers: list[str], *, null: bool) -> Any:
    from lamina.cli import producing

    return producing.Maker(
        key.encode() if key is not None else None,
        [producing.header_of(each, "=") for each in headers],
        null,
        _unescaped(key_delimiter).encode() if key_delimiter else None,
    )


def _produce(
    data: str | None,
    server: str | None,
    topic: str,
    make: Any,
    how: tuple[str, int | None, dict[str, str]],
) -> None:
    from lamina.cli import producing

    delimiter, partition, asked = how
    strange = sorted(set(asked) - {"acks"})
    if strange:
        raise InvalidRequest(f"-X knows acks, not {strange[0]!r}")
    chosen = None if partition is None or partition < 0 else partition
    with writable(data, server) as store:
        for _ in producing.append_lines(
            store,
            topic,
            make,
            partition=chosen,
            acks=asked.get("acks", "all"),
            delimiter=_unescaped(delimiter).encode(),
        ):
            pass


def _rows(
    data: str | None,
    server: str | None,
    where: tuple[str, list[int], str],
    count: int | None,
    *,
    stops: bool,
) -> Any:
    from lamina.cli import reading
    from lamina.cli.offsets import Point, Range, parse_kcat
    from lamina.engine.boot import wall_clock_ms

    topic, partitions, offset = where
    point = parse_kcat(offset, wall_clock_ms())
    asked = point if isinstance(point, Range) else Range(point)
    if asked.end is None and stops:
        asked = Range(asked.start, Point("end"))
    with readable(data, server) as store:
        yield from reading.rows(store, reading.spans(store, [topic], partitions, asked), count)


def _renderer(
    format: str | None, delimiter: str, key_delimiter: str | None, *, null: bool, as_json: bool
) -> Any:
    from lamina.cli import percent
    from lamina.engine.rendering import render_value

    if as_json:

        def envelope(row: Row) -> bytes:
            shown = {name: row[name] for name in ("topic", "partition", "offset")}
            shown |= {"tstype": "create", "ts": row["timestamp_ms"], "broker": 0}
            if row["headers"]:
                flat = [item for pair in row["headers"] for item in pair]
                shown["headers"] = render_value(flat)
            shown |= {"key": render_value(row["key"]), "payload": render_value(row["value"])}
            return json.dumps(shown).encode() + b"\n"

        return envelope
    if format is None:
        keyed = f"%k{key_delimiter}" if key_delimiter else ""
        format = f"{keyed}%s{delimiter}"
    return percent.compile_format(format, percent.KCAT, b"NULL" if null else b"").render
