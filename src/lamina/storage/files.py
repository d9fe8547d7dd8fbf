"""The only code that touches the operating system's files and its clock.

The engine is written against two small protocols, `Files` and `File`; `LocalFiles` is the real one.
Tests put a simulated file system behind the same protocols and lose power at every step.

Rules.
1. A write is complete or raises: short writes are continued here, nowhere else.
2. A new file exists for good only after `sync_directory` of its directory; `replace` does all four
   steps of an atomic replacement itself.
3. Nothing here retries an fsync: after a failure the kernel may have dropped the pages.
4. Files are read, never mapped: see `salvage`. What a read returns stays what it is, whatever
   becomes of the file.
5. A descriptor that is missing for a moment (EMFILE) is taken from those that are kept for later.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from lamina.errors import PASSING
from lamina.storage import locks, paths
from lamina.storage.locks import LocalLock
from lamina.storage.open_files import OPEN_FILES, OpenFiles, within_limit

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Result = TypeVar("_Result")
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
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
LOAD_BYTES = 4 << 20
LOAD_BYTES_MAX = 64 << 20
"""The largest file that is held in memory as a whole: a full segment of the default size."""


GROWING = 2
"""How much of a file's `identity` stays while it is written to."""


class File(Protocol):
    """An open file. Positions are bytes from its start."""

    def write_at(self, position: int, data: Buffer) -> None:
        """Writes all of the data, or raises OSError."""

    def read_at(self, position: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""

    def load(self) -> Buffer:
        """Reads the whole file as it is now into memory of its own, or raises OSError."""

    def reserve(self, size: int) -> None:
        """Takes space for a file of that size, whose length stays; OSError if there is not enough.

        Does nothing where the system cannot. `truncate` returns the space behind its size.
        """

    def begin_sync(self) -> None:
        """Starts writing back, so that `sync` waits less; promises nothing.

        To make many files durable, begin all of them, then sync each: they share the device's time
        and the file system's journal commits.
        """

    def sync(self) -> None:
        """Makes written bytes and the size durable (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Cuts the file to a size."""

    def size(self) -> int:
        """Returns the size in bytes."""

    def identity(self) -> tuple[int, ...]:
        """Returns what distinguishes the file from a later one of its name; the size comes last."""

    def close(self) -> None:
        """Closes the descriptor."""


class Lock(Protocol):
    """An exclusive lock that ends with the process."""

    def release(self) -> None:
        """Releases the lock."""


class Files(Protocol):
    """A file system, as far as the engine needs one. Paths are absolute."""

    @property
    def kept(self) -> OpenFiles:
        """The owners of files that stay open between calls, within a limit."""

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
        """Returns whether a file or directory is there."""

    def is_directory(self, path: str) -> bool:
        """Returns whether a path is a directory."""

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
        """Takes an exclusive lock or raises Locked, which names the holder."""

    def is_locked(self, path: str) -> bool:
        """Returns whether somebody holds a lock."""


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
    What fails behind it is never an error that passes: the new file is there, maybe not for good.
    """
    temporary = path + paths.TEMPORARY_SUFFIX
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
    with lasting():
        settle_names(files, os.path.dirname(path))


def settle_names(files: Files, directory: str) -> None:
    """Makes names durable that were changed already: waits for a descriptor rather than fail."""
    files.kept.with_descriptor(lambda: files.sync_directory(directory))


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Turns errors that pass into EIO: something has been changed that cannot be finished."""
    try:
        yield
    except OSError as error:
        if error.errno not in PASSING:
            raise
        raise OSError(errno.EIO, f"a file was replaced, but then: {error}") from error


def _sync_directory(path: str) -> None:
    descriptors: list[int] = []
    try:  # the list has the number before an interrupt can come, see `LocalFile`
        descriptors.extend(map(os.open, (path,), (os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,)))
        os.fsync(descriptors[0])
    finally:
        for each in descriptors:
            os.close(each)


class LocalFile:
    """A file of the local file system."""

    _owner: FileIO | None = None  # what is thrown away before it was made whole has none

    def __init__(self, path: str, mode: str) -> None:
        self._path = path
        # A file object has the descriptor from the moment there is one, and closes it when it goes:
        # an interrupt right after `os.open` returned would leak a number that nothing refers to.
        owner = FileIO(path, mode, opener=functools.partial(os.open, mode=0o644))
        self._owner, self._descriptor = owner, owner.fileno()

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
        try:
            data = os.pread(self._descriptor, length, position)
            while 0 < len(data) < length:
                more = os.pread(self._descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise self._named(error, position) from error
        return data

    def _named(self, error: OSError, position: int) -> OSError:
        """Returns the same error with the path and the position."""
        return OSError(error.errno, f"{error.strerror} at byte {position}", self._path)

    def load(self) -> Buffer:
        """Reads the whole file as it is now into memory of its own, or raises OSError.

        One that is larger than `LOAD_BYTES_MAX` is read to see that all of it is delivered, and
        mapped then: for as long as it is walked, memory is bounded, and its pages are at hand.
        """
        size = self.size()
        if size == 0:
            return b""
        room = min(size, LOAD_BYTES_MAX)
        memory = memoryview(mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        read = 0
        while read < size:
            into = memory[read : read + LOAD_BYTES] if room == size else memory[:LOAD_BYTES]
            try:
                step = os.preadv(self._descriptor, [into], read)
            except OSError as error:
                raise self._named(error, read) from error
            if step == 0:  # its writer cut the file in between
                break
            read += step
        if room == size:
            return memory[:read].toreadonly()
        return mmap.mmap(self._descriptor, read, prot=mmap.PROT_READ)

    def reserve(self, size: int) -> None:
        """Takes space for a file of that size, whose length stays; OSError if there is not enough.

        Does nothing where the system cannot. `truncate` returns the space behind its size.
        """
        if _fallocate is not None and _fallocate(self._descriptor, _KEEP_SIZE, 0, size):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def begin_sync(self) -> None:
        """Starts writing back, so that `sync` waits less; promises nothing."""
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

    def identity(self) -> tuple[int, ...]:
        """Returns what distinguishes the file from a later one of its name; the size comes last."""
        found = os.fstat(self._descriptor)
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def close(self) -> None:
        """Closes the descriptor."""
        owner = self._owner
        if owner is not None:
            self._owner, self._descriptor = None, -1
            owner.close()

    def __del__(self) -> None:
        if self._owner is not None:  # a reader was the last to hold a file that its writer let go
            self.close()


class LocalFiles:
    """The local file system. About `open_files` descriptors are kept, or what the process may."""

    def __init__(self, open_files: int = OPEN_FILES) -> None:
        self.kept = OpenFiles(within_limit(open_files))

    def __reduce__(self) -> tuple[type[LocalFiles], tuple[int]]:
        return type(self), (self.kept.limit,)  # a worker of Spark keeps files of its own

    def _open(self, path: str, mode: str) -> LocalFile:
        return self.kept.with_descriptor(lambda: LocalFile(path, mode))

    def create(self, path: str) -> LocalFile:
        """Creates a file that must not exist, for reading and writing."""
        return self._open(path, "x+")

    def open(self, path: str) -> LocalFile:
        """Opens a file for reading and writing."""
        return self._open(path, "r+")

    def open_read_only(self, path: str) -> LocalFile:
        """Opens a file for reading."""
        return self._open(path, "r")

    def read(self, path: str) -> bytes:
        """Reads a small file whole."""
        file = self.open_read_only(path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def read_end(self, path: str, length: int) -> tuple[int, bytes]:
        """Returns a file's size, and up to `length` of its last bytes."""
        with contextlib.closing(self.open_read_only(path)) as file:
            size = file.size()
            wanted = min(length, size)
            return size, file.read_at(size - wanted, wanted)

    def replace(self, path: str, data: bytes) -> None:
        """Replaces a file atomically and durably."""
        replace_file(self, path, data)

    def list(self, directory: str) -> list[str]:
        """Returns the names in a directory, sorted; none if there is no such directory."""
        try:
            return sorted(self.kept.with_descriptor(lambda: os.listdir(directory)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Returns whether a file or directory is there."""
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        """Returns whether a path is a directory."""
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
        self.kept.with_descriptor(lambda: _sync_directory(path))

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
        """Takes an exclusive lock or raises Locked, which names the holder."""
        return locks.take(path, holder)

    def is_locked(self, path: str) -> bool:
        """Returns whether somebody holds a lock; never in the way of one that takes it."""
        return locks.is_held(path)


def wall_clock_ms() -> int:
    """Returns milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def boot_clock_ms() -> int:
    """Returns milliseconds by a clock that nobody sets and that goes on in a machine's sleep."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def steady_clock(start_ms: int) -> Callable[[], int]:
    """Returns a clock that goes on from a time and never jumps, for deadlines."""
    started = time.monotonic_ns()
    return lambda: start_ms + (time.monotonic_ns() - started) // 1_000_000
