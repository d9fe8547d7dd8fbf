"""Which segments a partition has at one moment, and how far its readers may look.

Rule: a layout is an immutable value, replaced as a whole, so that a roll or a trim confuses no
reader; only the two bounds of its tail move, and only forward.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from lamina.api import Isolation
from lamina.log.segment import Bound, SealedSegment, Segment
from lamina.log.segment_index import SegmentIndex


class Tail(Protocol):
    """The last segment as readers see it: two bounds, which only move forward."""

    @property
    def base_offset(self) -> int:
        """The first offset that it may hold."""

    @property
    def written(self) -> Bound:
        """What readers of written records may see."""

    @property
    def durable(self) -> Bound:
        """What readers of durable records may see."""

    @property
    def segment(self) -> Segment:
        """The segment to read from."""

    @property
    def index(self) -> SegmentIndex:
        """The segment's indexes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The segments of a partition at one moment, oldest first."""

    sealed: tuple[SealedSegment, ...]
    active: Tail

    @property
    def earliest_offset(self) -> int:
        """The first offset that any segment may hold."""
        return self.sealed[0].base_offset if self.sealed else self.active.base_offset

    def end(self, isolation: Isolation) -> Bound:
        """How far readers of an isolation may look."""
        return self.active.durable if isolation == "durable" else self.active.written

    def segment_for(self, offset: int, isolation: Isolation) -> tuple[Segment, Bound] | None:
        """Returns the segment that holds an offset, or the next one, and its bound."""
        row = bisect_right([segment.base_offset for segment in self.sealed], offset) - 1
        for segment in self.sealed[max(row, 0) :]:
            if offset < segment.next_offset:
                return segment, segment.end
        end = self.end(isolation)
        return (self.active.segment, end) if offset < end.next_offset else None
