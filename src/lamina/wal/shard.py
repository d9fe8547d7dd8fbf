"""The files of one shard of the write-ahead log: `wal-<n>.log`, one of them active, and `CURRENT`.

    active ──rotate──▶ full ──checkpoint and snapshot cover it──▶ freed

Rules.
1. One owner (the shard's leader) appends, syncs and rotates.
2. A file that is written to has the space of a full one: an append does not run out of it half-way
   through a file. Where the disk has not that much left, it grows as far as it can. Ahead of the
   tail some of the space is filled with zeros, so that a small fsync need not change the length.
3. A write that fails is taken back by cutting the file: nothing of it stays behind the tail.
4. A full file is durable before the next one exists. Files are never used again.
5. Every group that follows an fsync begins with an empty CheckpointMark, the barrier: what lies
   before a barrier was durable. If no group follows soon, maintenance writes it. Damage before one
   has lost records; damage after the last one is the torn tail of a group that was never
   acknowledged, unless `evidence` proves that it was written whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import as_bytes
from lamina.formats.wal import control, current
from lamina.formats.wal.layout import FrameType
from lamina.formats.wal.log import encode_control
from lamina.storage import paths
from lamina.storage.bad_pages import read_error, salvage
from lamina.storage.files import File, prepare_space
from lamina.storage.kept_file import KeptFile
from lamina.wal.ground import Ground

if TYPE_CHECKING:
    from typing_extensions import Buffer

POSITION_BITS = 33
POSITION_MASK = (1 << POSITION_BITS) - 1
PREPARE_BYTES_MIN = 64 << 10
PREPARE_BYTES_MAX = 4 << 20
PREPARE_BELOW_BYTES = 64 << 10


@cache
def barrier() -> bytes:
    """Returns the frame between what was synced and the group after it."""
    mark = control.encode(control.CheckpointMark(()))
    return encode_control(FrameType.CHECKPOINT_MARK, 0, 0, 0, mark)


PAGE_BITS = 12
SPAN_BYTES = 256 << 10
"""Frames that lie within so many bytes are read in one go."""
FRAME_BYTES_GUESS = 8 << 10


def frame_bytes(data: Buffer, position: int) -> int:
    """Returns how many bytes a frame claims to have after its type."""
    head = bytes(memoryview(data)[position + 1 : position + 5])
    return 4 + int.from_bytes(head, "little") if len(head) == 4 else 0


class WalFile:
    """A file of the WAL. `number` is unique in the process, `index` is the one in its name."""

    __slots__ = ("file", "index", "number", "path", "shard", "size")

    def __init__(self, number: int, shard: int, index: int, path: str, file: File) -> None:
        self.number = number
        self.shard = shard
        self.index = index
        self.path = path
        self.file = file
        self.size = 0

    def load(self) -> Buffer:
        """Reads the whole file, or raises OSError."""
        return self.file.load()

    def read_error(self, position: int, length: int) -> OSError | None:
        """Reads a frame once more; returns the device's error if it cannot deliver it."""
        return read_error(self.file, position, min(position + length, self.size))

    def window(
        self, positions: NDArray[np.int64], max_bytes: int
    ) -> tuple[NDArray[np.int64], int, bytes | memoryview]:
        """Reads at the first of some positions, which ascend, about as many bytes as are wanted.

        Returns those positions, and bytes with the position of their first one. Frames far from
        each other are read by their pages. Pages that the device does not deliver are `FILLER`.
        Large frames may not be there as a whole: see `frame`.
        """
        origin = int(positions[0])
        if int(positions[-1]) - origin > SPAN_BYTES:
            positions = positions[: int(np.searchsorted(positions, origin + max_bytes))]
            if len(positions) < max_bytes >> PAGE_BITS:
                return positions, origin, self._pages(positions)
        length = int(positions[-1]) - origin + FRAME_BYTES_GUESS
        try:
            return positions, origin, self.file.read_at(origin, length)
        except OSError:
            return positions, origin, bytes(salvage(self.file, origin, length).data)

    def frame(self, position: int) -> Buffer:
        """Reads one frame as a whole, as far as its length makes sense."""
        data = salvage(self.file, position, FRAME_BYTES_GUESS).data
        claimed = 1 + frame_bytes(data, 0)
        if FRAME_BYTES_GUESS < claimed <= self.size - position:  # larger than frames mostly are
            data = salvage(self.file, position, claimed).data
        return data

    def frames(
        self, positions: NDArray[np.int64], max_bytes: int
    ) -> tuple[NDArray[np.int64], int, Buffer]:
        """Reads as `window` does, and returns only positions whose frames are there as a whole.

        The first one always is; if it is not, it is damaged, or the device does not deliver it.
        """
        turns = np.flatnonzero(positions[1:] <= positions[:-1])
        positions = positions[: int(turns[0]) + 1] if len(turns) else positions
        some, origin, data = self.window(positions, max_bytes)
        is_paged = isinstance(data, memoryview)
        whole = _whole(data, some - origin, FRAME_BYTES_GUESS if is_paged else len(data))
        if whole:
            return some[:whole], origin, data
        return some[:1], origin, self.frame(origin)

    def _pages(self, positions: NDArray[np.int64]) -> memoryview:
        """Reads the pages around positions into memory as wide as all of them."""
        origin, end = int(positions[0]), int(positions[-1]) + FRAME_BYTES_GUESS
        stops = positions + FRAME_BYTES_GUESS
        edges = np.flatnonzero(positions[1:] > stops[:-1]) + 1
        wide = memoryview(bytearray(end - origin))
        for first, last in pairwise([0, *edges.tolist(), len(positions)]):
            start = int(positions[first])
            part = salvage(self.file, start, int(stops[last - 1]) - start).data
            wide[start - origin : start - origin + memoryview(part).nbytes] = memoryview(part)
        return wide


