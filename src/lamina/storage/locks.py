"""The lock that makes a process the only writer of a directory, and a look at it that takes none.

A writer takes two locks on one open file: an flock, which every release of Lamina takes, so that
old and new processes exclude each other, and an open-file-description lock, which others can query
without taking anything. `HELD` at the end of the file records that its writer took both. A reader
that finds it queries the second lock; only for a file of an older release does it try the flock
for a moment, and a writer that meets such a reader tries again.

Rules.
1. Whatever interrupts a process in here, no lock is left behind without a holder.
2. The file object owns the descriptor from the moment there is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import weakref
from io import FileIO

from lamina.errors import Locked

HELD = b"held\n"
PROBE_S = 0.2
"""How long a writer waits for readers of an older release, which hold the lock to look at it."""
_FLOCK = struct.Struct("@hhqqi4x")


class LocalLock:
    """A lock file, open and locked. It names its holder."""

    _file: FileIO | None = None

    def __init__(self, file: FileIO) -> None:
        self._process_id = os.getpid()
        self._file = file

    @property
    def is_own(self) -> bool:
        """Whether this very process holds it: not a parent that was forked since."""
        return self._file is not None and os.getpid() == self._process_id

    def release(self) -> None:
        """Releases the lock; in a forked child only the child's share of it."""
        file = self._file
        if file is not None and not file.closed:
            with contextlib.suppress(OSError):
                if os.getpid() == self._process_id:  # also for children that still have it open
                    _set(file, fcntl.F_UNLCK)
                    fcntl.flock(file, fcntl.LOCK_UN)
            file.close()
        self._file = None

    def __del__(self) -> None:
        self.release()


def take(path: str, holder: str) -> LocalLock:
    """Takes the lock, or raises Locked, which names the holder."""
    file = None
    try:
        file = _open(path)
        _wait_for_flock(file, path)
        text = holder.encode()
        with contextlib.suppress(OSError):  # where there are no such locks, readers try the other
            _set(file, fcntl.F_WRLCK)
            text += HELD
        _name(file, text)
        lock = _OURS[_identity(file)] = LocalLock(file)
        return lock
    except BaseException:
        if file is not None:
            file.close()
        raise


def is_held(path: str) -> bool:
    """Returns whether somebody holds the lock; never in a writer's way."""
    try:
        with FileIO(path, "r") as file:
            if _said(file).endswith(HELD):
                return _is_set(file)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except FileNotFoundError:
        return False
    return False


def holder_of(path: str) -> int | None:
    """Returns the process that holds the lock, as it named itself; None if nobody does."""
    if not is_held(path):
        return None
    try:
        with FileIO(path, "r") as file:
            named = _said(file).split()
    except OSError:
        return None
    return int(named[1]) if len(named) > 1 and named[0] == b"pid" and named[1].isdigit() else None


def _open(path: str) -> FileIO:
    try:
        return FileIO(path, "r+")
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            return FileIO(path, "x+")
        return FileIO(path, "r+")


def _wait_for_flock(file: FileIO, path: str) -> None:
    deadline = time.monotonic() + PROBE_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = _said(file)
            if (found.endswith(HELD) and _is_set(file)) or time.monotonic() > deadline:
                named = found.removesuffix(HELD).decode(errors="replace").strip()
                refusal = Locked(
                    f"{path}: another writer has this directory open: {named or 'unknown'};"
                    " open it with read_only=True, or stop that process"
                )
                ours = _OURS.get(_identity(file))
                refusal.lock = ours if ours is not None and ours.is_own else None
                raise refusal from error
        time.sleep(0.001)


_OURS: weakref.WeakValueDictionary[tuple[int, int], LocalLock] = weakref.WeakValueDictionary()
"""The locks that this process holds, by file: whoever asks for one again is told whose it is."""


def _identity(file: FileIO) -> tuple[int, int]:
    about = os.fstat(file.fileno())
    return about.st_dev, about.st_ino


def _name(file: FileIO, text: bytes) -> None:
    """Writes the holder into the file; if that fails, the lock is held all the same."""
    descriptor = file.fileno()
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, text, 0)
        if os.fstat(descriptor).st_size > len(text):  # seldom: cutting a file is not cheap
            os.ftruncate(descriptor, len(text))


def _said(file: FileIO) -> bytes:
    """Returns the holder that the file names; an empty text if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.pread(file.fileno(), 4096, 0)
    return b""


def _set(file: FileIO, kind: int) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _is_set(file: FileIO) -> bool:
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked)
    except OSError:
        return False
    return int(_FLOCK.unpack(found)[0]) != fcntl.F_UNLCK
