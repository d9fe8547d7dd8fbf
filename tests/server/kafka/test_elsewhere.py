"""Kafka clients at a server that does not hold its cluster: where they are sent, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import NotPrimary
from lamina.server.auth import ANYBODY
from lamina.server.kafka import elsewhere
from lamina.server.kafka.handling import HANDLERS
from lamina.server.kafka.sessions import Call, Doorway, Session
from lamina.server.service import Service
from lamina.wire.kafka import codec, group_apis, record_apis, topic_apis
from lamina.wire.kafka.apis import APIS
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.connection_apis import DESCRIBE_CLUSTER
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.message_schema import Api, Field
from tests.server.kafka.raw_client import RawClient, made
from tests.server.test_standing import Switch, member, store_of

PRODUCE = {
    "transactional_id": None, "acks": -1, "timeout_ms": 1000,
    "topic_data": [
        {"name": "t", "partition_data": [{"index": n, "records": [made([b"x"])]} for n in (0, 1)]},
        {"name": "u", "partition_data": [{"index": 5, "records": [made([b"x"])]}]},
    ],
}  # fmt: skip
METADATA = {"topics": None, "allow_auto_topic_creation": True}

Standby = tuple[Service, Switch]


@pytest.fixture(scope="module")
def standby(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standby]:
    """A server whose holder is at kafka.example:9092, and which reads from a replica."""
    data: Path = tmp_path_factory.mktemp("data")
    with member(data / "a", kafka_port=0) as (service, switch):
        service.broker.place.replica = store_of(service)
        switch.is_holder, switch.holder = False, "grpc://x:1,kafka://kafka.example:9092"
        yield service, switch


def numbers(value: Any) -> set[int]:
    """Every error code anywhere in an answer."""
    if isinstance(value, list):
        return set().union(*map(numbers, value))
    if not isinstance(value, dict):
        return set()
    own = {each for name, each in value.items() if name == "error_code"}
    return own.union(*map(numbers, value.values()))


def test_metadata_names_the_holder_as_leader_and_controller(standby: Standby) -> None:
    with RawClient(standby[0].kafka_address) as client:
        answer = client.ask(topic_apis.METADATA, 9, METADATA)
        (broker,) = answer["brokers"]
        assert (broker["node_id"], broker["host"], broker["port"]) == (7, "kafka.example", 9092)
        assert answer["controller_id"] == 7
        (topic,) = answer["topics"]
        assert [each["leader_id"] for each in topic["partitions"]] == [7]
        cluster = client.ask(DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False})
        assert (cluster["controller_id"], cluster["brokers"][0]["port"]) == (7, 9092)
        found = client.ask(
            group_apis.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]}
        )["coordinators"][0]
        assert (found["node_id"], found["host"]) == (7, "kafka.example")


def test_a_topic_that_the_standby_does_not_know_yet_may_be_asked_for_again(
    standby: Standby,
) -> None:
    with RawClient(standby[0].kafka_address) as client:
        answer = client.ask(topic_apis.METADATA, 9, METADATA | {"topics": [{"name": "new"}]})
    assert numbers(answer) == {ErrorCode.LEADER_NOT_AVAILABLE}
    assert "new" not in store_of(standby[0]).topics()


def test_nobody_is_named_while_nobody_holds(standby: Standby) -> None:
    service, switch = standby
    holder, switch.holder = switch.holder, None
    try:
        with RawClient(service.kafka_address) as client:
            answer = client.ask(topic_apis.METADATA, 9, METADATA)
            assert (answer["brokers"], answer["controller_id"]) == ([], -1)
            found = client.ask(group_apis.FIND_COORDINATOR, 2, {"key": "g", "key_type": 0})
            assert found["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
    finally:
        switch.holder = holder


def test_each_partition_is_refused_as_one_of_another_leader(standby: Standby) -> None:
    service, _ = standby
    with RawClient(service.kafka_address) as client:
        answer = client.ask(record_apis.PRODUCE, 9, PRODUCE)["responses"]
        found = [
            (each["name"], part["index"], part["error_code"])
            for each in answer
            for part in each["partition_responses"]
        ]
        no = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found == [("t", 0, no), ("t", 1, no), ("u", 5, no)]
        asked = {"topics": [{"topic": "t", "partitions": [{"partition": 3, "fetch_offset": 0}]}]}
        answer = client.ask(record_apis.FETCH, 11, asked)
        (part,) = answer["responses"][0]["partitions"]
        assert (answer["responses"][0]["topic"], part["partition_index"]) == ("t", 3)
        assert (answer["error_code"], part["error_code"]) == (0, no)
    assert store_of(service).latest_offset("t", 0) == 0


def test_groups_and_topics_are_refused_in_their_own_words(standby: Standby) -> None:
    with RawClient(standby[0].kafka_address) as client:
        joined = client.ask(group_apis.JOIN_GROUP, 5, {"group_id": "g", "protocols": []})
        assert joined["error_code"] == ErrorCode.NOT_COORDINATOR
        commit = {
            "group_id": "g",
            "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
        }
        answer = client.ask(group_apis.OFFSET_COMMIT, 7, commit)
        assert numbers(answer) == {ErrorCode.NOT_COORDINATOR}
        wanted = {"topics": [{"name": "new", "num_partitions": 1}]}
        answer = client.ask(topic_apis.CREATE_TOPICS, 5, wanted)
        assert [(each["name"], each["error_code"]) for each in answer["topics"]] == [
            ("new", ErrorCode.NOT_CONTROLLER)
        ]
        new = client.ask(record_apis.INIT_PRODUCER_ID, 4, {"transactional_id": None})
        assert new["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_a_producer_that_waits_for_no_answer_is_disconnected(standby: Standby) -> None:
    with RawClient(standby[0].kafka_address) as client:
        client.send(record_apis.PRODUCE, 9, PRODUCE | {"acks": 0})
        assert client.is_closed()


def filled(fields: tuple[Field, ...], version: int) -> Message:
    """A request with one thing in each list."""
    zeros = {"string": "x", "bytes": b"", "records": None, "uuid": bytes(16), "bool": False}
    made_of: Message = {}
    for each in fields:
        if not each.is_in(version):
            made_of[each.name] = each.default
            continue
        one: Any = filled(each.inside, version) if each.inside else zeros.get(each.kind, 1)
        made_of[each.name] = [one] if each.is_list else one
    return made_of


@pytest.mark.parametrize("api", [APIS[key] for key in sorted(HANDLERS)], ids=lambda api: api.name)
def test_every_api_is_answered_in_every_version(standby: Standby, api: Api) -> None:
    """Whatever is asked, the answer has its shape and a number in it, or the connection ends."""
    if api.key in elsewhere.ANSWERED:
        return
    service, switch = standby
    door = Doorway(service.broker, None, None, 1)  # type: ignore[arg-type]  # none is needed
    session = Session("h", "h", None, ANYBODY)  # type: ignore[arg-type]
    refusal = switch.refusal()
    assert refusal is not None
    for version in range(api.first, api.last + 1):
        request = filled(api.request, version)
        try:
            answer = elsewhere.answered(Call(door, session, api.name, version, request, 0), refusal)
        except NotPrimary:
            assert not any(each.name == "error_code" for each in api.response)
            continue
        out, pieces = bytearray(), []
        codec.writer(api, version, "response")(answer, out, pieces)
        if api not in (topic_apis.METADATA, DESCRIBE_CLUSTER, group_apis.FIND_COORDINATOR):
            assert numbers(answer), version
            assert 0 not in numbers(answer), (version, answer)


def test_the_holder_is_a_node_of_its_epoch(standby: Standby) -> None:
    service, switch = standby
    switch.is_holder = True
    try:
        with RawClient(service.kafka_address) as client:
            answer = client.ask(topic_apis.METADATA, 9, METADATA)
    finally:
        switch.is_holder = False
    assert [each["node_id"] for each in answer["brokers"]] == [7]
    assert answer["controller_id"] == 7
