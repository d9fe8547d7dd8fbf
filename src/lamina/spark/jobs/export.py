"""`export`: a topic as a table for others, by day; each run adds what is new, in one commit.

    plan (driver) ─▶ Parquet files (executors, the bulk lane) ─▶ one commit (driver)

A `Lake` is the kind of table: plain Parquet with commits of our own, Delta, or Iceberg. Each keeps
how far the topic is exported inside of its own commit, so rows and offsets never disagree.

Rules.
1. Files that no commit names are never part of the table.
2. The offsets that are done are committed together with the files that hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from lamina.spark.columns import COLUMNS
from lamina.spark.jobs import topic_rows
from lamina.spark.jobs.job import Progress, Summary
from lamina.spark.jobs.lakes.parquet_files import DataFile, write_by_day
from lamina.spark.jobs.topic_rows import Spans, Topic, reported
from lamina.spark.jobs.whereabouts import Place
from lamina.storage.files import LocalFiles


@dataclass(frozen=True, slots=True)
class Export:
    """What one commit holds."""

    topic: Topic
    spans: Spans
    files: Sequence[DataFile]
    schema: pa.Schema
    done: Mapping[int, int]
    """For each partition, one past the last offset that is exported with this commit."""


class Lake(Protocol):
    """A kind of table that files can be committed to."""

    @property
    def name(self) -> str:
        """What people call the table."""

    def alone(self) -> AbstractContextManager[object]:
        """Keeps other runs away, and finishes what a killed one has committed."""

    def done(self, topic: Topic) -> dict[int, int]:
        """Returns how far each partition of a topic is exported; empty before the first run.

        Raises InvalidRequest if the table holds another topic.
        """

    def directory(self) -> str:
        """Returns where the executors write this run's files."""

    def commit(self, export: Export) -> None:
        """Makes files part of the table, all of them at once."""


def export(
    spark: SparkSession,
    place: Place,
    name: str,
    lake: Lake,
    *,
    skip_lost: bool = False,
    dry_run: bool,
    progress: Progress,
) -> Summary:
    """Adds what a topic has beyond the last export to a table."""
    topic = topic_rows.described(place, name)
    if dry_run:
        spans = topic_rows.beyond(topic, lake.done(topic))
        return _summary(topic, lake, spans, [], dry_run=True)
    with lake.alone():
        done = lake.done(topic)
        spans = topic_rows.beyond(topic, done)
        if not spans:
            return _summary(topic, lake, spans, [], dry_run=False)
        rows = topic_rows.rows_of(place, topic, spans, topic.columns, skip_lost=skip_lost)
        directory = lake.directory()

        def write(_: int, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
            return write_by_day(LocalFiles(), directory, batches)

        answers, left_out = rows.over(spark, write, progress)
        files = [file for some in answers for file in some]
        ends = done | {number: end for number, (_, end) in spans.items()}
        lake.commit(Export(topic, spans, files, schema_of(topic), ends))
    done_now = _summary(topic, lake, spans, files, dry_run=False)
    return replace(done_now, totals={**done_now.totals, **reported(left_out)})


def schema_of(topic: Topic) -> pa.Schema:
    """The columns of the table, without the day, which the files' paths say."""
    fields = [StructField(name, COLUMNS[name]) for name in topic.columns]
    return to_arrow_schema(StructType(fields), timezone="UTC")


def _summary(
    topic: Topic, lake: Lake, spans: Spans, files: Sequence[DataFile], *, dry_run: bool
) -> Summary:
    target = {"from": topic.name, "to": lake.name}
    if dry_run:
        rows = [
            {"partition": number, "start": start, "end": end, "offsets": end - start}
            for number, (start, end) in spans.items()
        ]
        return Summary("export", True, rows, {"offsets": topic_rows.offsets(spans), **target})
    by_date: dict[str, dict[str, int | str]] = {}
    for file in files:
        row = by_date.setdefault(
            file.date, {"date": file.date, "files": 0, "records": 0, "size_bytes": 0}
        )
        for column, more in (("files", 1), ("records", file.rows), ("size_bytes", file.size_bytes)):
            row[column] = int(row[column]) + more
    totals = {
        "records": sum(file.rows for file in files),
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
    }
    return Summary("export", False, [by_date[date] for date in sorted(by_date)], totals | target)
