"""A data directory as Spark reads it: no broker, no lock; files opened where they are read.

The driver looks at the directory as any reader beside a live writer does (`log.partition_view`),
and cuts segments at entries of their sparse indexes. An executor opens the file and scans its range
with the same kernels. Only durable records are planned, so what a piece names never changes; it can
only be removed or moved to another tier: then the engine's own reader finds it, or the ledger says
why not.

What the ledger calls archived is read from the object store (`archived_log`), and so is what it
calls lost, if the archive has a copy. Topics behind the write-ahead log have pieces of their own
(`wal_topics`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from lamina.api import Gap, RecoveryReport, TopicSchema
from lamina.archive.object_reader import BlockCache
from lamina.archive.spare_copies import ArchiveSpares
from lamina.config import TopicSettings, WalSettings
from lamina.errors import UnknownTopic
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.formats.documents.ledger import ARCHIVED, LOST
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS
from lamina.log.partition_reader import PartitionReader
from lamina.log.partition_view import PartitionView
from lamina.log.segment import Bound, Damaged, Segment
from lamina.log.segment_pile import SegmentLayer
from lamina.spark.access import ArchiveAccess
from lamina.spark.columns import Origin
from lamina.spark.logs.archived_log import INDEX_BYTES, ColdSide, timestamp_type
from lamina.spark.logs.local import boot_of
from lamina.spark.logs.wal_topics import WalTopics
from lamina.spark.pieces.piece import DirectoryAccess
from lamina.spark.pieces.segment_piece import SegmentPiece
from lamina.spark.plan import Cut, Cutter, Topic, outside
from lamina.storage import machine, paths
from lamina.store.schema_files import SchemaFiles
from lamina.store.typed_topics import versions_of


@dataclass(frozen=True, slots=True)
class SegmentCutter:
    """Cuts a segment, up to its durable end."""

    access: DirectoryAccess
    about: TopicFile
    partition: int
    layer: SegmentLayer

    def size_bytes(self, start: int, end: int) -> int:
        """Returns about how many bytes some offsets have, by the index."""
        return _near(self.layer, end) - _near(self.layer, start)

    def offset_within(self, start: int, end: int, max_bytes: int) -> int:
        """Returns how far some bytes reach, to the next entry of the index."""
        entries = self.layer.source.index.offsets()
        from_byte = _near(self.layer, start)
        row = int(np.searchsorted(entries["position"], from_byte + max_bytes, side="left"))
        return int(entries["offset"][row]) if row < len(entries) else end

    def pieces(self, start: int, end: int, cut: Cut) -> Iterator[SegmentPiece]:
        """Cuts the segment at entries of its index."""
        about, segment = self.about, self.layer.source
        name = paths.SegmentFile(segment.base_offset, "log").name
        origin = Origin(about.name, self.partition, about.epoch, name, timestamp_type(about))
        for one, next_one in pairwise(_edges(segment, self.layer.bound, start, end, cut)):
            yield SegmentPiece(
                self.access, origin, about.format, segment.base_offset, one, next_one
            )


class LogDirectory:
    """The topics of a data directory; looks at it only when told to."""

    def __init__(
        self, path: str, archive: ArchiveAccess | None = None, wal: WalSettings | None = None
    ) -> None:
        self._boot = boot_of(path)
        settings = wal or WalSettings.from_environment(machine.ENVIRONMENT)
        self._access = DirectoryAccess(self._boot.data, archive, settings)
        self._cache = BlockCache(INDEX_BYTES)
        self._token: object = None
        self._about: dict[str, TopicFile] = {}
        self._checkpoint: dict[tuple[str, int], PartitionCheckpoint] = {}
        self._live = False
        self._views: dict[tuple[str, int, int], PartitionView] = {}
        self._current: set[tuple[str, int, int]] = set()
        self._cutters: dict[tuple[str, int, int], list[Cutter]] = {}
        self._cold: dict[tuple[str, int, int], ColdSide] = {}
        self._wal = WalTopics(self._boot, self._access)

    def look(self) -> object:
        """Looks whether the writer came, went, published new ends, or removed something."""
        live = self._boot.files.is_locked(self._boot.path(paths.LOCK))
        token = (
            live,
            machine.version_of(self._boot.path(paths.CHECKPOINT)),
            self._ledgers(),
            self._wal.mark(),
        )
        if token != self._token:
            self._live = live
            self._checkpoint = self._boot.read_checkpoint(RecoveryReport())
            self._about = self._boot.catalog.peek(self._wal.lost_topics)
            self._current.clear()
            self._wal.forget()
            self._token = token
        return token

    def _ledgers(self) -> tuple[object, ...]:
        return tuple(machine.version_of(view.place.ledger_path) for view in self._views.values())

    def topics(self) -> dict[str, Topic]:
        """Returns the topics there are, by name."""
        return {
            name: Topic(name, about.epoch, about.partitions) for name, about in self._about.items()
        }

    def _named(self, topic: str) -> TopicFile:
        about = self._about.get(topic)
        if about is None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        return about

    def _view(self, topic: str, partition: int) -> PartitionReader:
        about = self._named(topic)
        key = topic, about.epoch, partition
        if key not in self._views:
            place = self._boot.place_of(about, partition)
            self._views[key] = PartitionView(place, CODECS[about.format])
        view = self._views[key]
        if key not in self._current:
            entry = self._checkpoint.get((topic, partition))
            published = (entry.last_flushed_offset or 0) if entry else 0
            view.floor = entry.floor if entry else 0
            view.refresh(published, live=self._live)
            self._cutters[key] = self._found(about, view, partition)
            self._current.add(key)
        return view

    def _found(self, about: TopicFile, view: PartitionView, partition: int) -> list[Cutter]:
        """Returns where the records of a partition lie now: objects, segments, the tail.

        A sealed segment keeps its cutter from look to look: there may be thousands.
        """
        key = about.name, about.epoch, partition
        before = [each for each in self._cutters.get(key, ()) if isinstance(each, SegmentCutter)]
        if before and before[0].about != about:
            before = []
        known = {each.layer.base_offset: each for each in before}
        found: list[Cutter] = []
        for layer in view.layers("durable"):
            same = known.get(layer.base_offset)
            if not isinstance(layer, SegmentLayer):
                continue  # what is needed of the archive is found below
            if same is not None and same.layer.source is layer.source:
                found.append(same)
            elif layer.base_offset < layer.next_offset:
                found.append(SegmentCutter(self._access, about, partition, layer))
        archived, lost = _spans(view, ARCHIVED), _spans(view, LOST)
        may_be_there = archived or (lost and TopicSettings.parse(about.settings).is_archived)
        if may_be_there and self._access.archive is not None:
            if key not in self._cold:
                self._cold[key] = ColdSide(self._access.archive, about, partition, self._cache)
            self._cold[key].cover([*archived, *lost])
            view.cold = self._cold[key].log
            here = [(each.layer.base_offset, each.layer.next_offset) for each in found]
            wanted = sorted([*archived, *lost])
            absent = [hole for span in wanted for hole in outside(*span, here)]
            found += self._cold[key].cutters(absent)
            found.sort(key=lambda each: each.layer.base_offset)
        return found

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and one past the last durable one."""
        if self._named(topic).topic_ids:
            return self._wal.extent(self._named(topic), partition)
        view = self._view(topic, partition)
        return view.earliest_offset(), view.end_offset()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""
        if self._named(topic).topic_ids:
            return self._wal.offset_for_time(self._named(topic), partition, timestamp_ms)
        return self._view(topic, partition).offset_for_time(timestamp_ms)

    def gaps(self, topic: str, partition: int) -> Sequence[Gap]:
        """Returns the missing ranges of a partition; what is archived only if nobody knows where.

        Raises nothing: what should be archived and is not has the reason `lost`.
        """
        about = self._named(topic)
        if about.topic_ids:
            return self._wal.gaps(about, partition)
        view = self._view(topic, partition)
        cold = self._cold.get((topic, about.epoch, partition))
        if cold is None:
            return view.ledger.gaps
        gaps = [gap for gap in view.ledger.missing() if gap.reason != LOST]
        gaps += cold.lost(_spans(view, ARCHIVED))
        gaps += cold.without_copies(gap for gap in view.ledger.gaps if gap.reason == LOST)
        return sorted(gaps, key=lambda gap: gap.first)

    def cutters(self, topic: str, partition: int) -> Sequence[Cutter]:
        """Returns one for each layer of a partition, in order of offsets."""
        about = self._named(topic)
        if about.topic_ids:
            return self._wal.cutters(about, partition)
        self._view(topic, partition)
        return self._cutters[topic, about.epoch, partition]

    def schemas(self, topic: str) -> Sequence[TopicSchema]:
        """Returns the versions of a topic's schema; the archive's copy of a file that is gone."""
        about, boot, archive = self._named(topic), self._boot, self._access.archive
        if archive is not None and TopicSettings.parse(about.settings).is_archived:
            boot = replace(boot, spares=ArchiveSpares(archive.open()))
        return versions_of(SchemaFiles(boot).document(about))


