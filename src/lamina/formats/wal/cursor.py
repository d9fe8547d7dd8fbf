"""Reads small structures from start to end; every claim is checked against the bytes left.

A length or count is believed only if that many bytes remain, so damaged bytes never decide how much
is allocated. Anything that does not fit raises CorruptData with its position.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.kernels.binary import Layout


class Cursor:
    """A position in bytes that only moves forward. `origin` is where in the file they begin."""

    def __init__(self, data: bytes, what: str, *, origin: int = 0) -> None:
        self._data = data
        self._what = what
        self._origin = origin
        self._position = 0

    @property
    def position(self) -> int:
        """The byte in the file that is read next."""
        return self._origin + self._position

    def take(self, size: int) -> bytes:
        """Returns the next bytes."""
        self._require(size)
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def fields(self, layout: Layout) -> dict[str, Any]:
        """Returns the next structure."""
        return layout.unpack(self.take(layout.size))

    def text(self, size: int) -> str:
        """Returns the next bytes as UTF-8."""
        start = self.position
        raw = self.take(size)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt("has text that is not UTF-8", start + error.start) from error

    def many(self, count: int, layout: Layout) -> list[dict[str, Any]]:
        """Returns that many structures of one kind."""
        raw = self.take(count * layout.size)
        return [layout.unpack(raw, index * layout.size) for index in range(count)]

    def numbers(self, count: int) -> NDArray[np.uint64]:
        """Returns that many u64."""
        return np.frombuffer(self.take(count * 8), dtype="<u8")

    def versioned(self, layout: Layout, version: int) -> dict[str, Any]:
        """Returns the next structure, whose first byte is a version: NewerFormat for another."""
        self._require(1)
        found = self._data[self._position]
        if found != version:
            raise NewerFormat(
                f"{self._what} of an unknown version",
                position=self.position,
                expected=f"version {version}",
                found=str(found),
            )
        return self.fields(layout)

    def finish(self) -> None:
        """Checks that nothing is left."""
        left = len(self._data) - self._position
        if left:
            self.fail("has bytes after its end", expected="0 bytes", found=str(left))

    def fail(self, problem: str, *, expected: str = "", found: str = "") -> NoReturn:
        """Raises CorruptData at the current position."""
        raise self._corrupt(problem, self.position, expected, found)

    def _require(self, size: int) -> None:
        remaining = len(self._data) - self._position
        if size > remaining:
            self.fail("is cut short", expected=f"{size} bytes", found=f"{remaining}")

    def _corrupt(
        self, problem: str, position: int, expected: str = "", found: str = ""
    ) -> CorruptData:
        return CorruptData(
            f"{self._what} {problem}", position=position, expected=expected, found=found
        )
