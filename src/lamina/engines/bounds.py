"""What a filter allows, found by asking Arrow: which partitions, which offsets, since when.

Arrow can prove that a filter is false for all records that fulfil a guarantee (`_offset <= 7`):
that is how it skips files of a partitioned dataset. Moving the bound of such a guarantee makes it
cover more records, so the last bound for which the proof succeeds is found by bisection, in some
sixty questions of about 50 microseconds each. Filters are never parsed here, so that pruning gets
better whenever Arrow learns to simplify more. What is known of a layer (its offsets, its least and
its greatest time) is a guarantee, too, and one question covers all layers.

Rules.
1. A bound is returned only if Arrow proved that nothing beyond it can match.
2. Nothing is read: the files in a question do not exist, and are never opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pd
from pyarrow.fs import LocalFileSystem

from lamina.api import SegmentFacts
from lamina.engines.table_columns import OFFSET, PARTITION, TIMESTAMP
from lamina.records import FARTHEST_MS

Expression: TypeAlias = Any
"""A `pyarrow.compute.Expression`."""

OFFSETS = 0, (1 << 63) - 1
TIMES_US = -(1 << 63) + 1, (1 << 63) - 1
"""The bounds of a timestamp in microseconds; the least int64 is no time in some engines."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a filter may be true for in one partition: offsets `[first, end)`, from a time on.

    `first_us` is None where the filter says nothing about how old a record may be.
    """

    first: int = 0
    end: int = OFFSETS[1]
    first_us: int | None = None

    @property
    def first_ms(self) -> int:
        """The first time, rounded down to milliseconds; the least there is without a bound."""
        return (TIMES_US[0] if self.first_us is None else self.first_us) // 1000

    def within(self, extent: tuple[int, int]) -> tuple[int, int]:
        """Returns the part of an extent that lies within; `first >= end` if there is none."""
        return max(self.first, extent[0]), min(self.end, extent[1])

    def is_searched_in(self, range: tuple[int, int], layers: Sequence[SegmentFacts]) -> bool:
        """Returns whether a search for the first time would begin within a range of offsets.

        The search reads records of the first layer that is new enough. If that layer is outside the
        range, searching would read more than it saves.
        """
        if self.first_us is None:
            return False
        for each in layers:
            newest_ms = each.newest_timestamp_ms
            if newest_ms is None or newest_ms >= self.first_ms:
                return each.base_offset < range[1] and range[0] < each.next_offset
        return False


class Pruner:
    """A filter over a topic's columns, or none, and what can be proved about it."""

    def __init__(self, schema: pa.Schema, filter: Expression | None) -> None:
        self._schema = schema
        self._filter = filter
        self._format = pd.ParquetFileFormat()
        self._files = LocalFileSystem()

    @property
    def is_about_time(self) -> bool:
        """Whether the filter is about time: then the times of layers may exclude some of them."""
        return is_filtered_by(self._schema, self._filter, TIMESTAMP)

    def bounds(self, partition: int) -> Bounds | None:
        """Returns what may match in a partition; None if nothing can."""
        if self._filter is None:
            return Bounds()
        here = pc.field(PARTITION) == pa.scalar(partition, pa.int32())
        if not self._may_match(here):
            return None
        first = self._least(here, OFFSET, pa.int64(), OFFSETS)
        last = self._greatest(here, OFFSET, pa.int64(), OFFSETS)
        kind = self._schema.field(TIMESTAMP).type
        first_us = self._least(here, TIMESTAMP, kind, TIMES_US)
        if first is None or last is None or first_us is None or first > last:
            return None
        since = None if first_us == TIMES_US[0] else first_us
        return Bounds(first, min(last, OFFSETS[1] - 1) + 1, since)

    def ranges(
        self, partition: int, extent: tuple[int, int], layers: Sequence[SegmentFacts]
    ) -> list[tuple[int, int]]:
        """Returns which offsets of an extent may match, by what is known of its layers.

        Offsets outside all layers may match. Adjacent ranges are joined.
        """
        here = pc.field(PARTITION) == pa.scalar(partition, pa.int32())
        kind = self._schema.field(TIMESTAMP).type
        left = self._matching([here & _known_of(each, kind) for each in layers])
        found, at = [], extent[0]
        for number, each in enumerate(layers):
            if number not in left:
                found.append((at, min(each.base_offset, extent[1])))
                at = max(at, each.next_offset)
        found.append((at, extent[1]))
        return [(first, end) for first, end in found if first < end]

    def _may_match(self, guarantee: Expression) -> bool:
        """Returns False only if no record that fulfils the guarantee can pass the filter."""
        return bool(self._matching([guarantee]))

    def _matching(self, guarantees: Sequence[Expression]) -> set[int]:
        """Returns the places of those guarantees under which a record may pass the filter."""
        imagined = [
            self._format.make_fragment(str(number), self._files, partition_expression=each)
            for number, each in enumerate(guarantees)
        ]
        files = pd.FileSystemDataset(imagined, self._schema, self._format, self._files)
        return {int(each.path) for each in files.get_fragments(self._filter)}

    def _least(
        self, here: Expression, name: str, kind: pa.DataType, limits: tuple[int, int]
    ) -> int | None:
        """Returns the least value of a column that may match; None if none can."""

        def reaches(value: int) -> bool:
            return self._may_match(here & (pc.field(name) <= pa.scalar(value, kind)))

        return bisected(reaches, *limits)

    def _greatest(
        self, here: Expression, name: str, kind: pa.DataType, limits: tuple[int, int]
    ) -> int | None:
        """Returns the greatest value of a column that may match; None if none can."""

        def reaches(value: int) -> bool:
            return self._may_match(here & (pc.field(name) >= pa.scalar(-value, kind)))

        found = bisected(reaches, -limits[1], -limits[0])
        return None if found is None else -found


