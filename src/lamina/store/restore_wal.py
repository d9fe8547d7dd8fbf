"""Brings archived wal topics back: through the write-ahead log, at the sequences they had.

    claim ids ──▶ append ──▶ segments ──▶ floors, gaps, deletes ──▶ (the caller) topic.json

The ids are new ones: those in the archive may be another topic's here. A restore that was cut off
has left ids that no topic has, and the next open removes what belongs to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from lamina.api import WRITTEN, Gap
from lamina.archive.object_reader import BlockCache
from lamina.config import TopicSettings, WriterSettings
from lamina.errors import RecordsMissing
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.scan import Limit
from lamina.log.appending import make_request
from lamina.log.batch_offsets import after, first_of, runs
from lamina.log.gap_walk import scan_over
from lamina.records import INPUT_SCHEMAS
from lamina.storage.objects import Objects
from lamina.store.archive_store import ArchivedTopic
from lamina.store.mounting import explained
from lamina.store.opening import Boot
from lamina.store.store import Store
from lamina.wal.engine import WalEngine
from lamina.wal.wal_partition import WalPartition

BATCH = Limit(max_records=1 << 16, max_bytes=1 << 20)
CHECKPOINT_BYTES = 64 << 20
_NEVER = 1 << 31


class Brought(NamedTuple):
    """A topic that is whole but for its `topic.json`."""

    about: TopicFile
    records: int
    end_offsets: tuple[int, ...]
    losses: tuple[tuple[int, Gap], ...]


def restore_wal(
    objects: Objects, boot: Boot, topics: list[TopicFile], cache: BlockCache
) -> list[Brought]:
    """Restores wal topics into a directory that has no other writer."""
    with Store(
        boot.data,
        files=boot.files,
        now_ms=boot.now_ms,
        writer=WriterSettings(flush_ms=_NEVER),
        tick_ms=_NEVER,
        archive="",
    ) as store:
        engine = store.write_ahead_log()
        return [_restore(objects, boot, engine, about, cache) for about in topics]


def _restore(
    objects: Objects, boot: Boot, engine: WalEngine, about: TopicFile, cache: BlockCache
) -> Brought:
    boot.catalog.begin_restoring(replace(about, topic_ids=[]))
    claimed = engine.claim(about)
    count, ends, losses = 0, [], []
    for number in range(claimed.partitions):
        partition = engine.open_topic(claimed, number)
        reader = ArchivedTopic(objects, about, number, cache)
        reader.refresh()
        missing: list[Gap] = []
        count += _fill(engine, partition, reader, missing)
        losses += [(number, gap) for gap in missing]
        ends.append(partition.durable_end)
    return Brought(claimed, count, tuple(ends), tuple(losses))


def _fill(
    engine: WalEngine, partition: WalPartition, reader: ArchivedTopic, losses: list[Gap]
) -> int:
    """Appends every archived record at its sequence; returns how many there were.

    Adds what cannot be read to the losses.
    """
    partition.settings = settings = TopicSettings()  # no cap and no clock of its own, for now
    gaps = Ledger(tuple(gap for gap in reader.ledger.missing() if gap.first >= reader.earliest))
    expected, count, size_bytes = reader.earliest, 0, 0
    for batch in _batches(reader, losses):
        for part in runs(batch):
            gaps = explained(gaps, losses, (expected, first_of(part)), 0)
            expected = after(part)
            given = part.select(INPUT_SCHEMAS["wal"].names)
            request = make_request(given, "wal", settings, acks=WRITTEN, now_ms=0)
            partition.admit(request)
            partition.go_on_at(first_of(part))
            partition.writer.append(request, None)
            count += part.num_rows
            size_bytes += part.nbytes
        if size_bytes >= CHECKPOINT_BYTES:
            engine.maintain(force=True)
            size_bytes = 0
    end = reader.end_offset()
    partition.go_on_at(end)
    gaps = explained(gaps, losses, (expected, end), 0)
    floors = reader.evict_floor, reader.earliest
    partition.exclusively(lambda: partition.take_over(floors, gaps))
    return count


def lost(missing: RecordsMissing, start: int, at_ms: int) -> list[Gap]:
    """Returns what a reader could not get as a gap, unless it was removed on purpose."""
    if missing.reason != "lost":
        return []
    first = max(start, missing.first)
    why = f"not in the archive: {missing.problem}"
    return [Gap(first, missing.end, "lost", at_ms, why)] if first < missing.end else []


def _batches(reader: ArchivedTopic, losses: list[Gap]) -> Iterator[pa.RecordBatch]:
    """Yields all live records, over what is missing; what is lost goes to the losses."""
    start, end = reader.earliest, reader.end_offset()
    for step in scan_over(lambda at: reader.scan(at, BATCH), start, end):
        if isinstance(step, RecordsMissing):
            losses += lost(step, start, 0)
            start = step.end
        else:
            start = after(step)
            yield step
