"""Space reserved for deletions: on a full disk, removing records must find room to write first.

Removing writes first (a tombstone, a reason, a WAL event) and frees space only then. So the store
keeps a file of zeros, `meta/reserve`, and releases it when an action that frees space finds none.

Rules.
1. While an action uses the space, it is not taken back: maintenance, which recreates a missing
   reserve, would take the room away between its release and its use.
2. As soon as the action is done the reserve is made again, with what room there is: less is better
   than nothing, for removing needs little. Maintenance makes it whole when there is space again.
3. Derived: it holds zeros, which are never read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from lamina.errors import NO_SPACE, StorageFull
from lamina.storage import paths
from lamina.storage.files import Files

RESERVE_BYTES = 256 << 10
RESERVE_BYTES_MIN = 16 << 10

_Result = TypeVar("_Result")


class Reserve:
    """The reserved space of a data directory."""

    def __init__(self, files: Files, data: str) -> None:
        self._files = files
        self._path = paths.join(data, paths.RESERVE)
        self._using = threading.Lock()

    def keep(self) -> None:
        """Makes the reserve, or makes it whole; raises OSError when there is no space for it."""
        if not self._using.acquire(blocking=False):
            return
        try:
            if self._bytes() < RESERVE_BYTES:
                self._files.replace(self._path, bytes(RESERVE_BYTES))
        finally:
            self._using.release()

    def use(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action that frees space; on a full disk, with the reserved space."""
        try:
            return action()
        except StorageFull:
            with self._using:
                if not self._bytes():
                    raise
                with contextlib.suppress(OSError):
                    self._files.remove(self._path)
                try:
                    return action()
                finally:
                    self._keep_what_there_is()

    def _bytes(self) -> int:
        return self._files.size(self._path) if self._files.exists(self._path) else 0

    def _keep_what_there_is(self) -> None:
        """Makes the reserve as large as there is room, down to a size that is still of use."""
        size = RESERVE_BYTES
        while size >= RESERVE_BYTES_MIN:
            try:
                self._files.replace(self._path, bytes(size))
            except OSError as error:
                if error.errno not in NO_SPACE:
                    return
                size //= 2
            else:
                return
