"""`compact`: small objects of the archive become objects of 64 to 256 MB.

With `keep_last`, of all archived records of a key only the last stays, and those without a key;
offsets stay as they are, and the others are entered as compacted. Only what the local disk holds no
more is thinned out, so that one offset is never read here and missing there.

What was replaced belongs to nothing from then on. It stays for an hour, because readers may have
the older list; the next run after that removes it, as `lamina tier orphans --execute` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from lamina.archive.archiver import Archiver
from lamina.archive.join import OBJECT_BYTES_MIN
from lamina.archive.object_list import Shelf
from lamina.archive.open_archive import Archive
from lamina.archive.tier import policy_of
from lamina.errors import CorruptData, InvalidRequest, ObjectMissing
from lamina.formats.documents.archive_manifest import ArchivedObject, covers
from lamina.formats.documents.ledger import Ledger
from lamina.log.sealed import Archivable
from lamina.spark.jobs import bulk_lane, held_store, object_rewrite
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.credentials import Access
from lamina.spark.jobs.job import Progress, Silent, Summary
from lamina.spark.jobs.object_rewrite import Group, Rewriting, Rewritten, Stays
from lamina.store import orphans
from lamina.store.store import Store
from lamina.wal.wal_partition import WalPartition

KEYS_BYTES = 64 << 20
"""How many bytes of keys are gathered before those that are not the last are dropped."""


def run(  # noqa: PLR0913 - a job's choices, each by its name
    spark: SparkSession,
    target: Store | str,
    archive: Archive = None,
    *,
    topics: list[str] | None = None,
    keep_last: bool = False,
    clean_age_ms: int = orphans.AGE_MS_MIN,
    dry_run: bool = False,
    progress: Progress = Silent(),
) -> Summary:
    """Joins small objects of some topics or of all; with `keep_last`, thins them out by key.

    `target` is a store that this process has open, or a directory that nobody has.
    """
    with held_store.held(target, archive) as store, ExitStack() as stack:
        partitions = held_store.archived(store, topics)
        if keep_last:
            _require_keys(partitions)
        assert store.tier is not None, "partitions are archived somewhere"
        hold = store.tier.hold
        held = [(each, stack.enter_context(hold(each, claim=not dry_run))) for each in partitions]
        plans = [_plan(*each, keep_last=keep_last) for each in held]
        rows = [_row(partition, plan) for (partition, _), plan in zip(held, plans, strict=True)]
        if dry_run:
            progress.expect(sum(each.size_bytes for plan in plans for each in plan), "bytes")
            return Summary("compact", True, rows, _totals(rows))
        access = Access.of(store.tier.objects)
        works = _works(spark, access, plans, progress, keep_last=keep_last)
        found = [each for plan in plans for each in plan]
        made = bulk_lane.run(spark, [[each] for each in found], works, progress)
        start = 0
        for (partition, archiver), plan, row in zip(held, plans, rows, strict=True):
            mine = list(zip((each.what for each in plan), made[start:], strict=False))
            start += len(plan)
            object_rewrite.commit(store, partition, archiver.shelf, mine, "compacted")
            _note(row, mine)
        removed = _clean(store, partitions, clean_age_ms)
        totals = _totals(rows) | {"orphans_removed": removed}
        return Summary("compact", False, rows, totals, has_failed=any(r["problem"] for r in rows))


def _require_keys(partitions: Sequence[Archivable]) -> None:
    """Refuses to thin out by key what has none."""
    keyless = sorted({each.place.topic for each in partitions if isinstance(each, WalPartition)})
    if keyless:
        raise InvalidRequest(
            f"{', '.join(keyless)}: records of format wal have no key, so none is the last of one;"
            " name other topics by --topic, or delete by tag with `Store.delete`"
        )


def _clean(store: Store, partitions: Sequence[Archivable], age_ms: int) -> int:
    """Removes what earlier runs have replaced, long enough ago."""
    assert store.tier is not None, "the archive is held"
    objects = store.tier.objects
    topics = {each.place.topic for each in partitions}
    found = [
        info
        for info in orphans.orphans(
            objects, partitions[0].place.now_ms() if partitions else 0, age_ms
        )
        if any(info.key.startswith(f"data/{topic}/") for topic in topics)
    ]
    orphans.clean(objects, found)
    return len(found)


def _row(partition: Archivable, plan: list[Descriptor[Group]]) -> dict[str, object]:
    return {
        "topic": partition.place.topic,
        "partition": partition.place.partition,
        "objects_in": sum(len(each.what.entries) for each in plan),
        "objects_out": len(plan),
        "bytes_in": sum(each.size_bytes for each in plan),
        "bytes_out": 0,
        "records_removed": 0,
        "problem": None,
    }


def _note(row: dict[str, object], made: Sequence[tuple[Group, Rewritten]]) -> None:
    entries = [each.entry for _, each in made if each.entry is not None]
    row["objects_out"] = len(entries)
    row["bytes_out"] = sum(entry.size_bytes for entry in entries)
    row["records_removed"] = sum(each.records for _, each in made)
    row["problem"] = next((each.problem for _, each in made if each.problem), None)


def _totals(rows: list[dict[str, object]]) -> dict[str, object]:
    names = ("objects_in", "objects_out", "bytes_in", "bytes_out", "records_removed")
    return {name: sum(int(str(row[name])) for row in rows) for name in names}


# ---------------------------------------------------------------- planning


def _plan(partition: Archivable, archiver: Archiver, *, keep_last: bool) -> list[Descriptor[Group]]:
    policy, shelf = policy_of(partition.settings), archiver.shelf
    entries = shelf.manifest.objects
    if keep_last:
        local = partition.local_start
        entries = tuple(entry for entry in entries if entry.next_offset <= local)
    small = min(OBJECT_BYTES_MIN, policy.target_bytes)
    groups = [
        group
        for group in neighbours(entries, partition.published, policy.target_bytes)
        if keep_last or (len(group) > 1 and any(each.size_bytes < small for each in group))
    ]
    return object_rewrite.described(shelf, groups, partition, partition.place.now_ms())


def neighbours(
    entries: Sequence[ArchivedObject], gaps: Ledger, target_bytes: int
) -> Iterator[list[ArchivedObject]]:
    """Yields objects that follow each other, as many as make up one of a good size.

    Across offsets that nothing explains nothing is joined: the hole would not be seen any more.
    """
    group: list[ArchivedObject] = []
    size = 0
    for entry in entries:
        joins = group and covers((), gaps, group[-1].next_offset, entry.base_offset)
        if group and (not joins or size + entry.size_bytes > target_bytes):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size_bytes
    if group:
        yield group


# ---------------------------------------------------------------- the last of each key


@dataclass(frozen=True, slots=True)
class _Thinning:
    """Rewrites each group with the offsets that stay in it, or all of them."""

    access: Access
    kept: dict[tuple[str, int], NDArray[np.int64]]

    def __call__(self, each: Descriptor[Group]) -> Rewritten:
        group = each.what
        kept = self.kept.get((group.about.name, group.partition))
        if kept is None:
            return Rewriting(self.access)(each)
        first, end = group.entries[0].base_offset, group.entries[-1].next_offset
        mine = kept[slice(*np.searchsorted(kept, (first, end)))]
        return Rewriting(self.access, Stays(mine), always=len(group.entries) > 1)(each)


def _works(
    spark: SparkSession,
    access: Access,
    plans: list[list[Descriptor[Group]]],
    progress: Progress,
    *,
    keep_last: bool,
) -> _Thinning:
    """Looks first which record of each key is the last, one task a partition."""
    if not keep_last:
        return _Thinning(access, {})

    def look(each: Descriptor[list[Group]]) -> NDArray[np.int64]:
        return last_offsets(access, each.what)

    found = [
        Descriptor(
            plan[0].path,
            plan[0].identity,
            0,
            sum(each.size_bytes for each in plan),
            [each.what for each in plan],
        )
        for plan in plans
        if plan
    ]
    kept = bulk_lane.run(spark, [[each] for each in found], look, progress)
    names = [(each.what[0].about.name, each.what[0].partition) for each in found]
    return _Thinning(access, dict(zip(names, kept, strict=True)))


def last_offsets(access: Access, groups: Sequence[Group]) -> NDArray[np.int64]:
    """Returns the offset of the last record of every key, sorted; memory grows with the keys.

    What cannot be read has no say: the group's own task will name it, and leave it as it is.
    """
    last = pa.table({"key": pa.array([], pa.binary()), "offset": pa.array([], pa.int64())})
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in _readable(access, groups):
        part = batch.select(["key", "offset"])
        part = part.filter(part.column("key").is_valid())
        waiting.append(part)
        waiting_bytes += part.nbytes
        if waiting_bytes > max(KEYS_BYTES, last.nbytes):
            last, waiting, waiting_bytes = _last(last, waiting), [], 0
    offsets: NDArray[np.int64] = np.sort(_last(last, waiting).column("offset").to_numpy())
    return offsets


def _last(last: pa.Table, waiting: list[pa.RecordBatch]) -> pa.Table:
    parts = [last, *(pa.Table.from_batches([each]).cast(last.schema) for each in waiting)]
    grouped = (
        pa.concat_tables(parts).group_by("key", use_threads=False).aggregate([("offset", "max")])
    )
    return grouped.rename_columns({"offset_max": "offset"}).select(["key", "offset"])


def _readable(access: Access, groups: Sequence[Group]) -> Iterator[pa.RecordBatch]:
    objects = access.open()
    for group in groups:
        shelf = Shelf(objects, group.about, group.partition)
        for entry in group.entries:
            with contextlib.suppress(CorruptData, ObjectMissing):
                yield from object_rewrite.batches_of(shelf, [entry])
