"""One segment of a partition: a run of records in one `.log`, with its two indexes.

    active ──seal──▶ sealed ──tomb──▶ gone

What sealed and active segments share is here: they are read in windows, and walked over damage.
`sealed_segment` has the one that never changes again, `active_segment` the one that grows.

Rules.
1. A reader names the bound up to which it may look; what lies beyond is never scanned.
2. Pages that the device cannot deliver cost the records on them: `window` has `FILLER` there, so
   that these are `Damaged` as if their bytes were wrong. `read_error` distinguishes the two.
3. `Segment.walk` is the only walk over damage in a file. What lies in memory as a whole, as in
   recovery, is walked by `formats.scan.runs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.log_format import Codec
from lamina.formats.scan import Budget, Limit, Scan, Stop
from lamina.log.segment_index import SegmentIndex
from lamina.storage import bad_pages, paths
from lamina.storage.files import File, Files
from lamina.storage.paths import SegmentFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_AHEAD_BYTES = 64 << 10
RECORD_BYTES_GUESS = 1 << 10
"""How large a record is taken to be where a reader wants only some of them."""
NEAR_BYTES = 1 << 20
RECORD_BYTES_MAX = 40 << 20
"""More than a record of any format takes."""
SEARCH_BYTES = 16 << 20
"""How much more a search behind damage reads, for the next one: damage is seldom alone."""
_HEAD_BYTES = 64
"""At least as much as the header of a record takes."""


class Bound(NamedTuple):
    """How far a reader may look into a segment: one past the last offset, and the byte there."""

    next_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of a segment, and where the next ones are."""

    batch: pa.RecordBatch
    next_offset: int
    next_position: int


class Damaged(CorruptData):
    """A record's bytes are not sound; `offset` is the one it should have had.

    `following` is where the next sound record is, as (offset, position); None if there is none.
    """

    def __init__(
        self, segment: Segment, at: Bound, stop: Stop, following: Bound | None = None
    ) -> None:
        super().__init__(
            "a record is damaged",
            path=segment.path("log"),
            position=at.position,
            expected="a sound record",
            found=stop.name,
        )
        self.offset = at.next_offset
        self.following = following


@dataclass(frozen=True, slots=True)
class Sound:
    """Sound records in a row, from `offset` on, in a window that begins at the byte `origin`."""

    offset: int
    found: Scan
    origin: int
    buffer: Buffer

    @property
    def end(self) -> Bound:
        """Where the record behind them would be."""
        return Bound(self.offset + len(self.found), self.found.end + self.origin)


Step: TypeAlias = Sound | Damaged


class Searched:
    """The bytes of the last search behind damage, and what a walk may still check in vain."""

    start = 0
    buffer: Buffer = b""
    is_rest = False
    """Whether they reach to the end of what may be looked at."""
    budget = Budget(0)

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.start + memoryview(self.buffer).nbytes

    def read(self, segment: Segment, position: int, reach: int, bound: Bound) -> None:
        """Reads some bytes from a position on."""
        self.start, self.buffer = position, segment.window(position, reach, bound)
        self.is_rest = self.end - position < reach
        self.budget = Budget(self.end - position)


def newer_record(path: str, position: int) -> NewerFormat:
    """Makes the error of a sound record that a newer version wrote: no damage to step over."""
    return NewerFormat("a sound record of an unknown version or flag", path=path, position=position)


