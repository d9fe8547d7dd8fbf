"""The workloads: what every system is made to do, in the same way and in turn.

Rules.
1. One definition for all: records, batches and durations are constants here. Values are text with
   names and random numbers, as events are: 16 batches of 1,000 in turn, no two records alike.
2. Systems take turns, round after round, so that a slow moment of the machine meets all alike; a
   figure is the best of its rounds.
3. What is counted as produced was acknowledged; all of it is read back, counted, its bytes summed
   in the time that is taken, and once more outside of it compared with what was sent.
4. Nobody is timed while making the objects that its own client wants (`prepare`), and everybody's
   connections and code are warm before a clock starts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import statistics
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from benchmarks.field.limits import bare_writes
from benchmarks.field.system import FSYNC, IN_FLIGHT, NotOffered, System

BATCH_RECORDS = 1_000
SIZES = (100, 1024)
PRODUCE_SECONDS = 0.6
PIECE_SECONDS = 0.15
"""A rate is taken over at least this long, unless the piece has become as large as allowed."""
PIECE_MOST_BYTES = 64 << 20
LONE_SECONDS = 0.6
LONE_BLOCK = 40
MANY_PRODUCERS = 16
MANY_SECONDS = 0.7
SEEKS = 7


@dataclass
class Figures:
    """What one system reached at one durability, a value a round."""

    system: type[System]
    durability: str
    rounds: dict[str, list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        """Adds the figure of one round."""
        self.rounds.setdefault(name, []).append(value)

    @property
    def values(self) -> dict[str, float]:
        """The best of the rounds."""
        return {name: best(name, found) for name, found in self.rounds.items()}


def best(name: str, found: list[float]) -> float:
    """The best of several; less is better for times, sizes and what is put over a limit."""
    return min(found) if less_is_better(name) else max(found)


def less_is_better(name: str) -> bool:
    """Whether a figure of this name is a cost."""
    return name.endswith(("_us", "_s", "_bytes", "_over_bare"))


@cache
def batches_of(size_bytes: int) -> tuple[tuple[bytes, ...], ...]:
    """The batches that everybody sends, over and over."""
    numbers = random.Random(size_bytes)
    names = ("sensor", "station", "voltage", "pressure", "humidity", "position", "battery")
    found = []
    for batch in range(IN_FLIGHT):
        values = []
        for number in range(BATCH_RECORDS):
            text = f"{batch:02}{number:06}"
            while len(text) < size_bytes:
                text += f' "{numbers.choice(names)}": {numbers.randrange(100_000)},'
            values.append(text[:size_bytes].encode())
        found.append(tuple(values))
    return tuple(found)


def cycle(batches: Any, count: int) -> list[Any]:
    """So many batches, from the first on and around."""
    return [batches[number % len(batches)] for number in range(count)]


def values_of(size_bytes: int, count: int) -> list[list[bytes]]:
    """So many batches, as Python objects."""
    return cycle([list(batch) for batch in batches_of(size_bytes)], count)


@contextlib.contextmanager
def running(kind: type[System], folder: str, durability: str) -> Iterator[System]:
    """A system started in an empty folder, gone with it afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    system = kind(folder, durability)
    try:
        system.start()
        yield system
    finally:
        with contextlib.suppress(Exception):
            system.stop()
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}.log")


def records(figures: Figures, folder: str) -> None:
    """Has one system store and read records of each size, in batches and one by one."""
    for size_bytes in SIZES:
        os.sync()
        with running(figures.system, folder, figures.durability) as system:
            if size_bytes == SIZES[0]:
                figures.add("rest_memory_bytes", system.memory_bytes())
            sent = _Sent(system, size_bytes)
            with offered(figures):
                figures.add(f"produce_{size_bytes}", _rate(sent, system.produce))
                if size_bytes == SIZES[0]:
                    figures.add("load_memory_bytes", system.memory_bytes())
                _read_back(figures, system, sent)
            with offered(figures):
                figures.add(f"each_{size_bytes}", _rate(sent, system.produce_each))
            if size_bytes == SIZES[0]:
                _single_records(figures, system, folder)


