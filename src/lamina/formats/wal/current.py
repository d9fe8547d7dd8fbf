"""Derived: rebuilt from the names of the WAL files; `CURRENT` names the one that is written to.

One line of ASCII, replaced atomically, one file for each shard:

    wal-<n>.log        and a line feed; n decimal, without leading zeros, below 2^64

It is a hint: recovery replays every WAL file that exists. A wrong one costs nothing but the report.
"""

from __future__ import annotations

import re

from lamina.errors import CorruptData

_LINE = re.compile(rb"wal-(0|[1-9][0-9]{0,19})\.log\n")
INDEX_MAX = (1 << 64) - 1


def encode(wal_index: int) -> bytes:
    """Encodes the number of the active WAL file."""
    return b"wal-%d.log\n" % wal_index


def decode(data: bytes) -> int:
    """Decodes the number of the active WAL file; CorruptData for anything but the exact line."""
    line = _LINE.fullmatch(data)
    if line is None or int(line[1]) > INDEX_MAX:
        raise CorruptData(
            "CURRENT does not name a WAL file",
            expected="wal-<n>.log and a line feed",
            found=repr(data[:40]),
        )
    return int(line[1])
