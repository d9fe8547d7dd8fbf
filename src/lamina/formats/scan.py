"""What walking a log finds: where records start, where the good ones end, and why the walk stopped.

Each log format walks its records in one kernel, which returns a `Scan`; reading, recovery,
verifying, dumping and indexing are policies over that one walk. A codec never decides what a stop
means: the same bad checksum is a torn tail in an active file and corruption in a sealed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stop(IntEnum):
    """Why a scan ended."""

    END = 0
    """The buffer ends where a record ends."""
    TORN = 1
    """The buffer ends inside a record, or what follows is space that was never written (zeros)."""
    BAD_MAGIC = 2
    BAD_VERSION = 3
    """A version, type or flag that this code does not know: a newer writer, or damage."""
    BAD_LENGTH = 4
    """Lengths that contradict each other or exceed the format's limit."""
    BAD_CHECKSUM = 5
    BAD_OFFSET = 6
    """A sound record that does not continue the ones before it."""
    LIMIT = 7
    """As many records or bytes as the caller asked for; more may follow."""

    @property
    def is_damage(self) -> bool:
        """Whether bytes at the stop are wrong (a torn tail counts: the file is not whole)."""
        return self not in (Stop.END, Stop.LIMIT)


@dataclass(frozen=True, slots=True)
class Limit:
    """How far one scan goes. At least one record is returned however small `max_bytes` is."""

    max_records: int = 1 << 20
    max_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        # Arrow's binary columns address 2 GiB; one record may overshoot max_bytes by its own size.
        if not (self.max_records > 0 and 0 < self.max_bytes <= 1 << 30):
            raise ValueError(f"limits must be positive and max_bytes at most 1 GiB, got {self}")


WHOLE = Limit(max_records=1 << 24, max_bytes=1 << 30)


@dataclass(frozen=True, slots=True)
class Scan:
    """The good records of a buffer, from where the scan started.

    `positions` are bytes in the buffer, one a record, ascending. `end` is one past the last good
    record, and where the next scan starts. `column_bytes` are the sizes of the variable columns, in
    the format's order, so that decoding allocates exactly.
    """

    positions: NDArray[np.int64]
    end: int
    stop: Stop
    column_bytes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.positions)


def room_for_positions(buffer_bytes: int, record_bytes_min: int, limit: Limit) -> NDArray[np.int64]:
    """Allocates what a scan can at most fill: bounded by real bytes, never by a length field."""
    possible = max(0, buffer_bytes) // record_bytes_min + 1
    return np.empty(min(possible, limit.max_records), dtype=np.int64)
