"""`convert` and `replay`: records of one topic appended to another, each of them once.

`convert` takes all that its last run has not taken, and maps fields between formats; `replay` takes
one range, once. Records keep their times, and their partition where both topics have equally many;
otherwise their key decides. Within a partition, order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from lamina.errors import InvalidRequest, UnknownTopic
from lamina.spark.columns import COLUMNS
from lamina.spark.gaps import LeftOut
from lamina.spark.jobs import field_mapping, sink_writes, topic_rows
from lamina.spark.jobs.intents import Intent, Journal
from lamina.spark.jobs.job import Progress, Summary
from lamina.spark.jobs.lane import gathered
from lamina.spark.jobs.topic_rows import Chosen, Spans, Topic
from lamina.spark.jobs.whereabouts import Place


@dataclass(frozen=True, slots=True)
class Conversion:
    """The options of `convert`; `format` makes the target if it is not there."""

    topic: str
    target: str
    format: str | None = None
    rules: field_mapping.Mapped | None = None
    skip_lost: bool = False
    state: str | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The options of `replay`; `name` is what a repeat is known by."""

    topic: str
    target: str
    name: str
    chosen: Chosen
    rules: field_mapping.Mapped | None = None
    skip_lost: bool = False
    state: str | None = None


@dataclass(frozen=True, slots=True)
class _Copy:
    """What both come down to."""

    job: str
    place: Place
    source: Topic
    target: Topic
    rules: field_mapping.Mapped
    application: str
    skip_lost: bool


def convert(
    spark: SparkSession, place: Place, asked: Conversion, *, dry_run: bool, progress: Progress
) -> Summary:
    """Appends what is new in a topic to a topic of another format."""
    source = topic_rows.described(place, asked.topic)
    target = _target(place, source, asked, dry_run=dry_run)
    rules = dict(asked.rules or {})
    field_mapping.check(rules, source.format, target.format)
    application = sink_writes.application_of(
        "convert", target.name, source.identity, target.identity
    )  # whatever the rules are: what is converted is not converted again by other ones
    copy = _Copy("convert", place, source, target, rules, application, asked.skip_lost)

    def next_work(last: Intent | None) -> dict[str, Any] | None:
        done = last.work["done"] if last else {}
        spans = topic_rows.beyond(source, {int(number): end for number, end in done.items()})
        ends = {str(number): end for number, (_, end) in spans.items()}
        return {"spans": topic_rows.to_plain(spans), "done": done | ends} if spans else None

    return _run(spark, copy, asked.state, next_work, dry_run=dry_run, progress=progress)


def replay(
    spark: SparkSession, place: Place, asked: Replay, *, dry_run: bool, progress: Progress
) -> Summary:
    """Appends a range of a topic to another topic, once for each name."""
    source, target = (
        topic_rows.described(place, asked.topic),
        topic_rows.described(place, asked.target),
    )
    rules = dict(asked.rules or {})
    field_mapping.check(rules, source.format, target.format)
    application = sink_writes.application_of(
        "replay", target.name, source.identity, target.identity, asked.name
    )
    copy = _Copy("replay", place, source, target, rules, application, asked.skip_lost)

    def next_work(last: Intent | None) -> dict[str, Any] | None:
        return (
            {"spans": topic_rows.to_plain(_chosen(place, source, asked))} if last is None else None
        )

    return _run(spark, copy, asked.state, next_work, dry_run=dry_run, progress=progress)


def _chosen(place: Place, source: Topic, asked: Replay) -> Spans:
    """Finds the range in each partition, within what is there."""
    found = {}
    with place.reading() as store:
        for number, (_, durable) in source.extents.items():
            start, end = asked.chosen(store, number)
            if start < min(end, durable):
                found[number] = (start, min(end, durable))
    return found


