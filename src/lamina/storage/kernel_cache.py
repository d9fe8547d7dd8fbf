"""Where compiled kernels are kept: the first place that works, or none; never an error.

    $LAMINA_KERNEL_CACHE ─▶ $NUMBA_CACHE_DIR ─▶ $XDG_CACHE_HOME or ~/.cache ─▶ a temporary directory

A kernel is looked for in every place, and kept in the first that takes it: an image may hold
kernels that were compiled when it was built, in a directory that is read-only when it runs.

Rules.
1. Nothing here raises. Without a place, or on a full disk, a process compiles for itself and logs
   once what it could not keep and why.
2. What is read is checked by its digest before anybody uses it; a torn file goes, and its kernel is
   compiled again. Nothing but a plain file of a bounded size is read at all.
3. This is machine code that will be run. A directory is believed if it belongs to this user or to
   root and nobody else can write to it; one that a variable names for kernels, unless the whole
   world can. It is opened once, looked at, and used by its descriptor: what is put in its place
   afterwards is not read.
4. One file per kernel and signature, replaced in one step: processes that compile at the same time
   do not hinder each other.
5. Kernels in a directory that was named for them can be read by other users, as those of an image
   must be; those in a user's own directory cannot.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from lamina.storage import programs

VARIABLE = "LAMINA_KERNEL_CACHE"
KERNEL_BYTES_MAX = 64 << 20
_MAGIC = b"LMKC\x00\x00\x00\x01"
_DIGEST_BYTES = 32
_UNUSED_S = 30 * 86_400
_COMPLETE = "complete"
_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp", os.environ.get("TMPDIR"))  # noqa: S108 - names alone
_log = logging.getLogger("lamina")


class _Place(NamedTuple):
    path: str
    is_named: bool
    """Whether a variable names it for kernels; a cache directory for everything does not count."""


class KernelCache:
    """The kernels of one version of the source, which `version` names."""

    def __init__(self, version: str) -> None:
        self._version = version[:32]
        self._has_complained = False
        self._used: set[str] = set()

    def load(self, name: str) -> bytes | None:
        """Returns what was kept under a name, or None where that is missing or damaged."""
        self._used.add(name)
        for place in _places():
            with contextlib.suppress(OSError), self._opened(place) as folder:
                content = _read(folder, name)
                payload = content[len(_MAGIC) + _DIGEST_BYTES :]
                if content[: len(_MAGIC) + _DIGEST_BYTES] == _MAGIC + _digest(payload):
                    return payload
                _remove(name, folder)
        return None

    def save(self, name: str, payload: bytes) -> None:
        """Keeps a kernel where that is possible."""
        self._used.add(name)
        failure: OSError | None = None
        for place in _places():
            try:
                self._write(place, name, _MAGIC + _digest(payload) + payload)
            except OSError as error:
                failure = failure or error
            else:
                return
        if not self._has_complained:
            self._has_complained = True
            _log.warning(
                "compiled kernels cannot be kept (%s): every process compiles them again, which"
                " takes up to a minute; set %s to a directory that can be written",
                *(failure or "there is no directory for them", VARIABLE),
            )

    def announce(self) -> None:
        """Logs that a process is about to compile, for programs that show it in no other way."""
        _log.warning(
            "compiling kernels, once on this machine: this takes up to a minute;"
            " `lamina warm` does it ahead of time"
        )

    def forget(self, name: str) -> None:
        """Removes a kernel that turned out to be of no use."""
        for place in _places():
            with contextlib.suppress(OSError), self._opened(place) as folder:
                _remove(name, folder)

    def is_complete(self, machine: str) -> bool:
        """Whether everything was compiled for a kind of machine, and is all there and sound."""
        names = self.load(f"{_COMPLETE}-{machine}")
        return names is not None and all(self.load(each) for each in names.decode().split("\n"))

    def note_complete(self, machine: str) -> None:
        """Notes that everything was compiled: each kernel that this process has asked for."""
        note = f"{_COMPLETE}-{machine}"
        self.save(note, "\n".join(sorted(self._used - {note})).encode())

    def directory(self) -> str | None:
        """Returns the directory that kernels are written to, or None; for people."""
        for place in _places():
            with contextlib.suppress(OSError), self._opened(place):
                return os.path.join(place.path, self._version)
        return None

    @contextlib.contextmanager
    def _opened(self, place: _Place) -> Iterator[int]:
        """Opens the directory of this version; raises PermissionError for one that may lie."""
        path = os.path.join(place.path, self._version)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            about = os.fstat(folder)
            if place.is_named:
                is_believed = not about.st_mode & stat.S_IWOTH
            else:
                is_believed = about.st_uid in (os.getuid(), 0) and not about.st_mode & 0o022
            if not is_believed:
                raise PermissionError(1, "others can write to this directory of code", path)
            yield folder
        finally:
            os.close(folder)

    def _write(self, place: _Place, name: str, content: bytes) -> None:
        path = os.path.join(place.path, self._version)
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o755 if place.is_named else 0o700, exist_ok=True)
            _remove_unused(place.path)
        with self._opened(place) as folder:
            temporary = f"{name}.{uuid.uuid4().hex[:12]}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o644, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                _remove(temporary, folder)
                raise


def _read(folder: int, name: str) -> bytes:
    """Reads a plain file; nothing of anything else, which might never end or never begin."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > KERNEL_BYTES_MAX:
            return b""
        return file.read(KERNEL_BYTES_MAX)


def _places() -> Iterator[_Place]:
    """Yields the directories in the order in which they are tried."""
    for variable in (VARIABLE, "NUMBA_CACHE_DIR"):
        if os.environ.get(variable):
            yield _Place(os.environ[variable], is_named=True)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):  # the specification says to ignore a relative one
        home = os.path.expanduser("~")  # stays as it is for a user without a home
        caches = os.path.join(home, ".cache") if os.path.isabs(home) else ""
        caches = caches if os.path.isdir(home) else ""
    if caches:
        yield _Place(os.path.join(caches, "lamina", "kernels"), is_named=False)
    shared = programs.own_directory("kernels") if _has_temporary() else None
    if shared is not None:
        yield _Place(shared, is_named=False)


def _has_temporary() -> bool:
    """Whether there is a temporary directory: Python's last resort, the current one, is none."""
    try:
        folder = tempfile.gettempdir()
        return folder != os.getcwd() or folder in _TEMPORARY
    except OSError:
        return False


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _remove_unused(place: str) -> None:
    """Removes the kernels of other versions that nobody has written to for a month."""
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and _is_old(entry):
                    shutil.rmtree(entry.path, ignore_errors=True)
    except OSError:
        return


def _is_old(entry: os.DirEntry[str]) -> bool:
    is_version = len(entry.name) == 32 and set(entry.name) <= set("0123456789abcdef")
    return is_version and entry.stat().st_mtime < time.time() - _UNUSED_S
