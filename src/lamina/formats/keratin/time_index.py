"""Derived: rebuilt from the .log. Keratin time index (`<base_offset>.tidx`), time to offset.

The header of the `.idx` with its own magic (`lamina.formats.keratin.index`), then an entry for each
entry of the `.idx`, for the same record. All integers big-endian.

    | at | size | field         | type | meaning                                            |
    |----|------|---------------|------|----------------------------------------------------|
    |  0 |    8 | timestamp_ms  | i64  | the greatest of all records up to this one         |
    |  8 |    4 | rel_offset    | u32  | of the indexed record: offset - base_offset        |
    | 12 |    4 | reserved0     | u32  | written as 0, ignored                              |

If the file is wrong or lost, looking up a time starts at the beginning of the segment or is rebuilt
first; no record is lost.

Rule: timestamps never fall and offsets grow from entry to entry. What is done with entries is in
`lamina.formats.sparse_index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina.formats import sparse_index
from lamina.formats.keratin import index, log
from lamina.formats.sparse_choice import TIME_ENTRY, Entries, Stride

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER = index.FILE_HEADER
FILE_MAGIC = b"KTIX\0\0\0\0"
ENTRY = np.dtype(
    [
        ("timestamp_ms", ">i8"),
        ("rel_offset", ">u4"),
        ("reserved0", ">u4"),
    ]
)


def encode_header(base_offset: int, created_ms: int) -> bytes:
    """Encodes the header of a time index."""
    return index.encode_header(base_offset, created_ms, magic=FILE_MAGIC)


def decode_header(buffer: Buffer) -> log.FileHeader:
    """Reads the header of a time index. Raises CorruptData, or NewerFormat for one not ours."""
    return index.decode_header(buffer, magic=FILE_MAGIC)


def encode(entries: Entries, *, base_offset: int) -> bytes:
    """Encodes entries of a segment, without a file header; the bytes of several runs may be joined.

    Raises ValueError for an offset that is not within 2^32 of the segment's `base_offset`.
    """
    stored = np.zeros(len(entries), dtype=ENTRY)
    stored["timestamp_ms"] = entries["timestamp_ms"]
    stored["rel_offset"] = index.to_relative(entries["offset"], base_offset)
    return stored.tobytes()


def decode(buffer: Buffer) -> index.Index:
    """Reads a whole time index file, without a last entry that is not all there.

    Raises CorruptData for a damaged header and where entries go back.
    """
    about = decode_header(buffer)
    stored, cut_bytes = index.stored_entries(
        buffer, ENTRY, rising=("rel_offset",), level=("timestamp_ms",)
    )
    entries = np.empty(len(stored), dtype=TIME_ENTRY)
    entries["timestamp_ms"] = stored["timestamp_ms"]
    entries["offset"] = index.to_absolute(stored["rel_offset"], about.base_offset)
    return index.Index(about.base_offset, about.created_ms, entries, cut_bytes)


def rebuild(buffer: Buffer, *, stride: Stride = index.STRIDE) -> Entries:
    """Rebuilds the time index from a whole `.log`, over damaged spots too."""
    return sparse_index.rebuild(log, stride, buffer)[1]


def timestamps_at(buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads the timestamps of records that a scan of the same buffer found, and nothing else."""
    return sparse_index.timestamps_at(log, buffer, positions)
