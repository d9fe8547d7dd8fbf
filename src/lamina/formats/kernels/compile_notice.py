"""Notifies callers that a kernel is being compiled, which takes seconds on its first use.

Separate from `compile`, so that subscribing does not import Numba. A process notifies once: those
that subscribed, or if there are none, the compiler's own log. Compiling that nobody waits for is
not worth a notice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_listeners: list[Callable[[], None]] = []
_told: list[Callable[[], None]] = []


class _Here(threading.local):
    is_unnoticed = False


_here = _Here()


@contextlib.contextmanager
def unnoticed() -> Iterator[None]:
    """Within this, the calling thread compiles without a notice."""
    _here.is_unnoticed = True
    try:
        yield
    finally:
        _here.is_unnoticed = False


def when_compiling(tell: Callable[[], None]) -> None:
    """Calls `tell` before the first kernel is compiled that no cache holds; once, if ever."""
    _listeners.append(tell)


def compiling(otherwise: Callable[[], None]) -> None:
    """Notifies the subscribers, once; calls `otherwise`, once, if there are none."""
    if _here.is_unnoticed:
        return
    if not _listeners and not _told:
        _listeners.append(otherwise)
    while _listeners:
        _told.append(_listeners.pop())
        _told[-1]()
