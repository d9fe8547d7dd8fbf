"""From a frame to its answer: the table of handlers, and the checks that every request passes.

Rules.
1. A version that is not advertised is answered by ApiVersions alone, as version 0 with the range;
   for everything else the connection ends, as Kafka's does.
2. Before a client has presented its key, it can only ask for versions and present the key.
3. An unexpected error is logged once, with the request and the client, and ends the connection,
   because no answer of the right shape could be made.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from lamina.errors import InvalidRequest
from lamina.server.kafka import (
    classic_groups,
    cluster_metadata,
    elsewhere,
    fetching,
    group_offsets,
    offset_lookup,
    partition_growth,
    producer_numbers,
    producing,
    record_deletion,
    sasl,
    share_acknowledging,
    share_fetching,
    share_groups,
    share_offsets,
    topic_admin,
    transacting,
)
from lamina.server.kafka.sessions import SMALL_BYTES, Call, Doorway, Handler, Later, Session
from lamina.wire.kafka import (
    codec,
    connection_apis,
    framing,
    group_apis,
    record_apis,
    share_apis,
    topic_apis,
    transaction_apis,
)
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.framing import RequestHeader
from lamina.wire.kafka.message_schema import Api

_log = logging.getLogger("lamina.server")


def _api_versions(call: Call) -> Message:
    name, version = (call.request[f"client_software_{each}"] for each in ("name", "version"))
    if name:
        call.session.software, call.session.software_version = name[:100], version[:100]
    return cluster_metadata.api_versions(HANDLERS)


def _aside(handler: Callable[[Call], Message]) -> Handler:
    """Makes a handler that answers a long request in the pool: every name in it takes a while."""

    def answer(call: Call) -> Message | Awaitable[Message]:
        return handler(call) if call.size_bytes <= SMALL_BYTES else call.in_pool(handler, call)

    return answer


HANDLERS: dict[int, Handler] = {
    connection_apis.API_VERSIONS.key: _api_versions,
    connection_apis.SASL_HANDSHAKE.key: sasl.handshake,
    connection_apis.SASL_AUTHENTICATE.key: sasl.authenticate,
    connection_apis.DESCRIBE_CLUSTER.key: cluster_metadata.describe_cluster,
    topic_apis.METADATA.key: cluster_metadata.metadata,
    topic_apis.CREATE_TOPICS.key: topic_admin.create_topics,
    topic_apis.DELETE_TOPICS.key: topic_admin.delete_topics,
    topic_apis.CREATE_PARTITIONS.key: partition_growth.create_partitions,
    topic_apis.DESCRIBE_CONFIGS.key: topic_admin.describe_configs,
    topic_apis.ALTER_CONFIGS.key: topic_admin.alter_configs,
    topic_apis.INCREMENTAL_ALTER_CONFIGS.key: topic_admin.incremental_alter_configs,
    record_apis.PRODUCE.key: producing.produce,
    record_apis.FETCH.key: fetching.fetch,
    record_apis.LIST_OFFSETS.key: offset_lookup.list_offsets,
    record_apis.DELETE_RECORDS.key: record_deletion.delete_records,
    record_apis.OFFSET_FOR_LEADER_EPOCH.key: _aside(offset_lookup.offsets_for_leader_epoch),
    record_apis.INIT_PRODUCER_ID.key: producer_numbers.init_producer_id,
    group_apis.FIND_COORDINATOR.key: _aside(classic_groups.find_coordinator),
    group_apis.JOIN_GROUP.key: classic_groups.join_group,
    group_apis.SYNC_GROUP.key: classic_groups.sync_group,
    group_apis.HEARTBEAT.key: classic_groups.heartbeat,
    group_apis.LEAVE_GROUP.key: _aside(classic_groups.leave_group),
    group_apis.LIST_GROUPS.key: _aside(share_groups.list_groups),
    group_apis.DESCRIBE_GROUPS.key: _aside(classic_groups.describe_groups),
    group_apis.DELETE_GROUPS.key: share_groups.delete_groups,
    group_apis.OFFSET_COMMIT.key: group_offsets.offset_commit,
    group_apis.OFFSET_FETCH.key: _aside(group_offsets.offset_fetch),
    group_apis.OFFSET_DELETE.key: group_offsets.offset_delete,
    share_apis.SHARE_GROUP_HEARTBEAT.key: share_groups.share_group_heartbeat,
    share_apis.SHARE_GROUP_DESCRIBE.key: _aside(share_groups.share_group_describe),
    share_apis.SHARE_FETCH.key: share_fetching.share_fetch,
    share_apis.SHARE_ACKNOWLEDGE.key: share_acknowledging.share_acknowledge,
    share_apis.DESCRIBE_SHARE_GROUP_OFFSETS.key: share_offsets.describe_share_group_offsets,
    share_apis.ALTER_SHARE_GROUP_OFFSETS.key: share_offsets.alter_share_group_offsets,
    share_apis.DELETE_SHARE_GROUP_OFFSETS.key: share_offsets.delete_share_group_offsets,
    transaction_apis.ADD_PARTITIONS_TO_TXN.key: transacting.add_partitions_to_txn,
    transaction_apis.ADD_OFFSETS_TO_TXN.key: transacting.add_offsets_to_txn,
    transaction_apis.TXN_OFFSET_COMMIT.key: transacting.txn_offset_commit,
    transaction_apis.END_TXN.key: transacting.end_txn,
}
"""The handlers by API key: exactly these are advertised."""
_BEFORE_A_KEY = frozenset(
    (
        connection_apis.API_VERSIONS.key,
        connection_apis.SASL_HANDSHAKE.key,
        connection_apis.SASL_AUTHENTICATE.key,
    )
)


_BY_NAME = {api.name: api for api in APIS.values()}


class Refused(InvalidRequest):
    """A request after which the connection ends."""


def begin(
    door: Doorway, session: Session, frame: memoryview
) -> tuple[Call, int, Message | Later | Awaitable[Message | None]]:
    """Begins to answer a frame: (the call, its correlation id, the answer or what will be it).

    Raises Refused, or MalformedMessage, where the connection has to end.
    """
    header = framing.request_header(frame)
    api = APIS.get(header.api_key)
    if api is None or api.key not in HANDLERS:
        raise Refused(f"API {header.api_key} version {header.version} is not answered here")
    if not api.first <= header.version <= api.last:
        return _other_version(door, session, header, api)
    if session.caller is None and api.key not in _BEFORE_A_KEY:
        raise Refused(f"{api.name} before SASL: this server needs an API key")
    if session.caller is not None:
        session.caller = door.broker.renewed(session.caller)
    position = framing.message_position(header, api, frame)
    request = codec.parse(api, header.version, "request", frame, position)
    session.client_id = (header.client_id or "")[:200]
    call = Call(door, session, api.name, header.version, request, len(frame))
    if api.key not in elsewhere.ANSWERED:
        refusal = door.broker.place.standing.refusal()
        if refusal is not None:
            return call, header.correlation_id, elsewhere.answered(call, refusal)
    return call, header.correlation_id, HANDLERS[api.key](call)


def _other_version(
    door: Doorway, session: Session, header: RequestHeader, api: Api
) -> tuple[Call, int, Message]:
    """Answers a version that there is not, where a client can understand that."""
    if api is not connection_apis.API_VERSIONS:
        raise Refused(
            f"{api.name} version {header.version} is not answered here;"
            f" {api.first} to {api.last} are"
        )
    call = Call(door, session, api.name, 0, {}, 0)
    said = cluster_metadata.api_versions([api.key], ErrorCode.UNSUPPORTED_VERSION)
    return call, header.correlation_id, said


def answer_frame(call: Call, correlation_id: int, answer: Message) -> list[Any]:
    """Returns the buffers of an answer."""
    return framing.response_frame(_BY_NAME[call.name], call.version, correlation_id, answer)
