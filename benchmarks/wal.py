"""`make bench-wal`: many topics behind one write-ahead log, in one run.

Everything is compared with a measurement of the same run: the same load on as many keratin topics,
a plain copy of as many bytes, the scan kernel on the same bytes in memory. Every fsync of the
process is counted, those of checkpoints and snapshots too.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from benchmarks.bars import Bar, finish
from lamina import records
from lamina.config import WalSettings, WriterSettings
from lamina.formats.scan import WHOLE
from lamina.formats.wal import log
from lamina.storage.files import LocalFile, LocalFiles
from lamina.store.store import Store
from lamina.wal.engine import WalEngine

VALUE = b"v" * 100
TOPICS = 1000
PRODUCERS = 64
SECONDS = 6.0  # longer than the time between two checkpoints, so that one is paid for
SHARDS_MAX = 2  # with more shards a group commit has fewer of the producers each
COPIED_BYTES = 192 << 20
RECOVERED = 1_000_000
ROUNDS = 5
NEVER = 1 << 40
QUIET = WriterSettings(flush_ms=1 << 31)
"""With a tick of NEVER and this, a store does nothing by itself."""


def batch_of(count: int, value: bytes = VALUE, tag: bytes | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array([value] * count, pa.binary())}
    if tag is not None:
        columns["tag"] = pa.array([tag] * count, pa.binary())
    return records.prepare(pa.table(columns), "wal", now_ms=1_700_000_000_000)


def shards() -> int:
    return min(os.cpu_count() or 1, SHARDS_MAX)


def by_hand() -> WalSettings:
    """Settings with which nothing happens unless it is asked for."""
    return WalSettings(shards=shards(), checkpoint_ms=NEVER, snapshot_ms=NEVER)


def quiet_store(path: str) -> Store:
    """Opens a store that does nothing by itself."""
    return Store(path, wal=by_hand(), writer=QUIET, tick_ms=NEVER)


def engine_of(store: Store) -> WalEngine:
    """The write-ahead log below a store: `flush` would also checkpoint what a rotation made due."""
    engine = store._write_ahead.engine
    assert engine is not None, "there are wal topics"
    return engine


# ---------------------------------------------------------------- counting fsyncs


class CountingFiles(LocalFiles):
    """The local files, every fsync counted in `syncs`."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def create(self, path: str) -> LocalFile:
        return self._counted(super().create(path))

    def open(self, path: str) -> LocalFile:
        return self._counted(super().open(path))

    def sync_directory(self, path: str) -> None:
        self.syncs += 1
        super().sync_directory(path)

    def _counted(self, file: LocalFile) -> LocalFile:
        real = file.sync

        def sync() -> None:
            self.syncs += 1
            real()

        file.sync = sync  # type: ignore[method-assign]
        return file


class UnsyncedFile(LocalFile):
    def sync(self) -> None:
        pass


class UnsyncedFiles(LocalFiles):
    """The local files without fsyncs: for measurements of memory, which none of them changes."""

    def create(self, path: str) -> LocalFile:
        file = super().create(path)
        file.__class__ = UnsyncedFile
        return file

    def open(self, path: str) -> LocalFile:
        file = super().open(path)
        file.__class__ = UnsyncedFile
        return file

    def sync_directory(self, path: str) -> None:
        pass


# ---------------------------------------------------------------- many topics, many producers


@dataclass
class Load:
    """What a load reached: durable records a second, and fsyncs a record."""

    per_second: float
    syncs: float


@dataclass
class Side:
    """One of the two stores that take the same load."""

    store: Store
    files: CountingFiles


def with_threads(side: Side, names: list[str]) -> Load:
    counts = [0] * PRODUCERS
    stop = threading.Event()

    def produce(number: int) -> None:
        chosen = random.Random(number)
        while not stop.is_set():
            side.store.append(chosen.choice(names), VALUE)
            counts[number] += 1

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(PRODUCERS)]
    before, started = side.files.syncs, time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - started
    return Load(sum(counts) / elapsed, (side.files.syncs - before) / sum(counts))


