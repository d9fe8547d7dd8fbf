"""Parts of `make bench-typed`: typed topics in Spark, and the last ten minutes in SQL engines.

Spark: rows are written to nothing, so that every column of every row has to be there. The last ten
minutes: of a topic whose records are spread over so many hours that they are less than a hundredth
of it; bytes are those that are read from files, each read counted where it happens. The bar is for
a reader that has looked at the log: its first query also walks the segment that is being written,
which has no index on disk yet. What that one reads is printed beside it.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import polars
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, udf
from pyspark.sql.pandas.types import from_arrow_schema

import lamina
import lamina.polars
import lamina.spark
from benchmarks.bars import Bar, best_of
from lamina.storage.files import LocalFile

MINUTES, HOURS = 10, 24
BATCH, UDF_RECORDS = 100_000, 100_000
QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


def written(frame: DataFrame) -> None:
    """Makes every row, and keeps none."""
    frame.write.format("noop").mode("overwrite").save()


def topic(spark: SparkSession, path: str, name: str, **options: str) -> DataFrame:
    return spark.read.format("lamina").options(path=path, subscribe=name, **options).load()


def make_topics(path: str, table: pa.Table, documents: pa.Array, avro: str, schema: str) -> None:
    """The same rows as Avro values and as JSON documents; and Avro values of no topic's schema."""
    with lamina.open(path) as store:
        store.create_topic("avro", partitions=2, schema=avro)
        store.create_topic("json", partitions=2)
        half = table.num_rows // 2
        for number in (0, 1):
            store.append("avro", table.slice(number * half, half), partition=number)
            values = pa.table({"value": documents.slice(number * half, half)})
            store.append("json", values, partition=number)
        store.set_schema("json", schema, encoding="json")


def spark_bars(
    folder: str, table: pa.Table, documents: pa.Array, avro: dict[str, Any]
) -> list[Bar]:
    """Typed columns beside what one would write instead, end to end, on the same cores."""
    make_topics(folder, table, documents, json.dumps(avro), json_schema(avro))
    kind = from_arrow_schema(table.schema)
    parsed = fastavro.parse_schema(avro)
    read: Callable[..., Any] = fastavro.schemaless_reader

    @udf(kind)
    def decoded(value: bytes) -> dict[str, Any]:
        return dict(read(io.BytesIO(value[5:]), parsed, None))

    spark = lamina.spark.session(master="local[2]", config=QUIET)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        plain = {name: topic(spark, folder, name, columns="value") for name in ("avro", "json")}
        document = from_json(col("value").cast("string"), kind)
        best = best_of(
            {
                "spark json typed": lambda: written(topic(spark, folder, "json", schema="topic")),
                "spark from_json": lambda: written(
                    plain["json"].select(document.alias("row")).select("row.*")
                ),
                "spark avro typed": lambda: written(topic(spark, folder, "avro", schema="topic")),
            },
            rounds=3,
            repeat=1,
        )
        each = min(UDF_RECORDS, table.num_rows) // 2
        ends = json.dumps({"avro": {"0": each, "1": each}})
        few = topic(spark, folder, "avro", columns="value", endingOffsets=ends)
        started = time.perf_counter()
        written(few.select(decoded(col("value")).alias("row")).select("row.*"))
        taken = time.perf_counter() - started
        best["spark avro udf, fastavro"] = taken * table.num_rows / (2 * each)
    finally:
        spark.stop()
    for name, seconds in best.items():
        print(f"{name:24} {table.num_rows / seconds / 1e6:9.3f} M records/s")
    return [Bar("spark json / from_json", best["spark from_json"] / best["spark json typed"], 3)]


def json_schema(avro: dict[str, Any]) -> str:
    """The flat event in JSON Schema."""
    kinds = {"long": "integer", "int": "integer", "string": "string", "boolean": "boolean"}
    named = {"double": "number", "float": "number", **kinds}
    properties, required = {}, []
    for field in avro["fields"]:
        may_be_null = isinstance(field["type"], list)
        kind = named[field["type"][1] if may_be_null else field["type"]]
        properties[field["name"]] = {"type": ["null", kind] if may_be_null else kind}
        required += [] if may_be_null else [field["name"]]
    return json.dumps({"type": "object", "properties": properties, "required": required})


# ---------------------------------------------------------------------- the last ten minutes


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the bytes that are read of files while it is open."""
    total = [0]
    read_at, load = LocalFile.read_at, LocalFile.load

    def count_read(file: LocalFile, position: int, length: int) -> bytes:
        data = read_at(file, position, length)
        total[0] += len(data)
        return data

    def count_load(file: LocalFile) -> Any:
        data = load(file)
        total[0] += len(memoryview(data))
        return data

    LocalFile.read_at, LocalFile.load = count_read, count_load  # type: ignore[method-assign]
    try:
        yield total
    finally:
        LocalFile.read_at, LocalFile.load = read_at, load  # type: ignore[method-assign]


def fill(path: str, table: pa.Table, avro: str, records: int) -> datetime.datetime:
    """A topic that ends now and goes back for a day; returns when it ends."""
    end_ms = int(time.time() * 1000)
    step_ms = HOURS * 3_600_000 / records
    rows = table.slice(0, BATCH)
    with lamina.open(path) as store:
        store.create_topic("events", schema=avro, config={"segment.bytes": 64 << 20})
        for first in range(0, records, rows.num_rows):
            start_ms = end_ms - (records - first) * step_ms
            times = pa.array([int(start_ms + each * step_ms) for each in range(rows.num_rows)])
            store.append(
                "events",
                rows.append_column("_timestamp", times.cast(pa.timestamp("ms", tz="UTC"))),
                acks=1,
            )
    return datetime.datetime.fromtimestamp(end_ms / 1000, datetime.UTC)


def ten_minutes_bars(folder: str, table: pa.Table, avro: str, records: int) -> list[Bar]:
    """The same query over the last ten minutes and over all, in DuckDB and in Polars."""
    end = fill(folder, table, avro, records)
    since = end - datetime.timedelta(minutes=MINUTES)
    size_bytes = sum(each.stat().st_size for each in Path(folder).rglob("*.log"))
    bars = []
    with lamina.dataset(folder, "events") as events:
        connection = duckdb.connect(":memory:")
        connection.register("events", events)
        query = "select count(*), sum(price), max(page) from events"
        lazy = lamina.polars.scan(folder, "events")
        totals = polars.len(), polars.col("price").sum(), polars.col("page").max()
        recent = f"{query} where _timestamp >= '{since.isoformat()}'"
        calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "duckdb": (
                lambda: connection.sql(recent).fetchall(),
                lambda: connection.sql(query).fetchall(),
            ),
            "polars": (
                lambda: lazy.filter(polars.col("_timestamp") >= since).select(*totals).collect(),
                lambda: lazy.select(*totals).collect(),
            ),
        }
        for name, (few, every) in calls.items():
            with counted() as first:
                few()
            with counted() as read:
                few()
            best = best_of({"few": few}, rounds=5, repeat=1)["few"]
            started = time.perf_counter()
            every()
            whole = time.perf_counter() - started
            print(
                f"{name:8} ten minutes {best * 1000:8.1f} ms, all {whole * 1000:9.1f} ms;"
                f" read {read[0] / 1e6:.1f} MB, at first {first[0] / 1e6:.1f} MB,"
                f" of {size_bytes / 1e6:.0f} MB"
            )
            bars += [
                Bar(f"{name}: percent of bytes", 100 * read[0] / size_bytes, 1, at_most=True),
                Bar(f"{name}: all / ten minutes", whole / best, 50),
            ]
        connection.close()
    return bars
