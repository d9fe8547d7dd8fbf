"""Reads the WAL files that exist: where each topic's frames are, and what control frames say.

The truth that everything else is rebuilt from, whatever shards it lies in.

Rules.
1. Every sound frame counts, also one behind damage: a hole in a topic's sequences becomes a gap
   with a reason, no frame is dropped.
2. Bytes are cut only where nothing sound follows, and only in the last file of a directory.
3. No loop over records: one walk, the fixed fields as columns, one pass that sorts by topic.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina.engine.report import RecoveryReport
from lamina.engine.wal.ground import Ground
from lamina.engine.wal.shard import POSITION_BITS, POSITION_MASK, WalFile, WalFiles
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.binary import as_bytes
from lamina.formats.scan import WHOLE, Budget, Limit, Scan, Stop
from lamina.formats.wal import control, log
from lamina.formats.wal.layout import SEGMENT_FRAME
from lamina.formats.wal.places import Places, control_frame
from lamina.storage import paths

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STEP_RECORDS = 1 << 15
"""Walked at a time: few enough to be in the processor's cache still when they are taken down."""
_ONE = Limit(max_records=1)
_REWRITE_BYTES = 4 << 20


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
    synced_to: dict[int, int] = field(default_factory=dict)
    """Up to which byte each file is known to have been synced before, by file number."""
    ends: dict[int, int] = field(default_factory=dict)
    """Where the sound part of each file ends, by file number."""

    def is_synced(self, location: int) -> bool:
        """Tells whether a frame is known to have been durable before the WAL was opened."""
        position = location & POSITION_MASK
        return position < self.synced_to.get(location >> POSITION_BITS, 0)


class Replay:
    """One reading of all WAL files; with `repair`, torn tails are cut and files synced."""

    def __init__(self, ground: Ground, report: RecoveryReport, *, repair: bool) -> None:
        self._ground = ground
        self._report = report
        self._repair = repair
        self._found = Replayed(WalFiles())
        self._places = Places()
        self._last_barrier = 0
        """Where the file at hand was last known to be durable up to."""

    def run(self) -> Replayed:
        """Reads everything."""
        for file, is_last in self._open_files():
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
                    listed.append((shard, index, os.path.join(directory, name)))
        listed.sort()
        opened = []
        for _, group in groupby(listed, key=lambda each: each[0]):
            of_shard = list(group)
            for row, (shard, index, path) in enumerate(of_shard):
                handle = files.open(path) if self._repair else files.open_read_only(path)
                file = self._found.files.add(shard, index, path, handle)
                opened.append((file, row == len(of_shard) - 1))
        return opened

    # ------------------------------------------------------------------ one file

    def _read(self, file: WalFile, *, is_last: bool) -> None:
        file.size = file.file.size()
        if is_last and not self._repair:
            file.file.sync()  # what a killed process left unsynced is served from now on
        data = file.bytes_to(file.size)
        self._last_barrier = 0
        end = self._walk(file, data, is_last=is_last)
        self._found.synced_to[file.number] = self._last_barrier if is_last else end
        self._found.ends[file.number] = end
        if is_last and self._repair:
            self._make_durable(file, data, end)
        if end < file.size and is_last:
            file.cut_to(end)

    def _make_durable(self, file: WalFile, data: Buffer, end: int) -> None:
        """Cuts a tail, and writes again what may never have been synced before it is served.

        After a failed fsync the page cache may show bytes as clean that the disk never got.
        """
        if end < file.size:
            file.file.truncate(end)
        whole = memoryview(data).cast("B")
        for first in range(self._last_barrier, end, _REWRITE_BYTES):
            file.file.write_at(first, bytes(whole[first : min(first + _REWRITE_BYTES, end)]))
        file.file.sync()

    def _walk(self, file: WalFile, data: Buffer, *, is_last: bool) -> int:
        """Takes down all sound frames; returns where the file's sound part ends."""
        size, position = file.size, 0
        spots: list[tuple[int, int, Stop]] = []
        budget = Budget(size)
        limit = Limit(_STEP_RECORDS, WHOLE.max_bytes, budget)
        while position < size:
            found = log.scan(data, position, limit=limit)
            if len(found):
                self._take(file, data, found)
            position = found.end
            if found.stop is Stop.BAD_VERSION:
                raise NewerFormat(
                    "a WAL frame of a newer format", path=file.path, position=position
                )
            if found.stop.is_damage:
                if not as_bytes(data)[position:size].any():
                    break  # prepared space
                after = _sound_after(data, position, found.stop, budget)
                if after is None:
                    self._tail(file, data, position, found.stop, is_last=is_last)
                    break
                spots.append((position, after, found.stop))
                position = after
        for first, after, stop in spots:
            self._damage(file, data, (first, after), stop, is_last=is_last)
        return position if position < size else size

    def _tail(
        self, file: WalFile, data: Buffer, position: int, stop: Stop, *, is_last: bool
    ) -> None:
        """Nothing sound follows: a torn tail, or (in a file that was full) lost records."""
        if not is_last:
            self._damage(file, data, (position, file.size), stop, is_last=False)
            return
        self._found.torn_spots += 1
        why = f"the tail is torn ({stop.name}); nothing sound follows it"
        self._report.add("cut", file.path, why, byte_range=(position, file.size))

    def _damage(
        self, file: WalFile, data: Buffer, span: tuple[int, int], stop: Stop, *, is_last: bool
    ) -> None:
        first, after = span
        barrier = _has_barrier(data, after) if is_last else True
        if barrier:
            self._found.lost_spots += 1
        else:
            self._found.torn_spots += 1
        kept = None
        if self._repair:
            kept = self._ground.set_aside(file.path, as_bytes(data)[first:after].tobytes(), first)
        why = f"{stop.name}; the frames that follow are sound and are served"
        self._report.add("quarantined", file.path, why, byte_range=span, kept_in=kept)

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
            self._found.controls.append((frame.topic_id, decoded))

    def _group(self) -> None:
        """Sorts the places of all records by topic."""
        for each in self._places.by_topic():
            sequences, locations = each.sequences, each.locations
            if not each.ascending:  # a topic that changed shards has frames in several files
                sequences, first = np.unique(sequences, return_index=True)
                locations = locations[first]
            self._found.frames[each.topic_id] = Frames(sequences, locations, each.size_bytes)


def _sound_after(data: Buffer, position: int, stop: Stop, budget: Budget) -> int | None:
    """Finds the next sound frame; first behind a damaged one whose lengths are still plausible.

    Otherwise a value that happens to hold a frame could be taken for the frames that follow.
    """
    if stop is Stop.BAD_CHECKSUM:
        head = SEGMENT_FRAME.unpack(data, position + 1)
        claimed = position + 1 + 4 + int(head["frame_len"])
        if claimed < memoryview(data).nbytes and len(log.scan(data, claimed, limit=_ONE)):
            return claimed
    return log.resync(data, min(position + 1, memoryview(data).nbytes), budget=budget)


def _has_barrier(data: Buffer, position: int) -> bool:
    """Tells whether a barrier follows: then what lies before it had been synced."""
    size = memoryview(data).nbytes
    while position < size:
        found = log.scan(data, position, limit=WHOLE)
        if Places().take(data, found, 0).last_barrier is not None:
            return True
        if not found.stop.is_damage or found.stop is Stop.BAD_VERSION:
            return False
        after = log.resync(data, min(found.end + 1, size))
        if after is None:
            return False
        position = after
    return False
