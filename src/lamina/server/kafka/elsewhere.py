"""Answers to Kafka clients while another server holds the cluster: who holds it, or a refusal.

    Metadata, FindCoordinator, DescribeCluster      the holder's address, as far as it is known
    what is of a partition                          NOT_LEADER_OR_FOLLOWER, for each that was named
    what is of a group, a producer, a transaction   NOT_COORDINATOR
    what changes topics or settings                 NOT_CONTROLLER

After such a refusal, clients ask for Metadata again, and go where it says.

Rules.
1. A refusal has the shape of the answer: error codes are where a client looks for them. If there is
   no field for one, the connection ends, which makes the client look for the holder, too.
2. The holder's node id is the epoch in which it holds the cluster, so it changes at each takeover:
   otherwise clients would go on talking to the old address, which still answers.
"""

from __future__ import annotations

from typing import Any

from lamina.errors import LaminaError, NotPrimary
from lamina.server.kafka.sessions import Call
from lamina.wire.kafka import connection_apis, group_apis, record_apis, topic_apis
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.message_schema import Field

ANSWERED = frozenset(
    each.key
    for each in (
        connection_apis.API_VERSIONS,
        connection_apis.SASL_HANDSHAKE,
        connection_apis.SASL_AUTHENTICATE,
    )
)
"""What every server answers as it always does."""
_OF_PARTITIONS = frozenset(
    each.name
    for each in (
        record_apis.PRODUCE,
        record_apis.FETCH,
        record_apis.LIST_OFFSETS,
        record_apis.DELETE_RECORDS,
        record_apis.OFFSET_FOR_LEADER_EPOCH,
    )
)
_OF_TOPICS = frozenset(
    each.name
    for each in (
        topic_apis.CREATE_TOPICS,
        topic_apis.DELETE_TOPICS,
        topic_apis.CREATE_PARTITIONS,
        topic_apis.DESCRIBE_CONFIGS,
        topic_apis.ALTER_CONFIGS,
        topic_apis.INCREMENTAL_ALTER_CONFIGS,
    )
)
_NOWHERE = {"node_id": -1, "host": "", "port": -1}
_OTHER_NAMES = {"partition_index": "partition", "partition": "partition_index"}
"""A field of an answer that the request calls otherwise."""
_NAMING = ("topic", "topic_id", "name", "index", "resource_type", "resource_name", "group_id")


def answered(call: Call, refusal: NotPrimary) -> Message:
    """Answers a request in place of the holder; raises NotPrimary where there is no way to."""
    if call.name == topic_apis.METADATA.name:
        return _metadata(call, refusal)
    if call.name == connection_apis.DESCRIBE_CLUSTER.name:
        return _cluster(call, refusal)
    if call.name == group_apis.FIND_COORDINATOR.name:
        return _coordinator(call, refusal)
    call.told(refusal)
    if call.name == record_apis.PRODUCE.name and call.request["acks"] == 0:
        raise refusal  # it waits for no answer, and looks where to go when the connection ends
    return _refused(call, refusal)


# ---------------------------------------------------------------------- who it is


def _holder(call: Call, refusal: NotPrimary) -> dict[str, Any] | None:
    """Describes the holder as a broker; None while nobody is known to be it."""
    address = refusal.address("kafka")
    if address is None:
        return None
    host, _, port = address.partition("://")[2].rpartition(":")
    node = {"node_id": call.node_id, "broker_id": call.node_id, "rack": None}
    return node | {"host": host.strip("[]"), "port": int(port)}


def _metadata(call: Call, refusal: NotPrimary) -> Message:
    holder, replica = _holder(call, refusal), call.door.broker.place.replica
    asked = call.request["topics"]
    everything = asked is None or (call.version == 0 and not asked)
    try:
        there = [] if replica is None else [n for n in replica.topics() if call.may("read", n)]
        names = there if everything else [each["name"] for each in asked]
        topics = [_topic(call, holder, replica, name, there) for name in names if name]
    except LaminaError:  # the replica is being closed: the client asks again
        topics = []
    return {
        "brokers": [] if holder is None else [holder],
        "cluster_id": call.door.broker.place.standing.cluster_id(),
        "controller_id": -1 if holder is None else holder["node_id"],
        "topics": topics,
    }


