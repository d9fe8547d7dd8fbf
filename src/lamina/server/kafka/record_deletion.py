"""DeleteRecords: where a partition's records begin is moved up, to any offset up to its end.

Rule: every partition has an answer of its own, and one that is refused keeps no other back.
"""

from __future__ import annotations

from lamina.errors import LaminaError
from lamina.server.kafka.sessions import Call, at_work
from lamina.wire.kafka.codec import Message

HIGH_WATERMARK = -1
"""Stands for the end of the partition as it is now."""
_NO_WATERMARK = -1


async def delete_records(call: Call) -> Message:
    """Answers DeleteRecords with the new beginning of each partition."""
    topics = []
    with at_work(call):
        for topic in call.request["topics"]:
            name, asked = topic["name"], topic["partitions"]
            parts = [await call.in_pool(_deleted, call, name, each) for each in asked]
            topics.append({"name": name, "partitions": parts})
    return {"topics": topics}


def _deleted(call: Call, topic: str, asked: Message) -> Message:
    partition, before = asked["partition_index"], asked["offset"]
    answer = {"partition_index": partition, "low_watermark": _NO_WATERMARK}
    where = {"topic": topic, "partition": partition}
    try:
        call.caller.require("admin", topic, "delete records")
        if before == HIGH_WATERMARK:
            before = call.store.latest_offset(topic, partition)
        given = where | {"before_offset": before}
        low_watermark = call.door.broker.call(call.caller, "delete_records", given)
    except LaminaError as error:
        return answer | {"error_code": call.told(error)[0]}
    return answer | {"low_watermark": low_watermark}
