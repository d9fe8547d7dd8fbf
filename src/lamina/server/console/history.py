"""The last day, sampled: rates, lags, group sizes, fsyncs; the newer, the finer.

    2 s a point    for a quarter of an hour
    1 min          for six hours
    5 min          for a day

One thread samples, for all viewers. What it keeps is a ring of four-byte numbers per series and
fineness, all with the same clock; a series whose topic or group is gone is dropped. A coarse point
is the mean of its samples, and the last one grows until its time is over; what already is a worst
case (a p99, a lag in time) stays one: of those the largest counts.

Rules.
1. Sampling reads counters and indexes, never records, and takes at most a fortieth of the time: if
   there is much to sample, it is sampled less often.
2. A number that is not known is NaN here and null in JSON, never 0.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.api import PartitionInfo, Pulse, WriterFacts, percentile
from lamina.errors import LaminaError
from lamina.store.store import Store

_log = logging.getLogger("lamina.server")

TICK_S = 2.0
LENGTH = 450
SHARE = 40
TREND = 60
WINDOWS_S = (900, 60, 300, 3600, 21_600, 86_400)
"""The spans of time that a page may ask for; the first is what it gets without asking."""
_COARSE = ((60.0, 360), (300.0, 288))
"""Seconds a point and points of the coarser rings."""
_WORST = ("fsync_p99_us", "group_p99", "seconds")
Key: TypeAlias = tuple[str, ...]
"""("topic", name, "records"), ("group", topic, name, "seconds"), ("writer", "p99_us"), …"""


class _Ring:
    """Series of one fineness: a point every `period_s`, the last `length` of them."""

    def __init__(self, period_s: float, length: int) -> None:
        self.span_s = period_s * length
        self._period_s = period_s
        self._length = length
        self._points = 0
        self._bucket = -1
        self._times: NDArray[np.float64] = np.full(length, np.nan)
        self._rings: dict[Key, NDArray[np.float32]] = {}
        self._sums: dict[Key, tuple[float, int]] = {}

    def add(self, now_s: float, values: Mapping[Key, float]) -> None:
        """Adds a sample to the point that is growing, or begins the next."""
        bucket = int(now_s // self._period_s) if self._period_s > TICK_S else self._bucket + 1
        if bucket != self._bucket:
            self._bucket = bucket
            self._points += 1
            self._sums.clear()
        slot = (self._points - 1) % self._length
        self._times[slot] = now_s
        for key in [key for key in self._rings if key not in values]:
            del self._rings[key]
            self._sums.pop(key, None)
        for key, value in values.items():
            ring = self._rings.get(key)
            if ring is None:
                ring = self._rings[key] = np.full(self._length, np.nan, dtype=np.float32)
            ring[slot] = self._grown(key, value) if self._period_s > TICK_S else value

    def _grown(self, key: Key, value: float) -> float:
        total, count = self._sums.get(key, (0.0, 0))
        if not math.isnan(value):
            worst = key[-1] in _WORST
            total = max(total, value) if worst and count else total + value
            count = 1 if worst else count + 1
            self._sums[key] = total, count
        return total / count if count else math.nan

    def order(self, count: int) -> NDArray[np.int64]:
        """Returns the slots of the last points, oldest first."""
        count = min(count, self._points, self._length)
        return np.arange(self._points - count, self._points) % self._length

    def within(self, window_s: float) -> NDArray[np.int64]:
        """Returns the slots of the points that are not older than a window, oldest first."""
        slots = self.order(self._length)
        times = self._times[slots]
        return slots[times >= times[-1] - window_s] if len(slots) else slots

    def times(self, slots: NDArray[np.int64]) -> list[float]:
        """Returns when the points of slots were taken, in seconds."""
        found: list[float] = self._times[slots].round(3).tolist()
        return found

    def values(self, key: Key, slots: NDArray[np.int64]) -> list[float | None]:
        """Returns the numbers of a series; None where one is not known."""
        ring = self._rings.get(key)
        if ring is None:
            return [None] * len(slots)
        values = ring[slots].tolist()
        return [None if math.isnan(value) else round(value, 3) for value in values]


class Rings:
    """Series of numbers with one clock; each keeps its last `LENGTH`, and coarser ones longer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fine = _Ring(TICK_S, LENGTH)
        self._all = (self._fine, *(_Ring(*each) for each in _COARSE))

    def add(self, now_s: float, values: Mapping[Key, float]) -> None:
        """Adds one sample of every series there is now; others are dropped."""
        with self._lock:
            for each in self._all:
                each.add(now_s, values)

    def _of(self, window_s: float) -> _Ring:
        """Returns the finest ring that reaches back so far; every one begins with the finest."""
        return next((each for each in self._all if each.span_s >= window_s), self._all[-1])

    def times(self) -> list[float]:
        """Returns when the samples of the shortest history were taken, oldest first, in seconds."""
        with self._lock:
            return self._fine.times(self._fine.order(LENGTH))

    def drawn(self, window_s: float, keys: Mapping[str, Key]) -> dict[str, list[Any]]:
        """Returns `times` of a window and, by their names, series with a number for each time."""
        with self._lock:
            ring = self._of(window_s)
            slots = ring.within(window_s)
            lines = {name: ring.values(key, slots) for name, key in keys.items()}
            return {"times": ring.times(slots), **lines}

    def series(self, key: Key, count: int = LENGTH) -> list[float | None]:
        """Returns the last numbers of a series, oldest first; None where one is not known."""
        with self._lock:
            return self._fine.values(key, self._fine.order(count))

    def last(self, key: Key) -> float | None:
        """Returns the newest number of a series."""
        found = self.series(key, 1)
        return found[-1] if found else None


