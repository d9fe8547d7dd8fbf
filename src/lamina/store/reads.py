"""The reading half of a store: topics, one stream a partition, offsets, gaps.

The same for a store that also writes, for one opened read-only, and (later) for an archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn, Self

import pyarrow as pa

from lamina import arguments
from lamina.api import (
    BATCH_BYTES,
    BATCH_RECORDS,
    Diff,
    Gap,
    GroupInfo,
    Isolation,
    RouterInfo,
    SegmentFacts,
    TopicInfo,
    bounded,
)
from lamina.arguments import TypedCalls, text, wait_s, whole
from lamina.config import TopicSettings
from lamina.errors import Closed, InvalidRequest, OffsetOutOfRange, UnknownTopic
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.scan import Limit
from lamina.log.interfaces import LogReader
from lamina.records import OUTPUT_SCHEMAS
from lamina.store.catalog import find
from lamina.store.diff import diff

if TYPE_CHECKING:
    from lamina.api import TierStatus

DURABLE: Isolation = "durable"
_NONE = type(None)
_USUAL = {(str, int, kind, until) for kind in (int, _NONE) for until in (int, _NONE)}
_USUAL_FETCH = (str, int, int, 0)


class StoreReader(TypedCalls, leave=("scan", "fetch")):
    """What can be asked of a store without changing it."""

    _closed = False

    def _files_of_topics(self) -> Mapping[str, TopicFile]:
        raise NotImplementedError

    def _reader(self, about: TopicFile, partition: int) -> LogReader:
        raise NotImplementedError

    # ------------------------------------------------------------------ topics

    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        self._require_open()
        return sorted(self._files_of_topics())

    def describe_topic(self, name: str) -> TopicInfo:
        """Describes a topic and its partitions."""
        about = self._topic(name)
        partitions = [self._reader(about, number).info() for number in range(about.partitions)]
        settings = TopicSettings.parse(about.settings).as_dict()
        return TopicInfo(
            about.name, about.format, about.epoch, about.created_ms, settings, tuple(partitions)
        )

    def format_of(self, topic: str) -> tuple[str, int]:
        """Returns a topic's format and how many partitions it has."""
        about = self._topic(topic)
        return about.format, about.partitions

    def routers(self) -> list[RouterInfo]:
        """Lists all routers, by name; an archive keeps none."""
        self._require_open()
        return []

    # ------------------------------------------------------------------ groups

    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists consumer groups as (topic, group), sorted; of one topic or of all."""
        raise NotImplementedError

    def describe_group(self, topic: str, group: str) -> GroupInfo:
        """Tells for each partition what a group has acked, holds, and how far it is behind."""
        raise NotImplementedError

    def tier_status(self) -> list[TierStatus]:
        """Tells of each archived partition how far its archive is behind, and the last error."""
        raise NotImplementedError

    def _topic(self, name: str) -> TopicFile:
        self._require_open()
        about: TopicFile = find(self._files_of_topics(), name)
        return about

    def _partition(self, topic: str, partition: int) -> LogReader:
        about = self._topic(topic)
        if not 0 <= partition < about.partitions:
            raise UnknownTopic(
                f"topic {topic!r} has partitions 0 to {about.partitions - 1}, not {partition}"
            )
        return self._reader(about, partition)

    def close(self) -> None:
        """Lets what was opened go."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

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
    ) -> Iterator[pa.RecordBatch]:
        """Streams records from `start` (the earliest) to the end as it is now, or to `end`.

        Each batch holds at most `max_records` and about `max_bytes`, and at least one record.
        Raises RecordsMissing at offsets that are gone, naming the reason and where to go on.
        """
        kinds = type(topic), type(partition), type(start), type(end)
        if kinds not in _USUAL or isolation is not DURABLE:
            topic, partition = text("topic", topic), whole("partition", partition)
            start = None if start is None else whole("start", start)
            end = None if end is None else whole("end", end)
            arguments.isolation("isolation", isolation)
        reader = self._partition(topic, partition)
        first = reader.earliest_offset() if start is None else start
        if first < 0:
            raise OffsetOutOfRange(f"offsets count from 0, got {first}")
        limit = _limit(max_records, max_bytes)
        return reader.scan(first, limit, isolation=isolation, end=end)

    def scan_from(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        *,
        max_bytes: int | None = None,
        max_msgs: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Streams durable records from an offset, `max_msgs` or about `max_bytes` in all.

        The name is that of the log's document; see `scan`.
        """

        def scan(max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
            return self.scan(
                topic, partition, from_offset, max_records=max_records, max_bytes=max_bytes
            )

        return bounded(scan, max_bytes, max_msgs)

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
        """Returns one batch from `start`, waiting up to `wait_ms` for the first record there.

        The wait ends with the append that brings it. Without records the batch is empty. Raises
        Closed or UnknownTopic when the store is closed, or the topic deleted, while it waits.
        """
        if (type(topic), type(partition), type(start), wait_ms) != _USUAL_FETCH:
            topic, partition = text("topic", topic), whole("partition", partition)
            start, wait_ms = whole("start", start), whole("wait_ms", wait_ms)
        if isolation is not DURABLE:
            arguments.isolation("isolation", isolation)
        reader = self._partition(topic, partition)
        if wait_ms > 0:
            reader.wait_beyond(start, wait_s(wait_ms), isolation)
            reader = self._partition(topic, partition)  # it may have been closed or deleted
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
        """Returns what is new from `start` on, over gaps, which it names; never waits.

        With `exclude_node`, records that this node wrote itself are left out. `limit` counts the
        records that were looked at, so that a call is bounded whatever it leaves out.
        """
        return diff(
            self._partition(topic, partition), start, _limit(limit, max_bytes), exclude_node
        )

    # ------------------------------------------------------------------ offsets

    def segments(self, topic: str, partition: int = 0) -> list[SegmentFacts]:
        """Returns what is known of each segment, oldest first; the last one is active."""
        return self._partition(topic, partition).facts()

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset that can be read."""
        return self._partition(topic, partition).earliest_offset()

    def latest_offset(
        self, topic: str, partition: int = 0, *, isolation: Isolation = "durable"
    ) -> int:
        """Returns one past the last offset that readers of an isolation see."""
        return self._partition(topic, partition).end_offset(isolation)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset whose record is at or after a time; None if none is yet."""
        return self._partition(topic, partition).offset_for_time(timestamp_ms)

    def gaps(self, topic: str, partition: int = 0) -> tuple[Gap, ...]:
        """Returns every missing range of offsets with its reason."""
        return self._partition(topic, partition).ledger_of_gaps.missing()


class UnchangingStore(StoreReader):
    """A store that only reads: every change is refused, and what only a writer knows."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidRequest("the store is open read-only; an archive can be restored to write")

    create_router = alter_router = delete_router = _refuse
    append = append_async = append_batch = create_topic = alter_topic = delete_topic = _refuse
    trim = delete = apply_retention = roll = flush = _refuse
    group = reset_group = delete_group = _refuse
    archive = maintain = purge_wal = write_ahead_log = _refuse

    def _refuse_insight(self, *_: object, **__: object) -> NoReturn:
        raise InvalidRequest("only a store that is open for writing knows this of itself")

    blocks = layers = raw_record = extents = writers = sinks = _refuse_insight
    segmented = wal_partitions = failures = _refuse_insight
    explain_retention = producer_position = _refuse_insight


def _limit(max_records: int, max_bytes: int) -> Limit:
    if type(max_records) is not int or type(max_bytes) is not int:
        max_records, max_bytes = whole("max_records", max_records), whole("max_bytes", max_bytes)
    try:
        return Limit(max_records=max_records, max_bytes=max_bytes)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
