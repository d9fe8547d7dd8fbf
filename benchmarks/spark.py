"""`make bench-spark`: the Spark source and sink beside what the same engine can do, in one run.

The same rows are read from a log, from Parquet, from a Python source that yields ready Arrow
batches (the ceiling of the API) and from one that yields tuples (a share of the rows: it is slow).
The sink is beside one that throws its batches away. Everything on `local[2]`, rounds interleaved,
best of each. `LAMINA_BENCH_RECORDS` sets the number of records.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

import lamina.spark
from benchmarks.bars import Bar, finish
from lamina.engine.store import Store
from lamina.spark.source import LaminaSource

RECORDS = int(os.environ.get("LAMINA_BENCH_RECORDS", "5000000"))
ROUNDS = 3
VALUE_BYTES = 100
TUPLES_SHARE = 10
SEGMENTS = 1000
CHUNK = 32_768
TASKS = 8
QUERIES = ("count", "aggregate", "noop")


# ---------------------------------------------------------------- what the rows come from


def make_log(path: str) -> None:
    with Store(path) as store:
        store.create_topic("events")
        store.create_topic("written", partitions=2)
        random = np.random.default_rng(1)
        keys = pa.array([b"key %05d" % (n % 1000) for n in range(CHUNK)], pa.binary())
        left = RECORDS
        while left:
            rows = min(left, CHUNK)
            raw = pa.py_buffer(random.bytes(rows * VALUE_BYTES))
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(VALUE_BYTES), rows, [None, raw]
            ).cast(pa.binary())
            batch = pa.record_batch({"key": keys[:rows], "value": values})
            store.append("events", batch, acks=1)
            left -= rows
        store.flush()


def ready_batches(path: str) -> Iterator[pa.RecordBatch]:
    options = CaseInsensitiveDict({"path": path, "subscribe": "events"})
    source = LaminaSource(options)
    reading = source.reader(source.schema())
    for task in reading.partitions():
        yield from reading.read(task)


def make_copies(path: str, folder: str) -> None:
    """Writes the rows as the source gives them: once as Arrow files, once as Parquet."""
    batches = list(ready_batches(path))
    share = -(-len(batches) // TASKS)
    os.makedirs(f"{folder}/parquet")
    for number in range(TASKS):
        some = batches[number * share : (number + 1) * share]
        if some:
            with (
                pa.OSFile(f"{folder}/{number}.arrow", "wb") as file,
                pa.ipc.new_file(file, some[0].schema) as writer,
            ):
                for batch in some:
                    writer.write_batch(batch)
            pq.write_table(pa.Table.from_batches(some), f"{folder}/parquet/{number}.parquet")


class Ready(DataSource):
    """Yields Arrow batches that lie ready in memory-mapped files, or tuples made of them."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return LaminaSource(CaseInsensitiveDict({"path": "x", "subscribe": "x"})).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options)


class ReadyReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._folder, self._tuples = options["path"], options.get("tuples") == "true"

    def partitions(self) -> list[InputPartition]:
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(".arrow"))
        return [InputPartition(os.path.join(self._folder, name)) for name in names]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        file = pa.ipc.open_file(pa.memory_map(partition.value))
        batches = range(file.num_record_batches)
        if not self._tuples:
            for number in batches:
                yield file.get_batch(number)
            return
        for number in batches[: max(1, len(batches) // TUPLES_SHARE)]:
            batch = file.get_batch(number)
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class Thrown(DataSource):
    """A sink that throws its batches away."""

    @classmethod
    def name(cls) -> str:
        return "thrown"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return ThrownWriter()


class ThrownWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


# ---------------------------------------------------------------- what is measured


def run(query: str, frame: DataFrame) -> int:
    """Runs a query over all rows; returns how many there were where the query says."""
    if query == "count":
        return frame.count()
    if query == "aggregate":
        row = frame.selectExpr("count(*)", "sum(length(value))", "max(offset)").first()
        assert row is not None
        return int(row[0])
    frame.write.format("noop").mode("overwrite").save()
    return 0


def rates(frames: dict[str, DataFrame], rows: dict[str, int]) -> dict[tuple[str, str], float]:
    """Million rows a second of each query over each source: the best of some rounds."""
    best: dict[tuple[str, str], float] = {}
    for round_number in range(ROUNDS + 1):
        for query in QUERIES:
            for name, frame in frames.items():
                started = time.perf_counter()
                found = run(query, frame)
                rate = rows[name] / (time.perf_counter() - started) / 1e6
                assert found in (0, rows[name]), (name, query, found)
                if round_number:  # the first one warms everything up
                    best[name, query] = max(best.get((name, query), 0.0), rate)
    return best


def sink_rates(frame: DataFrame, path: str) -> dict[str, float]:
    rows = frame.select("key", "value")
    best = {"thrown": 0.0, "lamina": 0.0}
    for number in range(ROUNDS + 1):
        for name in ("thrown", "lamina"):
            writing = rows.write.format(name).mode("append")
            if name == "lamina":
                options = {"topic": "written", "txnAppId": "bench", "txnVersion": str(number)}
                writing = writing.options(path=path, **options)
            started = time.perf_counter()
            writing.save()
            if number:
                rate = RECORDS / (time.perf_counter() - started) / 1e6
                best[name] = max(best[name], rate)
    return best


def micro_batch_ms(folder: str) -> float:
    """The source's own time for a micro-batch over many segments: offsets and planning."""
    path = os.path.join(folder, "many")
    with Store(path, tick_ms=1 << 30) as store:
        store.create_topic("many", config={"segment.bytes": 4096})
        for _ in range(SEGMENTS):
            store.append("many", [b"v" * VALUE_BYTES] * 30, acks=1)
        store.maintain()
        given = {"path": path, "subscribe": "many", "startingOffsets": "latest"}
        source = LaminaSource(CaseInsensitiveDict(given))
        reading = source.streamReader(source.schema())
        start = reading.initialOffset()
        times = []
        for _ in range(20):
            store.append("many", [b"v" * VALUE_BYTES] * 30)
            store.maintain()
            time.sleep(0.03)
            began = time.perf_counter()
            end = reading.latestOffset(start, ReadAllAvailable())
            reading.partitions(start, end)
            reading.commit(end)
            times.append((time.perf_counter() - began) * 1000)
            assert end != start
            start = end
    return statistics.median(times)


def frames_of(spark: SparkSession, path: str, folder: str) -> dict[str, DataFrame]:
    ready = spark.read.format("ready").option("path", folder)
    return {
        "lamina": spark.read.format("lamina").options(path=path, subscribe="events").load(),
        "ready Arrow": ready.load(),
        "Parquet": spark.read.parquet(f"{folder}/parquet"),
        "tuples": spark.read.format("ready").options(path=folder, tuples="true").load(),
    }


def report(best: dict[tuple[str, str], float], sink: dict[str, float], own_ms: float) -> None:
    table = Table("source, million rows/s", *QUERIES)
    for name in dict.fromkeys(name for name, _ in best):
        table.add_row(name, *(f"{best[name, query]:.2f}" for query in QUERIES))
    console = Console()
    console.print(table)
    console.print(f"sink, million rows/s: thrown {sink['thrown']:.2f}, lamina {sink['lamina']:.2f}")
    console.print(f"own share of a micro-batch over {SEGMENTS} segments: {own_ms:.1f} ms")


def main() -> None:
    folder = tempfile.mkdtemp(prefix="lamina-bench-spark-")
    try:
        path, copies = os.path.join(folder, "data"), os.path.join(folder, "copies")
        os.makedirs(copies)
        make_log(path)
        make_copies(path, copies)
        spark = lamina.spark.session(master="local[2]")
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(Ready)
        spark.dataSource.register(Thrown)
        frames = frames_of(spark, path, copies)
        rows = dict.fromkeys(frames, RECORDS)
        rows["tuples"] = frames["tuples"].count()
        best = rates(frames, rows)
        sink = sink_rates(frames["ready Arrow"], path)
        spark.stop()
        own_ms = micro_batch_ms(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(best, sink, own_ms)
    ours = {query: best["lamina", query] for query in QUERIES}
    bars = [
        *(
            Bar(f"spark-hot-{query}-of-ready-arrow", ours[query] / best["ready Arrow", query], 0.8)
            for query in QUERIES
        ),
        Bar(
            "spark-hot-aggregate-of-parquet", ours["aggregate"] / best["Parquet", "aggregate"], 0.8
        ),
        *(
            Bar(f"spark-hot-{query}-over-tuples", ours[query] / best["tuples", query], 7)
            for query in QUERIES
        ),
        Bar("spark-sink-of-thrown-away", sink["lamina"] / sink["thrown"], 0.5),
        Bar("spark-micro-batch-own-ms", own_ms, 20, at_most=True),
    ]
    finish(bars)


if __name__ == "__main__":
    main()
