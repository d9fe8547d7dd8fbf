"""A simulated disk whose syncs of logs are held back, and end in any order, well or not.

It is stricter than `lamina_torture.simulated` in two things, as the kernel is. A sync saves what
was written before it began, and nothing that came while it was under way. And an error of the disk
is told to each descriptor once: a second sync through the same one hears nothing of it.
"""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import Executor, Future
from typing import Any, Literal, TypeAlias

from lamina.log.flights import Flight
from lamina.store.store import Store
from lamina_torture.disk import Inode
from lamina_torture.simulated import SimulatedFile, SimulatedFiles
from tests.support.writer_rig import SOON_S, wait_until

TOPIC = "t"
Lost: TypeAlias = Literal["dropped", "kept"]
"""What is left in the cache of bytes that could not be written out: nothing, or all, as clean."""


class HeldSync:
    """A sync that has begun: `through` lets it go on, `lost` makes it fail to write out."""

    def __init__(self, covered: list[Any]) -> None:
        self.covered = covered
        self.through = threading.Event()
        self.lost: Lost | None = None


class HeldFile(SimulatedFile):
    """An open file, and how many of the disk's errors its descriptor was told."""

    def __init__(
        self, files: HeldDisk, path: str, inode: Inode, *, writable: bool, heard: int
    ) -> None:
        super().__init__(files, path, inode, writable=writable)
        self._disk = files
        self._heard = heard

    def sync(self) -> None:
        self._require()
        self._disk.step("sync", self._path, self._inode)
        errors = self._disk.sync_through(self._path, self._inode)
        was_told, self._heard = self._heard == errors, errors
        if not was_told:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)


class HeldDisk(SimulatedFiles):
    """The disk. While it `holds`, each sync of a segment's log waits to be let through."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.holds = False
        self.held: list[HeldSync] = []
        self._errors: dict[Inode, int] = {}
        self._told: dict[Inode, int] = {}

    def _opened(self, path: str, *, writable: bool) -> HeldFile:
        inode = self._inode(path)
        # An error that nobody was told of yet is told to whoever opens the file later, too.
        return HeldFile(self, path, inode, writable=writable, heard=self._told.get(inode, 0))

    def create(self, path: str) -> HeldFile:
        super().create(path)
        return self._opened(path, writable=True)

    def open(self, path: str) -> HeldFile:
        super().open(path)
        return self._opened(path, writable=True)

    def open_read_only(self, path: str) -> HeldFile:
        super().open_read_only(path)
        return self._opened(path, writable=False)

    def sync_through(self, path: str, inode: Inode) -> int:
        """Syncs a file; returns how many errors it has had by now."""
        with self._mutex:
            sync = HeldSync(list(inode.pending))
            if self.holds and _is_segment(path):
                self.held.append(sync)
            else:
                sync.through.set()
        assert sync.through.wait(SOON_S)
        with self._mutex:
            if sync.lost is None:
                _save(inode, sync.covered)
            elif inode.pending:
                inode.pending.clear()
                inode.deceived = sync.lost == "kept"
                if sync.lost == "dropped":
                    inode.current[:] = inode.durable
                self._errors[inode] = self._errors.get(inode, 0) + 1
            self._told[inode] = self._errors.get(inode, 0)
            return self._told[inode]

    def let_go(self) -> None:
        """Lets all syncs through that wait, and holds no more."""
        self.holds = False
        for sync in self.held:
            sync.through.set()


def _is_segment(path: str) -> bool:
    stem, _, suffix = os.path.basename(path).partition(".")
    return stem.isdigit() and suffix == "log"


def _save(inode: Inode, covered: list[Any]) -> None:
    known = {id(change) for change in covered}
    content = bytearray(inode.durable)
    for change in inode.pending:  # others may have saved some of it
        if id(change) in known:
            change.on(content)
    inode.durable = bytes(content)
    inode.pending[:] = [change for change in inode.pending if id(change) not in known]


class Aloft:
    """An append whose group is in the air."""

    def __init__(self, answer: Future[Any], flight: Flight, sync: HeldSync) -> None:
        self.answer, self.flight, self.sync = answer, flight, sync

    def come_down(self, lost: Lost | None = None) -> None:
        """Lets its sync return, well or not."""
        self.sync.lost = lost
        self.sync.through.set()
        wait_until(lambda: self.flight.is_down)


def take_off(store: Store, disk: HeldDisk, threads: Executor, count: int) -> list[Aloft]:
    """Brings so many appends of one record into the air, one behind the other."""
    disk.holds = True
    writer: Any = store._lookup.partition(TOPIC, 0).writer
    writer._crowd = 2  # a lone producer keeps the tail until its sync returns
    aloft: list[Aloft] = []
    for number in range(count):
        before = len(disk.held)
        answer = threads.submit(store.append, TOPIC, b"%d" % number)
        wait_until(lambda at=before: len(disk.held) > at)  # type: ignore[misc]
        aloft.append(Aloft(answer, writer.flights.air[-1], disk.held[before]))
    return aloft
