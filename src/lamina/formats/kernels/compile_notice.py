"""Notifies callers that a kernel is being compiled, which takes seconds on its first use.

Separate from `compile`, so that subscribing does not import Numba. A process notifies once: those
that subscribed, or if there are none, the compiler's own log.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[], None]] = []
_told: list[Callable[[], None]] = []


def when_compiling(tell: Callable[[], None]) -> None:
    """Calls `tell` before the first kernel is compiled that no cache holds; once, if ever."""
    _listeners.append(tell)


def compiling(otherwise: Callable[[], None]) -> None:
    """Notifies the subscribers, once; calls `otherwise`, once, if there are none."""
    if not _listeners and not _told:
        _listeners.append(otherwise)
    while _listeners:
        _told.append(_listeners.pop())
        _told[-1]()
