"""Reads the WAL files that exist: where each topic's frames are, and the control frames.

The WAL is the truth that everything else is rebuilt from, in whatever shard it lies.

Rules.
1. Every sound frame counts, also one behind damage: a hole in a topic's sequences becomes a gap
   with a reason, no frame is dropped.
2. Bytes are cut only where nothing sound follows, and only in the last file of a directory. They
   are kept aside unless they begin as a frame does, or are prepared space. A file without one sound
   frame that does not begin as one is not part of the WAL: it is moved aside whole.
3. No loop over records: one walk, the fixed fields as columns, one pass that sorts by topic.
4. Damage has cost durable records if a barrier or another file follows it, or if its frame is known
   to have been written whole: see `evidence`. The record that its head claims to be is then lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina.api import RecoveryReport
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.scan import WHOLE, Limit, Run, Scan, Stop, runs
from lamina.formats.wal import control, search
from lamina.formats.wal.layout import OVERHEAD_BYTES, PREFIX, SEGMENT_FRAME, FrameType
from lamina.formats.wal.places import Places, control_frame
from lamina.formats.wal.routing import RoutedMark, Verdict
from lamina.formats.wal.walks import WalFrames
from lamina.storage import paths
from lamina.storage.files import File
from lamina.storage.kept_file import KeptFile
from lamina.wal import evidence, routed
from lamina.wal.ground import Ground
from lamina.wal.shard import POSITION_BITS, POSITION_MASK, WalFile, WalFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STEP_RECORDS = 1 << 15
"""Walked at a time: few enough to be in the processor's cache still when they are taken down."""
_REWRITE_BYTES = 4 << 20
_HEAD_BYTES = PREFIX.size + SEGMENT_FRAME.size
_TYPES = tuple(bytes([kind]) for kind in FrameType)


@dataclass(frozen=True, slots=True)
class Frames:
    """The records of one topic in the WAL, ascending by sequence."""

    sequences: NDArray[np.int64]
    locations: NDArray[np.int64]
    size_bytes: int


@dataclass(slots=True)
class Replayed:
    """What the WAL holds."""

    files: WalFiles
    tails: list[WalFile] = field(default_factory=list)
    controls: list[tuple[int, control.Control]] = field(default_factory=list)
    frames: dict[int, Frames] = field(default_factory=dict)
    lost_spots: int = 0
    """Damaged spots of which an fsync had returned before."""
    torn_spots: int = 0
    lost_claims: set[tuple[int, int]] = field(default_factory=set)
    """(topic id, sequence) in the heads of lost frames; these may be damaged, too."""
    arrived_to: dict[int, int] = field(default_factory=dict)
    """Up to which byte each file has nothing that may not have been written, by file number."""
    synced_to: dict[int, int] = field(default_factory=dict)
    """Up to which byte each file is known to have been synced before, by file number."""
    ends: dict[int, int] = field(default_factory=dict)
    """Where the sound part of each file ends, by file number."""

    def is_synced(self, location: int) -> bool:
        """Returns whether a frame is known to have been durable before the WAL was opened."""
        position = location & POSITION_MASK
        return position < self.synced_to.get(location >> POSITION_BITS, 0)

    def claimed(self, topic_id: int) -> set[int]:
        """Returns the sequences of a topic that lost frames claim to have been."""
        return {sequence for owner, sequence in self.lost_claims if owner == topic_id}

    def has_arrived(self, location: int) -> bool:
        """Returns whether everything up to a frame was written, though some may be damaged now."""
        position = location & POSITION_MASK
        return position < self.arrived_to.get(location >> POSITION_BITS, 0)


