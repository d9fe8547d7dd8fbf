"""`lamina cat`: kcat's flags on a Lamina directory or server.

Modes: `-C` consume, `-P` produce, `-L` list, `-Q` query offsets by time, `-G GROUP TOPIC...`
consume with a group; without one, produce if something is piped in and consume otherwise. A flag
that has nothing to do here says so instead of being ignored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from lamina.cli.output import counted
from lamina.cli.target import Where, placed, readable, settings_of, writable
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.cli.record_printing import Read

_END_MS = -1
"""What kcat, and Kafka's protocol, write for the end in place of a time; for the start it is -2."""
_SERVERS = ("bootstrap.servers", "metadata.broker.list")


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
    offset: list[str]
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
    where: Where


@placed
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
        list[str],
        typer.Option("-o", help="beginning, end, stored, N, -N; s@ms and e@ms, one or both."),
    ] = ["beginning"],  # noqa: B006
    count: Annotated[int | None, typer.Option("-c", help="Stop after this many.", min=1)] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", help="Exit at the end.")] = False,
    format: Annotated[str | None, typer.Option("-f", help="%s %S %R %k %K %T %h %t %p %o")] = None,
    as_json: Annotated[bool, typer.Option("-J", "--json", help="JSON envelopes.")] = False,
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
    where: Where,
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
        _list(where, asked.topic, as_json=asked.as_json)
    elif asked.query:
        _query(where, asked.topic)
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


def _where(asked: Asked, properties: dict[str, str]) -> Where:
    named = next((properties[key] for key in _SERVERS if key in properties), None)
    where = asked.where
    if asked.broker or (named and where.data is None and where.server is None):
        return Where(server=asked.broker or named, authority=where.authority)
    return where


def _consume(where: Where, asked: Asked, properties: dict[str, str]) -> None:
    render = _renderer(asked)
    topics = asked.names if asked.group is not None else [_only(asked.topic)]
    if asked.group is not None:
        reads = _group_reads(where, asked)
    else:
        reads = _reads(where, asked, properties.get("group.id"))
    for read in reads:
        sys.stdout.buffer.write(render(read))
        if asked.unbuffered or sys.stdout.isatty() or not asked.exit_at_end:
            sys.stdout.buffer.flush()
    if asked.exit_at_end and not asked.quiet:
        sys.stderr.write(f"% Reached end of topic {' '.join(topics)}\n")


def _group_reads(where: Where, asked: Asked) -> Iterator[Read]:
    """Yields records that a group hands out; each is acked after it was printed."""
    from lamina.cli.group_reading import group_reads

    if not asked.names or asked.topic:
        raise InvalidRequest("-G names a group, then its topics: -G billing orders")
    with writable(where) as store:
        yield from group_reads(
            store, str(asked.group), asked.names, count=asked.count, ends=asked.exit_at_end
        )


def _only(topics: list[str]) -> str:
    if len(topics) != 1:
        raise InvalidRequest("name one topic with -t")
    return topics[0]


def _list(where: Where, topics: list[str], *, as_json: bool) -> None:
    with readable(where) as store:
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
    sys.stdout.write(f" {counted(len(described), 'topic')}:\n")
    for info in described:
        parts = counted(len(info.partitions), "partition")
        sys.stdout.write(f'  topic "{info.name}" with {parts}:\n')
        for part in info.partitions:
            span = f"offsets {part.earliest_offset} to {part.durable_offset}"
            sys.stdout.write(f"    partition {part.partition}, {span}\n")


def _query(where: Where, asked: list[str]) -> None:
    with readable(where) as store:
        for each in asked:
            parts = each.rsplit(":", 2)
            try:
                topic, partition, timestamp_ms = parts[0], int(parts[1]), int(parts[2])
            except (IndexError, ValueError) as error:
                raise InvalidRequest(f"-Q needs -t topic:partition:ms, not {each!r}") from error
            asks_time = timestamp_ms != _END_MS
            found = store.offset_for_time(topic, partition, timestamp_ms) if asks_time else None
            shown = store.latest_offset(topic, partition) if found is None else found
            sys.stdout.write(f"{topic} [{partition}] offset {shown}\n")


def _produce(where: Where, asked: Asked, properties: dict[str, str]) -> None:
    from lamina.cli import record_input
    from lamina.cli.input_format import Layout, keyed, unescaped

    topic, delimiter = _only(asked.topic), unescaped(asked.delimiter)
    make = record_input.Maker(
        Layout() if asked.key_delimiter is None else keyed(asked.key_delimiter, delimiter),
        record_input.encoded(asked.key),
        [record_input.header_of(each, "=") for each in asked.header],
        asked.null,
    )
    chosen = None if asked.partition is None or asked.partition < 0 else asked.partition
    with writable(where) as store:
        producing = record_input.Producing(store, topic, chosen, properties.get("acks", "all"))
        for pieces in _inputs(asked, delimiter):
            producing.append(pieces, make)
            if asked.tee:
                sys.stdout.buffer.write(b"".join(piece + delimiter for piece in pieces))
                sys.stdout.buffer.flush()
            for done in producing.report() if asked.verbose else ():
                sys.stderr.write(f"% {record_input.success(done)}\n")


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


def _reads(where: Where, asked: Asked, group: str | None) -> Iterator[Read]:
    from lamina.cli import record_printing
    from lamina.cli.offsets import Point, Range, parse_kcat

    topic = _only(asked.topic)
    chosen = [asked.partition] if asked.partition is not None and asked.partition >= 0 else []
    end = Point("end") if asked.exit_at_end else None
    with readable(where) as store:
        if asked.offset == ["stored"]:
            if group is None:
                raise InvalidRequest("-o stored is where a group is: name it with -X group.id=NAME")
            stored = {
                part.partition: part.committed
                for part in store.describe_group(topic, group).partitions
            }
            spans = record_printing.spans(store, [topic], chosen, Range(Point("start"), end))
            for span in spans:
                span.start = span.first = max(span.start, stored[span.partition])
        else:
            wanted = parse_kcat(asked.offset)
            spans = record_printing.spans(
                store, [topic], chosen, Range(wanted.start, wanted.end or end)
            )
        yield from record_printing.reads(store, spans, asked.count)


def _renderer(asked: Asked) -> Callable[[Read], bytes]:
    from lamina.cli import percent, record_printing

    if asked.as_json:
        return record_printing.envelopes
    between = asked.key_delimiter
    keyed = f"%k{between}" if between else ""
    before = f"%o{between or chr(9)}" if asked.with_offset else ""
    chosen = asked.format
    if chosen is None:
        chosen = f"{before}{keyed}%s{asked.delimiter}"
    made = percent.compile_format(chosen, percent.KCAT, b"NULL" if asked.null else b"")
    return lambda read: b"".join(map(made.render, record_printing.rows(read)))
