"""What `profile` measures of a run of records, in numbers that add up: task by task, in any order.

Sizes are those of key and value. A record is late by as much as its time is before the latest time
of the records before it in its partition: what a watermark would have to wait.

Keys are counted by the algorithm of Misra and Gries: exactly as long as there are at most
`KEYS_MAX` of them, and beyond that too low by at most `keys_error`, which is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

KEYS_MAX = 10_000
SIZE_EDGES = np.array([1 << power for power in range(31)], np.int64)
"""Bucket 0 is empty records; bucket n has sizes from 2^(n-1) up to 2^n."""
LATE_EDGES_MS = np.array([1, 1000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000], np.int64)
LATE_NAMES = (
    *("in order", "under 1 s", "1 s to 10 s", "10 s to 1 min", "1 min to 10 min"),
    *("10 min to 1 h", "1 h to 1 day", "over 1 day"),
)
_COUNTED = pa.schema([("key", pa.binary()), ("count", pa.int64())])

Numbers = NDArray[np.int64]


def _zeros(edges: Numbers) -> Numbers:
    return np.zeros(len(edges) + 1, np.int64)


@dataclass(slots=True)
class Measure:
    """The numbers of one partition."""

    records: int = 0
    size_bytes: int = 0
    tombstones: int = 0
    keyless: int = 0
    first_ms: int = 1 << 62
    last_ms: int = -(1 << 62)
    sizes: Numbers = field(default_factory=lambda: _zeros(SIZE_EDGES))
    sizes_bytes: Numbers = field(default_factory=lambda: _zeros(SIZE_EDGES))
    late: Numbers = field(default_factory=lambda: _zeros(LATE_EDGES_MS))
    late_max_ms: int = 0

    def add(self, batch: pa.RecordBatch, key: str, before_ms: int) -> None:
        """Measures records in the order of the log; `before_ms` is the latest time before them."""
        keys, values = batch.column(key), batch.column("value")
        sizes = _lengths(keys) + _lengths(values)
        times_ms = times_of(batch)
        self.records += batch.num_rows
        self.size_bytes += int(sizes.sum())
        self.tombstones += values.null_count
        self.keyless += keys.null_count
        bucket = np.searchsorted(SIZE_EDGES, sizes, side="right")
        self.sizes += np.bincount(bucket, minlength=len(self.sizes))
        self.sizes_bytes += np.bincount(bucket, sizes, len(self.sizes)).astype(np.int64)
        latest = np.maximum.accumulate(np.maximum(times_ms, max(before_ms, self.last_ms)))
        late_ms = latest - times_ms
        bucket = np.searchsorted(LATE_EDGES_MS, late_ms, side="right")
        self.late += np.bincount(bucket, minlength=len(self.late))
        self.late_max_ms = max(self.late_max_ms, int(late_ms.max()))
        self.first_ms = min(self.first_ms, int(times_ms.min()))
        self.last_ms = max(self.last_ms, int(times_ms.max()))

    def merge(self, other: Measure) -> None:
        """Adds another run of records of the same partition, or of another one."""
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.tombstones += other.tombstones
        self.keyless += other.keyless
        self.first_ms = min(self.first_ms, other.first_ms)
        self.last_ms = max(self.last_ms, other.last_ms)
        self.sizes = self.sizes + other.sizes
        self.sizes_bytes = self.sizes_bytes + other.sizes_bytes
        self.late = self.late + other.late
        self.late_max_ms = max(self.late_max_ms, other.late_max_ms)


class Keys:
    """How often each key is there; the rarest are forgotten when there are too many."""

    def __init__(self, limit: int = KEYS_MAX) -> None:
        self._limit = limit
        self._counted = _COUNTED.empty_table()
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self.error = 0

    def add(self, keys: pa.Array) -> None:
        """Counts the keys of a batch; no key is none."""
        found = pc.value_counts(keys.drop_null().cast(pa.binary()))
        self._hold(pa.table([found.field("values"), found.field("counts")], schema=_COUNTED))

    def merge(self, other: Keys) -> None:
        """Adds what another one counted."""
        other._settle()
        self._hold(other._counted)
        self._settle()
        self.error += other.error

    def top(self, count: int) -> list[tuple[bytes, int]]:
        """Returns the most frequent keys with their counts, each too low by at most `error`."""
        self._settle()
        ordered = self._counted.sort_by([("count", "descending"), ("key", "ascending")])
        first = ordered.slice(0, count)
        return list(zip(first["key"].to_pylist(), first["count"].to_pylist(), strict=True))

    @property
    def distinct(self) -> int:
        """How many keys are remembered; all of them, if `error` is 0."""
        self._settle()
        return int(self._counted.num_rows)

    def _hold(self, counted: pa.Table) -> None:
        self._held.append(counted)
        self._held_rows += counted.num_rows
        if self._held_rows > 4 * self._limit:
            self._settle()

    def _settle(self) -> None:
        if not self._held:
            return
        joined = pa.concat_tables([self._counted, *self._held])
        summed = joined.group_by("key").aggregate([("count", "sum")])
        summed = pa.table([summed["key"], summed["count_sum"]], schema=_COUNTED)
        self._held, self._held_rows = [], 0
        if summed.num_rows > self._limit:
            counts = summed["count"].to_numpy()
            cut = int(np.partition(counts, -self._limit - 1)[-self._limit - 1])
            self.error += cut
            lower = summed.set_column(1, "count", pa.chunked_array([counts - cut]))
            summed = lower.filter(pc.greater(lower["count"], 0))
        self._counted = summed


def times_of(batch: pa.RecordBatch) -> Numbers:
    """Returns the times of records in milliseconds."""
    microseconds: Numbers = batch.column("timestamp").cast(pa.int64()).to_numpy()
    return microseconds // 1000


def _lengths(column: pa.Array) -> Numbers:
    lengths: Numbers = pc.fill_null(pc.binary_length(column), 0).to_numpy()
    return lengths.astype(np.int64)
