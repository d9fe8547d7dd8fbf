"""Derived: rebuilt from the .log. Keratin offset index (`<base_offset>.idx`), offset to position.

A header, then entries. All integers big-endian. Checksum: CRC-32C, of the header only.

    | at | size | field         | type      | meaning                                       |
    |----|------|---------------|-----------|-----------------------------------------------|
    |  0 |    8 | magic         | bytes[8]  | "KIDX" (in a `.tidx` "KTIX"), four zeros      |
    |  8 |    2 | version       | u16       | 1                                             |
    | 10 |    2 | flags         | u16       | written as 0, ignored                         |
    | 12 |    4 | header_len    | u32       | 72                                            |
    | 16 |    8 | base_offset   | i64       | the segment's, and the file's name            |
    | 24 |    8 | created_ts_ms | i64       | milliseconds since 1970                       |
    | 32 |    2 | entry_len     | u16       | 16                                            |
    | 34 |    2 | reserved0     | u16       | written as 0, ignored                         |
    | 36 |   32 | reserved      | bytes[32] | zeros                                         |
    | 68 |    4 | header_crc32c | u32       | over the 68 bytes before it                   |

An entry:

    | at | size | field         | type | meaning                                            |
    |----|------|---------------|------|----------------------------------------------------|
    |  0 |    4 | rel_offset    | u32  | of an indexed record: offset - base_offset         |
    |  4 |    4 | reserved0     | u32  | written as 0, ignored                              |
    |  8 |    8 | file_pos      | i64  | the byte of the `.log` where it starts             |

The first record is indexed, then each that starts 64 KiB (`index_stride_bytes`) or more past the
last indexed one. In memory, entries are offset and position: only this module knows `rel_offset`.

Awkward cases. A crash can leave part of an entry at the end: `decode` drops it and says so. Entries
have no checksum: `agrees` must hold before an index is used. If one is wrong all the same, a read
starts at a byte that is no record with the wanted offset, and fails; it never returns a wrong one.

Rules.
1. Both fields grow from entry to entry.
2. Live writing and rebuilding go through `extend`, so that both give the same bytes.
3. A segment is rolled before `rel_offset` would need more than 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.binary import Layout
from lamina.formats.keratin import header, log
from lamina.formats.scan import Limit, Scan
from lamina.formats.sparse import START, Entries, Rows, Sparse, Stride, decode_entries, select

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER = Layout(
    ">",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    header_len="u32",
    base_offset="i64",
    created_ts_ms="i64",
    entry_len="u16",
    reserved0="u16",
    reserved="bytes[32]",
    header_crc32c="u32",
)
FILE_MAGIC = b"KIDX\0\0\0\0"
FILE_HEADER_BYTES = FILE_HEADER.size
ENTRY = np.dtype(
    [
        ("rel_offset", ">u4"),
        ("reserved0", ">u4"),
        ("file_pos", ">i8"),
    ]
)
_IN_MEMORY = np.dtype(
    [
        ("offset", np.int64),
        ("position", np.int64),
    ]
)
STRIDE = Stride(bytes=64 << 10)
REL_OFFSET_END = 1 << 32
"""One past the greatest distance of an offset from the segment's base."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What an index file holds; `cut_bytes` of a last, partial entry were dropped."""

    base_offset: int
    created_ms: int
    entries: Entries
    cut_bytes: int


def encode_header(base_offset: int, created_ms: int, *, magic: bytes = FILE_MAGIC) -> bytes:
    """Encodes the header of an index."""
    return header.encode(
        FILE_HEADER,
        magic,
        base_offset=base_offset,
        created_ts_ms=created_ms,
        entry_len=ENTRY.itemsize,
        reserved0=0,
    )


def decode_header(buffer: Buffer, *, magic: bytes = FILE_MAGIC) -> log.FileHeader:
    """Reads the header of an index. Raises CorruptData, or NewerFormat for one not ours."""
    fields = header.decode(buffer, FILE_HEADER, magic)
    if fields["entry_len"] != ENTRY.itemsize:
        raise NewerFormat(
            "unknown entry_len",
            position=FILE_HEADER.at("entry_len"),
            expected=str(ENTRY.itemsize),
            found=str(fields["entry_len"]),
        )
    header.refuse_negative(FILE_HEADER, fields, "base_offset")
    return log.FileHeader(fields["base_offset"], fields["created_ts_ms"])


