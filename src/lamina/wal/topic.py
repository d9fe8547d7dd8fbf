"""One partition of a `wal` topic: what is known of it in memory, and the changes its owner makes.

A record's number in the API (its offset) is its sequence in the WAL, from 1. Where a record lies:

    earliest ── archived ── segments (sealed, the last one active) ── runs in the WAL ── written end

Rules.
1. Only the shard's leader (or somebody with `writer.exclusively`) changes a topic.
2. `layers` is an immutable value, replaced as a whole, but that the last run grows at its end:
   readers look no further than the end they took before.
3. Nothing is kept for a record but eight bytes while it is in the WAL, and nothing afterwards.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING, NamedTuple

from lamina.api import DURABLE, NOT_WAITED, WRITTEN, Gap, SegmentFacts
from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import Closed, LaminaError, Poisoned, Unavailable
from lamina.formats import ranges
from lamina.formats.documents.ledger import Ledger
from lamina.formats.ranges import Ranges
from lamina.log.directory import Place
from lamina.wal import archived
from lamina.wal.segments import Segment

if TYPE_CHECKING:
    from lamina.log.cold import Cold
    from lamina.wal.shard_log import ShardLog

LEVELS = {"memory": NOT_WAITED, "disk": WRITTEN, "fsync": DURABLE}


class Run:
    """Consecutive sequences in the WAL and the location of each one's frame."""

    __slots__ = ("first", "locations")

    def __init__(self, first: int, locations: array[int] | None = None) -> None:
        self.first = first
        self.locations: array[int] = array("q") if locations is None else locations

    @property
    def end(self) -> int:
        """One past the last sequence."""
        return self.first + len(self.locations)

    def from_on(self, sequence: int) -> Run:
        """Returns a copy without what is below a sequence."""
        return Run(max(sequence, self.first), self.locations[max(0, sequence - self.first) :])


class Layers(NamedTuple):
    """Where records lie, oldest first."""

    segments: tuple[Segment, ...]
    runs: tuple[Run, ...]


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
        "layers",
        "ledger",
        "log",
        "place",
        "settings",
        "topic_id",
        "wal_bytes",
        "written_end",
    )

    def __init__(self, place: Place, topic_id: int, settings: TopicSettings) -> None:
        self.place = place
        self.topic_id = topic_id
        self.settings = settings
        self.layers = Layers((), ())
        self.written_end = self.durable_end = 1
        self.earliest = 1
        self.evict_floor = 1
        self.deleted: Ranges = ranges.EMPTY
        self.ledger = Ledger()
        self.wal_bytes = 0
        self.gone: LaminaError | None = None
        self.cold: Cold | None = None
        self._published: tuple[tuple[object, ...], Ledger] = ((), self.ledger)
        self.log: ShardLog

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
        return cap != NO_LIMIT and sum(fact.size_bytes for fact in self.facts()) >= cap

    def append(self, locations: array[int], size_bytes: int) -> None:
        """Takes note of records that were written behind the last one."""
        self._open_run().extend(locations)
        self.wal_bytes += size_bytes
        self.written_end += len(locations)

    def append_one(self, location: int, size_bytes: int) -> None:
        """Takes note of one record that was written behind the last one."""
        self._open_run().append(location)
        self.wal_bytes += size_bytes
        self.written_end += 1

    def _open_run(self) -> array[int]:
        """Returns the places that go on where the topic ends."""
        runs = self.layers.runs
        if runs:
            last = runs[-1]
            if last.first + len(last.locations) == self.written_end:
                return last.locations
        run = Run(self.written_end)
        self.layers = Layers(self.layers.segments, (*runs, run))
        return run.locations

    def absorb(self, segments: tuple[Segment, ...], end: int, size_bytes: int) -> None:
        """Publishes that everything below a sequence is in segments now."""
        kept = tuple(run.from_on(end) for run in self.layers.runs if run.end > end)
        self.layers = Layers(segments, kept)
        self.wal_bytes = max(0, self.wal_bytes - size_bytes) if kept else 0

    def drop_below(self, sequence: int) -> None:
        """Moves the live floor: whatever is below it is gone for readers."""
        self.earliest = max(self.earliest, sequence)
        self.deleted = self.deleted.from_on(self.earliest)
        if any(run.first < self.earliest for run in self.layers.runs):
            kept = [run.from_on(self.earliest) for run in self.layers.runs]
            runs = tuple(run for run in kept if run.locations)
            self.layers = Layers(self.layers.segments, runs)

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
        segments = self.layers.segments
        return segments[-1].end_sequence if segments else 1

    @property
    def local_start(self) -> int:
        """The first sequence of the local layers; the end where they are empty."""
        starts = [segment.first_sequence for segment in self.layers.segments[:1]]
        starts += [run.first for run in self.layers.runs[:1]]
        return min(starts, default=self.written_end)

    def live_records(self) -> int:
        """How many records can be read, holes counted as records."""
        return self.written_end - self.earliest - self.deleted.count()

    def size_bytes(self) -> int:
        """How many bytes its records take locally."""
        return sum(segment.data_bytes for segment in self.layers.segments) + self.wal_bytes

    def facts(self) -> list[SegmentFacts]:
        """Returns what retention needs to know, oldest first: archived objects, then local layers.

        The WAL's records come last.
        """
        return [*archived.facts(self), *self.local_facts()]

    def local_facts(self) -> list[SegmentFacts]:
        """Returns what retention needs to know of the local layers, oldest first."""
        facts = [
            SegmentFacts(
                segment.first_sequence,
                segment.end_sequence,
                segment.data_bytes,
                segment.newest_ms,
                sealed=segment.sealed,
                removed=self.removed_between(segment.first_sequence, segment.end_sequence),
            )
            for segment in self.layers.segments
        ]
        if self.written_end > self.absorbed_end or not facts:
            first = max(self.absorbed_end, self.earliest)
            end = max(self.written_end, first)
            gone = self.removed_between(first, end)
            facts.append(SegmentFacts(first, end, self.wal_bytes, None, sealed=False, removed=gone))
        return facts

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
        """What the archive is told: every gap, single deleted records too."""
        key = (self.deleted, self.ledger, self.evict_floor, self.earliest)
        known, ledger = self._published
        if len(known) != len(key) or any(
            old is not new for old, new in zip(known, key, strict=True)
        ):
            ledger = TopicState.gaps(self).with_gaps(archived.as_gaps(self.deleted))
            self._published = key, ledger
        return ledger

    def gap_at(self, sequence: int) -> Gap | None:
        """Returns the known gap that a sequence lies in."""
        return self.gaps().at(sequence)


class Arrivals:
    """Wakes those who wait for a topic's records; made when somebody first waits."""

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
        """Wakes those who wait for any of these topics."""
        if self._listeners:
            for topic in topics:
                for event in self._listeners.get(topic.topic_id, ()):
                    event.set()
        waiting = self._waiting
        if waiting and any(topic.topic_id in waiting for topic in topics):
            with self._changed:
                self._changed.notify_all()

    def listen(self, topic: TopicState, event: threading.Event) -> None:
        """Has an event set by every append to a topic."""
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
        """Wakes those who wait for a topic, because nothing will come any more."""
        with self._changed:
            self._ended.add(topic.topic_id)
            self._changed.notify_all()
            for event in self._listeners.get(topic.topic_id, ()):
                event.set()
