"""Fetch: records of partitions as batches, waiting for them without a thread.

    ends in the loop ─▶ enough? ─no─▶ wait for an append, or for max_wait_ms
                          └─yes─▶ read and encode in the pool ─▶ [head, records, …] to the socket

Rules.
1. An answer leaves as soon as there are `min_bytes`, and at `max_wait_ms` at the latest. If
   something is wrong with a partition, it leaves at once.
2. The first record is sent whole, even if fewer bytes were asked for.
3. Offsets without a record are spanned by an empty batch, so that no reader gets stuck at a hole.
   Where records are lost (damaged, say), a connection's first fetch there is answered with
   CORRUPT_MESSAGE, which programs see, and its next one continues after the loss.
   Bytes that the disk cannot deliver just now are no hole: they may be readable later.
4. Memory is reserved before records are read, and released when the answer has been sent.
5. Fetch sessions are never opened: answers have session 0, and clients do without.
6. Only one long poll per connection waits at a time: every append would wake each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lamina.errors import UNREADABLE, CorruptData, LaminaError, OffsetOutOfRange, RecordsMissing
from lamina.formats.kafka import batch as batches
from lamina.log.gap_walk import fetch_over
from lamina.server.kafka.arrivals import Bell, logs_of
from lamina.server.kafka.sessions import Call, at_work
from lamina.server.kafka.topic_ids import NO_ID
from lamina.store.store import Store
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

LEAST_BYTES = 64 << 10
_log = logging.getLogger("lamina.server")
_RECORDS_MAX = 1 << 20
_BATCHES_MAX = 1000
"""Per partition with append times, where each append is a batch; the next answer has the rest."""
_SPAN_MAX = (1 << 31) - 1
_LOSSES_MAX = 1000
"""How many reported losses a connection remembers."""
_BUSY_PAUSE_S = 0.02
_MEASURED_BYTES = 1 << 20
"""How much is read at once to learn how large it is."""


@dataclass(slots=True)
class Wanted:
    """A partition of a request, and what was found in it."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    max_bytes: int
    error: ErrorCode = ErrorCode.NONE
    earliest: int = -1
    end: int = -1
    measured_records: int = 0
    """How many of the offsets from `offset` on were measured."""
    measured_bytes: int = 0
    """How large their records are in a batch, without its header."""
    read: tuple[int, int] = (0, 0)
    """How many records the answer has, and their bytes."""

    def look(self, call: Call) -> None:
        """Looks where the partition begins and ends; what is wrong becomes its error."""
        store = call.store
        try:
            call.caller.require("read", self.topic, "fetch")
            self.earliest = store.earliest_offset(self.topic, self.partition)
            self.end = store.latest_offset(self.topic, self.partition)
            if not self.earliest <= self.offset <= self.end:
                raise OffsetOutOfRange(f"there is no offset {self.offset}")
        except LaminaError as error:
            self.error = call.told(error)[0]

    def count(self, call: Call) -> None:
        """Counts what is sent."""
        records, size_bytes = self.read
        if records:
            call.door.broker.metrics.read.inc(records)
            call.door.broker.metrics.topics.read(self.topic, records, size_bytes)

    @property
    def waiting_bytes(self) -> int:
        """How much of an answer this partition is, by what was measured."""
        if self.end <= self.offset:
            return 0
        return min(self.max_bytes, batches.HEADER.size + self.measured_bytes)

    def measure(self, call: Call, enough_bytes: int) -> None:
        """Learns the size of records that came since, up to so many bytes: each is read once."""
        at = self.offset + self.measured_records
        while at < self.end and self.waiting_bytes < min(enough_bytes, self.max_bytes):
            step, at = fetch_over(partial(self._fetch, call, enough_bytes), at)
            if not isinstance(step, RecordsMissing):
                pieces = list(encoded(call.store, self.topic, step))
                self.measured_bytes += max(0, sum(map(len, pieces)) - batches.HEADER.size)
                at = at if step.num_rows else self.end
            self.measured_records = at - self.offset

    def _fetch(self, call: Call, enough_bytes: int, at: int) -> pa.RecordBatch:
        return call.store.fetch(
            *(self.topic, self.partition, at),
            max_records=_RECORDS_MAX,
            max_bytes=min(enough_bytes, _MEASURED_BYTES),
        )


async def fetch(call: Call) -> Message:
    """Answers Fetch."""
    request = call.request
    if request["session_id"] != 0 and request["session_epoch"] > 0:
        return {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND}
    wanted = list(_wanted(call))
    await _look(call, wanted)
    await call.door.warm.wait()
    found = await _found_at_once(call, wanted)
    if found is None:
        await _until_due(call, wanted)
    with at_work(call):
        found = await _found(call, wanted) if found is None else found
        for each in wanted:
            each.count(call)
    return {"session_id": 0, "responses": _responses(call, wanted, found)}


