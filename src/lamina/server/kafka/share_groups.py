"""Share groups (KIP-932) for Kafka clients: membership, and the requests of administrators.

A share group is one of Lamina's own groups per topic that its members subscribe to. It is created
when its first member joins, and begins at the group's `share.auto.offset.reset`. `store.group(...)`
with the same name shares the same records.

Rule: a key with a prefix uses groups and topics whose names begin with it; a group that reaches
other topics is neither shown to it nor deleted by it.
"""

from __future__ import annotations

import contextlib
import functools

from lamina.api import Start
from lamina.api.memberships import Refusal
from lamina.errors import LaminaError, NotAllowed, UnknownGroup, UnknownTopic
from lamina.groups.lending import LendingGroup
from lamina.groups.share_membership import JOINS, LEAVES, ShareBeat, ShareMember
from lamina.server.kafka import classic_groups
from lamina.server.kafka.classic_groups import answered, may_use, refusal_of
from lamina.server.kafka.cluster_metadata import operations_on_group
from lamina.server.kafka.sessions import Call, at_work
from lamina.server.kafka.share_sessions import release
from lamina.server.kafka.topic_ids import NO_ID, topic_id
from lamina.store.store import Store
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

MEMBER_ID_MAX = 36
ASSIGNOR = "simple"


