"""`archive`: sealed segments become STRM objects, each made by one task, listed by one commit.

    plan: what is sealed and not archived, in spans of 64 to 256 MB when compressed
    task: read, encode, decode again, create, read back     (the archiver's own steps), for one
          object or, where objects are small, for some neighbours
    driver: one new list for each partition, when every object of it is there

Rules.
1. The partition's archive is held from plan to commit: no other job or tick lists anything between.
2. Where objects begin and end is planned before, so that a run after a crash makes the same ones
   and takes over those that are there.
3. Only sealed records are archived; producers append meanwhile as they like.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from lamina.archive.archiver import Archiver
from lamina.archive.encode import Naming, encode_object
from lamina.archive.join import OBJECT_BYTES_MIN, Policy
from lamina.archive.object_list import Shelf
from lamina.archive.open_archive import Archive
from lamina.archive.tier import policy_of
from lamina.errors import Fenced
from lamina.formats.documents.archive_manifest import ArchivedObject, Manifest
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.strm.layout import Compression
from lamina.log.gap_walk import records_over
from lamina.log.layers import Kind, Known, Layer
from lamina.log.sealed import Archivable
from lamina.spark.jobs import bulk_lane, held_store
from lamina.spark.jobs.bulk_lane import Descriptor
from lamina.spark.jobs.credentials import Access
from lamina.spark.jobs.job import Progress, Silent, Summary
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store

BATCH_RECORDS, BATCH_BYTES = 1 << 18, 4 << 20
SAMPLE_BYTES = 4 << 20
TASKS_PER_CORE = 2
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a sealed range that become one object, and what the worker has to know."""

    about: TopicFile
    partition: int
    first: int
    end: int
    sealed_end: int
    writer: str
    epoch: int
    compression: Compression
    created_ms: int


def run(
    spark: SparkSession,
    target: Store | str,
    archive: Archive = None,
    *,
    topics: list[str] | None = None,
    dry_run: bool = False,
    progress: Progress = Silent(),
) -> Summary:
    """Archives everything that is sealed and not archived yet, of some topics or of all.

    `target` is a store that this process has open, or a directory that nobody has.
    """
    with held_store.held(target, archive) as store, ExitStack() as stack:
        partitions = held_store.archived(store, topics)
        assert store.tier is not None, "partitions are archived somewhere"
        held = [
            (each, stack.enter_context(store.tier.hold(each, claim=not dry_run)))
            for each in partitions
        ]
        plans = [_plan(spark, partition, archiver) for partition, archiver in held]
        found = [each for plan in plans for each in plan]
        if dry_run:
            progress.expect(sum(each.size_bytes for each in found), "bytes")
            made: list[ArchivedObject | None] = [None] * len(found)
        else:
            work = Uploading(store.path, Access.of(store.tier.objects))
            size_bytes = sum(each.size_bytes for each in found)
            task_bytes = bulk_lane.task_bytes_for(spark, size_bytes, tasks_per_core=TASKS_PER_CORE)
            made = bulk_lane.run(spark, bulk_lane.pack(found, task_bytes), work, progress)
        rows, start = [], 0
        for (partition, archiver), plan in zip(held, plans, strict=True):
            entries = [each for each in made[start : start + len(plan)] if each is not None]
            start += len(plan)
            if plan and not dry_run:
                _commit(store, partition, archiver, entries, plan[-1].what.end)
            rows.append(_row(partition, plan, entries))
        return Summary("archive", dry_run, rows, _totals(rows))


def _commit(
    store: Store,
    partition: Archivable,
    archiver: Archiver,
    entries: list[ArchivedObject],
    end_offset: int,
) -> None:
    """Lists all new objects of a partition at once: from here on they are archived."""
    archiver.shelf.commit(
        lambda now: replace(now, objects=(*now.objects, *entries), end_offset=end_offset)
    )
    assert store.tier is not None, "the archive is held"
    store.tier.metadata.save(archiver.shelf, partition.published)


def _row(
    partition: Archivable, plan: list[Descriptor[Span]], entries: list[ArchivedObject]
) -> dict[str, object]:
    return {
        "topic": partition.place.topic,
        "partition": partition.place.partition,
        "first": plan[0].what.first if plan else None,
        "end": plan[-1].what.end if plan else None,
        "objects": len(entries) or len(plan),
        "records": sum(each.record_count for each in entries),
        "bytes_in": sum(each.size_bytes for each in plan),
        "bytes_out": sum(each.size_bytes for each in entries),
    }


def _totals(rows: list[dict[str, object]]) -> dict[str, object]:
    names = ("objects", "records", "bytes_in", "bytes_out")
    return {name: sum(int(str(row[name])) for row in rows) for name in names}


# ---------------------------------------------------------------- planning


