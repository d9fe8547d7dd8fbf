"""Everything that a store can be asked: signatures and contracts, once for every kind of store.

    `lamina.Store`          a data directory, open for writing
    `lamina.ReadOnlyStore`  the same directory, read beside its writer or with none
    `lamina.ArchiveStore`   an object store alone
    `lamina.RemoteStore`    a store that another process serves

Each kind is a subclass and overrides what it can do. Everything else stays as it is here, and
raises InvalidRequest with a sentence about that kind: what it is, and where the call does work. So
a program may be written against `StoreApi`, and no attribute that it names is ever missing.

Rules.
1. Whatever is public on any kind of store is declared here; a test compares them.
2. The docstring here is the contract, and what `help` shows for every kind. The docstring of an
   override speaks to readers of its source.
3. Arguments are checked against the annotations of their parameters (`lamina.arguments`). Methods
   that a class lists in `leave` check for themselves, because they are on the hot path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api.acks import OF_TOPIC, Acks, Appended, ProducerId, ProducerStamp, stamp
from lamina.api.answers import (
    Block,
    BrokerId,
    Gap,
    GroupInfo,
    Isolation,
    Layer,
    Move,
    PartitionInfo,
    RawRecord,
    RouterInfo,
    SegmentFacts,
    SinkFacts,
    Start,
    TierStatus,
    TopicInfo,
    Window,
    WriterFacts,
    window,
)
from lamina.api.group_api import GroupApi
from lamina.api.keeping_api import KeepingApi
from lamina.api.record_reads import BATCH_BYTES, BATCH_RECORDS, BatchStream, Diff, bounded
from lamina.api.recovery_report import RecoveryReport
from lamina.arguments import Rule, unsigned
from lamina.records import OUTPUT_SCHEMAS, Records

RULES: Mapping[str, Rule] = {
    "ProducerStamp": stamp,
    "ProducerId": unsigned,
    "Window": window,
}
"""What the annotations of a store ask of an argument, beside those that every class knows."""


class StoreApi(KeepingApi, rules=RULES):
    """A store of any kind. Open one with `lamina.open` or `lamina.connect`, and close it."""

    # ------------------------------------------------------------------ life

    @property
    def path(self) -> str:
        """The data directory."""
        raise self._cannot("path")

    @property
    def identity(self) -> BrokerId:
        """Whose data directory this is: made on the first boot, the same ever after."""
        raise self._cannot("identity")

    @property
    def recovery_report(self) -> RecoveryReport:
        """What recovery did when the store was opened."""
        raise self._cannot("recovery_report")

    def close(self) -> None:
        """Ends what was opened: a writing store answers what it accepted and makes it durable."""
        raise self._cannot("close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ topics

    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        raise self._cannot("topics")

    def describe_topic(self, name: str) -> TopicInfo:
        """Describes a topic and its partitions."""
        raise self._cannot("describe_topic")

    def format_of(self, topic: str) -> tuple[str, int]:
        """Returns a topic's format and how many partitions it has."""
        raise self._cannot("format_of")

    def create_topic(  # noqa: PLR0913 - what a topic is, by keyword
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = "keratin",  # the word users know
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        schema: Any = None,
        encoding: str | None = None,
        key: str | None = None,
    ) -> None:
        """Creates a topic; it exists for good when this returns.

        With `schema` it is a typed one from the beginning; see `set_schema`.

        Raises TopicExists for a name that is taken. With `exist_ok=True` a topic that is there with
        the same format and number of partitions is left as it is, with its own settings (see
        `alter_topic`) and records; one that differs is a TopicExists that says in what.
        """
        raise self._cannot("create_topic")

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Changes settings of a topic; what is not named stays as it is."""
        raise self._cannot("alter_topic")

    def add_partitions(self, topic: str, total: int) -> None:
        """Adds partitions to a topic until it has `total`, all at once, for good.

        They are empty, and are there when this returns. A key's partition is the hash of the key
        modulo the count: records of a key that are appended from now on may go to another
        partition than those before. Raises InvalidRequest for a total that is not larger.
        """
        raise self._cannot("add_partitions")

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all of its records; the same name can be created again."""
        raise self._cannot("delete_topic")

    def routers(self) -> list[RouterInfo]:
        """Lists all routers, by name.

        An archive keeps none.
        """
        raise self._cannot("routers")

    def create_router(
        self,
        name: str,
        source: str,
        target: str,
        *,
        tag: bytes | None = None,
        tag_prefix: bytes | None = None,
        node: bytes | None = None,
    ) -> None:
        """Copies records that are appended to `source` from now on to `target`, too.

        Those with a tag, with a tag that begins so, or of a node. A copy has the time, tag, node
        and value of its record, and is as durable: both are there, or neither. Both topics are wal
        topics; copies are not copied again. What a partition copies goes to the partition of the
        same number, modulo the target's count.
        """
        raise self._cannot("create_router")

    def alter_router(
        self,
        name: str,
        *,
        target: str | None = None,
        tag: bytes | None = None,
        tag_prefix: bytes | None = None,
        node: bytes | None = None,
    ) -> None:
        """Changes where a router copies to, or what; what is not given stays as it is."""
        raise self._cannot("alter_router")

    def delete_router(self, name: str) -> None:
        """Ends a router; what it has copied stays."""
        raise self._cannot("delete_router")

    # ------------------------------------------------------------------ appending

    def append(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: Acks = OF_TOPIC,
        timeout_s: float | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends records and waits until they are as safe as `acks` asks for: fsynced.

        `acks` is 0, 1, "all", "archived", or "topic": "all", but for a wal topic its own
        durability, which `acks` can only raise.
        Without a partition, records with a key go where the hash of their key says, others to one
        partition in turn. With `producer`, a repeated append gets its first answer. Raises
        QueueFull or Unavailable when `timeout_s` is up, StorageFull, Poisoned, InvalidRequest.
        Through a server, what is sent again after a broken connection is stored once; Unavailable
        then means that it is not known whether it was stored.
        """
        raise self._cannot("append")

    async def append_async(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: Acks = OF_TOPIC,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends from asyncio; many tasks share one commit without a thread each.

        Any number of tasks may append at once: each waits for its turn, none gets QueueFull. One
        that is cancelled takes back what is not being written yet. `lamina.aio` has every other
        call for asyncio.
        """
        raise self._cannot("append_async")

    def append_batch(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int = 0,
        acks: Acks = OF_TOPIC,
        timeout_s: float | None = None,
    ) -> tuple[int, int]:
        """Appends records to one partition; returns the first one's offset and how many they are.

        The name is that of the log's document; see `append`.
        """
        done = self.append(topic, records, partition=partition, acks=acks, timeout_s=timeout_s)
        return done.base_offset, done.count

    def producer_position(
        self, topic: str, partition: int, producer_id: ProducerId
    ) -> tuple[int, int] | None:
        """Returns the epoch of an idempotent producer and the sequence it must go on with."""
        raise self._cannot("producer_position")

    # ------------------------------------------------------------------ reading

    def scan(
        self,
        topic: str,
        partition: int = 0,
        start: int | None = None,
        *,
        end: int | None = None,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        isolation: Isolation = "durable",
    ) -> BatchStream:
        """Streams records from `start` (the earliest) to the end as it is now, or to `end`.

        Each batch holds at most `max_records` and about `max_bytes`, and at least one record.
        Raises RecordsMissing at offsets that are gone, naming the reason and where to go on.
        """
        raise self._cannot("scan")

    def scan_from(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        *,
        max_bytes: int | None = None,
        max_msgs: int | None = None,
    ) -> BatchStream:
        """Streams durable records from an offset, `max_msgs` or about `max_bytes` in all.

        The name is that of the log's document; see `scan`.
        """

        def scan(max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
            return self.scan(
                topic, partition, from_offset, max_records=max_records, max_bytes=max_bytes
            )

        return bounded(scan, lambda: OUTPUT_SCHEMAS[self.format_of(topic)[0]], max_bytes, max_msgs)

    def fetch(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        wait_ms: int = 0,
        isolation: Isolation = "durable",
    ) -> pa.RecordBatch:
        """Returns one batch from `start`, waiting up to `wait_ms` for the first record there.

        The wait ends with the append that brings it. Without records the batch is empty. Raises
        Closed or UnknownTopic when the store is closed, or the topic deleted, while it waits.
        """
        raise self._cannot("fetch")

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
        raise self._cannot("diff")

    def earliest_offset(self, topic: str, partition: int = 0) -> int:
        """Returns the first offset that can be read."""
        raise self._cannot("earliest_offset")

    def latest_offset(
        self, topic: str, partition: int = 0, *, isolation: Isolation = "durable"
    ) -> int:
        """Returns one past the last offset that readers of an isolation see."""
        raise self._cannot("latest_offset")

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Returns the first offset whose record is at or after a time; None if none is yet."""
        raise self._cannot("offset_for_time")

    def gaps(self, topic: str, partition: int = 0) -> tuple[Gap, ...]:
        """Returns every missing range of offsets with its reason."""
        raise self._cannot("gaps")

    def gone_from(
        self, topic: str, partition: int, offset: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns which offsets from one on have no record any more, single deleted ones too.

        They are the starts and the ends (exclusive) of ranges: sorted, apart from each other.
        """
        raise self._cannot("gone_from")

    def segments(self, topic: str, partition: int = 0) -> list[SegmentFacts]:
        """Returns what is known of each segment, oldest first; the last one is active."""
        raise self._cannot("segments")

    # ------------------------------------------------------------------ by itself

    def flush(self) -> None:
        """Makes durable what was written with acks 0 or 1, and the checkpoint current."""
        raise self._cannot("flush")

    def maintain(self) -> None:
        """Does now what the store otherwise does by itself, in time, due or not."""
        raise self._cannot("maintain")

    def archive(self) -> None:
        """Archives now what is sealed, also where objects stay small; raises what failed."""
        raise self._cannot("archive")

    def tier_status(self) -> list[TierStatus]:
        """Returns for each archived partition how far its archive is behind, and the last error."""
        raise self._cannot("tier_status")

    # ------------------------------------------------------------------ groups

    def group(self, topic: str, name: str, *, start: Start = "earliest") -> GroupApi:
        """Returns a consumer group; one that is not there yet is made, at `start`.

        A new group starts at the earliest record, so that it misses none by being made late. With
        `start="none"` none is made: a group that is not there is UnknownGroup.
        """
        raise self._cannot("group")

    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists consumer groups as (topic, group), sorted; of one topic or of all."""
        raise self._cannot("groups")

    def describe_group(self, topic: str, group: str) -> GroupInfo:
        """Returns for each partition what a group has acked, holds, and how far it is behind."""
        raise self._cannot("describe_group")

    def reset_group(
        self,
        topic: str,
        group: str,
        *,
        to: int | str | None = None,
        timestamp_ms: int | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        execute: bool = False,
    ) -> list[Move]:
        """Plans to move a group to an offset, `earliest`, `latest`, a time, or by a shift.

        Without `execute` nothing is changed: the moves are only returned. With it, leases and
        delivery counts are forgotten.
        """
        raise self._cannot("reset_group")

    def delete_group(self, topic: str, group: str) -> None:
        """Deletes a consumer group with all that it has acked."""
        raise self._cannot("delete_group")

    # ------------------------------------------------------------------ looking inside

    def failures(self) -> dict[str, str]:
        """Returns which partitions take no more appends until the store is reopened, and why.

        Groups that take no more acks are among them, as `group 'g' of t/0`.
        """
        raise self._cannot("failures")

    def layers(self, topic: str, partition: int = 0) -> list[Layer]:
        """Returns the layers of a partition, oldest first: gone, cold, sealed, active."""
        raise self._cannot("layers")

    def blocks(
        self, topic: str, partition: int, base_offset: int, window: Window = Window()
    ) -> list[Block]:
        """Returns the blocks of the layer that begins at an offset, neighbours joined to fit."""
        raise self._cannot("blocks")

    def raw_record(self, topic: str, partition: int, offset: int) -> RawRecord | None:
        """Returns the bytes of a record in its file; None where no local segment holds it."""
        raise self._cannot("raw_record")

    def extents(self) -> dict[str, list[PartitionInfo]]:
        """Returns where the partitions of every topic begin and end, and what they hold."""
        raise self._cannot("extents")

    def writers(self) -> list[WriterFacts]:
        """Returns every writer: one per partition, and one per shard of the write-ahead log."""
        raise self._cannot("writers")

    def sinks(self) -> list[SinkFacts]:
        """Returns every application that has stored a transaction through Spark's sink."""
        raise self._cannot("sinks")

    # ------------------------------------------------------------------ the engine's own parts
    # Lent to jobs that run in the process that writes; only the engine knows their types.

    @property
    def tier(self) -> object:
        """What looks after the archive; None in a store that was opened without one."""
        raise self._cannot("tier")

    @property
    def seat(self) -> object:
        """The store's hold on a cluster; None in a store that was opened without one."""
        raise self._cannot("seat")

    def segmented(self, topics: Collection[str] | None = None) -> Sequence[object]:
        """Returns the partitions that have segments of their own, for jobs that work on those."""
        raise self._cannot("segmented")

    def wal_partitions(self, topics: Collection[str] | None = None) -> Sequence[object]:
        """Returns the partitions behind the write-ahead log, for jobs that work on those."""
        raise self._cannot("wal_partitions")

    def write_ahead_log(self) -> object:
        """Returns the write-ahead log, which begins with the first topic that needs one."""
        raise self._cannot("write_ahead_log")

    def purge_wal(self) -> None:
        """Copies everything into segments and frees every WAL file that holds a record."""
        raise self._cannot("purge_wal")

    @property
    def coordinator(self) -> object:
        """The coordinator of classic groups, for doors that speak its protocol."""
        raise self._cannot("coordinator")

    def new_producer_id(self) -> int:
        """Returns an id for an idempotent producer of Kafka's protocol: each is given once."""
        raise self._cannot("new_producer_id")
