"""Brings archived topics back into an empty data directory, record by record, at their offsets.

    segments, ledger, group files ──▶ topic.json last: writing it is what creates the topic

The records become local segments of the topic's own format (those of wal topics: `restore_wal`).
Where offsets are missing a new segment begins, and the ledger has the reason. A restore that was
interrupted leaves a deleted topic: the next open removes it, or the next restore begins again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from lamina.api import Gap
from lamina.archive.object_reader import BlockCache
from lamina.archive.spare_copies import ArchiveSpares
from lamina.errors import CorruptData, InvalidRequest, RecordsMissing, TopicExists
from lamina.formats.documents import ledger as ledger_file
from lamina.formats.documents import topic_schemas
from lamina.formats.documents.flips import one_flip_away
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS, Codec
from lamina.formats.scan import Limit
from lamina.groups.copying import is_of, state_of
from lamina.groups.journal import Journal, Names
from lamina.groups.offset_copies import bring_back, copied
from lamina.groups.rebuilding import not_below
from lamina.log.active_segment import ActiveSegment
from lamina.log.batch_offsets import after, runs
from lamina.log.directory import Place
from lamina.log.gap_walk import scan_over
from lamina.records import INPUT_SCHEMAS
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.archive_store import ArchivedPartition, archived_schemas, archived_topics
from lamina.store.mounting import explained
from lamina.store.opening import Boot
from lamina.store.restore_wal import Brought, lost, restore_wal
from lamina.wal.ground import Ground
from lamina.wal.topics_view import WalView

BATCH = Limit(max_records=1 << 18, max_bytes=4 << 20)


class Loss(NamedTuple):
    """Offsets that the archive should hold and does not return, and why."""

    partition: int
    gap: Gap


class LostGroup(NamedTuple):
    """A group whose state in a partition could not be brought back, and why."""

    partition: int
    group: str
    problem: str


@dataclass(frozen=True, slots=True)
class Restored:
    """What was brought back of a topic."""

    topic: str
    partitions: int
    records: int
    end_offsets: tuple[int, ...]
    losses: tuple[Loss, ...] = ()
    lost_groups: tuple[LostGroup, ...] = ()
    schema_problem: str = ""
    """Why a typed topic has no columns here, although it had."""


def restore(objects: Objects, boot: Boot, names: list[str] | None = None) -> list[Restored]:
    """Restores some topics of an archive (all of them) into a data directory.

    What the archive does not return is entered as lost and named in `losses`; all else is
    restored. Raises InvalidRequest for a topic that is not archived, TopicExists for one that is
    in the directory.
    """
    archived = archived_topics(objects)
    behind = WalView(Ground(boot.files, boot.data, boot.now_ms))
    there = boot.catalog.peek(behind.lost_topics)
    for name in names or archived:
        if name not in archived:
            known = ", ".join(sorted(archived)) or "none"
            raise InvalidRequest(f"{objects.url} has no topic {name!r}; it has: {known}")
        if name in there:
            problem = f"topic {name!r} exists in {boot.data}; restore elsewhere"
            raise TopicExists(problem, topic=name)
    boot.files.make_directory(boot.path(paths.META))
    boot.identify()
    cache = BlockCache()
    wanted = [archived[name] for name in names or archived]
    behind_wal = [about for about in wanted if about.format == "wal"]
    try:
        brought = restore_wal(objects, boot, behind_wal, cache) if behind_wal else []
        done = {each.about.name: _finish_wal(objects, boot, each) for each in brought}
        for about in wanted:
            if about.name not in done:
                done[about.name] = _restore_topic(objects, boot, about, cache)
        return [done[about.name] for about in wanted]
    finally:
        cache.close()


def _finish_wal(objects: Objects, boot: Boot, brought: Brought) -> Restored:
    about = brought.about
    groups: list[LostGroup] = []
    for number in range(about.partitions):
        groups += _restore_groups(objects, boot, about, number)
    problem = _restore_schemas(objects, boot, about)
    boot.catalog.finish_restoring(about)
    losses = tuple(Loss(number, gap) for number, gap in brought.losses)
    counts = about.partitions, brought.records, brought.end_offsets
    return Restored(about.name, *counts, losses, tuple(groups), problem)


def _restore_topic(objects: Objects, boot: Boot, about: TopicFile, cache: BlockCache) -> Restored:
    boot.catalog.begin_restoring(about)
    records, ends, losses = 0, [], []
    groups: list[LostGroup] = []
    for number in range(about.partitions):
        reader = ArchivedPartition(objects, about, number, cache)
        reader.refresh()
        place = boot.place(about.name, number)
        place.files.make_directory(place.segments)
        restoring = _Restoring(place, CODECS[about.format], reader)
        records += restoring.run()
        losses += [Loss(number, gap) for gap in restoring.losses]
        ends.append(reader.end_offset())
        groups += _restore_groups(objects, boot, about, number)
    problem = _restore_schemas(objects, boot, about)
    boot.catalog.finish_restoring(about)
    counts = about.partitions, records, tuple(ends)
    return Restored(about.name, *counts, tuple(losses), tuple(groups), problem)


def _restore_schemas(objects: Objects, boot: Boot, about: TopicFile) -> str:
    """Gives a typed topic its schemas back; returns what is wrong with them, if anything is.

    Whatever the copy holds is brought back: what is damaged is named by every typed call, where
    nothing at all would pass for a topic that never had columns.
    """
    raw, problem = archived_schemas(objects, about), ""
    if raw is None:
        return ""
    try:
        if not topic_schemas.decode(raw).is_of(about):
            return ""  # a copy of an older topic of this name, which says nothing of this one
    except CorruptData as error:
        mended = one_flip_away(bytes(raw), topic_schemas.decode)
        problem = str(error) if mended is None else ""
        raw = raw if mended is None else topic_schemas.encode(mended)
    path = paths.join(boot.catalog.directory(about.name), paths.TOPIC_SCHEMAS)
    boot.files.replace(path, raw)
    return problem


def _restore_groups(
    objects: Objects, boot: Boot, about: TopicFile, partition: int
) -> Iterator[LostGroup]:
    """Restores the groups of a partition; yields those whose copies are of no use.

    A group's state counts as far as its records were archived when it was copied: those are the
    same records again, here and wherever else this archive was restored.
    """
    prefix = f"{paths.archive_partition(about.name, partition)}/{paths.ARCHIVE_STATE}"
    keys = [info.key for info in objects.list(prefix)]
    spares, done = ArchiveSpares(objects), set()
    classic = copied(replace(boot, spares=spares), about, partition)
    bring_back(boot, classic.entries)
    if classic.problem:
        yield LostGroup(partition, paths.base_name(paths.COMMITTED_OFFSETS), classic.problem)
    for _, _, group in filter(None, map(paths.archived_group, keys)):
        copy, problem = spares.group(about.name, partition, group)
        if copy is None or not is_of(copy, about, partition, group):
            yield LostGroup(partition, group, problem or "it is of another topic of this name")
            continue
        state = not_below(state_of(copy).clamped(copy.archived_until), about, 0)
        Journal.create(Names(boot.place(about.name, partition), group), state).close()
        done.add(group)
    for _, _, name in filter(None, map(paths.archived_state, keys)):  # of an earlier release
        file = paths.group_file(name)
        if file is not None and file.group not in done:
            boot.files.make_directory(boot.path(paths.GROUPS))
            key = paths.archive_state(about.name, partition, name)
            boot.files.replace(boot.path(f"{paths.GROUPS}/{name}"), objects.read(key).data)


@dataclass(slots=True)
class _Restoring:
    """One partition on its way back."""

    place: Place
    codec: Codec
    reader: ArchivedPartition
    segment_bytes: int = 64 << 20
    losses: list[Gap] = field(default_factory=list)

    def run(self) -> int:
        """Writes all records as segments, and the ledger; returns how many there were."""
        count, segment, expected = 0, None, 0
        gaps = Ledger(self.reader.ledger.missing())
        for batch in self._batches():
            first = int(batch.column("offset")[0].as_py())
            gaps = self._explained(gaps, expected, first)
            if segment is not None and (
                first > expected or segment.tail.position >= self.segment_bytes
            ):
                _seal(segment)
                segment = None
            if segment is None:
                segment = self._begin(first)
            self._append(segment, batch, first)
            expected = first + batch.num_rows
            count += batch.num_rows
        end = self.reader.end_offset()
        gaps = self._explained(gaps, expected, end)
        if segment is not None:
            _seal(segment)
        if segment is None or end > expected:
            _seal(self._begin(end))
        path = paths.join(self.place.directory, paths.LEDGER)
        self.place.files.replace(path, ledger_file.encode(gaps))
        return count

    def _explained(self, gaps: Ledger, first: int, end: int) -> Ledger:
        """Enters what is lost, and the rest of an unexplained hole as deleted."""
        return explained(gaps, self.losses, (first, end), self.place.now_ms())

    def _begin(self, base_offset: int) -> ActiveSegment:
        return ActiveSegment.create(
            *(self.codec, self.place.files, self.place.segments),
            base_offset=base_offset,
            created_ms=self.place.now_ms(),
        )

    def _append(self, segment: ActiveSegment, batch: pa.RecordBatch, first: int) -> None:
        given = batch.select(INPUT_SCHEMAS[self.codec.name].names)
        data, positions = self.codec.encode(given, first)
        times = batch.column("timestamp").view(pa.int64()).to_numpy()
        segment.append(data, positions, times)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yields runs of records without a hole, over what is missing.

        From the first offset on: what is gone in front of everything was removed only if the
        ledger says so, else it is lost.
        """
        start, end = 0, self.reader.end_offset()
        for step in scan_over(lambda at: self.reader.scan(at, BATCH), start, end):
            if isinstance(step, RecordsMissing):
                self.losses += lost(step, start, self.place.now_ms())
                start = step.end
            else:
                start = after(step)
                yield from runs(step)


def _seal(segment: ActiveSegment) -> None:
    segment.written = segment.tail
    segment.sync()  # the topic's document, which makes it exist, is written behind this
    segment.finish()
