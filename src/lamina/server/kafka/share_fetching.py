"""ShareFetch: records for one member, which nobody else gets; waiting for them takes no thread.

    session ─▶ acknowledgements, durable ─▶ anything deliverable? ─no─▶ wait: for an append, another
                                              │                        member's ack, a lease's end
                                              └─yes─▶ acquire and encode in the pool ─▶ answer

Rules.
1. Session epochs are checked in the order of requests, before anything waits.
2. An answer holds exactly the records that were acquired, with one range per run of consecutive
   records that have the same delivery count.
3. What is acquired is noted in the session before it is sent. If the session has ended meanwhile,
   it is released again.
4. Partitions take turns at being first, and memory is reserved before records are read.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lamina.errors import LaminaError, UnknownTopic
from lamina.groups.lending import LendingGroup
from lamina.groups.state import Chosen
from lamina.server.kafka.arrivals import Bell
from lamina.server.kafka.fetching import encoded, room
from lamina.server.kafka.sessions import Call, at_work
from lamina.server.kafka.share_acknowledging import (
    LOCK_MS,
    Settled,
    acknowledged,
    leader_of,
    refused,
    settle_all,
)
from lamina.server.kafka.share_groups import group_of
from lamina.server.kafka.share_sessions import CLOSES, OPENS, ShareSession, release
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

DELIVERIES_MAX = (1 << 15) - 1


@dataclass(slots=True)
class Looked:
    """A partition of a session, and what was found there."""

    topic_id: bytes
    partition: int
    topic: str = ""
    group: LendingGroup | None = None
    error: ErrorCode = ErrorCode.NONE
    said: str | None = None
    pieces: list[Any] = field(default_factory=list)
    ranges: list[Message] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether there is nothing to wait for: records, or something wrong."""
        if self.group is None:
            return True
        shared = self.group.partition(self.partition)
        return shared.has_deliverable(self.group.settings.record_locks_max)


async def share_fetch(call: Call) -> Message:
    """Answers ShareFetch."""
    code = refused(call)
    session = _session(call) if code is ErrorCode.NONE else code
    if isinstance(session, ErrorCode):
        return {"error_code": session, "acquisition_lock_timeout_ms": LOCK_MS}
    settled = acknowledged(call)
    with at_work(call):
        if settled:
            await call.in_pool(settle_all, call, session, settled)
        if call.request["share_session_epoch"] == CLOSES:
            await call.in_pool(release, call.store, [session])
            return _answer(call, [], settled)
    await call.door.warm.wait()
    looked = await call.in_pool(_look, call, session)
    if call.request["max_records"] > 0:
        await _until_acquired(call, session, looked)
    return _answer(call, looked, settled)


# ---------------------------------------------------------------- sessions


def _session(call: Call) -> ShareSession | ErrorCode:
    """Opens, continues or closes the session that a request names."""
    request, shares = call.request, call.door.shares
    group, member_id, epoch = (
        request["group_id"],
        request["member_id"],
        request["share_session_epoch"],
    )
    amounts = ("max_wait_ms", "min_bytes", "max_bytes", "max_records")
    if call.version >= 2 and request["is_renew_ack"] and any(request[name] for name in amounts):
        return ErrorCode.INVALID_REQUEST  # who renews fetches nothing
    if epoch == OPENS:
        if acknowledged(call):
            return ErrorCode.INVALID_REQUEST
        if call.store.coordinator.is_known(group):
            return ErrorCode.GROUP_ID_NOT_FOUND
        session, before = shares.open(group, member_id, call.session)
        if before is not None:
            call.door.pool.submit(release, call.store, [before])
        call.session.endings["share sessions"] = functools.partial(_connection_ended, call)
    else:
        session = shares.find(group, member_id, epoch)
    if isinstance(session, ShareSession):
        _update(session, request)
    return session


def _update(session: ShareSession, request: Message) -> None:
    for topic in request["topics"]:
        for each in topic["partitions"]:
            session.partitions[topic["topic_id"], each["partition_index"]] = None
    for topic in request["forgotten_topics_data"]:
        for number in topic["partitions"]:
            session.partitions.pop((topic["topic_id"], number), None)


def _connection_ended(call: Call) -> None:
    sessions = call.door.shares.take_of_owner(call.session)
    if sessions and not call.door.broker.stopping.is_set():
        call.door.pool.submit(release, call.store, sessions)


# ---------------------------------------------------------------- acquiring


def _look(call: Call, session: ShareSession) -> list[Looked]:
    """Finds the group of each partition; what is wrong becomes its error."""
    keys = list(session.partitions)
    first = session.turn % len(keys) if keys else 0
    session.turn += 1
    found: dict[str, LendingGroup] = {}
    looked = [Looked(*key) for key in keys[first:] + keys[:first]]
    for each in looked:
        try:
            name = call.door.topic_ids.name_of(call.store, each.topic_id)
            if name is None or not call.may("read", name):
                each.error = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            if name not in found:
                found[name] = group_of(call.store, name, session.group)
            found[name].partition(each.partition)
            each.topic, each.group = name, found[name]
        except UnknownTopic:
            each.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except LaminaError as error:
            each.error, each.said = call.told(error)
    for each in looked:  # what is not there is told once, and looked for no more
        if each.error in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            session.partitions.pop((each.topic_id, each.partition), None)
    return looked


