"""`make bench-jobs`: the bulk jobs beside what one core's kernels do with the same bytes.

- `verify` beside the scan kernel alone over the same mapped files, times the cores.
- `archive` beside the compressor alone over the same blocks, times the cores; and beside the steps
  of an object (encode, compress, decode again, write, read back) in one process of their own.

A job's start-up is aside: each job runs over a small log and over a large one, and its speed is
that of the bytes between them. The time that both share is told as its start-up. What two cores do
at once with a kernel, each alone, is told as the machine's own ceiling.
`LAMINA_BENCH_MB` sets the size of the large log.
"""

from __future__ import annotations

import multiprocessing
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
from lamina.archive.encode import Naming, encode_object
from lamina.formats.log_format import CODECS
from lamina.formats.scan import Limit
from lamina.formats.strm.layout import Compression
from lamina.spark.jobs import archive, verify
from lamina.store.store import Store

MEGABYTES = int(os.environ.get("LAMINA_BENCH_MB", "2048"))
SMALL_SHARE = 4
CORES = 2
ROUNDS = 3
NEVER_MS = 1 << 31
VALUE_BYTES = 100
CHUNK = 32_768
EVENTS = 150_000
OBJECT_BYTES = 4 << 20


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def best(call: Callable[[], object], rounds: int = ROUNDS) -> float:
    return min(timed(call) for _ in range(rounds))


def on_every_core(work: Callable[[], object]) -> float:
    """The time of one piece of work on each core at once; the best of some rounds."""
    context = multiprocessing.get_context("fork")
    together, said = context.Barrier(CORES), context.SimpleQueue()

    def run() -> None:
        work()
        took = []
        for _ in range(ROUNDS):
            together.wait()
            took.append(timed(work))
        said.put(min(took))

    running = [context.Process(target=run) for _ in range(CORES)]
    for process in running:
        process.start()
    times = [said.get() for _ in running]
    for process in running:
        process.join()
    return max(times)


class Slope:
    """Two sizes of the same work, and the speed of what lies between them."""

    def __init__(self, small: tuple[int, float], large: tuple[int, float]) -> None:
        self.seconds = max(large[1] - small[1], 1e-9) / (large[0] - small[0])
        self.start_up_s = max(small[1] - small[0] * self.seconds, 0.0)

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return 1 / self.seconds


# ---------------------------------------------------------------- verify


