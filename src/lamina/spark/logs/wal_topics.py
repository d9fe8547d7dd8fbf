"""Topics behind the write-ahead log, as Spark reads them.

Executors read ranges of sequences from the sealed segments and the active one, by their `.idx`, and
archived ones from their objects. What only the WAL itself holds yet is read by the engine's own
reader. Deleted records are left out, whatever an object still holds; what is missing has a reason.

Rule: a look replays the WAL once for each topic, and nothing changes until the next look.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import pyarrow as pa

from lamina.api import Gap
from lamina.archive.object_list import cold_log
from lamina.archive.object_reader import BlockCache
from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import Unavailable
from lamina.formats.documents.ledger import LOST, Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Limit
from lamina.log.layers import Layer, key_of
from lamina.spark.columns import Origin
from lamina.spark.logs.archived_log import INDEX_BYTES, ColdSide, timestamp_type
from lamina.spark.logs.local import boot_of
from lamina.spark.pieces.piece import (
    BATCH_BYTES,
    BATCH_RECORDS,
    DirectoryAccess,
    EnginePiece,
    EvenCutter,
    over_gaps,
    refuse_recreated,
)
from lamina.spark.plan import OBJECT, SEGMENT, Cut, Cutter, Part, Piece, Wanted, outside
from lamina.storage import machine, paths
from lamina.store.opening import Boot
from lamina.wal import segments
from lamina.wal.ground import Ground
from lamina.wal.reader import TopicReader
from lamina.wal.segments import Segment
from lamina.wal.shard import WalFiles
from lamina.wal.topic import Arrivals, Contents, Sources, TopicLayout
from lamina.wal.topics_view import WalView

SETTLED_NS = 50_000_000
"""Two writes within one tick of the file system's clock look like one: look again after this."""
LIMIT = Limit(BATCH_RECORDS, BATCH_BYTES)
NEVER_THERE = Gap(0, 1, "truncated", 0, "offsets of a wal topic count from 1")


@dataclass(frozen=True, slots=True)
class WalState:
    """What reading a segment needs to know of its topic."""

    about: TopicFile
    topic_id: int
    settings: TopicSettings
    earliest: int
    evict_floor: int
    deleted: Ranges
    ledger: Ledger

    @contextlib.contextmanager
    def reading(self, access: DirectoryAccess, origin: Origin) -> Iterator[TopicReader]:
        """Gives a reader of the partition without local layers; raises if it is another by now."""
        boot, cache = boot_of(access.path), BlockCache(INDEX_BYTES)
        refuse_recreated(boot.files, boot.data, origin)
        place = boot.place_of(self.about, origin.partition)
        contents = Contents(
            earliest=self.earliest,
            evict_floor=self.evict_floor,
            deleted=self.deleted,
            ledger=self.ledger,
        )
        sources = Sources(boot.files, WalFiles(), Arrivals())
        reader = TopicReader(place, self.topic_id, self.settings, sources, contents)
        is_in_archive = self.settings.is_archived or self.ledger.archived()
        if access.archive is not None and is_in_archive:
            reader.cold = cold_log(access.archive.open(), self.about, origin.partition, cache)
        try:
            yield reader
        finally:
            cache.close()


