"""`make bench-spark`: the Spark source and sink beside what the same engine can do, in one run.

The same rows are read from a log (hot: a data directory; cold: its archive), from Parquet, from a
Python source that yields ready Arrow batches (the ceiling of the API) and from one that yields
tuples (a share of the rows: it is slow). Spark prunes the columns of Parquet by itself; a Python
source is told by a schema, so the aggregate also runs over the two columns that it needs. The sink
is beside one that throws its batches away. Everything on `local[2]`, rounds interleaved, best of
each.

Without Spark: the source's own share of a micro-batch over 1,000 segments, and how often an idle
query asks the object store. `LAMINA_BENCH_RECORDS` sets the number of records.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
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
from lamina.spark import access
from lamina.spark.access import ArchiveAccess
from lamina.spark.source import LaminaSource
from lamina.storage.objects import Objects
from lamina.store.store import Store

RECORDS = int(os.environ.get("LAMINA_BENCH_RECORDS", "5000000"))
ROUNDS = 3
WARM_UPS_NEEDED = 8
"""How often the aggregate of two columns runs before it counts: Java goes on compiling a new plan
for so long, and Parquet's plan, which is the same for all columns, has run before."""
VALUE_BYTES = 100
TUPLES_SHARE = 10
SEGMENTS = 1000
CHUNK = 32_768
TASKS = 8
QUERIES = ("count", "aggregate", "noop")
READY = "ready Arrow"
LATEST = "latest"
NEEDED = "value binary, offset long"
"""What the aggregate needs of a row."""
NEVER_MS = 1 << 31
IDLE_S, IDLE_ASKS = 4, 50
"""How long an idle query is watched, and how often Spark asks it in a second."""


# ---------------------------------------------------------------- what the rows come from


def make_log(path: str, cold: str) -> None:
    """Makes a log, and an archive of the same records; none of them has left the log."""
    with Store(path, archive=cold, tick_ms=NEVER_MS) as store:
        store.create_topic("events", config={"remote.storage.enable": True})
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
        store.roll("events")
        store.archive()


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
        return ReadyReader(self.options, schema.fieldNames())


class ReadyReader(DataSourceReader):
    def __init__(self, options: Any, names: list[str]) -> None:
        self._folder, self._tuples = options["path"], options.get("tuples") == "true"
        self._names = names

    def partitions(self) -> list[InputPartition]:
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(".arrow"))
        return [InputPartition(os.path.join(self._folder, name)) for name in names]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        file = pa.ipc.open_file(pa.memory_map(partition.value))
        batches = range(file.num_record_batches)
        if not self._tuples:
            for number in batches:
                yield file.get_batch(number).select(self._names)
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


def rates(
    frames: dict[str, DataFrame], rows: dict[str, int], queries: Sequence[str], warm_ups: int = 1
) -> dict[tuple[str, str], float]:
    """Million rows a second of each query over each source: the best of some rounds."""
    best: dict[tuple[str, str], float] = {}
    for round_number in range(warm_ups + ROUNDS):
        for query in queries:
            for name, frame in frames.items():
                started = time.perf_counter()
                found = run(query, frame)
                rate = rows[name] / (time.perf_counter() - started) / 1e6
                assert found in (0, rows[name]), (name, query, found)
                if round_number >= warm_ups:
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
        start = reading.latestOffset(reading.initialOffset(), ReadAllAvailable())
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


class Counted:
    """An object store that counts what it is asked."""

    def __init__(self, objects: Objects) -> None:
        self._objects, self.lists, self.asked = objects, 0, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        self.lists += name == "list"
        return getattr(self._objects, name)


def idle_asks(cold: str) -> tuple[float, float]:
    """How often a second an idle query over an archive lists it, and asks it anything."""
    counted = Counted(access._opened(ArchiveAccess(cold)))
    known, access._opened = access._opened, lambda _: counted
    try:
        source = LaminaSource(
            CaseInsensitiveDict({"path": cold, "subscribePattern": ".*", "startingOffsets": LATEST})
        )
        reading = source.streamReader(source.schema())
        start = reading.latestOffset(reading.initialOffset(), ReadAllAvailable())
        lists, asked = counted.lists, counted.asked
        for _ in range(IDLE_S * IDLE_ASKS):
            assert reading.latestOffset(start, ReadAllAvailable()) == start
            time.sleep(1 / IDLE_ASKS)
    finally:
        access._opened = known
    return (counted.lists - lists) / IDLE_S, (counted.asked - asked) / IDLE_S


