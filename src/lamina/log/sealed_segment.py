"""A segment that never changes again, opened when it is first read, and its indexes.

Rules.
1. Derived: both indexes are rebuilt from the log. Index files are taken only if they fit it, and
   are left alone here if they do not.
2. A segment's file is opened when it is needed and kept within the store's limit. What is opened
   again must be the same file: one that was replaced meanwhile counts as gone.
"""

from __future__ import annotations

import errno
import threading

import numpy as np

from lamina.errors import CorruptData
from lamina.formats.keratin import manifest
from lamina.formats.log_format import Codec
from lamina.formats.scan import Limit, Timed
from lamina.formats.sparse_choice import Entries
from lamina.formats.sparse_index import times_agree
from lamina.log.segment import Bound, Damaged, Segment
from lamina.log.segment_index import SegmentIndex
from lamina.storage.files import File, Files

INDEX_ENTRY_BYTES = 16
WALK_BYTES = 8 << 20
"""How much of a segment a walk reads at a time."""


class SealedSegment(Segment):
    """An immutable segment, opened when it is first read.

    `recorded` is its entry in the manifest, once it has one.
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


def extend_index(segment: SealedSegment, index: SegmentIndex, start: tuple[int, int]) -> int:
    """Indexes a segment's records from (position, offset) on; returns where the last one ends.

    Never looks beyond the last record: there may be prepared space, about to be cut by its writer.
    """
    position, offset = start
    end = Bound(offset, position)
    bound = Bound(segment.next_offset, segment.file.size())
    for step in segment.walk(end, bound, Timed(max_bytes=WALK_BYTES)):
        if isinstance(step, Damaged):
            continue
        times = step.found.timestamps
        index.extend(step.found.positions, times, base_offset=step.offset, origin=step.origin)
        end = step.end
    return end.position


def load_entries(
    segment: Segment, index: SegmentIndex, *, durable_to: int | None = None
) -> tuple[int, int]:
    """Takes the index files if they fit the log; returns the (position, offset) to go on from.

    Entries above `durable_to` are not taken: what they point at may be lost. The last two must be
    confirmed by the log, so that the newest time, which retention relies on, is proven.
    """
    fresh = segment.codec.header_bytes, segment.base_offset
    try:
        stored = segment.files.read(segment.path("idx"))
        if len(stored) < segment.codec.index_header_bytes + 2 * INDEX_ENTRY_BYTES:
            return fresh  # a single entry points to the first record, which needs no index
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
    """Returns whether the log confirms the last two entries (or the only one)."""
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