def with_asyncio(side: Side, names: list[str]) -> Load:
    async def run() -> Load:
        deadline = time.perf_counter() + SECONDS
        count = 0

        async def produce(number: int) -> None:
            nonlocal count
            chosen = random.Random(number)
            while time.perf_counter() < deadline:
                await side.store.append_async(chosen.choice(names), VALUE)
                count += 1

        before, started = side.files.syncs, time.perf_counter()
        await asyncio.gather(*(produce(number) for number in range(PRODUCERS)))
        elapsed = time.perf_counter() - started
        return Load(count / elapsed, (side.files.syncs - before) / count)

    return asyncio.run(run())


def open_side(folder: str, format_name: str, names: list[str]) -> Side:
    files = CountingFiles()
    path = os.path.join(folder, f"many-{format_name}")
    store = Store(path, files=files, wal=WalSettings(shards=shards()))
    for name in names:
        store.create_topic(name, format=format_name)
        store.append(name, VALUE, acks=1)
    store.maintain()  # every file is there when the clock starts
    return Side(store, files)


def many_topics(folder: str, console: Console) -> list[Bar]:
    """1,000 topics, 64 producers, one durable record an append, to a topic picked at random.

    The stores take turns: a noisy machine's good and bad moments are for both.
    """
    names = [f"t{number}" for number in range(TOPICS)]
    sides = {name: open_side(folder, name, names) for name in ("keratin", "wal")}
    best = {name: Load(0, 1) for name in sides}
    for mode, run in (("threads", with_threads), ("asyncio", with_asyncio)):
        for name, side in sides.items():
            load = run(side, names)
            best[name].per_second = max(best[name].per_second, load.per_second)
            best[name].syncs = min(best[name].syncs, load.syncs)
            console.print(
                f"{TOPICS} {name} topics, {PRODUCERS} producers ({mode}):"
                f" {load.per_second:,.0f} durable records/s, {load.syncs:.4f} fsyncs a record"
            )
    for name, side in sides.items():
        side.store.close()
        shutil.rmtree(os.path.join(folder, f"many-{name}"))
    ours, theirs = best["wal"], best["keratin"]
    return [
        Bar("wal-fewer-fsyncs-than-keratin", theirs.syncs / ours.syncs, 20),
        Bar("wal-throughput-vs-keratin", ours.per_second / theirs.per_second, 5),
    ]


# ---------------------------------------------------------------- the compactor


def plain_copy(source: str, target: str) -> float:
    """Seconds that a copy of a file with an fsync takes."""
    os.sync()
    started = time.perf_counter()
    with open(source, "rb") as origin, open(target, "wb") as copied:
        shutil.copyfileobj(origin, copied, 4 << 20)
        copied.flush()
        os.fdatasync(copied.fileno())
    elapsed = time.perf_counter() - started
    os.unlink(target)
    return elapsed


