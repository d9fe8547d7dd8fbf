"""A file that stays open while it is used, and is opened again after it was let go of.

For files that are written now and then for as long as a store is open: the journals of groups and
of idempotent producers, the files of the WAL. There may be thousands of them (`open_files`).

Rules.
1. A file with unsynced writes keeps its descriptor: the kernel reports their error to it alone.
2. The path names the same file for as long as this object lives. Whoever replaces the file calls
   `reopen`; whoever is done calls `close`, and nothing is opened after that.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

from lamina.config import FileSettings
from lamina.storage import machine
from lamina.storage.files import File, Files, LocalFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer


class KeptFile:
    """A `File` that may be let go of between two calls; for reading and writing."""

    def __init__(self, files: Files, path: str, file: File | None = None) -> None:
        self._files = files
        self._path = path
        self._file = file
        self._opening = threading.Lock()
        self._unsynced = False
        self._closed = False
        self.used = True
        if file is not None:
            files.kept.enter(self)

    def _opened(self) -> File:
        self.used = True
        return self._file or self._open()

    def _open(self) -> File:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        opened = self._files.open(self._path)  # without the lock: this may let go of others, and us
        with self._opening:
            if self._file is None:
                self._file = opened
            file = self._file
        self._files.kept.enter(self)
        return file

    def let_go(self) -> bool:
        """Drops the file, unless something in it is not synced yet."""
        with self._opening:
            file, self._file = self._file, None
            if self._unsynced:  # also where that has begun just now, with this very file
                self._file = file
                return False
        return True

    def reopen(self) -> None:
        """Lets the file go, synced or not: the next call opens what has its name then."""
        with self._opening:
            self._file, self._unsynced = None, False

    def close(self) -> None:
        """Lets the file go for good; what is not synced is left to recovery."""
        with self._opening:
            self._file, self._closed, self._unsynced = None, True, False

    @property
    def is_closed(self) -> bool:
        """Whether it was let go of for good."""
        return self._closed

    # ------------------------------------------------------------------ as a file

    def write_at(self, position: int, data: Buffer) -> None:
        """Writes all of the data, or raises OSError."""
        self._unsynced = True
        (self._file or self._open()).write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""
        self.used = True
        return (self._file or self._open()).read_at(position, length)

    def load(self) -> Buffer:
        """Reads the whole file as it is now into memory of its own, or raises OSError."""
        return self._opened().load()

    def reserve(self, size: int) -> None:
        """Takes space for a file of that size, whose length stays."""
        self._opened().reserve(size)

    def begin_sync(self) -> None:
        """Lets the writing begin that `sync` waits for; promises nothing."""
        self._opened().begin_sync()

    def sync(self) -> None:
        """Makes written bytes and the size durable (fdatasync)."""
        (self._file or self._open()).sync()
        self._unsynced, self.used = False, True

    def truncate(self, size: int) -> None:
        """Cuts the file to a size; no write of its own is left to fail."""
        self._opened().truncate(size)

    def size(self) -> int:
        """Returns the size in bytes."""
        return self._opened().size()

    def identity(self) -> tuple[int, ...]:
        """Returns what distinguishes the file from a later one of its name; the size comes last."""
        return self._opened().identity()


def local_files(open_files: int | None = None) -> LocalFiles:
    """Returns the local file system, with this limit of open files, or that of the settings."""
    settings = FileSettings.from_environment(machine.ENVIRONMENT)
    return LocalFiles(settings.open_files if open_files is None else open_files)
