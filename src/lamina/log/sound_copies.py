"""What takes the place of damaged records: frames that are sound, and copies that the archive has.

Shared by segmented and wal topics, each of which writes them into its own kind of file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import RecordsMissing
from lamina.formats.ranges import Ranges, Span
from lamina.formats.scan import Limit
from lamina.log.batch_offsets import runs
from lamina.log.cold import Cold, in_objects
from lamina.log.gap_walk import scan_over

BATCH = Limit(max_records=1 << 16, max_bytes=4 << 20)


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


def covered(pieces: Iterable[Piece]) -> Ranges:
    """Returns the offsets that pieces have."""
    return Ranges.of((piece.first, piece.end) for piece in pieces)


def archived(cold: Cold | None, span: Span) -> Iterator[pa.RecordBatch]:
    """Yields what the archive has of a range: each batch without a hole, damage stepped over."""
    first, end = span
    if cold is None:
        return
    if not cold.is_loaded:
        cold.load()
    for step in scan_over(lambda at: in_objects(cold, at, end, BATCH), first, end):
        if not isinstance(step, RecordsMissing):
            yield from runs(step)