def make_plain(path: Path, megabytes: int) -> list[Path]:
    """A log of random values of 100 B in segments of 64 MB."""
    random = np.random.default_rng(1)
    with Store(str(path)) as store:
        store.create_topic("plain", config={"segment.bytes": 64 << 20})
        for _ in range(max(1, (megabytes << 20) // (CHUNK * (VALUE_BYTES + 36)))):
            raw = pa.py_buffer(random.bytes(CHUNK * VALUE_BYTES))
            values = pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(VALUE_BYTES), CHUNK, [None, raw]
            ).cast(pa.binary())
            store.append("plain", pa.record_batch({"value": values}), acks=1)
    return sorted(path.rglob("*.log"))


def scan_alone(logs: list[Path]) -> None:
    codec = CODECS["keratin"]
    for path in logs:
        buffer, position = path.read_bytes(), codec.header_bytes
        size = len(buffer)
        while position < size:
            found = codec.scan(buffer, position, expected_offset=None, limit=Limit())
            assert len(found), "a sound log"
            position = found.end


def bytes_of(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def bench_verify(spark: SparkSession, folder: Path, console: Console) -> list[Bar]:
    places = {"small": MEGABYTES // SMALL_SHARE, "large": MEGABYTES}
    logs = {name: make_plain(folder / name, size) for name, size in places.items()}
    alone = bytes_of(logs["large"]) / best(lambda: scan_alone(logs["large"]))
    both = CORES * bytes_of(logs["small"]) / on_every_core(lambda: scan_alone(logs["small"]))
    times: dict[str, float] = {}
    for _ in range(ROUNDS + 1):  # the first one warms everything up
        for name in places:
            took = timed(lambda name=name: verify.run(spark, str(folder / name)))
            times[name] = min(times.get(name, took), took)
    job = Slope(*((bytes_of(logs[name]), times[name]) for name in ("small", "large")))
    console.print(
        f"verify: {job.rate / 1e9:.2f} GB/s on {CORES} cores behind a start-up of"
        f" {job.start_up_s:.2f} s; the scan kernel alone {alone / 1e9:.2f} GB/s on one core,"
        f" {both / 1e9:.2f} on {CORES} at once"
    )
    return [
        Bar("verify_vs_scan_times_cores", job.rate / (alone * CORES), 0.85),
        Bar("verify_vs_scan_on_all_cores", job.rate / both, 0.7),
    ]


# ---------------------------------------------------------------- archive


def make_events(path: Path, cold: Path, values: list[bytes], repeats: int, coding: str) -> None:
    config = {
        "remote.storage.enable": True,
        "segment.bytes": 64 << 20,
        "archive.object.bytes": OBJECT_BYTES,
        "archive.compression.type": coding,
    }
    batches = [
        pa.record_batch({"value": pa.array(values[first : first + 10_000], pa.binary())})
        for first in range(0, len(values), 10_000)
    ]
    with Store(str(path), archive=str(cold), tick_ms=NEVER_MS) as store:
        store.create_topic("events", config=config)
        for _ in range(repeats):
            for batch in batches:
                store.append("events", batch, acks=1)
        store.roll("events")


def archived(
    spark: SparkSession, folder: Path, values: list[bytes], repeats: int, coding: str
) -> float:
    """The time to archive a log that was made for it."""
    data, cold = folder / "events", folder / "cold"
    for place in (data, cold):
        shutil.rmtree(place, ignore_errors=True)
    make_events(data, cold, values, repeats, coding)
    with Store(str(data), archive=str(cold), tick_ms=NEVER_MS) as store:
        started = time.perf_counter()
        done = archive.run(spark, store)
        took = time.perf_counter() - started
    assert done.totals["records"] == len(values) * repeats
    return took


def bench_archive(
    spark: SparkSession, folder: Path, console: Console, name: str, compression: Compression
) -> Bar:
    values = events(EVENTS)
    batches = batches_of(values)
    blocks = raw_blocks(batches)
    raw_bytes = sum(map(len, blocks))
    codec = pa.Codec("lz4_raw" if name == "lz4" else "zstd")
    alone = raw_bytes / best(lambda: [codec.compress(block) for block in blocks])
    naming, span = Naming("events", 0, 0), (0, len(values))

    def encode() -> None:
        made = encode_object(
            lambda _: iter(batches), span, naming, compression, target_bytes=1 << 62
        )
        assert made is not None

    encode()
    steps = CORES * raw_bytes / on_every_core(encode)
    large = max(SMALL_SHARE, (MEGABYTES << 20) // (2 * raw_bytes))
    sizes = {"small": large // SMALL_SHARE, "large": large}
    times: dict[str, float] = {}
    for _ in range(ROUNDS):
        for size, repeats in sizes.items():
            took = archived(spark, folder, values, repeats, name)
            times[size] = min(times.get(size, took), took)
    job = Slope(*((raw_bytes * sizes[size], times[size]) for size in ("small", "large")))
    console.print(
        f"archive with {name}: {job.rate / 1e6:,.0f} MB/s on {CORES} cores behind a start-up of"
        f" {job.start_up_s:.2f} s; {name} alone {alone / 1e6:,.0f} MB/s on one core; encoding and"
        f" decoding again {steps / 1e6:,.0f} MB/s on {CORES} cores"
    )
    return Bar(f"archive_vs_{name}_times_cores", job.rate / (alone * CORES), 0.6)


def main() -> None:
    console = Console(width=100)
    spark = lamina.spark.session(master=f"local[{CORES}]")
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder:
        bars = bench_verify(spark, Path(folder), console)
        for name, compression in (("lz4", Compression.LZ4), ("zstd", Compression.ZSTD)):
            bars.append(bench_archive(spark, Path(folder), console, name, compression))
    spark.stop()
    finish(bars)


if __name__ == "__main__":
    main()
