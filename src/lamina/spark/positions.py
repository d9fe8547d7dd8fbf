"""Where a streaming query stands, told to the log, so that lag and retention can see it.

Consumer groups are not part of the directory yet: until they are, nothing is written. What Spark's
checkpoint holds stays the truth in any case; a published position is for others to look at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class PositionPublisher(Protocol):
    """Takes the position of a query after each committed micro-batch."""

    def publish(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Is told that all records below these offsets are processed."""


class NoPositions:
    """Keeps no positions."""

    def publish(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Does nothing."""
