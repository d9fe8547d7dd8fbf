"""What walking a log finds: where records start, where the good ones end, and why the walk stopped.

Each log format walks its records in one kernel, which returns a `Scan`; reading, recovery,
verifying, dumping and indexing are policies over that one walk. A codec never decides what a stop
means: the same bad checksum is a torn tail in an active file and corruption in a sealed one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

OFFSET_MAX = (1 << 63) - 1
_NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)
ANY_OFFSET, _NO_OFFSET = -1, -2
SMALL_BYTES = 4 << 10
"""What a search after damage still checks when its budget is used up."""


class Stop(IntEnum):
    """Why a scan ended."""

    END = 0
    """The buffer ends where a record ends."""
    TORN = 1
    """The buffer ends inside a record, or the bytes that begin every record are zero.

    Zeros there are taken for space that was never written. Only those bytes are looked at: whether
    zeros follow to the end is for the caller to see.
    """
    BAD_MAGIC = 2
    BAD_VERSION = 3
    """A version, type or flag that is not known, under a good checksum: of a newer writer."""
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


class Budget:
    """How many bytes a walk over one buffer may still checksum in vain.

    Damaged or hostile bytes can claim, at every position, a record that reaches to the end, and so
    make a search quadratic. All searches and scans of one walk therefore share a budget of
    `BYTES_PER_BYTE` bytes for each byte of the buffer, far more than damage that happens costs.
    When it is used up, only candidates of at most `SMALL_BYTES` are still checked: a walk goes on
    to the end in linear time, and only misses large records behind such claims.
    """

    BYTES_PER_BYTE = 64

    def __init__(self, buffer_bytes: int) -> None:
        self.spent = 0
        self._total = self.BYTES_PER_BYTE * buffer_bytes

    @property
    def left(self) -> int:
        """The bytes that are left, never below 0."""
        return max(0, self._total - self.spent)

    def spend(self, checked_bytes: int) -> None:
        """Takes note of bytes that were checksummed."""
        self.spent += checked_bytes


@dataclass(frozen=True, slots=True)
class Limit:
    """How far one scan goes. At least one record is returned however small `max_bytes` is.

    `budget` is that of the walk over damage which the scan is part of; None for a single scan.
    """

    max_records: int = 1 << 20
    max_bytes: int = 1 << 28
    budget: Budget | None = None
    with_timestamps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # Arrow's binary columns address 2 GiB; one record may overshoot max_bytes by its own size.
        if not (self.max_records > 0 and 0 < self.max_bytes <= 1 << 30):
            raise ValueError(f"limits must be positive and max_bytes at most 1 GiB, got {self}")


class Timed(Limit):
    """A limit of a scan that also notes the times of records, in a format that indexes them.

    Reading them later costs another walk.
    """

    __slots__ = ()
    with_timestamps = True


WHOLE = Limit(max_records=1 << 24, max_bytes=1 << 30)


@dataclass(frozen=True, slots=True)
class Scan:
    """The good records of a buffer, from where the scan started.

    `positions` are bytes in the buffer, one a record, ascending. `end` is one past the last good
    record, and where the next scan starts. `column_bytes` are the sizes of the variable columns, in
    the format's order, so that decoding allocates exactly. `timestamps` are those of the records,
    one each, if the limit was `Timed`, otherwise none.
    """

    positions: NDArray[np.int64]
    end: int
    stop: Stop
    column_bytes: tuple[int, ...] = ()
    timestamps: NDArray[np.int64] = field(default_factory=lambda: _NOTHING)

    def __len__(self) -> int:
        return len(self.positions)


_UNLIMITED = 1 << 62
_FIRST_ROOM, _GROWTH = 512, 256
_LIMIT = int(Stop.LIMIT)
_STOPS = tuple(Stop)

ScanKernel = Callable[..., tuple[tuple[int, ...], int, int]]
"""Walks on from a state: (data, positions, timestamps, state, bounds) gives the state it came to,
the stop, and how many bytes were wasted.

A state begins with the position and the count of records so far; what else it holds is the
format's. `bounds` are the byte up to which records may reach, but for the first, and the bytes that
may be checksummed in vain. A kernel stops with LIMIT when `positions` is full; `timestamps` have as
much room, or none where they are not wanted.
"""


def walk(
    kernel: ScanKernel,
    data: NDArray[np.uint8],
    state: tuple[int, ...],
    limit: Limit,
    record_bytes_min: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...], Stop]:
    """Runs a scan kernel; gives positions, timestamps, the state after the last one, and the stop.

    There is more room only as it is filled: bounded by real bytes, never by a length field, and
    small for a scan that stops at once, as many do in a damaged file. Records are taken to go on
    being as large as those before, so that most scans grow once.
    """
    start, size = state[0], len(data)
    refuse_start(start, size)
    most = min((size - start) // record_bytes_min + 1, limit.max_records)
    budget = limit.budget
    bounds = (start + limit.max_bytes, _UNLIMITED if budget is None else budget.left)
    positions = np.empty(min(most, _FIRST_ROOM), dtype=np.int64)
    timestamps = np.empty(len(positions), dtype=np.int64) if limit.with_timestamps else _NOTHING
    while True:
        state, stop, wasted = kernel(data, positions, timestamps, state, bounds)
        count = state[1]
        if stop != _LIMIT or count < len(positions) or count == most:
            break
        reach = min(limit.max_bytes, size - start)
        alike = count * reach // (state[0] - start) * 9 // 8
        rows = min(most, max(2 * count, min(alike, _GROWTH * count)))
        positions = _grown(positions, rows)
        timestamps = _grown(timestamps, rows) if limit.with_timestamps else _NOTHING
    if budget is not None:
        budget.spend(wasted)
    return positions[:count], timestamps[:count], state, _STOPS[stop]


def _grown(full: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    grown = np.empty(rows, dtype=np.int64)
    grown[: len(full)] = full
    return grown


def search(
    kernel: Callable[..., tuple[int, int]],
    data: NDArray[np.uint8],
    start: int,
    budget: Budget | None,
    *wanted: Any,
) -> int | None:
    """Runs a resync kernel: (data, start, budget, …) gives (position or -1, bytes checksummed)."""
    refuse_start(start, len(data))
    budget = Budget(len(data)) if budget is None else budget
    found, spent = kernel(data, start, budget.left, *wanted)
    budget.spend(spent)
    return None if found < 0 else int(found)


def refuse_start(start: int, size: int) -> None:
    """Raises ValueError for a position that is not in a buffer of that size, nor at its end."""
    if not 0 <= start <= size:
        raise ValueError(f"a scan starts at 0 to {size}, the bytes there are, not at {start}")


def as_expected(offset: int | None) -> int:
    """Gives a kernel the offset that must come next: None is any; one that none can have, none."""
    if offset is None:
        return ANY_OFFSET
    return offset if 0 <= offset <= OFFSET_MAX else _NO_OFFSET
