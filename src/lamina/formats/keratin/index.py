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

Awkward cases. A crash can leave part of an entry at the end: `decode` drops it and reports it. What
is done with entries is in `lamina.formats.sparse_index`.

Rules.
1. Both fields grow from entry to entry.
2. A segment is rolled before `rel_offset` would need more than 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData, NewerFormat
from lamina.formats import sparse_index
from lamina.formats.keratin import header, log
from lamina.formats.kernels.binary import Layout
from lamina.formats.sparse_choice import OFFSET_ENTRY, Entries, Stride, decode_entries

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
    entries = np.empty(len(stored), dtype=OFFSET_ENTRY)
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
    """Returns the distances of offsets from their segment's base, which must fit 32 bits."""
    relative = offsets - base_offset
    if np.any((relative < 0) | (relative >= REL_OFFSET_END)):
        raise ValueError(f"an offset is not within 2^32 of the segment's base {base_offset}")
    return relative


def to_absolute(relative: NDArray[Any], base_offset: int) -> NDArray[np.int64]:
    """Returns the offsets at distances, which ascend, from their segment's base."""
    if len(relative) and base_offset + int(relative[-1]) >= 1 << 63:
        raise CorruptData(
            "offsets are out of range",
            position=FILE_HEADER.at("base_offset"),
            expected="below 2^63",
            found=str(base_offset + int(relative[-1])),
        )
    return relative.astype(np.int64) + base_offset


def rebuild(buffer: Buffer, *, stride: Stride = STRIDE) -> Entries:
    """Rebuilds the index from a whole `.log`, over damaged spots too."""
    return sparse_index.rebuild(log, stride, buffer)[0]
