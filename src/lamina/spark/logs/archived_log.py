"""An archive as Spark reads it: objects read by the executors, by block ranges, without a broker.

The driver reads the lists of a partition's objects and, of those that must be cut, their indexes.
An executor reads the blocks of its piece, each checked, with the engine's own cold reader.

Rules.
1. The object store is asked for what is new at most once in `LOOK_S`, however often Spark asks;
   for what has just left the local disk at once.
2. An object that was replaced since it was planned (joined, rewritten) is found again in the list.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lamina.api import Gap, TopicSchema
from lamina.archive.object_list import Shelf, cold_log
from lamina.archive.object_reader import BlockCache, ColdLog
from lamina.config import TIMESTAMP_TYPES, TopicSettings
from lamina.errors import ArchiveUnavailable, ObjectMissing, RecordsMissing, UnknownTopic
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.formats.ranges import Ranges, Span
from lamina.formats.scan import Limit
from lamina.log.cold import in_objects
from lamina.log.layers import Layer, ObjectSource, key_of, object_layer, objects_of
from lamina.records import OUTPUT_SCHEMAS
from lamina.spark.access import ArchiveAccess
from lamina.spark.columns import Origin
from lamina.spark.pieces.piece import BATCH_BYTES, BATCH_RECORDS, over_gaps
from lamina.spark.plan import OBJECT, Cut, Part, Topic, Wanted, outside
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.archive_store import (
    ArchivedPartition,
    archived_topic,
    archived_topics,
    schemas_of,
)
from lamina.store.typed_topics import versions_of

LOOK_S = 1.0
LIST_S = 10.0
INDEX_BYTES = 4 << 20
"""What an executor keeps of objects beside the blocks in hand: their indexes."""
BATCH = Limit(BATCH_RECORDS, BATCH_BYTES)


def timestamp_type(about: TopicFile) -> int:
    """Returns what Spark calls the kind of a topic's times."""
    return TIMESTAMP_TYPES.index(TopicSettings.parse(about.settings).timestamp_type)


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    """Some offsets of one archived object."""

    access: ArchiveAccess
    about: TopicFile
    partition: int
    entry: ArchivedObject
    start: int
    end: int
    size_bytes: int
    blocks: tuple[int, int, int] = (0, 0, 0)

    @property
    def part(self) -> Part:
        """The object, and which of its blocks."""
        key = key_of(self.about.name, self.partition, self.entry)
        return Part(OBJECT, key, *self.blocks)

    @property
    def origin(self) -> Origin:
        """Where the rows come from."""
        about = self.about
        name = self.part.name.rpartition("/")[2]
        return Origin(about.name, self.partition, about.epoch, name, timestamp_type(about))

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Reads the blocks that hold the range, from the object store."""
        objects, origin = self.access.open(), self.origin
        shelf = Shelf(objects, self.about, self.partition)
        cache = BlockCache(INDEX_BYTES)
        cold = ColdLog(
            *(objects, self.about.name, self.partition, OUTPUT_SCHEMAS[self.about.format], cache),
            ask=lambda: shelf.load().objects,
        )
        cold.show((self.entry,))
        try:
            for batch in over_gaps(
                lambda first: self._scan(cold, shelf, first), self.start, wanted
            ):
                yield origin, batch
        finally:
            cache.close()

    def _scan(self, cold: ColdLog, shelf: Shelf, first: int) -> Iterator[pa.RecordBatch]:
        """Reads on; where the object does not hold what it should, looks at the list again."""
        try:
            for batch in in_objects(cold, first, self.end, BATCH):
                yield batch
                first = batch.column("offset")[batch.num_rows - 1].as_py() + 1
        except RecordsMissing as problem:
            before = cold.entry_for(problem.first)
            cold.show(shelf.load().objects)
            if cold.entry_for(problem.first) == before:
                raise _explained(problem, shelf) from problem
            yield from in_objects(cold, first, self.end, BATCH)


def _explained(problem: RecordsMissing, shelf: Shelf) -> RecordsMissing:
    """Gives what an object does not hold the reason that the archive's ledger has."""
    gap = shelf.read_ledger().at(problem.first)
    if gap is None or gap.reason == ARCHIVED:
        return problem
    return RecordsMissing(problem.problem, first=problem.first, end=problem.end, reason=gap.reason)