def is_filtered_by(schema: pa.Schema, filter: Expression | None, name: str) -> bool:
    """Returns whether a filter refers to a column: without the column it cannot be applied."""
    if filter is None:
        return False
    without = pa.schema([field for field in schema if field.name != name])
    try:
        without.empty_table().filter(filter)
    except pa.ArrowInvalid:
        return True
    return False


def _known_of(layer: SegmentFacts, kind: pa.DataType) -> Expression:
    """Returns what holds for every record of a layer."""
    known = (pc.field(OFFSET) >= layer.base_offset) & (pc.field(OFFSET) < layer.next_offset)
    least, greatest = layer.least_timestamp_ms, layer.newest_timestamp_ms
    if least is not None:
        known &= pc.field(TIMESTAMP) >= pa.scalar(_microseconds(least), kind)
    if greatest is not None:
        known &= pc.field(TIMESTAMP) <= pa.scalar(_microseconds(greatest), kind)
    return known


def _microseconds(time_ms: int) -> int:
    return max(-FARTHEST_MS, min(time_ms, FARTHEST_MS)) * 1000


def narrowed(
    bounds: Bounds, extent: tuple[int, int], offset_for_time: Callable[[int], int | None]
) -> tuple[int, int] | None:
    """Returns the offsets of a partition that bounds leave of its extent; None if there are none.

    `offset_for_time` finds the first record at or after a time in milliseconds: all records before
    that one are too old.
    """
    first, end = bounds.within(extent)
    if first < end and bounds.first_us is not None:
        found = offset_for_time(bounds.first_ms)
        first = end if found is None else max(first, found)
    return (first, end) if first < end else None


def bisected(reaches: Callable[[int], bool], low: int, high: int) -> int | None:
    """Returns the least value that something reaches; None if not even the greatest does."""
    if reaches(low):
        return low
    if not reaches(high):
        return None
    while high - low > 1:  # `low` is proved not to match, `high` may
        middle = (low + high) // 2
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high
