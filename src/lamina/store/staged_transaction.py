"""What an open transaction has been given: kept in memory, spilled to a file beyond a bound.

    add ─▶ memory ─ too much ─▶ <number>.staged
                                     └─ decide: the rest, fdatasync, rename ─▶ <number>.commit

Rules.
1. Nothing of it is in a log, so dropping it is forgetting it: the file is removed, or found and
   removed at the next opening.
2. The rename is the decision: whoever finds `.commit` stores it, whoever finds `.staged` drops it.
   Before the rename everything is durable, and behind it the directory is synced.
3. What a full disk refuses leaves the transaction as it was, and may be tried again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from lamina.errors import PASSING, LaminaError, Poisoned, refusal_of
from lamina.formats import transaction_file as format_
from lamina.formats.transaction_file import Entry, Kind
from lamina.log.data_directory import DataDirectory
from lamina.storage import paths
from lamina.storage.files import File
from lamina.storage.paths import TransactionFile

MEMORY_BYTES_MAX = 1 << 20
"""How much of one transaction is kept in memory."""
ENTRY_BYTES = 100
"""What an entry counts beside its own bytes."""


class StagedTransaction:
    """The entries of one transaction, in the order in which they came."""

    def __init__(self, boot: DataDirectory, number: int, producer: Entry) -> None:
        self._boot = boot
        self._folder = boot.path(paths.TRANSACTIONS)
        self._staged = paths.join(self._folder, TransactionFile(number, paths.STAGED).name)
        self.path = paths.join(self._folder, TransactionFile(number, paths.DECIDED).name)
        first = format_.encode_header(boot.now_ms()) + format_.encode(producer)
        self._waiting: list[bytes] = [first]
        self._file: File | None = None
        self._end = 0
        self._is_ragged = False
        self._count = 1
        self.memory_bytes = len(first)
        self.size_bytes = len(first)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return self._count == 1

    def add(self, data: bytes, *, spills: bool) -> None:
        """Keeps an entry, which is encoded; or writes it, with all that is in memory, to the file.

        Raises StorageFull, and Poisoned: then it is not kept.
        """
        if spills:
            try:
                self._write(b"".join((*self._waiting, data)))
            except OSError as error:
                raise self._failed(error) from error
            self._waiting, self.memory_bytes = [], 0
        else:
            self._waiting.append(data)
            self.memory_bytes += len(data) + ENTRY_BYTES
        self._count += 1
        self.size_bytes += len(data) + ENTRY_BYTES

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._boot.files.make_directory(self._folder)
            if self._boot.files.exists(self._staged):  # of a try that failed
                self._boot.files.remove(self._staged)
            self._file = self._boot.files.create(self._staged)
        try:
            self._file.write_at(self._end, data)
        except OSError:
            self._is_ragged = True  # some of it may be there, and behind the end nothing may be
            raise
        self._end += len(data)

    def decide(self, last: Sequence[bytes] = ()) -> None:
        """Makes the transaction durable under its name: from here on it is committed.

        `last` are the entries that come with the end. Raises StorageFull where it is not decided
        and may be tried again; Poisoned where nobody knows.
        """
        end = format_.encode(Entry(Kind.END, number=self._count + len(last)))
        before = self._end
        try:
            self._write(b"".join((*self._waiting, *last, end)))
            assert self._file is not None
            if self._is_ragged:
                self._file.truncate(self._end)
            self._file.sync()
            self._boot.files.rename(self._staged, self.path)
        except OSError as error:
            self._end = before
            raise self._failed(error) from error
        self.close()
        try:
            self._boot.files.sync_directory(self._folder)
        except OSError as error:
            raise Poisoned(
                f"{self.path}: a commit may not be durable ({error}); open the store again"
            ) from error

    def _failed(self, error: OSError) -> LaminaError:
        problem = f"{self._staged}: keeping a transaction failed ({error})"
        if error.errno in PASSING:
            return refusal_of(error, f"{problem}; it goes on as it was")
        return Poisoned(f"{problem}; open the store again")

    def drop(self) -> None:
        """Forgets everything; what cannot be removed now goes at the next opening."""
        self.close()
        with contextlib.suppress(OSError):
            if self._boot.files.exists(self._staged):
                self._boot.files.remove(self._staged)

    def close(self) -> None:
        """Lets the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None
