"""What can go wrong, sorted by what the caller should do about it.

    LaminaError
    ├── InvalidRequest        fix the call
    │   ├── UnsupportedField    … or choose a format that keeps the field
    │   ├── UnknownTopic        … or create the topic
    │   ├── TopicExists         … or use the topic that is there
    │   ├── UnknownRouter       … or make the router
    │   ├── UnknownGroup        … or make the group
    │   ├── OffsetOutOfRange    … or start at an offset that is there
    │   ├── OutOfSequence       … or continue where this producer left off
    │   │   └── DuplicateSequence   … or nothing: it was stored long ago
    │   ├── SchemaError         … or the schema: it, or a row, is not what the other one says
    │   │   ├── SchemaIncompatible  … or the compatibility: the schema cannot follow the last one
    │   │   └── UnknownSchema       … or give the topic a schema
    │   └── NotAllowed          … or use a key that may: the server refused this one
    ├── Unavailable           try again later
    │   ├── QueueFull           … when the writer has caught up
    │   ├── Locked              … when the other writer is gone
    │   ├── StorageFull         … when there is space again
    │   ├── Busy                … after `retry_after_s`: the server has too much to do, or stops
    │   ├── NotPrimary          … at the broker that holds the cluster: `holder` has its addresses
    │   ├── ArchiveUnavailable  … when the object store answers again
    │   │   └── ArchiveRefused    … when somebody has given the right, or made the bucket
    │   ├── ObjectConflict      … after reading what another one put there
    │   └── ObjectMissing       … when the object is there
    ├── Closed                reopen
    │   ├── Fenced              … as a newer one: another took over
    │   └── Poisoned            … through recovery: a write or fsync failed
    └── CorruptData           a human should look; names path, position, expected, found
        ├── NewerFormat         … or a newer Lamina should
        └── RecordsMissing      a range of offsets is gone; names range, reason, where to go on

Exit codes, HTTP status and Spark's retries are tables over the four families (`EXIT_CODES` here).
Errors of the operating system become ours in `typed_errors`: StorageFull, or Unavailable.
"""

from __future__ import annotations

import contextlib
import copy
import errno
from collections.abc import Iterator
from typing import Any, Self

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when there is no space for a write."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""What the system says when a process, or all of them, has too many files open."""
PASSING = NO_SPACE + NO_DESCRIPTORS
"""What was refused before anything was changed, and may be granted when it is asked for again."""


class LaminaError(Exception):
    """The base of every error that Lamina raises on purpose.

    Process pools and Spark pickle errors: whatever a class's constructor takes, its errors come
    back whole, because they are rebuilt from their attributes and not by calling it.
    """

    speaks_of: tuple[str, ...] = ()
    """Topics that the text names beside those of the call: not everybody may know of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[LaminaError], arguments: tuple[Any, ...]) -> LaminaError:
    return kind.__new__(kind, *arguments)


class InvalidRequest(LaminaError):
    """The call cannot succeed as it was made; nothing was changed."""


class UnsupportedField(InvalidRequest):
    """The topic's format has no room for a field of the record."""


