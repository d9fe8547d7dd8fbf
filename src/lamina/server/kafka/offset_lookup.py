"""ListOffsets and OffsetForLeaderEpoch: where records are, by time and by epoch.

Leader epochs never change here, and readers never see a record that vanishes: whatever a client
read in epoch 0 is still there, up to the end.

Rule: a request asks once for each partition, as in Kafka. A search by time reads, and a short
request could otherwise ask for it thousands of times.
"""

from __future__ import annotations

from collections import Counter

from lamina.errors import LaminaError
from lamina.server.kafka.cluster_metadata import LEADER_EPOCH
from lamina.server.kafka.sessions import Call, at_work
from lamina.store.store import Store
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

LATEST, EARLIEST, NEWEST_TIME, LOCAL_START, LAST_ARCHIVED = -1, -2, -3, -4, -5
_NOWHERE = (-1, -1)
_TIME_MIN_MS, _TIME_END_MS = -(1 << 63), 1 << 63


async def list_offsets(call: Call) -> Message:
    """Answers ListOffsets."""
    with at_work(call):
        return await call.in_pool(_list_offsets, call)


def _list_offsets(call: Call) -> Message:
    topics = call.request["topics"]
    asked = [(topic["name"], each) for topic in topics for each in topic["partitions"]]
    times = Counter((name, each["partition_index"]) for name, each in asked)
    twice = {place for place, count in times.items() if count > 1}
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    _found(call, topic["name"], each, twice) for each in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


def _found(call: Call, topic: str, asked: Message, twice: set[tuple[str, int]]) -> Message:
    partition = asked["partition_index"]
    if (topic, partition) in twice:
        return {"partition_index": partition, "error_code": ErrorCode.INVALID_REQUEST}
    try:
        call.caller.require("read", topic, "list offsets")
        offset, timestamp = _lookup(call.store, topic, partition, asked["timestamp"])
    except LaminaError as error:
        return {"partition_index": partition, "error_code": call.told(error)[0]}
    epoch = -1 if offset < 0 else LEADER_EPOCH
    return {
        "partition_index": partition,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": epoch,
    }


def _lookup(store: Store, topic: str, partition: int, asked: int) -> tuple[int, int]:
    """Returns an offset and, where it was asked for by time, the time of its record."""
    if asked == LATEST:
        return store.latest_offset(topic, partition), -1
    if asked == EARLIEST:
        return store.earliest_offset(topic, partition), -1
    if asked == LOCAL_START:
        return _local_start(store, topic, partition), -1
    if asked == LAST_ARCHIVED:
        return _last_archived(store, topic, partition), -1
    if asked == NEWEST_TIME:
        return _newest(store, topic, partition)
    if asked < 0:
        return _NOWHERE
    return _at_or_after(store, topic, partition, asked)


def _local_start(store: Store, topic: str, partition: int) -> int:
    """Returns where the records begin that are on the local disk."""
    layers = store.segments(topic, partition)
    local = [each.base_offset for each in layers if not each.cold]
    end = store.latest_offset(topic, partition)
    return max(store.earliest_offset(topic, partition), min(local, default=end))


def _last_archived(store: Store, topic: str, partition: int) -> int:
    """Returns the last offset that the archive has, whether or not it is here too; or -1."""
    earliest = store.earliest_offset(topic, partition)
    store.segments(topic, partition)  # asks the archive, if nobody has yet
    layers = store.layers(topic, partition)
    ends = [each.next_offset for each in layers if each.archived]
    end = max(ends, default=earliest)
    return end - 1 if end > earliest else -1


def _at_or_after(store: Store, topic: str, partition: int, time_ms: int) -> tuple[int, int]:
    offset = store.offset_for_time(topic, partition, time_ms)
    if offset is None:
        return _NOWHERE
    found = store.fetch(topic, partition, offset, max_records=1)
    if not found.num_rows:
        return _NOWHERE
    return found["offset"][0].as_py(), int(found["timestamp"][0].value)


def _newest(store: Store, topic: str, partition: int) -> tuple[int, int]:
    """Returns the first record of the newest time.

    That is mostly the time of the last record. A later one is looked for in steps that double,
    then by halves, each asked of the time index.
    """
    best = _at_or_after(store, topic, partition, _last_time(store, topic, partition))
    low, high, step = best[1], _TIME_END_MS, 1
    while best[0] >= 0 and low + 1 < high:
        middle = min(low + step, (low + high) // 2)
        found = _at_or_after(store, topic, partition, middle)
        if found[0] < 0:
            high = middle
        else:
            best, low, step = found, found[1], step * 2
    return best


def _last_time(store: Store, topic: str, partition: int) -> int:
    """Returns the time of the last record; the earliest time there is where that one is gone."""
    last = store.latest_offset(topic, partition) - 1
    if last < store.earliest_offset(topic, partition):
        return _TIME_MIN_MS
    try:
        found = store.fetch(topic, partition, last, max_records=1)
    except LaminaError:  # it is only where to begin: reading on says what is wrong
        return _TIME_MIN_MS
    return int(found["timestamp"][0].value) if found.num_rows else _TIME_MIN_MS


def offsets_for_leader_epoch(call: Call) -> Message:
    """Answers OffsetForLeaderEpoch: epoch 0 ends where the log does."""
    topics = []
    for topic in call.request["topics"]:
        partitions = [_end(call, topic["topic"], each) for each in topic["partitions"]]
        topics.append({"topic": topic["topic"], "partitions": partitions})
    return {"topics": topics}


def _end(call: Call, topic: str, asked: Message) -> Message:
    partition = asked["partition"]
    try:
        call.caller.require("read", topic, "offsets for leader epoch")
        end = call.store.latest_offset(topic, partition)
    except LaminaError as error:
        return {"partition": partition, "error_code": call.told(error)[0]}
    if asked["current_leader_epoch"] > LEADER_EPOCH:
        return {"partition": partition, "error_code": ErrorCode.UNKNOWN_LEADER_EPOCH}
    if asked["leader_epoch"] != LEADER_EPOCH:
        return {"partition": partition}
    return {"partition": partition, "leader_epoch": LEADER_EPOCH, "end_offset": end}
