"""Derived: rebuilt from the .log. Frame offset index (`<base_offset>.idx`), offset to position.

A plain run of entries without a header. All integers little-endian.

    | at | size | field        | type | meaning                                     |
    |----|------|--------------|------|---------------------------------------------|
    |  0 |    8 | offset       | i64  | of an indexed frame                         |
    |  8 |    8 | position     | i64  | the byte of the `.log` where it starts      |

The first frame is indexed, then the frames that start 4 KiB or 100 records past the last indexed
one, whichever comes first.

Rule: both fields grow from entry to entry. What is done with entries is in
`lamina.formats.sparse_index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lamina.formats import sparse_index
from lamina.formats.frame import log
from lamina.formats.sparse_choice import Entries, Stride, decode_entries

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


def rebuild(buffer: Buffer) -> Entries:
    """Rebuilds the index from a whole `.log`, over damaged spots too."""
    return sparse_index.rebuild(log, STRIDE, buffer)[0]