class UnknownTopic(InvalidRequest):
    """There is no such topic or partition. `known` names some that there are."""

    def __init__(self, problem: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(problem)
        self.known = known

    def __str__(self) -> str:
        told = super().__str__()
        return f"{told}; there are: {', '.join(self.known)}" if self.known else told


class TopicExists(InvalidRequest):
    """There is a topic of this name already.

    `topic` is its name; `difference` says in what it is not the one that was asked for with
    `exist_ok=True`, and is empty otherwise.
    """

    def __init__(self, problem: str, *, topic: str = "", difference: str = "") -> None:
        super().__init__(problem)
        self.topic = topic
        self.difference = difference


class UnknownRouter(InvalidRequest):
    """The store has no such router."""


class UnknownGroup(InvalidRequest):
    """The topic has no such consumer group."""


class OffsetOutOfRange(InvalidRequest):
    """The offset is below the earliest or beyond the end."""


class OutOfSequence(InvalidRequest):
    """An idempotent producer skipped sequence numbers, or repeats one too old to remember."""


class DuplicateSequence(OutOfSequence):
    """An idempotent producer repeats a batch that was stored long ago; it is not stored again."""


class SchemaError(InvalidRequest):
    """A schema cannot be used, or a row does not fit it; `field` is the path of the field."""

    def __init__(self, problem: str, *, field: str = "") -> None:
        super().__init__(problem)
        self.field = field


class SchemaIncompatible(SchemaError):
    """A new version of a schema breaks the compatibility that was asked for; nothing was stored."""


class UnknownSchema(SchemaError):
    """The topic has no schema, or none of this version; the registry knows no such id."""


class NotAllowed(InvalidRequest):
    """The key is missing or unknown, or its scope or topic prefix does not cover the call."""


class Unavailable(LaminaError):
    """The call may succeed when it is made again; nothing was acknowledged."""


class QueueFull(Unavailable):
    """The writer's queue is full and the caller chose not to wait longer."""


class Locked(Unavailable):
    """Somebody has the directory open for writing: another process, or this one.

    `store` is the open store where that is this process's own, else None. `lock` is what holds it.
    """

    store: Any = None
    lock: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leaves out what no other process could use."""
        kept = {name: each for name, each in vars(self).items() if name not in ("store", "lock")}
        return _rebuilt, (type(self), self.args), kept


class StorageFull(Unavailable):
    """The device is full; nothing of the request was kept. Reads and trims go on."""


class Busy(Unavailable):
    """The server takes no more for now; nothing of the call was done. Try after a pause."""

    def __init__(self, problem: str, retry_after_s: float = 1.0) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class NotPrimary(Unavailable):
    """The broker does not hold its cluster. Ask the one that does.

    `holder` has its addresses, one for each door, with commas between them; it is empty while
    nobody is known to hold the cluster: then try again. Nothing of the call was done, unless
    `was_begun`: then the broker held the cluster when it began, and whether what it did counts is
    not known.
    """

    def __init__(self, problem: str, holder: str = "", *, was_begun: bool = False) -> None:
        super().__init__(problem)
        self.holder = holder
        self.was_begun = was_begun

    def address(self, *schemes: str) -> str | None:
        """Returns the holder's address of the first of these schemes (`grpc`) that it has."""
        there = {each.partition("://")[0]: each for each in self.holder.split(",")}
        return next((there[scheme] for scheme in schemes if scheme in there), None)


class ArchiveUnavailable(Unavailable):
    """The object store failed, was too slow or refused; what is local is unaffected."""


class ArchiveRefused(ArchiveUnavailable):
    """The object store refuses for good (no right, no bucket): trying again changes nothing."""


class ObjectConflict(Unavailable):
    """A conditional put lost: an object is there already, or is another one than expected."""


class ObjectMissing(Unavailable):
    """The object store has no object of this key."""


class Closed(LaminaError):
    """The object can no longer be used and must be opened again."""


class Fenced(Closed):
    """A newer one (producer, uploader) took over: this one is a zombie."""


class Poisoned(Closed):
    """A write or fsync failed: memory and disk may disagree until the store is opened again."""


class CorruptData(LaminaError):
    """Bytes on disk are not what they should be.

    `position` is the byte where the damage begins; `expected` and `found` say what is wrong.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str = "",
        position: int = 0,
        expected: str = "",
        found: str = "",
    ) -> None:
        self.problem = problem
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found
        super().__init__(problem)

    def __str__(self) -> str:
        where = f"{self.path}: byte {self.position}" if self.path else f"byte {self.position}"
        pairs = (("expected", self.expected), ("found", self.found))
        details = ", ".join(f"{name} {text}" for name, text in pairs if text)
        return f"{where}: {self.problem}{f' ({details})' if details else ''}"

    def at_path(self, path: str) -> Self:
        """Returns the same finding with the file named; the formats themselves know no paths."""
        named = copy.copy(self)
        named.path = path
        return named


class NewerFormat(CorruptData):
    """The file was written by a newer version: refused, never truncated."""


UNREADABLE = "unreadable"
"""The reason of records that are there, but that the device did not deliver just now.

They are entered nowhere as lost: another reading may find them.
"""


class RecordsMissing(CorruptData):
    """Offsets `first` up to `end` cannot be read; go on at `end`."""

    def __init__(self, problem: str, *, first: int, end: int, reason: str) -> None:
        super().__init__(problem)
        self.first = first
        self.end = end
        self.reason = reason

    @property
    def is_loss(self) -> bool:
        """Whether they were durable once and are damaged or gone: the reason that is a failure."""
        return self.reason == "lost"

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.problem}: offsets {self.first} to {self.end} ({self.reason})"


EXIT_CODES: dict[type[LaminaError], int] = {
    CorruptData: 1,
    InvalidRequest: 2,
    Unavailable: 3,
    Closed: 4,
}


def exit_code(error: LaminaError) -> int:
    """Returns the process exit code of an error's family."""
    return next((code for family, code in EXIT_CODES.items() if isinstance(error, family)), 1)


@contextlib.contextmanager
def typed_errors(doing: str) -> Iterator[None]:
    """Turns errors of the operating system into ours: StorageFull, or Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StorageFull(f"no space left on the device for {doing}") from error
        raise Unavailable(f"{doing} failed: {error}") from error


def refusal_of(error: OSError, problem: str) -> Unavailable:
    """Gives an error that passes its type; `problem` says what was not done for lack of space."""
    if error.errno in NO_SPACE:
        return StorageFull(problem)
    return Unavailable(f"too many files are open ({error}); nothing was changed, try again")
