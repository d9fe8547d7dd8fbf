"""Which segments a partition has at one moment, and how far its readers may look.

Rule: a layout is an immutable value, replaced as a whole, so that a roll or a trim confuses no
reader; only the two bounds of its tail move, and only forward.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from lamina.api import Isolation
from lamina.log.layers import Kind, Layer, below
from lamina.log.sealed_segment import SealedSegment
from lamina.log.segment import Bound, Segment
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


class SegmentLayer(Layer):
    """A segment as a layer: its end is the bound up to which its readers may look."""

    __slots__ = ()
    source: Segment

    @property
    def bound(self) -> Bound:
        """How far readers may look into the segment."""
        return Bound(self.next_offset, self.size_bytes)


_BASE = attrgetter("base_offset")


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

    def layers(self, isolation: Isolation, archived_end: int, floor: int = 0) -> list[SegmentLayer]:
        """Returns the local part of the pile.

        The archive has everything below `archived_end`, and what is below `floor` was deleted.
        """
        found = []
        for each in self.sealed:
            (end, size_bytes), first = each.end, each.base_offset
            gone, is_there = below(floor, first, end), end <= archived_end
            found.append(SegmentLayer(Kind.SEALED, first, end, size_bytes, each, gone, is_there))
        active, (end, size_bytes) = self.active, self.end(isolation)
        first = active.base_offset
        gone = below(floor, first, end)
        return [*found, SegmentLayer(Kind.ACTIVE, first, end, size_bytes, active.segment, gone)]

    def layer_for(self, offset: int, isolation: Isolation) -> SegmentLayer | None:
        """Returns the layer that holds an offset, or else the next one; None behind the last."""
        sealed, active = self.sealed, self.active
        if sealed and offset < sealed[-1].next_offset:
            row = max(bisect_right(sealed, offset, key=_BASE) - 1, 0)
            each = sealed[row] if offset < sealed[row].next_offset else sealed[row + 1]
            end, size_bytes = each.end
            return SegmentLayer(Kind.SEALED, each.base_offset, end, size_bytes, each)
        end, size_bytes = active.durable if isolation == "durable" else active.written
        if offset >= end:
            return None
        return SegmentLayer(Kind.ACTIVE, active.base_offset, end, size_bytes, active.segment)
