"""`lamina topic …`: create, describe, alter, delete, produce, consume, trim, retention and more."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.target import (
    Archive,
    Data,
    Json,
    Server,
    TopicName,
    Yes,
    complete_topic,
    readable,
    settings_of,
    writable,
)
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    from lamina.api import StoreApi

app = typer.Typer(
    help="Topics and their records.",
    no_args_is_help=True,
    epilog="Example: lamina topic list --data data",
)

Partition = Annotated[int, typer.Option("--partition", "-p", min=0, help="Which partition.")]
Config = Annotated[
    list[str], typer.Option("--config", "-c", metavar="KEY=VALUE", help="A setting; repeatable.")
]


@app.command(epilog="Example: lamina topic create orders -p 4 -c retention.ms=86400000 --data data")
def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of new topics.")],
    *,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    format: Annotated[str, typer.Option(help="keratin, frame or wal.")] = "keratin",
    config: Config = [],  # noqa: B006  # typer copies it
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Creates topics, and the data directory with the first one."""
    from lamina.cli.output import emit

    rows = []
    with writable(data, server, create=True) as store:
        for name in names:
            settings = settings_of(config)
            store.create_topic(name, partitions=partitions, format=format, config=settings)
            rows.append({"topic": name, "status": "OK"})
    emit(rows, as_json=as_json)


@app.command("list", epilog="Example: lamina topic list --server grpc://localhost:9300")
def list_topics(*, data: Data = None, server: Server = None, as_json: Json = False) -> None:
    """Lists topics."""
    from lamina.cli.output import emit, size

    with readable(data, server) as store:
        rows = []
        for name in store.topics():
            info = store.describe_topic(name)
            total = sum(part.size_bytes + part.archived_bytes for part in info.partitions)
            records = sum(part.durable_offset - part.earliest_offset for part in info.partitions)
            row: dict[str, Any] = {"topic": name, "format": info.format}
            row |= {"partitions": len(info.partitions), "records": records}
            rows.append(row | {"size": total if as_json else size(total)})
    emit(rows, as_json=as_json)


@app.command(epilog="Example: lamina topic describe orders --segments --data data")
def describe(
    name: TopicName,
    *,
    segments: Annotated[bool, typer.Option("--segments", help="Draw the layers.")] = False,
    data: Data = None,
    server: Server = None,
    archive: Archive = None,
    as_json: Json = False,
) -> None:
    """Describes a topic: its settings, its partitions and, with --segments, their layers."""
    from lamina.cli import layer_drawing
    from lamina.cli.output import emit, say
    from lamina.wire.values import to_plain

    with readable(data, server, archive=archive) as store:
        info = store.describe_topic(name)
        if as_json:
            described = to_plain(info)
            if segments:
                for part in described["partitions"]:
                    part["layers"] = to_plain(store.segments(name, part["partition"]))
            emit([described], as_json=True)
            return
        say(f"{info.name}: format {info.format}, epoch {info.epoch}")
        emit([to_plain(part) for part in info.partitions], as_json=False)
        emit([{"setting": k, "value": v} for k, v in info.settings.items()], as_json=False)
        if segments:
            for part in info.partitions:
                layer_drawing.draw(store, name, part.partition)


@app.command(epilog="Example: lamina topic alter orders -c retention.bytes=1073741824 --data data")
def alter(name: TopicName, *, config: Config, data: Data = None, server: Server = None) -> None:
    """Changes settings of a topic; the others stay as they are."""
    from lamina.cli.output import say

    with writable(data, server) as store:
        store.alter_topic(name, settings_of(config))
    say(f"{name}: {', '.join(config)}")


