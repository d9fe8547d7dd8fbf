"""`ingest`: files that Spark reads, or one of its tables, appended to a topic, each row once.

Of a directory, each run takes the files that no earlier run took, known by their names; a file that
changed under its name is not read again. A table is taken once for each name of an ingestion.

Rules.
1. A row that cannot be read stops the job; nothing of the run is stored.
2. No column is dropped unless the user says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.functions import col, struct, timestamp_millis, to_json
from pyspark.sql.types import BinaryType, NumericType, StringType, StructType, TimestampType

from lamina.errors import InvalidRequest
from lamina.spark.jobs import sink_writes, topic_rows
from lamina.spark.jobs.intents import Intent
from lamina.spark.jobs.job import Progress, Summary
from lamina.spark.jobs.lane import over_rows, typed_failures
from lamina.spark.jobs.whereabouts import Place
from lamina.storage import machine, paths

TABLE = "table"
FORMATS: dict[str, dict[str, str]] = {
    "parquet": {},
    "json": {"mode": "FAILFAST"},
    "csv": {"mode": "FAILFAST", "header": "true"},
    TABLE: {},
}
"""What can be ingested, and how Spark reads it."""
AS_JSON = "json"
OF_RECORDS = ("key", "value", "headers", "tag", "timestamp", "partition")


@dataclass(frozen=True, slots=True)
class Ingestion:
    """The options of `ingest`: what to read, where to, and which column becomes which field."""

    source: str
    target: str
    format: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """For `key`, `value` and `timestamp`: a column's name; for `value` also `json`, a whole row."""
    drop: Sequence[str] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    state: str | None = None


def ingest(
    spark: SparkSession, place: Place, asked: Ingestion, *, dry_run: bool, progress: Progress
) -> Summary:
    """Appends what is new in files, or a table, to a topic."""
    if asked.format not in FORMATS:
        raise InvalidRequest(f"format {asked.format!r} is not one of {', '.join(FORMATS)}")
    target = topic_rows.described(place, asked.target)
    source = asked.source if asked.format == TABLE or "://" in asked.source else _absolute(asked)
    application = sink_writes.application_of(
        "ingest", target.name, target.identity, asked.format, source, asked.name
    )
    journal = sink_writes.journal_of(place, application, asked.state)
    with typed_failures():
        _fields_of(_loaded(spark, asked, source, None).schema, asked)

    def next_work(last: Intent | None) -> dict[str, Any] | None:
        if asked.format == TABLE:
            return {"files": [], "done": []} if last is None else None
        done = set(last.work["done"]) if last else set()
        there = _loaded(spark, asked, source, None).inputFiles()
        new = sorted(set(there) - done)
        return {"files": new, "done": sorted(done | set(new))} if new else None

    counts: dict[int, int] = {}

    def stage(intent: Intent) -> Callable[[], None]:
        files = None if asked.format == TABLE else intent.work["files"]
        frame = _rows(_loaded(spark, asked, source, files), asked)
        writer = sink_writes.writer_of(place, target, frame.schema, intent, journal)
        messages, counts[intent.number] = _staged(frame, writer, progress)
        return lambda: writer.commit(messages)

    with typed_failures():
        intents = sink_writes.planned(journal, next_work)
    if not dry_run:
        intents = sink_writes.settle(journal, next_work, stage)
    rows = [_row(source, intent, counts) for intent in intents]
    files = sum(len(intent.work["files"]) for intent in intents)
    totals = {"files": files, "to": target.name, "writer": application}
    if not dry_run:
        totals = {"records": sum(counts.values()), **totals}
    return Summary("ingest", dry_run, rows, totals)


def _absolute(asked: Ingestion) -> str:
    return paths.absolute(asked.source)


def _row(source: str, intent: Intent, counts: Mapping[int, int]) -> dict[str, Any]:
    row: dict[str, Any] = {"input": source, "files": len(intent.work["files"])}
    return row | ({"records": counts[intent.number]} if intent.number in counts else {})


def _staged(
    frame: DataFrame, writer: DataSourceArrowWriter, progress: Progress
) -> tuple[list[Any], int]:
    """Stages rows on the executors; returns the tasks' messages, and how many rows there were."""

    def stage(batches: Iterator[pa.RecordBatch]) -> tuple[Any, int]:
        counted = 0

        def passing() -> Iterator[pa.RecordBatch]:
            nonlocal counted
            for batch in batches:
                counted += batch.num_rows
                yield batch

        message = writer.write(passing())
        return message, counted

    answers = over_rows(frame, stage, progress)
    return [message for message, _ in answers], sum(count for _, count in answers)


def _loaded(
    spark: SparkSession, asked: Ingestion, source: str, files: Sequence[str] | None
) -> DataFrame:
    """Makes the frame of everything that is there, or of some files."""
    if asked.format == TABLE:
        return spark.table(source)
    reading = spark.read.format(asked.format).options(**FORMATS[asked.format], **asked.options)
    if files is None:
        return reading.load(source)
    is_directory = machine.is_directory(source)  # whose subdirectories' names may hold columns
    return (reading.option("basePath", source) if is_directory else reading).load(list(files))


def _fields_of(schema: StructType, asked: Ingestion) -> dict[str, str]:
    """Finds the column of each field of a record; raises if one is unknown or left over."""
    names = schema.fieldNames()
    fields = {name: column for name, column in asked.fields.items() if column}
    for name, column in [*fields.items(), *(("drop", each) for each in asked.drop)]:
        if column not in names and (name, column) != ("value", AS_JSON):
            raise InvalidRequest(f"{asked.source} has no column {column!r}; it has {names}")
    if fields.get("value") == AS_JSON:
        return fields
    for name in OF_RECORDS:
        if name in names and name not in asked.drop:
            fields.setdefault(name, name)
    if "value" not in fields:
        raise InvalidRequest(
            f"{asked.source} has no column 'value' but {names}: --value COLUMN names one, and"
            f" --value {AS_JSON} makes each row a JSON object"
        )
    unused = [name for name in names if name not in {*fields.values(), *asked.drop}]
    if unused:
        raise InvalidRequest(
            f"columns {unused} of {asked.source} have no place in a record: --value {AS_JSON} keeps"
            f" them, --drop {unused[0]} loses one on purpose"
        )
    return fields


def _rows(frame: DataFrame, asked: Ingestion) -> DataFrame:
    """Selects the columns of records, in the types that the sink takes."""
    fields = _fields_of(frame.schema, asked)
    chosen = []
    for name, column in fields.items():
        if (name, column) == ("value", AS_JSON):
            kept = [each for each in frame.columns if each not in asked.drop]
            row = struct(*(col(f"`{each}`") for each in kept))
            chosen.append(to_json(row, {"ignoreNullFields": "false"}).alias("value"))
        else:
            chosen.append(_typed(frame, name, column).alias(name))
    return frame.select(*chosen)


def _typed(frame: DataFrame, name: str, column: str) -> Column:
    kind, value = frame.schema[column].dataType, col(f"`{column}`")
    if name == "timestamp":
        if isinstance(kind, NumericType):
            return timestamp_millis(value.cast("long"))
        return value if isinstance(kind, TimestampType) else value.cast("timestamp")
    if name == "partition":
        return value.cast("int")
    if name == "headers" or isinstance(kind, BinaryType | StringType):
        return value
    return value.cast("string")