def _target(place: Place, source: Topic, asked: Conversion, *, dry_run: bool) -> Topic:
    """Finds the target, or makes it where the user says its format."""
    try:
        found = topic_rows.described(place, asked.target)
    except UnknownTopic:
        if asked.format is None:
            raise
        extents = dict.fromkeys(source.extents, (0, 0))
        planned = Topic(asked.target, asked.format, 0, 0, extents, {})
        field_mapping.check(dict(asked.rules or {}), source.format, planned.format)
        if dry_run:
            return planned
        with place.writing() as store:
            store.create_topic(asked.target, partitions=len(extents), format=asked.format)
        return topic_rows.described(place, asked.target)
    if asked.format is not None and asked.format != found.format:
        raise InvalidRequest(
            f"topic {asked.target!r} is there, with format {found.format}, not {asked.format}"
        )
    return found


def _run(
    spark: SparkSession,
    copy: _Copy,
    state: str | None,
    next_work: sink_writes.NextWork,
    *,
    dry_run: bool,
    progress: Progress,
) -> Summary:
    if copy.source.identity == copy.target.identity:
        raise InvalidRequest(f"topic {copy.source.name!r} cannot be written to itself")
    journal = sink_writes.journal_of(copy.place, copy.application, state)
    if dry_run:
        intents = sink_writes.planned(journal, next_work)
        return _summary(copy, intents, {}, dry_run=True)
    counts: dict[int, dict[int, int]] = {}
    left_out: list[LeftOut] = []

    def stage(intent: Intent) -> Callable[[], None]:
        counts[intent.number], lost, commit = _stage(spark, copy, intent, journal, progress)
        left_out.extend(lost)
        return commit

    intents = sink_writes.settle(journal, next_work, stage)
    done = _summary(copy, intents, counts, dry_run=False)
    return replace(done, totals={**done.totals, **topic_rows.reported(left_out)})


def _stage(
    spark: SparkSession, copy: _Copy, intent: Intent, journal: Journal, progress: Progress
) -> tuple[dict[int, int], list[LeftOut], Callable[[], None]]:
    """Stages the rows of an intent on the executors; returns counts, losses and the commit."""
    spans = topic_rows.from_plain(intent.work["spans"])
    columns = copy.source.columns
    rows = topic_rows.rows_of(copy.place, copy.source, spans, columns, skip_lost=copy.skip_lost)
    same_partitions = len(copy.source.extents) == len(copy.target.extents)
    rules = copy.rules
    schema = _schema(columns, rules)
    writer = sink_writes.writer_of(copy.place, copy.target, schema, intent, journal)

    def stage(_: int, batches: Iterator[pa.RecordBatch]) -> tuple[Any, dict[int, int]]:
        counts: dict[int, int] = {}

        def mapped() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                topic_rows.counted(batch, counts)
                given = batch if same_partitions else batch.drop_columns(["partition"])
                yield field_mapping.apply(given, rules)

        return writer.write(mapped()), counts

    answers, left_out = rows.over(spark, stage, progress)
    messages = [message for message, _ in answers]
    counts = gathered(counts for _, counts in answers)
    return counts, left_out, lambda: writer.commit(messages)


def _schema(columns: tuple[str, ...], rules: field_mapping.Mapped) -> StructType:
    """The columns that reach the sink."""
    names = [name for name in columns if rules.get(name) not in (field_mapping.DROP, "key", "tag")]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def _summary(
    copy: _Copy,
    intents: list[Intent],
    counts: dict[int, dict[int, int]],
    *,
    dry_run: bool,
) -> Summary:
    rows = []
    for intent in intents:
        for number, (start, end) in topic_rows.from_plain(intent.work["spans"]).items():
            row: dict[str, Any] = {"partition": number, "start": start, "end": end}
            records = counts.get(intent.number, {}).get(number, 0)
            rows.append(row | ({"offsets": end - start} if dry_run else {"records": records}))
    spans = [topic_rows.from_plain(intent.work["spans"]) for intent in intents]
    done: dict[str, Any] = {"offsets": sum(topic_rows.offsets(each) for each in spans)}
    if not dry_run:
        done = {"records": sum(sum(each.values()) for each in counts.values())}
    return Summary(
        copy.job,
        dry_run,
        rows,
        {**done, "from": copy.source.name, "to": copy.target.name, "writer": copy.application},
    )
