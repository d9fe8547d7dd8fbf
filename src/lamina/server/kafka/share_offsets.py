"""The offsets of share groups: described, altered and deleted (KIP-932, KIP-1226).

The start offset of a share group is Lamina's `acked until`: all records before it are acked.

Rules.
1. Offsets are altered or deleted only while the group has no members: NON_EMPTY_GROUP otherwise.
2. Altering is `reset_group`: it is durable, limited to the offsets that exist, and forgets delivery
   counts and acks ahead. It creates the group in topics that it has not read yet.
3. As at the other doors, describing needs the scope `read`, altering and deleting need `admin`, for
   the group and for each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lamina.api.answers import PartitionLag
from lamina.errors import LaminaError, UnknownGroup, UnknownTopic
from lamina.server.kafka.classic_groups import may_use
from lamina.server.kafka.sessions import Call, at_work
from lamina.server.kafka.share_groups import group_of
from lamina.server.kafka.topic_ids import NO_ID, topic_id
from lamina.store.store import Store
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.operations import Scope

_NOWHERE = -1


async def describe_share_group_offsets(call: Call) -> Message:
    """Answers DescribeShareGroupOffsets."""
    with at_work(call):
        asked = {each["group_id"]: each["topics"] for each in call.request["groups"]}  # each once
        return {"groups": [await call.in_pool(_described, call, *each) for each in asked.items()]}


async def alter_share_group_offsets(call: Call) -> Message:
    """Answers AlterShareGroupOffsets."""
    with at_work(call):
        return await call.in_pool(_changed, call, _moved)


async def delete_share_group_offsets(call: Call) -> Message:
    """Answers DeleteShareGroupOffsets."""
    with at_work(call):
        return await call.in_pool(_changed, call, _forgotten)


# ---------------------------------------------------------------- looking


def _described(call: Call, group: str, asked: list[Message] | None) -> Message:
    refused = _refusal(call, group, "read")
    if refused is not None:
        return {"group_id": group, "topics": []} | refused
    if asked is None:
        names = sorted(topic for topic in _topics_of(call, group) if call.may("read", topic))
        asked = [{"topic_name": name, "partitions": None} for name in names]
    return {"group_id": group, "topics": [_topic(call, group, each) for each in asked]}


def _topic(call: Call, group: str, asked: Message) -> Message:
    name, numbers = asked["topic_name"], asked["partitions"]
    try:
        call.caller.require("read", name, call.name)
        identity, count = topic_id(call.store, name), call.store.format_of(name)[1]
        lags = _lags(call.store, name, group)
    except LaminaError as error:
        return _row(name, NO_ID, [_no(each, *call.told(error)) for each in numbers or ()])
    rows = [
        _standing(number, lags.get(number))
        if 0 <= number < count
        else _no(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has {count} partitions")
        for number in (range(count) if numbers is None else numbers)
    ]
    return _row(name, identity, rows)


def _lags(store: Store, topic: str, group: str) -> dict[int, PartitionLag]:
    """Returns how far a group is in each partition; nothing where it has not begun."""
    try:
        return {each.partition: each for each in store.describe_group(topic, group).partitions}
    except UnknownGroup:
        return {}


def _standing(number: int, lag: PartitionLag | None) -> Message:
    if lag is None:
        return {"partition_index": number, "start_offset": _NOWHERE, "lag": _NOWHERE}
    return {"partition_index": number, "start_offset": lag.committed, "lag": lag.records}


def _no(number: int, code: ErrorCode, said: str) -> Message:
    return _standing(number, None) | {"error_code": code, "error_message": said}


def _row(name: str, identity: bytes, partitions: list[Message]) -> Message:
    return {"topic_name": name, "topic_id": identity, "partitions": partitions}


# ---------------------------------------------------------------- changing


def _changed(call: Call, change: Callable[[Call, str, Message], Message]) -> Message:
    group = call.request["group_id"]
    refused = _refusal(call, group, "admin")
    if refused is None and call.store.coordinator.share.has_members(group):
        said = f"group {group!r} has members; stop them first"
        refused = {"error_code": ErrorCode.NON_EMPTY_GROUP, "error_message": said}
    if refused is not None:
        return refused
    return {"responses": [_answered(call, group, each, change) for each in call.request["topics"]]}


def _answered(
    call: Call, group: str, asked: Message, change: Callable[[Call, str, Message], Message]
) -> Message:
    """Changes a topic of a group; an error is returned for the topic, or each of its partitions."""
    name = asked["topic_name"]
    try:
        call.caller.require("admin", name, call.name)
        named = {"topic_name": name, "topic_id": topic_id(call.store, name)}
        return named | change(call, group, asked)
    except LaminaError as error:
        code, said = call.told(error)
        no = {"error_code": code, "error_message": said}
        numbers = [each["partition_index"] for each in asked.get("partitions", ())]
        rows = [{"partition_index": number} | no for number in numbers]
        return _row(name, NO_ID, rows) | no


def _moved(call: Call, group: str, asked: Message) -> Message:
    store, name = call.store, asked["topic_name"]
    count = store.format_of(name)[1]
    group_of(store, name, group)
    rows = []
    for each in asked["partitions"]:
        number, offset = each["partition_index"], each["start_offset"]
        row: Message = {"partition_index": number}
        if not 0 <= number < count:
            said = f"{name} has {count} partitions"
            row |= {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "error_message": said}
        elif offset < 0:
            row |= {"error_code": ErrorCode.INVALID_REQUEST, "error_message": "offsets are from 0"}
        else:
            store.reset_group(name, group, to=offset, partitions=[number], execute=True)
        rows.append(row)
    return {"partitions": rows}


def _forgotten(call: Call, group: str, asked: Message) -> Message:
    name = asked["topic_name"]
    if name not in _topics_of(call, group):
        raise UnknownTopic(f"group {group!r} has read nothing of {name!r}")
    call.store.delete_group(name, group)
    return {}


# ---------------------------------------------------------------- which groups


def _refusal(call: Call, group: str, scope: Scope) -> Message | None:
    """Returns why nothing is said of a group at all."""
    if not may_use(call, group, scope):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    coordinator = call.store.coordinator
    is_seen = any(call.may("read", topic) for topic in _topics_of(call, group))
    is_there = is_seen or coordinator.share.has_members(group)
    if is_there and not coordinator.is_known(group):
        return None
    said = f"there is no share group {group!r}"
    return {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": said}


def _topics_of(call: Call, group: str) -> Iterable[str]:
    """Returns the topics in which a group has begun."""
    return [topic for topic, name in call.store.groups() if name == group]
