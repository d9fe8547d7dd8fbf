"""What the next window of a cluster's log holds: what is durable here, and in no window yet.

    topics, schemas, ledgers ─┐
    groups, offsets ──────────┼─▶ draft ──(its object exists)──▶ accept: shipped
    records, producers ───────┘

Rules.
1. A window holds a prefix of each partition's durable records, nothing above the durable watermark,
   and what groups have done no further than its records go.
2. A draft changes nothing here: only a window that is committed counts as shipped.
3. A full window holds every copy and every remembered producer: earlier ones are needed for their
   records only.
4. A batch of an idempotent producer is in one window, with its entry.
5. A partition that cannot be read now is left out, with the reason; the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lamina.api import Isolation
from lamina.archive.encode import EncodedObject, Naming, encode_object
from lamina.archive.tier import policy_of
from lamina.errors import LaminaError
from lamina.formats import producer_journal
from lamina.formats.documents import ledger, topic_file
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.producer_journal import Entry
from lamina.formats.scan import Limit
from lamina.formats.tail_file import Kind, Section
from lamina.groups.coordinator import Coordinator
from lamina.groups.copying import Copies
from lamina.groups.registry import Groups
from lamina.log.gap_walk import records_over
from lamina.log.partition import Partition
from lamina.storage import paths
from lamina.store.open_topics import OpenTopics
from lamina.store.schema_files import SchemaFiles
from lamina.store.seat_directory import Ends
from lamina.store.window_history import History, is_same

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)
WINDOW_BYTES = 16 << 20
"""About how many bytes of records a window holds; the rest goes into the next one."""


@dataclass(slots=True)
class Draft:
    """A window on its way, and what counts as shipped once it is there."""

    is_full: bool
    sections: list[Section] = field(default_factory=list)
    copies: dict[str, bytes] = field(default_factory=dict)
    ledgers: dict[tuple[str, int], ledger.Ledger] = field(default_factory=dict)
    topics: dict[str, TopicFile] = field(default_factory=dict)
    ends: Ends = field(default_factory=dict)
    made_again: set[str] = field(default_factory=set)
    """Topics whose names were another topic's before: what is known of that one means nothing."""
    room_bytes: int = WINDOW_BYTES
    has_more: bool = False
    schemas_seen: int = 0