@app.command(epilog="Example: lamina topic add-partitions orders --total 8 --data data")
def add_partitions(
    topic: TopicName,
    *,
    total: Annotated[int, typer.Option("--total", min=1, help="How many it has then.")],
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Adds partitions to a topic; keys go by the new count from then on."""
    from lamina.cli.output import emit

    with writable(data, server) as store:
        before = store.format_of(topic)[1]
        store.add_partitions(topic, total)
    emit([{"topic": topic, "before": before, "partitions": total}], as_json=as_json)


@app.command(epilog="Example: lamina topic delete orders --yes --data data")
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topic)],
    *,
    yes: Yes = False,
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Deletes topics and all their records. A dry run without --yes."""
    from lamina.cli.output import emit

    rows = []
    with writable(data, server) if yes else readable(data, server) as store:
        for name in names:
            info = store.describe_topic(name)
            records = sum(part.durable_offset - part.earliest_offset for part in info.partitions)
            if yes:
                store.delete_topic(name)
            status = "deleted" if yes else "would be deleted (--yes)"
            rows.append({"topic": name, "records": records, "status": status})
    emit(rows, as_json=as_json)


@app.command(epilog="Example: echo hello | lamina topic produce orders -k user-1 --data data")
def produce(
    topic: TopicName,
    *,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    header: Annotated[
        list[str], typer.Option("--header", "-H", metavar="NAME:VALUE", help="Repeatable.")
    ] = [],  # noqa: B006
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    acks: Annotated[str, typer.Option(help="0, 1 or all.")] = "all",
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="Take an empty line as a null value.")
    ] = False,
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Appends a record for each line of standard input."""
    from lamina.cli import record_input

    headers = [record_input.header_of(each, ":") for each in header]
    make = record_input.Maker(key.encode() if key is not None else None, headers, tombstone)
    with writable(data, server) as store:
        for ack in record_input.append_lines(store, topic, make, partition=partition, acks=acks):
            for number, part in sorted(ack.parts.items()):
                if as_json:
                    row = {"partition": number, "offset": part.base_offset, "count": part.count}
                    line = json.dumps(row | {"durability": part.durability})
                else:
                    line = record_input.success(number, part)
                sys.stdout.write(line + "\n")


@app.command(epilog="Example: lamina topic consume orders -o @-1h:end -f '%k %v\\n' --data data")
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topic)],
    *,
    offset: Annotated[
        str,
        typer.Option("--offset", "-o", help="start, end, :end, +N, -N, N, N:M, @time, @-2h:-1h …"),
    ] = "start",
    num: Annotated[
        int | None, typer.Option("--num", "-n", min=1, help="Stop after this many.")
    ] = None,
    partitions: Annotated[
        list[int], typer.Option("--partitions", "-p", min=0, help="Only these; repeatable.")
    ] = [],  # noqa: B006
    format: Annotated[
        str, typer.Option("--format", "-f", help="json, or percent tokens: %t %p %o %k %v %d …")
    ] = "json",
    regex: Annotated[
        bool, typer.Option("--regex", "-r", help="Take topics as regular expressions.")
    ] = False,
    meta_only: Annotated[bool, typer.Option("--meta-only", help="Leave out the values.")] = False,
    pretty_print: Annotated[bool, typer.Option(help="Print JSON over many lines.")] = False,
    data: Data = None,
    server: Server = None,
) -> None:
    """Prints records, and waits for more unless the offsets have an end."""
    from lamina.cli import percent, record_printing
    from lamina.cli.offsets import parse
    from lamina.inspect.render import render_value
    from lamina.storage.files import wall_clock_ms

    asked = parse(offset, wall_clock_ms())
    compiled = None if format == "json" else percent.compile_format(format, percent.RPK)
    with readable(data, server) as store:
        names = _matching(store.topics(), topics) if regex else topics
        for row in record_printing.rows(
            store, record_printing.spans(store, names, partitions, asked), num
        ):
            if compiled is not None:
                sys.stdout.buffer.write(compiled.render(row))
            else:
                del row["number"]
                if meta_only:
                    row.pop("value")
                text = json.dumps(render_value(row), indent=2 if pretty_print else None)
                sys.stdout.buffer.write(text.encode() + b"\n")
            sys.stdout.buffer.flush()


def _matching(known: list[str], patterns: list[str]) -> list[str]:
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise InvalidRequest(f"no regular expression: {error}") from error
    return [name for name in known if any(each.search(name) for each in compiled)]


Before = Annotated[
    str, typer.Option("--before", "--offset", "-o", help="An offset, end, or @time.")
]


@app.command(epilog="Example: lamina topic trim orders --before 1000 --yes --data data")
def trim(
    topic: TopicName,
    *,
    before: Before,
    partition: Partition = 0,
    yes: Yes = False,
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Removes whole segments below an offset. A dry run without --yes."""

    def cut(store: StoreApi, at: int) -> tuple[int, str]:
        if yes:
            return store.trim(topic, partition, at), "trimmed"
        kept = [each for each in store.segments(topic, partition) if each.next_offset > at]
        left = kept[0].base_offset if kept else store.latest_offset(topic, partition)
        # The first segment may begin below what was deleted inside of it.
        return max(store.earliest_offset(topic, partition), left), "would be trimmed (--yes)"

    with writable(data, server) if yes else readable(data, server) as store:
        _cut_below(store, (topic, partition), before, cut, as_json=as_json)


@app.command(epilog="Example: lamina topic delete-records orders --before 1000 --yes --data data")
def delete_records(
    topic: TopicName,
    *,
    before: Before,
    partition: Partition = 0,
    yes: Yes = False,
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Deletes all records below an offset, even inside a segment. A dry run without --yes."""

    def cut(store: StoreApi, at: int) -> tuple[int, str]:
        if yes:
            return store.delete_records(topic, partition, at), "deleted"
        end = store.latest_offset(topic, partition)
        if at > end:
            raise InvalidRequest(f"{topic}/{partition} ends at {end}, below {at}")
        return max(store.earliest_offset(topic, partition), at), "would be deleted (--yes)"

    with writable(data, server) if yes else readable(data, server) as store:
        _cut_below(store, (topic, partition), before, cut, as_json=as_json)


def _cut_below(
    store: StoreApi,
    place: tuple[str, int],
    before: str,
    cut: Callable[[StoreApi, int], tuple[int, str]],
    *,
    as_json: bool,
) -> None:
    """Resolves an offset, has what lies below it removed, and prints where the partition begins."""
    from lamina.cli.offsets import parse, resolve
    from lamina.cli.output import emit
    from lamina.storage.files import wall_clock_ms

    topic, partition = place
    at = resolve(parse(before, wall_clock_ms()).start, store, topic, partition)
    earliest = store.earliest_offset(topic, partition)
    left, status = cut(store, at)
    row = {"topic": topic, "partition": partition, "earliest": earliest, "before": at}
    emit([row | {"new_earliest": left, "status": status}], as_json=as_json)


@app.command(epilog="Example: lamina topic retention orders --data data")
def retention(
    topic: TopicName,
    *,
    partition: Partition = 0,
    yes: Yes = False,
    data: Data = None,
    server: Server = None,
    as_json: Json = False,
) -> None:
    """Shows why each segment stays or goes; with --yes, removes those that go."""
    from lamina.cli.output import emit, say, size

    with writable(data, server) as store:
        rows = [
            {
                "segment": decision.segment.base_offset,
                "size": decision.segment.size_bytes
                if as_json
                else size(decision.segment.size_bytes),
                "goes": decision.goes if as_json else "goes" if decision.goes else "stays",
                "why": decision.why,
            }
            for decision in store.explain_retention(topic, partition)
        ]
        emit(rows, as_json=as_json)
        if yes:
            gone = store.apply_retention(topic, partition)
            if not as_json:
                say(f"segments removed: {gone}")
