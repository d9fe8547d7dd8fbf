"""One segment of a partition: a run of records in one `.log`, with its two indexes.

    active ──seal──▶ sealed ──tomb──▶ gone

A sealed segment never changes; `active_segment` has the one that grows. Both are read by windows.

Rules.
1. A reader names the bound up to which it may look; what lies beyond is never scanned.
2. Pages that the device cannot deliver cost the records on them: `window` has `FILLER` there, so
   that these are `Damaged` as if their bytes were wrong. `read_error` tells one from the other.
3. A segment's file is opened when it is needed and kept within the store's limit. What is opened
   again must be the same file: one that was replaced since is as one that is gone.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.keratin import manifest
from lamina.formats.log_format import Codec
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Damage, Limit, Scan, Stop, Timed, runs
from lamina.formats.sparse_choice import Entries
from lamina.formats.sparse_index import times_agree
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
INDEX_ENTRY_BYTES = 16
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
    """A record's bytes are not sound; `offset` is the one it should have had."""

    def __init__(self, segment: Segment, position: int, offset: int, stop: Stop) -> None:
        super().__init__(
            "a record is damaged",
            path=segment.path("log"),
            position=position,
            expected="a sound record",
            found=stop.name,
        )
        self.offset = offset


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
        """Is told that an index entry is not what the log says."""

    def locate(self, offset: int, bound: Bound) -> int:
        """Returns the byte at which a record starts that the bound includes.

        Steps over damaged records before it; raises Damaged if it is one of them.
        """
        at, position = self._start_for(offset, bound)
        while at < offset:
            limit = Limit(min(offset - at, 1 << 16), max_bytes=self.codec.stride.bytes)
            try:
                found, shift, _ = self.scan(position, at, limit, bound)
            except Damaged as error:
                sound = self.sound_after(error.position, error.offset, bound)
                if sound is None or sound[0] > offset:
                    raise
                at, position = sound
                continue
            at += len(found)
            position = found.end + shift
        return position

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
        """Returns whether a time entry is the running maximum that the log gives for it."""
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
        self, position: int, offset: int, limit: Limit, bound: Bound
    ) -> tuple[Scan, int, Buffer]:
        """Scans at least one record; returns the scan, what to add to its positions, its buffer."""
        most = min(limit.max_bytes, 1 << 26) + RECORD_BYTES_GUESS
        length = min(most, READ_AHEAD_BYTES + limit.max_records * RECORD_BYTES_GUESS)
        while True:
            if position > bound.position:  # the file is shorter than it was
                raise Damaged(self, position, offset, Stop.TORN)
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
                sound = self.sound_after(position, offset, bound)
                if sound is None or sound[0] != offset:
                    raise Damaged(self, position, offset, found.stop)
                position = sound[1]  # only leftovers stood before it
                continue
            length = max(4 * length, most)

    def sound_after(self, position: int, offset: int, bound: Bound) -> tuple[int, int] | None:
        """Finds the first sound record from a damaged one's offset on: (offset, position).

        One that is found near is the first for certain only if all that begins before it would
        have been seen whole: so as much as a record may have is looked at behind it.
        """
        start, reach = position, NEAR_BYTES  # where a sound record may be that is out of order
        while True:
            buffer = self.window(start, reach, bound)
            size = memoryview(buffer).nbytes
            found = self.codec.resync(buffer, 0, minimum_offset=offset) if size else None
            if size < reach or (found is not None and found + RECORD_BYTES_MAX <= reach):
                break
            reach = bound.position if found is None else found + RECORD_BYTES_MAX
        if found is None:
            return None
        return self.codec.offset_at(buffer, found), found + start


class SealedSegment(Segment):
    """An immutable segment, opened when it is first read.

    `recorded` is what a manifest says of it, once it was in one.
    """

    used = True

    def __init__(
        self,
        codec: Codec,
        files: Files,
        directory: str,
        *,
        base_offset: int,
        end: Bound,
        index: SegmentIndex | None = None,
    ) -> None:
        super().__init__(codec, files, directory, base_offset)
        self.end = end
        self.recorded: manifest.SealedSegment | None = None
        self._index = index
        self._file: File | None = None
        self._identity: tuple[int, ...] | None = None
        self._log = self.path("log")
        self._lock = threading.Lock()

    @property
    def next_offset(self) -> int:
        """One past the last offset that the segment may hold."""
        return self.end.next_offset

    @property
    def size_bytes(self) -> int:
        """The bytes of the `.log`."""
        return self.end.position

    @property
    def index(self) -> SegmentIndex:
        """The segment's indexes, loaded or rebuilt when they are first needed."""
        with self._lock:
            if self._index is None:
                index = SegmentIndex(self.codec, self.base_offset)
                extend_index(self, index, load_entries(self, index))
                self._index = index
            return self._index

    def distrust_index(self) -> None:
        """Rebuilds the index from the log; its files are left to `verify` and rebuilding."""
        with self._lock:
            index = SegmentIndex(self.codec, self.base_offset)
            extend_index(self, index, (self.codec.header_bytes, self.base_offset))
            self._index = index

    @property
    def file(self) -> File:
        """The open `.log`; raises FileNotFoundError where it is another one by now."""
        self.used = True
        file = self._file
        return self._open() if file is None else file

    def _open(self) -> File:
        file = self.files.open_read_only(self._log)
        identity = self._identify(file)
        if self._identity not in (None, identity):
            file.close()
            raise FileNotFoundError(errno.ENOENT, "the file was replaced", self._log)
        self._file, self._identity = file, identity
        self.files.kept.enter(self)
        return file

    def _identify(self, file: File) -> tuple[int, ...]:
        return file.identity()

    def hold(self) -> None:
        """Opens the file: what takes its name from now on is not what is read."""
        _ = self.file

    def let_go(self) -> bool:
        """Drops the file; readers that are using it finish."""
        self._file = None
        return True

    def is_unchanged(self) -> bool:
        """Returns whether the file is the one that was opened, or as long: an erasure replaces it.

        Readers that follow a writer ask this of every segment they know, with each look.
        """
        if self._identity is None:
            self.hold()
            return True
        return self.files.size(self._log) == self._identity[-1]


