"""A partition's place in the object store: its list of objects, read, taken over and replaced.

    claim ──▶ commit ──▶ commit ──▶ …      until another store claims it: then Fenced, for good
    exchange: neighbours for the one they were joined into, by whoever joined them

Rules.
1. The list is replaced only on the condition that it is the one that was read. After a lost race
   the list is read again: what we wanted to write is there (our answer was lost), or another store
   is named in it (we are fenced), or objects were exchanged and the change is made to that list.
2. A list that is missing or damaged is made again from the objects' headers; nothing is deleted
   because a list forgot it, and damaged objects stay listed: they may hold the only copy.
3. Only a list of the same topic is taken over: the name alone is not enough, nor is an archive that
   holds more than the log, which then is not the log it came from.
4. No list is written to an object store that was proved unfit (`proof`): there two could win.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lamina.api import Gap
from lamina.archive.judge import Judge, listing_of
from lamina.archive.object_reader import BlockCache, ColdLog
from lamina.archive.proof import refuse_unfit
from lamina.errors import (
    CorruptData,
    Fenced,
    InvalidRequest,
    NewerFormat,
    ObjectConflict,
    ObjectMissing,
)
from lamina.formats.documents import archive_manifest as archive
from lamina.formats.documents import ledger
from lamina.formats.documents.archive_manifest import ArchivedObject, Manifest
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.log.layers import key_of
from lamina.records import OUTPUT_SCHEMAS
from lamina.storage import paths
from lamina.storage.objects import ObjectInfo, Objects

COMMIT_TRIES = 3


@dataclass(slots=True)
class Shelf:
    """One partition's archive; `writer` names the store that uses it, empty for readers.

    `epoch` is that of the lease under which a cluster's broker writes; 0 without a cluster.
    """

    objects: Objects
    about: TopicFile
    partition: int
    writer: str = ""
    epoch: int = 0
    manifest: Manifest = field(init=False)
    _etag: str | None = None
    _is_guessed: bool = False
    _ledger_etag: str | None = None
    _is_ledger_damaged: bool = False
    _is_fit: bool = False
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What was wrong with objects when the list was last made again, by key."""

    def __post_init__(self) -> None:
        self.manifest = self._empty()

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.objects.url}/{paths.archive_partition(self.about.name, self.partition)}"

    def key_of(self, entry: ArchivedObject) -> str:
        """Returns the key of a listed object."""
        return key_of(self.about.name, self.partition, entry)

    def next_generation(self) -> int:
        """Returns a generation that no object of the partition has, listed or not."""
        prefix = paths.archive_partition(self.about.name, self.partition)
        keys = [paths.object_key(info.key) for info in self.objects.list(prefix)]
        return max([key.generation for key in keys if key is not None], default=0) + 1

    def _empty(self) -> Manifest:
        about = self.about
        return Manifest(about.name, self.partition, about.epoch, about.created_ms)

    # ------------------------------------------------------------------ reading

    def load(self) -> Manifest:
        """Reads the list; without a good one, makes it from the headers (in memory)."""
        try:
            stored = self.objects.read(paths.archive_manifest(self.about.name, self.partition))
        except ObjectMissing:
            self._etag, self._is_guessed = None, True
            self.manifest = self.rebuilt()
            return self.manifest
        self._etag, self._is_guessed = stored.etag, False
        try:
            found = archive.decode(stored.data)
        except NewerFormat as error:
            raise self._named(error, paths.archive_manifest) from error
        except CorruptData:
            found, self._is_guessed = self.rebuilt(), True
        self._check_same_topic(found)
        self.manifest = found
        return found

    def _named(self, error: NewerFormat, key: Callable[[str, int], str]) -> NewerFormat:
        return error.at_path(f"{self.objects.url}/{key(self.about.name, self.partition)}")

    def _check_same_topic(self, found: Manifest) -> None:
        ours = self.about.name, self.partition, self.about.epoch, self.about.created_ms
        theirs = found.topic, found.partition, found.topic_epoch, found.topic_created_ms
        if ours != theirs and UNKNOWN_MS not in (self.about.created_ms, found.topic_created_ms):
            raise InvalidRequest(
                f"{self.name} holds another topic of this name (epoch {found.topic_epoch}, created"
                f" {found.topic_created_ms}); if that one was deleted,"
                " `lamina tier orphans --execute` removes its archive; otherwise restore it, or use"
                " another prefix"
            )

    def rebuilt(self, known: archive.Objects = ()) -> Manifest:
        """Makes the list from the objects alone, leaving out what was removed.

        Where objects overlap those count that span the most, of equal ones the last written.
        Damaged ones are listed as far as they are known, from `known` or from what is left of them;
        `problems` has what is wrong with each.
        """
        removed = self.read_ledger()
        judge = self.judge(known)
        there = self.listed()
        judged = [each for info in there if (each := judge.judge(info)) is not None]
        judged += judge.gone(there)
        self.problems = [(each.info.key, each.problem) for each in judged if each.problem]
        kept = listing_of(
            each
            for each in judged
            if each.entry is None
            or not removed.has_removed(each.entry.base_offset, each.entry.next_offset)
        )
        end_offset = kept[-1].next_offset if kept else 0
        return dataclasses.replace(self._empty(), end_offset=end_offset, objects=kept)

    def judge(self, known: archive.Objects = ()) -> Judge:
        """Makes the judge of this partition's objects."""
        by_key = {self.key_of(entry): entry for entry in known}
        return Judge(self.objects, self.about.name, self.partition, by_key)

    def listed(self) -> list[ObjectInfo]:
        """Lists the partition's segments in the store by offset, whether archived or orphans."""
        prefix = paths.archive_partition(self.about.name, self.partition)
        found = [(paths.object_key(info.key), info) for info in self.objects.list(prefix)]
        return [info for key, info in sorted(_ours(found), key=lambda pair: pair[0].base_offset)]

    def entry_from_headers(self, info: ObjectInfo) -> ArchivedObject | None:
        """Returns the entry of a sound object of this partition, None for any other."""
        judged = self.judge().judge(info)
        return judged.entry if judged is not None and not judged.problem else None

    def read_ledger(self) -> Ledger:
        """Reads the archived copy of the partition's ledger; empty without a good one."""
        try:
            stored = self.objects.read(paths.archive_ledger(self.about.name, self.partition))
        except ObjectMissing:
            self._ledger_etag, self._is_ledger_damaged = None, False
            return Ledger()
        self._ledger_etag, self._is_ledger_damaged = stored.etag, False
        try:
            return ledger.decode(stored.data)
        except NewerFormat as error:
            raise self._named(error, paths.archive_ledger) from error
        except CorruptData:
            self._is_ledger_damaged = True
            return Ledger()

    # ------------------------------------------------------------------ writing

    def claim(self, local_end: int, gaps: Ledger) -> None:
        """Takes the archive over: from now on only this store adds to it.

        `local_end` is the end of the log: an archive that holds more is not this log's. `gaps` is
        what the log has handed over. Of a list that had to be made again only that is believed; the
        rest is compared with the log's own records when it is archived again.
        """
        for _ in range(COMMIT_TRIES):
            found = self.load()
            if self._is_guessed:
                found = _handed_over(found, gaps)
            if found.end_offset > local_end:
                raise InvalidRequest(
                    f"{self.name} holds offsets up to {found.end_offset}, the log only up to"
                    f" {local_end}: this is not the log it came from; restore the topic instead"
                )
            epoch = found.fencing_epoch + 1
            is_sure = self.about.created_ms != UNKNOWN_MS
            claimed = dataclasses.replace(
                found,
                topic_epoch=self.about.epoch if is_sure else found.topic_epoch,
                topic_created_ms=self.about.created_ms if is_sure else found.topic_created_ms,
                fencing_epoch=epoch,
                writer=self.writer,
            )
            try:
                self._put(claimed)
            except ObjectConflict:
                continue
            return
        raise Fenced(f"{self.name}: other stores are taking it over at the same time")

    def commit(self, change: Callable[[Manifest], Manifest]) -> None:
        """Changes the list; raises Fenced if another store has taken the archive over.

        `change` is made again to a list in which objects were exchanged meanwhile.
        """
        for _ in range(COMMIT_TRIES):
            wanted = change(self.manifest)
            try:
                self._put(wanted)
            except ObjectConflict:
                found = self.load()
                if found == wanted:
                    return
                if (found.writer, found.fencing_epoch) != (self.writer, wanted.fencing_epoch):
                    raise Fenced(
                        f"{self.name} was taken over by another store"
                        f" (epoch {found.fencing_epoch}); this one archives no more"
                    ) from None
                continue
            return
        raise ObjectConflict(f"{self.name}: the list changes while it is replaced")

    def exchange(self, old: archive.Objects, new: archive.Objects) -> None:
        """Lists objects in place of neighbours that held the same records, or more of them.

        For the store that owns the archive, and for a job that only rewrites it: the owner stays
        the same. Each sees the other's change and applies its own to that. Raises
        ObjectConflict if the list does not name the old ones any more; nothing was changed then.
        """
        for _ in range(COMMIT_TRIES):
            if not self.writer:
                self.load()
            before = self.manifest
            wanted = before.exchanged(old, new)
            if wanted is None:
                break
            try:
                if wanted != before:
                    self._put(wanted)
            except ObjectConflict:
                found = self.load()
                if self.writer and found.fencing_epoch != before.fencing_epoch:
                    raise Fenced(f"{self.name} was taken over by another store") from None
                continue
            return
        raise ObjectConflict(f"{self.name}: the list names the replaced objects no more")

    def _put(self, wanted: Manifest) -> None:
        if not self._is_fit:
            refuse_unfit(self.objects)
            self._is_fit = True
        key = paths.archive_manifest(self.about.name, self.partition)
        self._etag = self.objects.replace(key, archive.encode(wanted), self._etag)
        self.manifest = wanted

    def replace_by_rebuilt(self) -> None:
        """Replaces the list, good or bad, by one made from the headers; fences whoever has it."""
        before = self._empty()
        try:
            stored = self.objects.read(paths.archive_manifest(self.about.name, self.partition))
            self._etag = stored.etag
            before = archive.decode(stored.data)
        except NewerFormat as error:
            raise self._named(error, paths.archive_manifest) from error
        except (ObjectMissing, CorruptData):
            pass
        found = self.rebuilt(before.objects)
        end_offset = max(found.end_offset, before.end_offset)
        epoch = before.fencing_epoch + 1
        self._put(
            dataclasses.replace(
                before, objects=found.objects, end_offset=end_offset, fencing_epoch=epoch, writer=""
            )
        )

    def save_ledger(self, gaps: Ledger) -> None:
        """Replaces the archived copy of the ledger, if it differs or is not sound."""
        if self.read_ledger() != gaps or self._is_ledger_damaged:
            key = paths.archive_ledger(self.about.name, self.partition)
            self._ledger_etag = self.objects.replace(key, ledger.encode(gaps), self._ledger_etag)


