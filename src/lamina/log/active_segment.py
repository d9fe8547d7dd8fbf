"""The segment that grows: written by the writer's leader, read up to a published bound.

Rules.
1. Only the leader appends, syncs and seals. Readers see `written` or `durable`, never `tail`.
2. Space beyond the records is prepared with zeros, which halves the cost of a small fsync; it is
   cut when the segment is sealed, and reads as a torn tail after a crash.
3. Indexes are written behind the log and synced when the segment is sealed. Their files are open
   only while they are written to; the log's is kept within the store's limit.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lamina.errors import NO_DESCRIPTORS
from lamina.formats.log_format import Codec
from lamina.log.sealed_segment import INDEX_ENTRY_BYTES, SealedSegment
from lamina.log.segment import Bound, Segment
from lamina.log.segment_index import Mark, SegmentIndex
from lamina.storage.files import File, Files, prepare_space

PREPARE_BYTES_MIN = 64 << 10
PREPARE_BYTES_MAX = 4 << 20
PREPARE_BELOW_BYTES = 64 << 10
"""Larger groups gain nothing from prepared space, and would write everything twice."""
INDEX_ENTRIES_PER_WRITE = 256


class Departed:
    """What a segment held when a group's sync began: see `flights`."""

    __slots__ = ("_announce", "_segment", "changes", "file", "has_landed", "is_own", "tail")

    def __init__(
        self,
        segment: ActiveSegment,
        changes: int,
        file: File,
        *,
        is_own: bool,
        announce: Callable[[], None],
    ) -> None:
        self._segment, self._announce = segment, announce
        self.tail, self.changes = segment.tail, changes
        self.file, self.is_own = file, is_own
        self.has_landed = False

    def sync(self) -> None:
        """Makes it durable."""
        self.file.sync()

    def land(self) -> None:
        """Shows it as durable, and wakes those who wait for it."""
        self._segment.land(self)
        self._announce()


