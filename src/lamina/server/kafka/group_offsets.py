"""Committed offsets for Kafka clients: commit, fetch, delete.

Rules.
1. A commit is durable before it is answered; all partitions of a request are one write.
2. The commits of one connection count in the order in which they came.
3. A group or a partition without a commit is -1 and no error: the client decides where to begin.
4. What waits for the end of a transaction is not given to a caller that asks for stable offsets:
   it has to ask again, or it would go on from before the transaction.
5. Offsets of topics that a key is not for are neither taken nor told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from lamina.api.memberships import Committed, Identity, Refusal
from lamina.errors import LaminaError, UnknownTopic
from lamina.groups.offset_journal import METADATA_BYTES_MAX
from lamina.server.kafka.classic_groups import answered, may_use, refusal_of
from lamina.server.kafka.sessions import Call, at_work
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

_GROUPS_FROM = 8
_NOTHING: Mapping[tuple[str, int], int] = MappingProxyType({})


async def offset_commit(call: Call) -> Message:
    """Answers OffsetCommit."""
    request = call.request
    group = request["group_id"]
    if not may_use(call, group):
        return everywhere(request["topics"], ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if call.store.coordinator.is_share(group):
        return everywhere(request["topics"], ErrorCode.GROUP_ID_NOT_FOUND)
    offsets, refused = asked_for(call, request["topics"])
    generation = request["generation_id_or_member_epoch"]
    who = Identity(request["member_id"], generation, request["group_instance_id"])
    with at_work(call):
        code = await _committed(call, group, offsets, who)
    return everywhere(request["topics"], code, refused)


def asked_for(
    call: Call, topics: Iterable[Message]
) -> tuple[list[Committed], dict[tuple[str, int], int]]:
    """Returns the offsets that may be committed, and what is wrong with the others."""
    refused: dict[tuple[str, int], int] = {}
    offsets: list[Committed] = []
    for topic in topics:
        problem = _problem(call, topic["name"])
        for each in topic["partitions"]:
            place = topic["name"], each["partition_index"]
            note = each["committed_metadata"] or ""
            found = problem or misplaced(call, *place)
            if not found and len(note.encode()) > METADATA_BYTES_MAX:
                found = ErrorCode.OFFSET_METADATA_TOO_LARGE
            if found:
                refused[place] = found
                continue
            epoch = each["committed_leader_epoch"]
            offsets.append(Committed(*place, each["committed_offset"], epoch, note))
    return offsets, refused


async def _committed(call: Call, group: str, offsets: list[Committed], who: Identity) -> int:
    """Has a commit queued before the next request is looked at, and waits for its fsync."""
    coordinator = call.store.coordinator
    try:
        begun = coordinator.begin_commit(group, offsets, who)
    except LaminaError as error:
        return call.told(error)[0]
    if isinstance(begun, Refusal):
        return refusal_of(begun)
    return await answered(call, coordinator.offsets.settle, begun)


def everywhere(
    topics: Iterable[Message], code: int, refused: Mapping[tuple[str, int], int] = _NOTHING
) -> Message:
    """Returns the same number for every partition but those that were refused by themselves."""
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": each["partition_index"],
                        "error_code": refused.get((topic["name"], each["partition_index"]), code),
                    }
                    for each in topic["partitions"]
                ],
            }
            for topic in topics
        ]
    }


def _problem(call: Call, topic: str) -> int:
    if not call.may("read", topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        call.store.format_of(topic)
    except UnknownTopic:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except LaminaError as error:
        return call.told(error)[0]
    return ErrorCode.NONE


def misplaced(call: Call, topic: str, partition: int) -> int:
    """Returns the number for a partition that there is not; NONE for one that is."""
    try:
        partitions = call.store.format_of(topic)[1]
    except LaminaError as error:
        return call.told(error)[0]
    there = 0 <= partition < partitions
    return ErrorCode.NONE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ---------------------------------------------------------------- fetching


def offset_fetch(call: Call) -> Message:
    """Answers OffsetFetch, of one group or of several."""
    request = call.request
    if call.version >= _GROUPS_FROM:
        groups = {each["group_id"]: each["topics"] for each in request["groups"]}  # each once
        return {"groups": [_fetched(call, *each) for each in groups.items()]}
    found = _fetched(call, request["group_id"], request["topics"])
    if found["error_code"] and call.version < 2:  # there it is told for each partition
        for topic in found["topics"]:
            for each in topic["partitions"]:
                each["error_code"] = found["error_code"]
    return found


def _fetched(call: Call, group: str, asked: list[Message] | None) -> Message:
    if not may_use(call, group, "read"):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        topics = [_unknown(each) for each in asked or ()]
        return {"group_id": group, "error_code": code, "topics": topics}
    # Looked at before what is committed: what commits in between is told as pending.
    pending = call.store.transactions.pending(group) if call.request["require_stable"] else set()
    known = call.store.coordinator.offsets.of(group)
    if asked is None:
        places = known.keys() | pending
        names = sorted({topic for topic, _ in places if call.may("read", topic)})
        asked = [
            {"name": name, "partition_indexes": sorted(p for t, p in places if t == name)}
            for name in names
        ]
    topics = []
    for topic in asked:
        name = topic["name"]
        if not call.may("read", name):
            topics.append(_unknown(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        topics.append(
            {
                "name": name,
                "partitions": [
                    _offset(None, each) | {"error_code": ErrorCode.UNSTABLE_OFFSET_COMMIT}
                    if (name, each) in pending
                    else _offset(known.get((name, each)), each)
                    for each in topic["partition_indexes"]
                ],
            }
        )
    return {"group_id": group, "error_code": ErrorCode.NONE, "topics": topics}


def _unknown(topic: Message, code: int = ErrorCode.NONE) -> Message:
    partitions = [_offset(None, each) | {"error_code": code} for each in topic["partition_indexes"]]
    return {"name": topic["name"], "partitions": partitions}


def _offset(found: Committed | None, partition: int) -> Message:
    if found is None:
        return {"partition_index": partition, "committed_offset": -1, "metadata": ""}
    return {
        "partition_index": partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
    }


async def offset_delete(call: Call) -> Message:
    """Answers OffsetDelete."""
    group, topics = call.request["group_id"], call.request["topics"]
    if not may_use(call, group, "admin"):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    foreign = {topic["name"] for topic in topics if not call.may("read", topic["name"])}
    places = [
        (topic["name"], each["partition_index"])
        for topic in topics
        if topic["name"] not in foreign
        for each in topic["partitions"]
    ]
    with at_work(call):
        code = await answered(call, call.store.coordinator.forget_offsets, group, places)
    if code:
        return {"error_code": code}
    done = [topic for topic in topics if topic["name"] not in foreign]
    kept = [topic for topic in topics if topic["name"] in foreign]
    return {
        "topics": [
            *everywhere(done, ErrorCode.NONE)["topics"],
            *everywhere(kept, ErrorCode.TOPIC_AUTHORIZATION_FAILED)["topics"],
        ]
    }
