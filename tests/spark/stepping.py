"""The real file system, which stops everything before a chosen one of its steps.

A step is a file made, renamed or removed, a directory removed or synced. How it stops is the
caller's: an exception, or a SIGKILL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lamina.storage.files import LocalFiles

NAMES = ("create", "rename", "remove", "remove_directory", "sync_directory")


class Steps:
    """Counts steps; before number `last` it stops."""

    def __init__(self, last: int, stop: Callable[[], None]) -> None:
        self.last, self.stop, self.done = last, stop, 0
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Counts nothing: what is done here is not what is being tried."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def take(self) -> None:
        if self._is_paused:
            return
        if self.done == self.last:
            self.stop()
        self.done += 1


def count(owner: type, names: tuple[str, ...], steps: Steps) -> None:
    """Makes each call of some methods of a class a step."""
    for name in names:
        setattr(owner, name, _counted(getattr(owner, name), steps))


def _counted(actual: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def counted(itself: Any, *arguments: Any, **named: Any) -> Any:
        steps.take()
        return actual(itself, *arguments, **named)

    return counted


def files_with(steps: Steps) -> LocalFiles:
    """Returns a file system of its own, whose steps are counted."""

    class Counted(LocalFiles):
        pass

    count(Counted, NAMES, steps)
    return Counted()