class Contents:
    """What is shipped of an open store, and what is not."""

    def __init__(
        self,
        open_topics: OpenTopics,
        groups: Groups,
        coordinator: Coordinator,
        schemas: SchemaFiles,
        changing: threading.Lock,
        now_ms: Callable[[], int],
    ) -> None:
        self._open = open_topics
        self._groups = groups
        self._offsets = coordinator.offsets
        self._settings = coordinator.share_settings
        self._schemas = schemas
        self._changing = changing
        self._now_ms = now_ms
        self._group_copies = Copies(now_ms)
        self._topics: dict[str, TopicFile] = {}
        self._copies: dict[str, bytes] = {}
        self._ledgers: dict[tuple[str, int], ledger.Ledger] = {}
        self._schemas_seen = -1
        self._turn = 0
        self.ends: Ends = {}
        self.problems: dict[str, str] = {}
        """Which partitions are left out now, and why."""

    def begin(self, history: History, ends: Ends) -> None:
        """Takes note of what the cluster's log holds already."""
        self._topics = {name: each.about for name, each in history.topics.items()}
        self._copies = {
            key: data for each in history.alive() for key, data in each.copies.items() if data
        } | history.copies
        self.ends = dict(ends)

    # ------------------------------------------------------------------ looking

    def end_of(self, topic: str, partition: int) -> int:
        """Returns up to which offset a partition is shipped."""
        return self.ends.get((topic, partition), 0)

    def local_ends(self) -> Ends:
        """Returns the durable end of each partition."""
        return {_place(each): each.end_offset("durable") for each in self._open.segmented()}

    def unshipped(self, isolation: Isolation = "durable") -> int:
        """Returns how many records that are durable here, or written, are in no window yet."""
        return sum(
            max(0, each.end_offset(isolation) - self.end_of(*_place(each)))
            for each in self._open.segmented()
        )

    # ------------------------------------------------------------------ drafting

    def draft(self, *, full: bool) -> Draft:
        """Makes the next window; it has no sections if there is nothing to ship."""
        with self._changing:  # no topic comes or goes meanwhile
            return self._drafted(full)

    def _drafted(self, full: bool) -> Draft:
        draft = Draft(full, schemas_seen=self._schemas.replaced)
        topics = dict(self._open.topics)
        for name, about in self._topics.items():
            if name not in topics:
                self._describe(draft, replace(about, deleted=True))
        for about in topics.values():
            self._describe(draft, replace(about, topic_ids=[]))
        settings = self._settings.as_shipped()
        if settings or self._copies.get(paths.GROUP_SETTINGS):
            self._copy(draft, paths.GROUP_SETTINGS, settings)
        partitions = self._open.segmented()
        there = {each.place.name for each in partitions}
        self.problems = {name: why for name, why in self.problems.items() if name in there}
        turn = self._turn % max(1, len(partitions))  # none always comes last
        for partition in partitions[turn:] + partitions[:turn]:
            about = draft.topics.get(partition.place.topic) or self._topics[partition.place.topic]
            self._records(draft, partition, about)
            self._beside(draft, partition, about)
        return draft

    def _describe(self, draft: Draft, about: TopicFile) -> None:
        """Adds the file of a topic, and its schemas, where they have changed."""
        known = self._topics.get(about.name)
        if known != about or draft.is_full:
            draft.topics[about.name] = about
            key = paths.archive_topic_settings(about.name)
            draft.sections.append(Section(Kind.COPY, key, topic_file.encode(about)))
        if known is not None and not is_same(known, about):
            self._forget(about.name)
            draft.made_again.add(about.name)
        if not about.deleted and (draft.is_full or draft.schemas_seen != self._schemas_seen):
            found = self._schemas.own_bytes(about)
            if found is not None:
                self._copy(draft, paths.archive_topic_schemas(about.name), found)

    def _forget(self, topic: str) -> None:
        """Forgets what was shipped of a topic of the same name that was deleted."""
        self.ends = {place: end for place, end in self.ends.items() if place[0] != topic}
        self._copies = {
            key: data for key, data in self._copies.items() if paths.archived_topic(key) != topic
        }

    def _copy(self, draft: Draft, key: str, data: bytes) -> None:
        if draft.is_full or self._copies.get(key) != data:
            draft.sections.append(Section(Kind.COPY, key, data))
            draft.copies[key] = data

    def _records(self, draft: Draft, partition: Partition, about: TopicFile) -> None:
        place = _place(partition)
        start = self.end_of(*place)
        end, entries = _durable(partition, 0 if draft.is_full else start)
        try:
            if end > start:
                end = self._encode(draft, partition, about, (start, end), entries)
            self.problems.pop(partition.place.name, None)
        except LaminaError as error:
            self.problems[partition.place.name] = str(error)
            end = start
        draft.ends[place] = end
        kept = [each for each in entries if _end(each) <= end]
        if kept:
            body = producer_journal.encode(kept)
            draft.sections.append(Section(Kind.PRODUCERS, about.name, body, place[1]))

    def _encode(
        self,
        draft: Draft,
        partition: Partition,
        about: TopicFile,
        span: tuple[int, int],
        entries: list[Entry],
    ) -> int:
        """Adds records as far as there is room; returns up to which offset.

        A producer's batch is not cut in two: repeated after a takeover, it is there or it is not.
        """
        start, end = span
        if draft.room_bytes <= 0:
            draft.has_more = True
            return start
        made = self._object(partition, about, span, draft.room_bytes)
        covered = end if made is None else made.next_offset
        whole = max([covered, *(_end(each) for each in entries if each.base_offset < covered)])
        if whole > covered:
            made = self._object(partition, about, (start, whole), 1 << 62)
            covered = whole
        body = b"" if made is None else bytes(made.data)
        draft.room_bytes -= len(body)
        draft.has_more |= covered < end
        number = partition.place.partition
        draft.sections.append(Section(Kind.RECORDS, about.name, body, number, start, covered))
        return covered

    def _object(
        self, partition: Partition, about: TopicFile, span: tuple[int, int], target_bytes: int
    ) -> EncodedObject | None:
        def records(offset: int) -> Iterator[pa.RecordBatch]:
            return records_over(lambda at: partition.scan(at, BATCH, end=span[1]), offset, span[1])

        return encode_object(
            records,
            span,
            Naming(about.name, partition.place.partition, self._now_ms()),
            policy_of(partition.settings).compression,
            target_bytes=target_bytes,
        )

    def _beside(self, draft: Draft, partition: Partition, about: TopicFile) -> None:
        """Adds the ledger and what groups have done, as far as records are shipped with it."""
        name, number = _place(partition)
        end, known = draft.ends[name, number], partition.published
        if draft.is_full or self._ledgers.get((name, number)) is not known:
            self._copy(draft, paths.archive_ledger(name, number), ledger.encode(known))
            draft.ledgers[name, number] = known
        made = self._groups.copies(about, number, end, self._group_copies)
        for group, data in made.items():
            self._copy(draft, paths.archive_group(name, number, group), data)
        for key, data in self._copies.items():
            parsed = paths.archived_group(key) if data else None
            if parsed is None or parsed[:2] != (name, number) or parsed[2] in made:
                continue
            if self._groups.is_gone(name, parsed[2]):
                self._copy(draft, key, b"")
        offsets = self._offsets.copy(about, number, end)
        key = paths.archive_offsets(name, number)
        if offsets is not None and (offsets or self._copies.get(key)):
            self._copy(draft, key, offsets)

    def accept(self, draft: Draft) -> None:
        """Counts a draft as shipped: its window is there."""
        self._copies.update(draft.copies)
        self._ledgers.update(draft.ledgers)
        self._topics.update(draft.topics)
        self.ends.update(draft.ends)
        self._schemas_seen = draft.schemas_seen
        self._turn += 1


def _place(partition: Partition) -> tuple[str, int]:
    return partition.place.topic, partition.place.partition


def _end(entry: Entry) -> int:
    return entry.base_offset + entry.count


def _durable(partition: Partition, start: int) -> tuple[int, list[Entry]]:
    """Returns a partition's durable end, and its producers' batches from an offset up to there."""

    def look() -> tuple[int, list[Entry]]:
        return partition.end_offset("durable"), partition.producers.batches_from(start)

    if not partition.producers.is_known:
        return partition.end_offset("durable"), []
    try:
        return partition.exclusively(look)
    except LaminaError:  # it takes no appends any more: nothing changes under our hands
        return look()