def _whole(data: Buffer, positions: NDArray[np.int64], around: int) -> int:
    """How many of the frames, from the first on, lie within the bytes that were read from each."""
    raw = as_bytes(data)
    positions = positions[: int(np.searchsorted(positions, len(raw) - 5))]
    lengths = np.zeros(len(positions), dtype=np.int64)
    for byte in range(4):
        lengths |= raw[positions + 1 + byte].astype(np.int64) << (8 * byte)
    ends = positions + 5 + lengths
    cut = np.flatnonzero(ends > np.minimum(positions + around, len(raw)))
    return int(cut[0]) if len(cut) else len(positions)


class WalFiles:
    """All WAL files of a store by number; a location is `number << POSITION_BITS | position`."""

    def __init__(self) -> None:
        self._files: dict[int, WalFile] = {}
        self._next = 1

    def add(self, shard: int, index: int, path: str, file: File) -> WalFile:
        """Assigns a number to a file."""
        known = WalFile(self._next, shard, index, path, file)
        self._files[self._next] = known
        self._next += 1
        return known

    def get(self, number: int) -> WalFile | None:
        """Returns a file that was not freed."""
        return self._files.get(number)

    def drop(self, file: WalFile) -> None:
        """Forgets a file."""
        del self._files[file.number]  # it closes behind the last reader that uses it

    def __iter__(self) -> Iterator[WalFile]:
        return iter(list(self._files.values()))

    def close(self) -> None:
        """Closes every file; readers that are not done open theirs again."""
        for file in self:
            self.drop(file)
            if isinstance(file.file, KeptFile):
                file.file.reopen()


