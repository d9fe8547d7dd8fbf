"""The compactor: copies each topic's new frames from the WAL into its active segment.

    copy ─▶ settle: sync .data, .idx, names ─▶ CheckpointMark, synced ─▶ publish ─▶ free WAL files

Some topics, with all their new segments, are copied before the first file is waited for: they are
written out together, and the file system's journal is committed for all of them at once.

Rules.
1. Bytes are copied as they are, a frame without its type byte; nothing is encoded again.
2. Only durable records are copied. A crash at any step leaves the WAL with all of them.
3. Everything is durable before the mark. A crash before it may tear any segment of the copy:
   recovery trusts the index of a segment only if a mark covers it.
4. What fails half-way is cut off again: no old frames stay behind a segment's end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.api import Gap
from lamina.formats.scan import Scan
from lamina.formats.wal import control, index, located, log
from lamina.formats.wal.layout import FrameType
from lamina.storage.files import File
from lamina.wal import segments
from lamina.wal.ground import Ground
from lamina.wal.reader import TopicReader
from lamina.wal.segments import Segment
from lamina.wal.shard import POSITION_BITS, POSITION_MASK, WalFile, frame_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 8 << 20
UNSETTLED_MAX = 32
"""How many full segments of a topic wait to be synced together; two files of each are open."""


@dataclass(slots=True)
class Copied:
    """One topic's new segments, not published yet, and not durable until `settle` returns."""

    topic: TopicReader
    segments: tuple[Segment, ...]
    end: int
    size_bytes: int
    tail: _Tail

    @property
    def unsettled(self) -> int:
        """How many segments are open still, to be synced."""
        return self.tail.unsettled

    def settle(self) -> None:
        """Makes everything that was copied durable; takes it back where that fails."""
        try:
            self.tail.settle()
        except BaseException:
            self.tail.undo()
            raise


