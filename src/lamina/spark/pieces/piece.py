"""What every kind of piece does on an executor: reading over gaps, and keeping what is wanted.

Rule: the engine's reader is imported when a piece needs it; most find their file by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from lamina.config import WalSettings
from lamina.errors import InvalidRequest, RecordsMissing
from lamina.formats.documents import topic_file
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.gap_walk import scan_over
from lamina.log.layers import Layer
from lamina.spark.access import ArchiveAccess
from lamina.spark.columns import Origin, matching
from lamina.spark.gaps import judge
from lamina.spark.plan import SEGMENT, Cut, Part, Piece, Wanted
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles

BATCH_RECORDS, BATCH_BYTES = 1 << 15, 8 << 20


def require_directory(files: Files, path: str) -> None:
    """Refuses to read what is not a data directory, or is none on this machine."""
    if not files.exists(paths.join(path, paths.BROKER_ID)):
        raise InvalidRequest(f"{path} is not a data directory: it has no {paths.BROKER_ID}")


def recreated(topic: str, epoch: int, found: int | None) -> InvalidRequest:
    """Returns the error for a topic that is not the query's; `found` is None if it is gone."""
    if found is None:
        return InvalidRequest(f"topic {topic!r} (epoch {epoch}) was deleted")
    return InvalidRequest(
        f"topic {topic!r} was deleted and created again: the query read epoch {epoch}, now it is"
        f" {found}, and offsets mean other records; start the query with a new checkpoint"
    )


def refuse_recreated(files: Files, path: str, origin: Origin) -> TopicFile:
    """Returns the file of the topic that a piece belongs to; raises if it is another one now."""
    name = paths.join(path, paths.TOPICS, origin.topic, paths.TOPIC_SETTINGS)
    about = topic_file.decode(files.read(name))
    if about.deleted or about.epoch != origin.epoch:
        raise recreated(origin.topic, origin.epoch, None if about.deleted else about.epoch)
    return about


def shaped(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """Keeps the rows with wanted keys and the wanted columns."""
    if wanted.keys is not None:
        if "key" not in batch.schema.names:
            return batch.slice(0, 0)
        batch = batch.filter(matching(batch.column("key"), wanted.keys))
    return batch.select([name for name in batch.schema.names if name in wanted.columns])


def over_gaps(
    scan: Callable[[int], Iterator[pa.RecordBatch]], start: int, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    """Reads from an offset on, over missing ranges that are no loss or that do not matter."""
    for step in scan_over(scan, start):
        if isinstance(step, RecordsMissing):
            judge(step, fail_on_data_loss=wanted.fail_on_data_loss)
            continue
        kept = shaped(step, wanted)
        if kept.num_rows:
            yield kept


@dataclass(frozen=True, slots=True)
class DirectoryAccess:
    """How a process opens a data directory with all of its tiers."""

    path: str
    archive: ArchiveAccess | None = None
    wal: WalSettings = field(default_factory=WalSettings)

    def scan(
        self, origin: Origin, start: int, end: int, wanted: Wanted
    ) -> Iterator[pa.RecordBatch]:
        """Reads through the engine's own reader, which knows where everything is by now."""
        from lamina.store.read_only import ReadOnlyStore

        refuse_recreated(LocalFiles(), self.path, origin)
        archive = self.archive.open() if self.archive else ""
        with ReadOnlyStore(self.path, archive=archive, wal=self.wal) as store:

            def scan(first: int) -> Iterator[pa.RecordBatch]:
                if first >= end:
                    return iter(())
                return store.scan(
                    *(origin.topic, origin.partition, first),
                    end=end,
                    max_records=BATCH_RECORDS,
                    max_bytes=BATCH_BYTES,
                )

            yield from over_gaps(scan, start, wanted)


@dataclass(frozen=True, slots=True)
class EnginePiece:
    """Offsets that the engine's own reader finds: the tail of the write-ahead log."""

    access: DirectoryAccess
    origin: Origin
    start: int
    end: int
    size_bytes: int

    @property
    def part(self) -> Part:
        """The partition's tail."""
        return Part(SEGMENT, f"{self.origin.topic}/{self.origin.partition}/{self.origin.segment}")

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Reads the range."""
        for batch in self.access.scan(self.origin, self.start, self.end, wanted):
            yield self.origin, batch


@dataclass(frozen=True, slots=True)
class EvenCutter:
    """Cuts by counting: records of about equal size, whose bytes only a reader can find."""

    layer: Layer
    make: Callable[[int, int, int], Piece]
    """Makes a piece from a first offset, an end, and a size."""

    def size_bytes(self, start: int, end: int) -> int:
        """Returns about how many bytes some offsets have."""
        layer = self.layer
        records = max(layer.next_offset - layer.base_offset, 1)
        return layer.size_bytes * (end - start) // records

    def offset_within(self, start: int, end: int, max_bytes: int) -> int:
        """Returns about how far some bytes reach from an offset on."""
        return start + max_bytes * (end - start) // max(self.size_bytes(start, end), 1)

    def pieces(self, start: int, end: int, cut: Cut) -> Iterator[Piece]:
        """Cuts some offsets into equal pieces."""
        each = self.offset_within(start, end, cut.max_bytes) - start
        step = max(1, min(each, cut.max_records))
        for first in range(start, end, step):
            after = min(first + step, end)
            yield self.make(first, after, self.size_bytes(first, after))