class ActiveSegment(Segment):
    """The segment that is appended to.

    `tail` is what the leader has written; `written` and `durable` are what readers may see of it.
    """

    def __init__(
        self, codec: Codec, files: Files, directory: str, *, base_offset: int, created_ms: int
    ) -> None:
        super().__init__(codec, files, directory, base_offset)
        self.created_ms = created_ms
        self.tail = self.written = self.durable = Bound(base_offset, codec.header_bytes)
        self._index = SegmentIndex(codec, base_offset)
        self._has_indexes = False
        self._indexes_wait = False
        self._prepared = 0
        self._begun = 0  # where this process began to append
        self._file: File | None = None
        self._opening = threading.Lock()
        self._changes = self._synced_changes = 0
        self._in_flight = 0
        self._is_lent = False  # the log's own descriptor, to a departure
        self._idle: list[File] = []  # other descriptors of it, for departures beside each other
        self.used = True

    @classmethod
    def create(
        cls, codec: Codec, files: Files, directory: str, *, base_offset: int, created_ms: int
    ) -> ActiveSegment:
        """Makes a new segment: header, fsync, then the names; only then is it there for good."""
        segment = cls(codec, files, directory, base_offset=base_offset, created_ms=created_ms)
        try:
            segment._file = files.create(segment.path("log"))
            segment._file.write_at(0, codec.log_header(base_offset, created_ms))
            segment._file.sync()  # a durable name must never lead to a log without its header
            # The names last: without them a power cut takes the file with acknowledged records.
            segment._write_indexes()
            files.sync_directory(directory)
        except OSError:
            segment.discard()
            raise
        files.kept.enter(segment)
        return segment

    def discard(self) -> None:
        """Removes a segment of which nothing was acknowledged, durably: it must not come back."""
        for suffix in ("idx", self.codec.time_suffix, "log"):
            if self.files.exists(self.path(suffix)):
                self.files.remove(self.path(suffix))
        self.files.sync_directory(
            self.directory
        )  # or it comes back after a crash, with its records

    def resume(self, file: File, end: Bound, index: SegmentIndex, *, indexes_wait: bool) -> None:
        """Takes over a log that recovery has checked, cut and synced.

        With `indexes_wait` the index files are right as they are, and opened with the next entry.
        """
        self._file = file
        self.tail = self.written = self.durable = end
        self._begun = self._prepared = end.position
        self._index = index
        self._indexes_wait = indexes_wait
        if not indexes_wait:
            self._try_indexes()
        self.files.kept.enter(self)

    def _try_indexes(self) -> None:
        self._indexes_wait = False
        try:
            self._write_indexes()
        except OSError as error:  # on a full disk they are rebuilt later
            self._indexes_wait = error.errno in NO_DESCRIPTORS

    @property
    def segment(self) -> ActiveSegment:
        """Itself: a layout's tail is read like any segment."""
        return self

    @property
    def index(self) -> SegmentIndex:
        """The segment's indexes, growing."""
        return self._index

    @property
    def file(self) -> File:
        """The open `.log`."""
        return self._file or self._open()

    def _open(self) -> File:
        opened = self.files.open(self.path("log"))  # unlocked: it may let go of others, and of us
        with self._opening:
            if self._file is None:
                self._file = opened
            file = self._file
        self.files.kept.enter(self)
        return file

    def let_go(self) -> bool:
        """Drops the file, unless something in it is not synced yet."""
        with self._opening:
            file, self._file = self._file, None
            if self._is_unsynced:  # also where that has begun just now, with this very file
                self._file = file
                return False
        return True

    def close_file(self) -> None:
        """Drops the file: everything is synced, or left to recovery."""
        self._synced_changes, self._in_flight = self._changes, 0
        self._file, self._is_lent = None, False
        self._close_idle()

    @property
    def _is_unsynced(self) -> bool:
        return self._synced_changes < self._changes or self._in_flight > 0

    # ------------------------------------------------------------------ for the leader

    def append(
        self, data: NDArray[np.uint8], positions: NDArray[np.int64], timestamps: NDArray[np.int64]
    ) -> None:
        """Writes encoded records at the tail; positions count from the first byte of `data`."""
        start = self.tail.position
        self._changes += 1
        self.file.write_at(start, data.data)
        self._index.extend(positions, timestamps, base_offset=self.tail.next_offset, origin=start)
        self.tail = Bound(self.tail.next_offset + len(positions), start + len(data))

    def undo(self, tail: Bound, mark: Mark) -> None:
        """Takes appended records back, durably: a refused append must not return after a crash."""
        self._changes += 1
        file = self._file
        if file is not None:  # without it nothing was written: what is not synced keeps it open
            file.truncate(tail.position)
            file.sync()
        if self.durable.position == tail.position:
            self._synced_changes = self._changes
        self._prepared = tail.position
        self._index.rewind(mark)
        self.tail = tail

    def prepare(self, length: int) -> None:
        """Writes zeros ahead of a small append: its fsync then need not change the size.

        As much again as was appended so far: opening a log for one record costs little more.
        """
        start = self.tail.position
        if start + length <= self._prepared:
            return
        self._changes += 1
        ahead = min(max(start - self._begun, PREPARE_BYTES_MIN), PREPARE_BYTES_MAX)
        self._prepared = prepare_space(self.file, start, start + length + ahead)

    def sync(self) -> None:
        """Makes the tail durable, and only then visible to readers of durable records."""
        # For the owner of the tail while nothing is in the air; what is, has departures.
        self.file.sync()
        self.written = self.durable = self.tail
        self._synced_changes = self._changes
        self.used = True

    def show(self) -> None:
        """Shows readers the tail, which was synced together with others."""
        self.written = self.durable = self.tail
        self._synced_changes = self._changes

    def depart(self, announce: Callable[[], None]) -> Departed | None:
        """Returns what is written by now, to be synced while more is; None without a descriptor.

        Each one in the air has a descriptor to itself: see `flights`. The log's own is the first.
        """
        with self._opening:
            self._in_flight += 1
            is_own, self._is_lent = not self._is_lent, True
            idle = self._idle.pop() if self._idle and not is_own else None
        try:
            file = self.file if is_own else idle or self.files.open(self.path("log"))
        except OSError:
            self._give_back(None, is_own=is_own)
            return None
        return Departed(self, self._changes, file, is_own=is_own, announce=announce)

    def land(self, departed: Departed) -> None:
        """Shows what has departed as durable, in the order of departure."""
        if departed.has_landed:
            return
        self.durable = departed.tail
        self._synced_changes = departed.changes
        self.used = True
        departed.has_landed = True  # behind all of it: who is cut off before this does it again
        self._give_back(departed.file, is_own=departed.is_own)

    def _give_back(self, file: File | None, *, is_own: bool) -> None:
        with self._opening:
            self._in_flight -= 1
            if is_own:
                self._is_lent = False
            elif file is not None:
                self._idle.append(file)
            if not self._in_flight:  # a quiet log keeps one descriptor
                self._close_idle()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for file in idle:
            file.close()

    def save_index(self) -> None:
        """Writes new index entries; a failure only means that they are rebuilt later."""
        if self._indexes_wait:
            self._try_indexes()  # with all that there is
            return
        if not self._has_indexes:
            return
        headers = self.codec.index_headers(self.base_offset, self.created_ms)
        before, *parts = self._index.take_unsaved()
        try:
            for suffix, header, part in zip(self._suffixes, headers, parts, strict=True):
                file = self.files.open(self.path(suffix))
                try:
                    file.write_at(len(header) + before * INDEX_ENTRY_BYTES, part)
                finally:
                    file.close()
        except OSError as error:
            self._has_indexes = False
            self._indexes_wait = error.errno in NO_DESCRIPTORS

    def finish(self) -> SealedSegment:
        """Seals a synced segment: cuts prepared space, saves and syncs the indexes."""
        self.save_index()
        if self._prepared > self.tail.position:
            self.file.truncate(self.tail.position)
            self.file.sync()  # a sealed file ends with its last record: zeros behind it are damage
        if self._has_indexes:
            with contextlib.suppress(OSError):
                for suffix in self._suffixes:
                    with contextlib.closing(self.files.open(self.path(suffix))) as file:
                        file.sync()  # protects no record, but the next open from a walk
        self._has_indexes = False
        self._synced_changes = self._changes
        return SealedSegment(
            self.codec,
            self.files,
            self.directory,
            base_offset=self.base_offset,
            end=self.tail,
            index=self._index,
        )

    @property
    def _suffixes(self) -> tuple[str, str]:
        return "idx", self.codec.time_suffix

    def _write_indexes(self) -> None:
        """Cuts both index files to the header and the saved entries."""
        headers = self.codec.index_headers(self.base_offset, self.created_ms)
        saved = self._index.saved_bytes()
        for suffix, header, part in zip(self._suffixes, headers, saved, strict=True):
            path, whole = self.path(suffix), header + part
            is_there = self.files.exists(path)
            opened = self.files.open(path) if is_there else self.files.create(path)
            with contextlib.closing(opened) as file:
                file.write_at(0, whole)
                if is_there and file.size() > len(whole):
                    file.truncate(len(whole))
        self._has_indexes = True
