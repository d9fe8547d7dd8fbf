"""`lamina topic …`: create, describe, alter, delete, produce, consume, trim, retention and more."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina.cli.schema_commands import SCHEMA_HELP, Encoding, KeyColumn, read_schema
from lamina.cli.target import (
    Json,
    TopicName,
    Where,
    Yes,
    complete_group,
    complete_topic,
    placed,
    readable,
    settings_of,
    writable,
)
from lamina.errors import InvalidRequest, TopicExists

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
@placed
def create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Names of new topics.")],
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")
    ] = 1,
    format: Annotated[str, typer.Option(help="keratin, frame or wal.")] = "keratin",
    config: Config = [],  # noqa: B006  # typer copies it
    if_not_exists: Annotated[
        bool,
        typer.Option("--if-not-exists", help="Leave a topic that is there, if it is the same."),
    ] = False,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", metavar="FILE", help=SCHEMA_HELP),
    ] = None,
    encoding: Encoding = None,
    key_column: KeyColumn = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Creates topics, and the data directory with the first one."""
    from lamina.cli.output import emit

    if schema is None and (encoding or key_column):
        raise InvalidRequest("--encoding and --key-column belong to a --schema")
    described = None if schema is None else read_schema(schema)
    rows = []
    with writable(where, create=True) as store:
        for name in names:
            settings = settings_of(config)
            try:
                store.create_topic(
                    name,
                    partitions=partitions,
                    format=format,
                    config=settings,
                    exist_ok=if_not_exists,
                    schema=described,
                    encoding=encoding,
                    key=key_column,
                )
            except TopicExists as error:
                raise _there(error, name, if_not_exists=if_not_exists) from error
            rows.append({"topic": name, "status": "OK"})
    emit(rows, as_json=as_json)


def _there(error: TopicExists, name: str, *, if_not_exists: bool) -> TopicExists:
    """Returns what the command line offers about a topic that exists."""
    if if_not_exists:
        return error
    return TopicExists(
        f"topic {name!r} exists already; --if-not-exists leaves it as it is", topic=name
    )


@app.command("list", epilog="Example: lamina topic list --server grpc://localhost:9300")
@placed
def list_topics(*, where: Where, as_json: Json = False) -> None:
    """Lists topics."""
    from lamina.cli.output import emit, size

    with readable(where) as store:
        rows = []
        for name in store.topics():
            info = store.describe_topic(name)
            total = sum(part.size_bytes + part.archived_bytes for part in info.partitions)
            records = sum(part.durable_offset - part.earliest_offset for part in info.partitions)
            row: dict[str, Any] = {"topic": name, "format": info.format}
            row |= {"partitions": len(info.partitions), "records": records}
            rows.append(row | {"size": total if as_json else size(total)})
    emit(rows, as_json=as_json, none="no topics; `lamina topic create NAME` makes one")


