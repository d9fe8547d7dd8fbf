"""The files of decided transactions: found, read, stored partition by partition, removed.

Rules.
1. A file is read whole before anything of it is stored, one entry at a time: what is damaged is set
   aside with all that it holds, and is reported.
2. Partitions are stored side by side. A failure in one does not keep the others from being stored,
   and is raised when all are through.
3. Records of a topic that was deleted since are dropped, and the log says so.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from lamina.api import RecoveryReport
from lamina.errors import CorruptData, NewerFormat, UnknownTopic
from lamina.formats import committed_offsets
from lamina.formats import transaction_file as format_
from lamina.formats.committed_offsets import Entry as OffsetEntry
from lamina.formats.transaction_file import Entry, Kind
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths
from lamina.storage.files import File
from lamina.store.decided_appends import DecidedAppends

_log = logging.getLogger(__name__)

Target: TypeAlias = tuple[str, int, int]
"""A topic, its epoch, a partition."""


@dataclass(frozen=True, slots=True)
class Found:
    """A decided transaction, as its file has it."""

    path: str
    number: int
    producer: Entry
    batches: dict[Target, list[tuple[int, int]]]
    """Where the entries of each partition's batches begin and end."""
    offsets: tuple[OffsetEntry, ...]


_HEAD_BYTES = 4096
NOTHING = Found("", 0, Entry(Kind.PRODUCER), {}, ())
"""A transaction without records and offsets: it needs no file."""


class DecidedFiles:
    """Stores what is decided."""

    def __init__(self, boot: DataDirectory, appends: DecidedAppends, executor: Executor) -> None:
        self._boot = boot
        self._folder = boot.path(paths.TRANSACTIONS)
        self._appends = appends
        self._executor = executor

    def recover(self, report: RecoveryReport) -> list[Found]:
        """Removes what was never decided; returns what was, the oldest first."""
        found = []
        for name in self._boot.files.list(self._folder):
            known = paths.transaction_file(name)
            path = paths.join(self._folder, name)
            if known is None:
                continue
            if known.suffix == paths.STAGED:
                self._drop(path, report)
                continue
            try:
                found.append(self.look(path))
            except NewerFormat as error:
                raise error.at_path(path) from error
            except CorruptData as error:
                why = "a committed transaction is damaged, and what it had left to store is not"
                self._set_aside(path, f"{why}: {error}", report)
        if self._boot.files.is_directory(self._folder):
            # A killed process may have renamed what is not durable under its new name.
            self._boot.files.sync_directory(self._folder)
        return found

    def _drop(self, path: str, report: RecoveryReport) -> None:
        """Removes what was never decided; what is somebody else's is kept, a newer one refused."""
        try:
            foreign = self._foreign(path)
        except OSError:  # whatever cannot be read, nobody was told that it lasts
            foreign = None
        if foreign is not None:
            self._set_aside(path, f"it is no transaction: {foreign}", report)
        else:
            self._boot.files.remove(path)

    def _foreign(self, path: str) -> CorruptData | None:
        """Returns why a file cannot be one of ours, torn or not; raises NewerFormat."""
        with contextlib.closing(self._boot.files.open_read_only(path)) as file:
            head = file.read_at(0, _HEAD_BYTES)
            try:
                list(islice(format_.entries(file.read_at, file.size(), is_decided=False), 1))
            except NewerFormat as error:
                raise error.at_path(path) from error
            except CorruptData as error:
                is_torn = head.startswith(format_.FILE_MAGIC) or not head.strip(b"\0")
                return None if is_torn else error
        return None

    def _set_aside(self, path: str, why: str, report: RecoveryReport) -> None:
        kept = self._boot.place("", 0).set_aside(path, self._boot.files.read(path), 0)
        self._boot.files.remove(path)
        self._boot.files.sync_directory(self._folder)
        report.add("quarantined", path, why, kept_in=kept)

    def look(self, path: str) -> Found:
        """Reads a file whole; raises CorruptData, and NewerFormat."""
        known = paths.transaction_file(paths.base_name(path))
        assert known is not None, "it was found, or named, by its name"
        batches: dict[Target, list[tuple[int, int]]] = {}
        offsets: list[OffsetEntry] = []
        producer = Entry(Kind.PRODUCER)
        with contextlib.closing(self._boot.files.open_read_only(path)) as file:
            for position, end, entry in format_.entries(file.read_at, file.size()):
                if entry.kind is Kind.PRODUCER:
                    producer = entry
                elif entry.kind is Kind.BATCH:
                    target = entry.name, entry.topic_epoch, entry.partition
                    batches.setdefault(target, []).append((position, end))
                elif entry.kind is Kind.OFFSETS:
                    offsets += _offsets(entry)
        return Found(path, known.number, producer, batches, tuple(offsets))

    def store(self, found: Found) -> None:
        """Stores the records of all partitions; raises what kept one from it."""
        if len(found.batches) == 1:
            for target in found.batches:
                self._store_one(found, target)
            return
        futures = [self._executor.submit(self._store_one, found, each) for each in found.batches]
        wait(futures)
        for future in futures:
            future.result()

    def _store_one(self, found: Found, where: Target) -> None:
        try:
            target = self._appends.target(*where)
        except UnknownTopic as error:
            _log.warning("records of a committed transaction are dropped: %s", error)
            return
        with contextlib.closing(self._boot.files.open_read_only(found.path)) as file:
            kept = _batches(file, found.batches[where])
            self._appends.store(target, found.producer.number, kept)

    def remove(self, found: Found) -> None:
        """Removes a file that is stored; one that stays is known to be done by the journal."""
        with contextlib.suppress(OSError):
            self._boot.files.remove(found.path)


def _batches(file: File, places: list[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
    for position, end in places:
        entry = format_.decode(file.read_at(position, end - position))
        yield entry.number, entry.body


def _offsets(entry: Entry) -> Iterator[OffsetEntry]:
    for piece in committed_offsets.walk(entry.body, 0):
        if piece.entry is None:
            raise CorruptData("offsets of a transaction that are none")
        yield piece.entry
