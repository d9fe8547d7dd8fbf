"""Proves that an object store does what the archive stands on, before it is trusted.

Lists, and the takeover of an archive by another store, are safe only if of several conditional
writes one wins. Some stores that speak S3's protocol let several win when they come at once, so a
store is asked, not believed: `prove` lets many writers race for one key, again and again.

    create where nothing is · replace what a tag names · read what was written · list it · delete it

What was found is kept beside the records (`proof.json`): everybody who would write a list reads it
first (`refuse_unfit`), and a store that failed is refused with the reason.

Rules.
1. A race that was won twice proves that the store is unfit; one that was won once proves little,
   therefore the rounds.
2. An answer that was lost is not the store's fault: a race that nobody is known to have won counts
   as won by the writer whose bytes are there.
3. Only keys below `proof/` with a name of their own are written, and removed again.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lamina.errors import (
    ArchiveRefused,
    CorruptData,
    LaminaError,
    NewerFormat,
    ObjectConflict,
    ObjectMissing,
)
from lamina.formats.documents import archive_proof
from lamina.formats.documents.archive_proof import ArchiveProof
from lamina.formats.documents.flips import one_flip_away
from lamina.storage import paths
from lamina.storage.objects import SINGLE_PUT_BYTES, Objects

CREATORS = 64
ROUNDS = 4
LISTED = 24
_REFUSALS = (ObjectConflict, ObjectMissing, ArchiveRefused)
"""How stores refuse a condition: S3 says "not found" for a tag where nothing is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a store must do, and what it did instead, if it did."""

    check: str
    problem: str = ""


def prove(objects: Objects, creators: int = CREATORS, rounds: int = ROUNDS) -> list[Finding]:
    """Tries everything that the archive needs; raises ArchiveUnavailable if the store is away."""
    proof = _Proof(objects, f"{paths.PROOFS}/{uuid.uuid4().hex}", creators)
    checks: dict[str, Callable[[], str]] = {
        "read after write": proof.reads_what_was_written,
        "conditional create": lambda: proof.first_of(rounds, proof.one_creates),
        "conditional replace": lambda: proof.first_of(rounds, proof.one_replaces),
        "stale tag": proof.refuses_stale_tag,
        "missing tag": proof.refuses_missing_tag,
        "large objects": proof.creates_large_once,
        "listing": proof.lists_what_is_there,
    }
    try:
        return [Finding(name, check()) for name, check in checks.items()]
    finally:
        with contextlib.suppress(LaminaError):
            for info in objects.list(proof.prefix):
                objects.delete(info.key)


@dataclass(slots=True)
class _Proof:
    """A proof under way, below a prefix of its own."""

    objects: Objects
    prefix: str
    creators: int
    made: int = 0

    def key(self) -> str:
        """Names an object that was never there."""
        self.made += 1
        return f"{self.prefix}/{self.made}"

    @staticmethod
    def first_of(rounds: int, check: Callable[[], str]) -> str:
        """Runs a check until it finds a problem, a number of times at most."""
        return next((problem for _ in range(rounds) if (problem := check())), "")

    def one_creates(self) -> str:
        """Lets many create one key: one must win, and its bytes must be there."""
        key = self.key()
        return self._race(key, lambda data: self.objects.create(key, data))

    def one_replaces(self) -> str:
        """Lets many replace what one tag names: one must win, and its bytes must be there."""
        key = self.key()
        tag = self.objects.replace(key, b"the first", None)
        return self._race(key, lambda data: self.objects.replace(key, data, tag))

    def _race(self, key: str, write: Callable[[bytes], object]) -> str:
        def attempt(number: int) -> int | None:
            try:
                write(_bytes_of(number))
            except ObjectConflict:
                return None
            return number

        with ThreadPoolExecutor(self.creators) as pool:
            won = [each for each in pool.map(attempt, range(self.creators)) if each is not None]
        there = bytes(self.objects.read(key).data)
        if len(won) > 1:
            return f"{len(won)} of {self.creators} writers at once were told that they had won"
        sent = [_bytes_of(number) for number in won or range(self.creators)]
        return "" if there in sent else "the winner's bytes are not those that are there"

    def refuses_stale_tag(self) -> str:
        """Replaces by a tag that was replaced: that must be refused, and change nothing."""
        key = self.key()
        stale = self.objects.replace(key, b"one", None)
        fresh = self.objects.replace(key, b"two", stale)
        if fresh == stale:
            return "another content has the same tag"
        if not _is_refused(lambda: self.objects.replace(key, b"three", stale)):
            return "an object was replaced by a tag that it had no more"
        return "" if self.objects.read(key).data == b"two" else "a refused replacement was made"

    def refuses_missing_tag(self) -> str:
        """Replaces where nothing is, and creates where something is: both must be refused."""
        key, gone = self.key(), self.key()
        tag = self.objects.replace(key, b"one", None)
        if not _is_refused(lambda: self.objects.replace(gone, b"two", tag)):
            return "an object that is not there was replaced"
        if not _is_refused(lambda: self.objects.replace(key, b"two", None)):
            return "an object that is there was replaced without its tag"
        self.objects.delete(key)
        if not _is_refused(lambda: self.objects.replace(key, b"two", tag)):
            return "an object that was deleted was replaced by the tag that it had"
        return ""

    def reads_what_was_written(self) -> str:
        """Reads at once what was created, replaced and deleted."""
        key = self.key()
        tag = self.objects.replace(key, b"one", None)
        if self.objects.read(key).data != b"one" or self.objects.size(key) != 3:
            return "what was created is not read at once"
        self.objects.replace(key, b"three", tag)
        if self.objects.read(key).data != b"three":
            return "what was replaced is not read at once"
        if bytes(self.objects.read_range(key, 1, 4)) != b"hre":
            return "a range of an object is not what was asked for"
        self.objects.delete(key)
        try:
            self.objects.read(key)
        except ObjectMissing:
            return ""
        return "what was deleted is still read"

    def creates_large_once(self) -> str:
        """Creates an object that is uploaded in parts, twice: the second must be refused."""
        key, end = self.key(), SINGLE_PUT_BYTES
        self.objects.create(key, bytes(end) + b"1")
        if not _is_refused(lambda: self.objects.create(key, bytes(end) + b"2")):
            return "an upload in parts replaced an object that was there"
        found = bytes(self.objects.read_range(key, end, end + 1))
        return "" if found == b"1" else "a refused upload in parts was made"

    def lists_what_is_there(self) -> str:
        """Lists at once what was created, and no more what was deleted."""
        folder = f"{self.key()}-listed"
        keys = {f"{folder}/{number:03}" for number in range(LISTED)}
        for key in sorted(keys):
            self.objects.create(key, b"x")
        if {info.key for info in self.objects.list(folder)} != keys:
            return "what was created is not listed at once"
        gone = max(keys)
        self.objects.delete(gone)
        if {info.key for info in self.objects.list(folder)} != keys - {gone}:
            return "what was deleted is still listed"
        return ""


def _bytes_of(writer: int) -> bytes:
    return b"writer %d" % writer


def _is_refused(write: Callable[[], object]) -> bool:
    try:
        write()
    except _REFUSALS:
        return True
    return False


# ---------------------------------------------------------------------- what is kept of it


def keep(objects: Objects, found: list[Finding], now_ms: int, *, is_trusted: bool) -> None:
    """Keeps what was found beside the records; raises ArchiveRefused, ArchiveUnavailable."""
    problems = tuple(f"{each.check}: {each.problem}" for each in found if each.problem)
    proof = ArchiveProof(now_ms, problems, is_trusted)
    kept(objects)  # one of a newer version stays as it is
    tag = None
    with contextlib.suppress(ObjectMissing):
        tag = objects.read(paths.ARCHIVE_PROOF).etag
    objects.replace(paths.ARCHIVE_PROOF, archive_proof.encode(proof), tag)


def kept(objects: Objects) -> ArchiveProof | None:
    """Returns what is known of a store; None if it was never proved, or what was kept is damaged.

    Damage of one bit is none: a store that was refused must not be used for it. Raises NewerFormat
    for what a newer version has kept.
    """
    try:
        found = bytes(objects.read(paths.ARCHIVE_PROOF).data)
    except ObjectMissing:
        return None
    try:
        return archive_proof.decode(found)
    except NewerFormat as error:
        raise error.at_path(f"{objects.url}/{paths.ARCHIVE_PROOF}") from error
    except CorruptData:
        return one_flip_away(found, archive_proof.decode)


def refuse_unfit(objects: Objects) -> None:
    """Raises ArchiveRefused for a store that was proved unfit, unless its owner trusts it."""
    known = kept(objects)
    if known is not None and known.problems and not known.is_trusted:
        raise ArchiveRefused(
            f"{objects.url} is not fit to be an archive: {'; '.join(known.problems)}. Nothing is"
            f" written to it. If that was mended, `lamina doctor --archive {objects.url}` proves it"
            " again; --trust uses it as it is, at your own risk"
        )
