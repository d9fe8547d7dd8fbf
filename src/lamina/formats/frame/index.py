"""Derived: rebuilt from the .log. Frame offset index (`<base_offset>.idx`), offset to position.

A plain run of entries without a header. All integers little-endian.

    | at | size | field        | type | meaning                                     |
    |----|------|--------------|------|---------------------------------------------|
    |  0 |    8 | offset       | i64  | of an indexed frame                         |
    |  8 |    8 | position     | i64  | the byte of the `.log` where it starts      |

The first frame is indexed, then the frames that start 4 KiB or 100 records past the last indexed
one, whichever comes first.

Awkward cases. Without a header or checksum a wrong index can look right: `agrees` must hold before
one is used. If one is wrong all the same, a read starts at a byte that is no frame with the wanted
offset, and fails; it never returns a wrong record.

Rules.
1. Both fields grow from entry to entry.
2. Live writing and rebuilding go through `extend`, so that both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from lamina.formats.frame import log
from lamina.formats.scan import Limit, Scan
from lamina.formats.sparse import START, Entries, Rows, Sparse, Stride, decode_entries, select

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY = np.dtype(
    [
        ("offset", "<i8"),
        ("position", "<i8"),
    ]
)
STRIDE = Stride(bytes=4 << 10, records=100)


def encode(entries: Entries) -> bytes:
    """Encodes entries; the bytes of several runs may be joined."""
    return entries.astype(ENTRY, copy=False).tobytes()


def decode(buffer: Buffer) -> Entries:
    """Views the bytes of an index as entries; raises CorruptData where they do not grow."""
    return decode_entries(buffer, ENTRY, rising=("offset", "position"))


def extend(
    positions: NDArray[np.int64], state: Sparse, *, base_offset: int, origin: int = 0
) -> tuple[Entries, Rows, Sparse]:
    """Gives the entries that the next records of a file add, their rows, and the state after them.

    The records have consecutive offsets from `base_offset`; their positions count from byte
    `origin` of the file. `sparse.START` is the state before the first record.
    """
    rows, after = select(positions, state, STRIDE, origin=origin)
    entries = np.empty(len(rows), dtype=ENTRY)
    entries["offset"] = rows + base_offset
    entries["position"] = positions[rows] + origin
    return entries, rows, after


def position_for(entries: Entries, offset: int) -> int | None:
    """Returns the byte to scan from for an offset: that of the greatest entry not above it.

    None means that no entry is at or below the offset: the file holds nothing before its first.
    """
    row = int(np.searchsorted(entries["offset"], offset, side="right")) - 1
    return None if row < 0 else int(entries["position"][row])


def agrees(entries: Entries, buffer: Buffer) -> bool:
    """Tells whether the last entry points at a sound frame of that offset in the `.log`."""
    if len(entries) == 0:
        return memoryview(buffer).nbytes == 0
    offset, position = entries[-1].tolist()
    if position >= memoryview(buffer).nbytes:
        return False
    found = log.scan(buffer, position, expected_offset=offset, limit=Limit(max_records=1))
    return len(found) == 1


def rebuild(buffer: Buffer) -> Entries:
    """Makes the index of a whole `.log` anew, over damaged spots too."""
    parts, state = [np.empty(0, dtype=ENTRY)], START
    for found, base_offset in runs(buffer):
        entries, _, state = extend(found.positions, state, base_offset=base_offset)
        parts.append(entries)
    return cast("Entries", np.concatenate(parts))


def runs(buffer: Buffer) -> Iterator[tuple[Scan, int]]:
    """Walks a `.log` in runs of sound frames, each with its first offset, over damaged spots.

    Frames after a damaged spot count only if their offsets are above those before it.
    """
    position: int | None = 0
    expected: int | None = None
    while position is not None:
        found = log.scan(buffer, position, expected_offset=expected)
        if len(found):
            first = log.HEADER.unpack(buffer, int(found.positions[0]))["offset"]
            expected = first + len(found)
            yield found, first
        if found.stop.is_damage:
            position = log.resync(buffer, found.end, minimum_offset=expected or 0)
            if position is not None:
                expected = log.HEADER.unpack(buffer, position)["offset"]
        else:
            position = found.end if found.end < memoryview(buffer).nbytes else None
