"""Derived: rebuilt from the .log. Frame time index (`<base_offset>.timeidx`), time to offset.

A plain run of entries without a header, one for each entry of the `.idx`, for the same record. All
integers little-endian.

    | at | size | field        | type | meaning                                     |
    |----|------|--------------|------|---------------------------------------------|
    |  0 |    8 | timestamp_ms | i64  | the greatest of all records up to this one  |
    |  8 |    8 | offset       | i64  | of the indexed record                       |

Awkward cases. Timestamps of records may go back; the running maximum never does, so that a binary
search stays right: it finds where a time was first reached. If the file is wrong or lost, looking
up a time starts at the beginning of the segment or is rebuilt first; no record is lost.

Rules.
1. Timestamps never fall and offsets grow from entry to entry.
2. Live writing and rebuilding go through `extend`, so that both give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from lamina.formats.binary import address_of, as_bytes, peek_i64
from lamina.formats.compile import kernel
from lamina.formats.frame import index, log
from lamina.formats.sparse import START, Entries, Rows, decode_entries, running_maximum

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY = np.dtype(
    [
        ("timestamp_ms", "<i8"),
        ("offset", "<i8"),
    ]
)

_TIMESTAMP = log.HEADER.at("timestamp_ms")


def encode(entries: Entries) -> bytes:
    """Encodes entries; the bytes of several runs may be joined."""
    return entries.astype(ENTRY, copy=False).tobytes()


def decode(buffer: Buffer) -> Entries:
    """Views the bytes of a time index as entries; raises CorruptData where they go back."""
    return decode_entries(buffer, ENTRY, rising=("offset",), level=("timestamp_ms",))


def extend(
    timestamps: NDArray[np.int64], rows: Rows, maximum_ms: int | None, *, base_offset: int
) -> tuple[Entries, int | None]:
    """Gives the entries that the next records of a file add, and the greatest timestamp so far.

    `rows` are those that `index.extend` chose; `maximum_ms` is None before the first record.
    """
    maxima, after = running_maximum(timestamps, rows, maximum_ms)
    entries = np.empty(len(rows), dtype=ENTRY)
    entries["timestamp_ms"] = maxima
    entries["offset"] = rows + base_offset
    return entries, after


def first_offset_at_or_after(entries: Entries, timestamp_ms: int) -> int | None:
    """Returns the offset to scan from for the first record at or after a time.

    All records up to the last entry below that time are older, so the scan starts behind it; at the
    first record where no entry is below. None means that the index is empty.
    """
    if len(entries) == 0:
        return None
    row = int(np.searchsorted(entries["timestamp_ms"], timestamp_ms, side="left")) - 1
    return int(entries["offset"][0]) if row < 0 else int(entries["offset"][row]) + 1


def agrees(entries: Entries, index_entries: Entries) -> bool:
    """Tells whether a time index has an entry for each entry of the `.idx`, and no other."""
    return bool(np.array_equal(entries["offset"], index_entries["offset"]))


def rebuild(buffer: Buffer) -> Entries:
    """Makes the time index of a whole `.log` anew, over damaged spots too."""
    parts, state, maximum_ms = [np.empty(0, dtype=ENTRY)], START, None
    for found, base_offset in index.runs(buffer):
        _, rows, state = index.extend(found.positions, state, base_offset=base_offset)
        timestamps = timestamps_at(buffer, found.positions)
        entries, maximum_ms = extend(timestamps, rows, maximum_ms, base_offset=base_offset)
        parts.append(entries)
    return cast("Entries", np.concatenate(parts))


def timestamps_at(buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads the timestamps of frames that a scan of the same buffer found, and nothing else."""
    timestamps = np.empty(len(positions), dtype=np.int64)
    _timestamps(as_bytes(buffer), positions, timestamps)
    return timestamps


@kernel
def _timestamps(data: Any, positions: Any, timestamps: Any) -> None:
    origin = address_of(data)
    for row in range(len(positions)):
        timestamps[row] = peek_i64(origin + positions[row] + _TIMESTAMP)
