"""`erase`: every record of some keys or tags leaves every tier, and a search shows that it has.

    hot       the active segment is sealed, then each segment with such records is rewritten
    wal       deleted by tag, copied into segments, those rewritten (in the cold directory, too),
              the WAL's files freed
    cold      each object with such records is rewritten, listed or not; the old one is deleted
    aside     files in `quarantine/` that hold such bytes are removed: they cannot be read anyway
    backups   copies of the directory that are named get the same, but for the archive: it is one

Then the raw bytes of all of that are searched; what is compressed also as it reads. The receipt
says what was looked at, how much went and what is left; the job has failed while anything is.

Records that are appended while it runs are not meant. Offsets of the others stay; the ledger says
`deleted`. Killed at any point, it is run again: what has gone is gone, the rest is found again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from pyspark.sql import SparkSession

from lamina.api import Gap
from lamina.archive import location
from lamina.archive.open_archive import Archive
from lamina.config import WalSettings
from lamina.errors import InvalidRequest
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import DELETED
from lamina.formats.ranges import Ranges
from lamina.log.interfaces import Deletion
from lamina.log.layers import sealed_of
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.spark.jobs import bulk_lane, held_store, object_rewrite
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.byte_search import Found, Searching
from lamina.spark.jobs.credentials import Access
from lamina.spark.jobs.job import Progress, Silent, Summary
from lamina.spark.jobs.object_rewrite import Group, Rewriting, Spares
from lamina.storage import machine, paths
from lamina.storage.files import LocalFiles
from lamina.storage.objects import Objects
from lamina.store import rewrite
from lamina.store.rewrite import Sealed, Staged
from lamina.store.store import Store
from lamina.wal import cold_recall
from lamina.wal import segment_rewrite as wal_erasing

TIERS = ("hot", "wal", "cold", "quarantine", "other")

_ADVICE = (
    "what remains is none of the records that were named: what a wal topic knows as a tag goes by"
    " --tag, what others know as a key by --key; name it as both"
)


@dataclass(slots=True)
class _Receipt:
    """What is known of each tier of one directory."""

    where: str
    erased: dict[str, int]
    searched: list[tuple[Descriptor[str], Found]]

    def rows(self) -> Iterator[dict[str, object]]:
        """A row for each tier that has anything in it."""
        for tier in TIERS:
            mine = [(each, found) for each, found in self.searched if each.what == tier]
            if mine or self.erased.get(tier):
                left = [each.path for each, found in mine if found.remains]
                yield {
                    "where": self.where,
                    "tier": tier,
                    "erased": self.erased.get(tier, 0),
                    "files": len(mine),
                    "bytes": sum(each.size_bytes for each, _ in mine),
                    "mentions": sum(found.mentions for _, found in mine),
                    "remains": sum(found.remains for _, found in mine),
                    "left_in": ", ".join(left[:3]) or None,
                }


def run(  # noqa: PLR0913 - what is erased and where, each by its name
    spark: SparkSession,
    target: Store | str,
    archive: Archive = None,
    *,
    keys: Sequence[bytes] = (),
    tags: Sequence[bytes] = (),
    topics: list[str] | None = None,
    backups: Sequence[str] = (),
    dry_run: bool = False,
    progress: Progress = Silent(),
) -> Summary:
    """Erases the records of some keys or tags from some topics or from all, and searches for them.

    `target` is a store that this process has open, or a directory that nobody has.
    """
    spares = Spares(tuple(keys), tuple(tags))
    if not (keys or tags) or not all([*keys, *tags]):
        raise InvalidRequest("say which records: keys or tags, none of them empty")
    receipts = []
    with held_store.held(target, archive) as store:
        held_store.check_known(store, topics)
        _require_archive(store, topics)
        receipts.append(_erase(spark, store, spares, topics, progress, dry_run=dry_run))
    for backup in backups:
        with held_store.held(backup, "") as store:  # a copy remembers the archive of the original
            receipts.append(_erase(spark, store, spares, topics, progress, dry_run=dry_run))
    rows = [row for receipt in receipts for row in receipt.rows()]
    remains = sum(int(str(row["remains"])) for row in rows)
    digest = hashlib.sha256(b"\0".join(sorted([*keys, *tags]))).hexdigest()
    totals = {
        "erased": sum(int(str(row["erased"])) for row in rows),
        "searched_bytes": sum(int(str(row["bytes"])) for row in rows),
        "remains": remains,
        "sha256": digest,
    }
    has_failed = remains > 0 and not dry_run
    return Summary("erase", dry_run, rows, totals, has_failed, _ADVICE if has_failed else "")


def _require_archive(store: Store, topics: list[str] | None) -> None:
    """Refuses to leave an archive out: objects would keep the bytes, and the receipt would lie."""
    if store.tier is None:
        found: list[Archivable] = [*store.segmented(topics), *store.wal_partitions(topics)]
        for each in found:
            if each.settings.is_archived or each.ledger.archived():
                raise InvalidRequest(
                    f"{each.place.topic} is archived; say where: --archive s3://bucket/prefix"
                )
        # What was archived once may have objects although all of it is local, too.
        known = location.remembered(LocalFiles(), store.path)
        if known is not None:
            raise InvalidRequest(
                f"{store.path} has an archive, which may hold such records: --archive {known}"
            )


def _erase(
    spark: SparkSession,
    store: Store,
    spares: Spares,
    topics: list[str] | None,
    progress: Progress,
    *,
    dry_run: bool,
) -> _Receipt:
    erased = {"hot": _hot(spark, store, spares, topics, progress, dry_run=dry_run)}
    erased["wal"] = _wal(store, spares, topics, dry_run=dry_run)
    objects = store.tier.objects if store.tier is not None else None
    if objects is not None:
        erased["cold"] = _cold(spark, store, spares, topics, progress, dry_run=dry_run)
    access = Access.of(objects) if objects is not None else None
    work = Searching(spares, access)
    meant = _Meant.of(store, topics)
    if not dry_run:
        erased["quarantine"] = _set_aside(store.path, meant, work)
    found = [*_files(store.path), *_cold_directory(store)]
    found += _objects(objects) if objects is not None else ()
    found = [each for each in found if meant.covers(each)]
    size = bulk_lane.task_bytes_for(spark, sum(each.size_bytes for each in found))
    searched = bulk_lane.run(spark, bulk_lane.pack(found, size), work, progress)
    return _Receipt(store.path, erased, list(zip(found, searched, strict=True)))


@dataclass(frozen=True, slots=True)
class _Meant:
    """Separates files that may hold records of the topics that are meant from those of others.

    What belongs to no topic is always searched.
    """

    topics: frozenset[str]
    has_wal: bool
    others: frozenset[str]
    """The directories of wal topics that are not meant."""

    @classmethod
    def of(cls, store: Store, topics: list[str] | None) -> _Meant:
        """Without topics all are meant."""
        names = frozenset(topics or ())
        others = frozenset(
            paths.wal_topic_directory(each.topic_id)
            for each in store.wal_partitions()
            if names and each.place.topic not in names
        )
        return cls(names, len(store.wal_partitions(topics)) > 0, others)

    def covers(self, each: Descriptor[str]) -> bool:
        """Returns whether a file or an object is searched."""
        if not self.topics:
            return True
        parts = each.identity.split("/")
        if parts[0] == paths.QUARANTINE and each.what == "quarantine":
            is_of_wal = len(parts) == _SHARED and parts[1] == paths.WAL
            parts = parts[2].split("-") if is_of_wal else [paths.TOPICS, *parts[1:]]
        elif parts[0] == paths.QUARANTINE:
            parts = parts[1:]  # in the archive: a copy of what the rest of its name says
        if parts[0] in (paths.TOPICS, paths.ARCHIVE) and len(parts) > 1:
            return parts[1] in self.topics
        if parts[0] in (paths.WAL, paths.SEGMENTS) and not self.has_wal:
            return False
        return not (parts[0] == paths.SEGMENTS and len(parts) > 1 and parts[1] in self.others)


_SHARED = 3
"""`quarantine/wal/<file>` is of wal topics; `quarantine/wal/0/<file>` of a topic of that name."""


# ---------------------------------------------------------------- segments


def _hot(
    spark: SparkSession,
    store: Store,
    spares: Spares,
    topics: list[str] | None,
    progress: Progress,
    *,
    dry_run: bool,
) -> int:
    staging = paths.join(store.path, paths.ERASING)
    partitions = store.segmented(topics)
    if not dry_run:
        machine.remove_tree(staging)  # of a run that was cut off
        for partition in partitions:
            partition.exclusively(partition.roll)
    found = [each for partition in partitions for each in _sealed(partition)]
    work = _Staging(spares, None if dry_run else staging)
    size = bulk_lane.task_bytes_for(spark, sum(each.size_bytes for each in found))
    staged = bulk_lane.run(spark, bulk_lane.pack(found, size), work, progress)
    if not dry_run:
        by_name = {each.place.name: each for each in partitions}
        for each, made in zip(found, staged, strict=True):
            if made is not None:
                _swap(by_name[each.identity], each.base, made)
        for partition in partitions:
            partition.exclusively(partition.save_manifest)
        machine.remove_tree(staging)
    return sum(len(each.gone) for each in staged if each is not None)


def _sealed(partition: Partition) -> list[Descriptor[Sealed]]:
    name = partition.codec.name
    return [
        Descriptor(
            each.where,
            partition.place.name,
            each.base_offset,
            each.size_bytes,
            Sealed(name, each.where, each.base_offset, each.next_offset, each.size_bytes),
        )
        for each in sealed_of(partition.layers())
    ]


def _swap(partition: Partition, base_offset: int, staged: Staged) -> None:
    """Puts what stays of a segment in its place, unless retention took it meanwhile."""
    now_ms = partition.place.now_ms()
    gone = Ranges.of_sequences(np.array(staged.gone, dtype=np.int64))
    gaps = [Gap(first, end, DELETED, now_ms) for first, end in gone.pairs()]

    def swap() -> None:
        if any(each.base_offset == base_offset for each in partition.layout.sealed):
            rewrite.swap(partition, base_offset, staged, gaps)

    partition.exclusively(swap)


@dataclass(frozen=True, slots=True)
class _Staging:
    """The work of a task: a copy of what stays of a segment."""

    spares: Spares
    directory: str | None

    def __call__(self, each: Descriptor[Sealed]) -> Staged | None:
        searching = Searching(self.spares, None)
        below = f"{each.identity}/{each.base:020}"
        directory = paths.join(self.directory, below) if self.directory is not None else None
        return rewrite.stage(
            each.what, directory, self.spares, lambda raw: len(searching.hits(raw)) > 0
        )


def _wal(store: Store, spares: Spares, topics: list[str] | None, *, dry_run: bool) -> int:
    """Deletes by tag, writes segments without what is deleted, and frees the WAL's files.

    Also what was deleted before by the same tag, and only hidden so far, goes.
    """
    if not spares.tags:
        return 0
    gone = 0
    partitions = store.wal_partitions(topics)
    for partition in partitions:
        if not dry_run:
            for tag in spares.tags:
                partition.exclusively(partial(partition.delete, Deletion(tag=tag)))
            partition.exclusively(partition.roll)
        erasing_it = partial(wal_erasing.erase, partition, spares, dry_run=dry_run)
        gone += partition.exclusively(erasing_it)
    if partitions and not dry_run:
        store.purge_wal()
    return gone


# ---------------------------------------------------------------- objects


def _cold(
    spark: SparkSession,
    store: Store,
    spares: Spares,
    topics: list[str] | None,
    progress: Progress,
    *,
    dry_run: bool,
) -> int:
    assert store.tier is not None, "objects are in an archive"
    tier, gone = store.tier, 0
    with ExitStack() as stack:
        partitions = [each for each in tier.holding() if not topics or each.place.topic in topics]
        for partition in partitions:
            shelf = stack.enter_context(tier.hold(partition, claim=not dry_run)).shelf
            listed = set(shelf.manifest.objects)
            others = [entry for info in shelf.listed() if (entry := shelf.entry_from_headers(info))]
            keys = {shelf.key_of(entry) for entry in listed}
            others = [entry for entry in others if shelf.key_of(entry) not in keys]
            groups: list[list[ArchivedObject]] = [
                [entry] for entry in (*shelf.manifest.objects, *others)
            ]
            found = object_rewrite.described(shelf, groups, partition, partition.place.now_ms())
            found = _numbered(found, listed)
            access = Access.of(tier.objects)
            work = Rewriting(access, spares, always=False, only_counts=dry_run)
            made = bulk_lane.run(spark, [[each] for each in found], work, progress)
            pairs = list(zip((each.what for each in found), made, strict=True))
            if dry_run:
                gone += sum(each.records for group, each in pairs if group.is_listed)
                continue
            old = object_rewrite.commit(store, partition, shelf, pairs, "deleted")
            object_rewrite.delete(tier.objects, shelf, old)
            gone += sum(each.records for group, each in pairs if group.is_listed)
    return gone


def _numbered(
    found: list[Descriptor[Group]], listed: set[ArchivedObject]
) -> list[Descriptor[Group]]:
    """Gives each object that nobody lists a generation of its own, and the listed ones the highest.

    Several may begin at one offset, when some were replaced and are not removed yet.
    """
    others = sum(each.what.entries[0] not in listed for each in found)
    numbered, number = [], 0
    for each in found:
        is_listed = each.what.entries[0] in listed
        generation = each.what.generation + (others if is_listed else number)
        number += not is_listed
        what = replace(each.what, is_listed=is_listed, generation=generation)
        numbered.append(replace(each, what=what))
    return numbered


# ---------------------------------------------------------------- searching


def _set_aside(data: str, meant: _Meant, work: Searching) -> int:
    """Removes what was set aside and holds such bytes, durably; returns how many files went."""
    files, going = LocalFiles(), []
    for each in _files(data):
        is_aside = each.what == "quarantine" and meant.covers(each)
        if is_aside and work(each).remains:
            files.remove(each.path)
            going.append(each.path)
    for folder in {paths.parent(path) for path in going}:
        files.sync_directory(folder)  # or power loss brings the bytes back behind the receipt
    return len(going)


def _files(data: str) -> Iterator[Descriptor[str]]:
    """Yields every file of a directory with its tier."""
    for path in machine.files_below(data):
        below = paths.relative(path, data)
        tier = _TIER_OF.get(below.split(paths.SEPARATOR)[0], "other")
        if machine.is_file(path) and below != paths.LOCK:
            yield Descriptor(path, below, 0, machine.size_of(path), tier)


_TIER_OF = {
    paths.TOPICS: "hot",
    paths.WAL: "wal",
    paths.SEGMENTS: "wal",
    paths.QUARANTINE: "quarantine",
}


def _cold_directory(store: Store) -> Iterator[Descriptor[str]]:
    """Yields the files of wal topics that lie elsewhere, where segments are moved to when old."""
    settings = WalSettings.from_environment(machine.ENVIRONMENT)
    named = cold_recall.recalled(LocalFiles(), store.path, settings, writes=False).cold_directory
    lying = {paths.parent(s.directory) for p in store.wal_partitions() for s in p.layout.segments}
    roots = {paths.absolute(root) for root in (*lying, named) if root}
    for root in sorted(roots - {paths.join(store.path, paths.SEGMENTS)}):
        for path in machine.files_below(root):
            below = paths.join(paths.SEGMENTS, paths.relative(path, root))
            yield Descriptor(path, below, 0, machine.size_of(path), "wal")


def _objects(objects: Objects) -> Iterator[Descriptor[str]]:
    for info in objects.list(""):
        yield Descriptor(info.key, info.key, 0, info.size_bytes, "cold")
