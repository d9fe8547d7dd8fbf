"""A running server as Spark reads it: cold objects from the object store, the rest by Flight.

The driver asks the server what there is; executors read the objects themselves, and only what the
server holds locally comes from it. Without an `archive` everything comes from the server.

Rules.
1. The server is asked for what is new at most once in `LOOK_S`.
2. What the list of the archive does not reach over comes from the server: it knows more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

import lamina
from lamina.api import Gap, PartitionInfo, TopicInfo, TopicSchema
from lamina.archive.object_reader import BlockCache
from lamina.errors import UnknownTopic
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.layers import Kind, Known, Layer
from lamina.spark.access import ArchiveAccess, ServerAccess
from lamina.spark.columns import Origin
from lamina.spark.logs.archived_log import INDEX_BYTES, ColdSide, timestamp_type
from lamina.spark.logs.wal_topics import NEVER_THERE
from lamina.spark.pieces.piece import (
    BATCH_BYTES,
    BATCH_RECORDS,
    EvenCutter,
    over_gaps,
    recreated,
)
from lamina.spark.plan import SEGMENT, Cutter, Part, Piece, Topic, Wanted, outside

LOOK_S = 0.1
RECORD_BYTES = 100
"""What a record is taken for where nobody knows its size."""


@dataclass(frozen=True, slots=True)
class ServedPiece:
    """Some offsets that a server gives."""

    access: ServerAccess
    origin: Origin
    start: int
    end: int
    size_bytes: int

    @property
    def part(self) -> Part:
        """The server's segment."""
        return Part(SEGMENT, f"{self.origin.topic}/{self.origin.partition}/{self.origin.segment}")

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Streams the range; a broken connection goes on where it was."""
        origin = self.origin
        with self.access.connect() as store:
            found = described(store, origin.topic)
            if found is None or found.epoch != origin.epoch:
                raise recreated(origin.topic, origin.epoch, found.epoch if found else None)

            def scan(first: int) -> Iterator[pa.RecordBatch]:
                if first >= self.end:
                    return iter(())
                return store.scan(
                    *(origin.topic, origin.partition, first),
                    end=self.end,
                    max_records=BATCH_RECORDS,
                    max_bytes=BATCH_BYTES,
                )

            for batch in over_gaps(scan, self.start, wanted):
                yield origin, batch


class LogServer:
    """The topics of a server."""

    def __init__(
        self, access: ServerAccess, archive: ArchiveAccess | None, names: Sequence[str] | None
    ) -> None:
        self._access = access
        self._archive = archive
        self._names = names
        self._store = access.connect()
        self._cache = BlockCache(INDEX_BYTES)
        self._looked_s = -LOOK_S
        self._found: dict[str, TopicInfo] = {}
        self._cutters: dict[tuple[str, int], list[Cutter]] = {}
        self._cold: dict[tuple[str, int, int], ColdSide] = {}

    def look(self) -> object:
        """Asks the server for its topics and ends, at most once in `LOOK_S`."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            names = self._store.topics() if self._names is None else self._names
            asked = {name: described(self._store, name) for name in names}
            found = {name: about for name, about in asked.items() if about is not None}
            self._looked_s = now_s
            if found != self._found:
                self._found = found
                self._cutters.clear()
        return self._found

    def topics(self) -> dict[str, Topic]:
        """Returns the topics there are, by name."""
        return {
            name: Topic(name, about.epoch, len(about.partitions))
            for name, about in self._found.items()
        }

    def _partition(self, topic: str, partition: int) -> PartitionInfo:
        if topic not in self._found:
            raise UnknownTopic(f"{self._access.url} has no topic {topic!r}")
        return self._found[topic].partitions[partition]

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and one past the last durable one."""
        found = self._partition(topic, partition)
        return self._store.earliest_offset(topic, partition), found.durable_offset

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""
        return self._store.offset_for_time(topic, partition, timestamp_ms)

    def gaps(self, topic: str, partition: int) -> Sequence[Gap]:
        """Returns the missing ranges of a partition, with their reasons."""
        gaps = self._store.gaps(topic, partition)
        is_wal = self._found[topic].format == "wal"
        return [NEVER_THERE, *(gap for gap in gaps if gap.first)] if is_wal else gaps

    def cutters(self, topic: str, partition: int) -> list[Cutter]:
        """Returns one for each object and each segment of the server, in order."""
        key = topic, partition
        if key not in self._cutters:
            found = sorted(self._lying(topic, partition), key=lambda each: each.layer.base_offset)
            self._cutters[key] = found
        return self._cutters[key]

    def schemas(self, topic: str) -> Sequence[TopicSchema]:
        """Returns the versions of a topic's schema, as the server has them."""
        return self._store.schemas(topic)

    def _lying(self, topic: str, partition: int) -> Iterator[Cutter]:
        earliest, end = self.extent(topic, partition)
        layers = self._store.segments(topic, partition)
        local = min((each.base_offset for each in layers if not each.cold), default=end)
        about = file_of(self._found[topic])
        gone = [(gap.first, gap.end) for gap in self._store.gaps(topic, partition)]
        archived = list(outside(earliest, local, gone))
        cold = self._cold_side(about, partition) if archived else None
        reached: list[tuple[int, int]] = []
        if cold is not None:
            cold.cover(archived)
            for each in cold.cutters(archived):
                yield each
                reached.append((each.layer.base_offset, each.layer.next_offset))
        for facts in layers:
            first, after = max(facts.base_offset, local), min(facts.next_offset, end)
            if first < after:
                reached.append((first, after))
                yield self._served(about, partition, (first, after), facts.size_bytes)
        for first, after in outside(earliest, end, sorted([*gone, *reached])):  # moved meanwhile
            yield self._served(about, partition, (first, after), (after - first) * RECORD_BYTES)

    def _cold_side(self, about: TopicFile, partition: int) -> ColdSide | None:
        if self._archive is None:
            return None  # what is archived comes through the server
        key = about.name, about.epoch, partition
        if key not in self._cold:
            self._cold[key] = ColdSide(self._archive, about, partition, self._cache)
        return self._cold[key]

    def _served(
        self, about: TopicFile, partition: int, span: tuple[int, int], size_bytes: int
    ) -> Cutter:
        name = f"{span[0]:020}"
        origin = Origin(about.name, partition, about.epoch, name, timestamp_type(about))

        def make(start: int, end: int, size: int) -> Piece:
            return ServedPiece(self._access, origin, start, end, size)

        return EvenCutter(Layer(Kind.SEALED, *span, size_bytes, Known(name)), make)


def described(store: lamina.RemoteStore, topic: str) -> TopicInfo | None:
    """Describes a topic; None if there is none."""
    try:
        return store.describe_topic(topic)
    except UnknownTopic:
        return None


def file_of(info: TopicInfo) -> TopicFile:
    """Returns what a topic's file says, as far as a server tells."""
    return TopicFile(
        info.name,
        info.format,
        len(info.partitions),
        info.epoch,
        info.created_ms,
        settings=info.settings,
    )
