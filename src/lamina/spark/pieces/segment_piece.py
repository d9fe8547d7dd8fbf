"""A piece of a segment file, as an executor reads it: opened, scanned by the kernels, gathered.

Rule: only what reading a file needs is imported here. A worker that finds its file where it was
planned never loads the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lamina.formats.log_format import CODECS
from lamina.formats.scan import Limit, Scan
from lamina.log.sealed_segment import SealedSegment
from lamina.log.segment import Bound, Damaged, Segment
from lamina.spark.columns import Origin, matching
from lamina.spark.pieces.piece import (
    BATCH_BYTES,
    BATCH_RECORDS,
    DirectoryAccess,
    refuse_recreated,
    require_directory,
)
from lamina.spark.plan import SEGMENT, Part, Wanted
from lamina.storage.files import LocalFiles
from lamina.storage.paths import segments_directory


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Some records of one segment file: from one byte to another."""

    access: DirectoryAccess
    origin: Origin
    format: str
    base_offset: int
    start: Bound
    end: Bound

    @property
    def size_bytes(self) -> int:
        """The bytes between start and end."""
        return self.end.position - self.start.position

    @property
    def part(self) -> Part:
        """The partition and the segment's file."""
        origin = self.origin
        return Part(SEGMENT, f"{origin.topic}/{origin.partition}/{origin.segment}")

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Scans the range, checksums and all, and gathers the wanted columns.

        What is damaged, or not there any more, is left to the engine's reader: it may be archived.
        """
        files, codec, path = LocalFiles(), CODECS[self.format], self.access.path
        require_directory(files, path)
        place = segments_directory(path, self.origin.topic, self.origin.partition)
        segment = SealedSegment(codec, files, place, base_offset=self.base_offset, end=self.end)
        try:
            segment.hold()  # nobody can take it away any more
            refuse_recreated(files, path, self.origin)
        except FileNotFoundError:
            yield from self._otherwise(self.start.next_offset, self.end.next_offset, wanted)
            return
        offset, last = self.start.next_offset, self.end.next_offset
        for step in segment.walk(self.start, self.end, Limit(BATCH_RECORDS, BATCH_BYTES)):
            if isinstance(step, Damaged):
                if step.following is None or step.following.next_offset >= last:
                    break
                yield from self._otherwise(offset, step.following.next_offset, wanted)
                offset = step.following.next_offset
                continue
            offset = step.end.next_offset
            found = _with_keys(segment, step.buffer, step.found, wanted)
            if len(found):
                yield self.origin, codec.decode(step.buffer, found, wanted.columns)
        if offset < last:
            yield from self._otherwise(offset, last, wanted)

    def _otherwise(
        self, start: int, end: int, wanted: Wanted
    ) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        for batch in self.access.scan(self.origin, start, end, wanted):
            yield self.origin, batch


def _with_keys(segment: Segment, buffer: object, found: Scan, wanted: Wanted) -> Scan:
    """Keeps the records that have one of the wanted keys; the others are not gathered."""
    if wanted.keys is None:
        return found
    batch = segment.codec.decode(buffer, found, ("key",))  # type: ignore[arg-type]
    mask = matching(batch.column("key"), wanted.keys).to_numpy(zero_copy_only=False)
    return Scan(found.positions[mask], found.end, found.stop, found.column_bytes)
