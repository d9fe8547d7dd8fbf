"""Which records of a log a sparse index points at: one policy for live writing and rebuilding.

The first record of a file is indexed, then every record that starts `bytes` or more past the last
indexed one, or is the `records`-th after it, whichever comes first. What the policy must remember
between two batches is a small frozen value, passed in and returned:

    rows, state = select(positions, START, stride, origin=0)
    rows, state = select(more_positions, state, stride, origin=position_of_the_batch_in_the_file)

Rules.
1. The same records give the same rows, however they are cut into batches: an index that was written
   live and one that was rebuilt at once are the same bytes.
2. To continue the index of a file, select over its records from the last indexed one on, from
   START (that one is chosen again; drop it): the state is then the one the writer had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats.binary import as_bytes
from lamina.formats.compile import kernel

if TYPE_CHECKING:
    from typing_extensions import Buffer

Rows: TypeAlias = NDArray[np.int64]
Entries: TypeAlias = NDArray[np.void]
"""The entries of an index, as a structured array."""

_NEVER = np.iinfo(np.int64).max
_SMALLEST = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Stride:
    """How far apart indexed records are; `records` None counts bytes only."""

    bytes: int
    records: int | None = None

    def __post_init__(self) -> None:
        if self.bytes <= 0 or (self.records is not None and self.records <= 0):
            raise ValueError(f"strides must be positive, got {self}")


@dataclass(frozen=True, slots=True)
class Sparse:
    """Where the policy stands after some records of a file.

    `position` is the byte of the last indexed record, None before the first. `records` counts from
    that record on, itself included.
    """

    position: int | None = None
    records: int = 0


START = Sparse()
"""The state before the first record of a file."""


def select(
    positions: NDArray[np.int64], state: Sparse, stride: Stride, *, origin: int = 0
) -> tuple[Rows, Sparse]:
    """Chooses the rows to index among the next records of a file, and the state after them.

    `positions` ascend, one a record, counted from byte `origin` of the file; so what `encode`
    returns goes in as it is, with the position at which the batch is written as origin.
    """
    rows = np.empty(len(positions), dtype=np.int64)
    last = -1 if state.position is None else state.position
    records = _NEVER if stride.records is None else stride.records
    count, last, seen = _select(
        positions, origin, (last, state.records), (stride.bytes, records), rows
    )
    return rows[:count], Sparse(None if last < 0 else last, seen)


@kernel
def _select(
    positions: Any, origin: int, state: Any, stride: Any, rows: Any
) -> tuple[int, int, int]:
    last, seen = state
    stride_bytes, stride_records = stride
    count = 0
    for row in range(len(positions)):
        position = origin + positions[row]
        if last < 0 or position - last >= stride_bytes or seen >= stride_records:
            rows[count] = row
            count += 1
            last = position
            seen = 0
        seen += 1
    return count, last, seen


def running_maximum(
    timestamps: NDArray[np.int64], rows: Rows, before: int | None
) -> tuple[NDArray[np.int64], int | None]:
    """Gives the greatest timestamp up to and including each row, and the greatest of all.

    `before` is what the previous batch of the file returned, None at its first record.
    """
    maxima = np.empty(len(rows), dtype=np.int64)
    after = int(_maxima(timestamps, rows, _SMALLEST if before is None else before, maxima))
    return maxima, before if len(timestamps) == 0 else after


@kernel
def _maxima(timestamps: Any, rows: Any, greatest: int, maxima: Any) -> int:
    wanted = 0
    for row in range(len(timestamps)):
        greatest = max(greatest, timestamps[row])
        if wanted < len(rows) and rows[wanted] == row:
            maxima[wanted] = greatest
            wanted += 1
    return greatest


def decode_entries(
    buffer: Buffer,
    entry: np.dtype[np.void],
    *,
    rising: tuple[str, ...],
    level: tuple[str, ...] = (),
) -> Entries:
    """Views the entries of an index, checking each field against the entry before.

    A `rising` field starts at 0 or above and grows; a `level` one only never falls. Raises
    CorruptData at the first entry that breaks this, or where the last one is cut.
    """
    size = memoryview(buffer).nbytes
    cut = size % entry.itemsize
    if cut:
        raise CorruptData(
            "the index ends inside an entry",
            position=size - cut,
            expected=f"a multiple of {entry.itemsize} bytes",
            found=f"{size} bytes",
        )
    entries: Entries = as_bytes(buffer).view(entry)
    for name in rising:
        values = entries[name]
        _refuse_first(entries, name, np.flatnonzero(values[:1] < 0))
        _refuse_first(entries, name, np.flatnonzero(values[1:] <= values[:-1]) + 1)
    for name in level:
        values = entries[name]
        _refuse_first(entries, name, np.flatnonzero(values[1:] < values[:-1]) + 1)
    return entries


def _refuse_first(entries: Entries, name: str, wrong: NDArray[np.int64]) -> None:
    if len(wrong):
        row = int(wrong[0])
        raise CorruptData(
            f"the {name} of index entry {row} does not continue the one before",
            position=row * entries.dtype.itemsize,
            expected=f"{name} after {entries[name][row - 1]}" if row else f"{name} of at least 0",
            found=str(entries[name][row]),
        )
