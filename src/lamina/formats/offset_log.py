"""A frame or keratin log, whose offsets are consecutive, as `scan.runs` walks it.

A record that cannot be read keeps its offset: the next sound one has a higher offset. Where the
expected record itself follows, the bytes before it were leftovers and cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lamina.formats.kernels.binary import Layout
from lamina.formats.scan import Budget, Limit, Scan

if TYPE_CHECKING:
    from typing_extensions import Buffer


class LogModule(Protocol):
    """What is needed of a format: the `log` module of frame or keratin."""

    HEADER: Layout
    FILE_HEADER_BYTES: int

    def scan(
        self, buffer: Buffer, start: int = ..., *, expected_offset: int | None, limit: Limit
    ) -> Scan:
        """Walks the records of a buffer."""

    def resync(
        self, buffer: Buffer, start: int, *, minimum_offset: int, budget: Budget | None
    ) -> int | None:
        """Finds the next sound record."""


class OffsetLog:
    """The records of a buffer; their numbers are offsets."""

    def __init__(self, module: LogModule, buffer: Buffer) -> None:
        self.data = memoryview(buffer).cast("B")
        self._module = module

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks records that follow each other without a hole."""
        return self._module.scan(self.data, start, expected_offset=number, limit=limit)

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the next record that is not below the expected one.

        It may be the one where the scan stopped, a sound record that is out of order; or the
        expected one itself, behind leftovers of older times.
        """
        least = 0 if number is None else number
        return self._module.resync(self.data, damage.end, minimum_offset=least, budget=budget)

    def number_at(self, position: int) -> int:
        """Returns the offset of a sound record."""
        return int(self._module.HEADER.unpack(self.data, position)["offset"])
