"""What is safe on a simulated disk, what is not yet, and every disk that a power loss may leave.

What a disk may do here.

* **Writes and truncations** of a file are safe once a later `sync` of that file has succeeded.
  Until then power loss may keep any of them and lose any other, also a later one without an
  earlier one, sector by sector (512 or 4,096 bytes: a sector is old or new, never mixed). A new
  length may be kept without the data: then zeros or garbage are where the data should be, but
  never below the synced length.
* **Names** (create, rename, remove, directories) are safe once their directory was synced. Until
  then each change may be kept or lost by itself. A rename is one change: at no moment is neither
  the old nor the new file under the target's name. A file's sync does not save its name.
* **Killing the process** loses nothing of this, but what was unsynced is still unsynced: power may
  be lost later. Locks end with either.

What it never does: change synced bytes, tear a sector.

`Disk.crash` makes of a moment the disk that a `Loss` describes. `Disk.units` names every piece that
can be kept or lost by itself, so that all subsets of them can be tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

SECTOR_BYTES = 512
PAGE_BYTES = 4096


class Write(NamedTuple):
    """Bytes put at a position."""

    position: int
    data: bytes

    def on(self, content: bytearray) -> None:
        """Makes the change."""
        if self.data and self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


class Truncate(NamedTuple):
    """A new length."""

    size: int

    def on(self, content: bytearray) -> None:
        """Makes the change."""
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
        """Makes a change that is not safe yet."""
        change.on(self.current)
        self.pending.append(change)

    def sync(self) -> None:
        """Makes all changes safe."""
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
Pending: TypeAlias = tuple[Write | Truncate, ...]


class Loss(Protocol):
    """What a power loss leaves of the changes that were not safe."""

    def keeps(self, number: int, change: Change) -> bool:
        """Returns whether the disk keeps a change of names, the `number`-th of those not safe."""

    def settle(self, inode: Inode, durable: bytes, pending: Pending) -> bytearray:
        """Returns what is left of a file."""


class Whole:
    """Keeps everything, or nothing."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep

    def keeps(self, number: int, change: Change) -> bool:
        """Returns whether a change of names is kept."""
        return self._keep

    def settle(self, inode: Inode, durable: bytes, pending: Pending) -> bytearray:
        """Returns what is left of a file."""
        content = bytearray(durable)
        for change in pending if self._keep else ():
            change.on(content)
        return content


class Seeded:
    """Keeps what a seed says, file by file in one of several ways."""

    def __init__(self, seed: int) -> None:
        self._luck = random.Random(seed)  # noqa: S311
        self._odds = self._luck.choice((0.2, 0.5, 0.8))
        self._sector_bytes = self._luck.choice((SECTOR_BYTES, SECTOR_BYTES, PAGE_BYTES))

    def keeps(self, number: int, change: Change) -> bool:
        """Returns whether a change of names is kept."""
        return self._luck.random() < self._odds

    def settle(self, inode: Inode, durable: bytes, pending: Pending) -> bytearray:
        """Returns what is left of a file."""
        if not pending:
            return bytearray(durable)
        luck = self._luck
        way = luck.choice(("dropped", "kept", "prefix", "sectors", "sectors", "zeros", "garbage"))
        if way in ("dropped", "kept"):
            return Whole(keep=way == "kept").settle(inode, durable, pending)
        if way == "prefix":
            return self._prefix(durable, pending)
        return scattered(durable, pending, self._some(pending), way, luck)

    def _some(self, pending: Pending) -> list[list[tuple[Write | Truncate, bool]]]:
        odds = self._luck.choice((0.2, 0.5, 0.8))
        return [
            [(piece, self._luck.random() < odds) for piece in pieces(change, self._sector_bytes)]
            for change in pending
        ]

    def _prefix(self, durable: bytes, pending: Pending) -> bytearray:
        """Keeps changes in their order up to one, and of that one some first bytes."""
        content = bytearray(durable)
        last = self._luck.randrange(len(pending))
        for change in pending[:last]:
            change.on(content)
        torn = pending[last]
        if isinstance(torn, Write) and torn.data:
            grown = max(0, torn.position + len(torn.data) - max(len(content), torn.position))
            inside = len(torn.data) - grown
            Write(torn.position, torn.data[: inside + self._luck.randint(0, grown)]).on(content)
        return content


class Unit(NamedTuple):
    """A piece that a power loss keeps or loses by itself: a change of names, or of a file."""

    inode: Inode | None
    number: int
    part: int


Tail: TypeAlias = Literal["sectors", "zeros", "garbage"]


class Chosen:
    """Keeps exactly the chosen units; where a length was kept without its data, a tail."""

    def __init__(
        self,
        kept: Collection[Unit],
        *,
        sector_bytes: int = SECTOR_BYTES,
        tail: Tail = "sectors",
        seed: int = 0,
    ) -> None:
        self._kept = frozenset(kept)
        self._sector_bytes = sector_bytes
        self._tail = tail
        self._luck = random.Random(seed)  # noqa: S311

    def keeps(self, number: int, change: Change) -> bool:
        """Returns whether a change of names is kept."""
        return Unit(None, number, 0) in self._kept

    def settle(self, inode: Inode, durable: bytes, pending: Pending) -> bytearray:
        """Returns what is left of a file."""
        chosen = [
            [
                (piece, Unit(inode, number, part) in self._kept)
                for part, piece in enumerate(pieces(change, self._sector_bytes))
            ]
            for number, change in enumerate(pending)
        ]
        return scattered(durable, pending, chosen, self._tail, self._luck)


