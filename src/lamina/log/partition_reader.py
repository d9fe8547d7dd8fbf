"""Reading a partition: one stream over its layers, which reports gaps and can wait at the end.

Rules.
1. The layout (which segments there are) is an immutable value, replaced as a whole: a reader takes
   it once and is never confused by a roll or a trim.
2. Readers of durable records see nothing above the last successful fsync; the end never moves back.
3. A range of offsets that cannot be read has its reason in the ledger, and the reader gets it.
4. Archived records (`Cold`) are read where nothing local holds them, also where the local copy is
   damaged; but never what was removed on purpose, whatever the object store still has.
5. Nothing below the ledger's floor is read, though the segment that it lies in is still there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TypeAlias
from weakref import ref

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import Gap, Isolation, PartitionInfo
from lamina.errors import (
    ArchiveUnavailable,
    CorruptData,
    OffsetOutOfRange,
    RecordsMissing,
    Unavailable,
    typed_errors,
)
from lamina.formats.documents import topic_file
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED, LOST, REMOVED, SKIPPED, TRIM, Ledger
from lamina.formats.log_format import Codec
from lamina.formats.scan import Limit
from lamina.log import layers as pile
from lamina.log.batch_offsets import after, first_of, runs
from lamina.log.cold import Cold
from lamina.log.damage import missing_of
from lamina.log.directory import Place
from lamina.log.document_names import ScansFrom
from lamina.log.layers import Kind, Layer, ObjectSource
from lamina.log.segment import Bound, Damaged, Segment
from lamina.log.segment_pile import Layout, SegmentLayer
from lamina.log.time_search import first_at_or_after
from lamina.storage import paths

_Step: TypeAlias = tuple[pa.RecordBatch | None, int]
"""Some records, or none, and the offset to go on from."""


class PartitionReader(ScansFrom):
    """The reading half of a partition; its owner keeps `layout` and `ledger` current."""

    def __init__(self, place: Place, codec: Codec, layout: Layout, ledger: Ledger) -> None:
        self.place = place
        self.codec = codec
        self.layout = layout
        self.ledger = ledger
        self.cold: Cold | None = None
        self._arrival = threading.Condition()
        self._waiting = 0
        self._ended = False
        self._listeners: tuple[threading.Event, ...] = ()
        self._bookmark: tuple[ref[Segment] | None, int, int] = (None, 0, 0)

    @property
    def format_name(self) -> str:
        """The topic's format."""
        return self.codec.name

    @property
    def ledger_of_gaps(self) -> Ledger:
        """Why each missing range of offsets is missing."""
        return self.ledger

    def info(self) -> PartitionInfo:
        """Describes the partition."""
        if self.cold is not None and self.ledger.archived():
            self.cold.look()
        layers = self.layers()
        local = [each for each in layers if each.kind is not Kind.OBJECT]
        archived = pile.objects_of(layers)
        return PartitionInfo(
            self.place.partition,
            self.earliest_offset(),
            self.end_offset("durable"),
            layers[-1].next_offset,
            len(local),
            sum(each.size_bytes for each in local),
            len(archived),
            sum(each.size_bytes for each in archived),
        )

    def earliest_offset(self) -> int:
        """The first offset that may be read."""
        ledger, local = self.ledger, self.layout.earliest_offset
        found = min([local, *(gap.first for gap in ledger.gaps if gap.reason == ARCHIVED)])
        return max(ledger.floor, found)

    first_readable = earliest_offset  # records go with their segments: their age hides none

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that readers of an isolation see."""
        return self.layout.end(isolation).next_offset

    def layers(self, isolation: Isolation = "written") -> list[Layer]:
        """Returns the pile, oldest first: archived objects, sealed segments, the active one."""
        layout = self.layout
        bounds = self.earliest_offset(), layout.earliest_offset
        floor = self.ledger.floor
        cold = [
            each._replace(removed=pile.below(floor, each.base_offset, each.next_offset))
            for each in pile.archived_layers(self.place, self.cold, self.ledger, bounds)
        ]
        return [*cold, *layout.layers(isolation, pile.archived_end(self.cold), floor)]

    def ask_archive(self) -> None:
        """Loads the archive's list if it alone holds some records; raises ArchiveUnavailable."""
        if self.ledger.archived():
            self._ask_archive(self.ledger.archived()[0])

    def scan(
        self, start: int, limit: Limit, *, isolation: Isolation = "durable", end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches from an offset up to the end as it is now (or to `end`).

        Raises RecordsMissing at a gap, having yielded everything before it; single records that
        were deleted or compacted away are left out.
        """
        if start < 0:
            raise OffsetOutOfRange(f"{self.place.name}: offsets count from 0, got {start}")
        stop = self.end_offset(isolation)
        if start > stop and start > self.end_offset("written"):
            raise OffsetOutOfRange(f"{self.place.name}: {start} is beyond the end {stop}")
        stop = stop if end is None else min(stop, end)
        offset = start
        while offset < stop:
            try:
                for batch, following in self._scan_layer(offset, stop, limit, isolation):
                    if batch is not None:
                        yield batch
                    offset = following
            except RecordsMissing as missing:
                gap = self.ledger.at(missing.first)
                if gap is None or gap.reason not in SKIPPED:
                    raise
                offset = missing.end

    def _scan_layer(
        self, offset: int, stop: int, limit: Limit, isolation: Isolation
    ) -> Iterator[_Step]:
        """Yields what the layer that holds an offset has from there on.

        The local one, else what is archived up to the next local one, adjacent objects as one.
        Raises RecordsMissing if no layer holds it: it is in a gap, which has a reason.
        """
        if offset < self.ledger.floor:  # a segment that begins below it may still hold the record
            raise self._gone(offset, self.ledger.floor, otherwise=TRIM)
        layer = self.layout.layer_for(offset, isolation)
        if layer is not None and layer.base_offset <= offset:
            return self._scan_segment(layer, offset, stop, limit)
        local = layer.base_offset if layer is not None else self.end_offset(isolation)
        if self._is_archived(offset) or (
            self._ask_archive(self.ledger.at(offset)) and self._is_archived(offset)
        ):
            return self._scan_cold(offset, min(stop, local), limit)
        archived = self.cold.next_base(offset) if self.cold else None
        end = local if archived is None else min(local, archived)
        raise self._gone(offset, end, otherwise=LOST)

    def _scan_segment(
        self, layer: SegmentLayer, offset: int, stop: int, limit: Limit
    ) -> Iterator[_Step]:
        """Yields what a segment holds from an offset on, or the archive in place of damage."""
        segment, bound = layer.source, layer.bound
        try:
            position = self._locate(segment, offset, bound)
            end = min(stop, bound.next_offset)
            while offset < end:
                capped = Limit(min(limit.max_records, stop - offset), limit.max_bytes)
                chunk = segment.read(offset, position, capped, bound)
                offset, position = chunk.next_offset, chunk.next_position
                self._bookmark = (ref(segment), offset, position)
                yield chunk.batch, offset
        except Damaged as error:
            missing = missing_of(self, segment, bound, error, offset)
            if missing is None:  # the device delivers it after all
                return
            self._look_for_copy(missing)
            if missing.first <= offset < missing.end and self._is_archived(offset):
                yield from self._scan_cold(offset, min(stop, missing.end), limit)
                return
            raise missing from error
        except FileNotFoundError as error:
            now = self.layout.layer_for(offset, "written")
            if now is not None and now.source is not segment:
                return  # it was rewritten since the layout was taken
            removed = self._removed(offset, bound)
            self._look_for_copy(removed)
            if self._is_archived(offset):
                yield from self._scan_cold(offset, min(stop, bound.next_offset), limit)
                return
            raise removed from error
        except OSError as error:
            raise Unavailable(
                f"{self.place.name}: reading offset {offset} from {segment.path('log')} failed: "
                f"{error}; nothing was changed, read again or look at the device"
            ) from error

    def _locate(self, segment: Segment, offset: int, bound: Bound) -> int:
        """Finds where a record starts: where the last read ended, or by the index.

        A record that readers were shown keeps its place for as long as its segment is open.
        """
        marked, next_offset, position = self._bookmark
        if next_offset == offset and marked is not None and marked() is segment:
            return position
        return segment.locate(offset, bound)

    def _look_for_copy(self, missing: RecordsMissing) -> None:
        """Loads the archive's list unless it is loaded already.

        Raises ArchiveUnavailable rather than report as lost what the archive may have.
        """
        if self.cold is not None and not self.cold.is_loaded:
            self.cold.load()
        known = self.ledger.at(missing.first)
        is_doubtful = missing.reason == LOST and (known is None or known.reason != LOST)
        if self.cold is None and self.place.copies is not None and is_doubtful:
            raise self._without_archive(missing.first, missing.end)

    def _without_archive(self, first: int, end: int) -> ArchiveUnavailable:
        return ArchiveUnavailable(
            f"{self.place.name}: offsets {first} to {end} are archived; open the store with"
            " `archive`"
        )

    def _is_archived(self, offset: int) -> bool:
        gap = self.ledger.at(offset)
        removed = gap is not None and gap.reason in REMOVED
        return not removed and self.cold is not None and self.cold.entry_for(offset) is not None

    def _scan_cold(self, offset: int, stop: int, limit: Limit) -> Iterator[_Step]:
        """Yields archived records up to an offset; the last step is where they end.

        Raises RecordsMissing at a hole, with its reason.
        """
        if self.cold is None or not self._is_archived(offset):
            return
        removed = [gap.first for gap in self.ledger.between(offset, stop) if gap.reason in REMOVED]
        stop = min([stop, *removed])
        span = self.cold.entry_for(stop - 1)
        try:
            for batch in self.cold.scan(offset, stop, limit):
                for part in runs(batch):
                    self._explain_hole(offset, first_of(part))
                    offset = after(part)
                    yield part, offset
        except RecordsMissing as missing:
            raise self._explained(missing, offset) from missing
        if span is not None and span.base_offset <= offset < stop:
            self._explain_hole(offset, stop)
            yield None, stop

    def _explain_hole(self, offset: int, end: int) -> None:
        """Raises RecordsMissing if offsets are missing between archived ones.

        A sound object that does not hold them was made without them: they had been deleted. One
        that was rewritten (its generation is not 0) may have more holes than the ledger names.
        """
        while offset < end:
            missing = self._gone(offset, end, otherwise="deleted")
            entry = self.cold.entry_for(offset) if self.cold is not None else None
            if missing.reason not in SKIPPED or entry is None or entry.generation == 0:
                raise missing
            offset = missing.end

    def _explained(self, missing: RecordsMissing, offset: int) -> RecordsMissing:
        """Adds the reason to an error about what an object does not hold; it may be new."""
        self.reread_ledger()
        first = max(offset, missing.first)
        gap = self.ledger.at(first)
        known = gap is not None and gap.reason != ARCHIVED
        return RecordsMissing(
            f"{self.place.name}: {missing.path}: {missing.problem}",
            first=first,
            end=missing.end,
            reason=gap.reason if gap is not None and known else missing.reason,
        )

    def _ask_archive(self, gap: Gap | None) -> bool:
        """Looks for archived records that are not listed yet; False if the list is loaded.

        Raises ArchiveUnavailable rather than report as missing what is only out of reach.
        """
        if gap is None or (self.cold is not None and self.cold.is_loaded):
            return False
        if gap.reason not in (ARCHIVED, LOST) or (self.cold is None and gap.reason == LOST):
            return False
        if self.cold is None:
            raise self._without_archive(gap.first, gap.end)
        self.cold.load()
        return True

    def _gone(self, offset: int, end: int, otherwise: str) -> RecordsMissing:
        """Names the reason for the first of some missing offsets, as far as it reaches."""
        gap = self.ledger.at(offset)
        if gap is not None and gap.reason == ARCHIVED:  # archived once, and not there any more
            end = min(end, gap.end)
            gap = None
        if gap is None:
            later = [each.first for each in self.ledger.between(offset, end)]
            end = min([end, *(first for first in later if first > offset)])
        return RecordsMissing(
            f"{self.place.name}: records are missing",
            first=offset,
            end=end if gap is None else min(end, gap.end),
            reason=otherwise if gap is None else gap.reason,
        )

    def _removed(self, offset: int, bound: Bound) -> RecordsMissing:
        """Returns the error for a segment that was removed before its file could be opened."""
        is_there = self.place.files.exists(self.place.segments) and not self.is_deleted()
        self.reread_ledger()
        return self._gone(offset, bound.next_offset, otherwise=LOST if is_there else "deleted")

    def is_deleted(self) -> bool:
        """Returns whether the topic is being deleted, as far as one can know."""
        path = paths.join(self.place.data, paths.TOPICS, self.place.topic, paths.TOPIC_SETTINGS)
        try:
            return topic_file.decode(self.place.files.read(path)).deleted
        except FileNotFoundError:
            return True
        except (OSError, CorruptData):
            return False

    def reread_ledger(self) -> None:
        """Called where another process may have entered reasons; a view reads the ledger again."""

    def note_damage(self, gap: Gap, error: Damaged, damaged: bytes) -> None:
        """Notes newly found damage; a reader alone cannot write it down."""

    def announce(self) -> None:
        """Wakes readers that wait for records."""
        for listener in self._listeners:
            listener.set()
        if self._waiting:
            with self._arrival:
                self._arrival.notify_all()

    def end_waits(self) -> None:
        """Wakes waiting readers: no more records will come."""
        with self._arrival:
            self._ended = True
            self._arrival.notify_all()
            for event in self._listeners:
                event.set()

    def listen(self, event: threading.Event) -> None:
        """Registers an event that every append sets: for waiting on several partitions."""
        with self._arrival:
            self._listeners = (*self._listeners, event)

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""
        with self._arrival:
            self._listeners = tuple(each for each in self._listeners if each is not event)

    def wait_beyond(self, offset: int, timeout_s: float, isolation: Isolation) -> bool:
        """Waits until the end is beyond an offset; woken by the append itself, or by the end."""
        with self._arrival:
            self._waiting += 1
            try:
                self._arrival.wait_for(
                    lambda: self._ended or self.end_offset(isolation) > offset, timeout=timeout_s
                )
                return self.end_offset(isolation) > offset
            finally:
                self._waiting -= 1

    @typed_errors("looking for a time")
    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Returns the first durable offset whose record is at or after a time; None if none is."""
        self._ask_archive(self.ledger.at(self.earliest_offset()))
        for layer in self.layers("durable"):
            start = self._start_for_time(layer, timestamp_ms)
            if start is not None:
                found = first_at_or_after(self, timestamp_ms, start, layer.next_offset)
                if found is not None:
                    return found
        return None

    def _start_for_time(self, layer: Layer, timestamp_ms: int) -> int | None:
        """Where in a layer a search by time starts; None if all of it is older."""
        if isinstance(layer.source, ObjectSource):
            entry = layer.source.entry
            if entry.max_timestamp_ms < timestamp_ms:
                return None
            return max(self.earliest_offset(), self._cold_start(entry, timestamp_ms))
        newest = layer.newest_ms
        if newest is None or newest < timestamp_ms or not isinstance(layer, SegmentLayer):
            return None
        start = layer.source.offset_before_time(timestamp_ms, layer.bound)
        return max(start, self.ledger.floor)

    def time_at(self, offset: int) -> int | None:
        """Returns about when the record at an offset was made, from the time index alone.

        It is the newest time up to the index entry at or before the record; None without one.
        """
        if offset < self.layout.earliest_offset and self.cold is not None:
            entry = self.cold.entry_for(offset)
            if entry is not None:
                return entry.min_timestamp_ms
        layer = self.layout.layer_for(offset, "durable")
        if layer is None:
            return None
        times = layer.source.index.times()
        row = int(np.searchsorted(times["offset"], offset, side="right")) - 1
        return int(times["timestamp_ms"][max(row, 0)]) if len(times) else None

    def bytes_from(self, offset: int) -> int:
        """Returns about how many bytes of log there are from an offset on, from indexes alone."""
        return pile.bytes_from(self.layers("durable"), offset, self._bytes_before)

    def _bytes_before(self, layer: Layer, offset: int) -> int:
        """How many bytes of a layer lie in front of an offset; an object counts whole."""
        if not isinstance(layer, SegmentLayer):
            return 0
        index = layer.source.index if offset > layer.base_offset else None
        entry = index.position_for(offset) if index is not None else None
        return entry[1] if entry else self.codec.header_bytes

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on, below the durable end, have no record any more."""
        end = self.end_offset("durable")
        gaps = [gap for gap in self.ledger.between(offset, end) if self._is_gone(gap)]
        starts = np.array([max(gap.first, offset) for gap in gaps], dtype=np.int64)
        return starts, np.array([min(gap.end, end) for gap in gaps], dtype=np.int64)

    def _is_gone(self, gap: Gap) -> bool:
        """Returns whether a gap cannot be read: what is lost here may be in the archive."""
        is_there = self.cold is not None and self.cold.entry_for(gap.first) is not None
        return gap.reason != ARCHIVED and not (gap.reason == LOST and is_there)

    def _cold_start(self, entry: ArchivedObject, timestamp_ms: int) -> int:
        """Where in an archived object a search by time starts; its beginning if that fails."""
        assert self.cold is not None
        try:
            return self.cold.offset_before_time(entry, timestamp_ms)
        except RecordsMissing:
            return entry.base_offset
