"""Which records of a log a sparse index points to: one policy for live writing and rebuilding.

The first record of a file is indexed, then every record that starts `bytes` or more past the last
indexed one, or is the `records`-th after it, whichever comes first. What the policy must remember
between two batches is a small frozen value, passed in and returned:

    offsets, times, state = select(positions, timestamps, START, stride, base_offset=0, origin=0)
    offsets, times, state = select(more_positions, more_timestamps, state, stride, ...)

Rules.
1. The same records yield the same entries, however they are cut into batches: an index that was
   written live and one that was rebuilt at once are the same bytes.
2. To continue the index of a file, select over its records from the last indexed one on, from
   START (that one is chosen again; drop it): the state is then the one the writer had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.kernels.declare import kernel_at_once

if TYPE_CHECKING:
    from typing_extensions import Buffer

OFFSET_ENTRY = np.dtype(
    [
        ("offset", np.int64),
        ("position", np.int64),
    ]
)
TIME_ENTRY = np.dtype(
    [
        ("timestamp_ms", np.int64),
        ("offset", np.int64),
    ]
)
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


class Sparse(NamedTuple):
    """Where the policy stands after some records of a file.

    `position` is the byte of the last indexed record, None before the first. `records` counts from
    that record on, itself included. `maximum_ms` is the greatest timestamp of all records, None
    before the first.
    """

    position: int | None = None
    records: int = 0
    maximum_ms: int | None = None


START = Sparse()
"""The state before the first record of a file."""


def select(
    positions: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    state: Sparse,
    stride: Stride,
    *,
    base_offset: int,
    origin: int,
) -> tuple[Entries, Entries, Sparse]:
    """Returns the entries that the next records of a file add to both indexes, and the new state.

    `positions` ascend, one per record, counted from byte `origin` of the file; so what `encode`
    returns goes in as it is, with the position at which the batch is written as origin. The records
    have consecutive offsets from `base_offset`. The time of an entry is the greatest one up to and
    including its record.
    """
    most = _most_entries(positions, stride)
    offsets, times = np.empty(most, dtype=OFFSET_ENTRY), np.empty(most, dtype=TIME_ENTRY)
    last = -1 if state.position is None else state.position
    greatest = _SMALLEST if state.maximum_ms is None else state.maximum_ms
    count, last, seen, greatest = _select(
        positions,
        timestamps,
        (last, state.records, greatest),
        (stride.bytes, stride.records or _NEVER),
        (base_offset, origin),
        (offsets.view(np.int64), times.view(np.int64)),
    )
    if len(positions) == 0:
        return offsets, times, state
    return offsets[:count], times[:count], Sparse(last, seen, greatest)


def _most_entries(positions: NDArray[np.int64], stride: Stride) -> int:
    """At least as many as `_select` chooses, and not many more: they are kept as they are."""
    rows = len(positions)
    if rows <= 1:
        return rows
    by_bytes = int(positions[-1] - positions[0]) // stride.bytes
    by_records = rows // stride.records if stride.records else 0
    return min(rows, by_bytes + by_records + 1)


@kernel_at_once(lambda positions, *_: len(positions))
def _select(
    positions: Any, timestamps: Any, state: Any, stride: Any, bases: Any, entries: Any
) -> tuple[int, int, int, int]:
    last, seen, greatest = state
    stride_bytes, stride_records = stride
    base_offset, origin = bases
    offsets, times = entries
    count = 0
    for row in range(len(positions)):
        position = origin + positions[row]
        greatest = max(greatest, timestamps[row])
        if last < 0 or position - last >= stride_bytes or seen >= stride_records:
            offsets[2 * count] = times[2 * count + 1] = base_offset + row
            offsets[2 * count + 1] = position
            times[2 * count] = greatest
            count += 1
            last = position
            seen = 0
        seen += 1
    return count, last, seen, greatest


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