async def _until_acquired(call: Call, session: ShareSession, looked: list[Looked]) -> None:
    """Returns when something was acquired or is wrong, the time is up, or the server stops."""
    loop = asyncio.get_running_loop()
    wait_ms = min(call.request["max_wait_ms"], call.door.broker.settings.wait_ms)
    deadline = loop.time() + max(0, wait_ms) / 1000
    shared = [each.group.partition(each.partition) for each in looked if each.group is not None]
    async with call.session.waiting:  # of the long polls of a connection one waits at a time
        with Bell(call, shared) as bell:
            while not call.door.stopping.is_set():
                if any(each.is_due for each in looked):
                    await _acquire(call, session, looked)
                left_s = deadline - loop.time()
                if left_s <= 0 or any(each.ranges or each.error for each in looked):
                    return
                ends = [(each, each.next_deadline_ms()) for each in shared]
                until = [(end - each.now_ms()) / 1000 for each, end in ends if end is not None]
                await bell.rung(max(0.001, min(left_s, *until)) if until else left_s)


async def _acquire(call: Call, session: ShareSession, looked: list[Looked]) -> None:
    with at_work(call):
        granted = await room(call, call.request["max_bytes"])
        try:
            await call.in_pool(_acquire_all, call, session, looked, granted)
        except BaseException:
            call.door.broker.inflight.give_back(granted)
            raise
        sent = sum(len(piece) for each in looked for piece in each.pieces)
        call.door.broker.inflight.give_back(granted - sent)  # a single record may take more
        call.held_bytes += sent


def _acquire_all(call: Call, session: ShareSession, looked: list[Looked], max_bytes: int) -> None:
    records, left = call.request["max_records"], max_bytes
    for each in looked:
        if each.group is None or records <= 0 or left <= 0:
            continue
        try:
            count = _acquire_of(call, session, each, (records, left))
        except LaminaError as error:
            each.error, each.said = call.told(error)
            continue
        records -= count
        left -= sum(map(len, each.pieces))


def _acquire_of(call: Call, session: ShareSession, looked: Looked, most: tuple[int, int]) -> int:
    """Acquires records of a partition for a session; returns how many."""
    assert looked.group is not None
    batch, chosen, deadline_ms = looked.group.acquire(looked.partition, *most)
    if not batch.num_rows:
        return 0
    shared = looked.group.partition(looked.partition)
    place = looked.topic, looked.partition
    if not session.hold(place, chosen, deadline_ms, shared.now_ms()):
        shared.release(chosen.offsets, chosen.epochs)
        return 0
    metrics = call.door.broker.metrics
    metrics.read.inc(batch.num_rows)
    metrics.topics.read(looked.topic, batch.num_rows, batch.get_total_buffer_size())
    looked.pieces = list(encoded(call.store, looked.topic, batch))
    looked.ranges = ranges_of(chosen)
    return int(batch.num_rows)


def ranges_of(chosen: Chosen) -> list[Message]:
    """Returns a range for each run of consecutive records that were delivered equally often."""
    breaks = np.flatnonzero((np.diff(chosen.offsets) != 1) | (np.diff(chosen.epochs) != 0))
    firsts = np.concatenate(([0], breaks + 1))
    lasts = np.concatenate((breaks, [len(chosen.offsets) - 1]))
    columns = (
        chosen.offsets[firsts].tolist(),
        chosen.offsets[lasts].tolist(),
        np.minimum(chosen.epochs[firsts], DELIVERIES_MAX).tolist(),
    )
    return [
        {"first_offset": first, "last_offset": last, "delivery_count": count}
        for first, last, count in zip(*columns, strict=True)
    ]


# ---------------------------------------------------------------- answering


def _answer(call: Call, looked: list[Looked], settled: list[Settled]) -> Message:
    """Answers for every partition that has news, and every one that was asked for."""
    acks = {(each.topic_id, each.partition): each for each in settled}
    found = {(each.topic_id, each.partition): each for each in looked}
    asked = {
        (topic["topic_id"], each["partition_index"])
        for topic in call.request["topics"]
        for each in topic["partitions"]
    }
    topics: dict[bytes, list[Message]] = {}
    for key in {**found, **acks}:
        part, ack = found.get(key, Looked(*key)), acks.get(key)
        if key not in asked and not part.ranges and not part.error:
            continue
        row = {
            "partition_index": part.partition,
            "error_code": part.error,
            "error_message": part.said,
            "acknowledge_error_code": ack.error if ack else ErrorCode.NONE,
            "acknowledge_error_message": ack.said if ack else None,
            "current_leader": leader_of(call),
            "records": part.pieces,
            "acquired_records": part.ranges,
        }
        topics.setdefault(part.topic_id, []).append(row)
    locks = {each.group.settings.lease_ms for each in looked if each.group is not None}
    return {
        "acquisition_lock_timeout_ms": min(locks, default=LOCK_MS),
        "responses": [{"topic_id": key, "partitions": rows} for key, rows in topics.items()],
    }
