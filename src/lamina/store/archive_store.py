"""An archive as a store to read: no broker, no local directory, only the object store.

Its end is where the archive ends. Objects that no list names, or whose topic has no file, are read
as well: the list is made from their headers, and their columns are those of the richest format.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.api import RouterInfo, StoreApi
from lamina.api.portraits import Portrait, store_title
from lamina.archive.object_list import Shelf, cold_log
from lamina.archive.object_reader import BlockCache
from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import CorruptData, NewerFormat, ObjectMissing
from lamina.formats.documents import topic_file, topic_schemas
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import DELETED, Ledger
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.formats.documents.topic_schemas import TopicSchemas
from lamina.formats.log_format import CODECS
from lamina.formats.ranges import Ranges
from lamina.log.directory import Place
from lamina.log.interfaces import LogReader
from lamina.log.partition_reader import PartitionReader
from lamina.log.sealed_segment import SealedSegment
from lamina.log.segment import Bound
from lamina.log.segment_index import SegmentIndex
from lamina.log.segment_pile import Layout
from lamina.storage import paths
from lamina.storage.files import LocalFiles
from lamina.storage.objects import Objects
from lamina.store.lookup import Lookup
from lamina.store.parts import answered_by
from lamina.store.reads import Reads
from lamina.store.typed_topics import TypedReads, bury_nowhere
from lamina.wal.reader import TopicReader
from lamina.wal.shard import WalFiles
from lamina.wal.topic import Arrivals, Sources

UNKNOWN_FORMAT = "keratin"


def archived_topics(objects: Objects, *, deleted: bool = False) -> dict[str, TopicFile]:
    """Reads the topics of an archive, also those of which only objects are left.

    With `deleted` those that were deleted, otherwise those that were not.
    """
    partitions: dict[str, int] = {}
    for info in objects.list(paths.ARCHIVE):
        name = paths.archived_topic(info.key)
        if name is not None:
            key = paths.object_key(info.key)
            number = key.partition if key is not None else 0
            partitions[name] = max(partitions.get(name, 0), number)
    found = {name: archived_topic(objects, name, last + 1) for name, last in partitions.items()}
    return {name: about for name, about in found.items() if about.deleted == deleted}


def archived_topic(objects: Objects, name: str, partitions: int) -> TopicFile:
    """Reads the archived copy of a topic's file; without a sound one, returns what is known."""
    key = paths.archive_topic_settings(name)
    try:
        return topic_file.decode(objects.read(key).data)
    except NewerFormat as error:
        raise error.at_path(f"{objects.url}/{key}") from error
    except (ObjectMissing, CorruptData):
        return TopicFile(name, UNKNOWN_FORMAT, partitions, 1, UNKNOWN_MS)


def archived_schemas(objects: Objects, about: TopicFile) -> bytes | None:
    """Reads the archived copy of a topic's schemas; None where there is none."""
    try:
        return objects.read(paths.archive_topic_schemas(about.name)).data
    except ObjectMissing:
        return None


def schemas_of(objects: Objects, about: TopicFile) -> TopicSchemas | None:
    """Returns what the copy of a topic's schemas says; one of an older topic says nothing."""
    raw = archived_schemas(objects, about)
    if raw is None:
        return None
    try:
        found = topic_schemas.decode(raw)
    except CorruptData as error:
        raise error.at_path(f"{objects.url}/{paths.archive_topic_schemas(about.name)}") from error
    return found if found.is_of(about) else None


@dataclass(slots=True)
class _End:
    """The tail of a partition that takes no appends: empty, where the archive ends."""

    segment: SealedSegment

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def index(self) -> SegmentIndex:
        return self.segment.index

    @property
    def written(self) -> Bound:
        return self.segment.end

    @property
    def durable(self) -> Bound:
        return self.segment.end


class ArchivedPartition(PartitionReader):
    """One partition, read from the archive alone."""

    def __init__(
        self, objects: Objects, about: TopicFile, partition: int, cache: BlockCache
    ) -> None:
        codec = CODECS.get(about.format, CODECS[UNKNOWN_FORMAT])
        place = Place(LocalFiles(), objects.url, about.name, partition, lambda: 0)
        self._shelf = Shelf(objects, about, partition)
        self._cold = cold_log(objects, about, partition, cache)
        end = SealedSegment(
            *(codec, place.files, place.segments),
            base_offset=0,
            end=Bound(0, codec.header_bytes),
            index=SegmentIndex(codec, 0),
        )
        super().__init__(place, codec, Layout((), _End(end)), Ledger())
        self.cold = self._cold

    def earliest_offset(self) -> int:
        """The first offset that may be read: the end, where all that was archived is deleted."""
        return min(super().earliest_offset(), self.end_offset())

    first_readable = earliest_offset

    def refresh(self) -> None:
        """Reads the list and the ledger as they are now."""
        manifest = self._shelf.load()
        gaps = gaps_in(self._shelf.read_ledger(), manifest.objects)
        self.show(manifest.objects, gaps, manifest.end_offset)

    def show(self, entries: tuple[ArchivedObject, ...], gaps: Ledger, end_offset: int) -> None:
        """Shows readers other objects: first why some are gone, last where they end."""
        self.ledger = gaps
        self._cold.show(entries)
        end = SealedSegment(
            *(self.codec, self.place.files, self.place.segments),
            base_offset=end_offset,
            end=Bound(end_offset, self.codec.header_bytes),
            index=SegmentIndex(self.codec, end_offset),
        )
        self.layout = Layout((), _End(end))