@dataclass(frozen=True, slots=True)
class WalPiece:
    """Some sequences of one materialised segment."""

    access: DirectoryAccess
    origin: Origin
    state: WalState
    segment: Segment
    start: int
    end: int
    size_bytes: int

    @property
    def part(self) -> Part:
        """The partition and the segment's file."""
        return Part(SEGMENT, f"{self.origin.topic}/{self.origin.partition}/{self.origin.segment}")

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Reads the range as the engine does; if the segment moved or went, asks where it is."""
        start = self.start
        try:
            for batch in self._read(_with_offset(wanted)):
                start = batch.column("offset")[batch.num_rows - 1].as_py() + 1
                yield self.origin, batch
        except Unavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            for batch in self.access.scan(self.origin, start, self.end, wanted):
                yield self.origin, batch

    def _read(self, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        with self.state.reading(self.access, self.origin) as reader:
            reader.layout = TopicLayout((self.segment,), ())
            reader.durable_end = reader.written_end = self.segment.end_sequence
            yield from over_gaps(_scanning(reader, self.end), self.start, wanted)


@dataclass(frozen=True, slots=True)
class WalColdPiece:
    """Some sequences that only the archive holds."""

    access: DirectoryAccess
    origin: Origin
    state: WalState
    start: int
    end: int
    size_bytes: int

    @property
    def part(self) -> Part:
        """The object."""
        return Part(OBJECT, f"{self.origin.topic}/{self.origin.partition}/{self.origin.segment}")

    def read(self, wanted: Wanted) -> Iterator[tuple[Origin, pa.RecordBatch]]:
        """Reads the range as the engine does: without what was deleted since it was archived."""
        with self.state.reading(self.access, self.origin) as reader:
            reader.durable_end = reader.written_end = self.end
            for batch in over_gaps(_scanning(reader, self.end), self.start, wanted):
                yield self.origin, batch


def _scanning(reader: TopicReader, end: int) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def scan(first: int) -> Iterator[pa.RecordBatch]:
        return reader.scan(first, LIMIT, end=end) if first < end else iter(())

    return scan


def _with_offset(wanted: Wanted) -> Wanted:
    """Asks for offsets too, to know where to go on."""
    return Wanted(wanted.columns | {"offset"}, wanted.keys, wanted.fail_on_data_loss)


@dataclass(frozen=True, slots=True)
class WalCutter:
    """Cuts a segment of a wal topic; `layer` is what is read of it."""

    access: DirectoryAccess
    origin: Origin
    state: WalState
    segment: Segment
    layer: Layer

    def size_bytes(self, start: int, end: int) -> int:
        """Returns about how many bytes some sequences have."""
        return self.segment.data_bytes * (end - start) // max(self.segment.entry_count, 1)

    def offset_within(self, start: int, end: int, max_bytes: int) -> int:
        """Returns about how far some bytes reach from a sequence on."""
        return start + max_bytes * (end - start) // max(self.size_bytes(start, end), 1)

    def pieces(self, start: int, end: int, cut: Cut) -> Iterator[Piece]:
        """Cuts the segment by bytes, where its `.idx` says that sequences lie."""
        entries = segments.load_entries(boot_of(self.access.path).files, self.segment)
        if entries is None:  # it is rebuilt by whoever reads
            yield self._piece(start, end, self.size_bytes(start, end))
            return
        base, after = self.segment.first_sequence, self.segment.data_bytes
        positions = entries["position"]
        while start < end:
            at = int(positions[start - base])
            row = int(np.searchsorted(positions, at + cut.max_bytes, side="right")) - 1
            following = min(max(base + row, start + 1), start + cut.max_records, end)
            reached = int(positions[following - base]) if following - base < len(entries) else after
            yield self._piece(start, following, reached - at)
            start = following

    def _piece(self, start: int, end: int, size_bytes: int) -> WalPiece:
        return WalPiece(self.access, self.origin, self.state, self.segment, start, end, size_bytes)


class WalTopics:
    """The wal topics of a directory, as they were when last looked at."""

    def __init__(self, boot: Boot, access: DirectoryAccess) -> None:
        self._access = access
        self._ground = Ground.of(boot, access.wal)
        self._view = WalView(self._ground)
        self._root = boot.path(paths.WAL)
        self._readers: dict[tuple[str, int], list[TopicReader]] = {}
        self._cutters: dict[tuple[str, int, int], list[Cutter]] = {}
        self._cache = BlockCache(INDEX_BYTES)
        self._cold: dict[tuple[str, int, int], ColdSide] = {}

    def mark(self) -> object:
        """Returns what changes with every frame; None without a write-ahead log."""
        if not machine.is_directory(self._root):
            return None
        marks = []
        for _, folder in self._ground.shard_directories():
            marks += machine.versions_in(folder)
        newest_ns = max((mtime_ns for _, mtime_ns, _ in marks), default=0)
        if time.time_ns() - newest_ns < SETTLED_NS:
            return object()
        return tuple(sorted(marks))

    def lost_topics(self, known: set[str]) -> list[TopicFile]:
        """Returns topics that the WAL describes, but for those of some names."""
        return self._view.lost_topics(known)

    def forget(self) -> None:
        """Looks again when it is next asked."""
        self._readers.clear()
        self._cutters.clear()

    def reader(self, about: TopicFile, partition: int) -> TopicReader:
        """Returns a reader of one partition; the first one of a topic looks for all of them."""
        key = about.name, about.epoch
        if key not in self._readers:
            self._readers[key] = self._view.look_at(about, range(about.partitions))
        return self._readers[key][partition]

    def extent(self, about: TopicFile, partition: int) -> tuple[int, int]:
        """Returns the first offset that may be read, and one past the last durable one."""
        self._cold_side(about, partition)
        reader = self.reader(about, partition)
        return reader.earliest_offset(), reader.end_offset()

    def offset_for_time(self, about: TopicFile, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time, archived or not; None if there is none."""
        self._cold_side(about, partition)
        return self.reader(about, partition).offset_for_time(timestamp_ms)

    def gaps(self, about: TopicFile, partition: int) -> tuple[Gap, ...]:
        """Returns the missing ranges with their reasons, but for single deleted records.

        What is archived is among them only if nobody knows where, or can reach it.
        """
        reader = self.reader(about, partition)
        known = reader.gaps().with_gap(NEVER_THERE)
        cold = self._cold_side(about, partition)
        if cold is None:
            return known.gaps
        deleted = reader.deleted.pairs()
        needed = [
            hole
            for first, end in _archived(reader)
            for hole in outside(first, end, ((a, b) for a, b in deleted if b > first and a < end))
        ]
        gaps = [gap for gap in known.missing() if gap.reason != LOST]
        gaps += cold.without_copies(gap for gap in known.gaps if gap.reason == LOST)
        return tuple(sorted([*gaps, *cold.lost(needed)], key=lambda gap: gap.first))

    def _cold_side(self, about: TopicFile, partition: int) -> ColdSide | None:
        """Returns the archived part of a partition, as far as it is needed; None if none is."""
        key, reader = (about.name, about.epoch, partition), self.reader(about, partition)
        archived, lost = _archived(reader), _lost(reader)
        if self._access.archive is None or not (archived or lost):
            return None
        if key not in self._cold:
            self._cold[key] = ColdSide(self._access.archive, about, partition, self._cache)
        side = self._cold[key]
        side.cover([*archived, *lost])
        if side.log.is_loaded:
            reader.cold = side.log
            reader.first_readable()
        return side

    def cutters(self, about: TopicFile, partition: int) -> list[Cutter]:
        """Returns one for each segment and for what only the WAL holds, in order."""
        key = about.name, about.epoch, partition
        if key not in self._cutters:
            self._cutters[key] = list(self._found(about, partition))
        return self._cutters[key]

    def _found(self, about: TopicFile, partition: int) -> Iterator[Cutter]:
        reader = self.reader(about, partition)
        # What is too old is decided here, once: a task that is tried again reads the same.
        settings = replace(reader.settings, retention_ms=NO_LIMIT)
        state = WalState(
            *(about, reader.topic_id, settings, reader.earliest, reader.evict_floor),
            deleted=reader.deleted,
            ledger=reader.ledger,
        )
        cold = list(self._archived_cutters(about, partition, state))
        yield from sorted(
            [*cold, *self._local(about, partition, state)], key=attrgetter("layer.base_offset")
        )

    def _local(self, about: TopicFile, partition: int, state: WalState) -> Iterator[Cutter]:
        reader, kind = self.reader(about, partition), timestamp_type(about)
        for layer in reader.local_layers("durable"):
            first = reader.live_from(layer.base_offset)
            end = min(layer.next_offset, reader.durable_end)
            if first >= end:
                continue
            if isinstance(layer.source, Segment):
                name = paths.base_name(layer.where)
                origin = Origin(about.name, partition, about.epoch, name, kind)
                yield WalCutter(self._access, origin, state, layer.source, layer.cut(first, end))
                continue
            origin = Origin(about.name, partition, about.epoch, paths.WAL, kind)

            def make(start: int, stop: int, size_bytes: int, origin: Origin = origin) -> Piece:
                return EnginePiece(self._access, origin, start, stop, size_bytes)

            yield EvenCutter(layer.cut(first, end), make)

    def _archived_cutters(
        self, about: TopicFile, partition: int, state: WalState
    ) -> Iterator[Cutter]:
        cold = self._cold_side(about, partition)
        if cold is None:
            return
        reader = self.reader(about, partition)
        # Runs, and not the layer that the WAL is: it may have holes, which the archive may fill.
        here = [(each.first_sequence, each.end_sequence) for each in reader.layout.segments]
        here += [(run.first_sequence, run.end_sequence) for run in reader.layout.runs]
        wanted = sorted([*_archived(reader), *_lost(reader)])
        absent = [hole for span in wanted for hole in outside(*span, sorted(here))]
        for each in cold.cutters(absent):
            key = key_of(about.name, partition, each.entry)
            name, kind = key.rpartition("/")[2], timestamp_type(about)
            origin = Origin(about.name, partition, about.epoch, name, kind)

            def make(start: int, stop: int, size_bytes: int, origin: Origin = origin) -> Piece:
                return WalColdPiece(self._access, origin, state, start, stop, size_bytes)

            yield EvenCutter(each.layer, make)


def _archived(reader: TopicReader) -> list[tuple[int, int]]:
    """Returns the ranges that only the archive holds, without what was dropped since."""
    found = ((reader.live_from(gap.first), gap.end) for gap in reader.ledger.archived())
    return [(first, end) for first, end in found if first < end]


def _lost(reader: TopicReader) -> list[tuple[int, int]]:
    """Returns what is lost here, of a topic that is archived: the archive may have copies."""
    if not reader.settings.is_archived:
        return []
    gaps = [gap for gap in reader.ledger.gaps if gap.reason == LOST and gap.end > reader.earliest]
    return [(max(gap.first, reader.earliest), gap.end) for gap in gaps]
