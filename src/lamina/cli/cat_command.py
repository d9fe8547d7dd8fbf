"""`lamina cat`: kcat's flags on a Lamina directory or server.

Modes: `-C` consume, `-P` produce, `-L` list, `-Q` query offsets by time, `-G GROUP TOPIC...`
consume with a group; without one, produce if something is piped in and consume otherwise. A flag
that has nothing to do here says so instead of being ignored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from lamina.cli.target import Data, Server, readable, settings_of, writable
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.cli.percent import Row

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0"}
_SERVERS = ("bootstrap.servers", "metadata.broker.list")
_POLL_RECORDS, _LEASE_MS = 100, 30_000


@dataclass(frozen=True, slots=True)
class Asked:
    """The flags as they were given."""

    names: list[str]
    consume: bool
    produce: bool
    listing: bool
    query: bool
    group: str | None
    topic: list[str]
    partition: int | None
    offset: str
    count: int | None
    exit_at_end: bool
    format: str | None
    as_json: bool
    with_offset: bool
    delimiter: str
    key_delimiter: str | None
    key: str | None
    header: list[str]
    null: bool
    lines: bool
    tee: bool
    codec: str | None
    unbuffered: bool
    quiet: bool
    verbose: int
    property_: list[str]
    file: str | None
    broker: str | None
    data: str | None
    server: str | None


def cat(
    names: Annotated[
        list[str] | None, typer.Argument(help="Topics for -G, files for -P.", metavar="[NAME]...")
    ] = None,
    *,
    consume: Annotated[bool, typer.Option("-C", help="Consume.")] = False,
    produce: Annotated[bool, typer.Option("-P", help="Produce.")] = False,
    listing: Annotated[bool, typer.Option("-L", help="List topics and partitions.")] = False,
    query: Annotated[
        bool, typer.Option("-Q", help="Query an offset by time: -t topic:partition:ms.")
    ] = False,
    group: Annotated[str | None, typer.Option("-G", help="Consume with a group.")] = None,
    topic: Annotated[list[str], typer.Option("-t", help="Topic.")] = [],  # noqa: B006
    partition: Annotated[int | None, typer.Option("-p", help="Partition.", min=-1)] = None,
    offset: Annotated[
        str, typer.Option("-o", help="beginning, end, stored, N, -N, s@ms, e@ms.")
    ] = "beginning",
    count: Annotated[int | None, typer.Option("-c", help="Stop after this many.", min=1)] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", help="Exit at the end.")] = False,
    format: Annotated[str | None, typer.Option("-f", help="%s %S %R %k %K %T %h %t %p %o")] = None,
    as_json: Annotated[bool, typer.Option("-J", help="JSON envelopes.")] = False,
    with_offset: Annotated[bool, typer.Option("-O", help="Print offsets before keys.")] = False,
    delimiter: Annotated[str, typer.Option("-D", help="Record delimiter.")] = "\\n",
    key_delimiter: Annotated[str | None, typer.Option("-K", help="Key delimiter.")] = None,
    key: Annotated[str | None, typer.Option("-k", help="The key of every record.")] = None,
    header: Annotated[list[str], typer.Option("-H", help="name=value; repeatable.")] = [],  # noqa: B006
    null: Annotated[bool, typer.Option("-Z", help="Empty is null; print null as NULL.")] = False,
    lines: Annotated[bool, typer.Option("-l", help="Split a file at -D.")] = False,
    tee: Annotated[bool, typer.Option("-T", help="Print what is produced.")] = False,
    codec: Annotated[str | None, typer.Option("-z", help="Only none is accepted.")] = None,
    unbuffered: Annotated[bool, typer.Option("-u", help="Write each record at once.")] = False,
    quiet: Annotated[bool, typer.Option("-q", help="Print only the records.")] = False,
    verbose: Annotated[int, typer.Option("-v", help="Print more.", count=True)] = 0,
    property_: Annotated[
        list[str], typer.Option("-X", metavar="KEY=VALUE", help="A property: acks or group.id.")
    ] = [],  # noqa: B006
    file: Annotated[str | None, typer.Option("-F", help="A file with such properties.")] = None,
    broker: Annotated[str | None, typer.Option("-b", help="A server, like --server.")] = None,
    data: Data = None,
    server: Server = None,
) -> None:
    """Consumes, produces, lists and queries with kcat's flags."""
    names = names or []
    _run(Asked(**locals()))


