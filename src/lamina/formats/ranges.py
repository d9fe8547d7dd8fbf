"""A set of offsets as merged ranges: what was deleted, what is missing, what a piece holds.

Immutable, and the only place where ranges are joined, cut and subtracted. The set is one ascending
array of bounds, start and end in turn: an offset is in it if an odd number of bounds is at or below
it. So ten million consecutive deleted offsets cost sixteen bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Span: TypeAlias = tuple[int, int]
"""Offsets, from the first to one past the last."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges [from, to) that neither touch nor overlap, ascending."""

    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: Iterable[Span]) -> Ranges:
        """Makes the union of any ranges."""
        array = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        return _merged(array[:, 0], array[:, 1])

    @classmethod
    def between(cls, first: int, end: int) -> Ranges:
        """Makes the set of one range; of nothing, where it has no offset."""
        return _merged(np.array([first], dtype=np.int64), np.array([end], dtype=np.int64))

    @classmethod
    def of_sequences(cls, sequences: NDArray[np.int64]) -> Ranges:
        """Makes the set of single sequences."""
        return _merged(sequences, sequences + 1)

    def __len__(self) -> int:
        return len(self.bounds) // 2

    def pairs(self) -> tuple[Span, ...]:
        """Returns the ranges as Python numbers."""
        numbers = self.bounds.tolist()
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))

    def count(self) -> int:
        """Returns how many sequences are in the set."""
        return int(self.bounds[1::2].sum() - self.bounds[::2].sum())

    def count_between(self, first: int, end: int) -> int:
        """Returns how many sequences from `first` to below `end` are in the set."""
        clipped = np.clip(self.bounds, first, max(first, end))
        return int(clipped[1::2].sum() - clipped[::2].sum())

    def contains(self, sequences: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns for each sequence whether it is in the set."""
        inside: NDArray[np.bool_] = np.searchsorted(self.bounds, sequences, side="right") % 2 == 1
        return inside

    def end_at(self, sequence: int) -> int:
        """Returns the first sequence from this one on that is not in the set."""
        row = int(np.searchsorted(self.bounds, sequence, side="right"))
        return int(self.bounds[row]) if row % 2 else sequence

    def union(self, other: Ranges) -> Ranges:
        """Returns what is in either."""
        if not len(other):
            return self
        both = np.concatenate([self.bounds, other.bounds])
        return _merged(both[::2], both[1::2])

    def common(self, other: Ranges) -> Ranges:
        """Returns what is in both."""
        if not len(self) or not len(other):
            return EMPTY
        points = np.unique(np.concatenate([self.bounds, other.bounds]))
        inside = np.flatnonzero(self.contains(points) & other.contains(points))
        return _merged(points[inside], points[inside + 1])

    def minus(self, other: Ranges) -> Ranges:
        """Returns what is in this one and not in the other."""
        if not len(self) or not len(other):
            return self
        points = np.unique(np.concatenate([self.bounds, other.bounds]))
        inside = np.flatnonzero(self.contains(points) & ~other.contains(points))
        return _merged(points[inside], points[inside + 1])

    def from_on(self, first: int) -> Ranges:
        """Returns what is in the set and not below a sequence."""
        if not len(self) or int(self.bounds[0]) >= first:
            return self
        row = int(np.searchsorted(self.bounds, first, side="right"))
        kept = self.bounds[row:]
        return Ranges(np.insert(kept, 0, first) if row % 2 else kept)


def _merged(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Ranges:
    real = starts < ends
    starts, ends = starts[real], ends[real]
    if not len(starts):
        return EMPTY
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    begins = np.concatenate([[True], starts[1:] > ends[:-1]])
    lasts = np.concatenate([begins[1:], [True]])
    bounds = np.empty(2 * int(begins.sum()), dtype=np.int64)
    bounds[::2], bounds[1::2] = starts[begins], ends[lasts]
    return Ranges(bounds)


EMPTY = Ranges(np.empty(0, dtype=np.int64))