def _plan(spark: SparkSession, partition: Archivable, archiver: Archiver) -> list[Descriptor[Span]]:
    """Cuts what waits to be archived into spans of about one object each."""
    pending = archiver.pending()
    if not pending:
        return []
    policy = policy_of(partition.settings)
    now_ms = partition.place.now_ms()
    start = max(archiver.shelf.manifest.end_offset, pending[0].base_offset)
    ratio = _ratio(archiver, start, pending[0], policy, now_ms)
    cores = spark.sparkContext.defaultParallelism
    waiting_bytes = sum(each.size_bytes for each in pending)
    smallest = min(OBJECT_BYTES_MIN, policy.target_bytes)
    object_bytes = min(max(int(waiting_bytes * ratio) // cores, smallest), policy.target_bytes)
    shelf, sealed_end = archiver.shelf, pending[-1].next_offset
    return [
        Descriptor(
            f"{shelf.name}/{first}",
            partition.place.name,
            first,
            size_bytes,
            Span(
                shelf.about,
                partition.place.partition,
                first,
                end,
                sealed_end,
                shelf.writer,
                shelf.manifest.fencing_epoch,
                policy.compression,
                now_ms,
            ),
        )
        for first, end, size_bytes in spans(pending, start, max(1, int(object_bytes / ratio)))
    ]


def _ratio(archiver: Archiver, start: int, oldest: Layer, policy: Policy, now_ms: int) -> float:
    """Compresses the first few megabytes to see how large an object will be."""
    end = oldest.next_offset
    if start >= end:
        return 1.0
    naming = Naming(archiver.shelf.about.name, archiver.shelf.partition, now_ms)
    sample = encode_object(
        lambda offset: archiver.source.records(offset, end),
        (start, end),
        naming,
        policy.compression,
        target_bytes=min(SAMPLE_BYTES, policy.target_bytes),
    )
    if sample is None:
        return 1.0
    share = (sample.next_offset - start) / (oldest.next_offset - oldest.base_offset)
    return max(0.01, len(sample.data) / max(1.0, share * oldest.size_bytes))


def spans(layers: list[Layer], start: int, span_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yields (first, end, bytes) of spans of about so many bytes, without gap or overlap.

    Neighbours are joined while they fit; a layer that is larger alone is cut by its offsets.
    """
    first, size = start, 0
    for each in layers:
        if size and size + each.size_bytes > span_bytes:
            yield first, each.base_offset, size
            first, size = each.base_offset, 0
        parts = max(1, -(-each.size_bytes // span_bytes))
        step = max(1, -(-(each.next_offset - each.base_offset) // parts))
        while parts > 1 and first + step < each.next_offset:
            yield first, first + step, each.size_bytes // parts
            first += step
        size += each.size_bytes if parts == 1 else each.size_bytes // parts
    if layers and first < layers[-1].next_offset:
        yield first, layers[-1].next_offset, size


# ---------------------------------------------------------------- in the workers


@dataclass(frozen=True, slots=True)
class Uploading:
    """The work of a task: one span becomes one object, unlisted until the driver commits."""

    data: str
    access: Access

    def __call__(self, each: Descriptor[Span]) -> ArchivedObject | None:
        """Encodes, uploads and reads back; None for a span without records."""
        span = each.what
        source = _Sealed(self.data, span)
        naming = Naming(span.about.name, span.partition, span.created_ms)
        encoded = encode_object(
            lambda offset: source.records(offset, span.end),
            (span.first, span.end),
            naming,
            span.compression,
            target_bytes=UNLIMITED,
        )
        if encoded is None:
            return None
        shelf = Shelf(self.access.open(), span.about, span.partition, span.writer)
        require_claim(shelf.load(), span.writer, span.epoch, shelf.name)
        return Archiver(shelf, source).store_exactly(encoded)


def require_claim(found: Manifest, writer: str, epoch: int, name: str) -> None:
    """Stops a task whose driver does not have the archive any more."""
    if (found.writer, found.fencing_epoch) != (writer, epoch):
        raise Fenced(f"{name} was taken over by another store (epoch {found.fencing_epoch})")


@dataclass(frozen=True, slots=True)
class _Sealed:
    """The sealed part of a log, read from its directory by another process than its writer."""

    data: str
    span: Span

    def sealed(self) -> list[Layer]:
        """Returns what was sealed when the job was planned, as one layer."""
        return [Layer(Kind.SEALED, 0, self.span.sealed_end, 0, Known())]

    def records(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yields the records of some sealed offsets, over gaps, which the ledger explains.

        Raises RecordsMissing at what the device does not deliver just now.
        """
        scan = partial(
            _opened(self.data).scan,
            self.span.about.name,
            self.span.partition,
            end=end,
            max_records=BATCH_RECORDS,
            max_bytes=BATCH_BYTES,
        )
        return records_over(scan, start, end)

    def gone_from(self, offset: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more: those that have a reason."""
        return _opened(self.data).gone_from(self.span.about.name, self.span.partition, offset)


@lru_cache(maxsize=2)  # a worker does many tasks of one directory
def _opened(data: str) -> ReadOnlyStore:
    return ReadOnlyStore(data)
