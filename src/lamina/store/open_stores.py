"""The stores that this process has open for writing: one per directory.

Rules.
1. A second opening in the same process is told so, and given the store that is open.
2. After a fork the child's copies are closed: the directory stays the parent's.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from lamina.errors import InvalidRequest, Locked
from lamina.storage import machine, paths
from lamina.storage.files import Lock
from lamina.store.opening import Boot


class _OpenStore(Protocol):
    _lock: Lock | None

    def _disown(self) -> None: ...


OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
"""Every open `Store`."""


def lock(boot: Boot) -> Lock:
    """Locks a directory; raises Locked, which carries the store if this process has it open."""
    if not boot.files.is_directory(boot.data) and boot.files.exists(boot.data):
        raise InvalidRequest(f"{boot.data} is a file; a store is a directory")
    boot.files.make_directory(boot.path(paths.META))
    try:
        return boot.files.lock(boot.path(paths.LOCK), machine.holder())
    except Locked as refusal:
        store = _holder_of(refusal.lock)
        if store is None:
            raise
        told = Locked(
            f"{boot.data}: this process ({machine.holder().strip()}) has the directory open"
            " already; go on with that store (the `store` of this error), or close it first;"
            " read_only=True opens it once more"
        )
        told.store, told.lock = store, refusal.lock
        raise told from None


def _holder_of(held: object) -> _OpenStore | None:
    if held is None:
        return None
    return next((each for each in list(OPEN) if each._lock is held), None)


def _disown_all() -> None:
    for each in list(OPEN):
        each._disown()


machine.in_forked_child(_disown_all)