def _run(asked: Asked) -> None:
    modes = [asked.consume, asked.produce, asked.listing, asked.query, asked.group is not None]
    if sum(modes) > 1:
        raise InvalidRequest("choose one of -C, -P, -L, -Q and -G")
    if asked.codec not in (None, "none"):
        raise InvalidRequest(
            f"-z {asked.codec}: records are not compressed on the way; the archive is, by the"
            " topic's setting archive.compression.type"
        )
    properties = _properties(asked)
    where = _where(asked, properties)
    if asked.listing:
        _list(*where, asked.topic, as_json=asked.as_json)
    elif asked.query:
        _query(*where, asked.topic)
    elif asked.produce or (not any(modes) and not sys.stdin.isatty()):
        _produce(where, asked, properties)
    else:
        _consume(where, asked, properties)


def _properties(asked: Asked) -> dict[str, str]:
    """Reads the properties of -F, then those of -X, which win."""
    lines: list[str] = []
    if asked.file is not None:
        with open(asked.file, encoding="utf-8") as file:
            stripped = [line.strip() for line in file]
        lines = [line for line in stripped if line and not line.startswith("#")]
    found = settings_of(lines) | settings_of(asked.property_)
    known = ("acks", "group.id", *_SERVERS)
    strange = sorted(set(found) - set(known))
    if strange:
        raise InvalidRequest(f"-X and -F know {', '.join(known)}, not {strange[0]!r}")
    return found


def _where(asked: Asked, properties: dict[str, str]) -> tuple[str | None, str | None]:
    named = next((properties[key] for key in _SERVERS if key in properties), None)
    if asked.broker or (named and asked.data is None and asked.server is None):
        return None, asked.broker or named
    return asked.data, asked.server


def _consume(
    where: tuple[str | None, str | None], asked: Asked, properties: dict[str, str]
) -> None:
    render = _renderer(asked)
    stops = asked.exit_at_end and asked.offset != "end"
    topics = asked.names if asked.group is not None else [_only(asked.topic)]
    if asked.group is not None:
        rows = _group_rows(where, asked)
    else:
        rows = _rows(where, asked, properties.get("group.id"), stops=stops)
    for row in rows:
        sys.stdout.buffer.write(render(row))
        if asked.unbuffered or sys.stdout.isatty() or not stops:
            sys.stdout.buffer.flush()
    if stops and not asked.quiet:
        sys.stderr.write(f"% Reached end of topic {' '.join(topics)}\n")


def _group_rows(where: tuple[str | None, str | None], asked: Asked) -> Iterator[Row]:
    """Yields records that a group hands out; each is acked after it was printed."""
    from lamina.cli.record_printing import rows_of

    if not asked.names or asked.topic:
        raise InvalidRequest("-G names a group, then its topics: -G billing orders")
    number = 0
    with writable(*where) as store:
        groups = [store.group(topic, str(asked.group)) for topic in asked.names]
        while asked.count is None or number < asked.count:
            found = 0
            for group in groups:
                left = _POLL_RECORDS if asked.count is None else asked.count - number
                wait_ms = 0 if asked.exit_at_end or len(groups) > 1 else 200
                batch = group.poll(max(1, min(_POLL_RECORDS, left)), _LEASE_MS, wait_ms=wait_ms)
                for row in rows_of(batch):
                    number += 1
                    yield row | {"topic": group.topic, "number": number}
                if batch.num_rows:
                    sys.stdout.buffer.flush()
                    group.ack(batch)
                found += batch.num_rows
                if number == asked.count:
                    return
            if not found and asked.exit_at_end:
                return
            if not found and len(groups) > 1:
                time.sleep(0.1)


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


