"""`profile`: how many records a topic has, how large, how late, and which keys are most of them.

Two passes in the bulk lane when there are several tasks: the first finds the latest time of each
task, so that the second knows how late its first records are. Nothing is changed; a page with plots
is written where the user says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from lamina.spark.jobs import topic_rows
from lamina.spark.jobs.job import Progress, Summary
from lamina.spark.jobs.lane import over_tasks
from lamina.spark.jobs.profile_measures import LATE_NAMES, Keys, Measure, times_of
from lamina.spark.jobs.topic_rows import Rows, Topic
from lamina.spark.jobs.whereabouts import Place

TOP_KEYS = 20
NEVER_MS = -(1 << 62)

Latest = dict[int, int]


@dataclass(frozen=True, slots=True)
class Profile:
    """What was found."""

    topic: Topic
    partitions: dict[int, Measure]
    whole: Measure
    keys: Keys
    key_name: str
    """What is counted as the key: `key`, or `tag` where a format has none."""


def profile(
    spark: SparkSession,
    place: Place,
    name: str,
    *,
    skip_lost: bool = False,
    dry_run: bool,
    progress: Progress,
) -> tuple[Summary, Profile | None]:
    """Measures a topic; a dry run only says what it would read."""
    topic = topic_rows.described(place, name)
    spans = topic_rows.beyond(topic, {})
    if dry_run:
        rows = [
            {"partition": number, "start": start, "end": end, "offsets": end - start}
            for number, (start, end) in spans.items()
        ]
        totals = {"topic": name, "offsets": topic_rows.offsets(spans)}
        return Summary("profile", True, rows, totals), None
    key = "key" if "key" in topic.columns else "tag"
    columns = ("partition", "timestamp", key, "value")
    reading = topic_rows.rows_of(place, topic, spans, columns, skip_lost=skip_lost)
    before = _latest_before(spark, place, topic, reading, skip_lost, progress)

    def measure(number: int, batches: Iterator[pa.RecordBatch]) -> tuple[dict[int, Measure], Keys]:
        return _measured(batches, key, before[number])

    answers, left_out = reading.over(spark, measure, progress)
    found = _merged(topic, key, answers)
    done = _summary(found)
    return replace(done, totals={**done.totals, **topic_rows.reported(left_out)}), found


def _latest_before(
    spark: SparkSession,
    place: Place,
    topic: Topic,
    reading: Rows,
    skip_lost: bool,
    progress: Progress,
) -> list[Latest]:
    """Finds for each task the latest time of each partition in the tasks before it."""
    if len(reading.tasks) <= 1:
        return [{} for _ in reading.tasks]
    spans = topic_rows.beyond(topic, {})
    times = topic_rows.rows_of(place, topic, spans, ("partition", "timestamp"), skip_lost=skip_lost)

    def latest(task: InputPartition) -> Latest:
        found: Latest = {}
        for batch in times.read(task):
            for number, rows in by_partition(batch):
                found[number] = max(found.get(number, NEVER_MS), int(times_of(rows).max()))
        return found

    # The tasks are the first plan's: cut at the same records, whatever was appended since.
    so_far: Latest = {}
    before = []
    for found in over_tasks(spark, reading.tasks, latest, progress):
        before.append(dict(so_far))
        for number, time_ms in found.items():
            so_far[number] = max(so_far.get(number, NEVER_MS), time_ms)
    return before


def _measured(
    batches: Iterator[pa.RecordBatch], key: str, before: Latest
) -> tuple[dict[int, Measure], Keys]:
    found: dict[int, Measure] = {}
    keys = Keys()
    for batch in batches:
        keys.add(batch.column(key))
        for number, rows in by_partition(batch):
            measure = found.setdefault(number, Measure())
            measure.add(rows, key, before.get(number, NEVER_MS))
    return found, keys


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Parts rows by partition, order kept; nearly always they are all of one."""
    numbers = pc.unique(batch.column("partition")).to_pylist()
    if len(numbers) == 1:
        yield numbers[0], batch
        return
    for number in numbers:
        yield number, batch.filter(pc.equal(batch.column("partition"), number))


def _merged(topic: Topic, key: str, answers: Sequence[tuple[dict[int, Measure], Keys]]) -> Profile:
    partitions = {number: Measure() for number in topic.extents}
    whole, keys = Measure(), Keys()
    for measures, counted in answers:
        keys.merge(counted)
        for number, measure in measures.items():
            partitions[number].merge(measure)
            whole.merge(measure)
    return Profile(topic, partitions, whole, keys, key)


def size_name(bucket: int) -> str:
    """Names a bucket of sizes."""
    return "empty" if bucket == 0 else f"{1 << (bucket - 1)} to {(1 << bucket) - 1} B"


def _summary(found: Profile) -> Summary:
    whole = found.whole

    def row(what: str, which: object, records: int, size_bytes: int | None = None) -> Any:
        share = f"{records / whole.records:.1%}" if whole.records else "-"
        named = {"what": what, "which": str(which), "records": records, "share": share}
        return named | {"bytes": size_bytes}

    rows = [
        row("partition", number, each.records, each.size_bytes)
        for number, each in found.partitions.items()
    ]
    rows += [
        row("size", size_name(bucket), int(count), int(whole.sizes_bytes[bucket]))
        for bucket, count in enumerate(whole.sizes)
        if count
    ]
    rows += [
        row("late", name, int(count))
        for name, count in zip(LATE_NAMES, whole.late, strict=True)
        if count
    ]
    rows += [row(found.key_name, key_text(key), count) for key, count in found.keys.top(TOP_KEYS)]
    exact = found.keys.error == 0
    totals = {
        "topic": found.topic.name,
        "records": whole.records,
        "bytes": whole.size_bytes,
        "keys": found.keys.distinct if exact else f"over {found.keys.distinct}",
        "no_key": whole.keyless,
        "tombstones": whole.tombstones,
        "late_at_most_ms": whole.late_max_ms,
    }
    if not exact:
        totals["key_counts_too_low_by_at_most"] = found.keys.error
    return Summary("profile", False, rows, totals)


def key_text(key: bytes) -> str:
    """Shows a key: as text where it is printable text, otherwise as hexadecimal digits."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    shown = text if text and text.isprintable() else f"0x{key.hex()}"
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