async def share_group_heartbeat(call: Call) -> Message:
    """Answers ShareGroupHeartbeat: who is a member, and which partitions are its share."""
    request = call.request
    group = request["group_id"]
    if not may_use(call, group):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    problem = _problem(request)
    if problem is not None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": problem}
    topics = request["subscribed_topic_names"]
    if not all(call.may("read", topic) for topic in topics or ()):
        return {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    beat = ShareBeat(
        request["member_id"],
        request["member_epoch"],
        None if topics is None else tuple(topics),
        rack_id=request["rack_id"],
        client_id=call.session.client_id,
        client_host=f"/{call.session.host}",
    )
    try:
        with at_work(call):
            return await call.in_pool(_heartbeat, call, group, beat)
    except LaminaError as error:
        code, said = call.told(error)
        return {"error_code": code, "error_message": said}


def _problem(request: Message) -> str | None:
    """Returns what is wrong with a heartbeat, whatever the group is."""
    epoch, topics = request["member_epoch"], request["subscribed_topic_names"]
    if not request["group_id"]:
        return "a group has a name"
    if not 0 < len(request["member_id"]) <= MEMBER_ID_MAX:
        return f"a member's id has 1 to {MEMBER_ID_MAX} characters"
    if epoch < LEAVES:
        return f"a member's epoch is {LEAVES} or more"
    if epoch == JOINS and not topics:
        return "whoever joins names topics"
    if request["rack_id"] == "":
        return "a rack has a name, or is null"
    return None


def _heartbeat(call: Call, group: str, beat: ShareBeat) -> Message:
    store = call.store
    settings = store.coordinator.share_settings.of(group)
    ended = functools.partial(_member_ended, call, group, beat.member_id)
    answer = store.coordinator.share.heartbeat(
        *(group, beat, functools.partial(_partitions, store)),
        session_ms=settings.session_ms,
        on_end=ended,
    )
    if answer.refusal is not None:
        said = "a classic group" if answer.refusal is Refusal.GROUP_ID_NOT_FOUND else None
        return {"error_code": refusal_of(answer.refusal), "error_message": said}
    for topic in answer.share or ():
        group_of(store, topic, group)
    return {
        "member_id": beat.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval_ms": settings.heartbeat_ms,
        "assignment": None if answer.share is None else _assigned(store, dict(answer.share)),
    }


def _member_ended(call: Call, group: str, member_id: str) -> None:
    """Releases what a member holds that has left, or was silent for too long."""
    with contextlib.suppress(LaminaError):  # the server stops: locks end by themselves
        release(call.store, call.door.shares.take_of_member(group, member_id))


def _partitions(store: Store, topic: str) -> int:
    try:
        return store.format_of(topic)[1]
    except UnknownTopic:
        return 0


def _assigned(store: Store, share: dict[str, tuple[int, ...]]) -> Message:
    found = []
    for topic, partitions in share.items():
        try:
            identity = topic_id(store, topic)
        except UnknownTopic:  # deleted meanwhile
            identity = NO_ID
        row = {"topic_id": identity, "topic_name": topic, "partitions": list(partitions)}
        found.append(row)
    return {"topic_partitions": [each for each in found if each["topic_id"] != NO_ID]}


def group_of(store: Store, topic: str, name: str) -> LendingGroup:
    """Returns a group of a topic, as it is set now; one that is not there yet is made."""
    try:
        return store.group(topic, name, start="none")
    except UnknownGroup:
        settings = store.coordinator.share_settings.of(name)
        start: Start = "earliest" if settings.start == "earliest" else "latest"
        return store.group(topic, name, start=start)


# ---------------------------------------------------------------- administration


def share_group_describe(call: Call) -> Message:
    """Answers ShareGroupDescribe."""
    names = dict.fromkeys(call.request["group_ids"])
    topics = _topics_by_group(call)
    return {"groups": [_described(call, name, topics.get(name, [])) for name in names]}


def _topics_by_group(call: Call) -> dict[str, list[str]]:
    """Returns the topics in which each group has read, as far as the caller may know them."""
    found: dict[str, list[str]] = {}
    for topic, group in call.store.groups():
        if call.may("read", topic):
            found.setdefault(group, []).append(topic)
    return found


def _described(call: Call, name: str, topics: list[str]) -> Message:
    refused: Message = {"group_id": name, "group_state": "Dead", "assignor_name": ""}
    if not may_use(call, name, "read"):
        return refused | {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    about = call.store.coordinator.share.describe(name)
    is_classic = call.store.coordinator.is_known(name)
    if not about.members and (is_classic or not topics):
        said = f"there is no share group {name!r}"
        return refused | {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": said}
    named = {topic for each in about.members for topic in each.topics}
    if not all(call.may("read", topic) for topic in named):
        return refused | {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    return {
        "group_id": name,
        "group_state": about.state,
        "group_epoch": about.epoch,
        "assignment_epoch": about.epoch,
        "assignor_name": ASSIGNOR,
        "members": [_member(call.store, each) for each in about.members],
        "authorized_operations": operations_on_group(call),
    }


def _member(store: Store, member: ShareMember) -> Message:
    return {
        "member_id": member.about.member_id,
        "rack_id": member.about.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.about.client_id,
        "client_host": member.about.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "assignment": _assigned(store, dict(member.share)),
    }


def list_groups(call: Call) -> Message:
    """Answers ListGroups: those that a key may use, by state and kind where that is asked for."""
    states = [each.lower() for each in call.request["states_filter"]]
    kinds = [each.lower() for each in call.request["types_filter"]]
    return {
        "groups": [
            row
            for row in [*classic_groups.listed(call), *_listed(call)]
            if (not states or row["group_state"].lower() in states)
            and (not kinds or row["group_type"].lower() in kinds)
        ]
    }


def _listed(call: Call) -> list[Message]:
    coordinator = call.store.coordinator
    classic = set(coordinator.groups())
    names = {group for topic, group in call.store.groups() if call.may("read", topic)}
    found = sorted((names | set(coordinator.share.groups())) - classic)
    return [
        {
            "group_id": name,
            "protocol_type": "share",
            "group_state": coordinator.share.describe(name).state,
            "group_type": "Share",
        }
        for name in found
        if may_use(call, name, "read")
    ]


async def delete_groups(call: Call) -> Message:
    """Answers DeleteGroups, of both kinds."""
    with at_work(call):
        names = dict.fromkeys(call.request["groups_names"])
        results = [{"group_id": name, "error_code": await _deleted(call, name)} for name in names]
    return {"results": results}


async def _deleted(call: Call, name: str) -> int:
    if not may_use(call, name, "admin"):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if call.store.coordinator.is_known(name):
        return await answered(call, call.store.coordinator.delete, name)
    code = await answered(call, _delete, call, name)
    is_others = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.GROUP_AUTHORIZATION_FAILED if is_others else code


def _delete(call: Call, name: str) -> Refusal | None:
    """Deletes a share group in all topics; refused while it has members."""
    store = call.store
    if store.coordinator.share.has_members(name):
        return Refusal.NON_EMPTY_GROUP
    pairs = [pair for pair in store.groups() if pair[1] == name]
    if not pairs:
        return Refusal.GROUP_ID_NOT_FOUND
    if not all(call.may("admin", topic) for topic, _ in pairs):  # all or none
        raise NotAllowed(f"group {name!r} has read topics that key {call.caller.name} is not for")
    for pair in pairs:
        store.delete_group(*pair)
    return None