@dataclass(slots=True)
class _Before:
    """The counts of the sample before: rates are differences."""

    at_s: float
    ends: dict[str, int] = field(default_factory=dict)
    pulses: dict[str, Pulse] = field(default_factory=dict)


class History:
    """Samples a store; `last_pulses` are what each writer did in the last interval."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rings = Rings()
        self.last_pulses: dict[str, Pulse] = {}
        self.interval_s = TICK_S
        self._clock = clock
        self._before: _Before | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, store: Callable[[], Store]) -> None:
        """Starts to sample; `store` raises while there is none."""
        self._thread = threading.Thread(
            target=self._run, args=(store,), name="lamina-console", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, store: Callable[[], Store]) -> None:
        pause_s = 0.1
        while not self._stopping.wait(pause_s):
            started = self._clock()
            try:
                self.sample(store())
            except LaminaError:  # recovering, or stopping
                continue
            except Exception:
                _log.exception("a sample for the console failed; the next one is tried")
            spent_s = self._clock() - started
            self.interval_s = max(TICK_S, SHARE * spent_s)
            pause_s = self.interval_s - spent_s

    def sample(self, store: Store) -> None:
        """Takes one sample."""
        now_s = self._clock()
        extents, writers = store.extents(), store.writers()
        ends = {name: sum(part.durable_offset for part in parts) for name, parts in extents.items()}
        pulses = {each.name: each.pulse for each in writers}
        before, self._before = self._before, _Before(now_s, ends, pulses)
        values: dict[Key, float] = dict(_of_groups(store)) | dict(_of_tier(store))
        if before is not None and now_s > before.at_s:
            self.last_pulses = {
                name: pulse.minus(before.pulses[name])
                for name, pulse in pulses.items()
                if name in before.pulses and before.pulses[name].groups != pulse.groups
            }
            elapsed_s = now_s - before.at_s
            values |= dict(self._of_topics(extents, writers, before, elapsed_s))
            values |= dict(_of_writers(writers, self.last_pulses, elapsed_s))
        self.rings.add(time.time(), values)

    def _of_topics(
        self,
        extents: Mapping[str, list[PartitionInfo]],
        writers: Iterable[WriterFacts],
        before: _Before,
        elapsed_s: float,
    ) -> Iterator[tuple[Key, float]]:
        written: dict[str, int] = {}
        for each in writers:
            if each.topic is not None and each.name in self.last_pulses:
                added = self.last_pulses[each.name].size_bytes
                written[each.topic] = written.get(each.topic, 0) + added
        for name, parts in extents.items():
            end = sum(part.durable_offset for part in parts)
            records = max(0, end - before.ends.get(name, end)) / elapsed_s
            held = sum(part.written_offset - part.earliest_offset for part in parts)
            size_bytes = sum(part.size_bytes + part.archived_bytes for part in parts)
            # Topics that share a log have no count of their own: their average record tells.
            about = records * size_bytes / held if held else 0.0
            yield ("topic", name, "records"), records
            yield ("topic", name, "bytes"), written[name] / elapsed_s if name in written else about


def _of_groups(store: Store) -> Iterator[tuple[Key, float]]:
    for topic, name in store.groups():
        try:
            lags = store.describe_group(topic, name).partitions
        except LaminaError:  # deleted in the meantime
            continue
        yield ("group", topic, name, "records"), float(sum(lag.records for lag in lags))
        yield ("group", topic, name, "seconds"), max((lag.seconds for lag in lags), default=0.0)


def _of_tier(store: Store) -> Iterator[tuple[Key, float]]:
    status = store.tier_status()
    if status:
        yield ("tier", "records"), float(sum(each.records_behind for each in status))
        yield ("tier", "bytes"), float(sum(each.bytes_behind for each in status))
        yield ("tier", "seconds"), max(each.seconds_behind for each in status)


def _of_writers(
    writers: Iterable[WriterFacts], pulses: Mapping[str, Pulse], elapsed_s: float
) -> Iterator[tuple[Key, float]]:
    total = reduce(Pulse.plus, pulses.values(), Pulse())
    for name, value in measures(total, elapsed_s).items():
        yield ("writer", name), float("nan") if value is None else float(value)
    depths, behind = 0, 0
    for each in writers:
        depths += each.depth
        behind += each.unsynced_records
    yield ("writer", "depth"), float(depths)
    yield ("writer", "unsynced"), float(behind)


def measures(pulse: Pulse, elapsed_s: float) -> dict[str, Any]:
    """Returns what a writer did in an interval, as people read it."""
    return {
        "groups": pulse.groups / elapsed_s,
        "records": pulse.records / elapsed_s,
        "bytes": pulse.size_bytes / elapsed_s,
        "group_p50": percentile(pulse.group_requests, 0.5),
        "group_p99": percentile(pulse.group_requests, 0.99),
        "fsync_p50_us": percentile(pulse.sync_microseconds, 0.5),
        "fsync_p99_us": percentile(pulse.sync_microseconds, 0.99),
    }
