"""A disk in memory that can lose power, fill up and fail, behind `storage.files`.

What a disk may do here.

* **Writes and truncations** of a file are safe once a later `sync` of that file has succeeded.
  Until then power loss may keep any of them and lose any other, also a later one without an
  earlier one, sector by sector (512 bytes: a sector is old or new, never mixed). A new length may
  be kept without the data: then zeros or garbage are where the data should be, but never below the
  synced length.
* **Names** (create, rename, remove, directories) are safe once their directory was synced. Until
  then each change may be kept or lost by itself. A rename is one change: at no moment is neither
  the old nor the new file under the target's name. A file's sync does not save its name.
* **Killing the process** loses nothing of this, but what was unsynced is still unsynced: power may
  be lost later. Locks end with either.
* **A failed sync** has one of four outcomes, as file systems differ: `dropped` (the data is gone,
  also from the cache), `kept` (readers of the cache still see it, but it is marked clean: a later
  sync succeeds and saves nothing), `pending` (a later sync would save it), `done` (it was saved).
* **A full disk** takes the part of a write that fits, and raises ENOSPC.

What it never does: change synced bytes, tear a sector, lie in a sync (but after a failed one).

A workload runs once. `before` is called before each step that changes the disk; `snapshot` there
is cheap, and `Disk.crash` makes of it every disk that a power loss at this step could leave.
`replace` is the engine's own, made of the primitive steps: power is lost between those, too.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from lamina.errors import Locked
from lamina.storage.files import replace_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES = 512
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

Choice: TypeAlias = Literal["dropped", "kept"] | int
"""What power loss leaves: nothing unsynced, all of it, or what a seed says."""
AfterSync: TypeAlias = Literal["dropped", "kept", "pending", "done"]


class Write(NamedTuple):
    """Bytes put at a position."""

    position: int
    data: bytes

    def on(self, content: bytearray) -> None:
        if self.data and self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


class Truncate(NamedTuple):
    """A new length."""

    size: int

    def on(self, content: bytearray) -> None:
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(eq=False, slots=True, repr=False)
class Inode:
    """A file: what is safe, what has happened since, and what readers see."""

    durable: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)
    current: bytearray = field(default_factory=bytearray)
    deceived: bool = False
    """Whether readers see what a failed sync has lost."""

    def apply(self, change: Write | Truncate) -> None:
        change.on(self.current)
        self.pending.append(change)

    def sync(self) -> None:
        if self.pending:
            content = bytearray(self.durable)
            for change in self.pending:
                change.on(content)
            self.durable = bytes(content)
            self.pending.clear()


@dataclass(eq=False, slots=True, repr=False)
class Folder:
    """A directory: its safe names and its names."""

    durable: dict[str, Inode | Folder] = field(default_factory=dict)
    names: dict[str, Inode | Folder] = field(default_factory=dict)


Node: TypeAlias = Inode | Folder
Change: TypeAlias = tuple[tuple[Folder, str, Node | None], ...]
"""Names that change together."""


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


@dataclass(frozen=True, slots=True, repr=False)
class Disk:
    """A file system at one moment: what is safe, and what is not yet."""

    root: Folder
    files: dict[Inode, tuple[bytes, tuple[Write | Truncate, ...], bytes | None]]
    folders: dict[Folder, dict[str, Node]]
    changes: tuple[Change, ...]

    def crash(self, choice: Choice) -> SimulatedFiles:
        """Returns the disk as it may be after power loss at this moment."""
        luck = random.Random(choice) if isinstance(choice, int) else None
        odds = luck.choice((0.2, 0.5, 0.8)) if luck else float(choice == "kept")
        names = {folder: dict(entries) for folder, entries in self.folders.items()}
        for change in self.changes:
            if luck.random() < odds if luck else choice == "kept":
                for folder, name, node in change:
                    _enter(names.setdefault(folder, {}), name, node)
        made: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            if node not in made:
                if isinstance(node, Inode):
                    durable, pending, _ = self.files.get(node, (b"", (), None))
                    content = _settled(durable, pending, luck, keep=choice == "kept")
                    made[node] = Inode(bytes(content), [], content)
                else:
                    entries = {name: copy(below) for name, below in names.get(node, {}).items()}
                    made[node] = Folder(entries, dict(entries))
            return made[node]

        root = copy(self.root)
        assert isinstance(root, Folder)
        return SimulatedFiles(root)

    def restart(self) -> SimulatedFiles:
        """Returns the disk as a new process finds it: everything is there, nothing is safer."""
        made: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            if node not in made:
                if isinstance(node, Inode):
                    durable, pending, seen = self.files[node]
                    content = bytearray(durable if seen is None else seen)
                    for change in pending if seen is None else ():
                        change.on(content)
                    made[node] = Inode(durable, list(pending), content, seen is not None)
                else:
                    made[node] = folder = Folder()
                    entries = self.folders[node].items()
                    folder.durable.update((name, copy(below)) for name, below in entries)
                    folder.names.update(folder.durable)
            return made[node]

        root = copy(self.root)
        assert isinstance(root, Folder)
        files = SimulatedFiles(root)
        for change in self.changes:
            moved: list[tuple[Folder, str, Node | None]] = []
            for folder, name, node in change:
                there = copy(folder)
                assert isinstance(there, Folder)
                moved.append((there, name, None if node is None else copy(node)))
            files.change(*moved)
        return files


def _enter(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _settled(
    durable: bytes,
    pending: tuple[Write | Truncate, ...],
    luck: random.Random | None,
    *,
    keep: bool,
) -> bytearray:
    """Returns what is left of a file's unsynced changes."""
    content = bytearray(durable)
    if luck is None or not pending:
        for change in pending if keep else ():
            change.on(content)
        return content
    way = luck.choice(("dropped", "kept", "prefix", "sectors", "sectors", "zeros", "garbage"))
    if way in ("dropped", "kept"):
        return _settled(durable, pending, None, keep=way == "kept")
    if way == "prefix":
        return _prefix(durable, pending, luck)
    size, lost = _scatter(content, pending, luck)
    if way != "sectors":
        content.extend(bytes(max(0, size - len(content))))
    for piece in lost if way == "garbage" else ():
        start = max(piece.position, len(durable))
        length = min(piece.position + len(piece.data), len(content)) - start
        if length > 0:
            Write(start, luck.randbytes(length)).on(content)
    return content