@dataclass(frozen=True, slots=True)
class ObjectCutter:
    """Cuts an archived object; `layer` is what is read of it."""

    access: ArchiveAccess
    about: TopicFile
    partition: int
    cold: ColdLog
    layer: Layer

    @property
    def entry(self) -> ArchivedObject:
        """The object in the archive's list."""
        assert isinstance(self.layer.source, ObjectSource)
        return self.layer.source.entry

    def size_bytes(self, start: int, end: int) -> int:
        """Returns about how many bytes some offsets have."""
        entry = self.entry
        return entry.size_bytes * (end - start) // (entry.next_offset - entry.base_offset)

    def offset_within(self, start: int, end: int, max_bytes: int) -> int:
        """Returns about how far some bytes reach from an offset on."""
        return start + max_bytes * (end - start) // max(self.size_bytes(start, end), 1)

    def pieces(self, start: int, end: int, cut: Cut) -> Iterator[ObjectPiece]:
        """Cuts an object at its blocks; within one only where pieces must be smaller."""
        entry, size = self.entry, self.size_bytes(start, end)
        whole = start == entry.base_offset and end == entry.next_offset
        if whole and size <= cut.max_bytes and end - start <= cut.max_records:
            yield self._piece(start, end, size)
            return
        try:
            index = self.cold.segment_of(entry, start)
        except RecordsMissing:
            yield self._piece(start, end, size)  # whoever reads it will say what is missing
            return
        positions = np.append(index.positions, entry.index_offset)
        offsets = np.append(index.offsets, entry.next_offset)
        while start < end:
            at = float(np.interp(start, offsets, positions))
            following = int(np.interp(at + cut.max_bytes, positions, offsets))
            edge = int(offsets[np.searchsorted(offsets, following, side="right") - 1])
            following = max(edge if edge > start else following, start + 1)
            following = min(following, start + cut.max_records, end)
            reached = int(np.interp(following, offsets, positions))
            blocks = index.block_of(start), index.block_of(following - 1) + 1, len(index)
            yield self._piece(start, following, reached - int(at), blocks)
            start = following

    def _piece(
        self, start: int, end: int, size: int, blocks: tuple[int, int, int] = (0, 0, 0)
    ) -> ObjectPiece:
        return ObjectPiece(
            self.access, self.about, self.partition, self.entry, start, end, size, blocks
        )


class ColdSide:
    """The archived part of a partition, beside whatever holds its newer records."""

    def __init__(
        self, access: ArchiveAccess, about: TopicFile, partition: int, cache: BlockCache
    ) -> None:
        self._access = access
        self._about = about
        self._partition = partition
        self._loaded_s = -LOOK_S
        self._holes: tuple[Span, ...] = ()
        self._problem = ""
        self.log = cold_log(access.open(), about, partition, cache)

    def cover(self, needed: Sequence[Span]) -> None:
        """Asks for the list again if it does not reach over some ranges.

        What was listed before its local copy went is there at once; what the last answer did not
        have either is asked for no more often than it may. An object store that does not answer
        is noted: `lost` tells of it, and whoever needs the records decides.
        """
        holes, now_s = self._uncovered(needed), time.monotonic()
        if holes and (holes != self._holes or now_s - self._loaded_s >= LOOK_S):
            self._loaded_s, self._problem = now_s, ""
            try:
                self.log.show(self.log.ask())
            except ArchiveUnavailable as error:
                self._problem = str(error)
            self._holes = self._uncovered(needed)

    def _uncovered(self, needed: Iterable[Span]) -> tuple[Span, ...]:
        held = Ranges.of((each.base_offset, each.next_offset) for each in self.log.entries)
        return Ranges.of(needed).minus(held).pairs()

    def lost(self, needed: Iterable[Span]) -> list[Gap]:
        """Returns what should be in the archive and is in none of its objects.

        Where the list could not be read it is not lost, but archived where nobody can reach it.
        """
        reason, detail = (ARCHIVED, self._problem) if self._problem else ("lost", "not archived")
        return [Gap(first, end, reason, 0, detail) for first, end in self._uncovered(needed)]

    def without_copies(self, lost: Iterable[Gap]) -> list[Gap]:
        """Returns what is lost here and in no object either: of the rest the archive has copies."""
        if self._problem:
            return [Gap(gap.first, gap.end, ARCHIVED, 0, self._problem) for gap in lost]
        return [
            Gap(first, end, gap.reason, gap.at_ms, gap.detail)
            for gap in lost
            for first, end in self._uncovered([(gap.first, gap.end)])
        ]

    def cutters(self, needed: Iterable[Span]) -> Iterator[ObjectCutter]:
        """Yields one for each object, clipped to what is needed of it."""
        for first, end in needed:
            for entry in self.log.entries:
                start, stop = max(first, entry.base_offset), min(end, entry.next_offset)
                if start < stop:
                    layer = object_layer(self._about.name, self._partition, entry)
                    yield ObjectCutter(
                        *(self._access, self._about, self._partition, self.log),
                        layer.cut(start, stop),
                    )


