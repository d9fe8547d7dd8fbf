"""`make bench-jobs`: the bulk jobs beside what one core's kernels do with the same bytes.

- `verify` beside the scan kernel alone over the same mapped files, times the cores.
- `archive` beside LZ4 alone over the same blocks, times the cores.

The session is warm: a job's own start-up (the first task of each worker, kernels loaded) is aside.
`LAMINA_BENCH_MB` sets the size of the log.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console

import lamina.spark
from benchmarks.bars import Bar, finish
from benchmarks.tier import batches_of, events, raw_blocks
from lamina.engine.codec import CODECS
from lamina.engine.findings import map_file
from lamina.engine.store import Store
from lamina.formats.scan import Limit
from lamina.spark.jobs import archive, verify

MEGABYTES = int(os.environ.get("LAMINA_BENCH_MB", "2048"))
CORES = 2
ROUNDS = 3
NEVER_MS = 1 << 31
VALUE_BYTES = 100
CHUNK = 32_768


def best(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def make_plain(path: Path) -> None:
    """A log of random values of 100 B in segments of 256 MB."""
    random = np.random.default_rng(1)
    with Store(str(path)) as store:
        store.create_topic("plain", config={"segment.bytes": 256 << 20})
        for _ in range(max(1, (MEGABYTES << 20) // (CHUNK * (VALUE_BYTES + 36)))):
            raw = pa.py_buffer(random.bytes(CHUNK * VALUE_BYTES))
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(VALUE_BYTES), CHUNK, [None, raw]
            ).cast(pa.binary())
            store.append("plain", pa.record_batch({"value": values}), acks=1)


def scan_alone(logs: list[Path]) -> None:
    codec = CODECS["keratin"]
    for path in logs:
        buffer, position = map_file(str(path)), codec.header_bytes
        size = memoryview(buffer).nbytes
        while position < size:
            found = codec.scan(buffer, position, expected_offset=None, limit=Limit())
            assert len(found), "a sound log"
            position = found.end


def bench_verify(spark: SparkSession, folder: Path, console: Console) -> Bar:
    data = folder / "plain"
    make_plain(data)
    logs = sorted(data.rglob("*.log"))
    size = sum(path.stat().st_size for path in logs)
    verify.run(spark, str(data))
    alone, job = best(lambda: scan_alone(logs)), best(lambda: verify.run(spark, str(data)))
    console.print(
        f"verify: {size / job / 1e9:.2f} GB/s on {CORES} cores; the scan kernel alone"
        f" {size / alone / 1e9:.2f} GB/s on one ({size:,} bytes)"
    )
    return Bar("verify_vs_scan_times_cores", alone / (job * CORES), 0.7)


def make_events(path: Path, cold: Path, values: list[bytes], repeats: int) -> None:
    config = {"remote.storage.enable": True, "segment.bytes": 128 << 20}
    with Store(str(path), archive=str(cold), tick_ms=NEVER_MS) as store:
        store.create_topic("events", config=config)
        for _ in range(repeats):
            for first in range(0, len(values), 10_000):
                store.append("events", values[first : first + 10_000], acks=1)
        store.roll("events")


def bench_archive(spark: SparkSession, folder: Path, console: Console) -> Bar:
    values = events(150_000)
    blocks = raw_blocks(batches_of(values))
    raw_bytes = sum(map(len, blocks))
    repeats = max(1, (MEGABYTES << 20) // (2 * raw_bytes))
    data, cold = folder / "events", folder / "cold"
    codec = pa.Codec("lz4_raw")
    alone = best(lambda: [codec.compress(block) for block in blocks]) * repeats
    times = []
    for _ in range(ROUNDS + 1):
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(cold, ignore_errors=True)
        make_events(data, cold, values, repeats)
        with Store(str(data), archive=str(cold), tick_ms=NEVER_MS) as store:
            started = time.perf_counter()
            done = archive.run(spark, store)
            times.append(time.perf_counter() - started)
        assert done.totals["records"] == len(values) * repeats
    job = min(times[1:])
    console.print(
        f"archive: {raw_bytes * repeats / job / 1e6:,.0f} MB/s on {CORES} cores; LZ4 alone"
        f" {raw_bytes * repeats / alone / 1e6:,.0f} MB/s on one ({done.totals['objects']} objects)"
    )
    return Bar("archive_vs_lz4_times_cores", alone / (job * CORES), 0.7)


def main() -> None:
    console = Console(width=100)
    spark = lamina.spark.session(master=f"local[{CORES}]")
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        bars = [
            bench_verify(spark, Path(folder), console),
            bench_archive(spark, Path(folder), console),
        ]
    spark.stop()
    finish(bars)


if __name__ == "__main__":
    main()
