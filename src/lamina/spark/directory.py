"""A data directory as Spark reads it: no broker, no lock; files opened where they are read.

The driver looks at the directory as any reader beside a live writer does (`engine.view`), and cuts
segments at entries of their sparse indexes. An executor maps the file and scans its range with the
same kernels. Only durable records are planned, so what a piece names never changes; it can only be
removed, and then the ledger says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lamina.config import TIMESTAMP_TYPES, TopicSettings
from lamina.engine.boot import Boot, wall_clock_ms
from lamina.engine.codec import CODECS
from lamina.engine.reading import PartitionReader
from lamina.engine.report import RecoveryReport
from lamina.engine.segment import Bound, Damaged, SealedSegment, Segment
from lamina.engine.view import PartitionView
from lamina.errors import InvalidRequest, RecordsMissing, UnknownTopic
from lamina.formats import topic as topic_file
from lamina.formats.frame.checkpoint import PartitionCheckpoint
from lamina.formats.ledger import Gap
from lamina.formats.scan import Limit, Scan
from lamina.formats.topic import TopicFile
from lamina.spark.columns import Origin, matching
from lamina.spark.planning import NO_LOSS, Cut, Piece, Range, Topic, Wanted
from lamina.storage import paths
from lamina.storage.files import LocalFiles

LOGGER = logging.getLogger("lamina.spark")
BATCH_RECORDS, BATCH_BYTES = 1 << 15, 8 << 20
Held: TypeAlias = tuple[Segment, Bound]


def boot_of(path: str) -> Boot:
    """Returns what reading a data directory stands on; raises InvalidRequest if it is none."""
    boot = Boot(LocalFiles(), os.path.abspath(path), wall_clock_ms)
    boot.require_directory()
    return boot


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Some records of one segment file: from one byte to another."""

    path: str
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
    def source(self) -> str:
        """The partition and the segment's file."""
        return f"{self.origin.topic}/{self.origin.partition}/{self.origin.segment}"

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Scans the range, checksums and all, and gathers the wanted columns."""
        boot = boot_of(self.path)
        place = boot.place(self.origin.topic, self.origin.partition)
        codec = CODECS[self.format]
        segment = SealedSegment(
            codec, boot.files, place.segments, base_offset=self.base_offset, end=self.end
        )
        offset, position = self.start.next_offset, self.start.position
        if not self._is_held(boot, segment):
            return self._judge(PartitionView(place, codec), offset, self.end.next_offset, wanted)
        while offset < self.end.next_offset and position < self.end.position:
            limit = Limit(min(BATCH_RECORDS, self.end.next_offset - offset), BATCH_BYTES)
            try:
                found, _, buffer = segment.scan(position, offset, limit, self.end)
            except Damaged as error:
                sound = segment.sound_after(error.position, error.offset, self.end)
                if sound is None or sound[0] >= self.end.next_offset:
                    break
                self._judge(PartitionView(place, codec), offset, sound[0], wanted)
                offset, position = sound
                continue
            offset, position = offset + len(found), found.end
            found = _with_keys(segment, buffer, found, wanted)
            if len(found):
                yield self.origin, codec.decode(buffer, found, wanted.columns)
        if offset < self.end.next_offset:
            self._judge(PartitionView(place, codec), offset, self.end.next_offset, wanted)
        return None

    def _is_held(self, boot: Boot, segment: SealedSegment) -> bool:
        """Maps the file, so that nobody can take it away, and makes sure that it is the topic's."""
        try:
            segment.mapped()
        except FileNotFoundError:
            return False
        name = os.path.join(boot.catalog.directory(self.origin.topic), paths.TOPIC_SETTINGS)
        about = topic_file.decode(boot.files.read(name))
        if about.deleted or about.epoch != self.origin.epoch:
            raise InvalidRequest(recreated(self.origin.topic, self.origin.epoch, about))
        return True

    def _judge(self, view: PartitionView, first: int, end: int, wanted: Wanted) -> None:
        """Finds the reason of missing records; raises if they are a loss that matters."""
        view.reread_ledger()
        gap = view.ledger.at(first)
        reason = gap.reason if gap else "lost"
        if reason in NO_LOSS:
            return
        problem = RecordsMissing(
            f"{view.place.name}: records are missing in {self.origin.segment}",
            first=first,
            end=end,
            reason=reason,
        )
        if wanted.fail_on_data_loss:
            raise problem
        LOGGER.warning("%s", problem)


def _with_keys(segment: Segment, buffer: object, found: Scan, wanted: Wanted) -> Scan:
    """Keeps the records that have one of the wanted keys; the others are not gathered."""
    if wanted.keys is None:
        return found
    batch = segment.codec.decode(buffer, found, ("key",))  # type: ignore[arg-type]
    mask = matching(batch.column("key"), wanted.keys).to_numpy(zero_copy_only=False)
    return Scan(found.positions[mask], found.end, found.stop, found.column_bytes)


