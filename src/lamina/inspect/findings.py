"""Findings about a file, and the facts in its name and directory that its bytes must confirm.

Imports neither formats nor Arrow: a JSON document is looked into without waiting for a compiler.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from lamina.errors import CorruptData, InvalidRequest
from lamina.storage import machine, paths
from lamina.storage.bad_pages import Salvaged, is_unreadable, salvage
from lamina.storage.files import LocalFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer

Row: TypeAlias = dict[str, Any]
Severity: TypeAlias = Literal["damage", "note"]
NOTE: Severity = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged spot: where it begins, what is wrong, and where sound data goes on, if it does.

    A `NOTE` is worth knowing, and no damage. `offsets` are those that the spot may have cost.
    """

    path: str
    position: int
    problem: str
    resumes_at: int | None = None
    severity: Severity = "damage"
    offsets: tuple[int, int] | None = None

    def as_row(self) -> Row:
        """The finding as a row of a dump."""
        row: Row = {"position": self.position, "checksum": "bad", "problem": self.problem}
        return row | {"resumes_at": self.resumes_at}


class FileKind(Protocol):
    """How one kind of file is looked into."""

    name: str

    def verify(self, path: str, data: Buffer) -> Iterator[Finding]:
        """Yields every damaged spot, and what contradicts the file's name and directory."""

    def dump(self, path: str, data: Buffer, first: int) -> Iterator[Row]:
        """Yields the contents from an offset (or entry number) on; damaged spots as rows too."""


@dataclass(frozen=True, slots=True)
class Named:
    """The facts in the name and the directory of a file; None where they have none.

    `number` is a segment's base offset, or the first sequence of a wal segment.
    """

    path: str
    number: int | None = None
    topic_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None

    def following(self) -> int | None:
        """Returns the number of the next segment beside this one; None without one."""
        if self.number is None:
            return None
        suffix = paths.suffix_of(self.path)
        beside = LocalFiles().list(paths.parent(self.path))
        numbers = (_number_of(name) for name in beside if paths.suffix_of(name) == suffix)
        later = (number for number in numbers if number is not None and number > self.number)
        return min(later, default=None)


def named(path: str) -> Named:
    """Reads the facts from a path; it need not exist."""
    path = paths.absolute(path)
    folder, name = paths.split(path)
    if group := paths.group_file(name):
        return Named(path, topic=group.topic, partition=group.partition, group=group.group)
    if key := paths.object_key("/".join(path.split(paths.SEPARATOR)[-4:])):
        return Named(path, key.base_offset, topic=key.topic, partition=key.partition)
    if paths.wal_segment_file(name):
        return Named(path, _number_of(name), paths.wal_topic_id(paths.base_name(folder)))
    return Named(path, _number_of(name))


def _number_of(name: str) -> int | None:
    if segment := paths.segment_file(name):
        return segment.base_offset
    if wal_segment := paths.wal_segment_file(name):
        return wal_segment.first_sequence
    key = paths.object_key(f"data/any/0/{name}")  # an object that lies outside of its tree
    return key.base_offset if key else None


def described(error: CorruptData) -> str:
    """The problem without its position, which a finding has beside it."""
    return str(error).removeprefix(f"byte {error.position}: ")


def load_file(path: str) -> Buffer:
    """Reads a file whole; raises InvalidRequest when it cannot be read."""
    try:
        with contextlib.closing(LocalFiles().open_read_only(path)) as file:
            return file.load()
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error


def salvage_file(path: str) -> Salvaged:
    """Reads what the device delivers of a file; raises InvalidRequest when it cannot be opened."""
    try:
        with contextlib.closing(LocalFiles().open_read_only(path)) as file:
            try:
                return Salvaged(file.load(), ())
            except OSError as error:
                if not is_unreadable(error):
                    raise
            return salvage(file, 0, file.size())
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from error


def with_holes(path: str, found: Salvaged, findings: Iterable[Finding]) -> list[Finding]:
    """Names the bytes that were not read, in place of the damage that seems to be there."""
    if not found.holes:
        return list(findings)
    why = "cannot be read: the device does not deliver these bytes"
    named = [Finding(path, first, why, end) for first, end in found.holes]
    size = memoryview(found.data).nbytes
    for each in findings:
        end = size if each.resumes_at is None else each.resumes_at
        if not any(first < max(end, each.position + 1) and each.position < last
                   for first, last in found.holes):  # fmt: skip
            named.append(each)
    return sorted(named, key=lambda each: each.position)


_OF_THE_MOMENT = (
    paths.TEMPORARY_SUFFIX,
    *(f"/{name}" for name in (paths.LOCK, paths.RESERVE, paths.RECOVERY_REPORT)),
)
"""How the names of files end that hold nothing: the reserve is zeros, the report is for people."""


def files_below(path: str) -> tuple[list[str], list[Finding]]:
    """Returns the regular files of a tree (or the one file), sorted, without those of the moment.

    What lies in `quarantine/` was set aside because it is damaged: that is known, and not looked
    at again. A directory that cannot be read is a finding: what is in it was not looked at.
    """
    if not machine.is_directory(path):
        return [path], []
    unread: list[Finding] = []

    def note(error: OSError) -> None:
        unread.append(unreadable(str(error.filename), str(error.strerror)))

    found = machine.files_below(path, leave=paths.QUARANTINE, on_error=note)
    ours = (name for name in found if not name.endswith(_OF_THE_MOMENT))
    return sorted(name for name in ours if machine.is_file(name)), unread


def unreadable(path: str, why: str) -> Finding:
    """The finding for what could not be looked at."""
    return Finding(path, 0, f"cannot be read: {why}")
