"""The files of the wal format as `scan.runs` walks them: a WAL file, and a segment's `.data`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lamina.formats.scan import Budget, Limit, Scan
from lamina.formats.wal import log, search
from lamina.formats.wal.layout import SEGMENT_FRAME

if TYPE_CHECKING:
    from typing_extensions import Buffer


class WalFrames:
    """The frames of a WAL file: topics are mixed, so no number orders them."""

    def __init__(self, buffer: Buffer) -> None:
        self.data = memoryview(buffer).cast("B")

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks frames of all topics and types."""
        return log.scan(self.data, start, limit=limit)

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the next frame, of whatever topic."""
        return search.resync(self.data, damage.end, budget=budget)

    def number_at(self, position: int) -> int:
        """Returns 0."""
        return 0


class SegmentFrames:
    """The frames of a segment's `.data`: one topic, sequences go up, holes are legal.

    So a number is the least that a frame may have. Without a topic, that of the first is taken.
    """

    def __init__(self, buffer: Buffer, topic_id: int | None) -> None:
        self.data = memoryview(buffer).cast("B")
        self._topic_id = topic_id

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks frames of the topic whose sequences ascend."""
        return log.scan_segment(
            self.data, start, topic_id=self._topic_id, minimum_sequence=number or 1, limit=limit
        )

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the next frame of the topic that is not below a number."""
        return search.resync_segment(
            self.data,
            damage.end,
            topic_id=self._topic_id,
            minimum_sequence=number or 1,
            budget=budget,
        )

    def number_at(self, position: int) -> int:
        """Returns the sequence of a sound frame."""
        return int(SEGMENT_FRAME.unpack(self.data, position)["sequence"])