def recreated(topic: str, epoch: int, about: TopicFile) -> str:
    """Says that a topic is not the one that a query began with."""
    if about.deleted:
        return f"topic {topic!r} (epoch {epoch}) was deleted"
    return (
        f"topic {topic!r} was deleted and created again: the query read epoch {epoch}, now it is"
        f" {about.epoch}, and offsets mean other records; start the query with a new checkpoint"
    )


class LogDirectory:
    """The topics of a data directory; looks at it only when told to."""

    def __init__(self, path: str) -> None:
        self._boot = boot_of(path)
        self._token: object = None
        self._about: dict[str, TopicFile] = {}
        self._checkpoint: dict[tuple[str, int], PartitionCheckpoint] = {}
        self._live = False
        self._views: dict[tuple[str, int, int], PartitionView] = {}
        self._current: set[tuple[str, int, int]] = set()

    def look(self) -> object:
        """Looks whether the writer came, went, or published new ends; cheap when it did not."""
        live = self._boot.files.is_locked(self._boot.path(paths.LOCK))
        token = live, _mark(self._boot.path(paths.CHECKPOINT))
        if token != self._token:
            self._live = live
            self._checkpoint = self._boot.read_checkpoint(RecoveryReport())
            self._about = self._boot.catalog.peek()
            self._current.clear()
            self._token = token
        return token

    def topics(self) -> dict[str, Topic]:
        """Returns the topics there are, by name."""
        return {
            name: Topic(name, about.epoch, about.partitions) for name, about in self._about.items()
        }

    def _view(self, topic: str, partition: int) -> PartitionReader:
        about = self._about.get(topic)
        if about is None:
            raise UnknownTopic(f"there is no topic {topic!r}")
        key = topic, about.epoch, partition
        if key not in self._views:
            place = self._boot.place(topic, partition)
            self._views[key] = PartitionView(place, CODECS[about.format])
        if key not in self._current:
            entry = self._checkpoint.get((topic, partition))
            published = (entry.last_flushed_offset or 0) if entry else 0
            self._views[key].refresh(published, live=self._live)
            self._current.add(key)
        return self._views[key]

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and one past the last durable one."""
        view = self._view(topic, partition)
        return view.earliest_offset(), view.end_offset()

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""
        return self._view(topic, partition).offset_for_time(timestamp_ms)

    def gaps(self, topic: str, partition: int) -> tuple[Gap, ...]:
        """Returns the missing ranges of a partition, with their reasons."""
        return self._view(topic, partition).ledger.gaps

    def sources(self, topic: str, partition: int) -> int:
        """Returns how many segments the partition has."""
        return len(self._view(topic, partition).layout.sealed) + 1

    def _held(self, wanted: Range) -> list[Held]:
        """Returns the segments that hold records of a range, with their bounds."""
        layout = self._view(wanted.topic, wanted.partition).layout
        every: list[Held] = [(segment, segment.end) for segment in layout.sealed]
        every.append((layout.active.segment, layout.active.durable))
        return [
            (segment, bound)
            for segment, bound in every
            if segment.base_offset < wanted.end and wanted.start < bound.next_offset
        ]

    def size_bytes(self, wanted: Range) -> int:
        """Returns about how many bytes a range has, by the indexes."""
        return sum(
            _near(segment, bound, wanted.end) - _near(segment, bound, wanted.start)
            for segment, bound in self._held(wanted)
        )

    def offset_within(self, wanted: Range, max_bytes: int) -> int:
        """Returns how far some bytes reach into a range, to the next entry of an index."""
        for segment, bound in self._held(wanted):
            start = _near(segment, bound, wanted.start)
            size = _near(segment, bound, wanted.end) - start
            if size > max_bytes:
                entries = segment.index.offsets()
                row = int(np.searchsorted(entries["position"], start + max_bytes, side="left"))
                reached = int(entries["offset"][row]) if row < len(entries) else bound.next_offset
                return min(max(reached, wanted.start + 1, segment.base_offset + 1), wanted.end)
            max_bytes -= size
        return wanted.end

    def pieces(self, wanted: Range, cut: Cut) -> list[Piece]:
        """Cuts the segments of a range at entries of their indexes."""
        about = self._about[wanted.topic]
        kind = TIMESTAMP_TYPES.index(TopicSettings.parse(about.settings).timestamp_type)
        found: list[Piece] = []
        for segment, bound in self._held(wanted):
            name = paths.SegmentFile(segment.base_offset, "log").name
            origin = Origin(wanted.topic, wanted.partition, about.epoch, name, kind)
            first = max(wanted.start, segment.base_offset)
            last = min(wanted.end, bound.next_offset)
            edges = list(_edges(segment, bound, first, last, cut))
            found += [
                SegmentPiece(self._boot.data, origin, about.format, segment.base_offset, start, end)
                for start, end in pairwise(edges)
            ]
        return found


def _mark(path: str) -> object:
    """What changes when a file is replaced."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _near(segment: Segment, bound: Bound, offset: int) -> int:
    """The byte of the index entry at or before an offset: near enough to count bytes."""
    if offset <= segment.base_offset:
        return segment.codec.header_bytes
    if offset >= bound.next_offset:
        return bound.position
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
