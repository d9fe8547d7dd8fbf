"""Stores what a decided transaction holds, each record once, however often it is tried.

Rules.
1. A partition remembers how far the producer has come: what lies before that is stored already.
2. What was accepted when it was sent is stored whatever the topic's settings say by now: it was
   promised. Only a topic that is gone takes nothing any more.
3. Of what unpacks to more than `LARGE_BYTES`, one append at a time is in memory: any number of
   transactions may commit at once.
4. Each try goes on behind the records that the one before has stored, in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pyarrow as pa

from lamina import records as record_columns
from lamina.api import DURABLE, ProducerStamp
from lamina.errors import UnknownTopic
from lamina.log.appending import make_request
from lamina.log.producers import KAFKA, KAFKA_SEQUENCES, TRANSACTIONAL
from lamina.log.requests import Request
from lamina.log.sealed import Archivable
from lamina.store.open_topics import OpenTopics

APPEND_BYTES = 8 << 20
"""About how much is appended at once: each append is a sync of its own."""
LARGE_BYTES = 2 * APPEND_BYTES
_UNPACKED_BYTES_MAX = (1 << 31) - 1
"""No bound but the kernels': a batch was unpacked within the server's before it was kept."""


class DecidedAppends:
    """Appends to the partitions of a store under the stamps of transactional producers."""

    def __init__(self, open_topics: OpenTopics) -> None:
        self._open = open_topics
        self._large = threading.Lock()

    def check(self, topic: str, partition: int, records: pa.RecordBatch) -> int:
        """Refuses what the topic would refuse; returns the topic's epoch."""
        about = self._open.lookup.topic(topic)
        target = self._open.lookup.partition(topic, partition)
        if target.failure is not None:
            raise target.failure
        now_ms = target.place.now_ms()
        make_request(records, about.format, target.settings, acks=DURABLE, now_ms=now_ms)
        return about.epoch

    def target(self, topic: str, epoch: int, partition: int) -> Archivable:
        """Returns a partition of one life of a topic; raises UnknownTopic."""
        about = self._open.topics.get(topic)
        if about is None or about.epoch != epoch:
            raise UnknownTopic(f"topic {topic!r} was deleted")
        return self._open.lookup.partition(topic, partition)

    def position(self, target: Archivable, producer_id: int) -> int | None:
        """Returns the sequence that a producer goes on with; None where it is not known."""
        number = stamped_id(producer_id)
        known = target.exclusively(lambda: target.producer_position(number))
        return None if known is None else known[1]

    def store(
        self, target: Archivable, producer_id: int, kept: Iterable[tuple[int, bytes]]
    ) -> None:
        """Stores batches, each with the sequence of its first record, as far as they are not."""
        following = self.position(target, producer_id)
        room = _Room(self._large)
        try:
            self._store(target, producer_id, _joined(kept, room), following)
        finally:
            room.leave()

    def _store(
        self,
        target: Archivable,
        producer_id: int,
        joined: Iterable[tuple[int, pa.RecordBatch]],
        following: int | None,
    ) -> None:
        for sequence, records in joined:
            first = sequence if following is None else following
            stored = (first - sequence) % KAFKA_SEQUENCES
            if stored > KAFKA_SEQUENCES >> 1:  # damage has cost the log what was before it
                stored = 0
            if stored < records.num_rows:
                rest = records.slice(stored)
                self._append(target, producer_id, first, rest)
                following = (first + rest.num_rows) % KAFKA_SEQUENCES

    def _append(
        self, target: Archivable, producer_id: int, sequence: int, records: pa.RecordBatch
    ) -> None:
        now_ms = target.place.now_ms()
        batch = record_columns.prepare(records, target.format_name, now_ms=now_ms)
        request = Request(
            batch,
            size_bytes=batch.nbytes,
            acks=target.level(DURABLE),
            stamp=ProducerStamp(stamped_id(producer_id), 0, sequence),
        )
        target.admit(request)
        target.writer.append(request, None)


class _Room:
    """What one partition's batches take in memory: large ones wait for each other."""

    def __init__(self, large: threading.Lock) -> None:
        self._large = large
        self._bytes = 0
        self._is_held = False

    def take(self, size_bytes: int) -> None:
        """Takes room for more; waits where that makes it large and another one is."""
        self._bytes += size_bytes
        if self._bytes > LARGE_BYTES and not self._is_held:
            self._large.acquire()
            self._is_held = True

    def leave(self) -> None:
        """Gives back what was taken."""
        self._bytes = 0
        if self._is_held:
            self._is_held = False
            self._large.release()


def stamped_id(producer_id: int) -> int:
    """Returns the id under which a partition knows a transactional producer, for good."""
    return producer_id | KAFKA | TRANSACTIONAL


def _joined(kept: Iterable[tuple[int, bytes]], room: _Room) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Decodes batches that follow each other, and joins small ones."""
    from lamina.formats.kafka import batch as batches  # a kernel that few openings need

    first, parts, size_bytes = 0, list[pa.RecordBatch](), 0
    for sequence, data in kept:
        if size_bytes >= APPEND_BYTES:
            yield first, _one(parts)
            parts, size_bytes = [], 0
            room.leave()
        room.take(len(data))
        if not parts:
            first = sequence
        parts.append(batches.decode(data, _UNPACKED_BYTES_MAX, room.take).records)
        size_bytes += parts[-1].nbytes
    if parts:
        yield first, _one(parts)


def _one(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
