"""The reads of a store: topics, one stream per partition, offsets, gaps.

The same for a store that also writes, for one opened read-only, and for an archive: each brings its
own lookup of topics and partitions. What the calls promise is written in `StoreApi`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina import arguments
from lamina.api import (
    BATCH_BYTES,
    BATCH_RECORDS,
    BatchStream,
    Diff,
    Gap,
    Isolation,
    SegmentFacts,
    TopicInfo,
)
from lamina.arguments import text, wait_s, whole
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, OffsetOutOfRange, RecordsMissing
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.scan import Limit
from lamina.log.batch_offsets import after
from lamina.log.gap_walk import scan_over
from lamina.log.interfaces import LogReader
from lamina.records import OUTPUT_SCHEMAS
from lamina.store.lookup import Lookup

DURABLE: Isolation = "durable"
_NONE = type(None)
_USUAL = {(str, int, kind, until) for kind in (int, _NONE) for until in (int, _NONE)}
_USUAL_FETCH = (str, int, int, 0)


class Reads:
    """Reads of a store's topics and partitions, which a lookup finds."""

    def __init__(self, lookup: Lookup[LogReader]) -> None:
        self._lookup = lookup

    # ------------------------------------------------------------------ topics

    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        return sorted(self._lookup.topics())

    def describe_topic(self, name: str) -> TopicInfo:
        """Describes a topic and its partitions."""
        about = self._lookup.topic(name)
        return describe(about, self._lookup.partitions(about))

    def format_of(self, topic: str) -> tuple[str, int]:
        """Returns a topic's format and how many partitions it has."""
        about = self._lookup.topic(topic)
        return about.format, about.partitions

    # ------------------------------------------------------------------ records

    def scan(
        self,
        topic: str,
        partition: int = 0,
        start: int | None = None,
        *,
        end: int | None = None,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        isolation: Isolation = DURABLE,
    ) -> BatchStream:
        """Streams records; arguments of the usual types take a short cut through the checks."""
        kinds = type(topic), type(partition), type(start), type(end)
        if kinds not in _USUAL or isolation is not DURABLE:
            topic, partition = text("topic", topic), whole("partition", partition)
            start = None if start is None else whole("start", start)
            end = None if end is None else whole("end", end)
            arguments.isolation("isolation", isolation)
        reader = self._lookup.partition(topic, partition)
        first = reader.first_readable() if start is None else start
        if first < 0:
            raise OffsetOutOfRange(f"offsets count from 0, got {first}")
        return BatchStream(
            f"{topic}/{partition}",
            reader.scan(first, _limit(max_records, max_bytes), isolation=isolation, end=end),
            lambda: OUTPUT_SCHEMAS[reader.format_name],
        )

    def fetch(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        wait_ms: int = 0,
        isolation: Isolation = DURABLE,
    ) -> pa.RecordBatch:
        """Returns one batch, waiting for its first record."""
        if (type(topic), type(partition), type(start), wait_ms) != _USUAL_FETCH:
            topic, partition = text("topic", topic), whole("partition", partition)
            start, wait_ms = whole("start", start), whole("wait_ms", wait_ms)
        if isolation is not DURABLE:
            arguments.isolation("isolation", isolation)
        reader = self._lookup.partition(topic, partition)
        if wait_ms > 0:
            reader.wait_beyond(start, wait_s(wait_ms), isolation)
            reader = self._lookup.partition(topic, partition)  # it may have been closed or deleted
        limit = _limit(max_records, max_bytes)
        for batch in reader.scan(start, limit, isolation=isolation):
            return batch
        return pa.RecordBatch.from_pylist([], schema=OUTPUT_SCHEMAS[reader.format_name])

    def diff(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        exclude_node: bytes | None = None,
    ) -> Diff:
        """Returns what is new from `start` on, over gaps, which it names."""
        return diff(
            self._lookup.partition(topic, partition), start, _limit(limit, max_bytes), exclude_node
        )

    # ------------------------------------------------------------------ offsets

    def segments(self, topic: str, partition: int = 0) -> list[SegmentFacts]:
        """Returns what is known of each layer, oldest first; the last one is active.

        What is archived is among them also while the archive does not answer: its bytes are not
        known then.
        """
        reader = self._lookup.partition(topic, partition)
        if reader.cold is not None:
            reader.cold.look()
        return [each.described() for each in reader.layers()]

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset that can be read."""
        return self._lookup.partition(topic, partition).first_readable()

    def latest_offset(
        self, topic: str, partition: int = 0, *, isolation: Isolation = "durable"
    ) -> int:
        """Returns one past the last offset that readers of an isolation see."""
        return self._lookup.partition(topic, partition).end_offset(isolation)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset whose record is at or after a time; None if none is yet."""
        return self._lookup.partition(topic, partition).offset_for_time(timestamp_ms)

    def gaps(self, topic: str, partition: int = 0) -> tuple[Gap, ...]:
        """Returns every missing range of offsets with its reason."""
        return self._lookup.partition(topic, partition).ledger_of_gaps.missing()

    def gone_from(
        self, topic: str, partition: int, offset: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more."""
        return self._lookup.partition(topic, partition).gone_from(offset)


def describe(about: TopicFile, readers: Sequence[LogReader]) -> TopicInfo:
    """Describes a topic by its file and the readers of its partitions."""
    return TopicInfo(
        about.name,
        about.format,
        about.epoch,
        about.created_ms,
        TopicSettings.parse(about.settings).as_dict(),
        tuple(reader.info() for reader in readers),
    )


def _limit(max_records: int, max_bytes: int) -> Limit:
    if type(max_records) is not int or type(max_bytes) is not int:
        max_records, max_bytes = whole("max_records", max_records), whole("max_bytes", max_bytes)
    try:
        return Limit(max_records=max_records, max_bytes=max_bytes)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


# ---------------------------------------------------------------------- a follower's read


def diff(reader: LogReader, start: int, limit: Limit, exclude_node: bytes | None) -> Diff:
    """Reads from an offset on, up to a number of records and about as many bytes.

    Gaps do not end it, as they end a scan: they are named beside the records.
    """
    schema = OUTPUT_SCHEMAS[reader.format_name]
    if exclude_node is not None and "node" not in schema.names:
        raise InvalidRequest(
            f"format {reader.format_name} keeps no node; a topic of format wal does"
        )
    end = reader.end_offset("durable")
    offset, records, size_bytes = start, limit.max_records, limit.max_bytes
    batches: list[pa.RecordBatch] = []
    gaps: list[Gap] = []

    def scan(at: int) -> Iterator[pa.RecordBatch]:  # each batch is limited by what is left then
        while at < end:
            found = next(iter(reader.scan(at, Limit(records, size_bytes), end=end)), None)
            if found is None:
                return
            yield found
            at = after(found)

    for step in scan_over(scan, start, end):
        if isinstance(step, RecordsMissing):
            gaps.append(Gap(step.first, step.end, step.reason, 0, step.problem))
            offset = step.end
            continue
        offset = after(step)
        records -= step.num_rows
        size_bytes -= step.nbytes
        batches.append(_without(step, exclude_node))
        if records <= 0 or size_bytes <= 0:
            break
    else:
        offset = max(offset, end)
    table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
    merged = table.to_batches()
    result = merged[0] if merged else pa.RecordBatch.from_pylist([], schema=schema)
    return Diff(result, max(offset, start), offset >= end, tuple(gaps))


def _without(batch: pa.RecordBatch, node: bytes | None) -> pa.RecordBatch:
    if node is None:
        return batch
    import pyarrow.compute as pc  # a tenth of a second, that few starts need

    own = pc.fill_null(pc.equal(batch.column("node"), pa.scalar(node, pa.binary())), False)
    return batch.filter(pc.invert(own))