def _topic(
    call: Call, holder: dict[str, Any] | None, replica: Any, name: str, there: list[str]
) -> Message:
    if not call.may("read", name):
        return {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "name": name}
    if holder is None or name not in there:  # the holder may have made it meanwhile
        return {"error_code": ErrorCode.LEADER_NOT_AVAILABLE, "name": name}
    nodes = [holder["node_id"]]
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": number,
                "leader_id": holder["node_id"],
                "leader_epoch": 0,
                "replica_nodes": nodes,
                "isr_nodes": nodes,
            }
            for number in range(replica.format_of(name)[1])
        ],
    }


def _cluster(call: Call, refusal: NotPrimary) -> Message:
    holder = _holder(call, refusal)
    return {
        "cluster_id": call.door.broker.place.standing.cluster_id(),
        "controller_id": -1 if holder is None else holder["node_id"],
        "brokers": [] if holder is None else [holder],
        "endpoint_type": call.request["endpoint_type"],
    }


def _coordinator(call: Call, refusal: NotPrimary) -> Message:
    holder = _holder(call, refusal)
    if holder is None:
        found = {**_NOWHERE, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
        found["error_message"] = str(refusal)
    else:
        found = {name: holder[name] for name in _NOWHERE} | {"error_message": None}
    if call.version < 4:
        return found
    return {"coordinators": [{"key": key, **found} for key in call.request["coordinator_keys"]]}


# ---------------------------------------------------------------------- a no


def _refused(call: Call, refusal: NotPrimary) -> Message:
    api = next(each for each in APIS.values() if each.name == call.name)
    code, whole = _code_of(call), _has_number(api.response, call.version)
    if whole and call.name not in _OF_PARTITIONS:
        return {"error_code": code}
    made = _mirrored(api.response, (api.request, call.request), call.version, code)
    if made is not None:
        return made
    raise refusal


def _has_number(fields: tuple[Field, ...], version: int) -> bool:
    return any(each.name == "error_code" and each.is_in(version) for each in fields)


def _code_of(call: Call) -> ErrorCode:
    if call.name in _OF_PARTITIONS:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if call.name in _OF_TOPICS:
        return ErrorCode.NOT_CONTROLLER
    is_new_producer = call.name == record_apis.INIT_PRODUCER_ID.name
    if is_new_producer and call.request["transactional_id"] is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # it has none to look for: it tries again
    return ErrorCode.NOT_COORDINATOR


def _mirrored(
    answer: tuple[Field, ...],
    request: tuple[tuple[Field, ...], Any],
    version: int,
    code: ErrorCode,
) -> Message | None:
    """Refuses each thing that a request names in a list, in the list of the answer that names it.

    Returns None where the request has no such list, or the answer none with a number in it.
    """
    fields, given = request
    lists = [each for each in fields if each.is_list and each.is_in(version)]
    rows = [each for each in answer if each.is_list and each.inside and each.is_in(version)]
    if not lists or not rows:
        return None
    asked = max(lists, key=lambda each: bool(each.inside))
    row = rows[0].inside
    made = []
    for each in given.get(asked.name) or ():
        named = _named(each, row) if asked.inside else {row[0].name: each}
        inner: Message | None = {"error_code": code}
        if not _has_number(row, version):
            inner = _mirrored(row, (asked.inside, each), version, code)
        if inner is None:
            return None
        made.append(named | inner)
    return {rows[0].name: made}


def _named(each: Message, row: tuple[Field, ...]) -> Message:
    """Returns what names a thing in a request, as the answer calls it."""
    names = {field.name for field in row} & {*_NAMING, *_OTHER_NAMES}
    found = {name: each.get(name, each.get(_OTHER_NAMES.get(name, name))) for name in names}
    return {name: value for name, value in found.items() if value is not None}
