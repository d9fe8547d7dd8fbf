"""How many files stay open: a bounded number, and of those nobody has used lately none.

Whoever keeps a file open between two calls is an `Owner` and enters here when it opens one. When
there are more than the limit, owners that were not used since the last look let theirs go, and
open it again when they need it. So thousands of topics and segments cost a bounded number of
descriptors, and a store that is closed keeps none.

Rules.
1. An owner is let go of by dropping its reference to the file object: a reader that is just using
   it finishes, and the descriptor closes behind the last one. No lock is taken to read or write.
2. An owner whose writes are not synced keeps its file: an error of theirs would be told to that
   descriptor. Such owners may pass the limit, until the next sync.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

OPEN_FILES = 512
"""The limit where no setting says otherwise; a process may mostly have 1,024 descriptors."""


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
        """Takes note of an owner that has opened a file; has others let go of theirs."""
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
        """Goes round once: who was used has another chance, the others let go."""
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

    def release(self) -> None:
        """Has every owner let go that can: nobody needs the files any more."""
        with self._lock:
            for key, reference in list(self._owners.items()):
                owner = reference()
                if owner is None or owner.let_go():
                    self._owners.pop(key, None)
