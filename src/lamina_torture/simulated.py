"""A file system in memory that can lose power, fill up, lie and fail, behind `storage.files`.

What of a moment survives is the business of `disk`. Here is what a call may do.

* **Any call** may fail: the n-th of its kind, once or for ever, with any error.
* **A failed write** may have written a share of its bytes.
* **A failed sync** has one of four outcomes, as file systems differ: `dropped` (the data is gone,
  also from the cache), `kept` (readers of the cache still see it, but it is marked clean: a later
  sync succeeds and saves nothing), `pending` (a later sync would save it), `done` (it was saved).
* **A lying sync** succeeds and saves nothing; what it did not save is still unsynced.
* **A full disk** takes the part of a write that fits, and raises ENOSPC.

A workload runs once. `before` is called before each step that changes the disk; `snapshot` there
is cheap, and `Disk.crash` makes of it every disk that a power loss at this step could leave.
`replace` is the engine's own, made of the primitive steps: power is lost between those, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from lamina.errors import Locked
from lamina.storage.files import replace_file
from lamina.storage.open_files import OpenFiles
from lamina_torture.disk import (
    Change,
    Disk,
    Folder,
    Inode,
    Node,
    Truncate,
    Write,
    enter,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

CHANGING = (
    "create",
    "make_directory",
    "remove",
    "remove_directory",
    "rename",
    "sync",
    "sync_directory",
    "truncate",
    "write_at",
)
"""The steps that change a disk; `read`, `open` and `map` can only fail."""

AfterSync: TypeAlias = Literal["dropped", "kept", "pending", "done"]


class Step(NamedTuple):
    """One call: what was asked, of which path and file, and whether it failed."""

    kind: str
    path: str
    inode: Inode | None
    failed: bool


@dataclass(slots=True)
class Fault:
    """Calls of a kind fail from the `at`-th on: once, or for ever."""

    kind: str
    at: int
    error: int
    forever: bool
    after: AfterSync
    written: float
    lies: bool


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, files: SimulatedFiles, path: str, inode: Inode, *, writable: bool) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False

    def write_at(self, position: int, data: Buffer) -> None:
        """Writes all of the data, or raises OSError."""
        self._require(writable=True)
        self._files.write(self._inode, self._path, Write(position, bytes(memoryview(data))))

    def read_at(self, position: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""
        self._require()
        self._files.step("read", self._path, self._inode)
        self._files.refuse_bad(self._inode, self._path, position, position + length)
        return bytes(self._inode.current[position : position + length])

    def load(self) -> Buffer:
        """Reads the whole file as it is now."""
        self._require()
        self._files.step("load", self._path, self._inode)
        self._files.refuse_bad(self._inode, self._path, 0, self.size())
        return bytes(self._inode.current)

    def reserve(self, size: int) -> None:
        """Takes no space: the simulated disk has enough, unless a fault says otherwise."""
        self._require()

    def begin_sync(self) -> None:
        """Promises nothing, and does nothing."""
        self._require()  # nothing is durable by it, and nothing is lost

    def sync(self) -> None:
        """Makes what was written safe."""
        self._require()
        self._files.sync(self._inode, self._path)

    def truncate(self, size: int) -> None:
        """Cuts the file to a size."""
        self._require(writable=True)
        self._files.step("truncate", self._path, self._inode)
        self._inode.apply(Truncate(size))

    def identity(self) -> tuple[int, ...]:
        """Returns what tells the file from one that takes its name; the size comes last."""
        return 0, id(self._inode), self.size()

    def size(self) -> int:
        """Returns the size in bytes."""
        self._require()
        return len(self._inode.current)

    def close(self) -> None:
        """Closes the descriptor."""
        self._closed = True

    def _require(self, *, writable: bool = False) -> None:
        if self._closed or (writable and not self._writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)


class SimulatedLock:
    """A lock that ends with the process, that is: is not copied to another disk."""

    def __init__(self, held: dict[Inode, str], inode: Inode) -> None:
        self._held = held
        self._inode: Inode | None = inode

    def release(self) -> None:
        """Gives the lock up."""
        if self._inode is not None:
            del self._held[self._inode]
            self._inode = None


class SimulatedFiles:
    """A file system in memory. `calls` counts, `history` lists what was asked of it."""

    def __init__(self, root: Folder | None = None, *, capacity_bytes: int | None = None) -> None:
        self.root = root or Folder()
        self.capacity_bytes = capacity_bytes
        self.before: Callable[[str, str], None] | None = None
        self.calls: Counter[str] = Counter()
        self.history: list[Step] = []
        self.faults: list[Fault] = []
        self._changes: list[Change] = []
        self._held: dict[Inode, str] = {}
        self._mutex = threading.RLock()
        self.kept = OpenFiles()
        self.bad: list[tuple[Inode, int, int]] = []
        """Bytes (of a file, from, to) that are there and that no read delivers."""

    # ------------------------------------------------------------------ what a row does with it

    def fail(
        self,
        kind: str,
        *,
        at: int = 1,
        error: int = errno.EIO,
        forever: bool = False,
        after: AfterSync = "pending",
        written: float = 0.0,
        lies: bool = False,
    ) -> None:
        """Makes the `at`-th call of a kind from now on fail; of a write, a share may be written.

        A sync that lies fails without saying so.
        """
        number = self.calls[kind] + at
        self.faults.append(Fault(kind, number, error, forever, after, written, lies))

    def snapshot(self) -> Disk[SimulatedFiles]:
        """Returns the disk as it is now."""
        with self._mutex:
            files: dict[Inode, tuple[bytes, tuple[Write | Truncate, ...], bytes | None]] = {}
            folders: dict[Folder, dict[str, Node]] = {}
            todo: list[Node] = [self.root]
            todo += [part for each in self._changes for at, _, node in each for part in (at, node)
                     if part is not None]  # fmt: skip
            while todo:
                node = todo.pop()
                if isinstance(node, Inode) and node not in files:
                    seen = bytes(node.current) if node.deceived else None
                    files[node] = (node.durable, tuple(node.pending), seen)
                elif isinstance(node, Folder) and node not in folders:
                    folders[node] = dict(node.durable)
                    todo += node.durable.values()
            return Disk(self.root, files, folders, tuple(self._changes), type(self))

    def contents(self) -> dict[str, bytes]:
        """Returns every file by its path, as readers see it."""
        found: dict[str, bytes] = {}

        def visit(folder: Folder, path: str) -> None:
            for name, node in sorted(folder.names.items()):
                if isinstance(node, Inode):
                    found[f"{path}/{name}"] = bytes(node.current)
                else:
                    visit(node, f"{path}/{name}")

        visit(self.root, "")
        return found

    @property
    def used_bytes(self) -> int:
        """The bytes of all files that have a name."""
        return sum(map(len, self.contents().values()))

    # ------------------------------------------------------------------ steps

    def step(self, kind: str, path: str, inode: Inode | None = None) -> Fault | None:
        """Counts a step and raises its fault; that of a sync or a write is for the caller."""
        if self.before is not None and kind in CHANGING:
            self.before(kind, path)
        with self._mutex:
            self.calls[kind] += 1
            number = self.calls[kind]
            found = None
            for fault in self.faults:
                meant = number >= fault.at if fault.forever else number == fault.at
                if fault.kind == kind and meant:
                    found = fault
            self.history.append(Step(kind, path, inode, found is not None))
        if found is not None and kind not in ("sync", "write_at"):
            raise OSError(found.error, os.strerror(found.error), path)
        return found

    def spoil(self, path: str, first: int, end: int) -> None:
        """Makes bytes of a file unreadable, as a bad sector does; clear `bad` to heal all."""
        self.bad.append((self._inode(path), first, end))

    def refuse_bad(self, inode: Inode, path: str, first: int, end: int) -> None:
        """Raises EIO if any of the bytes is bad."""
        for spoiled, start, stop in self.bad:
            if spoiled is inode and first < stop and start < min(end, len(inode.current)):
                raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} at byte {start}", path)

    def write(self, inode: Inode, path: str, change: Write) -> None:
        """Writes into a file, as far as there is space and no fault."""
        fault = self.step("write_at", path, inode)
        with self._mutex:
            size = len(change.data)
            taken, error = size, 0
            if fault is not None:
                taken, error = int(size * fault.written), fault.error
            elif self.capacity_bytes is not None:
                grown = max(0, change.position + size - len(inode.current))
                lacking = max(0, grown - max(0, self.capacity_bytes - self.used_bytes))
                taken, error = max(0, size - lacking), errno.ENOSPC if lacking else 0
            inode.apply(Write(change.position, change.data[:taken]))
        if error:
            raise OSError(error, os.strerror(error), path)

    def sync(self, inode: Inode, path: str) -> None:
        """Makes a file safe, or fails in the way that its fault says."""
        fault = self.step("sync", path, inode)
        with self._mutex:
            if fault is None or fault.after == "done":
                inode.sync()
            elif fault.after in ("dropped", "kept"):
                inode.pending.clear()
                inode.deceived = fault.after == "kept"
                if fault.after == "dropped":
                    inode.current[:] = inode.durable
        if fault is not None and not fault.lies:
            raise OSError(fault.error, os.strerror(fault.error), path)

    def change(self, *change: tuple[Folder, str, Node | None]) -> None:
        """Changes names together; not safe yet."""
        with self._mutex:
            for folder, name, node in change:
                enter(folder.names, name, node)
            self._changes.append(change)

    def _find(self, path: str) -> Node:
        node: Node = self.root
        for name in path.strip("/").split("/") if path.strip("/") else ():
            if not isinstance(node, Folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name not in node.names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = node.names[name]
        return node

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _inode(self, path: str) -> Inode:
        node = self._find(path)
        if not isinstance(node, Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    # ------------------------------------------------------------------ the protocol

    def create(self, path: str) -> SimulatedFile:
        """Creates a file that must not exist."""
        folder, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.step("create", path)
        inode = Inode()
        self.change((folder, name, inode))
        return SimulatedFile(self, path, inode, writable=True)

    def open(self, path: str) -> SimulatedFile:
        """Opens a file for reading and writing."""
        inode = self._inode(path)
        self.step("open", path, inode)
        return SimulatedFile(self, path, inode, writable=True)

    def open_read_only(self, path: str) -> SimulatedFile:
        """Opens a file for reading."""
        inode = self._inode(path)
        self.step("open", path, inode)
        return SimulatedFile(self, path, inode, writable=False)

    def read(self, path: str) -> bytes:
        """Reads a small file whole."""
        file = self.open_read_only(path)
        return file.read_at(0, file.size())

    def read_end(self, path: str, length: int) -> tuple[int, bytes]:
        """Returns a file's size, and up to `length` of its last bytes."""
        file = self.open_read_only(path)
        size = file.size()
        return size, file.read_at(max(0, size - length), length)

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file, by the same steps as on a real disk."""
        replace_file(self, path, data)

    def list(self, directory: str) -> list[str]:
        """Returns the names in a directory, sorted."""
        try:
            return sorted(self._folder(directory).names)
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Returns whether a file or directory is there."""
        try:
            self._find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """Returns whether a path is a directory."""
        return self.exists(path) and isinstance(self._find(path), Folder)

    def modified_ms(self, path: str) -> int:
        """Returns 0: the disk has no clock, so everything on it is old."""
        return 0

    def size(self, path: str) -> int:
        """Returns a file's size in bytes."""
        return len(self._inode(path).current)

    def make_directory(self, path: str) -> None:
        """Makes a directory and its parents safely; it may exist."""
        if self.is_directory(path):
            return
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        parent = os.path.dirname(path)
        self.make_directory(parent)
        self.step("make_directory", path)
        self.change((self._folder(parent), os.path.basename(path), Folder()))
        try:
            self.sync_directory(parent)
        except OSError:
            with contextlib.suppress(OSError):
                self.remove_directory(path)
            raise

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory safe."""
        folder = self._folder(path)
        self.step("sync_directory", path)
        with self._mutex:
            names: set[tuple[Folder, str]] = set()
            left: list[Change] = []
            for change in reversed(self._changes):
                touched = {(at, name) for at, name, _ in change}
                if touched & names or any(at is folder for at, _ in touched):
                    names |= touched
            for change in self._changes:
                if names.isdisjoint((at, name) for at, name, _ in change):
                    left.append(change)
                    continue
                for at, name, node in change:
                    enter(at.durable, name, node)
            self._changes = left

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory; not safe yet."""
        node = self._find(old)
        source, target = self._folder(os.path.dirname(old)), self._folder(os.path.dirname(new))
        self.step("rename", new)
        self.change((target, os.path.basename(new), node), (source, os.path.basename(old), None))

    def remove(self, path: str) -> None:
        """Removes a file; not safe yet."""
        self._inode(path)
        self.step("remove", path)
        self.change((self._folder(os.path.dirname(path)), os.path.basename(path), None))

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory; not safe yet."""
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.step("remove_directory", path)
        self.change((self._folder(os.path.dirname(path)), os.path.basename(path), None))

    def lock(self, path: str, holder: str) -> SimulatedLock:
        """Takes an exclusive lock or raises Locked naming who holds it."""
        folder, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        if name not in folder.names:
            self.change((folder, name, Inode()))
        inode = self._inode(path)
        if inode in self._held:
            found = self._held[inode].strip()
            raise Locked(f"{path}: another writer has this directory open: {found};")
        self._held[inode] = holder
        return SimulatedLock(self._held, inode)

    def is_locked(self, path: str) -> bool:
        """Returns whether somebody holds a lock."""
        return self.exists(path) and self._inode(path) in self._held
