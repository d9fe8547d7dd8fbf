"""Tells people when Numba compiles; the cache on disk makes that happen once per machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TextIO

from numba.core import event


class _Notice(event.Listener):  # type: ignore[misc]  # numba has no type information
    """Writes one line when the first kernel is compiled; loading one from the cache is silent."""

    def __init__(self, line: str, to: TextIO) -> None:
        self._line = line
        self._to = to
        self._is_told = False

    def on_start(self, event: Any) -> None:
        if not self._is_told:
            self._is_told = True
            self._to.write(self._line)
            self._to.flush()

    def on_end(self, event: Any) -> None:
        """A notice has nothing to say at the end."""


def told(line: str, to: TextIO) -> AbstractContextManager[None]:
    """Writes a line if anything is compiled while the context lasts, once."""
    listening: AbstractContextManager[None] = event.install_listener(
        "numba:compile", _Notice(line, to)
    )
    return listening
