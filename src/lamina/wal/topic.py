"""One partition of a `wal` topic: what is known of it in memory, and the changes its owner makes.

A record's number in the API (its offset) is its sequence in the WAL, from 1. Where a record lies:

    earliest ── archived ── segments (sealed, the last one active) ── runs in the WAL ── written end

Rules.
1. Only the shard's leader (or a caller of `writer.exclusively`) changes a topic.
2. `layout` is an immutable value, replaced as a whole, except that the last run grows at its end:
   readers look no further than the end that they read first.
3. A record costs eight bytes of memory while it is in the WAL, and none afterwards.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from lamina.api import DURABLE, NOT_WAITED, WRITTEN, Gap, Isolation
from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import Closed, LaminaError, Poisoned, Unavailable
from lamina.formats import ranges
from lamina.formats.documents.ledger import Ledger, deleted_gaps
from lamina.formats.ranges import Ranges
from lamina.log import layers as pile
from lamina.log.cold import Cold
from lamina.log.directory import Place
from lamina.log.layers import Kind, Known, Layer
from lamina.storage import paths
from lamina.storage.files import Files
from lamina.wal.segments import Segment
from lamina.wal.shard import WalFiles

_IN_WAL = Known("the write-ahead log")
_FIRST = attrgetter("first_sequence")
LEVELS = {"memory": NOT_WAITED, "disk": WRITTEN, "fsync": DURABLE}


class Run:
    """Consecutive sequences in the WAL and the location of each one's frame."""

    __slots__ = ("first_sequence", "locations")

    def __init__(self, first_sequence: int, locations: array[int] | None = None) -> None:
        self.first_sequence = first_sequence
        self.locations: array[int] = array("q") if locations is None else locations

    @property
    def end_sequence(self) -> int:
        """One past the last sequence."""
        return self.first_sequence + len(self.locations)

    def from_on(self, sequence: int) -> Run:
        """Returns a copy without what is below a sequence."""
        first = max(sequence, self.first_sequence)
        return Run(first, self.locations[first - self.first_sequence :])


class TopicLayout(NamedTuple):
    """Where records lie, oldest first."""

    segments: tuple[Segment, ...]
    runs: tuple[Run, ...]

    def source_for(self, sequence: int) -> Segment | Run | None:
        """Returns what holds a sequence, or else the next ones; None behind the last."""
        row = bisect_right(self.segments, sequence, key=_FIRST) - 1
        if row >= 0 and sequence < self.segments[row].end_sequence:
            return self.segments[row]
        following = self.segments[row + 1] if row + 1 < len(self.segments) else None
        run = next((each for each in self.runs if sequence < each.end_sequence), None)
        if following is None or (run is not None and run.first_sequence < following.first_sequence):
            return run
        return following


class Contents(NamedTuple):
    """What a topic holds when it is opened; nothing by default."""

    layout: TopicLayout = TopicLayout((), ())
    end: int = 1
    earliest: int = 1
    evict_floor: int = 1
    deleted: Ranges = ranges.EMPTY
    ledger: Ledger = Ledger()
    wal_bytes: int = 0


