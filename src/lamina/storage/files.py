"""The only code that touches the operating system's files.

The engine is written against two small protocols, `Files` and `File`; `LocalFiles` is the real one.
Tests put a simulated file system behind the same protocols and lose power at every step.

Rules.
1. A write is complete or raises: short writes are continued here, nowhere else.
2. A new file exists for good only after `sync_directory` of its directory; `replace` does all four
   steps of an atomic replacement itself.
3. Nothing here retries an fsync: after a failure the kernel may have dropped the pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, cast

from lamina.errors import Locked

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY_SUFFIX = ".tmp"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when there is no space for a write."""
_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Returns Linux's call of that name, which `os` lacks; None on other systems."""
    try:
        found = ctypes.CDLL(None).sync_file_range
    except (AttributeError, OSError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    found.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", found)


_sync_file_range = _find_sync_file_range()


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Returns Linux's call of that name; `os.posix_fallocate` would change a file's length."""
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    found.restype = ctypes.c_int
    return cast("Callable[[int, int, int, int], int]", found)


_fallocate = _find_fallocate()
_KEEP_SIZE = 1


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Writes all of the data, or raises OSError."""

    def read_at(self, position: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""

    def map(self) -> Buffer:
        """Maps the file as it is now, read-only. The map outlives the file's name."""

    def reserve(self, size: int) -> None:
        """Takes space for a file of that size, whose length stays; OSError if there is not enough.

        Does nothing where the system cannot. `truncate` gives back what lies behind its size.
        """

    def begin_sync(self) -> None:
        """Lets the writing begin that `sync` waits for; promises nothing.

        To make many files durable, begin all of them, then sync each: they share the device's time
        and the file system's journal commits.
        """

    def sync(self) -> None:
        """Makes written bytes and the size durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Cuts the file to a size."""

    def size(self) -> int:
        """Returns the size in bytes."""

    def close(self) -> None:
        """Closes the descriptor; maps stay valid."""


class Lock(Protocol):
    """An exclusive lock that ends with the process."""

    def release(self) -> None:
        """Gives the lock up."""


class Files(Protocol):
    """A file system, as far as the engine needs one. Paths are absolute."""

    def create(self, path: str) -> File:
        """Creates a file that must not exist, for reading and writing."""

    def open(self, path: str) -> File:
        """Opens a file for reading and writing."""

    def open_read_only(self, path: str) -> File:
        """Opens a file for reading."""

    def read(self, path: str) -> bytes:
        """Reads a small file whole."""

    def read_end(self, path: str, length: int) -> tuple[int, bytes]:
        """Returns a file's size, and up to `length` of its last bytes."""

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file atomically and durably: temporary, fsync, rename, fsync of directory."""

    def list(self, directory: str) -> list[str]:
        """Returns the names in a directory, sorted; none if there is no such directory."""

    def exists(self, path: str) -> bool:
        """Tells whether a file or directory is there."""

    def is_directory(self, path: str) -> bool:
        """Tells whether a path is a directory."""

    def size(self, path: str) -> int:
        """Returns a file's size in bytes."""

    def modified_ms(self, path: str) -> int:
        """Returns when a file was last written, by the file system's clock."""

    def make_directory(self, path: str) -> None:
        """Makes a directory and its parents durably; it may exist."""

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""

    def rename(self, old: str, new: str) -> None:
        """Renames within a file system; durable only after the directories are synced."""

    def remove(self, path: str) -> None:
        """Removes a file; durable only after the directory is synced."""

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory; durable only after its parent is synced."""

    def lock(self, path: str, holder: str) -> Lock:
        """Takes an exclusive lock or raises Locked naming who holds it."""

    def is_locked(self, path: str) -> bool:
        """Tells whether somebody holds a lock."""


def prepare_space(file: File, start: int, end: int) -> int:
    """Writes zeros behind a log, so that its next syncs need not change its size.

    Returns where the zeros end. Where the disk has no room for all of them none is left: what is
    there is for records, and a full disk is found by their own writes.
    """
    try:
        file.write_at(start, bytes(end - start))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(start)
            return start
    return end


def replace_file(files: Files, path: str, *pieces: bytes, more: Iterable[Buffer] = ()) -> None:
    """Replaces a file in four steps: temporary, its sync, rename, sync of the directory.

    Its bytes come in pieces; `more` are made one at a time, for a file too large to be held whole.
    Fails before the rename without a trace: a full disk is not filled by what could not be done.
    """
    temporary = path + TEMPORARY_SUFFIX
    if files.exists(temporary):  # left by a crash
        files.remove(temporary)
    file = files.create(temporary)
    try:
        try:
            position = 0
            for piece in itertools.chain(pieces, more):
                file.write_at(position, piece)
                position += memoryview(piece).nbytes
            file.sync()
        finally:
            file.close()
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    files.sync_directory(os.path.dirname(path))


class LocalFile:
    """A file of the local file system."""

    _descriptor = -1  # what is thrown away before it was made whole has none

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_at(self, position: int, data: Buffer) -> None:
        """Writes all of the data, or raises OSError."""
        written = os.pwrite(self._descriptor, data, position)
        view = memoryview(data)
        total = view.nbytes
        if written == total:
            return
        view = view.cast("B")
        while written < total:
            step = os.pwrite(self._descriptor, view[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "the device takes no more bytes")
            written += step

    def read_at(self, position: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""
        data = os.pread(self._descriptor, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def map(self) -> Buffer:
        """Maps the file as it is now, read-only."""
        while size := self.size():
            try:
                return mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ)
            except ValueError:
                continue  # its writer cut the file in between: look again
        return b""

    def reserve(self, size: int) -> None:
        """Takes space for a file of that size, whose length stays; OSError if there is not enough.

        Does nothing where the system cannot. `truncate` gives back what lies behind its size.
        """
        if _fallocate is not None and _fallocate(self._descriptor, _KEEP_SIZE, 0, size):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def begin_sync(self) -> None:
        """Lets the writing begin that `sync` waits for; promises nothing."""
        if _sync_file_range is not None:  # an error is left for `sync` to meet
            with contextlib.suppress(ctypes.ArgumentError):  # no memory for a call that only hints
                _sync_file_range(self._descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        """Makes written bytes and the size durable (fdatasync)."""
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Cuts the file to a size."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """Returns the size in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Closes the descriptor; maps stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()  # a reader may have been the last to hold a file that its writer let go


class LocalLock:
    """An flock on a file, which also names its holder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process_id = os.getpid()

    def release(self) -> None:
        """Gives the lock up; in a forked child only the child's share of it."""
        if self._descriptor >= 0:
            if os.getpid() == self._process_id:  # also for children that still have it open
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1


class LocalFiles:
    """The local file system."""

    def create(self, path: str) -> LocalFile:
        """Creates a file that must not exist, for reading and writing."""
        return LocalFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    def open(self, path: str) -> LocalFile:
        """Opens a file for reading and writing."""
        return LocalFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def open_read_only(self, path: str) -> LocalFile:
        """Opens a file for reading."""
        return LocalFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read(self, path: str) -> bytes:
        """Reads a small file whole."""
        file = self.open_read_only(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def read_end(self, path: str, length: int) -> tuple[int, bytes]:
        """Returns a file's size, and up to `length` of its last bytes."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            wanted = min(length, size)
            return size, os.pread(descriptor, wanted, size - wanted)
        finally:
            os.close(descriptor)

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file atomically and durably."""
        replace_file(self, path, data)

    def list(self, directory: str) -> list[str]:
        """Returns the names in a directory, sorted; none if there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Tells whether a file or directory is there."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Tells whether a path is a directory."""
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        """Returns a file's size in bytes."""
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        """Returns when a file was last written, by the file system's clock."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_directory(self, path: str) -> None:
        """Makes a directory and its parents durably; it may exist."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        try:
            os.mkdir(path)
        except FileExistsError:  # made by another thread just now, or a file has the name
            if not os.path.isdir(path):
                raise
        try:
            self.sync_directory(parent)
        except OSError:  # or the next one to need it would find it, and think that it is durable
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Renames within a file system; durable only after the directories are synced."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        """Removes a file; durable only after the directory is synced."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory; durable only after its parent is synced."""
        os.rmdir(path)

    def lock(self, path: str, holder: str) -> LocalLock:
        """Takes an exclusive lock or raises Locked naming who holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise Locked(
                f"{path}: another writer has this directory open: {found or 'unknown'};"
                " open it with read_only=True, or stop that process"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
        text = holder.encode()
        os.pwrite(descriptor, text, 0)
        if os.fstat(descriptor).st_size > len(text):  # seldom: cutting a file is not cheap
            os.ftruncate(descriptor, len(text))
        return LocalLock(descriptor)

    def is_locked(self, path: str) -> bool:
        """Tells whether somebody holds a lock."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False