class Segment:
    """What sealed and active segments share: names, index and reading.

    Index entries that came from disk carry no checksum. So one is checked against the log when it
    is used; if it is wrong, the segment is read as if it had no index.
    """

    def __init__(self, codec: Codec, files: Files, directory: str, base_offset: int) -> None:
        self.codec = codec
        self.files = files
        self.directory = directory
        self.base_offset = base_offset

    def path(self, suffix: str) -> str:
        """Returns the path of one of the segment's files."""
        return paths.join(self.directory, SegmentFile(self.base_offset, suffix).name)

    @property
    def index(self) -> SegmentIndex:
        """The segment's two indexes."""
        raise NotImplementedError

    @property
    def where(self) -> str:
        """The path of the `.log`, which is the truth of it."""
        return self.path("log")

    @property
    def oldest_ms(self) -> int | None:
        """The first time in the index; None without one."""
        times = self.index.times()
        return int(times["timestamp_ms"][0]) if len(times) else None

    @property
    def newest_ms(self) -> int | None:
        """The greatest time of its records; None before the first."""
        return self.index.newest_timestamp_ms

    @property
    def file(self) -> File:
        """The open `.log`."""
        raise NotImplementedError

    def window(self, position: int, length: int, bound: Bound) -> Buffer:
        """Returns bytes from a position on, within the bound; `FILLER` where a page is bad."""
        wanted = min(length, bound.position - position)
        try:
            return self.file.read_at(position, wanted)
        except OSError:
            return bad_pages.salvage(self.file, position, max(wanted, 0)).data

    def read_error(self, first: int, end: int) -> OSError | None:
        """Reads a range once more; returns the device's error if it cannot deliver it."""
        return bad_pages.read_error(self.file, first, end)

    def distrust_index(self) -> None:
        """Called for an index entry that does not match the log; a sealed segment rebuilds it."""

    def locate(self, offset: int, bound: Bound) -> int:
        """Returns the byte at which a record starts that the bound includes.

        Steps over damaged records before it; raises Damaged if it is one of them.
        """
        at, position = self._start_for(offset, bound)
        if at == offset:
            return position
        end = Bound(at, position)
        window = Limit(1 << 16, max_bytes=self.codec.stride.bytes)
        for step in self.walk(end, Bound(offset, bound.position), window):
            if isinstance(step, Sound):
                end = step.end
            elif step.following is None or step.following.next_offset > offset:
                raise step
            else:
                end = step.following
        if end.next_offset < offset:  # the file is shorter than it was
            raise Damaged(self, end, Stop.TORN)
        return end.position

    def walk(self, start: Bound, bound: Bound, limit: Limit) -> Iterator[Step]:
        """Walks to a bound, window by window: sound records, and the damage between them.

        `limit` is that of each window. The last step is damage if nothing sound follows it within
        the bound. Raises NewerFormat at a sound record of a newer version.
        """
        at, reach, searched = start, limit.max_bytes, Searched()
        while at.next_offset < bound.next_offset and at.position < bound.position:
            records = min(limit.max_records, bound.next_offset - at.next_offset)
            capped = type(limit)(records, reach)
            try:
                found, origin, buffer = self.scan(
                    at.position, at.next_offset, capped, bound, searched
                )
            except Damaged as damage:
                yield damage
                if damage.following is None:
                    return
                # More may follow soon, and what was read behind it would be read again.
                at, reach = damage.following, min(READ_AHEAD_BYTES, limit.max_bytes)
                continue
            step = Sound(at.next_offset, found, origin, buffer)
            yield step
            at, reach = step.end, min(2 * reach, limit.max_bytes)

    def _start_for(self, offset: int, bound: Bound) -> tuple[int, int]:
        """Returns (offset, position) of a record not above an offset, proven by the log itself."""
        for _ in range(2):
            entry = self.index.position_for(offset)
            if entry is None or self.index.trusted:
                break
            if self.holds(*entry, bound):
                return entry
            self.distrust_index()
        else:
            entry = None
        return entry if entry else (self.base_offset, self.codec.header_bytes)

    def holds(self, offset: int, position: int, bound: Bound) -> bool:
        """Returns whether a sound record with this offset starts at this byte."""
        if not self.codec.header_bytes <= position < bound.position:
            return False
        if not self.codec.begins_record(self.window(position, _HEAD_BYTES, bound), 0, offset):
            return False
        try:
            _, start, _ = self.scan(position, offset, Limit(max_records=1), bound)
        except Damaged:
            return False
        return start == position

    def offset_before_time(self, timestamp_ms: int, bound: Bound) -> int:
        """Returns an offset such that all records before it are older than a time."""
        for _ in range(2):
            row = self.index.row_before_time(timestamp_ms)
            if row < 0:
                break
            if self.index.trusted or self._time_holds(row, bound):
                return int(self.index.times()["offset"][row]) + 1
            self.distrust_index()
        return self.base_offset

    def _time_holds(self, row: int, bound: Bound) -> bool:
        """Returns whether a time entry is the running maximum of the log's timestamps up to it."""
        offsets, times = self.index.offsets(), self.index.times()
        first = max(row - 1, 0)
        at, position = (int(number) for number in offsets[first].tolist())
        if not self.codec.header_bytes <= position < bound.position:
            return False
        last = int(offsets["offset"][row])
        wanted = Limit(max_records=last - at + 1, max_bytes=1 << 26)
        try:
            found, _, buffer = self.scan(position, at, wanted, bound)
        except Damaged:
            return False
        newest = int(self.codec.timestamps_at(buffer, found.positions).max())
        if row > first:
            newest = max(newest, int(times["timestamp_ms"][first]))
        return len(found) == last - at + 1 and newest == int(times["timestamp_ms"][row])

    def read(self, offset: int, position: int, limit: Limit, bound: Bound) -> Chunk:
        """Reads records from a byte on; raises CorruptData where the bytes are damaged."""
        limit = Limit(min(limit.max_records, bound.next_offset - offset), limit.max_bytes)
        found, start, buffer = self.scan(position, offset, limit, bound)
        batch = self.codec.decode(buffer, found)
        return Chunk(batch, offset + len(found), found.end + start)

    def scan(
        self,
        position: int,
        offset: int,
        limit: Limit,
        bound: Bound,
        searched: Searched | None = None,
    ) -> tuple[Scan, int, Buffer]:
        """Scans at least one record; returns the scan, what to add to its positions, its buffer.

        Raises Damaged if there is none, and NewerFormat for one that a newer version wrote.
        """
        most = min(limit.max_bytes, 1 << 26) + RECORD_BYTES_GUESS
        length = min(most, READ_AHEAD_BYTES + limit.max_records * RECORD_BYTES_GUESS)
        while True:
            if position > bound.position:  # the file is shorter than it was
                raise Damaged(self, Bound(offset, position), Stop.TORN)
            buffer = self.window(position, length, bound)
            found = self.codec.scan(buffer, 0, expected_offset=offset, limit=limit)
            if len(found) and found.stop is Stop.LIMIT:
                return found, position, buffer
            end = position + memoryview(buffer).nbytes
            is_whole = end >= bound.position or end < position + length
            if len(found):
                if is_whole or length >= most or found.stop not in (Stop.TORN, Stop.END):
                    return found, position, buffer
                length = most  # records are larger than they were taken to be
                continue
            if found.stop is Stop.BAD_VERSION:
                raise newer_record(self.path("log"), position)
            if is_whole or found.stop is not Stop.TORN:
                sound = self.sound_after(position, offset, bound, searched)
                if sound is None or sound.next_offset != offset:
                    raise Damaged(self, Bound(offset, position), found.stop, sound)
                position = sound.position  # only leftovers stood before it
                continue
            length = max(4 * length, most)

    def sound_after(
        self, position: int, offset: int, bound: Bound, searched: Searched | None = None
    ) -> Bound | None:
        """Finds the first sound record from a damaged one's offset on.

        One that is found near is the first for certain only if all that begins before it would
        have been seen whole: so as much as a record may have is looked at behind it.
        """
        near = Searched() if searched is None else searched
        if not near.start <= position < near.end:
            near.read(self, position, NEAR_BYTES, bound)
        while True:
            first = position - near.start
            size = memoryview(near.buffer).nbytes
            found = None
            if size:
                found = self.codec.resync(
                    near.buffer, first, minimum_offset=offset, budget=near.budget
                )
            if near.is_rest or (found is not None and found + RECORD_BYTES_MAX <= size):
                break
            reach = bound.position
            if found is not None:
                reach = found - first + RECORD_BYTES_MAX + SEARCH_BYTES
            near.read(self, position, reach, bound)
        if found is None:
            return None
        return Bound(self.codec.offset_at(near.buffer, found), found + near.start)