@app.command(epilog="Example: lamina topic describe orders --segments --data data")
@placed
def describe(
    name: TopicName,
    *,
    segments: Annotated[bool, typer.Option("--segments", help="Draw the layers.")] = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Describes a topic: its settings, its partitions and, with --segments, their layers."""
    from lamina.cli import layer_drawing
    from lamina.cli.output import emit, say
    from lamina.wire.values import to_plain

    with readable(where) as store:
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
@placed
def alter(name: TopicName, *, config: Config, where: Where, as_json: Json = False) -> None:
    """Changes settings of a topic; the others stay as they are."""
    from lamina.cli.output import emit

    changed = settings_of(config)
    with writable(where) as store:
        store.alter_topic(name, changed)
    rows = [{"topic": name, "setting": key, "value": value} for key, value in changed.items()]
    emit(rows, as_json=as_json)


@app.command(epilog="Example: lamina topic add-partitions orders --total 8 --data data")
@placed
def add_partitions(
    topic: TopicName,
    *,
    total: Annotated[int, typer.Option("--total", min=1, help="How many it has then.")],
    where: Where,
    as_json: Json = False,
) -> None:
    """Adds partitions to a topic; keys go by the new count from then on."""
    from lamina.cli.output import emit

    with writable(where) as store:
        before = store.format_of(topic)[1]
        store.add_partitions(topic, total)
    emit([{"topic": topic, "before": before, "partitions": total}], as_json=as_json)


@app.command(epilog="Example: lamina topic delete orders --yes --data data")
@placed
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topic)],
    *,
    yes: Yes = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Deletes topics and all their records. A dry run without --yes."""
    from lamina.cli.output import emit

    rows = []
    with writable(where) if yes else readable(where) as store:
        for name in names:
            info = store.describe_topic(name)
            records = sum(part.durable_offset - part.earliest_offset for part in info.partitions)
            if yes:
                store.delete_topic(name)
            status = "deleted" if yes else "would be deleted (--yes)"
            rows.append({"topic": name, "records": records, "status": status})
    emit(rows, as_json=as_json)


@app.command(epilog="Example: echo hello | lamina topic produce orders -k user-1 --data data")
@placed
def produce(
    topic: TopicName,
    *,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every record.")] = None,
    header: Annotated[
        list[str],
        typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header; repeatable."),
    ] = [],  # noqa: B006
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Which one; by default, by key or in turn."),
    ] = None,
    acks: Annotated[str, typer.Option(help="0, 1, all or archived.")] = "all",
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="Take an empty value as null.")
    ] = False,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key-delimiter", "-K", help="What separates the key from the value, as in kcat."
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--format", "-f", help="How a record is written, as in rpk: '%k %v\\n'."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The tag of every record (wal topics).")] = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Appends a record for each line of standard input."""
    from lamina.cli import record_input
    from lamina.cli.input_format import Layout, keyed, parsed

    if format is not None and key_delimiter is not None:
        raise InvalidRequest("-f says where the key is: leave out -K")
    layout = Layout() if key_delimiter is None else keyed(key_delimiter)
    make = record_input.Maker(
        layout if format is None else parsed(format),
        record_input.encoded(key),
        [record_input.header_of(each, ":") for each in header],
        null_if_empty=tombstone,
        tag=record_input.encoded(tag),
    )
    with writable(where) as store:
        producing = record_input.Producing(store, topic, partition, acks)
        for pieces in record_input.pieces(sys.stdin.buffer, make.layout.delimiter):
            producing.append(pieces, make)
            for fields in producing.report():
                sys.stdout.write(
                    f"{json.dumps(fields) if as_json else record_input.success(fields)}\n"
                )
            sys.stdout.flush()


@app.command(epilog="Example: lamina topic consume orders -o @-1h:end -f '%k %v\\n' --data data")
@placed
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
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Consume with a group; records are acknowledged after they were printed.",
            autocompletion=complete_group,
        ),
    ] = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Prints records, and waits for more unless the offsets have an end."""
    from lamina.cli.consuming import Wanted, consume

    if as_json and format != "json":
        raise InvalidRequest("--json is -f json: give one of them")
    wanted = Wanted(topics, offset, num, partitions, group, regex=regex)
    consume(where, wanted, format, with_values=not meta_only, spread=pretty_print)


Before = Annotated[
    str, typer.Option("--before", "--offset", "-o", help="An offset, end, or @time.")
]


@app.command(epilog="Example: lamina topic trim orders --before 1000 --yes --data data")
@placed
def trim(
    topic: TopicName,
    *,
    before: Before,
    partition: Partition = 0,
    yes: Yes = False,
    where: Where,
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

    with writable(where) if yes else readable(where) as store:
        _cut_below(store, (topic, partition), before, cut, as_json=as_json)


@app.command(epilog="Example: lamina topic delete-records orders --before 1000 --yes --data data")
@placed
def delete_records(
    topic: TopicName,
    *,
    before: Before,
    partition: Partition = 0,
    yes: Yes = False,
    where: Where,
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

    with writable(where) if yes else readable(where) as store:
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
@placed
def retention(
    topic: TopicName,
    *,
    partition: Partition = 0,
    yes: Yes = False,
    where: Where,
    as_json: Json = False,
) -> None:
    """Shows why each segment stays or goes; with --yes, removes those that go."""
    from lamina.cli.output import emit, say, size

    with writable(where) as store:
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
