"""No API tells or does anything beyond the scope and prefix of a key: each of them is tried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lamina.api.memberships import Committed
from lamina.server import auth
from lamina.server.kafka.handling import HANDLERS
from lamina.server.kafka.topic_ids import topic_id
from lamina.wire.kafka import (
    connection_apis,
    group_apis,
    record_apis,
    share_apis,
    topic_apis,
    transaction_apis,
)
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.message_schema import Api
from tests.server.kafka.raw_client import RawClient, fetched, made, produced
from tests.server.kafka.test_security import with_key
from tests.server.rig import served

TOPIC, GROUP, WRITER = "theirs.topic", "theirs.group", "theirs.writer"
NOBODY = frozenset(
    api.key
    for api in (
        connection_apis.API_VERSIONS,
        connection_apis.SASL_HANDSHAKE,
        connection_apis.SASL_AUTHENTICATE,
    )
)
"""What is asked by whoever has no key yet."""
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}


class Asked(NamedTuple):
    """A request for what belongs to others, and whether it changes anything."""

    api: Api
    version: int
    value: dict[str, Any]
    changes: bool


def _requests(theirs: bytes) -> list[Asked]:
    place = [{"partition_index": 0, "committed_offset": 9, "timestamp": -1, "offset": 1}]
    topics = [{"name": TOPIC, "partitions": place}]
    setting = {"name": "retention.ms", "value": "1", "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [setting]}
    resource |= {"configuration_keys": None}
    member = {"group_id": GROUP, "member_id": "m", "generation_id": 1}
    writer = {"transactional_id": WRITER, "producer_id": 1, "producer_epoch": 0}
    new = {"name": "theirs.new", "num_partitions": 1, "replication_factor": 1}
    new |= {"assignments": [], "configs": []}
    parts = [{"partition_index": 0, "acknowledgement_batches": []}]
    share = {"group_id": GROUP, "member_id": "m", "share_session_epoch": 0}
    share |= {"max_wait_ms": 0, "min_bytes": 0, "max_records": 1, "batch_size": 1}
    share |= {"topics": [{"topic_id": theirs, "partitions": parts}]}
    moved = [{"partition_index": 0, "start_offset": 1}]
    epochs = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    joining = {"session_timeout_ms": 30_000, "protocol_type": "consumer"}
    joining |= {"protocols": [{"name": "range", "metadata": b""}]}
    record, group, topic, txn = record_apis, group_apis, topic_apis, transaction_apis
    return [
        Asked(record.PRODUCE, 9, produced(TOPIC, made([b"x"])), True),
        Asked(record.FETCH, 12, fetched(TOPIC, 0), False),
        Asked(record.LIST_OFFSETS, 9, {"topics": topics}, False),
        Asked(record.DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 100}, True),
        Asked(
            record.OFFSET_FOR_LEADER_EPOCH,
            4,
            {"replica_id": -1, "topics": [{"topic": TOPIC, "partitions": epochs}]},
            False,
        ),
        Asked(record.INIT_PRODUCER_ID, 4, writer | {"transaction_timeout_ms": 1000}, True),
        Asked(topic.METADATA, 9, {"topics": [{"name": TOPIC}]}, False),
        Asked(topic.CREATE_TOPICS, 5, {"topics": [new]}, True),
        Asked(topic.DELETE_TOPICS, 5, {"topic_names": [TOPIC]}, True),
        Asked(
            topic.CREATE_PARTITIONS,
            3,
            {"topics": [{"name": TOPIC, "count": 5, "assignments": None}]},
            True,
        ),
        Asked(topic.DESCRIBE_CONFIGS, 4, {"resources": [resource]}, False),
        Asked(topic.ALTER_CONFIGS, 2, {"resources": [resource]}, True),
        Asked(topic.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]}, True),
        Asked(group.FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0}, False),
        Asked(group.JOIN_GROUP, 7, {"group_id": GROUP, "member_id": ""} | joining, True),
        Asked(group.SYNC_GROUP, 4, member | {"assignments": []}, True),
        Asked(group.HEARTBEAT, 4, member, True),
        Asked(group.LEAVE_GROUP, 1, {"group_id": GROUP, "member_id": "m"}, True),
        Asked(group.LIST_GROUPS, 4, {"states_filter": []}, False),
        Asked(group.DESCRIBE_GROUPS, 5, {"groups": [GROUP]}, False),
        Asked(group.DELETE_GROUPS, 2, {"groups_names": [GROUP]}, True),
        Asked(group.OFFSET_COMMIT, 7, {"group_id": GROUP, "topics": topics}, True),
        Asked(group.OFFSET_FETCH, 7, {"group_id": GROUP, "topics": None}, False),
        Asked(group.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": topics}, True),
        Asked(
            share_apis.SHARE_GROUP_HEARTBEAT,
            1,
            {
                "group_id": GROUP,
                "member_id": "m",
                "member_epoch": 0,
                "subscribed_topic_names": [TOPIC],
            },
            True,
        ),
        Asked(share_apis.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [GROUP]}, False),
        Asked(share_apis.SHARE_FETCH, 1, share | {"forgotten_topics_data": []}, True),
        Asked(share_apis.SHARE_ACKNOWLEDGE, 1, share | {"share_session_epoch": 1}, True),
        Asked(
            share_apis.DESCRIBE_SHARE_GROUP_OFFSETS,
            1,
            {"groups": [{"group_id": GROUP, "topics": None}]},
            False,
        ),
        Asked(
            share_apis.ALTER_SHARE_GROUP_OFFSETS,
            0,
            {"group_id": GROUP, "topics": [{"topic_name": TOPIC, "partitions": moved}]},
            True,
        ),
        Asked(
            share_apis.DELETE_SHARE_GROUP_OFFSETS,
            0,
            {"group_id": GROUP, "topics": [{"topic_name": TOPIC}]},
            True,
        ),
        Asked(
            txn.ADD_PARTITIONS_TO_TXN,
            3,
            writer | {"topics": [{"name": TOPIC, "partitions": [0]}]},
            True,
        ),
        Asked(txn.ADD_OFFSETS_TO_TXN, 3, writer | {"group_id": GROUP}, True),
        Asked(
            txn.TXN_OFFSET_COMMIT,
            3,
            writer | {"group_id": GROUP, "member_id": "", "topics": topics},
            True,
        ),
        Asked(txn.END_TXN, 3, writer | {"committed": True}, True),
        Asked(
            connection_apis.DESCRIBE_CLUSTER,
            0,
            {"include_cluster_authorized_operations": True},
            False,
        ),
    ]


class Rig(NamedTuple):
    """A server with something of others, a client with a narrow key, and one that only reads."""

    service: Any
    requests: dict[int, Asked]
    narrow: RawClient
    reading: RawClient


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("scopes")
    keys = str(folder / "keys.json")
    _, narrow = auth.create(keys, scope="admin", prefix="mine.")
    _, reading = auth.create(keys, scope="read")
    with (
        served(folder / "data", kafka_port=0, keys_file=keys) as service,
        contextlib.ExitStack() as enter,
    ):
        store = service.broker.store
        store.create_topic(TOPIC)
        store.append(TOPIC, [b"a secret"])
        store.commit_offsets(GROUP, [Committed(TOPIC, 0, 1)])
        requests = {each.api.key: each for each in _requests(topic_id(store, TOPIC))}
        clients = [
            enter.enter_context(with_key(service.kafka_address, k)) for k in (narrow, reading)
        ]
        yield Rig(service, requests, *clients)


def codes(answer: Any) -> set[int]:
    """Every error in an answer, however deep."""
    if isinstance(answer, list):
        return {code for each in answer for code in codes(each)}
    if not isinstance(answer, dict):
        return set()
    own = {value for name, value in answer.items() if name.endswith("error_code") and value}
    return own | {code for value in answer.values() for code in codes(value)}


def state(service: Any) -> tuple[Any, ...]:
    store = service.broker.store
    return (
        store.topics(),
        store.describe_topic(TOPIC).settings,
        store.earliest_offset(TOPIC),
        store.latest_offset(TOPIC),
        dict(store.coordinator.offsets.of(GROUP)),
        store.coordinator.describe(GROUP),
        store.groups(),
        dict(store.coordinator.offsets.producers()),
    )


def test_every_api_is_tried(rig: Rig) -> None:
    assert rig.requests.keys() == HANDLERS.keys() - NOBODY


@pytest.mark.parametrize("key", sorted(HANDLERS.keys() - NOBODY), ids=lambda key: APIS[key].name)
def test_a_key_learns_and_changes_nothing_of_others(rig: Rig, key: int) -> None:
    asked = rig.requests[key]
    before = state(rig.service)
    answer = rig.narrow.ask(asked.api, asked.version, asked.value)
    if key in (group_apis.LIST_GROUPS.key, connection_apis.DESCRIBE_CLUSTER.key):
        assert "theirs" not in repr(answer)
    else:
        assert codes(answer), answer
        assert codes(answer) <= REFUSALS
    assert b"secret" not in repr(answer).encode()
    assert state(rig.service) == before


@pytest.mark.parametrize("key", sorted(HANDLERS.keys() - NOBODY), ids=lambda key: APIS[key].name)
def test_a_key_that_reads_changes_nothing(rig: Rig, key: int) -> None:
    asked = rig.requests[key]
    before = state(rig.service)
    answer = rig.reading.ask(asked.api, asked.version, asked.value)
    if asked.changes:
        assert codes(answer), answer
        assert codes(answer) <= REFUSALS
    else:
        assert codes(answer) <= {ErrorCode.GROUP_ID_NOT_FOUND}, "it is no share group"
    assert state(rig.service) == before