class Shard:
    """The tail of one shard."""

    def __init__(self, ground: Ground, number: int, known: WalFiles) -> None:
        self._ground = ground
        self.number = number
        self.directory = ground.shard_directory(number)
        self._known = known
        self.index_floor = 1
        """No new file has an index below this: a snapshot may have such files as covered."""
        self.active: WalFile | None = None
        self._prepared = 0
        self._ahead_bytes = PREPARE_BYTES_MIN
        self._reserved = False
        self._unsynced = False
        self._barrier_due = False
        self.written_bytes = 0
        self.failed = False
        """Whether an fsync failed: what is durable is no longer known."""
        self.syncs = 0
        self.rotations = 0

    @property
    def next_index(self) -> int:
        """The index of the next file: above every one of this shard that exists."""
        known = (file.index + 1 for file in self._known if file.shard == self.number)
        return max(self.index_floor, max(known, default=1))

    @property
    def covered_index(self) -> int:
        """The index from which on replay must begin for what is appended from now on."""
        return self.active.index if self.active is not None else self.next_index

    def resume(self, file: WalFile) -> None:
        """Goes on in a file that recovery has cut and synced."""
        if paths.parent(file.path) == self.directory:
            self.active = file
            self._prepared = file.size
            self._barrier_due = file.size > 0

    def begin(self, length: int) -> bytes:
        """Makes room for a group of that many bytes; returns what to put before it.

        Rotates when the file is full. The group and its lead-in go to `append` as one.
        """
        active = self.active
        full = self._ground.settings.wal_bytes
        if active is None or (active.size and active.size + length > full):
            self.rotate()
        return barrier() if self._barrier_due else b""

    def append(self, data: Buffer) -> int:
        """Writes behind the tail; returns the location of the first byte. On failure none stays."""
        active = self.active
        assert active is not None, "a group begins before it is appended"
        start, length = active.size, memoryview(data).nbytes
        if not self._reserved:
            self._reserve(active)
        self._prepare(active, length)
        try:
            active.file.write_at(start, data)
        except OSError:
            active.file.truncate(start)
            self._sync_file(active)
            self._prepared, self._reserved = start, False
            raise
        active.size = start + length
        self._prepared = max(self._prepared, active.size)
        self.written_bytes += length
        self._unsynced = True
        self._barrier_due = False
        return active.number << POSITION_BITS | start

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the file's last records are durable and no barrier proves it yet."""
        return self._barrier_due and self.active is not None

    def confirm(self) -> None:
        """Writes the barrier that the next group would begin with, for there may be none."""
        full = self._ground.settings.wal_bytes
        if self.active is not None and self.active.size + len(barrier()) <= full:
            self.append(barrier())
            self.written_bytes -= len(barrier())  # it alone is worth no snapshot

    def _reserve(self, active: WalFile) -> None:
        """Takes the space of a full file; leaves all of it where there is not enough."""
        self._reserved = True
        if active.size >= self._ground.settings.wal_bytes:
            return
        try:
            active.file.reserve(self._ground.settings.wal_bytes)
        except OSError:  # or the file system cannot: then the write itself will fail
            with contextlib.suppress(OSError):
                active.file.truncate(active.size)

    def _prepare(self, active: WalFile, length: int) -> None:
        start = active.size
        if start + length <= self._prepared or length >= PREPARE_BELOW_BYTES:
            return
        full = max(self._ground.settings.wal_bytes, start + length)
        end = min(start + length + self._ahead_bytes, full)
        self._prepared = prepare_space(active.file, start, end)
        self._ahead_bytes = min(2 * self._ahead_bytes, PREPARE_BYTES_MAX)

    def sync(self) -> None:
        """Makes everything appended durable."""
        if self._unsynced and self.active is not None:
            self._sync_file(self.active)
            self._unsynced = False
            self._barrier_due = True

    def _sync_file(self, file: WalFile) -> None:
        self.syncs += 1
        try:
            file.file.sync()
        except OSError:
            self.failed = True
            raise

    def rotate(self) -> WalFile:
        """Makes the active file durable and full, and begins the next one."""
        old = self.active
        if old is not None:  # frames of the next file must never be durable without these
            self.sync()
            self._give_back(old)
        files = self._ground.files
        files.make_directory(self.directory)
        index = self.next_index
        path = paths.join(self.directory, paths.wal_file(index))
        # CURRENT may name the file only once its own name is durable.
        file = files.create(path)
        try:
            files.sync_directory(self.directory)
            files.replace(paths.join(self.directory, paths.CURRENT), current.encode(index))
        except OSError:
            file.close()
            with contextlib.suppress(OSError):
                files.remove(path)
            raise
        kept = KeptFile(files, path, file)
        self.active = self._known.add(self.number, index, path, kept)
        self._prepared = 0
        self._reserved = False
        self._barrier_due = False
        self.rotations += old is not None
        return self.active

    def close(self) -> None:
        """Makes everything durable and gives back what was not used, as far as that is possible."""
        if not self.failed:
            with contextlib.suppress(OSError):
                self.sync()
                if self.active is not None:
                    self._give_back(self.active)
        self.active = None

    def _give_back(self, file: WalFile) -> None:
        """Cuts what was prepared and reserved behind the tail."""
        if self._prepared > file.size or self._reserved:
            file.file.truncate(file.size)
        if self._prepared > file.size:
            self._sync_file(file)
        self._prepared, self._reserved = file.size, False