async def _found_at_once(call: Call, wanted: list[Wanted]) -> list[list[Any]] | None:
    """Reads the answer of a client that is behind; None where it would have to wait for more.

    A client that reads a log from its beginning asks for much at once: it is there, and measuring
    it first would be reading it twice.
    """
    enough_bytes = _enough_bytes(call)
    due = [each for each in wanted if each.end > each.offset]
    if not due or len(due) * batches.HEADER.size >= enough_bytes or call.door.stopping.is_set():
        return None
    with call.door.broker.work.taking():
        found = await _found(call, wanted)
    if call.held_bytes >= enough_bytes or any(each.error is not ErrorCode.NONE for each in wanted):
        return found
    call.door.broker.inflight.give_back(call.held_bytes)
    call.held_bytes = 0
    return None


async def _found(call: Call, wanted: list[Wanted]) -> list[list[Any]]:
    """Reads the batches of each partition; their bytes are held until the answer is taken."""
    granted = await room(call, call.request["max_bytes"])
    try:
        with call.door.broker.tracing.span("fetch", wanted[0].topic if wanted else ""):
            found = await call.in_pool(_read_all, call, wanted, granted)
    except BaseException:
        call.door.broker.inflight.give_back(granted)
        raise
    sent = sum(len(piece) for pieces in found for piece in pieces)
    call.door.broker.inflight.give_back(granted - sent)  # a single record may take more
    call.held_bytes += sent
    return found


def _wanted(call: Call) -> Iterator[Wanted]:
    for topic in call.request["topics"]:
        name, identity = topic["topic"], topic["topic_id"]
        error = ErrorCode.NONE
        if call.version >= 13:
            name = call.door.topic_ids.name_of(call.store, identity) or ""
            if not name or not call.may("read", name):
                error = ErrorCode.UNKNOWN_TOPIC_ID
        for each in topic["partitions"]:
            yield Wanted(
                *(name, identity, each["partition"], each["fetch_offset"]),
                max(1, each["partition_max_bytes"]),
                error,
            )


async def _look(call: Call, wanted: list[Wanted]) -> None:
    """Looks where partitions begin and end; in the pool where an archive may be asked for it."""
    if any(call.asks_archive(topic) for topic in {each.topic for each in wanted}):
        await call.in_pool(_look_at_all, call, wanted)
    else:
        _look_at_all(call, wanted)


def _look_at_all(call: Call, wanted: list[Wanted]) -> None:
    for each in wanted:
        if each.error is ErrorCode.NONE:
            each.look(call)


# ---------------------------------------------------------------- waiting


async def _until_due(call: Call, wanted: list[Wanted]) -> None:
    """Returns when there is enough to answer, or the time is up, or the server stops."""
    wait_s = min(call.request["max_wait_ms"], call.door.broker.settings.wait_ms) / 1000
    if wait_s <= 0 or not wanted or await _is_enough(call, wanted):
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    by_place: dict[tuple[str, int], list[Wanted]] = {}
    for each in wanted:
        by_place.setdefault((each.topic, each.partition), []).append(each)
    async with call.session.waiting:
        logs = logs_of(call, by_place)
        of_log = [by_place[each.place.topic, each.place.partition] for each in logs]
        with Bell(call, logs) as bell:
            await _until_enough(call, (wanted, of_log), bell, deadline)


async def _until_enough(
    call: Call, given: tuple[list[Wanted], list[list[Wanted]]], bell: Bell, deadline: float
) -> None:
    """Looks again at the partitions that ring, given all of them, and those of each log."""
    loop = asyncio.get_running_loop()
    wanted, of_log = given
    looked_at = wanted
    while not call.door.stopping.is_set():
        await _look(call, looked_at)
        left = deadline - loop.time()
        if left <= 0 or await _is_enough(call, wanted):
            return
        looked_at = [each for number in await bell.rung(left) for each in of_log[number]]


async def _is_enough(call: Call, wanted: list[Wanted]) -> bool:
    """Whether an answer would have `min_bytes`; nothing is read where any record is enough."""
    enough_bytes = _enough_bytes(call)
    due = [each for each in wanted if each.end > each.offset]
    has_failed = any(each.error is not ErrorCode.NONE for each in wanted)
    if has_failed or len(due) * batches.HEADER.size >= enough_bytes:
        return True
    return bool(due) and await call.in_pool(_measures, call, due, enough_bytes)


def _enough_bytes(call: Call) -> int:
    """How many bytes an answer waits for."""
    return int(min(call.request["min_bytes"], max(1, call.request["max_bytes"])))


def _measures(call: Call, due: list[Wanted], enough_bytes: int) -> bool:
    """Measures what is there; returns whether it is enough, or cannot be read."""
    left = enough_bytes
    for each in due:
        try:
            each.measure(call, left)
        except LaminaError:
            return True  # reading it for the answer says what is wrong
        left -= each.waiting_bytes
        if left <= 0:
            return True
    return False


