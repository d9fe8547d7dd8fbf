"""Spark over the same records, batch and streaming: what of the field Spark can read.

That is Lamina (its directory while it is hot, and its archive) and Parquet files. Spark's Kafka
source is a jar that is not among its own and wants a broker of 0.10.2 or later; for the others
there is no source. Every query counts the records and sums the bytes of their values, in a session
of its own on two cores; the first one of each warms up.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import lamina
from benchmarks.field.embedded import TOPIC, Keratin, batch_of
from benchmarks.field.files import ParquetFiles
from benchmarks.field.suite import BATCH_RECORDS, Figures, batches_of, cycle, offered
from benchmarks.field.system import FSYNC, NotOffered

BATCHES = 2_000
ROUNDS = 3
COLD = {"remote.storage.enable": True, "segment.bytes": 64 << 20}


def jobs(figures: Figures, folder: str) -> None:
    """Has Spark read two million records of 100 B, in batch and as a stream."""
    import lamina.spark

    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if figures.system is Keratin and figures.durability == FSYNC:
        sources = _of_log(folder)
    elif figures.system is ParquetFiles and figures.durability == FSYNC:
        sources = _of_parquet(folder)
    else:
        raise NotOffered
    spark = lamina.spark.session(master="local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for number in range(ROUNDS + 1):
            for name, source in sources.items():
                with offered(figures):
                    rate = _batch(spark, source)
                    if number:
                        figures.add(f"spark_{name}", rate)
            with offered(figures):
                rate = _stream(spark, next(iter(sources.values())), f"{folder}/at-{number}")
                if number:
                    figures.add("spark_stream", rate)
    finally:
        spark.stop()
        shutil.rmtree(folder)


def _of_log(folder: str) -> dict[str, dict[str, str]]:
    """A log, and its archive alone."""
    data, archive = os.path.join(folder, "data"), os.path.join(folder, "archive")
    os.makedirs(archive)
    with lamina.open(data, archive=archive) as store:
        store.create_topic(TOPIC, format="keratin", config=COLD)
        ready = [batch_of(batch) for batch in batches_of(100)]
        for batch in cycle(ready, BATCHES):
            store.append(TOPIC, batch, partition=0, acks=1)
        store.flush()
        store.archive()
    return {
        "batch": {"format": "lamina", "path": data, "subscribe": TOPIC},
        "cold": {"format": "lamina", "path": archive, "subscribe": TOPIC},
    }


def _of_parquet(folder: str) -> dict[str, dict[str, str]]:
    """Files of a tenth of the records each, with the row groups that its writer makes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = os.path.join(folder, "data")
    os.makedirs(data)
    ready = [batch_of(batch) for batch in batches_of(100)]
    for number in range(10):
        table = pa.Table.from_batches(cycle(ready, BATCHES // 10))
        pq.write_table(table, f"{data}/{number}.parquet", compression="lz4")
    return {"batch": {"format": "parquet", "path": data, "schema": "value BINARY"}}


def _reading(reader: Any, source: dict[str, str]) -> Any:
    options = {key: value for key, value in source.items() if key not in ("format", "schema")}
    reading = reader.format(source["format"]).options(**options)
    if "schema" in source:
        reading = reading.schema(source["schema"])
    return reading.load()


def _batch(spark: Any, source: dict[str, str]) -> float:
    started = time.perf_counter()
    row = _reading(spark.read, source).selectExpr("count(*)", "sum(length(value))").first()
    taken = time.perf_counter() - started
    return _checked(int(row[0]), int(row[1]), source) / taken


def _checked(count: int, length: int, source: dict[str, str]) -> int:
    """An archive ends with its last sealed segment; everything else has all records."""
    wanted = BATCHES * BATCH_RECORDS
    is_cold = source["path"].endswith("archive")
    assert count == wanted or (is_cold and wanted // 2 < count < wanted), f"{count} of {wanted}"
    assert length == count * 100, f"{length} bytes of {count} records"
    return count


def _stream(spark: Any, source: dict[str, str], place: str) -> float:
    """Everything there is as a stream that ends when it has it."""
    found = [0, 0]

    def take(frame: Any, number: int) -> None:
        row = frame.selectExpr("count(*)", "sum(length(value))").first()
        found[0] += int(row[0])
        found[1] += int(row[1] or 0)

    more = {"startingOffsets": "earliest"} if source["format"] == "lamina" else {}
    started = time.perf_counter()
    query = (
        _reading(spark.readStream, source | more)
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", place)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    taken = time.perf_counter() - started
    return _checked(found[0], found[1], source) / taken
