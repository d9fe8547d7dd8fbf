"""Where compiled kernels are kept: the first place that works, or none; never an error.

    $LAMINA_KERNEL_CACHE ─▶ $NUMBA_CACHE_DIR ─▶ $XDG_CACHE_HOME or ~/.cache ─▶ a temporary directory

A kernel is looked for in every place, and kept in the first that takes it: an image may hold
kernels that were compiled when it was built, in a directory that is read-only when it runs.

Rules.
1. Nothing here raises. Without a place, or on a full disk, a process compiles for itself and says
   once what it could not keep and why.
2. What is read is checked by its digest before anybody uses it; a torn file goes, and its kernel is
   compiled again.
3. This is machine code that will be run: below the temporary directory, which others can write,
   only a directory that belongs to this user alone is believed.
4. One file per kernel and signature, replaced in one step: processes that compile at the same time
   do not hinder each other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator

VARIABLE = "LAMINA_KERNEL_CACHE"
_MAGIC = b"LMKC\x00\x00\x00\x01"
_DIGEST_BYTES = 32
_UNUSED_S = 30 * 86_400
_COMPLETE = "complete"
_log = logging.getLogger("lamina")


class KernelCache:
    """The kernels of one version of the source, which `version` names."""

    def __init__(self, version: str) -> None:
        self._version = version[:32]
        self._has_complained = False

    def load(self, name: str) -> bytes | None:
        """Returns what was kept under a name, or None where that is missing or damaged."""
        for place in _places():
            path = os.path.join(place, self._version, name)
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError:
                continue
            payload = content[len(_MAGIC) + _DIGEST_BYTES :]
            if content[: len(_MAGIC) + _DIGEST_BYTES] == _MAGIC + _digest(payload):
                return payload
            _remove(path)
        return None

    def save(self, name: str, payload: bytes) -> None:
        """Keeps a kernel where that is possible."""
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

    def forget(self, name: str) -> None:
        """Removes a kernel that turned out to be of no use."""
        for place in _places():
            _remove(os.path.join(place, self._version, name))

    def is_complete(self, machine: str) -> bool:
        """Whether everything was compiled for a kind of machine, as far as anybody noted."""
        return self.load(f"{_COMPLETE}-{machine}") is not None

    def note_complete(self, machine: str) -> None:
        """Notes that everything was compiled."""
        self.save(f"{_COMPLETE}-{machine}", b"")

    def directory(self) -> str | None:
        """Returns the directory that kernels are written to, or None; for people."""
        for place in _places():
            folder = os.path.join(place, self._version)
            if os.path.isdir(folder):
                return folder
        return None

    def _write(self, place: str, name: str, content: bytes) -> None:
        folder = os.path.join(place, self._version)
        if not os.path.isdir(folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            _remove_unused(place)
        path = os.path.join(folder, name)
        temporary = f"{path}.{uuid.uuid4().hex[:12]}"
        try:
            with open(temporary, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            _remove(temporary)
            raise


def _places() -> Iterator[str]:
    """Yields the directories in the order in which they are tried."""
    for variable in (VARIABLE, "NUMBA_CACHE_DIR"):
        if os.environ.get(variable):
            yield os.environ[variable]
    if os.environ.get("XDG_CACHE_HOME"):
        yield os.path.join(os.environ["XDG_CACHE_HOME"], "lamina", "kernels")
    else:
        home = os.path.expanduser("~")
        if os.path.isdir(home):
            yield os.path.join(home, ".cache", "lamina", "kernels")
    shared = _below_temporary()
    if shared is not None:
        yield shared


def _below_temporary() -> str | None:
    """Returns this user's own directory below the temporary one, made if need be."""
    try:
        path = os.path.join(tempfile.gettempdir(), f"lamina-kernels-{os.getuid()}")
        if not os.path.lexists(path):
            os.mkdir(path, mode=0o700)
        about = os.lstat(path)
    except OSError:
        return None
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return path if is_ours and not about.st_mode & 0o022 else None


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


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