class TopicState:
    """What is known of one partition of a wal topic; small, because there may be very many."""

    __slots__ = (
        "_published",
        "cold",
        "deleted",
        "durable_end",
        "earliest",
        "evict_floor",
        "gone",
        "layout",
        "ledger",
        "place",
        "settings",
        "topic_id",
        "wal_bytes",
        "written_end",
    )

    def __init__(
        self,
        place: Place,
        topic_id: int,
        settings: TopicSettings,
        contents: Contents = Contents(),
    ) -> None:
        self.place = place
        self.topic_id = topic_id
        self.settings = settings
        self.layout = contents.layout
        self.written_end = self.durable_end = contents.end
        self.earliest = contents.earliest
        self.evict_floor = contents.evict_floor
        self.deleted = contents.deleted
        self.ledger = contents.ledger
        self.wal_bytes = contents.wal_bytes
        self.gone: LaminaError | None = None
        self.cold: Cold | None = None
        self._published: tuple[tuple[object, ...], Ledger] = ((), self.ledger)

    def contents(self) -> Contents:
        """Returns what it holds, for another object of the same topic to begin with."""
        return Contents(
            self.layout,
            self.written_end,
            self.earliest,
            self.evict_floor,
            self.deleted,
            self.ledger,
            self.wal_bytes,
        )

    # ------------------------------------------------------------------ for the leader

    def refusal(self, count: int) -> LaminaError | None:
        """Returns why records cannot be appended now, if they cannot."""
        if self.gone is not None:
            return self.gone
        if self.settings.discard == "new" and self._is_full(count):
            return Unavailable(
                f"{self.place.name} is at its cap and discards new records; delete some, or raise"
                " retention.records or retention.bytes"
            )
        return None

    def _is_full(self, count: int) -> bool:
        cap = self.settings.retention_records
        if cap != NO_LIMIT and self.live_records() + count > cap:
            return True
        cap = self.settings.retention_bytes
        cold = sum(layer.size_bytes for layer in self.archived_layers())
        return cap != NO_LIMIT and cold + self.size_bytes() >= cap

    def append(self, locations: array[int], size_bytes: int) -> None:
        """Notes records that were written after the last one."""
        self._open_run().extend(locations)
        self.wal_bytes += size_bytes
        self.written_end += len(locations)

    def append_one(self, location: int, size_bytes: int) -> None:
        """Notes one record that was written after the last one."""
        self._open_run().append(location)
        self.wal_bytes += size_bytes
        self.written_end += 1

    def _open_run(self) -> array[int]:
        """Returns the places that go on where the topic ends."""
        runs = self.layout.runs
        if runs:
            last = runs[-1]
            if last.first_sequence + len(last.locations) == self.written_end:
                return last.locations
        run = Run(self.written_end)
        self.layout = TopicLayout(self.layout.segments, (*runs, run))
        return run.locations

    def absorb(self, segments: tuple[Segment, ...], end: int, size_bytes: int) -> None:
        """Publishes that everything below a sequence is in segments now."""
        kept = tuple(run.from_on(end) for run in self.layout.runs if run.end_sequence > end)
        self.layout = TopicLayout(segments, kept)
        self.wal_bytes = max(0, self.wal_bytes - size_bytes) if kept else 0

    def drop_below(self, sequence: int) -> None:
        """Moves the live floor: whatever is below it is gone for readers."""
        self.earliest = max(self.earliest, sequence)
        self.deleted = self.deleted.from_on(self.earliest)
        if any(run.first_sequence < self.earliest for run in self.layout.runs):
            kept = [run.from_on(self.earliest) for run in self.layout.runs]
            runs = tuple(run for run in kept if run.locations)
            self.layout = TopicLayout(self.layout.segments, runs)

    def fail(self, error: BaseException) -> Poisoned:
        """Stops appends to this topic alone, whose own files failed; returns why.

        What is shared, the WAL of its shard, is sound: the other topics go on.
        """
        self.gone = Poisoned(
            f"{self.place.name}: a change of its own files failed ({error}); reopen the store to"
            " finish or undo it, other topics go on"
        )
        return self.gone

    def retire(self, reason: Closed) -> None:
        """Refuses every further append: the topic was deleted."""
        self.gone = reason

    # ------------------------------------------------------------------ for everybody

    @property
    def absorbed_end(self) -> int:
        """One past the last sequence in segments."""
        segments = self.layout.segments
        return segments[-1].end_sequence if segments else 1

    @property
    def local_start(self) -> int:
        """The first sequence of the local layers; the end where they are empty."""
        starts = [segment.first_sequence for segment in self.layout.segments[:1]]
        starts += [run.first_sequence for run in self.layout.runs[:1]]
        return min(starts, default=self.written_end)

    def live_records(self) -> int:
        """How many records can be read, holes counted as records."""
        return self.written_end - self.earliest - self.deleted.count()

    def size_bytes(self) -> int:
        """How many bytes its records take locally."""
        return sum(segment.data_bytes for segment in self.layout.segments) + self.wal_bytes

    def layers(self, isolation: Isolation = "written") -> list[Layer]:
        """Returns the pile, oldest first: archived objects, segments, what is in the WAL alone."""
        return [*self.archived_layers(), *self.local_layers(isolation)]

    def archived_layers(self) -> list[Layer]:
        """Returns what only the archive holds, each object as far as nothing local has it."""
        bounds = self.earliest, self.local_start
        return [
            each._replace(removed=self.removed_between(each.base_offset, each.next_offset))
            for each in pile.archived_layers(self.place, self.cold, self.ledger, bounds)
        ]

    def local_layers(self, isolation: Isolation = "written") -> list[Layer]:
        """Returns the part of the pile that lies on the local disk, oldest first."""
        written_end = self.durable_end if isolation == "durable" else self.written_end
        inside = paths.join(self.place.data, "")
        archived_end = pile.archived_end(self.cold)
        layers = []
        for segment in self.layout.segments:
            first, end = segment.first_sequence, segment.end_sequence
            kind = Kind.SEALED if segment.sealed else Kind.ACTIVE
            layers.append(
                Layer(
                    kind if segment.directory.startswith(inside) else Kind.DIRECTORY,
                    first,
                    end,
                    segment.data_bytes,
                    segment,
                    self.removed_between(first, end),
                    archived=end <= archived_end,
                )
            )
        if written_end > self.absorbed_end or not layers:
            first = max(self.absorbed_end if layers else self.local_start, self.earliest)
            end = max(written_end, first)
            gone = self.removed_between(first, end)
            layers.append(Layer(Kind.WAL, first, end, self.wal_bytes, _IN_WAL, gone))
        return layers

    def removed_between(self, first: int, end: int) -> int:
        """How many offsets of a range have no record any more: dropped or deleted singly."""
        live = min(max(first, self.earliest), end)
        return live - first + self.deleted.count_between(live, end)

    def flagged(self) -> Ranges:
        """What the flags in `.idx` remember: records deleted singly, and all before an offset."""
        return self.deleted.union(Ranges.of([(self.evict_floor, self.earliest)]))

    def gaps(self) -> Ledger:
        """Returns why each missing range is missing; single deleted records are not listed."""
        ledger = Ledger(tuple(gap for gap in self.ledger.gaps if gap.reason != "deleted"))
        if self.evict_floor > 1:
            ledger = ledger.with_gap(Gap(1, self.evict_floor, "retention", 0, "evicted"))
        if self.earliest > self.evict_floor:
            why = "everything before an offset was deleted"
            ledger = ledger.with_gap(Gap(self.evict_floor, self.earliest, "trim", 0, why))
        return ledger

    @property
    def published(self) -> Ledger:
        """Every gap as the archive gets it, single deleted records included."""
        key = (self.deleted, self.ledger, self.evict_floor, self.earliest)
        known, ledger = self._published
        if len(known) != len(key) or any(
            old is not new for old, new in zip(known, key, strict=True)
        ):
            ledger = TopicState.gaps(self).with_gaps(deleted_gaps(self.deleted))
            self._published = key, ledger
        return ledger

    def gap_at(self, sequence: int) -> Gap | None:
        """Returns the known gap that a sequence lies in."""
        return self.gaps().at(sequence)


