"""Produce: batches of a client become appends, in the order in which they came.

    frame ─▶ may it? ─▶ decode (in the loop if small, else in the pool) ─▶ append_async ─▶ answer

Rules.
1. The appends of one connection enter the log's queues in the order of its requests: a request
   waits for its turn until the one before has entered, not until that one is durable.
2. A batch is stored whole or not at all, and its answer says which; one bad partition does not
   keep the others from being stored.
3. With acks 0 nobody is answered: what goes wrong ends the connection, or nobody would know.
4. What a topic's format cannot keep is refused and names the first record that has it, and so is
   a record without a key where `cleanup.policy` needs one.
5. With acks=all an answer leaves after `timeout_ms` at the latest; what is queued is not undone.
6. `max.message.bytes` bounds the batch as it came, as in Kafka, and each record, as in the log.
7. Nothing of a batch is looked at before its client may write to the topic and its size is right;
   what it unpacks to is bounded and counted (`unpacking`).
8. Batches of a transaction are kept aside (`transactional_produce`): none enters a log before the
   commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pyarrow as pa

from lamina.api import Ack, Appended, ProducerStamp
from lamina.errors import LaminaError, Unavailable, UnsupportedField
from lamina.formats.kafka import batch as batches
from lamina.formats.kafka.batch import Batch
from lamina.formats.kafka.compression import Codec
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.log.producers import KAFKA
from lamina.records import KEPT_COLUMNS, NULL_VALUES, Decoded
from lamina.server.kafka import transactional_produce as staging
from lamina.server.kafka.sessions import SMALL_BYTES, Call, Later, at_work
from lamina.server.kafka.unpacking import TooMuchForTheLoop, UnpackingRoom
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.messages import Order

_ACKS = {0: "0", 1: "1", -1: "all"}
_ZSTD_FIRST_VERSION = 7
_FIELDS = ("key", "headers")
_APPEND_TIME = "LogAppendTime"

Part = tuple[str, int, "Batch | LaminaError"]


def produce(call: Call) -> Message | Later | Awaitable[Message | None]:
    """Answers Produce; what is small is decoded before this returns, from the frame itself."""
    session = call.session
    before = session.turn if session.turn is not None and not session.turn.done() else None
    in_transaction = call.request["transactional_id"] is not None
    is_small = call.size_bytes <= SMALL_BYTES and not in_transaction
    if before is None and is_small and call.door.warm.is_set():
        with contextlib.suppress(TooMuchForTheLoop):
            parts = _decoded(call, UnpackingRoom(call, in_loop=True))
            return _queued(call, parts) if _is_plain(call, parts) else _append(call, parts)
    call.session.frames.keep_frame()
    turn = session.turn = asyncio.get_running_loop().create_future()
    return (_staged_in_turn if in_transaction else _in_turn)(call, before, turn)


# ---------------------------------------------------------------- one small batch, without a task


def _is_plain(call: Call, parts: list[Part]) -> bool:
    """Whether this is what lone producers send: one good batch, answered when it is stored."""
    if len(parts) != 1 or call.request["acks"] not in (1, -1) or call.door.broker.tracing.is_on:
        return False
    topic, _, batch = parts[0]
    if isinstance(batch, LaminaError) or call.door.broker.stopping.is_set():
        return False
    settings = call.store.topic_changes.settings_in_force(topic)
    return settings.timestamp_type != _APPEND_TIME


def _queued(call: Call, parts: list[Part]) -> Message | Later:
    """Queues the append; its answer is sent by a callback, in the loop."""
    started = time.perf_counter()
    broker, later = call.door.broker, Later()
    try:
        append, timeout_s = _enter(call, parts[0])
    except LaminaError as error:
        broker.note_refused(call.caller, "append", error, parts[0][0])
        return _response(call, parts, [_unstored(call, parts[0], error)]) or {}
    timer = None
    if timeout_s is not None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_s, _late, call, parts, timeout_s, later)

    def settled(append: asyncio.Future[Ack]) -> None:
        if timer is not None:
            timer.cancel()
        broker.leave(0)
        later.answer(_response(call, parts, [_outcome(call, parts[0], append, started)]))

    append.add_done_callback(settled)
    return later


def _enter(call: Call, part: Part) -> tuple[asyncio.Future[Ack], float | None]:
    """Queues a batch in the log, which the loop may have to write; returns how long to wait."""
    topic, partition, batch = part
    assert isinstance(batch, Batch)
    acks, stamp = _ACKS[call.request["acks"]], _stamp(batch)
    store = call.door.broker.admit(call.caller, 0)
    try:
        where = topic, Decoded(batch.records), partition
        append = store.appends.append_soon(*where, acks, stamp, call.door.lead_soon)
    except BaseException:
        call.door.broker.leave(0)
        raise
    return append, _timeout_s(call, acks)


def _outcome(call: Call, part: Part, append: asyncio.Future[Ack], started: float) -> Message:
    """Makes the answer to what was stored, or refused by the log."""
    topic, partition, batch = part
    assert isinstance(batch, Batch)
    try:
        ack = append.result()
        call.door.broker.place.confirm()
    except LaminaError as error:
        call.door.broker.note_refused(call.caller, "append", error, topic)
        return _unstored(call, part, error)
    call.door.broker.note_appended(topic, ack.count, batch.size_bytes, started)
    call.door.broker.metrics.count("kafka.Produce", "ok")
    return _stored(call, part, Appended({partition: ack}, ack.count))


def _late(call: Call, parts: list[Part], timeout_s: float, later: Later) -> None:
    """Answers a client whose time is up; what is queued is stored all the same (rule 5)."""
    later.answer(_response(call, parts, [_unstored(call, parts[0], _not_in_time(timeout_s))]))


# ---------------------------------------------------------------- everything else


async def _staged_in_turn(
    call: Call, before: asyncio.Future[None] | None, turn: asyncio.Future[None]
) -> Message | None:
    """Keeps batches of a transaction; the next request waits until that is done."""
    room = UnpackingRoom(call, in_loop=False)
    try:
        await call.door.warm.wait()
        parts = await call.in_pool(_decoded, call, room)
        if before is not None:
            await before
        with at_work(call):
            answers = await call.in_pool(_staged, call, parts)
    finally:
        turn.set_result(None)
        room.end()
    return _response(call, parts, answers)


def _staged(call: Call, parts: list[Part]) -> list[Message]:
    if not staging.may_use(call):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return [_refused(part, code, "not an id of this key") for part in parts]
    sent = (each for topic in call.request["topic_data"] for each in topic["partition_data"])
    answers: list[Message] = []
    for part, each in zip(parts, sent, strict=True):
        topic, partition, batch = part
        try:
            if isinstance(batch, LaminaError):
                raise batch
            staging.stage(call, (topic, partition), batch, each["records"])
            answers.append(_stored(call, part, Appended({}, batch.records.num_rows)))
        except LaminaError as error:
            answers.append(_unstored(call, part, error))
    return answers


async def _in_turn(
    call: Call, before: asyncio.Future[None] | None, turn: asyncio.Future[None]
) -> Message | None:
    room = UnpackingRoom(call, in_loop=False)
    try:
        try:
            await call.door.warm.wait()
            parts = await call.in_pool(_decoded, call, room)
            if before is not None:
                await before
            appending = asyncio.ensure_future(_append(call, parts))
            await asyncio.sleep(0)  # the append is queued by its first step
        finally:
            turn.set_result(None)
        return await appending
    finally:
        room.end()


def _decoded(call: Call, room: UnpackingRoom) -> list[Part]:
    """Decodes the batch of each partition; a bad one becomes its error."""
    parts: list[Part] = []
    for topic in call.request["topic_data"]:
        for each in topic["partition_data"]:
            found: Batch | LaminaError
            try:
                _require(call, topic["name"], each["records"])
                found = _batch(call, each["records"], room)
            except TooMuchForTheLoop:
                raise
            except LaminaError as error:
                found = error
            parts.append((topic["name"], each["index"], found))
    return parts


def _require(call: Call, topic: str, records: memoryview | None) -> None:
    """Refuses what may not be appended, whatever it holds: by scope, topic, and size as it came."""
    try:
        call.caller.require("write", topic, "append")
    except LaminaError as error:
        call.door.broker.note_refused(call.caller, "append", error, topic)
        raise
    limit = call.store.topic_changes.settings_in_force(topic).max_message_bytes
    if records is not None and len(records) > limit:
        raise BadBatch(
            Fault.TOO_LARGE,
            f"a batch of {len(records)} bytes is over max.message.bytes {limit} of the topic",
        )


def _batch(call: Call, records: memoryview | None, room: UnpackingRoom) -> Batch:
    if not records:
        raise BadBatch(Fault.INVALID, "a partition takes one batch per request, not none")
    found = batches.decode(records, room.bytes_max, room.take)
    if found.codec is Codec.ZSTD and call.version < _ZSTD_FIRST_VERSION:
        raise BadBatch(Fault.CODEC, "zstd needs Produce 7 or later")
    if found.is_transactional != (call.request["transactional_id"] is not None):
        raise BadBatch(Fault.INVALID, "batches and their request are of a transaction, or neither")
    return found


async def _append(call: Call, parts: list[Part]) -> Message | None:
    acks = _ACKS.get(call.request["acks"])
    with at_work(call):
        if acks is None:
            code = ErrorCode.INVALID_REQUIRED_ACKS
            answers: list[Message] = [
                _refused(part, code, "acks are 0, 1 or all") for part in parts
            ]
        else:
            answers = await _appended(call, acks, parts)
    return _response(call, parts, answers)


def _response(call: Call, parts: list[Part], answers: list[Message]) -> Message | None:
    """Makes the answer; with acks 0 there is none."""
    if call.request["acks"] == 0:
        call.session.refused |= any(each["error_code"] is not ErrorCode.NONE for each in answers)
        return None
    topics: dict[str, list[Message]] = {}
    for (topic, _, _), answer in zip(parts, answers, strict=True):
        topics.setdefault(topic, []).append(answer)
    responses = [{"name": name, "partition_responses": each} for name, each in topics.items()]
    return {"responses": responses}


async def _appended(call: Call, acks: str, parts: list[Part]) -> list[Message]:
    if len(parts) == 1:
        return [await _append_one(call, acks, parts[0])]
    # Tasks take their first step in the order in which they were made: that queues the appends.
    tasks = [asyncio.ensure_future(_append_one(call, acks, part)) for part in parts]
    return [await task for task in tasks]


async def _append_one(call: Call, acks: str, part: Part) -> Message:
    topic, partition, batch = part
    try:
        if isinstance(batch, LaminaError):
            raise batch
        order = Order(topic, partition, acks, _timeout_s(call, acks), _stamp(batch))
        appended = await _in_time(call, order, batch.records)
    except LaminaError as error:
        return _unstored(call, part, error)
    call.door.broker.metrics.topics.appended(topic, 0, batch.size_bytes)
    answer = _stored(call, part, appended)
    if acks != "0":
        at = topic, partition, answer["base_offset"]
        answer["log_append_time_ms"] = await _append_time_ms(call, *at)
    return answer


async def _append_time_ms(call: Call, topic: str, partition: int, offset: int) -> int:
    """Returns the time that replaced the records' own, -1 where the topic keeps theirs.

    The log is asked, so a repeat gets the time of the append that stored it.
    """
    try:
        kind = call.store.topic_changes.settings_in_force(topic).timestamp_type
        if kind != _APPEND_TIME or offset < 0:
            return -1
        look = partial(call.store.fetch, max_records=1, isolation="written")
        found = await call.in_pool(look, topic, partition, offset)
    except LaminaError:  # it was stored, and may be gone: nobody sends it again for that
        return -1
    is_there = found.num_rows and found["offset"][0].as_py() == offset
    return int(found["timestamp"][0].value) if is_there else -1


async def _in_time(call: Call, order: Order, records: pa.RecordBatch) -> Appended:
    """Appends; raises Unavailable when the client's time is up.

    What has entered the log's queue is stored all the same, as in Kafka: only nobody waits for it.
    """
    # Not `asyncio.timeout`: an append that is cancelled is taken back.
    append = asyncio.ensure_future(call.door.broker.append_async(call.caller, order, records))
    done, _ = await asyncio.wait({append}, timeout=order.timeout_s)
    if done:
        return append.result()
    append.add_done_callback(_unheard)
    raise _not_in_time(order.timeout_s)


def _not_in_time(timeout_s: float | None) -> Unavailable:
    return Unavailable(f"the records were not durable within {timeout_s} s; they may be stored yet")


def _unheard(append: asyncio.Future[Appended]) -> None:
    """Takes the answer that nobody waits for; the client was told that it does not know."""
    if not append.cancelled():
        append.exception()


def _timeout_s(call: Call, acks: str) -> float | None:
    """How long the client waits; as in Kafka, only acks=all has an end."""
    return max(1, int(call.request["timeout_ms"])) / 1000 if acks == "all" else None


def _stamp(batch: Batch) -> ProducerStamp | None:
    if batch.producer_id < 0:
        return None
    if batch.producer_epoch < 0 or batch.base_sequence < 0:
        raise BadBatch(Fault.INVALID, "an idempotent batch has an epoch and a sequence")
    return ProducerStamp(batch.producer_id | KAFKA, batch.producer_epoch, batch.base_sequence)


def _stored(call: Call, part: Part, appended: Appended) -> Message:
    topic, partition, batch = part
    ack = appended.parts.get(partition)
    assert isinstance(batch, Batch)
    answer = {
        "index": partition,
        "error_code": ErrorCode.NONE,
        "base_offset": ack.base_offset if ack is not None else -1,
        "log_append_time_ms": -1,
    }
    if call.version >= 5:
        answer["log_start_offset"] = _log_start(call, topic, partition)
    return answer


def _log_start(call: Call, topic: str, partition: int) -> int:
    """Returns where the log begins, -1 if nobody can say now: the records are stored anyway."""
    if call.asks_archive(topic):
        return -1
    try:
        return call.store.earliest_offset(topic, partition)
    except LaminaError:  # the topic was deleted meanwhile, or the server stops
        return -1


def _unstored(call: Call, part: Part, error: LaminaError) -> Message:
    """Makes the answer for a batch that was not stored; names the record where one is at fault."""
    batch = part[2]
    code, said = staging.code_of(call, error)
    answer = _refused(part, code, said)
    record: int | None = error.record if isinstance(error, BadBatch) else None
    if isinstance(error, UnsupportedField) and isinstance(batch, Batch):
        record = _first_unkept(call, part[0], batch.records)
    if record is not None:
        answer["record_errors"] = [{"batch_index": record, "batch_index_error_message": said}]
    return answer


def _refused(part: Part, code: int, said: str) -> Message:
    return {
        "index": part[1],
        "error_code": code,
        "base_offset": -1,
        "error_message": said,
    }


def _first_unkept(call: Call, topic: str, records: pa.RecordBatch) -> int | None:
    """Returns the first record that the topic cannot keep for what it has, or has not."""
    format_name, _ = call.store.format_of(topic)
    found: list[int] = []
    for name in _FIELDS:
        if name not in KEPT_COLUMNS[format_name]:
            found.append(_first(records[name].is_valid()))
    if call.store.topic_changes.settings_in_force(topic).needs_keys:
        found.append(_first(records["key"].is_null()))
    if format_name not in NULL_VALUES:
        found.append(_first(records["value"].is_null()))
    return min((each for each in found if each >= 0), default=None)


def _first(mask: Any) -> int:
    return int(mask.index(pa.scalar(True)).as_py())