class Replay:
    """One reading of all WAL files; with `repair`, torn tails are cut and files synced."""

    def __init__(self, ground: Ground, report: RecoveryReport, *, repair: bool) -> None:
        self._ground = ground
        self._report = report
        self._repair = repair
        self._found = Replayed(WalFiles())
        self._places = Places()
        self._void: list[tuple[int, int]] = []
        """Locations of records that do not count: parts of what was not written whole."""
        self._last_barrier = 0
        """Where the file at hand was last known to be durable up to."""
        self._torn: list[tuple[int, int]] = []
        """Spans of the file at hand that were never durable, and have sound frames behind them."""
        self._torn_from: int | None = None
        """Where the file at hand first has damage that may be of an unfinished write."""

    def run(self) -> Replayed:
        """Reads everything."""
        for file, is_last in self._open_files():
            if self._is_foreign(file):
                self._set_aside(file)
                continue
            self._read(file, is_last=is_last)
            if is_last:
                self._found.tails.append(file)
        self._group()
        return self._found

    def _open_files(self) -> list[tuple[WalFile, bool]]:
        files = self._ground.files
        listed = []
        for shard, directory in self._ground.shard_directories():
            if self._repair and files.is_directory(directory):
                files.sync_directory(directory)  # a killed process may have left names unsynced
            for name in files.list(directory):
                index = paths.wal_file_index(name)
                if index is not None:
                    listed.append((shard, index, paths.join(directory, name)))
        listed.sort()
        opened = []
        for _, group in groupby(listed, key=lambda each: each[0]):
            of_shard = list(group)
            for row, (shard, index, path) in enumerate(of_shard):
                handle: File  # a reader keeps its files open: the writer may free their names
                handle = KeptFile(files, path) if self._repair else files.open_read_only(path)
                file = self._found.files.add(shard, index, path, handle)
                opened.append((file, row == len(of_shard) - 1))
        return opened

    # ------------------------------------------------------------------ one file

    def _is_foreign(self, file: WalFile) -> bool:
        """Returns whether a file holds bytes, but nothing that the WAL could have written."""
        file.size = file.file.size()
        if not file.size or _begins_frame(file.file.read_at(0, _HEAD_BYTES), 0):
            return False
        data = file.load()
        return bool(as_bytes(data).any()) and search.resync(data, 0) is None

    def _set_aside(self, file: WalFile) -> None:
        """Leaves a foreign file out, and moves it away where that is allowed."""
        kept = None
        self._found.files.drop(file)
        self._found.lost_spots += 1
        if self._repair:
            kept = self._ground.quarantine(file.path)
        self._report.add("quarantined", file.path, "no frame of the WAL is in it", kept_in=kept)

    def _read(self, file: WalFile, *, is_last: bool) -> None:
        file.size = file.file.size()
        if is_last and not self._repair:
            file.file.sync()  # what a killed process left unsynced is served from now on
        data = file.load()
        self._last_barrier, self._torn, self._torn_from = 0, [], None
        end = self._walk(file, data, is_last=is_last)
        self._found.arrived_to[file.number] = end if self._torn_from is None else self._torn_from
        self._found.synced_to[file.number] = self._last_barrier if is_last else end
        self._found.ends[file.number] = end
        marks = self._void_left_overs(file, data, end) if is_last else b""
        if is_last and self._repair:
            self._make_durable(file, data, end, marks)
            end += len(marks)
        if end != file.size and is_last:
            file.size = end

    def _void_left_overs(self, file: WalFile, data: Buffer, end: int) -> bytes:
        """Leaves out records and copies that a crash has parted; returns what to write of that.

        They were never acknowledged. The marks keep them out when a barrier follows one day.
        """
        torn_from = end if self._torn_from is None else self._torn_from
        spans = routed.left_over(data, self._last_barrier, end, torn_from)
        for span in spans:
            self._leave_out(file, span)
            self._found.torn_spots += 1
            why = "a record and its copies were not written whole, and not answered; left out"
            self._report.add("cut", file.path, why, byte_range=(span.first, span.end))
        return routed.void_marks(spans, end, self._ground.now_ms())

    def _leave_out(self, file: WalFile, span: routed.Span) -> None:
        base = file.number << POSITION_BITS
        self._void.append((base + span.first, base + span.end))

    def _make_durable(self, file: WalFile, data: Buffer, end: int, marks: bytes) -> None:
        """Cuts a tail, and writes again what may never have been synced before it is served.

        After a failed fsync the page cache may show bytes as clean that the disk never got.
        """
        if end < file.size:
            file.file.truncate(end)
        whole = memoryview(data).cast("B")
        for first in range(self._last_barrier, end, _REWRITE_BYTES):
            file.file.write_at(first, bytes(whole[first : min(first + _REWRITE_BYTES, end)]))
        for first, after in self._torn:  # they are kept aside; a barrier must not vouch for them
            file.file.write_at(first, bytes(after - first))
        if marks:
            file.file.write_at(end, marks)
        file.file.sync()  # the barrier, and what a killed process left, before appends go on

    def _walk(self, file: WalFile, data: Buffer, *, is_last: bool) -> int:
        """Takes down all sound frames; returns where the file's sound part ends."""
        position = 0
        spots: list[tuple[int, int, Stop, bool]] = []
        before: int | None = None
        for step in runs(WalFrames(data), 0, limit=Limit(_STEP_RECORDS, WHOLE.max_bytes)):
            if isinstance(step, Run):
                self._take(file, data, step.found)
                before, position = int(step.found.positions[-1]), step.found.end
                continue
            if step.stop is Stop.BAD_VERSION:
                raise NewerFormat(
                    "a WAL frame of a newer format", path=file.path, position=position
                )
            if step.is_blank:
                break  # prepared space
            if step.following is not None:
                rotted = evidence.has_rotted(data, before, position, step.end)
                spots.append((position, step.end, step.stop, rotted))
                position = step.end
                continue
            after = evidence.rotten_tail(data, position)
            if after is None:
                self._tail(file, data, position, step.stop, is_last=is_last)
            else:  # behind it is prepared space
                spots.append((position, after, step.stop, True))
                position = after
        for first, after, stop, rotted in spots:
            # A barrier that follows proves that what lies before it had been synced.
            lost = rotted or not is_last or self._last_barrier >= after
            self._damage(file, data, (first, after), stop, lost=lost)
        return position

    def _tail(
        self, file: WalFile, data: Buffer, position: int, stop: Stop, *, is_last: bool
    ) -> None:
        """Nothing sound follows: a torn tail, or (in a file that was full) lost records."""
        if not is_last:
            self._damage(file, data, (position, file.size), stop, lost=True)
            return
        self._note_torn(position)
        why = f"the tail is torn ({stop.name}); nothing sound follows it"
        kept = None
        if self._repair and not _begins_frame(data, position):
            tail = as_bytes(data)[position : file.size].tobytes()
            kept = self._ground.set_aside(file.path, tail, position)
        self._report.add("cut", file.path, why, byte_range=(position, file.size), kept_in=kept)

    def _damage(
        self, file: WalFile, data: Buffer, span: tuple[int, int], stop: Stop, *, lost: bool
    ) -> None:
        first, after = span
        if lost:
            self._found.lost_spots += 1
            self._found.lost_claims.update(evidence.claims_in(data, first, after))
        else:
            self._note_torn(first)
            self._torn.append(span)
        kept = None
        if self._repair:
            kept = self._ground.set_aside(file.path, as_bytes(data)[first:after].tobytes(), first)
        why = f"{stop.name}; the frames that follow are sound and are served"
        self._report.add("quarantined", file.path, why, byte_range=span, kept_in=kept)

    def _note_torn(self, position: int) -> None:
        self._found.torn_spots += 1
        self._torn_from = position if self._torn_from is None else min(self._torn_from, position)

    # ------------------------------------------------------------------ all frames

    def _take(self, file: WalFile, data: Buffer, found: Scan) -> None:
        """Takes down where records are; applies nothing of the control frames yet."""
        taken = self._places.take(data, found, file.number << POSITION_BITS)
        self._last_barrier = taken.last_barrier or self._last_barrier
        for position in taken.others.tolist():
            frame = control_frame(data, position)
            try:
                decoded = control.decode(frame.frame_type, frame.body)
            except NewerFormat as error:
                raise error.at_path(file.path) from error
            except CorruptData as error:
                self._report.add("note", file.path, f"a control frame makes no sense: {error}")
                continue
            if isinstance(decoded, RoutedMark):
                if decoded.verdict is Verdict.VOID:
                    self._leave_out(file, routed.span_of(decoded, position))
                continue
            self._found.controls.append((frame.topic_id, decoded))

    def _group(self) -> None:
        """Sorts the places of all records by topic."""
        for each in self._places.by_topic():
            sequences, locations = each.sequences, each.locations
            for begin, end in self._void:
                kept = (locations < begin) | (locations >= end)
                sequences, locations = sequences[kept], locations[kept]
            if not each.ascending:  # a topic that changed shards has frames in several files
                sequences, first = np.unique(sequences, return_index=True)
                locations = locations[first]
            self._found.frames[each.topic_id] = Frames(sequences, locations, each.size_bytes)


def _begins_frame(data: Buffer, position: int) -> bool:
    """Returns whether the bytes there, however few, begin like a frame; not whether it is sound."""
    head = bytes(memoryview(data).cast("B")[position : position + _HEAD_BYTES])
    if head[:1] not in _TYPES or len(head) < _HEAD_BYTES:
        return head[:1] in _TYPES
    fields = SEGMENT_FRAME.unpack(head, PREFIX.size)
    body = fields["node_len"] + fields["tag_len"] + fields["data_len"]
    expected = OVERHEAD_BYTES - SEGMENT_FRAME.at("flags") + body
    return bool(fields["frame_len"] == expected)