class Arrivals:
    """Wakes readers that wait for a topic's records; created by the first one that waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, int] = {}
        self._listeners: dict[int, tuple[threading.Event, ...]] = {}
        self._ended: set[int] = set()

    def wait(self, topic: TopicState, beyond: int, timeout_s: float, isolation: str) -> bool:
        """Waits until a topic's end is beyond a sequence."""
        key = topic.topic_id

        def is_there() -> bool:
            return (
                topic.durable_end if isolation == "durable" else topic.written_end
            ) > beyond or key in self._ended

        with self._changed:
            self._waiting[key] = self._waiting.get(key, 0) + 1
            try:
                self._changed.wait_for(is_there, timeout=timeout_s)
            finally:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key]
        return (topic.durable_end if isolation == "durable" else topic.written_end) > beyond

    def announce(self, topics: set[TopicState] | list[TopicState]) -> None:
        """Wakes readers that wait for any of these topics."""
        if self._listeners:
            for topic in topics:
                for event in self._listeners.get(topic.topic_id, ()):
                    event.set()
        waiting = self._waiting
        if waiting and any(topic.topic_id in waiting for topic in topics):
            with self._changed:
                self._changed.notify_all()

    def listen(self, topic: TopicState, event: threading.Event) -> None:
        """Registers an event that every append to a topic sets."""
        with self._changed:
            known = self._listeners.get(topic.topic_id, ())
            self._listeners = {**self._listeners, topic.topic_id: (*known, event)}

    def unlisten(self, topic: TopicState, event: threading.Event) -> None:
        """Ends listening."""
        with self._changed:
            known = self._listeners.get(topic.topic_id, ())
            kept = tuple(each for each in known if each is not event)
            others = {key: each for key, each in self._listeners.items() if key != topic.topic_id}
            self._listeners = {**others, topic.topic_id: kept} if kept else others

    def end(self, topic: TopicState) -> None:
        """Wakes readers that wait for a topic: no more records will come."""
        with self._changed:
            self._ended.add(topic.topic_id)
            self._changed.notify_all()
            for event in self._listeners.get(topic.topic_id, ()):
                event.set()


class Sources(NamedTuple):
    """What reading needs, shared by all topics of a store."""

    files: Files
    wal: WalFiles
    arrivals: Arrivals
