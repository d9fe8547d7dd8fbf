"""What takes the place of damaged records: frames that are sound, and copies that the archive has.

The same for both families of topics, which put them into files of their own kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import RecordsMissing
from lamina.formats.scan import Limit
from lamina.log.batch_offsets import after, runs
from lamina.log.cold import Cold

BATCH = Limit(max_records=1 << 16, max_bytes=4 << 20)

Span: TypeAlias = tuple[int, int]
"""Offsets, from the first to one past the last."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What became of the records that a segment did not have any more."""

    restored: tuple[Span, ...]
    lost: tuple[Span, ...]

    def __str__(self) -> str:
        said = []
        if self.restored:
            said.append(f"taken from the archive: {_named(self.restored)}")
        if self.lost:
            said.append(f"entered as lost: {_named(self.lost)}")
        return "; ".join(said) or "no record was lost"


def _named(spans: tuple[Span, ...]) -> str:
    return ", ".join(f"{first} to {end}" for first, end in spans)


class Piece(NamedTuple):
    """Frames of records that follow each other, and where each begins."""

    first: int
    data: memoryview
    positions: NDArray[np.int64]

    @property
    def end(self) -> int:
        """One past the last record's offset."""
        return self.first + len(self.positions)


def holes(pieces: Sequence[Piece], first: int, end: int) -> Iterator[Span]:
    """Yields the offsets of a range that no piece, in their order, has."""
    for piece in pieces:
        if first < piece.first:
            yield first, piece.first
        first = max(first, piece.end)
    if first < end:
        yield first, end


def joined(pieces: Sequence[Piece]) -> Iterator[Span]:
    """Yields the offsets of pieces, in their order, neighbours as one."""
    first = end = -1
    for piece in pieces:
        if piece.first != end:
            if first >= 0:
                yield first, end
            first = piece.first
        end = piece.end
    if first >= 0:
        yield first, end


def archived(cold: Cold | None, span: Span) -> Iterator[pa.RecordBatch]:
    """Yields what the archive has of a range: each batch without a hole, damage stepped over."""
    first, end = span
    if cold is None:
        return
    if not cold.is_loaded:
        cold.load()
    while first < end:
        entry = cold.entry_for(first)
        if entry is None:
            following = cold.next_base(first)
            first = end if following is None else max(following, first + 1)
            continue
        stop = min(end, entry.next_offset)
        try:
            for batch in cold.scan(first, stop, BATCH):
                yield from runs(batch)
                first = after(batch)
            first = stop
        except RecordsMissing as missing:
            first = max(missing.end, first + 1)
