"""Reading a wal topic: one stream over the archive, sealed segments, the active one, and the WAL.

Rules.
1. Each step takes the current layers and picks the one with the next sequence: a checkpoint, an
   eviction or a move that comes in between only means that the next step looks elsewhere.
2. Deleted records are skipped silently; every other missing range is reported, with its reason.
3. Whatever is returned was checked on this read: a frame's checksum, topic and sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import Gap, Isolation, PartitionInfo
from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import UNREADABLE, OffsetOutOfRange, RecordsMissing, Unavailable
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Limit
from lamina.formats.wal import located, log
from lamina.log import layers as pile
from lamina.log.damage import not_delivered
from lamina.log.directory import Place
from lamina.log.document_names import ScansFrom
from lamina.log.layers import Kind, Layer
from lamina.log.time_search import first_at_or_after
from lamina.wal import archived, segments
from lamina.wal.expiry import Expiry
from lamina.wal.segments import Segment
from lamina.wal.shard import POSITION_BITS, POSITION_MASK, frame_bytes
from lamina.wal.topic import Contents, Run, Sources, TopicState

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ATTEMPTS = 10
_TOO_OLD = "the oldest records are older than retention.ms"


class Missing(NamedTuple):
    """A range that cannot be read, and why."""

    first: int
    end: int
    reason: str
    detail: str = ""


class Archived(NamedTuple):
    """A range that no local layer holds and the archive does, at least its beginning."""

    end: int


_Read: TypeAlias = tuple[pa.RecordBatch | None, int] | Missing | Archived
"""Some records, or none, and where to go on; or where they are not."""


class TopicReader(ScansFrom, TopicState):
    """The reading half of one partition of a wal topic."""

    __slots__ = ("distrusted", "expiry", "sources", "verified")

    format_name = "wal"

    def __init__(
        self,
        place: Place,
        topic_id: int,
        settings: TopicSettings,
        sources: Sources,
        contents: Contents = Contents(),
    ) -> None:
        super().__init__(place, topic_id, settings, contents)
        self.sources = sources
        self.distrusted: dict[int, segments.Rebuilt] = {}
        self.verified: set[int] = set()
        self.expiry = Expiry(sources)

    @property
    def ledger_of_gaps(self) -> Ledger:
        """Every missing range with its reason, but for single deleted records."""
        return self.gaps()

    def earliest_offset(self) -> int:
        """The first offset that may be read."""
        if self.settings.retention_ms == NO_LIMIT:
            return self.earliest
        return self.live_from(self.earliest)

    def live_from(self, sequence: int) -> int:
        """Returns the first sequence from one on that was neither dropped nor has expired."""
        sequence = max(sequence, self.earliest)
        first, end, *_ = self.expiry.now(self)
        return end if first <= sequence < end else sequence

    def first_readable(self) -> int:
        """Returns the first offset that may be read, with archived ones judged, if they can be."""
        if self.settings.retention_ms != NO_LIMIT:
            self.expiry.as_far_as_known(self)
        return self.earliest_offset()

    def gaps(self) -> Ledger:
        """Returns why each missing range is missing, what has expired just now included."""
        known = super().gaps()
        first, end, *_ = self.expiry.now(self)
        if first < end:
            known = known.with_gap(Gap(first, end, "retention", 0, _TOO_OLD))
        return known

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that readers of an isolation see."""
        return self.durable_end if isolation == "durable" else self.written_end

    def info(self) -> PartitionInfo:
        """Describes the partition."""
        if self.cold is not None and self.ledger.archived():
            self.cold.look()
        cold = pile.objects_of(self.archived_layers())
        return PartitionInfo(
            self.place.partition,
            self.earliest_offset(),
            self.durable_end,
            self.written_end,
            len(self.layout.segments),
            self.size_bytes(),
            len(cold),
            sum(each.size_bytes for each in cold),
        )

    def ask_archive(self) -> None:
        """Loads the archive's list if it alone holds some records; raises ArchiveUnavailable."""
        archived.ask_for_all(self)

    def wait_beyond(self, offset: int, timeout_s: float, isolation: Isolation) -> bool:
        """Waits until the end is beyond an offset; woken by the append itself."""
        return self.sources.arrivals.wait(self, offset, timeout_s, isolation)

    def listen(self, event: threading.Event) -> None:
        """Registers an event that every append sets: for waiting on several partitions."""
        self.sources.arrivals.listen(self, event)

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""
        self.sources.arrivals.unlisten(self, event)

    def end_waits(self) -> None:
        """Wakes waiting readers: no more records will come."""
        self.sources.arrivals.end(self)

    def scan(
        self, start: int, limit: Limit, *, isolation: Isolation = "durable", end: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches from an offset up to the end as it is now (or to `end`).

        Raises RecordsMissing at a gap, having yielded everything before it.
        """
        if start < 0:
            raise OffsetOutOfRange(f"{self.place.name}: offsets count from 0, got {start}")
        stop = self.end_offset(isolation)
        if start > max(self.end_offset("written"), self.earliest):
            raise OffsetOutOfRange(f"{self.place.name}: {start} is beyond the end {stop}")
        stop = stop if end is None else min(stop, end)
        sequence = max(start, 1)
        while sequence < stop:
            step = self._step(sequence, stop, limit)
            if isinstance(step, Missing):
                raise RecordsMissing(
                    f"{self.place.name}: {step.detail or 'records are missing'}",
                    first=step.first,
                    end=step.end,
                    reason=step.reason,
                )
            if isinstance(step, Archived):
                for batch, following in archived.scan(self, sequence, step.end, limit):
                    sequence = following
                    if batch.num_rows:
                        yield batch
                continue
            batch, sequence = step
            if batch is not None and batch.num_rows:
                yield batch

    def _step(self, sequence: int, stop: int, limit: Limit) -> _Read:
        """Reads the next records, or returns what is missing; tries again if a layer moved."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._look(sequence, stop, limit)
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS - 1:
                    raise Unavailable(
                        f"{self.place.name}: offset {sequence} was moved or removed while it was"
                        " read; read again"
                    ) from error
            except OSError as error:
                raise Unavailable(
                    f"{self.place.name}: reading offset {sequence} from {error.filename} failed:"
                    f" {error}; nothing was changed, read again or look at the device"
                ) from error
        raise AssertionError("the last attempt returns or raises")

    def _look(self, sequence: int, stop: int, limit: Limit) -> _Read:
        if sequence < self.earliest:
            if sequence < self.evict_floor:
                detail = "the oldest records were evicted"
                end = self.evict_floor
                end = self.live_from(end) if end == self.earliest else end
                return Missing(sequence, end, "retention", detail)
            return None, self.earliest
        if self.settings.retention_ms != NO_LIMIT:
            fresh = self.live_from(sequence)
            if fresh > sequence:
                return Missing(sequence, fresh, "retention", _TOO_OLD)
        live = self.deleted.end_at(sequence)
        if live > sequence:
            return None, live
        source = self.layout.source_for(sequence)
        if source is None:
            return self._missing(sequence, stop)
        if sequence < source.first_sequence:
            return self._missing(sequence, min(source.first_sequence, stop))
        if isinstance(source, Run):
            return self._from_wal(source, sequence, stop, limit)
        return self._from_segment(source, sequence, stop, limit)

    def _missing(self, sequence: int, following: int, unread: str = "") -> Missing | Archived:
        """Returns a hole, up to what was deleted in it, or that the archive holds it.

        `unread` is where the device did not deliver the records, if that is the problem.
        """
        known = self.gap_at(sequence)
        may_be_there = known is None or known.reason in (ARCHIVED, LOST)
        if may_be_there and archived.holds(self, sequence):
            self.expiry.exactly(self)
            fresh = self.live_from(sequence)
            if fresh > sequence:
                return Missing(sequence, fresh, "retention", _TOO_OLD)
            return Archived(following)
        above = self.cold.next_base(sequence) if self.cold is not None else None
        following = following if above is None else min(following, above)
        bounds = self.deleted.bounds
        row = int(np.searchsorted(bounds, sequence, side="right"))
        end = min(following, int(bounds[row])) if row < len(bounds) else following
        if unread and (known is None or known.reason == ARCHIVED):
            return Missing(sequence, end, UNREADABLE, unread)
        if known is None or known.reason == ARCHIVED:  # archived once, and not there any more
            return Missing(sequence, end, LOST, "records are missing without a known reason")
        return Missing(sequence, min(end, known.end), known.reason, known.detail)

    # ------------------------------------------------------------------ layers

    def _from_segment(self, segment: Segment, sequence: int, stop: int, limit: Limit) -> _Read:
        files = self.sources.files
        wanted = min(limit.max_records, min(stop, segment.end_sequence) - sequence)
        capped = Limit(max_records=wanted, max_bytes=limit.max_bytes)
        if segment.first_sequence not in self.distrusted:
            position = segments.position_for(files, segment, sequence)
            if position is not None:
                batch = segments.read(files, segment, position, sequence, capped)
                if batch is not None and _first(batch) == sequence:
                    return self._kept(batch, stop)
        entries = self._distrust(segment).entries
        row = sequence - segment.first_sequence
        holes = np.flatnonzero(entries["length"][row:] != 0)
        if not len(holes) or holes[0] > 0:
            end = sequence + int(holes[0]) if len(holes) else segment.end_sequence
            return self._missing(sequence, min(end, stop), self._unread_at(segment, sequence))
        position = int(entries["position"][row])
        batch = segments.read(files, segment, position, sequence, capped)
        if batch is None:
            self.distrusted.pop(segment.first_sequence)
            unread = segments.unread(files, segment, position, int(entries["length"][row]))
            return self._missing(sequence, min(sequence + 1, stop), unread)
        return self._kept(batch, stop)

    def _distrust(self, segment: Segment) -> segments.Rebuilt:
        """Walks a segment whose `.idx` gave a wrong answer, or whose frames are damaged."""
        known = self.distrusted.get(segment.first_sequence)
        if known is None or known.is_unread or len(known.entries) < segment.entry_count:
            known = segments.walk_salvaged(self.sources.files, segment, segment.data_bytes)
            short = segment.entry_count - len(known.entries)
            if short > 0:
                entries = np.zeros(segment.entry_count, dtype=known.entries.dtype)
                entries[: len(known.entries)] = known.entries
                known = segments.Rebuilt(entries, known.frames, known.end_byte, known.damages)
            self.distrusted[segment.first_sequence] = known
            self.note_damage(segment, known)
        return known

    def _unread_at(self, segment: Segment, sequence: int) -> str:
        """Returns the error if the device did not deliver a record, else an empty text."""
        known = self.distrusted.get(segment.first_sequence)
        for damage in known.damages if known is not None else ():
            first, end = damage.first_sequence, damage.end_sequence
            if damage.unread and first <= sequence and (sequence < end or end <= first):
                where = f"{segment.path('data')}: byte {damage.first_byte}"
                return f"{where}: the device does not deliver it; read again, or look at the device"
        return ""

    def note_damage(self, segment: Segment, found: segments.Rebuilt) -> None:
        """Notes what a walk over a segment found; a reader alone cannot write it down."""
        self.ledger = self.ledger.with_gaps(self.damage_gaps(segment, found))

    def damage_gaps(self, segment: Segment, found: segments.Rebuilt) -> list[Gap]:
        """Returns the gaps to enter for what a walk over a segment found, without known ones."""
        spans, now_ms = pile.spans_of(self.cold), self.place.now_ms()
        return [
            gap
            for first, end, why in damaged_ranges(segment, found)
            for gap in self.place.suspicions(self.ledger, Gap(first, end, LOST, now_ms, why), spans)
        ]

    def _from_wal(self, run: Run, sequence: int, stop: int, limit: Limit) -> _Read:
        row = sequence - run.first_sequence
        count = min(limit.max_records, stop - sequence, len(run.locations) - row, 1 << 20)
        places = np.frombuffer(run.locations[row : row + count], dtype=np.int64)
        number = int(places[0]) >> POSITION_BITS
        same = places >> POSITION_BITS == number
        if not same.all():
            places = places[: int(np.argmin(same))]
        positions = places & POSITION_MASK
        file = self.sources.wal.get(number)
        if file is None:
            raise FileNotFoundError(f"WAL file {number} was freed")
        data: Buffer
        positions, origin, data = file.window(positions, limit.max_bytes)
        expected = located.Expected(self.topic_id, sequence)
        found = located.sound_at(data, positions - origin, expected, limit.max_bytes)
        if not len(found):
            at = int(positions[0])
            data = file.frame(at)
            found = located.sound_at(data, positions[:1] - at, expected, limit.max_bytes)
        if not len(found):
            unread = file.read_error(at, 1 + frame_bytes(data, 0))
            if unread is not None:
                return Missing(
                    sequence, sequence + 1, UNREADABLE, not_delivered(file.path, at, unread)
                )
            why = f"{file.path}: byte {at}: a record is damaged ({found.stop.name})"
            gap = Gap(sequence, sequence + 1, LOST, self.place.now_ms(), why)
            if self.ledger.at(sequence) is None:
                self.ledger = self.ledger.with_gap(gap)
            return self._missing(sequence, sequence + 1)
        return self._kept(log.decode(data, found), stop)

    def _kept(self, batch: pa.RecordBatch, stop: int) -> tuple[pa.RecordBatch | None, int]:
        """Cuts a batch where a hole begins and takes out what was deleted."""
        sequences = _sequences(batch)
        jumps = np.flatnonzero(np.diff(sequences) != 1)
        if len(jumps):
            batch = batch.slice(0, int(jumps[0]) + 1)
            sequences = sequences[: int(jumps[0]) + 1]
        following = int(sequences[-1]) + 1
        if following > stop:
            batch, following = batch.slice(0, batch.num_rows - (following - stop)), stop
            sequences = sequences[: batch.num_rows]
        if len(self.deleted):
            gone = self.deleted.contains(sequences)
            if gone.any():
                batch = batch.filter(pa.array(~gone))
        return batch, following

    # ------------------------------------------------------------------ times

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Returns the first durable offset whose record is at or after a time; None if none is."""
        end, local = self.durable_end, self.local_start
        archived.ask(self, self.earliest)
        for entry in archived.only_archived(self):
            if entry.max_timestamp_ms >= timestamp_ms:
                start = max(self.earliest, self._cold_start(entry, timestamp_ms))
                found = first_at_or_after(self, timestamp_ms, start, min(entry.next_offset, local))
                if found is not None:
                    return found
        for segment in self.layout.segments:
            if segment.newest_ms < timestamp_ms:
                continue
            entries = self.sound_entries(segment)
            row = int(np.searchsorted(entries["timestamp_ms"], timestamp_ms))
            found = first_at_or_after(
                self, timestamp_ms, segment.first_sequence + row, min(segment.end_sequence, end)
            )
            if found is not None:
                return found
        return first_at_or_after(self, timestamp_ms, self.absorbed_end, end)

    def _cold_start(self, entry: ArchivedObject, timestamp_ms: int) -> int:
        """Where in an archived object a search by time starts; its beginning if that fails."""
        assert self.cold is not None, "it has the entry"
        try:
            return self.cold.offset_before_time(entry, timestamp_ms)
        except RecordsMissing:
            return entry.base_offset

    def time_at(self, offset: int) -> int | None:
        """Returns about when the record at an offset was made: from `.idx`, or from its frame."""
        entry = self.cold.entry_for(offset) if self.cold is not None else None
        if entry is not None and offset < self.local_start:
            return entry.min_timestamp_ms
        for segment in self.layout.segments:
            if offset < segment.end_sequence:
                entries = segments.load_entries(self.sources.files, segment)
                row = max(0, offset - segment.first_sequence)
                return int(entries["timestamp_ms"][row]) if entries is not None else None
        limit = Limit(max_records=1)
        try:
            for batch in self.scan(self.live_from(offset), limit):
                return int(batch.column("timestamp")[0].value)
        except RecordsMissing:
            return None
        return None

    def bytes_from(self, offset: int) -> int:
        """Returns about how many bytes of records there are from an offset on, from indexes."""
        return pile.bytes_from(self.layers(), offset, self._bytes_before)

    def _bytes_before(self, layer: Layer, offset: int) -> int:
        """How many bytes of a layer lie in front of an offset; an object counts whole."""
        if offset <= layer.base_offset or layer.kind is Kind.OBJECT:
            return 0
        if isinstance(layer.source, Segment):
            return segments.position_for(self.sources.files, layer.source, offset) or 0
        left = layer.size_bytes * (layer.next_offset - offset)
        return layer.size_bytes - left // (layer.next_offset - layer.base_offset)

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on, below the durable end, have no record any more."""
        end = self.durable_end
        gaps = [gap for gap in self.gaps().between(offset, end) if gap.reason != ARCHIVED]
        gone = Ranges.of((max(gap.first, offset), gap.end) for gap in gaps)
        bounds = np.minimum(gone.union(self.deleted.from_on(offset)).bounds, end)
        starts, ends = bounds[::2], bounds[1::2]
        return starts[starts < ends], ends[starts < ends]

    def sound_entries(self, segment: Segment) -> NDArray[np.void]:
        """Returns a segment's entries; the first time, compared with what its `.data` gives."""
        entries = segments.load_entries(self.sources.files, segment)
        if entries is not None and segment.first_sequence in self.verified:
            return entries
        rebuilt = self._distrust(segment)
        same = entries is not None and len(entries) == len(rebuilt.entries)
        if same and entries is not None:
            same = all(
                bool((entries[name] == rebuilt.entries[name]).all())
                for name in ("position", "length", "timestamp_ms")
            ) and bool((entries["flags"] & 3 == rebuilt.entries["flags"] & 3).all())
        if same and entries is not None and not rebuilt.damages:
            self.distrusted.pop(segment.first_sequence, None)
            if segment.sealed:
                self.verified.add(segment.first_sequence)
            return entries
        return rebuilt.entries


def damaged_ranges(segment: Segment, found: segments.Rebuilt) -> list[tuple[int, int, str]]:
    """Returns (first, end, why) of every range of sequences that damage has cost."""
    ranges = []
    for damage in found.damages:
        if damage.unread:
            continue
        end = damage.end_sequence
        if end <= damage.first_sequence:
            end = segment.end_sequence
        if end > damage.first_sequence:
            where = f"{segment.path('data')}: byte {damage.first_byte}"
            ranges.append((damage.first_sequence, end, f"{where}: damaged ({damage.stop.name})"))
    return ranges


def unread_ranges(segment: Segment, found: segments.Rebuilt) -> list[tuple[int, int]]:
    """Returns every range of sequences that the device did not deliver."""
    spans = [(each.first_sequence, each.end_sequence) for each in found.damages if each.unread]
    return [(first, end if end > first else segment.end_sequence) for first, end in spans]


def _sequences(batch: pa.RecordBatch) -> NDArray[np.int64]:
    column = batch.column(0)
    view: NDArray[np.int64] = column.to_numpy()
    return view


def _first(batch: pa.RecordBatch) -> int:
    first: int = batch.column(0)[0].as_py()
    return first