class Torn:
    """Keeps all names and files but one: of that, only the first bytes that were written to it."""

    def __init__(self, path_inode: Inode, kept_bytes: int) -> None:
        self._inode = path_inode
        self._kept_bytes = kept_bytes

    def keeps(self, number: int, change: Change) -> bool:
        """Returns whether a change of names is kept."""
        return True

    def settle(self, inode: Inode, durable: bytes, pending: Pending) -> bytearray:
        """Returns what is left of a file."""
        content, left = bytearray(durable), self._kept_bytes
        for change in pending:
            if inode is not self._inode or isinstance(change, Truncate):
                change.on(content)
            elif left > 0:
                Write(change.position, change.data[:left]).on(content)
                left -= len(change.data)
        return content


def scattered(
    durable: bytes,
    pending: Pending,
    chosen: list[list[tuple[Write | Truncate, bool]]],
    tail: str,
    luck: random.Random,
) -> bytearray:
    """Keeps the chosen pieces; the tail says what is where a length was kept without its data."""
    content, whole = bytearray(durable), bytearray(durable)
    lost: list[Write] = []
    for change, parts in zip(pending, chosen, strict=True):
        change.on(whole)
        for piece, kept in parts:
            if kept:
                piece.on(content)
            elif isinstance(piece, Write):
                lost.append(piece)
    if tail != "sectors":
        content.extend(bytes(max(0, len(whole) - len(content))))
    for piece in lost if tail == "garbage" else ():
        start = max(piece.position, len(durable))
        length = min(piece.position + len(piece.data), len(content)) - start
        if length > 0:
            Write(start, luck.randbytes(length)).on(content)
    return content


def pieces(change: Write | Truncate, sector_bytes: int) -> Iterator[Write | Truncate]:
    """Yields what of a change a power loss keeps or loses by itself."""
    if isinstance(change, Truncate):
        yield change
        return
    start, end = change.position, change.position + len(change.data)
    while start < end:
        following = min(end, (start // sector_bytes + 1) * sector_bytes)
        yield Write(start, change.data[start - change.position : following - change.position])
        start = following


Choice: TypeAlias = Literal["dropped", "kept"] | int | Loss
"""What power loss leaves: nothing unsynced, all of it, what a seed says, or what a loss does."""


def _loss(choice: Choice) -> Loss:
    if isinstance(choice, int):
        return Seeded(choice)
    return Whole(keep=choice == "kept") if isinstance(choice, str) else choice


class Changing(Protocol):
    """A file system that is made of a disk: its names may still be changing."""

    def change(self, *names: tuple[Folder, str, Node | None]) -> None:
        """Changes names that are not safe yet."""


_Files = TypeVar("_Files", bound=Changing)


@dataclass(frozen=True, slots=True, repr=False)
class Disk(Generic[_Files]):
    """A file system at one moment: what is safe, and what is not yet."""

    root: Folder
    files: dict[Inode, tuple[bytes, Pending, bytes | None]]
    folders: dict[Folder, dict[str, Node]]
    changes: tuple[Change, ...]
    kind: Callable[[Folder], _Files]
    """What is made of it: the same kind of file system that it was taken from."""

    def units(self, sector_bytes: int = SECTOR_BYTES) -> list[Unit]:
        """Returns every piece that a power loss at this moment keeps or loses by itself."""
        found = [Unit(None, number, 0) for number in range(len(self.changes))]
        for inode, (_, pending, _) in self.files.items():
            for number, change in enumerate(pending):
                count = sum(1 for _ in pieces(change, sector_bytes))
                found += (Unit(inode, number, part) for part in range(count))
        return found

    def crash(self, choice: Choice) -> _Files:
        """Returns the disk as it may be after power loss at this moment."""
        loss = _loss(choice)
        names = {folder: dict(entries) for folder, entries in self.folders.items()}
        for number, change in enumerate(self.changes):
            if loss.keeps(number, change):
                for folder, name, node in change:
                    enter(names.setdefault(folder, {}), name, node)
        made: dict[Node, Node] = {}

        def copy(node: Node) -> Node:
            if node not in made:
                if isinstance(node, Inode):
                    durable, pending, _ = self.files.get(node, (b"", (), None))
                    content = loss.settle(node, durable, pending)
                    made[node] = Inode(bytes(content), [], content)
                else:
                    entries = {name: copy(below) for name, below in names.get(node, {}).items()}
                    made[node] = Folder(entries, dict(entries))
            return made[node]

        root = copy(self.root)
        assert isinstance(root, Folder)
        return self.kind(root)

    def restart(self) -> _Files:
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
        files = self.kind(root)
        for change in self.changes:
            moved: list[tuple[Folder, str, Node | None]] = []
            for folder, name, node in change:
                there = copy(folder)
                assert isinstance(there, Folder)
                moved.append((there, name, None if node is None else copy(node)))
            files.change(*moved)
        return files


def enter(names: dict[str, Node], name: str, node: Node | None) -> None:
    """Puts a name into a directory, or takes it out."""
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
