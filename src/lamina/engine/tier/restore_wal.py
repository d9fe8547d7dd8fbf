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

from lamina.config import TopicSettings, WriterSettings
from lamina.engine.appending import make_request
from lamina.engine.batches import after, first_of, runs
from lamina.engine.boot import Boot
from lamina.engine.requests import WRITTEN
from lamina.engine.store import Store
from lamina.engine.tier.archive_store import ArchivedTopic
from lamina.engine.tier.cold import BlockCache
from lamina.engine.wal.engine import WalEngine
from lamina.engine.wal.partition import WalPartition
from lamina.errors import RecordsMissing
from lamina.formats.ledger import Gap, Ledger
from lamina.formats.scan import Limit
from lamina.formats.topic import TopicFile
from lamina.records import INPUT_SCHEMAS
from lamina.storage.objects import Objects

BATCH = Limit(max_records=1 << 16, max_bytes=1 << 20)
CHECKPOINT_BYTES = 64 << 20
_NEVER = 1 << 31


class Brought(NamedTuple):
    """A topic that is whole but for its `topic.json`."""

    about: TopicFile
    records: int
    end_offsets: tuple[int, ...]


def restore_wal(
    objects: Objects, boot: Boot, topics: list[TopicFile], cache: BlockCache
) -> list[Brought]:
    """Restores wal topics into a directory that nobody else writes to."""
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
    count, ends = 0, []
    for number, partition in enumerate(engine.create(claimed)):
        reader = ArchivedTopic(objects, about, number, cache)
        reader.refresh()
        count += _fill(engine, partition, reader)
        ends.append(partition.durable_end)
    return Brought(claimed, count, tuple(ends))


def _fill(engine: WalEngine, partition: WalPartition, reader: ArchivedTopic) -> int:
    """Appends every archived record at its sequence; returns how many there were."""
    partition.settings = settings = TopicSettings()  # no cap and no clock of its own, for now
    gaps = Ledger(tuple(gap for gap in reader.ledger.missing() if gap.first >= reader.earliest))
    expected, count, size_bytes = reader.earliest, 0, 0
    for batch in _batches(reader):
        for part in runs(batch):
            gaps = _explained(gaps, expected, first_of(part))
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
    gaps = _explained(gaps, expected, end)
    floors = reader.evict_floor, reader.earliest
    partition.exclusively(lambda: partition.take_over(floors, gaps))
    return count


def _explained(gaps: Ledger, first: int, end: int) -> Ledger:
    """Enters what the archive does not hold and nobody explains: it had been deleted."""
    holes, start = [], first
    for gap in gaps.between(first, end):
        if start < gap.first:
            holes.append(Gap(start, gap.first, "deleted", 0))
        start = gap.end
    if start < end:
        holes.append(Gap(start, end, "deleted", 0))
    return gaps.with_gaps(holes)


def _batches(reader: ArchivedTopic) -> Iterator[pa.RecordBatch]:
    """Yields all live records, over what is missing."""
    start, end = reader.earliest, reader.end_offset()
    while start < end:
        try:
            for batch in reader.scan(start, BATCH):
                start = after(batch)
                yield batch
            return
        except RecordsMissing as missing:
            start = missing.end
