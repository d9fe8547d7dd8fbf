"""What one share consumer holds of a partition: three columns, and how it names parts of them.

A group's journal knows which records are held and under which epoch, not by which consumer. Code
that hands records to consumers that may only settle their own keeps a `Holding` for each of them.
It only records what was handed over: whether a lease still runs is decided by the journal's state
(`verdicts`).

    acquired ──▶ with_more ──▶ rows_of(ranges that the consumer names) ──▶ settle ──▶ without

Rule: a consumer may name ranges of any size. The work they cause is bounded by what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.groups.state import NONE, Chosen, Numbers, expand

Rows: TypeAlias = NDArray[np.intp]


def _none() -> Numbers:
    return NONE


@dataclass(frozen=True, slots=True)
class Holding:
    """Records with a lease each, by ascending offsets."""

    offsets: Numbers = field(default_factory=_none)
    epochs: Numbers = field(default_factory=_none)
    deadlines_ms: Numbers = field(default_factory=_none)

    def with_more(self, chosen: Chosen, deadline_ms: int, now_ms: int) -> Holding:
        """Returns this with more records, or with a later lease of the same; expired ones go."""
        kept = np.flatnonzero((self.deadlines_ms > now_ms) & ~np.isin(self.offsets, chosen.offsets))
        deadlines_ms = np.full(len(chosen.offsets), deadline_ms, dtype=np.int64)
        columns = (
            np.concatenate((self.offsets[kept], chosen.offsets)),
            np.concatenate((self.epochs[kept], chosen.epochs)),
            np.concatenate((self.deadlines_ms[kept], deadlines_ms)),
        )
        order = np.argsort(columns[0], kind="stable")
        return Holding(*(column[order] for column in columns))

    def rows_of(self, firsts: Numbers, lasts: Numbers) -> tuple[Rows, Numbers] | None:
        """Returns the rows of ranges of offsets and how many each has; None if one is not held.

        The ranges ascend and do not overlap; both ends are part of them.
        """
        low = np.searchsorted(self.offsets, firsts)
        high = np.searchsorted(self.offsets, lasts, side="right")
        lengths = (high - low).astype(np.int64)
        if (lengths - 1 != lasts - firsts).any():
            return None
        return expand(low.astype(np.int64), high.astype(np.int64)), lengths

    def only(self, rows: Rows) -> Chosen:
        """Returns some of the records, as a group takes them."""
        return Chosen(self.offsets[rows], self.epochs[rows])

    def _still(self, chosen: Chosen) -> Rows:
        """Returns the rows of those records that are held under the same epochs as then."""
        rows = np.searchsorted(self.offsets, chosen.offsets)
        inside = rows < len(self.offsets)
        rows, offsets, epochs = rows[inside], chosen.offsets[inside], chosen.epochs[inside]
        found: Rows = rows[(self.offsets[rows] == offsets) & (self.epochs[rows] == epochs)]
        return found

    def without(self, chosen: Chosen) -> Holding:
        """Returns this without some records; what was acquired again since stays."""
        kept = np.ones(len(self.offsets), dtype=np.bool_)
        kept[self._still(chosen)] = False
        return Holding(self.offsets[kept], self.epochs[kept], self.deadlines_ms[kept])

    def renewed(self, chosen: Chosen, deadline_ms: int) -> Holding:
        """Returns this with another deadline for some records."""
        deadlines_ms = self.deadlines_ms.copy()
        deadlines_ms[self._still(chosen)] = deadline_ms
        return Holding(self.offsets, self.epochs, deadlines_ms)