def _handed_over(found: Manifest, gaps: Ledger) -> Manifest:
    """Keeps the objects that hold records which a log has no more because of them."""
    kept = tuple(
        entry
        for entry in found.objects
        if any(
            gap.reason == ledger.ARCHIVED
            for gap in gaps.between(entry.base_offset, entry.next_offset)
        )
    )
    return dataclasses.replace(found, objects=kept, end_offset=kept[-1].next_offset if kept else 0)


def lacking(held: archive.Objects, gaps: Ledger, published: Ledger) -> Iterator[tuple[int, int]]:
    """Yields ranges that a log has handed over and that no object spans, removed ones left out."""
    spans = Ledger(
        tuple(Gap(entry.base_offset, entry.next_offset, ledger.ARCHIVED, 0) for entry in held)
    )
    known = spans.with_gaps(published.missing())
    for gap in gaps.archived():
        start = gap.first
        for found in known.between(gap.first, gap.end):
            if start < found.first:
                yield start, found.first
            start = found.end
        if start < gap.end:
            yield start, gap.end


def cold_log(objects: Objects, about: TopicFile, partition: int, cache: BlockCache) -> ColdLog:
    """Makes the archived part of a partition readable; its list is read when it is first needed."""
    shelf = Shelf(objects, about, partition)
    schema = OUTPUT_SCHEMAS[about.format]
    return ColdLog(
        *(objects, about.name, partition, schema, cache), ask=lambda: shelf.load().objects
    )


def _ours(
    found: list[tuple[paths.ObjectKey | None, ObjectInfo]],
) -> Iterator[tuple[paths.ObjectKey, ObjectInfo]]:
    for key, info in found:
        if key is not None:
            yield key, info