def encode(entries: Entries, *, base_offset: int) -> bytes:
    """Encodes entries of a segment, without a file header; the bytes of several runs may be joined.

    Raises ValueError for an offset that is not within 2^32 of the segment's `base_offset`.
    """
    stored = np.zeros(len(entries), dtype=ENTRY)
    stored["rel_offset"] = to_relative(entries["offset"], base_offset)
    stored["file_pos"] = entries["position"]
    return stored.tobytes()


def decode(buffer: Buffer) -> Index:
    """Reads a whole index file, without a last entry that is not all there.

    Raises CorruptData for a damaged header and where entries do not grow.
    """
    about = decode_header(buffer)
    stored, cut_bytes = stored_entries(buffer, ENTRY, rising=("rel_offset", "file_pos"))
    entries = np.empty(len(stored), dtype=_IN_MEMORY)
    entries["offset"] = to_absolute(stored["rel_offset"], about.base_offset)
    entries["position"] = stored["file_pos"]
    return Index(about.base_offset, about.created_ms, entries, cut_bytes)


def stored_entries(
    buffer: Buffer,
    entry: np.dtype[np.void],
    *,
    rising: tuple[str, ...],
    level: tuple[str, ...] = (),
) -> tuple[Entries, int]:
    """Views the whole entries behind the header, and counts the bytes of a partial last one."""
    data = memoryview(buffer).cast("B")[FILE_HEADER_BYTES:]
    cut_bytes = len(data) % entry.itemsize
    try:
        whole = decode_entries(data[: len(data) - cut_bytes], entry, rising=rising, level=level)
    except CorruptData as error:
        raise CorruptData(
            error.problem,
            position=FILE_HEADER_BYTES + error.position,
            expected=error.expected,
            found=error.found,
        ) from None
    return whole, cut_bytes


def to_relative(offsets: NDArray[np.int64], base_offset: int) -> NDArray[np.int64]:
    """Gives the distances of offsets from their segment's base, which must fit 32 bits."""
    relative = offsets - base_offset
    if np.any((relative < 0) | (relative >= REL_OFFSET_END)):
        raise ValueError(f"an offset is not within 2^32 of the segment's base {base_offset}")
    return relative


def to_absolute(relative: NDArray[Any], base_offset: int) -> NDArray[np.int64]:
    """Gives the offsets at distances, which ascend, from their segment's base."""
    if len(relative) and base_offset + int(relative[-1]) >= 1 << 63:
        raise CorruptData(
            "offsets are out of range",
            position=FILE_HEADER.at("base_offset"),
            expected="below 2^63",
            found=str(base_offset + int(relative[-1])),
        )
    return relative.astype(np.int64) + base_offset


def extend(
    positions: NDArray[np.int64],
    state: Sparse,
    *,
    base_offset: int,
    origin: int = 0,
    stride: Stride = STRIDE,
) -> tuple[Entries, Rows, Sparse]:
    """Gives the entries that the next records of a file add, their rows, and the state after them.

    The records have consecutive offsets from `base_offset`; their positions count from byte
    `origin` of the file. `sparse.START` is the state before the first record.
    """
    rows, after = select(positions, state, stride, origin=origin)
    entries = np.empty(len(rows), dtype=_IN_MEMORY)
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
    """Tells whether the last entry points at a sound record of that offset in the `.log`."""
    size = memoryview(buffer).nbytes
    if len(entries) == 0:
        return size <= log.FILE_HEADER_BYTES
    offset, position = entries[-1].tolist()
    if not log.FILE_HEADER_BYTES <= position < size:
        return False
    found = log.scan(buffer, position, expected_offset=offset, limit=Limit(max_records=1))
    return len(found) == 1


def rebuild(buffer: Buffer, *, stride: Stride = STRIDE) -> Entries:
    """Makes the index of a whole `.log` anew, over damaged spots too."""
    parts, state = [np.empty(0, dtype=_IN_MEMORY)], START
    for found, base_offset in runs(buffer):
        entries, _, state = extend(found.positions, state, base_offset=base_offset, stride=stride)
        parts.append(entries)
    return cast("Entries", np.concatenate(parts))


def runs(buffer: Buffer) -> Iterator[tuple[Scan, int]]:
    """Walks a `.log` in runs of sound records, each with its first offset, over damaged spots.

    Records after a damaged spot count only if their offsets are above those before it.
    """
    position: int | None = log.FILE_HEADER_BYTES
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