def readings(spark: SparkSession, path: str, cold: str, copies: str) -> dict[str, Any]:
    """What reads the same rows, before it is told which columns."""
    lamina_reading = spark.read.format("lamina").option("subscribe", "events")
    return {
        "lamina, hot": lamina_reading.option("path", path),
        "lamina, cold": spark.read.format("lamina").options(path=cold, subscribe="events"),
        READY: spark.read.format("ready").option("path", copies),
    }


def measured(
    spark: SparkSession, path: str, cold: str, copies: str
) -> tuple[dict[tuple[str, str], float], dict[str, float]]:
    frames = {name: each.load() for name, each in readings(spark, path, cold, copies).items()} | {
        "Parquet": spark.read.parquet(f"{copies}/parquet"),
        "tuples": spark.read.format("ready").options(path=copies, tuples="true").load(),
    }
    rows = dict.fromkeys(frames, RECORDS) | {"tuples": frames["tuples"].count()}
    best = rates(frames, rows, QUERIES)
    pruned = {
        name: each.schema(NEEDED).load()
        for name, each in readings(spark, path, cold, copies).items()
    } | {"Parquet": frames["Parquet"]}
    needed = rates(pruned, rows, ["aggregate"], WARM_UPS_NEEDED)
    return best, {name: rate for (name, _), rate in needed.items()}


def report(best: dict[tuple[str, str], float], needed: dict[str, float]) -> None:
    table = Table("source, million rows/s", *QUERIES, "aggregate, 2 columns")
    for name in dict.fromkeys(name for name, _ in best):
        pruned = f"{needed[name]:.2f}" if name in needed else "-"
        table.add_row(name, *(f"{best[name, query]:.2f}" for query in QUERIES), pruned)
    Console().print(table)
    ceiling = needed[READY] / needed["Parquet"]
    print(f"the API's ceiling: {ceiling:.2f} of Parquet's speed on the aggregate of two columns")


def source_bars(best: dict[tuple[str, str], float], needed: dict[str, float]) -> list[Bar]:
    bars = []
    for tier in ("hot", "cold"):
        ours = {query: best[f"lamina, {tier}", query] for query in QUERIES}
        bars += [
            Bar(f"spark-{tier}-{query}-of-ready-arrow", ours[query] / best[READY, query], 0.9)
            for query in QUERIES
        ]
        bars += [
            Bar(f"spark-{tier}-{query}-over-tuples", ours[query] / best["tuples", query], 7)
            for query in QUERIES
        ]
        mine = needed[f"lamina, {tier}"]
        bars.append(
            Bar(f"spark-{tier}-aggregate-of-ready-arrow-2-columns", mine / needed[READY], 0.8)
        )
        bars.append(Bar(f"spark-{tier}-aggregate-of-parquet", mine / needed["Parquet"], 0.8))
    return bars


def main() -> None:
    folder = tempfile.mkdtemp(prefix="lamina-bench-spark-")
    try:
        path, cold, copies = (os.path.join(folder, name) for name in ("data", "cold", "copies"))
        make_log(path, cold)
        make_copies(path, copies)
        spark = lamina.spark.session(master="local[2]")
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(Ready)
        spark.dataSource.register(Thrown)
        best, needed = measured(spark, path, cold, copies)
        report(best, needed)
        sink = sink_rates(spark.read.format("ready").option("path", copies).load(), path)
        print(f"sink, million rows/s: thrown {sink['thrown']:.2f}, lamina {sink['lamina']:.2f}")
        spark.stop()
        own_ms = micro_batch_ms(folder)
        lists, asked = idle_asks(cold)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"own share of a micro-batch over {SEGMENTS} segments: {own_ms:.1f} ms")
    print(f"an idle query: {lists:.2f} listings a second, {asked:.2f} requests in all")
    finish(
        [
            *source_bars(best, needed),
            Bar("spark-sink-of-thrown-away", sink["lamina"] / sink["thrown"], 0.5),
            Bar("spark-micro-batch-own-ms", own_ms, 20, at_most=True),
            Bar("spark-idle-listings-a-second", lists, 1, at_most=True),
        ]
    )


if __name__ == "__main__":
    main()
