"""The workloads: what every system is made to do, in the same way and in turn.

Rules.
1. One definition for all: records, batches and durations are constants here.
2. Systems take turns, round after round, so that a slow moment of the machine meets all alike; a
   figure is the best of its rounds.
3. What is counted as produced was acknowledged, and is read back and counted.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.field.system import FSYNC, NotOffered, Server, System

BATCH_RECORDS = 1_000
SIZES = (100, 1024)
PRODUCE_SECONDS = 1.0
LONE_APPENDS = 300
MANY_PRODUCERS = 16
MANY_SECONDS = 1.0
READ_MOST = 500_000
RECOVERED_RECORDS = 1_000_000
RECOVER_WITHIN_S = 40


@dataclass
class Figures:
    """What one system reached at one durability; lower is better for `_us` and `_s`."""

    system: type[System]
    durability: str
    values: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def keep(self, name: str, value: float) -> None:
        """Keeps the better of this round's figure and those before."""
        better = min if name.endswith(("_us", "_s", "bytes")) else max
        self.values[name] = better(self.values.get(name, value), value)


def values_of(size_bytes: int, batches: int) -> list[list[bytes]]:
    """Batches of records, every batch the same: making them must not be what is measured."""
    batch = [(b"%08d" % number) + b"v" * (size_bytes - 8) for number in range(BATCH_RECORDS)]
    return [batch] * batches


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


def one_round(figures: Figures, folder: str) -> None:
    """Has one system do everything once."""
    for size_bytes in SIZES:
        with running(figures.system, folder, figures.durability) as system:
            if size_bytes == SIZES[0]:
                figures.keep("rest_memory_bytes", system.memory_bytes())
            _produce_and_read(figures, system, size_bytes)
            if size_bytes == SIZES[0]:
                figures.keep("load_memory_bytes", system.memory_bytes())
                _single_records(figures, system)


def _produce_and_read(figures: Figures, system: System, size_bytes: int) -> None:
    gc.collect()
    produced = records_in(system.produce, system, size_bytes, figures, "produce")
    if produced == 0:
        return
    with offered(figures):
        figures.keep(f"disk_{size_bytes}_bytes", system.size_bytes() / produced)
    with offered(figures):
        started = time.perf_counter()
        found = system.read(produced)
        taken = time.perf_counter() - started
        if found < produced:
            figures.problems.append(f"read {found} of {produced} acknowledged records")
        figures.keep(f"read_{size_bytes}", found / taken)
    with offered(figures):
        middle_ms = time.time_ns() // 1_000_000 - 1000
        started = time.perf_counter()
        system.seek(middle_ms)
        figures.keep("seek_us", (time.perf_counter() - started) * 1e6)
    records_in(system.produce_each, system, size_bytes, figures, "each")


def records_in(
    produce: Callable[[Any], None],
    system: System,
    size_bytes: int,
    figures: Figures,
    name: str,
) -> int:
    """Produces for about a second; keeps the best rate of its pieces; returns how many records."""
    batches, total = 1, 0
    deadline = time.perf_counter() + PRODUCE_SECONDS
    with offered(figures):
        while time.perf_counter() < deadline and total < READ_MOST:
            values = system.prepare(values_of(size_bytes, batches))
            started = time.perf_counter()
            produce(values)
            taken = time.perf_counter() - started
            count = batches * BATCH_RECORDS
            total += count
            figures.keep(f"{name}_{size_bytes}", count / taken)
            if taken < PRODUCE_SECONDS / 4:
                batches *= 2
    return total


def _single_records(figures: Figures, system: System) -> None:
    value = b"v" * SIZES[0]
    with offered(figures):
        taken = []
        deadline = time.perf_counter() + PRODUCE_SECONDS
        while len(taken) < LONE_APPENDS and time.perf_counter() < deadline:
            started = time.perf_counter()
            system.append(value)
            taken.append(time.perf_counter() - started)
        taken.sort()
        figures.keep("lone_p50_us", statistics.median(taken) * 1e6)
        figures.keep("lone_p99_us", taken[int(len(taken) * 0.99)] * 1e6)
    with offered(figures):
        figures.keep("many", system.append_from(MANY_PRODUCERS, value, MANY_SECONDS))


def recover(figures: Figures, folder: str) -> None:
    """Kills a server that holds many records; how long until it acknowledges another one."""
    rate = figures.values.get("produce_100", 0)
    if not issubclass(figures.system, Server) or rate * RECOVER_WITHIN_S < RECOVERED_RECORDS:
        return
    with running(figures.system, folder, figures.durability) as system:
        assert isinstance(system, Server)
        for _ in range(RECOVERED_RECORDS // 100_000):
            system.produce(system.prepare(values_of(100, 100_000 // BATCH_RECORDS)))
        system.kill()
        started = time.perf_counter()
        system.launch()
        system.append(b"after")
        figures.keep("recover_1M_s", time.perf_counter() - started)


@contextlib.contextmanager
def offered(figures: Figures) -> Iterator[None]:
    """Leaves a figure out where a system does not have it, and says so where it failed."""
    try:
        yield
    except NotOffered:
        pass
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        figures.problems.append(f"{error!r:.200} in {last.name}")


def durable(figures: Figures) -> bool:
    """Whether an acknowledged record is on the disk."""
    return figures.durability == FSYNC
