"""A directory as an object store, on the same `Files` that the log uses.

Every object is written beside its place, synced, renamed, and its directory synced: when `create`
returns, the object survives a power loss. Writers of one directory take turns by a lock, so that a
condition (nothing there, still the same tag) holds until the object is in its place.
"""

from __future__ import annotations

import errno
import os
import time
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from lamina.errors import (
    ArchiveRefused,
    ArchiveUnavailable,
    Locked,
    ObjectConflict,
    ObjectMissing,
)
from lamina.storage import paths
from lamina.storage.files import Files
from lamina.storage.objects import ObjectInfo, Stored, refuse_cut_off

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOCK = ".lock"
LOCK_TRIES = 200
LOCK_WAIT_S = 0.01

FOR_GOOD = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
)
"""What a file system refuses until somebody changes it: waiting for it is in vain."""
_Result = TypeVar("_Result")


class DirectoryObjects:
    """An object store in a directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self.url = directory
        self._files = files
        self._directory = directory

    def read(self, key: str) -> Stored:
        """Reads a small object whole; raises ObjectMissing."""
        data = self._typed("reading", key, lambda: self._files.read(self._path(key)))
        return Stored(data, _etag(data))

    def read_range(self, key: str, start: int, end: int) -> Buffer:
        """Reads exactly the bytes from start to end; raises ObjectMissing, or CorruptData."""

        def reading() -> bytes:
            file = self._files.open_read_only(self._path(key))
            try:
                return file.read_at(start, end - start)
            finally:
                file.close()

        data = self._typed("reading", key, reading)
        if len(data) != end - start:
            refuse_cut_off(self, key, end)
            raise ArchiveUnavailable(f"{self.url}: {key} gave {len(data)} of {end - start} bytes")
        return data

    def size(self, key: str) -> int:
        """Returns an object's size in bytes; raises ObjectMissing."""
        return self._typed("asking for", key, lambda: self._files.size(self._path(key)))

    def create(self, key: str, data: Buffer) -> None:
        """Puts an object where none is; raises ObjectConflict where one is."""

        def putting() -> None:
            if self._files.exists(self._path(key)):
                raise ObjectConflict(f"{self.url}: {key} is there already")
            self._put(key, bytes(data))

        self._alone("creating", key, putting)

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        """Replaces what the tag names (None: nothing) and returns the new tag."""

        def putting() -> str:
            path = self._path(key)
            found = _etag(self._files.read(path)) if self._files.exists(path) else None
            if found != etag:
                raise ObjectConflict(f"{self.url}: {key} was changed by another one")
            self._put(key, data)
            return _etag(data)

        return self._alone("replacing", key, putting)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yields every object below a prefix, in order."""
        yield from self._typed("listing", prefix, lambda: list(self._walk(prefix)))

    def delete(self, key: str) -> None:
        """Deletes an object; one that is not there is deleted already."""

        def deleting() -> None:
            path = self._path(key)
            if self._files.exists(path):
                self._files.remove(path)
                # Whoever was answered may make an object of this name: the old one stays gone.
                self._files.sync_directory(os.path.dirname(path))

        self._alone("deleting", key, deleting)

    # ------------------------------------------------------------------ files

    def _path(self, key: str) -> str:
        return os.path.join(self._directory, *key.split("/")) if key else self._directory

    def _put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._files.make_directory(os.path.dirname(path))
        self._files.replace(path, data)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        for name in self._files.list(self._path(prefix)):
            key = f"{prefix}/{name}" if prefix else name
            path = self._path(key)
            if self._files.is_directory(path):
                yield from self._walk(key)
            elif name != LOCK and not name.endswith(paths.TEMPORARY_SUFFIX):
                yield ObjectInfo(key, self._files.size(path), self._files.modified_ms(path))

    def _alone(self, doing: str, key: str, action: Callable[[], _Result]) -> _Result:
        """Runs an action while no other writer of the directory does."""

        def locked() -> _Result:
            self._files.make_directory(self._directory)
            for number in range(LOCK_TRIES):
                try:
                    lock = self._files.lock(os.path.join(self._directory, LOCK), "archive\n")
                    break
                except Locked:
                    if number + 1 == LOCK_TRIES:
                        raise
                    time.sleep(LOCK_WAIT_S)
            try:
                return action()
            finally:
                lock.release()

        return self._typed(doing, key, locked)

    def _typed(self, doing: str, key: str, action: Callable[[], _Result]) -> _Result:
        try:
            return action()
        except FileNotFoundError as error:
            raise ObjectMissing(f"{self.url}: there is no {key}") from error
        except (OSError, Locked) as error:
            is_final = isinstance(error, OSError) and error.errno in FOR_GOOD
            kind = ArchiveRefused if is_final else ArchiveUnavailable
            raise kind(f"{self.url}: {doing} {key} failed: {error}") from error


def _etag(data: bytes) -> str:
    return f"{len(data)}-{zlib.crc32(data):08x}"
