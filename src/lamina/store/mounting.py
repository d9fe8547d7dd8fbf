"""Makes a data directory from a cluster's log: what is archived is mounted, the rest is written.

    list of each partition ──▶ ledger: archived up to its end      (no record is copied)
    windows above that end ──▶ local segments, at their offsets
    copies, producers ──▶ the small files                          topic.json of each topic last

So the cost grows with the number of partitions and with what the windows hold, and not with how
much is archived.

Rules.
1. Each partition's list is claimed before it is read: from then on its former holder cannot change
   it.
2. Nothing is left out silently: a range that neither the archive nor a window has stops the
   takeover with an error that names it.
3. It may be killed at any step, and is then done again from the beginning: see `seat_directory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from lamina.api import Gap
from lamina.archive.object_list import Shelf
from lamina.errors import CorruptData, InvalidRequest
from lamina.formats import producer_journal
from lamina.formats.documents import group_copy, group_roster, producer_ids
from lamina.formats.documents import ledger as ledger_file
from lamina.formats.documents.group_roster import Listed
from lamina.formats.documents.ledger import ARCHIVED, Ledger
from lamina.formats.documents.producer_ids import Reserved
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS, Codec
from lamina.groups.copying import is_of, state_of
from lamina.groups.journal import Journal, Names
from lamina.groups.offset_copies import bring_back, entries_of
from lamina.groups.rebuilding import not_below
from lamina.log.active_segment import ActiveSegment
from lamina.log.batch_offsets import after, first_of, runs
from lamina.log.directory import Place
from lamina.records import INPUT_SCHEMAS
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.opening import Boot
from lamina.store.window_history import History, PartHistory, TopicHistory, batches_of

SEGMENT_BYTES = 64 << 20
EPOCH_IDS = 1 << 40
"""How many ids of Kafka producers each epoch has, so that no two epochs hand out the same one."""
_EVERYTHING = Ledger((Gap(0, 1 << 62, ARCHIVED, 0),))


def mount(boot: Boot, objects: Objects, history: History, epoch: int, writer: str) -> None:
    """Makes the topics, groups and producers of a history in a directory that has none."""
    listed: list[Listed] = []
    boot.files.make_directory(boot.path(paths.META))
    for topic in history.topics.values():
        if topic.about.deleted:
            _bury(boot, topic.about)
    for topic in history.alive():
        refuse_format(topic.about)
        boot.catalog.begin_restoring(topic.about)
        for number in range(topic.about.partitions):
            _Mounting(boot, objects, topic, number, epoch, writer).run()
        listed += _small_files(boot, topic)
        boot.catalog.finish_restoring(topic.about)
    boot.files.replace(boot.path(paths.ROSTER), group_roster.encode(listed))
    for path, data in history.copies.items():
        if data:
            boot.files.replace(boot.path(path), data)
    ids = producer_ids.encode(Reserved(epoch * EPOCH_IDS))
    boot.files.replace(boot.path(paths.PRODUCER_IDS), ids)


def refuse_format(about: TopicFile) -> None:
    """Refuses a topic that a cluster cannot carry to another machine."""
    if about.format not in CODECS:
        raise InvalidRequest(
            f"topic {about.name!r} is of format {about.format}, which a cluster cannot take over"
            " yet: use keratin or frame there"
        )


def _bury(boot: Boot, about: TopicFile) -> None:
    """Leaves the file of a deleted topic: the next one of its name is of a later epoch."""
    boot.files.make_directory(boot.catalog.directory(about.name))
    boot.catalog.mark_deleted(about)


def _small_files(boot: Boot, topic: TopicHistory) -> Iterator[Listed]:
    """Writes schemas, groups and committed offsets; yields the groups for their list."""
    about = topic.about
    schemas = topic.copies.get(paths.archive_topic_schemas(about.name))
    if schemas:
        path = paths.join(boot.catalog.directory(about.name), paths.TOPIC_SCHEMAS)
        boot.files.replace(path, schemas)
    found: dict[str, dict[int, group_copy.GroupCopy]] = {}
    for key, data in topic.copies.items():
        parsed = paths.archived_group(key)
        if parsed is not None and data:
            copy = group_copy.decode(data)
            if is_of(copy, about, parsed[1], parsed[2]):
                found.setdefault(parsed[2], {})[parsed[1]] = copy
    for name, copies in sorted(found.items()):
        acked, lives = [0] * about.partitions, [""] * about.partitions
        for number, copy in copies.items():
            if number < about.partitions:
                state = not_below(state_of(copy).clamped(copy.archived_until), about, 0)
                Journal.create(Names(boot.place(about.name, number), name), state).close()
                acked[number], lives[number] = state.acked_until, copy.owner.life
        yield Listed(about.name, about.epoch, name, acked, lives)
    for number in range(about.partitions):
        offsets = topic.copies.get(paths.archive_offsets(about.name, number))
        if offsets:
            bring_back(boot, entries_of(offsets, about, number).entries)


@dataclass(slots=True)
class Claimed:
    """What the archive holds of a partition, from now on unchanged by whoever had it before."""

    end_offset: int
    ledger: Ledger


def claimed(objects: Objects, about: TopicFile, number: int, epoch: int, writer: str) -> Claimed:
    """Takes a partition's list over and reads it; an archive of another topic holds nothing."""
    shelf = Shelf(objects, about, number, writer, epoch)
    try:
        # What is listed, and any object, was in a window before: all of it is this log's.
        shelf.claim(1 << 62, _EVERYTHING)
    except InvalidRequest:
        return Claimed(0, Ledger())
    return Claimed(shelf.manifest.end_offset, shelf.read_ledger())


