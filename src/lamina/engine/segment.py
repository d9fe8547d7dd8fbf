"""One segment of a partition: a run of records in one `.log`, with its two indexes.

    active ──seal──▶ sealed ──tomb──▶ gone

A sealed segment never changes and is read through a map; `active.py` has the one that grows.
Readers hold the segment object: when its files are removed, those who hold it finish.

Rule: a reader names the bound up to which it may look; what lies beyond is never scanned.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lamina.engine.codec import Codec
from lamina.engine.index import SegmentIndex
from lamina.errors import CorruptData
from lamina.formats.scan import Limit, Scan, Stop
from lamina.storage.files import Files
from lamina.storage.paths import SegmentFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_AHEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a reader may look into a segment: one past the last offset, and the byte there."""

    next_offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of a segment, and where the next ones are."""

    batch: pa.RecordBatch
    next_offset: int
    next_position: int


class Segment:
    """What sealed and active segments share: names, index and reading."""

    def __init__(self, codec: Codec, files: Files, directory: str, base_offset: int) -> None:
        self.codec = codec
        self.files = files
        self.directory = directory
        self.base_offset = base_offset

    def path(self, suffix: str) -> str:
        """Returns the path of one of the segment's files."""
        return os.path.join(self.directory, SegmentFile(self.base_offset, suffix).name)

    @property
    def index(self) -> SegmentIndex:
        """The segment's two indexes."""
        raise NotImplementedError

    def window(self, position: int, length: int, bound: Bound) -> tuple[Buffer, int]:
        """Returns bytes from a position on, within the bound, and where in the file they start."""
        raise NotImplementedError

    def locate(self, offset: int, bound: Bound) -> int:
        """Returns the byte at which a record starts that the bound includes."""
        entry = self.index.position_for(offset)
        at, position = entry if entry else (self.base_offset, self.codec.header_bytes)
        while at < offset:
            limit = Limit(max_records=min(offset - at, 1 << 16), max_bytes=1 << 24)
            found, shift, _ = self._scan(position, at, limit, bound)
            at += len(found)
            position = found.end + shift
        return position

    def read(self, offset: int, position: int, limit: Limit, bound: Bound) -> Chunk:
        """Reads records from a byte on; raises CorruptData where the bytes are damaged."""
        limit = Limit(min(limit.max_records, bound.next_offset - offset), limit.max_bytes)
        found, shift, buffer = self._scan(position, offset, limit, bound)
        batch = self.codec.decode(buffer, found)
        return Chunk(batch, offset + len(found), found.end + shift)

    def _scan(
        self, position: int, offset: int, limit: Limit, bound: Bound
    ) -> tuple[Scan, int, Buffer]:
        """Scans at least one record; returns the scan, what to add to its positions, its buffer."""
        length = min(limit.max_bytes, 1 << 26) + READ_AHEAD_BYTES
        while True:
            buffer, start = self.window(position, length, bound)
            found = self.codec.scan(buffer, position - start, expected_offset=offset, limit=limit)
            if len(found):
                return found, start, buffer
            whole = start + memoryview(buffer).nbytes >= bound.position
            if whole or found.stop is not Stop.TORN:
                raise self.damage(position, found.stop)
            length *= 4

    def damage(self, position: int, stop: Stop) -> CorruptData:
        """Makes the error for a damaged spot."""
        return CorruptData(
            "a record is damaged",
            path=self.path("log"),
            position=position,
            expected="a sound record",
            found=stop.name,
        )

    def sound_after(self, position: int, offset: int, bound: Bound) -> tuple[int, int] | None:
        """Finds the first sound record behind a damaged one: (offset, position)."""
        buffer, start = self.window(position, bound.position - position, bound)
        found = self.codec.resync(buffer, position - start + 1, minimum_offset=offset + 1)
        if found is None:
            return None
        return self.codec.offset_at(buffer, found), found + start


class SealedSegment(Segment):
    """An immutable segment, mapped when it is first read."""

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
        self._index = index
        self._map: Buffer | None = None
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
                self._index = load_index(self, self._mapped())
            return self._index

    def window(self, position: int, length: int, bound: Bound) -> tuple[Buffer, int]:
        """Returns the whole map: it costs nothing."""
        with self._lock:
            return self._mapped(), 0

    def _mapped(self) -> Buffer:
        if self._map is None:
            file = self.files.open_read_only(self.path("log"))
            try:
                self._map = file.map()
            finally:
                file.close()
        return self._map


def load_index(segment: Segment, buffer: Buffer) -> SegmentIndex:
    """Loads a sealed segment's index files, or rebuilds them in memory when they are not right."""
    index = SegmentIndex(segment.codec, segment.base_offset)
    resume = load_entries(segment, index, buffer)
    for found, first, _ in walk(segment.codec, buffer, *resume):
        timestamps = segment.codec.timestamps_at(buffer, found.positions)
        index.extend(found.positions, timestamps, base_offset=first, origin=0)
    return index


def load_entries(
    segment: Segment, index: SegmentIndex, buffer: Buffer, *, durable_to: int | None = None
) -> tuple[int, int]:
    """Takes the index files if they fit the log; returns the (position, offset) to go on from.

    Entries above `durable_to` are not taken: what they point at may be lost.
    """
    fresh = segment.codec.header_bytes, segment.base_offset
    try:
        offsets, times = segment.codec.decode_indexes(
            segment.files.read(segment.path("idx")),
            segment.files.read(segment.path(segment.codec.time_suffix)),
            segment.base_offset,
        )
    except (CorruptData, OSError):
        return fresh
    count = min(len(offsets), len(times))
    if durable_to is not None:
        count = min(count, int(np.searchsorted(offsets["offset"], durable_to, side="right")))
    if count == 0 or not np.array_equal(offsets["offset"][:count], times["offset"][:count]):
        return fresh
    offset, position = (int(number) for number in offsets[count - 1].tolist())
    first = int(offsets["offset"][0])
    if first != segment.base_offset or position >= memoryview(buffer).nbytes:
        return fresh
    one = Limit(max_records=1)
    if len(segment.codec.scan(buffer, position, expected_offset=offset, limit=one)) == 0:
        return fresh
    index.load(offsets[:count], times[:count])
    return position, offset


def walk(
    codec: Codec, buffer: Buffer, position: int, offset: int
) -> Iterator[tuple[Scan, int, Stop]]:
    """Yields runs of sound records with their first offset, over damaged spots."""
    size = memoryview(buffer).nbytes
    while position < size:
        found = codec.scan(buffer, position, expected_offset=offset, limit=Limit())
        if len(found):
            yield found, offset, found.stop
        offset += len(found)
        position = found.end
        if found.stop.is_damage:
            following = codec.resync(buffer, position + 1, minimum_offset=offset)
            if following is None:
                return
            position, offset = following, codec.offset_at(buffer, following)