class ArchivedTopic(TopicReader):
    """One partition of a wal topic, read from the archive alone: floors and deletes hold there."""

    __slots__ = ("_list", "_shelf")

    def __init__(
        self, objects: Objects, about: TopicFile, partition: int, cache: BlockCache
    ) -> None:
        files = LocalFiles()
        place = Place(files, objects.url, about.name, partition, lambda: 0)
        # An archive alone is what its list names: there is no clock by which records grow too old.
        settings = replace(TopicSettings.parse(about.settings), retention_ms=NO_LIMIT)
        sources = Sources(files, WalFiles(), Arrivals())
        super().__init__(place, 0, settings, sources)
        self._shelf = Shelf(objects, about, partition)
        self.cold = self._list = cold_log(objects, about, partition, cache)

    def refresh(self) -> None:
        """Reads the list and the ledger as they are now."""
        manifest = self._shelf.load()
        gaps = gaps_in(self._shelf.read_ledger(), manifest.objects)
        floors = {}
        end = 1
        for reason in ("retention", "trim"):
            gap = gaps.at(end)
            end = gap.end if gap is not None and gap.reason == reason else end
            floors[reason] = end
        self._list.show(manifest.objects)
        self.ledger = gaps
        self.evict_floor, self.earliest = floors["retention"], floors["trim"]
        self.deleted = gaps.ranges(DELETED).from_on(self.earliest)
        self.written_end = self.durable_end = max(1, manifest.end_offset)

    @property
    def ledger_of_gaps(self) -> Ledger:
        """Every missing range with its reason, single deleted records too."""
        return self.published

    def earliest_offset(self) -> int:
        """The first offset that may be read; the first archived one, if no floor is known."""
        entries = self._list.entries
        if entries and self.earliest == 1 and self.ledger.at(1) is None:
            return max(1, entries[0].base_offset)
        return min(self.earliest, self.end_offset())


def gaps_in(known: Ledger, listed: Sequence[ArchivedObject]) -> Ledger:
    """Returns what is missing in an archive: not what its log had lost and an object holds whole.

    Everything else that an object spans is archived.
    """
    whole = [(each.base_offset, each.next_offset) for each in listed if each.is_dense]
    gaps = Ledger(known.missing()).found_again(whole)
    spans = Ranges.of((each.base_offset, each.next_offset) for each in listed)
    for first, end in spans.pairs():
        gaps = gaps.with_archived(first, end, 0)
    return gaps


def reader_of(
    objects: Objects, about: TopicFile, partition: int, cache: BlockCache
) -> ArchivedPartition | ArchivedTopic:
    """Makes the reader of an archived partition of any format; `refresh` it before use."""
    if about.format == "wal":
        return ArchivedTopic(objects, about, partition, cache)
    return ArchivedPartition(objects, about, partition, cache)


class ArchiveStore(StoreApi, leave=("scan", "fetch")):
    """An archive opened for reading. Use `lamina.open("s3://…", read_only=True)`."""

    _CANNOT = "an archive is read-only; `lamina tier restore` makes a store of it, for {call}"

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._cache = BlockCache()
        self._readers: dict[tuple[str, int, int], ArchivedPartition | ArchivedTopic] = {}
        self._lookup: Lookup[LogReader] = Lookup(lambda: archived_topics(objects), self._reader)
        self._reads = Reads(self._lookup)
        kept = functools.partial(schemas_of, objects)
        self._typed = TypedReads(self._lookup, self._reads, kept, bury_nowhere)

    def _reader(self, about: TopicFile, partition: int) -> LogReader:
        key = about.name, about.created_ms, partition
        if key not in self._readers:
            self._readers[key] = reader_of(self._objects, about, partition, self._cache)
        self._readers[key].refresh()
        return self._readers[key]

    def _portrait(self) -> Portrait:
        return Portrait(store_title(self, self._objects.url, is_open=not self._lookup.is_closed))

    topics = answered_by("_reads", Reads.topics)
    describe_topic = answered_by("_reads", Reads.describe_topic)
    format_of = answered_by("_reads", Reads.format_of)
    scan = answered_by("_reads", Reads.scan)
    fetch = answered_by("_reads", Reads.fetch)
    schema = answered_by("_typed", TypedReads.schema)
    schemas = answered_by("_typed", TypedReads.schemas)
    read = answered_by("_typed", TypedReads.read)
    diff = answered_by("_reads", Reads.diff)
    segments = answered_by("_reads", Reads.segments)
    earliest_offset = answered_by("_reads", Reads.earliest_offset)
    latest_offset = answered_by("_reads", Reads.latest_offset)
    offset_for_time = answered_by("_reads", Reads.offset_for_time)
    gaps = answered_by("_reads", Reads.gaps)
    gone_from = answered_by("_reads", Reads.gone_from)

    def routers(self) -> list[RouterInfo]:
        """Lists none: an archive keeps no routers."""
        self._lookup.require_open()
        return []

    def close(self) -> None:
        """Releases the object store."""
        if not self._lookup.is_closed:
            self._lookup.is_closed = True
            self._readers.clear()
            self._cache.close()