async def room(call: Call, max_bytes: int) -> int:
    """Reserves bytes for the answer; a server that is full makes its clients wait."""
    broker = call.door.broker
    most = min(max(1, max_bytes), broker.settings.request_bytes)
    while True:
        try:
            return broker.inflight.take_up_to(most, min(most, LEAST_BYTES))
        except LaminaError:
            await asyncio.sleep(_BUSY_PAUSE_S)


# ---------------------------------------------------------------- reading


def _read_all(call: Call, wanted: list[Wanted], max_bytes: int) -> list[list[Any]]:
    """Reads what there is, in the order of the request, up to the bytes of the whole answer."""
    found: list[list[Any]] = []
    left = max_bytes
    for each in wanted:
        pieces: list[Any] = []
        if each.error is ErrorCode.NONE and each.end > each.offset and left > 0:
            try:
                pieces = _read(call, each, min(left, each.max_bytes))
            except LaminaError as error:
                each.error = call.told(error)[0]
                _note(call, error)
        left -= sum(map(len, pieces))
        found.append(pieces)
    return found


def _note(call: Call, error: LaminaError) -> None:
    """Logs once what keeps a client from its records: its answer has a number and no words."""
    known = call.session.host, str(error)
    if isinstance(error, CorruptData) and known not in call.door.told:
        _log.warning("Fetch of Kafka client %s: %s", call.session.name, error)
        if len(call.door.told) < _LOSSES_MAX:
            call.door.told.add(known)


def _read(call: Call, wanted: Wanted, max_bytes: int) -> list[Any]:
    store: Store = call.store
    fetch = partial(
        store.fetch,
        wanted.topic,
        wanted.partition,
        max_records=_RECORDS_MAX,
        max_bytes=max_bytes,
    )
    found, end = fetch_over(fetch, wanted.offset)
    if isinstance(found, RecordsMissing):
        wanted.earliest = store.earliest_offset(wanted.topic, wanted.partition)
        if wanted.offset < wanted.earliest:
            raise OffsetOutOfRange(f"{wanted.offset} is not there any more") from found
        if found.reason == UNREADABLE or (found.is_loss and _is_news(call, wanted)):
            raise found
        wanted.end = max(wanted.end, end)
        return [_hole(wanted.offset, end)]
    if not found.num_rows:
        return [_hole(wanted.offset, wanted.end)]
    wanted.read = found.num_rows, found.get_total_buffer_size()
    # What came since the end was looked at is in the answer too: its end is not before its records.
    wanted.end = max(wanted.end, end)
    pieces = encoded(store, wanted.topic, found)
    return _bounded(pieces, max_bytes) if _has_append_times(store, wanted.topic) else list(pieces)


def _is_news(call: Call, wanted: Wanted) -> bool:
    """Whether a client has not been told of a loss yet."""
    told = call.session.told_losses
    loss = wanted.topic, wanted.partition, wanted.offset
    if loss in told:
        return False
    if len(told) >= _LOSSES_MAX:
        told.clear()
    told.add(loss)
    return True


def encoded(store: Store, topic: str, found: pa.RecordBatch) -> Iterator[memoryview]:
    """Encodes records of a topic as the batches that a client reads, with the type of its times."""
    if _has_append_times(store, topic):
        return batches.encode_by_append_time(_columns_of(found))
    return batches.encode_all(_columns_of(found))


def _has_append_times(store: Store, topic: str) -> bool:
    return store.topic_changes.settings_in_force(topic).timestamp_type == "LogAppendTime"


def _bounded(pieces: Iterable[memoryview], max_bytes: int) -> list[Any]:
    """Takes batches up to so many bytes: a header for each append may make more of them."""
    taken: list[Any] = []
    for piece in itertools.islice(pieces, _BATCHES_MAX):
        if taken and len(piece) > max_bytes:
            break
        taken.append(piece)
        max_bytes -= len(piece)
    return taken


def _hole(first: int, end: int) -> bytes:
    return batches.empty(first, min(end - 1, first + _SPAN_MAX))


def _columns_of(found: pa.RecordBatch) -> pa.RecordBatch:
    """Gives records of any format the columns that a Kafka client sees."""
    if found.schema.equals(batches.INPUT_SCHEMA):
        return found
    columns = [
        found.column(field.name)
        if field.name in found.schema.names
        else pa.nulls(found.num_rows, field.type)
        for field in batches.INPUT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches.INPUT_SCHEMA)


def _responses(call: Call, wanted: list[Wanted], found: list[list[Any]]) -> list[Message]:
    topics: dict[tuple[str, bytes], list[Message]] = {}
    for each, pieces in zip(wanted, found, strict=True):
        answer = {
            "partition_index": each.partition,
            "error_code": each.error,
            "high_watermark": each.end,
            "last_stable_offset": each.end,
            "log_start_offset": each.earliest,
            "aborted_transactions": [],
            "records": pieces,
        }
        topics.setdefault((each.topic, each.topic_id), []).append(answer)
    return [
        {
            "topic": name,
            "topic_id": identity if call.version >= 13 else NO_ID,
            "partitions": partitions,
        }
        for (name, identity), partitions in topics.items()
    ]