WALK_BYTES = 8 << 20
"""How much of a segment a walk reads at a time."""


def extend_index(segment: SealedSegment, index: SegmentIndex, start: tuple[int, int]) -> int:
    """Indexes a segment's records from (position, offset) on; returns where the last one ends.

    Never looks beyond the last record: there may be prepared space, about to be cut by its writer.
    """
    position, offset = start
    size = segment.file.size()
    bound = Bound(segment.next_offset, size)
    while position < size and offset < segment.next_offset:
        limit = Timed(max_records=min(segment.next_offset - offset, 1 << 20), max_bytes=WALK_BYTES)
        try:
            found, begin, _ = segment.scan(position, offset, limit, bound)
        except Damaged:
            return _index_over_damage(segment, index, (position, offset), bound)
        index.extend(found.positions, found.timestamps, base_offset=offset, origin=begin)
        offset, position = offset + len(found), found.end + begin
    return position


def _index_over_damage(
    segment: SealedSegment, index: SegmentIndex, start: tuple[int, int], bound: Bound
) -> int:
    """Indexes the rest of a segment behind damage, all of it at once: there may be more."""
    origin, offset = start
    buffer = segment.window(origin, bound.position - origin, bound)
    position, end = 0, segment.next_offset
    log = OffsetLog(segment.codec.log, buffer)
    for step in runs(log, 0, offset, limit=Timed(), end_number=end):
        if isinstance(step, Damage):
            continue
        positions, times, count = step.found.positions, step.found.timestamps, end - step.first
        index.extend(positions[:count], times[:count], base_offset=step.first, origin=origin)
        position = step.found.end if step.end <= end else int(positions[count])
        if step.end >= end:
            break
    return origin + position


def load_entries(
    segment: Segment, index: SegmentIndex, *, durable_to: int | None = None
) -> tuple[int, int]:
    """Takes the index files if they fit the log; returns the (position, offset) to go on from.

    Entries above `durable_to` are not taken: what they point at may be lost. The last two must be
    what the log says, so that the newest time, which retention goes by, is proven.
    """
    fresh = segment.codec.header_bytes, segment.base_offset
    try:
        stored = segment.files.read(segment.path("idx"))
        if len(stored) < segment.codec.index_header_bytes + 2 * INDEX_ENTRY_BYTES:
            return fresh  # one entry leads to the first record, as none does
        offsets, times = segment.codec.decode_indexes(
            stored,
            segment.files.read(segment.path(segment.codec.time_suffix)),
            segment.base_offset,
        )
    except (CorruptData, OSError):
        return fresh
    count = min(len(offsets), len(times))
    if durable_to is not None:
        count = min(count, int(np.searchsorted(offsets["offset"], durable_to, side="right")))
    offsets, times = offsets[:count], times[:count]
    if count == 0 or not times_agree(times, offsets):
        return fresh
    if int(offsets["offset"][0]) != segment.base_offset:
        return fresh
    if not _last_agree(segment, offsets[-2:], times[-2:]):
        return fresh
    offset, position = (int(number) for number in offsets[-1].tolist())
    index.load(offsets, times)
    return position, offset


def _last_agree(segment: Segment, offsets: Entries, times: Entries) -> bool:
    """Returns whether the last two entries (or the only one) are what the log says."""
    codec = segment.codec
    at, position = (int(number) for number in offsets[0].tolist())
    last, last_position = (int(number) for number in offsets[-1].tolist())
    size = segment.file.size()
    if not codec.header_bytes <= position <= last_position < size:
        return False
    wanted = last - at + 1
    limit = Limit(max_records=wanted, max_bytes=1 << 26)
    try:
        found, start, buffer = segment.scan(position, at, limit, Bound(last + 1, size))
    except Damaged:
        return False
    if len(found) < wanted or int(found.positions[-1]) + start != last_position:
        return False
    newest = int(codec.timestamps_at(buffer, found.positions).max())
    if len(times) > 1:
        newest = max(newest, int(times["timestamp_ms"][0]))
    return newest == int(times["timestamp_ms"][-1])
