"""Derived: rebuilt from the .log. The two sparse indexes of a segment, in memory and on disk.

Live writing and rebuilding go through the same `extend`, so that both produce the same bytes.
Entries are written behind the log, in batches: a missing last entry costs a longer walk, nothing
else.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.formats.log_format import Codec
from lamina.formats.sparse_choice import OFFSET_ENTRY, START, TIME_ENTRY, Entries, Sparse, select
from lamina.formats.sparse_index import entry_for, row_before_time

_NO_OFFSETS = np.empty(0, dtype=OFFSET_ENTRY)
_NO_TIMES = np.empty(0, dtype=TIME_ENTRY)


class Mark(NamedTuple):
    """Where an index stood, to go back to when an append is undone."""

    entries: int
    state: Sparse


class SegmentIndex:
    """Offset to position and time to offset, for one segment. Safe to read while it grows."""

    def __init__(self, codec: Codec, base_offset: int) -> None:
        self._codec = codec
        self._stride = codec.stride
        self._base_offset = base_offset
        self._offsets: list[Entries] = [_NO_OFFSETS]
        self._times: list[Entries] = [_NO_TIMES]
        self._state = START
        self._saved = 0
        self._count = 0
        self._lock = threading.Lock()
        self.trusted = True

    def load(self, offsets: Entries, times: Entries) -> None:
        """Takes entries from disk; the records from the last one on must follow by `extend`.

        They carry no checksum: from now on each is checked against the log when it is used.
        """
        self.trusted = False
        self._offsets = [offsets[:-1].astype(OFFSET_ENTRY)]
        self._times = [times[:-1].astype(TIME_ENTRY)]
        self._count = self._saved = len(offsets) - 1
        self._state = Sparse(maximum_ms=int(times["timestamp_ms"][-1]))

    def extend(
        self,
        positions: NDArray[np.int64],
        timestamps: NDArray[np.int64],
        *,
        base_offset: int,
        origin: int,
    ) -> None:
        """Adds the records that follow, whose positions count from byte `origin` of the file."""
        if self._passes_over(positions, timestamps, origin):
            return
        offsets, times, self._state = select(
            positions,
            timestamps,
            self._state,
            self._stride,
            base_offset=base_offset,
            origin=origin,
        )
        if len(offsets) == 0:
            return
        with self._lock:
            self._offsets.append(offsets)
            self._times.append(times)
            self._count += len(offsets)

    def _passes_over(
        self, positions: NDArray[np.int64], timestamps: NDArray[np.int64], origin: int
    ) -> bool:
        """Counts records of which none is far enough to be indexed, as in most small groups.

        The rule of `sparse_choice.select`, asked of the last record alone: both of its distances
        grow from record to record.
        """
        last, seen, greatest = self._state
        stride = self._stride
        after = seen + len(positions)
        if last is None or after == seen or (stride.records and after > stride.records):
            return False
        if int(positions[-1]) + origin - last >= stride.bytes:
            return False
        newest = int(timestamps[0] if len(timestamps) == 1 else timestamps.max())
        if greatest is None or newest > greatest:
            greatest = newest
        self._state = Sparse(last, after, greatest)
        return True

    def mark(self) -> Mark:
        """Notes where the index stands."""
        return Mark(self._count, self._state)

    def rewind(self, mark: Mark) -> None:
        """Forgets what was added since a mark."""
        offsets, times = self.offsets()[: mark.entries], self.times()[: mark.entries]
        with self._lock:
            self._offsets, self._times = [offsets], [times]
            self._count, self._state = mark
            self._saved = min(self._saved, self._count)

    @property
    def newest_timestamp_ms(self) -> int | None:
        """The greatest timestamp of all records; None before the first."""
        return self._state.maximum_ms

    def position_for(self, offset: int) -> tuple[int, int] | None:
        """Returns (offset, position) of the greatest entry not above an offset, if there is one."""
        return entry_for(self.offsets(), offset)

    def row_before_time(self, timestamp_ms: int) -> int:
        """Returns the last entry up to which all records are older than a time; -1 if none is."""
        return row_before_time(self.times(), timestamp_ms)

    def offsets(self) -> Entries:
        """Returns all entries of the offset index."""
        with self._lock:
            if len(self._offsets) > 1:
                self._offsets = [_joined(self._offsets)]
            return self._offsets[0]

    def times(self) -> Entries:
        """Returns all entries of the time index."""
        with self._lock:
            if len(self._times) > 1:
                self._times = [_joined(self._times)]
            return self._times[0]

    @property
    def unsaved(self) -> int:
        """How many entries are not on disk yet."""
        return self._count - self._saved

    def take_unsaved(self) -> tuple[int, bytes, bytes]:
        """Returns how many entries are on disk, and the bytes of the others; counts them saved."""
        before = self._saved
        offsets, times = self.offsets()[before:], self.times()[before:]
        self._saved = self._count
        return (before, *self._codec.encode_indexes(offsets, times, self._base_offset))

    def all_bytes(self) -> tuple[bytes, bytes]:
        """Returns the bytes of all entries there are."""
        return self._codec.encode_indexes(self.offsets(), self.times(), self._base_offset)

    def saved_bytes(self) -> tuple[bytes, bytes]:
        """Returns the bytes of all entries there are, now counted as saved."""
        self._saved = 0
        return self.take_unsaved()[1:]


def _joined(parts: list[Entries]) -> Entries:
    """Joins entries as plain bytes: numpy would work out a common type of all parts first."""
    kind = parts[0].dtype
    return np.concatenate([part.view(np.uint8) for part in parts]).view(kind)