class _Sent:
    """Batches on their way to one system, and what has been acknowledged."""

    def __init__(self, system: System, size_bytes: int) -> None:
        self.system = system
        self.size_bytes = size_bytes
        self.count = 0
        self.checksum = 0
        self.times_ms: list[int] = []
        self._plain = [list(batch) for batch in batches_of(size_bytes)]
        self._sums = [sum(map(zlib.crc32, batch)) for batch in self._plain]
        self._ready = system.prepare(self._plain) if system.reuses_batches else None

    def through(self, produce: Callable[[Any], None], batches: int) -> float:
        """Sends batches; returns how many seconds it took until all were acknowledged."""
        if self._ready is None:
            values: Any = self.system.prepare(cycle(self._plain, batches))
        else:
            values = cycle(self._ready, batches)
        self.times_ms.append(time.time_ns() // 1_000_000)
        gc.collect()
        started = time.perf_counter()
        produce(values)
        taken = time.perf_counter() - started
        self.count += batches * BATCH_RECORDS
        self.checksum += sum(cycle(self._sums, batches))
        return taken


def _rate(sent: _Sent, produce: Callable[[Any], None]) -> float:
    """Records a second of the best piece that took long enough to be one."""
    most = PIECE_MOST_BYTES // (sent.size_bytes * BATCH_RECORDS)
    batches = 1  # it grows to what takes long enough: everything is warm by then
    deadline = time.perf_counter() + PRODUCE_SECONDS
    found = 0.0
    while True:
        taken = sent.through(produce, batches)
        is_large = taken >= PIECE_SECONDS or batches == most
        if is_large:
            found = max(found, batches * BATCH_RECORDS / taken)
        if found and time.perf_counter() >= deadline:
            return found
        if not is_large:
            growth = min(4.0, 1.3 * PIECE_SECONDS / taken)
            batches = min(most, max(batches + 1, int(batches * growth)))


def _read_back(figures: Figures, system: System, sent: _Sent) -> None:
    size_bytes = sent.size_bytes
    with offered(figures):
        figures.add(f"disk_{size_bytes}_bytes", system.size_bytes() / sent.count)
    with offered(figures):
        found = length = checksum = 0
        gc.collect()
        started = time.perf_counter()
        for chunk in system.chunks(sent.count):
            count, size = system.counted(chunk)
            found += count
            length += size
            if system.reads_once:
                checksum += _checksum(system, chunk)
        taken = time.perf_counter() - started
        assert found == sent.count, f"read {found} of {sent.count} acknowledged records"
        assert length == found * size_bytes, f"read {length} bytes of {found} records"
        if not system.reads_once:
            checksum = sum(_checksum(system, chunk) for chunk in system.chunks(sent.count))
        assert checksum == sent.checksum, "what was read is not what was sent"
        figures.add(f"read_{size_bytes}", found / taken)
    with offered(figures):
        figures.add("seek_us", statistics.median(_seeks(system, sent)) * 1e6)


def _checksum(system: System, chunk: Any) -> int:
    """Of values in any order: several producers at once have none of their own."""
    return sum(map(zlib.crc32, system.values(chunk)))


def _seeks(system: System, sent: _Sent) -> Iterator[float]:
    """Seconds of seeks to times while records came in, each with a read of what is there."""
    first, last = sent.times_ms[0], sent.times_ms[-1]
    for number in range(SEEKS):
        moment = first + (last - first) * number // SEEKS
        started = time.perf_counter()
        value = system.seek(moment)
        yield time.perf_counter() - started
        assert len(value) == sent.size_bytes, f"sought a record and found {value!r:.40}"


def _single_records(figures: Figures, system: System, folder: str) -> None:
    """Lone appends, in turn with bare writes to the same disk; then many producers at once."""
    value = batches_of(SIZES[0])[0][0]
    os.sync()  # or who stored more a moment ago would wait here for the disk to have it
    with offered(figures), bare_writes(f"{folder}.bare") as bare:
        for _ in range(LONE_BLOCK):
            system.append(value)
        ours: list[float] = []
        theirs: list[float] = []
        deadline = time.perf_counter() + LONE_SECONDS
        while time.perf_counter() < deadline:
            ours += (_timed(lambda: system.append(value)) for _ in range(LONE_BLOCK))
            theirs += (_timed(bare) for _ in range(LONE_BLOCK))
        ours.sort()
        median = statistics.median(ours)
        figures.add("lone_p50_us", median * 1e6)
        figures.add("lone_p99_us", ours[int(len(ours) * 0.99)] * 1e6)
        bare_median = statistics.median(theirs)
        figures.add("bare_p50_us", bare_median * 1e6)
        if figures.durability == FSYNC:
            figures.add("lone_over_bare", median / bare_median)
    with offered(figures):
        system.append_from(MANY_PRODUCERS, value, 0.1)
        figures.add("many", system.append_from(MANY_PRODUCERS, value, MANY_SECONDS))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextlib.contextmanager
def offered(figures: Figures) -> Iterator[None]:
    """Leaves a figure out where a system does not have it, and says so where it failed."""
    try:
        yield
    except NotOffered:
        pass
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        figures.problems.append(f"{error!r:.300} in {last.name}")


def durable(figures: Figures) -> bool:
    """Whether an acknowledged record is on the disk."""
    return figures.durability == FSYNC