class Compactor:
    """Copies topics, one at a time; one thread."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._out: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def copy(self, topic: TopicReader) -> Copied | None:
        """Copies what is durable of a topic and not in segments yet; None if nothing is."""
        end = topic.durable_end
        if not topic.layout.runs or topic.layout.runs[0].first_sequence >= end:
            return None
        if not len(self._out):
            self._out = np.empty(BUFFER_BYTES, dtype=np.uint8)
        before = topic.layout.segments
        tail = _Tail(self._ground, topic, before)
        try:
            for piece in _pieces(topic, end):
                self._copy_piece(topic, tail, piece)
            return Copied(topic, tail.finish(), end, tail.copied_bytes, tail)
        except BaseException:
            tail.undo()
            raise

    def _copy_piece(
        self,
        topic: TopicReader,
        tail: _Tail,
        piece: _Piece,
    ) -> None:
        sequence, data, positions = piece.sequence, piece.data, piece.positions
        row = 0
        while row < len(positions):
            room, records = tail.room(sequence + row)
            out = self._out[:room]
            expected = located.Expected(topic.topic_id, sequence + row)
            wanted = positions[row : row + records]
            got = located.gather(data, wanted, expected, out)
            if len(got.scan):
                tail.append(out[: got.scan.end], got.scan, sequence + row)
                row += len(got.scan)
            elif not got.is_sound:
                piece.refuse_unread(row)
                self._lose(topic, sequence + row)
                row += 1
            elif not tail.seal():
                self._out = np.empty(2 * got.needed_bytes, dtype=np.uint8)
                tail.oversize = got.needed_bytes

    def _lose(self, topic: TopicReader, sequence: int) -> None:
        """A frame of the WAL is damaged: its record is lost, and entered before it is skipped."""
        if topic.ledger.at(sequence) is None:
            why = "its frame in the WAL is damaged"
            gap = Gap(sequence, sequence + 1, "lost", self._ground.now_ms(), why)
            self._ground.files.make_directory(topic.place.directory)
            topic.ledger = topic.place.enter_gap(topic.ledger, gap)


class _Piece(NamedTuple):
    """Some records of a run: their first sequence, and where they lie in bytes of a WAL file."""

    sequence: int
    file: WalFile
    origin: int
    data: Buffer
    positions: NDArray[np.int64]

    def refuse_unread(self, row: int) -> None:
        """Raises OSError if a frame is not damaged, but was not delivered: it stays in the WAL."""
        at = int(self.positions[row])
        error = self.file.read_error(self.origin + at, 1 + frame_bytes(self.data, at))
        if error is not None:
            raise error


def _pieces(topic: TopicReader, end: int) -> Iterator[_Piece]:
    """Yields what of each run lies in one WAL file, some at a time."""
    for run in topic.layout.runs:
        count = min(end, run.end_sequence) - run.first_sequence
        if count <= 0:
            continue
        places = np.frombuffer(run.locations[:count], dtype=np.int64)
        numbers = places >> POSITION_BITS
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), count]
        for first, stop in pairwise(edges):
            file = topic.sources.wal.get(int(numbers[first]))
            assert file is not None, "a file that runs point to is not freed"
            begin = first
            while begin < stop:
                positions = places[begin:stop] & POSITION_MASK
                some, origin, data = file.frames(positions, BUFFER_BYTES)
                yield _Piece(run.first_sequence + begin, file, origin, data, some - origin)
                begin += len(some)


class _Tail:
    """The segments that a copy writes to: the active one, and those that follow it."""

    def __init__(self, ground: Ground, topic: TopicReader, before: tuple[Segment, ...]) -> None:
        self._ground = ground
        self._topic = topic
        self._sealed = list(before)
        self._before = before
        self._current: Segment | None = None
        if before and not before[-1].sealed:
            self._current = self._sealed.pop()
        self._files: tuple[File, File] | None = None
        self._unsettled: list[tuple[File, File]] = []
        self._created: list[Segment] = []
        self.copied_bytes = 0
        self.oversize = 0

    def room(self, sequence: int) -> tuple[int, int]:
        """Returns how many bytes and records the current segment still takes.

        Begins a new one where the current one is full, or could not span the hole before a
        sequence.
        """
        current = self._current
        if current is not None:
            wide = sequence - current.first_sequence >= index.entries_max(current.frames + 1) - 1
            if self._is_full(current) or wide:
                self.seal()
                current = None
        if current is None:
            return max(
                BUFFER_BYTES, self.oversize
            ) if self.oversize else self._limit(), self._events
        records = min(self._events - current.frames, index.entries_max(current.frames) // 2)
        return min(self._bytes - current.data_bytes, BUFFER_BYTES), max(1, records)

    @property
    def _bytes(self) -> int:
        return min(self._ground.settings.segment_bytes, self._topic.settings.segment_bytes)

    @property
    def _events(self) -> int:
        return self._ground.settings.segment_events

    def _limit(self) -> int:
        return min(self._bytes, BUFFER_BYTES)

    def _is_full(self, segment: Segment) -> bool:
        return segment.frames >= self._events or segment.data_bytes >= self._bytes

    def append(self, data: NDArray[np.uint8], found: Scan, sequence: int) -> None:
        """Writes frames and their entries behind the current segment."""
        self.oversize = 0
        if self._current is None:
            self._current = self._create(sequence)
        current, files = self._current, self._open()
        floor = current.newest_ms if current.frames else index.TIMESTAMP_MIN
        entries = index.build(
            data.data,
            found,
            first_sequence=current.end_sequence,
            base_position=current.data_bytes,
            timestamp_floor_ms=floor,
        )
        deleted = self._topic.deleted
        if len(deleted):
            entries = index.mark_deleted(entries, current.end_sequence, deleted.pairs())
        files[0].write_at(current.data_bytes, data.data)
        at = index.position_of(current.end_sequence, current.first_sequence)
        files[1].write_at(at, index.encode(entries))
        files[0].begin_sync()
        self.copied_bytes += len(data)
        self._current = current._replace(
            end_sequence=current.end_sequence + len(entries),
            data_bytes=current.data_bytes + len(data),
            frames=current.frames + len(found),
            newest_ms=int(entries["timestamp_ms"][-1]),
        )

    def _create(self, sequence: int) -> Segment:
        ground, topic = self._ground, self._topic
        directory = ground.hot(topic.topic_id)
        ground.files.make_directory(directory)
        segment = Segment(topic.topic_id, directory, sequence, sequence, 0, 0, 0, ground.steady())
        for suffix in ("data", "idx"):  # what a crash left there is in the WAL still
            if ground.files.exists(segment.path(suffix)):
                ground.files.remove(segment.path(suffix))
        self._created.append(segment)
        self._files = (
            ground.files.create(segment.path("data")),
            ground.files.create(segment.path("idx")),
        )
        return segment

    def _open(self) -> tuple[File, File]:
        current = self._current
        if self._files is None and current is not None:
            files = self._ground.files
            data = files.open(current.path("data"))
            if data.size() > current.data_bytes:
                data.truncate(current.data_bytes)
            path = current.path("idx")
            if not files.exists(path):
                segments.save_entries(
                    files, current, segments.walk(files, current, current.data_bytes).entries
                )
            entries = files.open(path)
            if entries.size() > current.entry_count * segments.ENTRY_BYTES:
                entries.truncate(current.entry_count * segments.ENTRY_BYTES)
            self._files = (data, entries)
        assert self._files is not None, "an open segment has files"
        return self._files

    def seal(self) -> bool:
        """Leaves the current segment, which is full; False if there is none with frames."""
        if self._current is None or not self._current.frames:
            return False
        self._leave_files()
        if len(self._unsettled) >= UNSETTLED_MAX:
            self.settle()
        self._sealed.append(segments.seal(self._current))
        self._current = None
        return True

    def _leave_files(self) -> None:
        """Starts writing back the current segment's files; `settle` waits for it."""
        if self._files is not None:
            for file in self._files:
                file.begin_sync()
            self._unsettled.append(self._files)
            self._files = None

    @property
    def unsettled(self) -> int:
        """How many segments' files are open."""
        return len(self._unsettled)

    def settle(self) -> None:
        """Makes everything that was written durable."""
        self._leave_files()
        if not self._unsettled:
            return
        # Data before indexes; the WAL is freed only after both.
        for kind in zip(*self._unsettled, strict=True):
            for file in kind:
                file.sync()
        self._close()
        if self._created:  # the names of new segments, before a CheckpointMark vouches for them
            self._ground.files.sync_directory(self._created[-1].directory)

    def _close(self) -> None:
        current = [self._files] if self._files is not None else []
        for pair in (*self._unsettled, *current):
            for file in pair:
                file.close()
        self._files, self._unsettled = None, []

    def finish(self) -> tuple[Segment, ...]:
        """Returns the topic's segments as they are now; what is left to sync is under way."""
        self._leave_files()
        current = self._current
        if current is not None and self._is_full(current):
            current = segments.seal(current)
        return (*self._sealed, current) if current is not None else tuple(self._sealed)

    def undo(self) -> None:
        """Takes back what was copied; whatever cannot be is cut by the next copy or recovery."""
        with contextlib.suppress(OSError):
            self._close()
            for created in reversed(self._created):  # what is left has no hole before it
                segments.remove(self._ground.files, created)
            last = self._before[-1] if self._before else None
            if last is not None and not last.sealed:
                for suffix, size in (
                    ("data", last.data_bytes),
                    ("idx", last.entry_count * segments.ENTRY_BYTES),
                ):
                    file = self._ground.files.open(last.path(suffix))
                    file.truncate(size)
                    file.close()


def mark_of(copied: list[Copied], now_ms: int) -> bytes:
    """Encodes the CheckpointMark with how far each topic is in segments now."""
    marks = []
    for each in sorted(copied, key=lambda each: each.topic.topic_id):
        topic, last = each.topic, each.segments[-1] if each.segments else None
        active = last is not None and not last.sealed
        marks.append(
            control.TopicCheckpoint(
                topic.topic_id,
                highest_sequence=each.end - 1,
                evict_floor=topic.evict_floor,
                earliest_sequence=max(topic.earliest, topic.evict_floor),
                active_first_sequence=last.first_sequence if last and active else 0,
                active_data_bytes=last.data_bytes if last and active else 0,
            )
        )
    body = control.encode(control.CheckpointMark(tuple(marks)))
    return log.encode_control(FrameType.CHECKPOINT_MARK, 0, 0, now_ms, body)
