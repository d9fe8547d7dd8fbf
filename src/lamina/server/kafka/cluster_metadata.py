"""What clients learn of the cluster: versions, one broker, topics and their ids.

Rules.
1. The cluster is this server, or the one that holds it: one node leads every partition, and is its
   only replica. Where it is not this server, `elsewhere` answers.
2. The address that is told is `kafka.advertised`, or the one at which this client has come in:
   that one it can reach for certain.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from lamina.errors import InvalidRequest, LaminaError, UnknownTopic
from lamina.server.kafka.sessions import Call
from lamina.server.kafka.topic_ids import NO_ID, id_of
from lamina.store.store import Store
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode

LEADER_EPOCH = 0
_READS = (3, 8, 10)  # READ, DESCRIBE, DESCRIBE_CONFIGS
_WRITES = (*_READS, 4)
_ADMINISTERS = (*_WRITES, 5, 6, 7, 11)  # CREATE, DELETE, ALTER, ALTER_CONFIGS
_OPERATIONS = {"read": _READS, "write": _WRITES, "admin": _ADMINISTERS}
_LOOKS = (8, 10)  # DESCRIBE, DESCRIBE_CONFIGS
_JOINS = (*_LOOKS, 3)  # READ: to be a member, and to commit
_OF_GROUPS = {"read": _LOOKS, "write": _JOINS, "admin": (*_JOINS, 6, 11)}  # DELETE, ALTER_CONFIGS
_NOT_ASKED = -(1 << 31)


def api_versions(answered: Iterable[int], code: ErrorCode = ErrorCode.NONE) -> Message:
    """Answers which APIs and versions there are."""
    ranges = [APIS[key] for key in sorted(answered)]
    return {
        "error_code": code,
        "api_keys": [
            {"api_key": api.key, "min_version": api.advertised_first, "max_version": api.last}
            for api in ranges
        ],
    }


def broker_of(call: Call) -> dict[str, Any]:
    """Describes this server as the client can reach it."""
    host, port = call.door.advertised or (call.session.local_host, call.door.port)
    node = {"node_id": call.node_id, "broker_id": call.node_id, "rack": None}
    return node | {"host": host, "port": port}


def cluster_id(store: Store) -> str:
    """Returns the id of the cluster: that of the data directory."""
    return str(store.identity.uuid)


async def metadata(call: Call) -> Message:
    """Answers Metadata: the broker, and the topics that were asked for, made where allowed."""
    asked = call.request["topics"]
    everything = asked is None or (call.version == 0 and not asked)
    store = call.store
    if everything:
        topics = await call.in_pool(_every_topic, call)
    else:
        once = {(each["name"], each["topic_id"]): each for each in asked}  # and answered once
        topics = [await _asked(call, each) for each in once.values()]
    operations = call.request["include_cluster_authorized_operations"]
    return {
        "brokers": [broker_of(call)],
        "cluster_id": cluster_id(store),
        "controller_id": call.node_id,
        "topics": [topic for topic in topics if topic is not None],
        "cluster_authorized_operations": _operations(call) if operations else _NOT_ASKED,
    }


def _every_topic(call: Call) -> list[Message | None]:
    return [_topic(call, name) for name in call.store.topics() if call.may("read", name)]


async def _asked(call: Call, asked: Message) -> Message:
    name = asked["name"]
    if call.version >= 10 and asked["topic_id"] != NO_ID:
        found = call.door.topic_ids.name_of(call.store, asked["topic_id"])
        if found is None or not call.may("read", found):
            return {
                "error_code": ErrorCode.UNKNOWN_TOPIC_ID,
                "name": None if call.version >= 12 else "",
                "topic_id": asked["topic_id"],
            }
        name = found
    if name is None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "name": None if call.version >= 12 else ""}
    if not call.may("read", name):
        return {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "name": name}
    found_topic = _topic(call, name)
    if found_topic is not None:
        return found_topic
    creates = call.door.broker.settings.kafka_auto_create == "true"
    if not (creates and call.request["allow_auto_topic_creation"] and call.may("admin", name)):
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name}
    try:
        await call.in_pool(create_default, call, name)
    except InvalidRequest as error:
        made = _topic(call, name)  # by somebody else, meanwhile
        if made is not None:
            return made
        call.told(error)
        return {"error_code": ErrorCode.INVALID_TOPIC_EXCEPTION, "name": name}
    except LaminaError as error:
        return {"error_code": call.told(error)[0], "name": name}
    return _topic(call, name) or {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name}


def create_default(call: Call, name: str) -> None:
    """Makes a topic that somebody wrote to or read from without having made it."""
    call.store.create_topic(name, partitions=call.door.broker.settings.kafka_default_partitions)


def _topic(call: Call, name: str) -> Message | None:
    """Describes a topic; None for one that there is not."""
    store = call.store
    try:
        epoch = store.topic_changes.epoch_of(name)
        partitions = store.format_of(name)[1]
    except UnknownTopic:
        return None
    operations = call.request["include_topic_authorized_operations"]
    return {
        "name": name,
        "topic_id": id_of(store, name, epoch),
        "partitions": _led_by(call.node_id, partitions),
        "topic_authorized_operations": _operations(call) if operations else _NOT_ASKED,
    }


@functools.lru_cache(maxsize=64)
def _led_by(node_id: int, partitions: int) -> list[Message]:
    """Describes so many partitions: those of all topics are alike. Nobody changes what is kept."""
    nodes = [node_id]
    return [
        {
            "partition_index": number,
            "leader_id": node_id,
            "leader_epoch": LEADER_EPOCH,
            "replica_nodes": nodes,
            "isr_nodes": nodes,
        }
        for number in range(partitions)
    ]


def _operations(call: Call) -> int:
    return sum(1 << bit for bit in _OPERATIONS[call.caller.scope])


def operations_on_group(call: Call) -> int:
    """Returns what the caller may do with a group that it may look at, if the request asks."""
    if not call.request["include_authorized_operations"]:
        return _NOT_ASKED
    return sum(1 << bit for bit in _OF_GROUPS[call.caller.scope])


def describe_cluster(call: Call) -> Message:
    """Answers DescribeCluster."""
    asked = call.request["include_cluster_authorized_operations"]
    return {
        "cluster_id": cluster_id(call.store),
        "controller_id": call.node_id,
        "brokers": [broker_of(call)],
        "endpoint_type": call.request["endpoint_type"],
        "cluster_authorized_operations": _operations(call) if asked else _NOT_ASKED,
    }
