"""Who wants to know that a kernel is being compiled, which takes seconds on its first use.

Apart from `compile`, so that asking to be told does not cost an import of Numba.
"""

from __future__ import annotations

from collections.abc import Callable

_listeners: list[Callable[[], None]] = []


def when_compiling(tell: Callable[[], None]) -> None:
    """Calls `tell` before the first kernel is compiled that no cache holds; once, if ever."""
    _listeners.append(tell)


def compiling() -> None:
    """Tells those who asked, once."""
    while _listeners:
        _listeners.pop()()
