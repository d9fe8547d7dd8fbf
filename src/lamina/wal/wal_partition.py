"""One partition of a wal topic, open for writing: deletes, eviction, sealing, handing over.

Each change is a control frame first, durable, and only then in memory and in files. A crash in
between is finished by recovery, which reads the frame.

A segment that the archive holds is handed over in this order: the ledger says so, and what of it
was deleted; it is out of sight; its files go. The last segment stays: it knows where the topic
ends. A delete that finds archived records names them one by one, so that recovery need not ask the
archive what it meant.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from lamina.api import Decision, Gap
from lamina.config import TopicSettings
from lamina.errors import LaminaError, Poisoned, typed_errors
from lamina.formats.documents.archive_manifest import covers
from lamina.formats.documents.ledger import ARCHIVED, DELETED, Ledger, deleted_gaps
from lamina.formats.ranges import Ranges
from lamina.formats.wal import control, log
from lamina.log import retention
from lamina.log.appending import AppendsBatch
from lamina.log.commit import Writer
from lamina.log.directory import Place
from lamina.log.interfaces import Deletion
from lamina.log.producers import Producers
from lamina.log.removal import require_within
from lamina.log.requests import Request
from lamina.wal import deletes, eviction, segments
from lamina.wal.metadata import TAG_DELETES
from lamina.wal.reader import TopicReader
from lamina.wal.routed import Route
from lamina.wal.segments import Segment
from lamina.wal.shard_log import ShardLog
from lamina.wal.topic import LEVELS, Contents, Sources, TopicLayout

_Result = TypeVar("_Result")
_noting = threading.Lock()
NAMED_MAX = 1 << 16
"""How many records one control frame names."""


class Home(NamedTuple):
    """Where a partition lives: what it reads from, its shard, and what its engine lends it.

    `changing` is the lock of everything but appends, `compact` the way into segments, `progress`
    how far each consumer group has come.
    """

    sources: Sources
    log: ShardLog
    changing: threading.RLock
    compact: Callable[[WalPartition], None]
    progress: Callable[[], Mapping[str, int]]


class Opened(NamedTuple):
    """What was found of a partition; as it is, nothing: it is new.

    `flags_due` says that the flags in `.idx` do not know all that is deleted.
    """

    contents: Contents = Contents()
    producers: Producers | None = None
    flags_due: bool = False


class WalPartition(AppendsBatch, TopicReader):
    """A partition whose records go through a shard of the write-ahead log."""

    __slots__ = ("_progress", "changing", "compact", "flags_due", "log", "producers", "routes")

    def __init__(
        self,
        place: Place,
        topic_id: int,
        settings: TopicSettings,
        home: Home,
        opened: Opened = Opened(),
    ) -> None:
        super().__init__(place, topic_id, settings, home.sources, opened.contents)
        self.log = home.log
        self.changing = home.changing
        self.compact = home.compact
        self._progress = home.progress
        self.producers = opened.producers
        self.flags_due = opened.flags_due
        self.routes: tuple[Route, ...] = ()

    @property
    def writer(self) -> Writer:
        """The queue in front of its shard."""
        return self.log.writer

    @property
    def is_poisoned(self) -> bool:
        """Whether a write or fsync failed, of its shard or of its own files."""
        return isinstance(self.failure, Poisoned)

    @property
    def failure(self) -> LaminaError | None:
        """Why it takes no more appends until the store is opened again, if it does not."""
        return self.writer.failure or self.gone

    def exclusively(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action while neither appends nor the compactor change the topic.

        What the topic's own files refuse is logged, and stops neither its shard nor itself: every
        change is a durable control frame first. A failure of the WAL stops the shard by itself.
        """

        def apart() -> _Result:
            with typed_errors(f"changing {self.place.name}"):
                return action()

        with self.changing:
            return self.writer.exclusively(apart)

    def level(self, acks: int | None) -> int:
        """The stronger of what the topic promises and what an append asks for."""
        return max(LEVELS[self.settings.durability], acks or 0)

    def admit(self, request: Request) -> None:
        """Takes a request that can be stored."""
        request.target = self

    # ------------------------------------------------------------------ idempotent producers

    def known_producers(self) -> Producers:
        """What is known of the idempotent producers; their journal begins with the first one."""
        if self.producers is None:
            self.producers = Producers(self.place)
        return self.producers

    def producer_position(self, producer_id: int) -> tuple[int, int] | None:
        """Returns a producer's epoch and the sequence it must go on with; None if not known."""
        return self.producers.position(producer_id) if self.producers is not None else None

    def highest_kafka_producer(self) -> int:
        """Returns the highest id of Kafka's producers that is remembered here; -1 for none."""
        return self.producers.highest_of_kafka() if self.producers is not None else -1

    def has_idle_producers(self) -> bool:
        """Returns whether an idempotent producer may be forgotten."""
        idle_ms = self.settings.producer_id_expiration_ms
        return self.producers is not None and self.producers.has_idle(idle_ms)

    def forget_idle_producers(self) -> None:
        """Forgets idempotent producers that are idle for too long. For the leader."""
        if self.producers is not None:
            self.producers.forget_idle(self.settings.producer_id_expiration_ms)

    # ------------------------------------------------------------------ its state

    def sync(self) -> None:
        """Makes everything written durable."""
        self.log.sync()

    def note_damage(self, segment: Segment, found: segments.Rebuilt) -> None:
        """Sets damaged bytes aside and enters what they cost; on a full disk, the next time."""
        with _noting, contextlib.suppress(OSError):
            gaps = self.damage_gaps(segment, found)
            if gaps:
                self._set_damage_aside(segment, found)
                self._save_ledger(self.ledger.with_gaps(gaps))

    def _set_damage_aside(self, segment: Segment, found: segments.Rebuilt) -> None:
        """Keeps a copy of what holds no sound frame: its segment may go. A second one is none."""
        for damage in found.damages:
            if not damage.unread:
                spot = segments.damaged_bytes(self.sources.files, segment, damage)
                self.place.set_aside(segment.path("data"), spot, damage.first_byte)

    # ------------------------------------------------------------------ for the leader

    def _control(self, *bodies: control.Control) -> None:
        """Writes control frames by one durable write."""
        frames = [
            log.encode_control(
                control.type_of(body),
                self.topic_id,
                self.written_end - 1,
                self.place.now_ms(),
                control.encode(body),
            )
            for body in bodies
        ]
        self.log.control(b"".join(frames))

    def delete(self, deletion: Deletion) -> int:
        """Deletes records as they are now, for good; returns how many were live."""
        body = deletes.control_of(self, deletion)
        before = self.live_records()
        named: list[control.DeleteSequences] = []
        if isinstance(body, TAG_DELETES):
            here = deletes.matching(self, body)  # which finds what is damaged here
            searched = deletes.in_archive(self, body, deletion.archived)
            cold = Ranges(searched.bounds).from_on(self.earliest)
            found = here.union(cold)
            named = _named(cold, body.upper_sequence)
        elif isinstance(body, control.DeleteSequences):
            found = Ranges.of((each, each + 1) for each in body.sequences)
        else:
            found = None
        if found is not None and not len(found):
            return 0
        self._control(*named, body)
        if found is not None:
            self.deleted = self.deleted.union(found)
            self.flags_due = True
        elif isinstance(body, control.DeleteBefore):
            self.drop_below(body.before_sequence)
            self.flags_due = True
            self._remove_dropped()
        return before - self.live_records()

    def search_archive(self, deletion: Deletion) -> Deletion:
        """Looks for a tag in the archive, while appends go on."""
        body = deletes.control_of(self, deletion)
        if not isinstance(body, TAG_DELETES):
            return deletion
        return replace(deletion, archived=deletes.in_archive(self, body))

    def trim(self, before: int) -> int:
        """Deletes everything below an offset; returns the earliest one left."""
        self.delete(Deletion(before=before))
        return self.earliest

    def delete_records(self, before: int) -> int:
        """Deletes everything below an offset, up to the durable end; returns the earliest left."""
        require_within(self.place.name, before, self.durable_end)
        if before > self.earliest:
            self.trim(before)
        return self.earliest_offset()

    def _remove_dropped(self) -> int:
        """Removes whole sealed segments below the floor; the last one stays."""
        *older, last = self.layout.segments or (None,)
        going = [each for each in older if each is not None and each.sealed]
        going = [each for each in going if each.end_sequence <= self.earliest]
        kept = tuple(each for each in older if each is not None and each not in going)
        if last is not None:
            self.layout = TopicLayout((*kept, last), self.layout.runs)
        for segment in going:
            segments.remove(self.sources.files, segment)
            self.distrusted.pop(segment.first_sequence, None)
        return len(going)

    def explain_retention(self) -> list[Decision]:
        """Returns for each segment, oldest first, whether it goes and why."""
        verdicts = eviction.verdicts(self, self.place.aging_ms(), self._waits())
        return [each.described() for each in verdicts]

    def has_expired(self) -> bool:
        """Returns whether eviction would remove a file or let an archived object go."""
        due = eviction.due(self, self.place.aging_ms(), self._waits())
        if due is None:
            return False
        if self.settings.is_archived:  # objects go by what this store says is durably gone
            return True
        return due.floor > self.earliest_offset() or eviction.has_files_below(self, due.floor)

    def drop_expired(self) -> bool:
        """Forgets where records lie that are out of sight by their age. For the leader.

        The floor is durable with the next snapshot. Until then it is found again by the same rule,
        so one frame for each topic and tick is saved.
        """
        floor = self.earliest_offset()
        if floor == self.earliest:
            return False
        self.evict_floor = floor
        self.drop_below(floor)
        return True

    def apply_retention(self) -> int:
        """Evicts what cap and age let go; returns how many segments went."""
        due = eviction.due(self, self.place.aging_ms(), self._waits())
        if due is None:
            return 0
        self._evict(due.floor, due.reason)
        return self._remove_dropped()

    def keep_expired_hidden(self) -> None:
        """Makes durable what has expired by now, before another `retention.ms` counts."""
        floor = self.earliest_offset()
        if floor > self.earliest:
            self._evict(floor, control.EvictReason.AGE)

    def _evict(self, floor: int, reason: control.EvictReason) -> None:
        self._control(control.EvictWatermark(floor, floor, reason))
        self.evict_floor = floor
        self.drop_below(floor)

    def _waits(self) -> Mapping[str, int]:
        return retention.waited_for(self.settings, self._progress())

    # ------------------------------------------------------------------ the archive

    @property
    def sealed_end(self) -> int:
        """One past the last offset in a sealed segment."""
        found = self.layout.segments
        if found and not found[-1].sealed:
            return found[-1].first_sequence
        return self.absorbed_end

    def has_local_excess(self, archived_end: int) -> bool:
        """Returns whether local retention would hand anything over that is archived."""
        return bool(self._local_excess(archived_end))

    def check_local_excess(self, archived_end: int) -> None:
        """Reads what would go, and sets aside what is damaged in it.

        Raises NewerFormat for records that this version cannot judge.
        """
        for segment in self._local_excess(archived_end):
            found = segments.walk_salvaged(self.sources.files, segment, segment.data_bytes)
            self._set_damage_aside(segment, found)

    def apply_local_retention(self, archived_end: int) -> int:
        """Hands local segments over whose records are archived. For the leader.

        `archived_end` is the offset below which everything was uploaded, read back and listed.
        """
        going = self._local_excess(archived_end)
        for segment in going:
            self._hand_over(segment)
        return len(going)

    def _local_excess(self, archived_end: int) -> list[Segment]:
        *older, _ = self.layout.segments or (None,)
        if not older or older[0] is None or older[0].end_sequence > archived_end:
            return []
        settings, entries = self.settings.for_local_copies(), self.cold.entries if self.cold else ()
        verdicts = retention.explain(self.local_layers(), settings, self.place.aging_ms())
        going = {each.layer.base_offset for each in verdicts if each.goes}
        return [
            segment
            for segment in older
            if segment is not None
            and segment.sealed
            and segment.first_sequence in going
            and segment.end_sequence <= archived_end
            and covers(entries, self.published, segment.first_sequence, segment.end_sequence)
        ]

    def _hand_over(self, segment: Segment) -> None:
        first, end = max(self.earliest, segment.first_sequence), segment.end_sequence
        deleted = Ranges.of([(first, end)]).common(self.deleted)
        with _noting:
            known = self.ledger.with_gaps(deleted_gaps(deleted))
            known = known.with_archived(first, end, self.place.now_ms())
            self._save_ledger(known)
        kept = tuple(each for each in self.layout.segments if each is not segment)
        self.layout = TopicLayout(kept, self.layout.runs)
        segments.remove(self.sources.files, segment)
        self.distrusted.pop(segment.first_sequence, None)
        self.verified.discard(segment.first_sequence)

    def enter_gaps(self, gaps: Sequence[Gap]) -> None:
        """Enters why ranges of offsets are missing, or are about to be: at once, and durably."""
        if gaps:
            with _noting:
                self._save_ledger(self.ledger.with_gaps(gaps))

    def turn(self, old: str, gaps: Sequence[Gap]) -> None:
        """Enters another reason, durably, for what has an old one in some ranges."""
        self._revise(lambda known: known.turned(old, gaps))

    def found_again(self, spans: Sequence[tuple[int, int]]) -> None:
        """Takes back, durably, that the records of some ranges are lost, or only archived."""
        self._revise(lambda known: known.found_again(spans))

    def _revise(self, change: Callable[[Ledger], Ledger]) -> None:
        with _noting:
            found = change(self.ledger)
            if found != self.ledger:
                self._save_ledger(found)

    def _save_ledger(self, known: Ledger) -> None:
        self.place.files.make_directory(self.place.directory)
        self.place.write_ledger(known)
        self.ledger = known

    def go_on_at(self, sequence: int) -> None:
        """Leaves a hole before the next record, for a topic that is being restored."""

        def skip() -> None:
            self.written_end = max(self.written_end, sequence)

        if sequence > self.written_end:
            self.exclusively(skip)

    def take_over(self, floors: tuple[int, int], known: Ledger) -> None:
        """Takes the floors, gaps and deletes of the archive that it was restored from."""
        self._save_ledger(known)
        self._control(control.EvictWatermark(*floors, control.EvictReason.AGE))
        self.evict_floor = floors[0]
        self.drop_below(floors[1])
        self.deleted = known.ranges(DELETED)
        self.roll()
        self.durable_end = self.written_end

    def is_old(self, age_ms: int) -> bool:
        """Returns whether the active segment should be sealed by its age."""
        found = self.layout.segments
        if not found or found[-1].sealed or not age_ms:
            return False
        limit = min(age_ms, self.settings.segment_ms)
        return self.place.steady() - found[-1].created_ms > limit

    def seal(self) -> None:
        """Seals the active segment."""
        *older, last = self.layout.segments
        self.layout = TopicLayout((*older, segments.seal(last)), self.layout.runs)

    def roll(self) -> None:
        """Copies everything into segments and seals the active one."""
        self.log.sync()
        self.compact(self)
        if self.layout.segments and not self.layout.segments[-1].sealed:
            self.seal()

    def save_flags(self) -> None:
        """Writes the deleted flags into every `.idx`: a second copy of the deleted set.

        Of archived records, which have no `.idx` here, the ledger is that copy.
        """
        if not self.flags_due:
            return
        cold = self.ledger.ranges(ARCHIVED).common(self.deleted)
        if len(cold):
            with _noting:
                self._save_ledger(self.ledger.with_gaps(deleted_gaps(cold)))
        pairs = self.flagged().pairs()
        for segment in self.layout.segments:
            touched = any(
                first < segment.end_sequence and segment.first_sequence < end
                for first, end in pairs
            )
            if touched:
                segments.mark_deleted(self.sources.files, segment, pairs)
        self.flags_due = False


def _named(found: Ranges, upper: int) -> list[control.DeleteSequences]:
    """Makes the frames that delete records by their numbers."""
    numbers = [each for first, end in found.pairs() for each in range(first, end)]
    return [
        control.DeleteSequences(upper, tuple(numbers[start : start + NAMED_MAX]))
        for start in range(0, len(numbers), NAMED_MAX)
    ]
