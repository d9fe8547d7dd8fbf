"""What a writer has done since it was made, in numbers that only grow: for metrics and pages.

Sizes and durations are counted in buckets a quarter of a doubling wide, so that percentiles of any
interval are the difference of two copies, and nothing is kept for a single commit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

BUCKETS = 112
"""Enough for 2**29: nine minutes in microseconds."""


BOUNDS: tuple[int, ...] = (
    *range(8),
    *((4 + step) << bits for bits in range(1, 27) for step in range(4)),
)
"""The smallest amount of each bucket: exact up to 7, then four buckets per doubling."""


def bucket_of(amount: int) -> int:
    """Returns the bucket of an amount: the last one for whatever is beyond it."""
    return bisect_right(BOUNDS, amount) - 1


def least_of(bucket: int) -> int:
    """Returns the smallest amount of a bucket."""
    return BOUNDS[bucket]


def percentile(counts: Sequence[int], share: float) -> int | None:
    """Returns the amount that a share of what was counted does not exceed; None of nothing."""
    total = sum(counts)
    if total <= 0:
        return None
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= share * total:
            return least_of(bucket)
    return least_of(len(counts) - 1)


def _none() -> list[int]:
    return [0] * BUCKETS


@dataclass(slots=True)
class Pulse:
    """Counts of one writer: its group commits, what was in them, and how long its fsyncs took."""

    groups: int = 0
    requests: int = 0
    records: int = 0
    size_bytes: int = 0
    syncs: int = 0
    group_requests: list[int] = field(default_factory=_none)
    sync_microseconds: list[int] = field(default_factory=_none)

    def copy(self) -> Pulse:
        """Returns the counts as they are now."""
        return Pulse(
            self.groups,
            self.requests,
            self.records,
            self.size_bytes,
            self.syncs,
            list(self.group_requests),
            list(self.sync_microseconds),
        )

    def minus(self, before: Pulse) -> Pulse:
        """Returns what was counted since a copy was taken."""
        return Pulse(
            self.groups - before.groups,
            self.requests - before.requests,
            self.records - before.records,
            self.size_bytes - before.size_bytes,
            self.syncs - before.syncs,
            _less(self.group_requests, before.group_requests),
            _less(self.sync_microseconds, before.sync_microseconds),
        )

    def plus(self, other: Pulse) -> Pulse:
        """Returns the counts of two writers together."""
        return self.minus(Pulse().minus(other))


def _less(now: list[int], before: list[int]) -> list[int]:
    return [late - early for late, early in zip(now, before, strict=True)]