@dataclass(slots=True)
class _Mounting:
    """One partition."""

    boot: Boot
    objects: Objects
    topic: TopicHistory
    number: int
    epoch: int
    writer: str

    def run(self) -> None:
        """Writes the ledger, the records above the archive, and the producers."""
        about, boot = self.topic.about, self.boot
        part = self.topic.part(self.number)
        archive = claimed(self.objects, about, self.number, self.epoch, self.writer)
        place, codec = boot.place(about.name, self.number), CODECS[about.format]
        place.files.make_directory(place.segments)
        segments = _Segments(place, codec, archive.end_offset)
        end = self._write(segments, part, archive.end_offset)
        segments.finish(end)
        self._write_ledger(place, archive, segments, end)
        if part.producers:
            stored = [
                each for each in part.producers.values() if each.base_offset + each.count <= end
            ]
            path = paths.join(place.directory, paths.PRODUCERS)
            place.files.replace(path, producer_journal.encode(stored))

    def _write(self, segments: _Segments, part: PartHistory, start: int) -> int:
        """Writes what windows hold above an offset; returns the end of the partition."""
        end = start
        for section in part.records:
            if section.next_offset <= end:
                continue
            if section.first_offset > end:
                raise CorruptData(
                    f"offsets {end} to {section.first_offset} of {self.topic.about.name}/"
                    f"{self.number} are neither in the archive nor in a window",
                    path=f"{self.objects.url}/{paths.TAILS}",
                    expected=f"records from {end}",
                    found=f"records from {section.first_offset}",
                )
            for batch in batches_of(section, self.topic.about.format, end):
                segments.append(batch)
            end = section.next_offset
        return end

    def _write_ledger(self, place: Place, archive: Claimed, segments: _Segments, end: int) -> None:
        """Enters what is archived, what was removed, and the holes that windows have."""
        key = paths.archive_ledger(self.topic.about.name, self.number)
        kept = self.topic.copies.get(key)
        shipped = ledger_file.decode(kept) if kept else Ledger()
        gaps = known_gaps(shipped, archive.ledger, end)
        gaps = gaps.with_archived(0, archive.end_offset, place.now_ms())
        for first, stop in segments.holes:
            gaps = explained(gaps, [], (first, stop), place.now_ms())
        place.write_ledger(gaps)


def known_gaps(shipped: Ledger, archived: Ledger, end: int) -> Ledger:
    """Returns what is missing of a partition that ends at an offset, by both of its ledgers.

    The archive's copy may be newer than the windows: what it calls removed is removed there.
    """
    gaps = Ledger(shipped.missing()).with_gaps(archived.missing())
    return Ledger(
        tuple(replace(gap, end=min(gap.end, end)) for gap in gaps.gaps if gap.first < end)
    )


class _Segments:
    """The local segments of a partition, from the archive's end on."""

    def __init__(self, place: Place, codec: Codec, start: int) -> None:
        self._place = place
        self._codec = codec
        self._segment: ActiveSegment | None = None
        self._next = start
        self.holes: list[tuple[int, int]] = []

    def append(self, batch: pa.RecordBatch) -> None:
        """Writes records; where offsets are missing a new segment begins."""
        for run in runs(batch):
            first = first_of(run)
            if first > self._next:
                self.holes.append((self._next, first))
            segment = self._segment
            if segment is None or first > self._next or segment.tail.position >= SEGMENT_BYTES:
                segment = self._begin(first)
            given = run.select(INPUT_SCHEMAS[self._codec.name].names)
            data, positions = self._codec.encode(given, first)
            times = run.column("timestamp").view(pa.int64()).to_numpy()
            segment.append(data, positions, times)
            self._next = after(run)

    def _begin(self, base_offset: int) -> ActiveSegment:
        self._seal()
        self._segment = ActiveSegment.create(
            *(self._codec, self._place.files, self._place.segments),
            base_offset=base_offset,
            created_ms=self._place.now_ms(),
        )
        return self._segment

    def _seal(self) -> None:
        segment = self._segment
        if segment is not None:
            segment.written = segment.tail
            segment.sync()
            segment.finish()

    def finish(self, end: int) -> None:
        """Ends the log at an offset, where it goes on."""
        if end > self._next:
            self.holes.append((self._next, end))
        if self._segment is None or end > self._next:
            self._begin(end)
        self._seal()


def explained(gaps: Ledger, losses: list[Gap], span: tuple[int, int], at_ms: int) -> Ledger:
    """Enters why the archive does not hold an unexplained range: lost, or else deleted before."""
    start, end = span
    lost_there = Ledger(tuple(losses))
    holes: list[Gap] = []
    for gap in (*gaps.between(start, end), None):
        stop = end if gap is None else gap.first
        for each in lost_there.between(start, stop):
            if start < each.first:
                holes.append(Gap(start, each.first, "deleted", at_ms))
            first, start = max(start, each.first), min(stop, each.end)
            holes.append(replace(each, first=first, end=start))
        if start < stop:
            holes.append(Gap(start, stop, "deleted", at_ms))
        start = end if gap is None else gap.end
    return gaps.with_gaps(holes)