def _maker(asked: Asked) -> Any:
    from lamina.cli import record_input

    return record_input.Maker(
        asked.key.encode() if asked.key is not None else None,
        [record_input.header_of(each, "=") for each in asked.header],
        asked.null,
        _unescaped(asked.key_delimiter).encode() if asked.key_delimiter else None,
    )


def _produce(
    where: tuple[str | None, str | None], asked: Asked, properties: dict[str, str]
) -> None:
    from lamina.cli import record_input

    topic, make = _only(asked.topic), _maker(asked)
    delimiter = _unescaped(asked.delimiter).encode()
    chosen = None if asked.partition is None or asked.partition < 0 else asked.partition
    seen: Callable[[bytes], object] = lambda piece: None  # noqa: E731
    if asked.tee:
        seen = lambda piece: sys.stdout.buffer.write(piece + delimiter)  # noqa: E731
    with writable(*where) as store:
        for pieces in _inputs(asked, delimiter):
            appended = store.append(
                topic,
                [make.record(piece) for piece in pieces],
                partition=chosen,
                acks=properties.get("acks", "all"),
            )
            for piece in pieces:
                seen(piece)
            for number, ack in appended.parts.items() if asked.verbose else ():
                sys.stderr.write(f"% {record_input.success(number, ack)}\n")


def _inputs(asked: Asked, delimiter: bytes) -> Iterator[list[bytes]]:
    """Yields groups of records: from standard input, from one file, or one per whole file."""
    from lamina.cli import record_input

    if not asked.names:
        yield from record_input.pieces(sys.stdin.buffer, delimiter)
        return
    if asked.lines and len(asked.names) != 1:
        raise InvalidRequest("-l splits one file; without it each file is one record")
    for name in asked.names:
        file: BinaryIO
        with open(name, "rb") as file:
            if asked.lines:
                yield from record_input.pieces(file, delimiter)
            else:
                yield [file.read()]


def _rows(
    where: tuple[str | None, str | None], asked: Asked, group: str | None, *, stops: bool
) -> Any:
    from lamina.cli import record_printing
    from lamina.cli.offsets import Point, Range, parse_kcat
    from lamina.storage.files import wall_clock_ms

    topic = _only(asked.topic)
    chosen = [asked.partition] if asked.partition is not None and asked.partition >= 0 else []
    with readable(*where) as store:
        if asked.offset == "stored":
            if group is None:
                raise InvalidRequest("-o stored is where a group is: name it with -X group.id=NAME")
            stored = {
                part.partition: part.committed
                for part in store.describe_group(topic, group).partitions
            }
            spans = record_printing.spans(store, [topic], chosen, Range(Point("start")))
            for span in spans:
                span.start = max(span.start, stored[span.partition])
                span.end = store.latest_offset(topic, span.partition) if stops else None
        else:
            point = parse_kcat(asked.offset, wall_clock_ms())
            wanted = point if isinstance(point, Range) else Range(point)
            if wanted.end is None and stops:
                wanted = Range(wanted.start, Point("end"))
            spans = record_printing.spans(store, [topic], chosen, wanted)
        yield from record_printing.rows(store, spans, asked.count)


def _renderer(asked: Asked) -> Any:
    from lamina.cli import percent
    from lamina.inspect.render import render_value

    if asked.as_json:

        def envelope(row: Row) -> bytes:
            shown = {name: row[name] for name in ("topic", "partition", "offset")}
            shown |= {"tstype": "create", "ts": row["timestamp_ms"], "broker": 0}
            if row["headers"]:
                flat = [item for pair in row["headers"] for item in pair]
                shown["headers"] = render_value(flat)
            shown |= {"key": render_value(row["key"]), "payload": render_value(row["value"])}
            return json.dumps(shown).encode() + b"\n"

        return envelope
    between = asked.key_delimiter
    keyed = f"%k{between}" if between else ""
    placed = f"%o{between or chr(9)}" if asked.with_offset else ""
    chosen = asked.format
    if chosen is None:
        chosen = f"{placed}{keyed}%s{asked.delimiter}"
    return percent.compile_format(chosen, percent.KCAT, b"NULL" if asked.null else b"").render