def _spans(view: PartitionReader, reason: str) -> list[tuple[int, int]]:
    """Returns the ranges that have a reason."""
    return [(gap.first, gap.end) for gap in view.ledger.gaps if gap.reason == reason]


def _near(layer: SegmentLayer, offset: int) -> int:
    """The byte of the index entry at or before an offset: near enough to count bytes."""
    segment = layer.source
    if offset <= layer.base_offset:
        return segment.codec.header_bytes
    if offset >= layer.next_offset:
        return layer.size_bytes
    entry = segment.index.position_for(offset)
    return entry[1] if entry else segment.codec.header_bytes


def _edges(segment: Segment, bound: Bound, first: int, last: int, cut: Cut) -> Iterator[Bound]:
    """Yields where the pieces of a segment begin, and where the last one ends.

    Between two entries of the index the offset is estimated, and its byte then looked up.
    """
    entries = segment.index.offsets()
    end = _located(segment, bound, last)
    positions = np.append(entries["position"], end.position)
    offsets = np.append(entries["offset"], last)
    edge = _located(segment, bound, first)
    while edge.next_offset < last:
        yield edge
        following = int(np.interp(edge.position + cut.max_bytes, positions, offsets))
        following = min(max(following, edge.next_offset + 1), edge.next_offset + cut.max_records)
        edge = end if following >= last else _located(segment, bound, following)
    yield end


def _located(segment: Segment, bound: Bound, offset: int) -> Bound:
    """Finds the byte of an offset, proven by the log; a damaged record's is where it begins."""
    if offset >= bound.next_offset:
        return bound
    if offset <= segment.base_offset:
        return Bound(segment.base_offset, segment.codec.header_bytes)
    try:
        return Bound(offset, segment.locate(offset, bound))
    except Damaged as error:
        return Bound(offset, error.position)