def _scatter(
    content: bytearray, pending: tuple[Write | Truncate, ...], luck: random.Random
) -> tuple[int, list[Write]]:
    """Keeps some sectors; returns the length that all would have given, and the lost ones."""
    odds = luck.choice((0.2, 0.5, 0.8))
    whole = bytearray(content)
    lost: list[Write] = []
    for change in pending:
        change.on(whole)
        for piece in [change] if isinstance(change, Truncate) else _sectors(change):
            if luck.random() < odds:
                piece.on(content)
            elif isinstance(piece, Write):
                lost.append(piece)
    return len(whole), lost


def _prefix(
    durable: bytes, pending: tuple[Write | Truncate, ...], luck: random.Random
) -> bytearray:
    """Keeps changes in their order up to one, and of that one some first bytes."""
    content = bytearray(durable)
    last = luck.randrange(len(pending))
    for change in pending[:last]:
        change.on(content)
    torn = pending[last]
    if isinstance(torn, Write) and torn.data:
        grown = max(0, torn.position + len(torn.data) - max(len(content), torn.position))
        inside = len(torn.data) - grown
        Write(torn.position, torn.data[: inside + luck.randint(0, grown)]).on(content)
    return content


def _sectors(write: Write) -> Iterator[Write]:
    start, end = write.position, write.position + len(write.data)
    while start < end:
        following = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield Write(start, write.data[start - write.position : following - write.position])
        start = following


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, files: SimulatedFiles, path: str, inode: Inode, *, writable: bool) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False

    def write_at(self, position: int, data: Buffer) -> None:
        self._require(writable=True)
        self._files.write(self._inode, self._path, Write(position, bytes(memoryview(data))))

    def read_at(self, position: int, length: int) -> bytes:
        self._require()
        self._files.step("read", self._path, self._inode)
        return bytes(self._inode.current[position : position + length])

    def map(self) -> Buffer:
        self._require()
        self._files.step("map", self._path, self._inode)
        return bytes(self._inode.current)

    def begin_sync(self) -> None:
        self._require()  # nothing is durable by it, and nothing is lost

    def sync(self) -> None:
        self._require()
        self._files.sync(self._inode, self._path)

    def truncate(self, size: int) -> None:
        self._require(writable=True)
        self._files.step("truncate", self._path, self._inode)
        self._inode.apply(Truncate(size))

    def size(self) -> int:
        self._require()
        return len(self._inode.current)

    def close(self) -> None:
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

    # ------------------------------------------------------------------ for tests

    def fail(
        self,
        kind: str,
        *,
        at: int = 1,
        error: int = errno.EIO,
        forever: bool = False,
        after: AfterSync = "pending",
        written: float = 0.0,
    ) -> None:
        """Makes the `at`-th call of a kind from now on fail; of a write, a share may be written."""
        number = self.calls[kind] + at
        self.faults.append(Fault(kind, number, error, forever, after, written))

    def snapshot(self) -> Disk:
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
            return Disk(self.root, files, folders, tuple(self._changes))

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

    def write(self, inode: Inode, path: str, change: Write) -> None:
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
        fault = self.step("sync", path, inode)
        with self._mutex:
            if fault is None or fault.after == "done":
                inode.sync()
            elif fault.after in ("dropped", "kept"):
                inode.pending.clear()
                inode.deceived = fault.after == "kept"
                if fault.after == "dropped":
                    inode.current[:] = inode.durable
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)

    def change(self, *change: tuple[Folder, str, Node | None]) -> None:
        with self._mutex:
            for folder, name, node in change:
                _enter(folder.names, name, node)
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
        folder, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.step("create", path)
        inode = Inode()
        self.change((folder, name, inode))
        return SimulatedFile(self, path, inode, writable=True)

    def open(self, path: str) -> SimulatedFile:
        inode = self._inode(path)
        self.step("open", path, inode)
        return SimulatedFile(self, path, inode, writable=True)

    def open_read_only(self, path: str) -> SimulatedFile:
        inode = self._inode(path)
        self.step("open", path, inode)
        return SimulatedFile(self, path, inode, writable=False)

    def read(self, path: str) -> bytes:
        file = self.open_read_only(path)
        return file.read_at(0, file.size())

    def replace(self, path: str, data: bytes) -> None:
        replace_file(self, path, data)

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(self._folder(directory).names)
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._find(path), Folder)

    def modified_ms(self, path: str) -> int:
        return 0  # the simulated disk has no clock: everything on it is old

    def size(self, path: str) -> int:
        return len(self._inode(path).current)

    def make_directory(self, path: str) -> None:
        if self.is_directory(path):
            return
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        parent = os.path.dirname(path)
        self.make_directory(parent)
        self.step("make_directory", path)
        self.change((self._folder(parent), os.path.basename(path), Folder()))
        self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
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
                    _enter(at.durable, name, node)
            self._changes = left

    def rename(self, old: str, new: str) -> None:
        node = self._find(old)
        source, target = self._folder(os.path.dirname(old)), self._folder(os.path.dirname(new))
        self.step("rename", new)
        self.change((target, os.path.basename(new), node), (source, os.path.basename(old), None))

    def remove(self, path: str) -> None:
        self._inode(path)
        self.step("remove", path)
        self.change((self._folder(os.path.dirname(path)), os.path.basename(path), None))

    def remove_directory(self, path: str) -> None:
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self.step("remove_directory", path)
        self.change((self._folder(os.path.dirname(path)), os.path.basename(path), None))

    def lock(self, path: str, holder: str) -> SimulatedLock:
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
        return self.exists(path) and self._inode(path) in self._held
