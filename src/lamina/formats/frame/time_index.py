"""Derived: rebuilt from the .log. Frame time index (`<base_offset>.timeidx`), time to offset.

A plain run of entries without a header, one for each entry of the `.idx`, for the same record. All
integers little-endian.

    | at | size | field        | type | meaning                                     |
    |----|------|--------------|------|---------------------------------------------|
    |  0 |    8 | timestamp_ms | i64  | the greatest of all records up to this one  |
    |  8 |    8 | offset       | i64  | of the indexed record                       |

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
from lamina.formats.frame import index, log
from lamina.formats.sparse_choice import Entries, decode_entries

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY = np.dtype(
    [
        ("timestamp_ms", "<i8"),
        ("offset", "<i8"),
    ]
)


def encode(entries: Entries) -> bytes:
    """Encodes entries; the bytes of several runs may be joined."""
    return entries.astype(ENTRY, copy=False).tobytes()


def decode(buffer: Buffer) -> Entries:
    """Views the bytes of a time index as entries; raises CorruptData where they go back."""
    return decode_entries(buffer, ENTRY, rising=("offset",), level=("timestamp_ms",))


def rebuild(buffer: Buffer) -> Entries:
    """Rebuilds the time index from a whole `.log`, over damaged spots too."""
    return sparse_index.rebuild(log, index.STRIDE, buffer)[1]


def timestamps_at(buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads the timestamps of records that a scan of the same buffer found, and nothing else."""
    return sparse_index.timestamps_at(log, buffer, positions)
