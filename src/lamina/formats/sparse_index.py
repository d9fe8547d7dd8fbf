"""The two sparse indexes of a log, offset to position and time to offset, whatever its format.

`sparse_choice` decides which records are indexed and makes the entries; here are the lookups, and
the walk over a log that rebuilds both. The layout of entries on disk, and the stride, are in the
`index` and `time_index` of each format.

Awkward cases. Entries have no checksum, so a wrong index can look right: the last ones are compared
with the log before one is used. If one is wrong all the same, a read starts at a byte that is no
record with the wanted offset, and fails; it never returns a wrong one. Timestamps of records may go
back; the running maximum never does, so that a binary search stays right: it finds where a time was
first reached.

Rule: live writing and rebuilding use the same functions, so that both produce the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import address_of, as_bytes, peek_i64, peek_i64_be
from lamina.formats.kernels.declare import kernel
from lamina.formats.offset_log import LogModule, OffsetLog
from lamina.formats.scan import Damage, runs
from lamina.formats.sparse_choice import OFFSET_ENTRY, START, TIME_ENTRY, Entries, Stride, select

if TYPE_CHECKING:
    from typing_extensions import Buffer


def entry_for(entries: Entries, offset: int) -> tuple[int, int] | None:
    """Returns (offset, position) of the greatest entry not above an offset: where to scan from.

    None means that no entry is at or below the offset: the file holds nothing before its first.
    """
    row = int(np.searchsorted(entries["offset"], offset, side="right")) - 1
    return None if row < 0 else (int(entries["offset"][row]), int(entries["position"][row]))


def row_before_time(entries: Entries, timestamp_ms: int) -> int:
    """Returns the last entry up to which all records are older than a time; -1 if none is."""
    return int(np.searchsorted(entries["timestamp_ms"], timestamp_ms, side="left")) - 1


def times_agree(times: Entries, offsets: Entries) -> bool:
    """Returns whether a time index has one entry for each of the offset index, and no other."""
    return bool(np.array_equal(times["offset"], offsets["offset"]))


def rebuild(log: LogModule, stride: Stride, buffer: Buffer) -> tuple[Entries, Entries]:
    """Rebuilds both indexes from a whole `.log`, over damaged spots too."""
    offsets, times = [np.empty(0, dtype=OFFSET_ENTRY)], [np.empty(0, dtype=TIME_ENTRY)]
    state = START
    for step in runs(OffsetLog(log, buffer), log.FILE_HEADER_BYTES):
        if isinstance(step, Damage):
            continue
        positions = step.found.positions
        timestamps = timestamps_at(log, buffer, positions)
        *entries, state = select(
            positions, timestamps, state, stride, base_offset=step.first, origin=0
        )
        offsets.append(entries[0])
        times.append(entries[1])
    return cast("Entries", np.concatenate(offsets)), cast("Entries", np.concatenate(times))


def timestamps_at(
    log: LogModule, buffer: Buffer, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
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
