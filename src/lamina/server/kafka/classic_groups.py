"""Classic consumer groups for Kafka clients: the messages around the store's coordinator.

The coordinator is the store's own: members of this door and of `lamina.Consumer` form one group.

Rules.
1. A join or a sync waits as a future and holds no thread.
2. A key with a prefix uses groups whose names begin with it: members of a group learn what the
   others subscribe to, and could be members in their place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lamina.api.memberships import Identity, JoinRequest, Membership, Refusal
from lamina.errors import LaminaError
from lamina.server.kafka.cluster_metadata import broker_of, operations_on_group
from lamina.server.kafka.sessions import Call
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.operations import Scope

GROUP, TRANSACTION, SHARE = 0, 1, 2
_MUST_KNOW_FROM, _MAY_SKIP_FROM = 4, 9
_DEAD = "Dead"


def refusal_of(refusal: Refusal | None) -> int:
    """Returns Kafka's number: a refusal's own."""
    return ErrorCode.NONE if refusal is None else int(refusal)


def may_use(call: Call, group: str, scope: Scope = "write") -> bool:
    """Returns whether a caller may be in a group, or look at it with scope `read`."""
    return call.may(scope, group)


def find_coordinator(call: Call) -> Message:
    """Answers FindCoordinator: it is this server."""
    kind = call.request["key_type"]
    where = broker_of(call)
    node = {"node_id": where["node_id"], "host": where["host"], "port": where["port"]}
    nowhere = {"node_id": -1, "host": "", "port": -1}

    def found(key: str) -> Message:
        if kind not in (GROUP, TRANSACTION, SHARE):
            said = f"there are no coordinators of kind {kind}"
            return {**nowhere, "error_code": ErrorCode.INVALID_REQUEST, "error_message": said}
        if kind == TRANSACTION and not may_use(call, key):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return {**nowhere, "error_code": code, "error_message": "not an id of this key"}
        if not may_use(call, call.caller.prefix if kind == SHARE else key, "read"):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            return {**nowhere, "error_code": code, "error_message": "not a group of this key"}
        return {**node, "error_message": None}

    if call.version < 4:
        return found(call.request["key"])
    keys = call.request["coordinator_keys"]
    return {"coordinators": [{"key": key, **found(key)} for key in keys]}


async def join_group(call: Call) -> Message:
    """Answers JoinGroup when the members have met."""
    request = call.request
    refused: Message = {
        "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "member_id": request["member_id"],
        "protocol_name": "" if call.version < 7 else None,
    }
    if not may_use(call, request["group_id"]):
        return refused
    if call.store.coordinator.is_share(request["group_id"]):
        return refused | {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
    timeout_ms = request["session_timeout_ms"]
    asked = JoinRequest(
        request["protocol_type"],
        tuple((each["name"], each["metadata"]) for each in request["protocols"]),
        member_id=request["member_id"],
        instance_id=request["group_instance_id"],
        client_id=call.session.client_id,
        client_host=f"/{call.session.host}",
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=request["rebalance_timeout_ms"] if call.version >= 1 else timeout_ms,
        must_know_id=call.version >= _MUST_KNOW_FROM,
        may_skip=call.version >= _MAY_SKIP_FROM,
    )
    try:
        waiting = call.store.coordinator.join(request["group_id"], asked)
        joined = await asyncio.wrap_future(waiting)
    except LaminaError as error:
        return refused | {"error_code": call.told(error)[0]}
    return {
        "error_code": refusal_of(joined.refusal),
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if call.version >= 7 else joined.protocol or "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "metadata": each.metadata,
            }
            for each in joined.members
        ],
    }


def _identity(request: Message, generation: str = "generation_id") -> Identity:
    return Identity(request["member_id"], request[generation], request["group_instance_id"])


async def sync_group(call: Call) -> Message:
    """Answers SyncGroup when the leader has brought everybody's share."""
    request = call.request
    if not may_use(call, request["group_id"]):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    shares = {each["member_id"]: each["assignment"] for each in request["assignments"]}
    protocol = (request["protocol_type"], request["protocol_name"])
    try:
        waiting = call.store.coordinator.sync(
            request["group_id"], _identity(request), shares, protocol=protocol
        )
        assigned = await asyncio.wrap_future(waiting)
    except LaminaError as error:
        return {"error_code": call.told(error)[0]}
    return {
        "error_code": refusal_of(assigned.refusal),
        "protocol_type": assigned.protocol_type,
        "protocol_name": assigned.protocol,
        "assignment": assigned.assignment,
    }


def heartbeat(call: Call) -> Message:
    """Answers Heartbeat."""
    group = call.request["group_id"]
    if not may_use(call, group):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    try:
        refusal = call.store.coordinator.heartbeat(group, _identity(call.request))
    except LaminaError as error:
        return {"error_code": call.told(error)[0]}
    return {"error_code": refusal_of(refusal)}


def leave_group(call: Call) -> Message:
    """Answers LeaveGroup, of one member or of several."""
    request = call.request
    group = request["group_id"]
    if not may_use(call, group):
        return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    members = [(each["member_id"], each["group_instance_id"]) for each in request["members"]]
    if call.version < 3:
        members = [(request["member_id"], None)]
    try:
        answers = call.store.coordinator.leave(group, members)
    except LaminaError as error:
        return {"error_code": call.told(error)[0]}
    if call.version < 3:
        return {"error_code": refusal_of(answers[0])}
    return {
        "members": [
            {"member_id": member, "group_instance_id": instance, "error_code": refusal_of(answer)}
            for (member, instance), answer in zip(members, answers, strict=True)
        ]
    }


# ---------------------------------------------------------------- administration


def listed(call: Call) -> list[Message]:
    """Returns the rows of ListGroups for classic groups: those that a key may use."""
    found = []
    for name in call.store.coordinator.groups():
        about = call.store.coordinator.describe(name) if may_use(call, name, "read") else None
        if about is None:
            continue
        found.append(
            {
                "group_id": name,
                "protocol_type": about.protocol_type,
                "group_state": about.state,
                "group_type": "Classic",
            }
        )
    return found


def describe_groups(call: Call) -> Message:
    """Answers DescribeGroups; a group that does not exist is dead, which is no error."""
    names = dict.fromkeys(call.request["groups"])  # a name that is asked for often is told once
    return {"groups": [_described(call, name) for name in names]}


def _described(call: Call, name: str) -> Message:
    if not may_use(call, name, "read"):
        return {"group_id": name, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
    about: Membership | None = call.store.coordinator.describe(name)
    allowed = operations_on_group(call)
    if about is None:
        return {"group_id": name, "group_state": _DEAD, "authorized_operations": allowed}
    return {
        "group_id": name,
        "group_state": about.state,
        "authorized_operations": allowed,
        "protocol_type": about.protocol_type,
        "protocol_data": about.protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in about.members
        ],
    }


async def answered(call: Call, action: Callable[..., Refusal | None], *given: Any) -> int:
    """Runs what is written to disk in the pool; returns the number of what was refused."""
    try:
        return refusal_of(await call.in_pool(action, *given))
    except LaminaError as error:
        return call.told(error)[0]
