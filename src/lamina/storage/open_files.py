"""How many files stay open: a bounded number, and only those that were used lately.

An object that keeps a file open between two calls is an `Owner` and registers here when it opens
one. Above the limit, owners that were not used since the last round close theirs, and open it again
when they need it. So thousands of topics and segments cost a bounded number of
descriptors, and a store that is closed keeps none.

Rules.
1. An owner is let go of by dropping its reference to the file object: a reader that is just using
   it finishes, and the descriptor closes behind the last one. No lock is taken to read or write.
2. An owner with unsynced writes keeps its file: the kernel reports their error to that descriptor
   alone. Such owners may exceed the limit until the next sync.
"""

from __future__ import annotations

import resource
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from lamina.errors import NO_DESCRIPTORS

_Result = TypeVar("_Result")

OPEN_FILES = 512
"""The default limit; most processes may have 1,024 descriptors."""
SHARE = 2
"""Files that are only kept take at most this part of what the process may have open."""

DESCRIPTOR_PAUSES_S = (0.0, 0.001, 0.01, 0.05)
"""How long a file waits for a descriptor after each try."""


def within_limit(wanted: int) -> int:
    """Returns how many files may be kept: as many as are wanted, where the process may have them.

    The rest of its descriptors are for files in use, sockets, and whatever else the program does.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if allowed == resource.RLIM_INFINITY else max(1, min(wanted, allowed // SHARE))


class Owner(Protocol):
    """Something that keeps a file open between two calls."""

    used: bool
    """Whether the file was used since the last look; set by its owner, with each use."""

    def let_go(self) -> bool:
        """Drops the file; False if it has to be kept for now."""


class OpenFiles:
    """The owners of open files, those that entered first in front."""

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self.limit = limit
        self._owners: dict[int, weakref.ref[Owner]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._owners)

    def enter(self, owner: Owner) -> None:
        """Registers an owner that has opened a file; makes others let go of theirs."""
        key = id(owner)
        owners = self._owners

        def gone(reference: weakref.ref[Owner]) -> None:
            if owners.get(key) is reference:
                del owners[key]

        with self._lock:
            self._owners.pop(key, None)
            self._owners[key] = weakref.ref(owner, gone)
            if len(self._owners) > self.limit:
                self._let_go(owner)

    def _let_go(self, newest: Owner) -> None:
        """Goes round once: owners that were used get another chance, the others let go."""
        for key, reference in list(self._owners.items()):
            if len(self._owners) <= self.limit:
                return
            owner = reference()
            if owner is newest:
                continue
            self._owners.pop(key, None)
            if owner is None:
                continue
            if owner.used or not owner.let_go():
                owner.used = False
                self._owners[key] = reference
        if len(self._owners) > self.limit:
            self._let_go_of_any(newest)

    def _let_go_of_any(self, newest: Owner) -> None:
        """All were used: those that entered first let go."""
        for key, reference in list(self._owners.items()):
            if len(self._owners) <= self.limit:
                return
            owner = reference()
            if owner is None or (owner is not newest and owner.let_go()):
                self._owners.pop(key, None)

    def with_descriptor(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action, with a descriptor that is only kept for later if there is no other.

        An action that found none has not begun, so it may be tried again, a sync of names as well.
        """
        for pause_s in DESCRIPTOR_PAUSES_S:
            try:
                return action()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
            self.release()
            time.sleep(pause_s)  # others may take what was let go, and give it back soon
        return action()

    def release(self) -> None:
        """Makes every owner let go that can: the files are not needed any more."""
        with self._lock:
            for key, reference in list(self._owners.items()):
                owner = reference()
                if owner is None or owner.let_go():
                    self._owners.pop(key, None)
