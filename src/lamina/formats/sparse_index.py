"""The two sparse indexes of a log, offset to position and time to offset, whatever its format.

`sparse_choice` says which records are indexed and makes the entries; here are the look-ups in them,
and the walk over a log that makes both again. How entries lie on disk, and the
stride, are in each format's `index` and `timeindex`.

Awkward cases. Entries have no checksum, so a wrong index can look right: `agrees` must hold before
one is used. If one is wrong all the same, a read starts at a byte that is no record with the wanted
offset, and fails; it never returns a wrong one. Timestamps of records may go back; the running
maximum never does, so that a binary search stays right: it finds where a time was first reached.

Rule: live writing and rebuilding go through the same functions, so that both give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import Layout, address_of, as_bytes, peek_i64, peek_i64_be
from lamina.formats.kernels.compile import kernel
from lamina.formats.scan import Budget, Limit, Scan
from lamina.formats.sparse_choice import OFFSET_ENTRY, START, TIME_ENTRY, Entries, Stride, select

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Log(Protocol):
    """What is needed of a log format: the `log` module of frame or keratin."""

    HEADER: Layout
    FILE_HEADER_BYTES: int

    def scan(
        self, buffer: Buffer, start: int = ..., *, expected_offset: int | None, limit: Limit
    ) -> Scan:
        """Walks the records of a buffer."""

    def resync(
        self, buffer: Buffer, start: int, *, minimum_offset: int, budget: Budget | None
    ) -> int | None:
        """Finds the next sound record."""


def position_for(entries: Entries, offset: int) -> int | None:
    """Returns the byte to scan from for an offset: that of the greatest entry not above it.

    None means that no entry is at or below the offset: the file holds nothing before its first.
    """
    row = int(np.searchsorted(entries["offset"], offset, side="right")) - 1
    return None if row < 0 else int(entries["position"][row])


def first_offset_at_or_after(entries: Entries, timestamp_ms: int) -> int | None:
    """Returns the offset to scan from for the first record at or after a time.

    All records up to the last entry below that time are older, so the scan starts behind it; at the
    first record where no entry is below. None means that the index is empty.
    """
    if len(entries) == 0:
        return None
    row = int(np.searchsorted(entries["timestamp_ms"], timestamp_ms, side="left")) - 1
    return int(entries["offset"][0]) if row < 0 else int(entries["offset"][row]) + 1


def agrees(log: Log, entries: Entries, buffer: Buffer) -> bool:
    """Tells whether the last entry points at a sound record of that offset in the `.log`."""
    size = memoryview(buffer).nbytes
    if len(entries) == 0:
        return size <= log.FILE_HEADER_BYTES
    offset, position = entries[-1].tolist()
    if not log.FILE_HEADER_BYTES <= position < size:
        return False
    found = log.scan(buffer, position, expected_offset=offset, limit=Limit(max_records=1))
    return len(found) == 1


def times_agree(times: Entries, offsets: Entries) -> bool:
    """Tells whether a time index has an entry for each entry of the offset index, and no other."""
    return bool(np.array_equal(times["offset"], offsets["offset"]))


def rebuild(log: Log, stride: Stride, buffer: Buffer) -> tuple[Entries, Entries]:
    """Makes both indexes of a whole `.log` anew, over damaged spots too."""
    offsets, times = [np.empty(0, dtype=OFFSET_ENTRY)], [np.empty(0, dtype=TIME_ENTRY)]
    state = START
    for found, first in runs(log, buffer):
        timestamps = timestamps_at(log, buffer, found.positions)
        *entries, state = select(
            found.positions, timestamps, state, stride, base_offset=first, origin=0
        )
        offsets.append(entries[0])
        times.append(entries[1])
    return cast("Entries", np.concatenate(offsets)), cast("Entries", np.concatenate(times))


def runs(log: Log, buffer: Buffer) -> Iterator[tuple[Scan, int]]:
    """Walks a `.log` in runs of sound records, each with its first offset, over damaged spots.

    Records after a damaged spot count only if their offsets are above those before it.
    """
    size = memoryview(buffer).nbytes
    budget = Budget(size)
    limit = Limit(budget=budget)
    position: int | None = log.FILE_HEADER_BYTES
    expected: int | None = None
    while position is not None and position < size:
        found = log.scan(buffer, position, expected_offset=expected, limit=limit)
        if len(found):
            first = log.HEADER.unpack(buffer, int(found.positions[0]))["offset"]
            expected = first + len(found)
            yield found, first
        position = found.end
        if found.stop.is_damage:
            minimum_offset = expected or 0
            position = log.resync(buffer, position, minimum_offset=minimum_offset, budget=budget)
            if position is not None:
                expected = log.HEADER.unpack(buffer, position)["offset"]


def timestamps_at(log: Log, buffer: Buffer, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Reads the timestamps of records that a scan of the same buffer found, and nothing else."""
    timestamps = np.empty(len(positions), dtype=np.int64)
    at = log.HEADER.at("timestamp_ms")
    _numbers(as_bytes(buffer), positions, at, log.HEADER.is_big_endian, timestamps)
    return timestamps


@kernel
def _numbers(data: Any, positions: Any, at: int, is_big_endian: bool, numbers: Any) -> None:
    field = address_of(data) + at
    for row in range(len(positions)):
        if is_big_endian:
            numbers[row] = peek_i64_be(field + positions[row])
        else:
            numbers[row] = peek_i64(field + positions[row])
