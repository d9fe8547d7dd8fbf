"""The appends of a store: which partitions take which records, and the answer.

Rules.
1. What is wrong with records is found in the producer's own thread, before anything is queued.
2. An append that names no partition is one request for each partition that takes some of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from lamina import records as record_columns
from lamina.api import OF_TOPIC, Ack, Appended, ProducerId, ProducerStamp, acks_level, stamp
from lamina.arguments import seconds, whole
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, UnknownTopic
from lamina.formats.documents.ledger import ARCHIVED
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.partitioning import split_by_key
from lamina.log.appending import make_request, merged
from lamina.log.interfaces import LogWriter
from lamina.log.requests import LeadSoon, Request
from lamina.received import refuse_broken
from lamina.records import Decoded, Records, as_columns, has_keys, has_typed_columns
from lamina.store.open_topics import OpenTopics

if TYPE_CHECKING:
    import asyncio

    from lamina.log.sealed import Archivable

_COLUMNS = frozenset((pa.RecordBatch, pa.Table, bytes))


class Archive(Protocol):
    """What makes records safe beyond this machine: the archive's lists, or a cluster's windows."""

    def wait_archived(
        self, partition: Archivable, end_offset: int, timeout_s: float | None
    ) -> None:
        """Returns when the records below an offset are safe there; raises why they are not."""


class Appends:
    """Appends to the partitions of a store that writes."""

    def __init__(
        self,
        open_topics: OpenTopics,
        now_ms: Callable[[], int],
        executor: Executor,
        archive: Archive | None,
        *,
        encoded: Callable[[str, pa.Table | pa.RecordBatch], pa.Table],
    ) -> None:
        self._lookup = open_topics.lookup
        self._partitions = open_topics.partitions
        self._now_ms = now_ms
        self._executor = executor
        self._archive = archive
        self._encoded = encoded
        self._turn = itertools.count()

    def append(
        self,
        topic: str,
        records: Records | bytes,
        partition: int | None,
        acks: object,
        timeout_s: float | None,
        producer: ProducerStamp | None,
    ) -> Appended:
        """Appends records: one request per partition that takes some; a lone one in this thread."""
        if timeout_s is not None:
            timeout_s = seconds("timeout_s", timeout_s)
        if type(acks) is str and acks == ARCHIVED:
            self._require_archived(topic)
            appended = self.append(topic, records, partition, "all", timeout_s, producer)
            return self._await_archived(topic, appended, timeout_s)
        requests = self._requests(topic, records, partition, acks, producer)
        if len(requests) == 1:
            return Appended(*self._write(*requests[0], timeout_s))
        futures = [
            self._executor.submit(self._write, target, request, timeout_s)
            for target, request in requests
        ]
        wait(futures)
        return merged([future.result() for future in futures])

    def _require_archived(self, topic: str) -> None:
        """Raises InvalidRequest if there is no archive to wait for; nothing is appended then."""
        if self._archive is None:
            raise InvalidRequest("acks=archived needs a store opened with `archive`")
        if not TopicSettings.parse(self._lookup.topic(topic).settings).is_archived:
            raise InvalidRequest(f"acks=archived needs remote.storage.enable on topic {topic!r}")

    def _await_archived(
        self, topic: str, appended: Appended, timeout_s: float | None = None
    ) -> Appended:
        """Waits until durable records are in the object store too: the third durability level."""
        assert self._archive is not None, "asked for before anything was appended"
        for number, ack in appended.parts.items():
            target = self._partitions.get((topic, number))
            if target is None:
                raise UnknownTopic(f"topic {topic!r} was deleted")
            self._archive.wait_archived(target, ack.base_offset + ack.count, timeout_s)
            ack.durability = ARCHIVED
        return appended

    async def append_async(
        self,
        topic: str,
        records: Records | bytes,
        partition: int | None,
        acks: object,
        producer: ProducerStamp | None,
    ) -> Appended:
        """Appends from asyncio; the writer resolves a future, no thread waits."""
        import asyncio  # a caller in a running loop has loaded it already

        if type(acks) is str and acks == ARCHIVED:
            self._require_archived(topic)
            durable = await self.append_async(topic, records, partition, "all", producer)
            return await asyncio.to_thread(self._await_archived, topic, durable)
        requests = self._requests(topic, records, partition, acks, producer)
        try:
            if len(requests) == 1:
                target, request = requests[0]
                ack = await target.writer.append_soon(request)
                return Appended({target.place.partition: ack}, ack.count)
            answers = await asyncio.gather(
                *(target.writer.append_soon(request) for target, request in requests)
            )
        except asyncio.CancelledError:  # what is not being written yet never will be
            for target, request in requests:
                target.writer.withdraw(request)
            raise
        return merged(
            [
                ({target.place.partition: ack}, ack.count)
                for (target, _), ack in zip(requests, answers, strict=True)
            ]
        )

    def append_soon(
        self,
        topic: str,
        records: Decoded,
        partition: int,
        acks: object,
        producer: ProducerStamp | None,
        lead_soon: LeadSoon,
    ) -> asyncio.Future[Ack]:
        """Appends to one partition from an event loop that may lead: see `Writer.append_soon`."""
        [(target, request)] = self._requests(topic, records, partition, acks, producer)
        return target.writer.append_soon(request, lead_soon)

    def _requests(
        self,
        topic: str,
        records: Records | Decoded | bytes,
        partition: int | None,
        acks: object,
        producer: ProducerStamp | None,
    ) -> list[tuple[LogWriter, Request]]:
        """Makes a request for each partition that takes some of the records."""
        level = None if acks is OF_TOPIC else acks_level(acks)
        if type(records) is bytes and type(topic) is str and producer is None:
            known = None
            if type(partition) is int:
                known = self._partitions.get((topic, partition))
            elif partition is None and self._partitions.get((topic, 1)) is None:
                known = self._partitions.get((topic, 0))  # there is one alone
            if (
                known is not None
                and len(records) <= known.settings.max_message_bytes
                and known.settings.cleanup_policy == "delete"
            ):
                if self._lookup.is_closed:
                    self._lookup.require_open()
                request = Request([records], size_bytes=len(records), acks=known.level(level))
                known.admit(request)
                return [(known, request)]  # the short way of a lone record
        about = self._lookup.topic(topic)
        if type(records) not in _COLUMNS:
            records = as_columns(records)
        if has_typed_columns(records):
            refuse_broken(records)
            records = self._encoded(topic, records)
        if partition is not None and type(partition) is not int:
            partition = whole("partition", partition)
        if producer is not None:
            stamp("producer", producer)
        now_ms = self._now_ms()
        if partition is None and about.partitions == 1:
            partition = 0
        parts = (
            self._spread(about, records, now_ms, stamped=producer is not None)
            if partition is None
            else [(partition, records)]
        )
        requests: list[tuple[LogWriter, Request]] = []
        for number, part in parts:
            target = self._partitions.get((topic, number)) or self._lookup.partition(topic, number)
            request = make_request(
                part,
                about.format,
                target.settings,
                acks=target.level(level),
                now_ms=now_ms,
                stamp=producer,
            )
            target.admit(request)
            requests.append((target, request))
        return requests

    def _spread(
        self, about: TopicFile, records: Records | bytes, now_ms: int, *, stamped: bool
    ) -> list[tuple[int, Any]]:
        """Decides which partitions take which records: by key, or all of them in turn."""
        if stamped:
            raise InvalidRequest("an idempotent append names its partition")
        if isinstance(records, pa.RecordBatch | pa.Table):
            refuse_broken(records)  # before its nulls are counted
        turn = next(self._turn) % about.partitions
        if "key" not in record_columns.KEPT_COLUMNS[about.format] or not has_keys(records):
            return [(turn, records)]
        batch = record_columns.prepare(records, about.format, now_ms=now_ms)
        return split_by_key(batch, about.partitions, turn)

    @staticmethod
    def _write(
        target: LogWriter, request: Request, timeout_s: float | None
    ) -> tuple[dict[int, Ack], int]:
        ack = target.writer.append(request, timeout_s)
        if ack is None:
            ack = Ack(-1, request.count, "none")
        return {target.place.partition: ack}, request.count

    def producer_position(
        self, topic: str, partition: int, producer_id: ProducerId
    ) -> tuple[int, int] | None:
        """Returns the epoch of an idempotent producer and the sequence it must go on with."""
        target = self._lookup.partition(topic, partition)
        return target.exclusively(lambda: target.producer_position(producer_id))
