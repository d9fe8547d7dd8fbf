"""What walking a log finds: where records start, where sound ones end, and why the walk stopped.

Each log format walks its records in one kernel, which returns a `Scan`; reading, recovery,
verifying, dumping and indexing are policies over that one walk. `runs` is the walk that continues
after damage: sound records, a damaged spot, sound records, to the end of the buffer. A codec never
decides what a stop means: the same bad checksum is a torn tail in an active file and corruption in
a sealed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer

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

    Zeros there are taken for space that was never written. Only those bytes are examined: whether
    zeros follow to the end is for the caller to check.
    """
    BAD_MAGIC = 2
    BAD_VERSION = 3
    """An unknown version, type or flag with a good checksum: a newer writer's."""
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
        """Counts bytes that were checksummed."""
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

    `positions` are bytes in the buffer, one per record, ascending. `end` is one past the last good
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
"""Walks on from a state: (data, positions, timestamps, state, bounds) returns the state it reached,
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
    """Runs a scan kernel; returns positions, timestamps, the state after the last, and the stop.

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
    """Runs a resync kernel: (data, start, budget, …) returns (position or -1, bytes checked)."""
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
    """Encodes the next offset for a kernel: None is any; an impossible one matches none."""
    if offset is None:
        return ANY_OFFSET
    return offset if 0 <= offset <= OFFSET_MAX else _NO_OFFSET


# ---------------------------------------------------------------------- over damage


class Walkable(Protocol):
    """A log in a buffer, as `runs` walks it.

    Records have ascending numbers, which distinguish a record behind damage from an old leftover.
    In a log without such numbers every number is 0.
    """

    data: memoryview

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks sound records, of which the first has this number (None is any)."""

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the record to go on with behind a scan that ended in damage.

        `number` is what the record there should have had. What is found, `scan` takes.
        """

    def number_at(self, position: int) -> int:
        """Returns the number of a sound record."""


@dataclass(frozen=True, slots=True)
class Run:
    """Sound records in a row, numbered from `first` to below `end`."""

    found: Scan
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that hold no record which counts, from `position` to below `end`.

    `expected` is the number that the record there should have had, as far as one is known.
    `following` is that of the sound record at `end`; None if nothing sound follows, and then `end`
    is that of the buffer. `is_blank` is set if all of it is zero: prepared space, or records gone.
    """

    position: int
    end: int
    stop: Stop
    expected: int | None
    following: int | None = None
    is_blank: bool = False


Step: TypeAlias = Run | Damage


def runs(
    log: Walkable,
    start: int,
    number: int | None = None,
    *,
    limit: Limit = Limit(),
    end_number: int | None = None,
) -> Iterator[Step]:
    """Walks a whole buffer from `start` on: runs of sound records, and the damage between them.

    `number` is that of the first record, where it is known. `limit` bounds each run, not the walk:
    a run that ends by it is followed by the next one. Behind damage a record from `end_number` on
    does not count: a misplaced file must not vouch for its neighbours' records. Damage is the last
    step if nothing sound follows it. All of the walk shares one budget.
    """
    size = log.data.nbytes
    budget = Budget(size)
    limit = replace(limit, budget=budget)
    position = start
    while position < size:
        found = log.scan(position, number, limit)
        position = found.end
        if len(found):
            first, last = found.positions[0], found.positions[-1]
            run = Run(found, log.number_at(int(first)), log.number_at(int(last)) + 1)
            number = run.end
            yield run
        if found.stop.is_damage:
            damage = _damage(log, found, number, budget, end_number)
            yield damage
            if damage.following is None:
                return
            position, number = damage.end, damage.following


def _damage(
    log: Walkable, found: Scan, number: int | None, budget: Budget, end_number: int | None
) -> Damage:
    is_blank = is_prepared_space(log.data, found.end)  # no search finds a record in zeros
    after = None if is_blank else log.resync(found, number, budget)
    if after is not None:
        following = log.number_at(after)
        if end_number is None or following < end_number:
            return Damage(found.end, after, found.stop, number, following)
    return Damage(found.end, log.data.nbytes, found.stop, number, is_blank=is_blank)


def is_prepared_space(data: Buffer, position: int) -> bool:
    """Returns whether a file holds only zeros from a position on, as a prepared tail does."""
    tail = np.frombuffer(data, dtype=np.uint8)[position:]  # type: ignore[call-overload]
    if tail[:64].any():  # so it is at nearly every damaged spot, and there may be many
        return False
    step = 1 << 20
    return not any(tail[start : start + step].any() for start in range(0, len(tail), step))
