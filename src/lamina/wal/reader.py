"""Reading a wal topic: one stream over the archive, sealed segments, the active one, and the WAL.

Rules.
1. Each step takes the layers anew and picks the one that holds the next sequence: a checkpoint, an
   eviction or a move that comes in between only means that the next step looks elsewhere.
2. Deleted records are skipped silently; every other missing range is told, with its reason.
3. What a reader is given was checked just now: a frame's checksum, topic and sequence.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import Gap, Isolation, PartitionInfo
from lamina.config import NO_LIMIT
from lamina.errors import UNREADABLE, OffsetOutOfRange, RecordsMissing, Unavailable
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Limit
from lamina.formats.wal import located, log
from lamina.log import archived_layers
from lamina.log.damage import not_delivered
from lamina.log.document_names import ScansFrom
from lamina.log.time_search import first_at_or_after
from lamina.storage.files import Files
from lamina.wal import archived, expiry, segments
from lamina.wal.segments import Segment
from lamina.wal.shard import POSITION_BITS, POSITION_MASK, WalFiles, frame_bytes
from lamina.wal.topic import Arrivals, Run, TopicState

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ATTEMPTS = 10
_TOO_OLD = "the oldest records are older than retention.ms"


class Sources(NamedTuple):
    """What reading stands on, shared by all topics of a store."""

    files: Files
    wal: WalFiles
    arrivals: Arrivals


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

    __slots__ = ("distrusted", "expired", "sources", "verified")

    format_name = "wal"

    def bind(self, sources: Sources) -> None:
        """Gives the topic what it reads from."""
        self.sources = sources
        self.distrusted: dict[int, segments.Rebuilt] = {}
        self.verified: set[int] = set()
        self.expired = expiry.NOTHING

    @property
    def ledger_of_gaps(self) -> Ledger:
        """Every missing range with its reason, but for single deleted records."""
        return self.gaps()

    def earliest_offset(self) -> int:
        """The first offset that may be read."""
        return self.live_from(self.earliest)

    def live_from(self, sequence: int) -> int:
        """Returns the first sequence from one on that was neither dropped nor has expired."""
        sequence = max(sequence, self.earliest)
        first, end, *_ = expiry.now(self)
        return end if first <= sequence < end else sequence

    def gaps(self) -> Ledger:
        """Returns why each missing range is missing, what has expired just now included."""
        known = super().gaps()
        first, end, *_ = expiry.now(self)
        if first < end:
            known = known.with_gap(Gap(first, end, "retention", 0, _TOO_OLD))
        return known

    def end_offset(self, isolation: Isolation = "durable") -> int:
        """One past the last offset that readers of an isolation see."""
        return self.durable_end if isolation == "durable" else self.written_end

    def info(self) -> PartitionInfo:
        """Describes the partition."""
        cold = archived.facts(self)
        return PartitionInfo(
            self.place.partition,
            self.earliest_offset(),
            self.durable_end,
            self.written_end,
            len(self.layers.segments),
            self.size_bytes(),
            len(cold),
            sum(each.size_bytes for each in cold),
        )

    def ask_archive(self) -> None:
        """Has the archive's list read where records are there alone; raises ArchiveUnavailable."""
        for gap in self.ledger.archived()[:1]:
            archived.ask(self, gap.first)

    def wait_beyond(self, offset: int, timeout_s: float, isolation: Isolation) -> bool:
        """Waits until the end is beyond an offset; woken by the append itself."""
        return self.sources.arrivals.wait(self, offset, timeout_s, isolation)

    def listen(self, event: threading.Event) -> None:
        """Has an event set by every append, for those who wait for several partitions."""
        self.sources.arrivals.listen(self, event)

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""
        self.sources.arrivals.unlisten(self, event)

    def end_waits(self) -> None:
        """Wakes those who wait for records, because none will come any more."""
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
        """Reads the next records, or says what is missing there; tries again if a layer moved."""
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
        layers = self.layers
        firsts = [segment.first_sequence for segment in layers.segments]
        row = bisect_right(firsts, sequence) - 1
        if row >= 0 and sequence < layers.segments[row].end_sequence:
            return self._from_segment(layers.segments[row], sequence, stop, limit)
        for run in layers.runs:
            if run.first <= sequence < run.end:
                return self._from_wal(run, sequence, stop, limit)
        later = [*firsts, *(run.first for run in layers.runs)]
        following = min((first for first in later if first > sequence), default=stop)
        return self._missing(sequence, min(following, stop))

    def _missing(self, sequence: int, following: int, unread: str = "") -> Missing | Archived:
        """Names a hole up to what was deleted in it; or says that the archive holds it.

        `unread` says where the device did not deliver the records, if that is what is wrong.
        """
        known = self.gap_at(sequence)
        may_be_there = known is None or known.reason in (ARCHIVED, LOST)
        if may_be_there and archived.holds(self, sequence):
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
        """Says where the device did not deliver a record; nothing if that is not what is wrong."""
        known = self.distrusted.get(segment.first_sequence)
        for damage in known.damages if known is not None else ():
            first, end = damage.first_sequence, damage.end_sequence
            if damage.unread and first <= sequence and (sequence < end or end <= first):
                where = f"{segment.path('data')}: byte {damage.first_byte}"
                return f"{where}: the device does not deliver it; read again, or look at the device"
        return ""

    def note_damage(self, segment: Segment, found: segments.Rebuilt) -> None:
        """Is told of what a walk over a segment found; a reader alone cannot write it down."""
        self.ledger = self.ledger.with_gaps(self.damage_gaps(segment, found))

    def damage_gaps(self, segment: Segment, found: segments.Rebuilt) -> list[Gap]:
        """Returns what to enter of what a walk over a segment found, that nobody knows yet."""
        spans, now_ms = archived_layers.spans_of(self.cold), self.place.now_ms()
        return [
            gap
            for first, end, why in damaged_ranges(segment, found)
            for gap in self.place.suspicions(self.ledger, Gap(first, end, LOST, now_ms, why), spans)
        ]

    def _from_wal(self, run: Run, sequence: int, stop: int, limit: Limit) -> _Read:
        row = sequence - run.first
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
        for segment in self.layers.segments:
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
        for segment in self.layers.segments:
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
        cold = [each for each in archived.facts(self) if each.next_offset > offset]
        total = sum(each.size_bytes for each in cold)
        for segment in self.layers.segments:
            if segment.end_sequence <= offset:
                continue
            before = None
            if offset > segment.first_sequence:
                before = segments.position_for(self.sources.files, segment, offset)
            total += segment.data_bytes - (before or 0)
        first = max(self.absorbed_end, self.earliest)
        in_wal = self.written_end - first
        if in_wal > 0:
            total += self.wal_bytes * (self.written_end - max(offset, first)) // in_wal
        return total

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
