"""CreatePartitions: a topic gets more partitions, up to a count.

Rules.
1. There is one broker. Assignments of replicas are accepted where they name it alone, one for each
   new partition, and refused otherwise; nothing else could be done with them.
2. `validate_only` refuses what the same request without it would refuse.
"""

from __future__ import annotations

from lamina.errors import InvalidRequest, LaminaError, UnknownTopic
from lamina.server.kafka.sessions import Call, at_work
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode


async def create_partitions(call: Call) -> Message:
    """Answers CreatePartitions."""
    asked = call.request["topics"]
    names = [topic["name"] for topic in asked]
    with at_work(call):
        grown = [await call.in_pool(_grow, call, topic, names) for topic in asked]
    return {"results": grown}


def _grow(call: Call, asked: Message, names: list[str]) -> Message:
    name, total = asked["name"], asked["count"]
    try:
        call.caller.require("admin", name, "create partitions")
        if names.count(name) > 1:
            return _refused(name, ErrorCode.INVALID_REQUEST, f"topic {name!r} is named twice")
        call.store.topic_changes.check_growth(name, total)
        count = call.store.format_of(name)[1]
        if asked["assignments"] is not None and not _is_ours(
            call, asked["assignments"], total - count
        ):
            said = f"each of {total - count} new partitions can only be on broker {call.node_id}"
            return _refused(name, ErrorCode.INVALID_REPLICA_ASSIGNMENT, said)
        if not call.request["validate_only"]:
            given = {"topic": name, "total": total}
            call.door.broker.call(call.caller, "add_partitions", given)
    except LaminaError as error:
        code, said = call.told(error)
        is_count = isinstance(error, InvalidRequest) and not isinstance(error, UnknownTopic)
        is_count = is_count and code is ErrorCode.INVALID_REQUEST
        return _refused(name, ErrorCode.INVALID_PARTITIONS if is_count else code, said)
    return {"name": name, "error_message": None}


def _is_ours(call: Call, assignments: list[Message], wanted: int) -> bool:
    return len(assignments) == wanted and all(
        each["broker_ids"] == [call.node_id] for each in assignments
    )


def _refused(name: str, code: ErrorCode, said: str) -> Message:
    return {"name": name, "error_code": code, "error_message": said}