def compaction(folder: str, topics: int, value_bytes: int) -> tuple[float, float]:
    """MB/s of a checkpoint of so many topics, and of a plain copy of as many bytes."""
    path = os.path.join(folder, "compaction")
    batch = batch_of(max(1, (1 << 20) // (value_bytes + 46)), b"v" * value_bytes)
    compacted = copied = float("inf")
    rounds = COPIED_BYTES // (64 << 20)
    for _ in range(rounds):
        with quiet_store(path) as store:
            for number in range(topics):
                store.create_topic(f"t{number}", format="wal")
            for number in range(60):
                store.append(f"t{number % topics}", batch, acks=1)
            engine = engine_of(store)
            engine.sync()
            os.sync()
            started = time.perf_counter()
            engine.checkpoint()
            elapsed = time.perf_counter() - started
            data = list(Path(path, "segments").rglob("*.data"))
            size = sum(each.stat().st_size for each in data)
            assert size == 60 * batch.num_rows * (value_bytes + 45)
            compacted = min(compacted, elapsed / size)
            joined = os.path.join(folder, "joined")
            with open(joined, "wb") as out:
                for each in data:
                    out.write(each.read_bytes())
            copied = min(copied, plain_copy(joined, joined + ".copy") / size)
            os.unlink(joined)
        shutil.rmtree(path)
    return 1 / compacted / 1e6, 1 / copied / 1e6


def compactor(folder: str, console: Console) -> list[Bar]:
    bars = []
    for topics, value_bytes in ((4, 100), (4, 1024)):
        ours, plain = compaction(folder, topics, value_bytes)
        console.print(
            f"compactor, {topics} topics, values of {value_bytes} bytes: {ours:,.0f} MB/s;"
            f" a plain copy with fsync: {plain:,.0f} MB/s"
        )
        bars.append(Bar(f"wal-compactor-of-copy-{value_bytes}", ours / plain, 0.5))
    return bars


# ---------------------------------------------------------------- recovery


def fill(path: str, topics: int, value_bytes: int) -> None:
    """Writes 1 M durable records and abandons the store, as a kill would: all are in the WAL."""
    store = quiet_store(path)
    for number in range(topics):
        store.create_topic(f"t{number}", format="wal")
    batch = batch_of(1000, b"v" * value_bytes)
    for number in range(RECOVERED // 1000):
        store.append(f"t{number % topics}", batch)
    store._disown()


def materialise(path: str) -> None:
    """Has everything copied into segments, the WAL freed, and abandons the store."""
    store = quiet_store(path)
    store.maintain()
    store.append("t0", VALUE)  # or a second snapshot would have nothing new to say
    store.maintain()
    store._disown()


def recovery_seconds(path: str, topics: int) -> float:
    """Opens an abandoned store and abandons it again: seconds, as its report says."""
    store = quiet_store(path)
    found = sum(store.latest_offset(f"t{number}") - 1 for number in range(topics))
    assert found >= RECOVERED, f"{found} records"
    store._disown()
    return store.recovery_report.milliseconds / 1000


def scan_seconds(wals: list[bytes]) -> float:
    """Walks the WAL's bytes in memory with the scan kernel."""
    started = time.perf_counter()
    frames = sum(len(log.scan(data, 0, limit=WHOLE)) for data in wals)
    elapsed = time.perf_counter() - started
    assert frames >= RECOVERED
    return elapsed


def replay_seconds(path: str, topics: int) -> tuple[float, float]:
    """The best of some recoveries from the WAL only, and of scans of its bytes, in turns."""
    wals = [each.read_bytes() for each in Path(path, "wal").rglob("wal-*.log")]
    rounds = [(recovery_seconds(path, topics), scan_seconds(wals)) for _ in range(ROUNDS)]
    return min(each for each, _ in rounds), min(each for _, each in rounds)


def recovery(folder: str, console: Console) -> list[Bar]:
    """Bars for one topic at two sizes; many topics are shown beside them."""
    bars = []
    for topics, value_bytes in ((1, 100), (100, 100), (1, 1024)):
        path = os.path.join(folder, f"recovery-{topics}-{value_bytes}")
        fill(path, topics, value_bytes)
        from_wal, kernel = replay_seconds(path, topics)
        materialise(path)
        from_segments = min(recovery_seconds(path, topics) for _ in range(2 * ROUNDS))
        shutil.rmtree(path)
        console.print(
            f"recovery of 1 M records, values of {value_bytes} bytes, {topics} topics:"
            f" from the WAL only {from_wal * 1e3:.1f} ms (the scan kernel alone"
            f" {kernel * 1e3:.1f} ms), from snapshot and segments {from_segments * 1e3:.1f} ms"
        )
        if topics == 1:
            bars.append(Bar(f"wal-replay-of-scan-kernel-{value_bytes}", kernel / from_wal, 0.25))
            bars.append(Bar(f"wal-segments-vs-replay-{value_bytes}", from_wal / from_segments, 10))
    return bars


# ---------------------------------------------------------------- deletes


def tag_delete(folder: str, console: Console) -> None:
    """Deletes the 10 k records with a tag of 100 k, in the WAL and in segments."""
    path = os.path.join(folder, "deletes")
    tagged = pa.concat_batches([batch_of(9, tag=b"blue"), batch_of(1, tag=b"red")] * 1000)
    figures = []
    for where in ("WAL", "segments"):
        with quiet_store(path) as store:
            store.create_topic("t", format="wal")
            for _ in range(10):
                store.append("t", tagged)
            if where == "segments":
                store.maintain()
            started = time.perf_counter()
            deleted = store.delete("t", tag=b"red")
            figures.append(f"{(time.perf_counter() - started) * 1e3:.1f} ms in {where}")
            assert deleted == 10_000
            assert sum(batch.num_rows for batch in store.scan("t")) == 90_000
        shutil.rmtree(path)
    console.print(f"delete by tag of 10 k of 100 k records: {', '.join(figures)}")


# ---------------------------------------------------------------- memory


def anonymous_bytes() -> int:
    """The memory that is this process's own, without files that it maps."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise OSError("this system does not tell")


def memory_of_topics(path: str) -> None:
    """Prints the bytes of a topic: empty, with a record in the WAL, with it in a segment."""
    count = 10_000
    with Store(path, files=UnsyncedFiles(), wal=by_hand(), writer=QUIET, tick_ms=NEVER) as store:
        store.create_topic("first", format="wal")
        store.append("first", VALUE)
        store.maintain()
        steps = [anonymous_bytes()]
        for number in range(count):
            store.create_topic(f"t{number}", format="wal")
        steps.append(anonymous_bytes())
        for number in range(count):
            store.append(f"t{number}", VALUE, acks=1)
        steps.append(anonymous_bytes())
        store.maintain()
        steps.append(anonymous_bytes())
    print(" ".join(f"{(step - steps[0]) / count:.0f}" for step in steps[1:]))


def memory_of_records(path: str) -> None:
    """Prints the bytes of a record: in the WAL, in segments, in segments after a restart."""
    count, batch = 10_000_000, batch_of(10_000, b"v" * 16)
    with Store(path, files=UnsyncedFiles(), wal=by_hand(), writer=QUIET, tick_ms=NEVER) as store:
        store.create_topic("t", format="wal")
        store.append("t", batch)
        store.maintain()
        steps = [anonymous_bytes()]
        for _ in range(count // batch.num_rows):
            store.append("t", batch, acks=1)
        steps.append(anonymous_bytes())
        store.maintain()
        steps.append(anonymous_bytes())
    print(" ".join(f"{(step - steps[0]) / count:.2f}" for step in steps[1:]))


def memory(folder: str, console: Console) -> None:
    """Each in a process of its own, whose memory nothing else has touched; without a disk."""
    in_memory = "/dev/shm"
    for what, call in (("topics", memory_of_topics), ("records", memory_of_records)):
        path = os.path.join(
            in_memory if os.path.isdir(in_memory) else folder, f"lamina-{os.getpid()}"
        )
        program = f"from benchmarks import wal; wal.{call.__name__}({path!r})"
        ran = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
        figures = ran.stdout.decode().split()
        if what == "topics":
            console.print(
                f"memory of a topic, 10 k topics: {figures[0]} bytes; with a record in the WAL"
                f" {figures[1]}, with it in a segment {figures[2]}"
            )
        else:
            console.print(
                f"memory of a record, 10 M records: {figures[0]} bytes in the WAL,"
                f" {figures[1]} in segments"
            )
        shutil.rmtree(path)


def main() -> None:
    console = Console(width=140, highlight=False)
    folder = tempfile.mkdtemp(prefix="lamina-bench-", dir=os.environ.get("BENCH_DIR"))
    parts: dict[str, Callable[[str, Console], list[Bar] | None]] = {
        "topics": many_topics,
        "compactor": compactor,
        "recovery": recovery,
        "delete": tag_delete,
        "memory": memory,
    }
    bars: list[Bar] = []
    try:
        for name in sys.argv[1:] or parts:
            bars += parts[name](folder, console) or []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    finish(bars)


if __name__ == "__main__":
    main()
