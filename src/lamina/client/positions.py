"""Where a consumer's committed positions are kept.

For now in memory, for as long as the program lives: durable consumer groups are the store's and
plug in behind the same protocol.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Positions(Protocol):
    """Keeps the next offset of each partition for one group."""

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the committed offset; None where none is."""

    def save(self, topic: str, partition: int, offset: int) -> None:
        """Commits an offset: the next one to be read."""


class InMemory:
    """Positions that end with the program."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()

    def load(self, topic: str, partition: int) -> int | None:
        """Returns the committed offset; None where none is."""
        return self._offsets.get((topic, partition))

    def save(self, topic: str, partition: int, offset: int) -> None:
        """Commits an offset."""
        with self._lock:
            self._offsets[topic, partition] = offset