class LogArchive:
    """The topics of an archive, with no directory and no broker."""

    def __init__(self, access: ArchiveAccess, names: Sequence[str] | None) -> None:
        self._access = access
        self._names = names
        self._cache = BlockCache(INDEX_BYTES)
        self._about: dict[str, TopicFile] = {}
        self._held: dict[tuple[str, int, int], ArchivedPartition] = {}
        self._looked_s, self._listed_s = -LOOK_S, -LIST_S
        self._token: object = None

    def look(self) -> object:
        """Asks for topics and lists, at most once in `LOOK_S`."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return self._token
        self._looked_s = now_s
        objects = self._access.open()
        if self._names is not None:
            found = {name: _named(objects, name) for name in self._names}
            self._about = {name: about for name, about in found.items() if about is not None}
        elif now_s - self._listed_s >= LIST_S:
            self._about = archived_topics(objects)
            self._listed_s = now_s
        for key, reader in list(self._held.items()):
            about = self._about.get(key[0])
            if about is None or about.epoch != key[1]:
                del self._held[key]
            else:
                reader.refresh()
        self._token = [
            *((about.name, about.epoch, about.partitions) for about in self._about.values()),
            *((key, each.end_offset(), each.ledger) for key, each in self._held.items()),
        ]
        return self._token

    def topics(self) -> dict[str, Topic]:
        """Returns the topics there are, by name."""
        return {
            name: Topic(name, about.epoch, about.partitions) for name, about in self._about.items()
        }

    def _reader(self, topic: str, partition: int) -> ArchivedPartition:
        about = self._about.get(topic)
        if about is None:
            raise UnknownTopic(f"{self._access.url} has no topic {topic!r}")
        key = topic, about.epoch, partition
        if key not in self._held:
            reader = ArchivedPartition(self._access.open(), about, partition, self._cache)
            reader.refresh()
            self._held[key] = reader
        return self._held[key]

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and where the archive ends."""
        reader = self._reader(topic, partition)
        return reader.earliest_offset(), reader.end_offset()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""
        return self._reader(topic, partition).offset_for_time(timestamp_ms)

    def gaps(self, topic: str, partition: int) -> list[Gap]:
        """Returns the missing ranges of a partition, with their reasons."""
        reader = self._reader(topic, partition)
        lost = [
            Gap(first, end, "lost", 0, "not archived")
            for first, end in outside(
                *(reader.earliest_offset(), reader.end_offset()),
                ((gap.first, gap.end) for gap in reader.ledger.gaps),
            )
        ]
        return sorted([*reader.ledger.missing(), *lost], key=lambda gap: gap.first)

    def cutters(self, topic: str, partition: int) -> list[ObjectCutter]:
        """Returns one for each object, oldest first, without what was removed of it."""
        reader = self._reader(topic, partition)
        about = self._about[topic]
        assert isinstance(reader.cold, ColdLog)
        return [
            ObjectCutter(self._access, about, partition, reader.cold, layer.cut(first, end))
            for layer in objects_of(reader.layers())
            for first, end in outside(
                *(layer.base_offset, layer.next_offset),
                ((gap.first, gap.end) for gap in reader.ledger.missing()),
            )
        ]

    def schemas(self, topic: str) -> Sequence[TopicSchema]:
        """Returns the versions of a topic's schema, by the archive's copy."""
        if topic not in self._about:
            raise UnknownTopic(f"{self._access.url} has no topic {topic!r}")
        return versions_of(schemas_of(self._access.open(), self._about[topic]))


def _named(objects: Objects, name: str) -> TopicFile | None:
    """Reads one topic's file; lists only where there is none."""
    try:
        objects.size(paths.archive_topic_settings(name))
    except ObjectMissing:
        return archived_topics(objects).get(name)
    about = archived_topic(objects, name, 1)
    if about.created_ms == UNKNOWN_MS:
        return archived_topics(objects).get(name)
    return None if about.deleted else about
