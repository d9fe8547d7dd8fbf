"""Requests one by one: order, acks, holes, limits, errors, and who does not speak the protocol."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.errors import UNREADABLE, RecordsMissing
from lamina.formats.kafka import batch
from lamina.server import auth
from lamina.wire.kafka.connection_apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.record_apis import (
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
)
from lamina.wire.kafka.topic_apis import (
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
)
from tests.server.kafka.raw_client import RawClient, fetched, made, offsets_of, produced
from tests.server.rig import served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("kafka")
    with served(folder / "data", kafka_port=0, request_bytes=1 << 20, idle_ms=500) as service:
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made_client:
        yield made_client


def create(server: Any, topic: str, **more: Any) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, **more)


def parts_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for topic in answer["responses"] for each in topic["partition_responses"]]


def partition_of(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return found


# ---------------------------------------------------------------- produce


@pytest.mark.parametrize("version", range(PRODUCE.first, PRODUCE.last + 1))
def test_every_version_of_produce_and_fetch(server: Any, client: RawClient, version: int) -> None:
    topic = f"version-{version}"
    create(server, topic)
    (answer,) = parts_of(client.ask(PRODUCE, version, produced(topic, made([b"a", b"b"]))))
    assert (answer["error_code"], answer["base_offset"]) == (0, 0)
    found = partition_of(client.ask(FETCH, min(version + 1, 12), fetched(topic, 1)))
    assert (found["error_code"], found["high_watermark"], found["last_stable_offset"]) == (0, 2, 2)
    assert offsets_of(found["records"]) == [(1, 1, 1)]


def test_answers_come_in_the_order_of_requests(server: Any, client: RawClient) -> None:
    create(server, "ordered")
    large = made([b"x" * 300_000])
    for number in range(20):  # large ones are decoded elsewhere, and overtake nobody
        batch_ = large if number % 3 == 0 else made([b"%d" % number])
        client.send(PRODUCE, 9, produced("ordered", batch_))
    answers = [client.receive(PRODUCE, 9) for _ in range(20)]
    assert [number for number, _ in answers] == list(range(1, 21))
    assert [parts_of(each)[0]["base_offset"] for _, each in answers] == list(range(20))
    with lamina.connect(server.flight_url) as store:
        values = [row for found in store.scan("ordered") for row in found["value"].to_pylist()]
    assert values == [b"x" * 300_000 if n % 3 == 0 else b"%d" % n for n in range(20)]


def test_a_long_poll_is_answered_before_what_was_asked_later(
    server: Any, client: RawClient
) -> None:
    create(server, "slow")
    client.send(FETCH, 11, fetched("slow", 0, max_wait_ms=300))
    client.send(API_VERSIONS, 0, {})
    assert client.receive(FETCH, 11)[0] == 1
    assert client.receive(API_VERSIONS, 0)[0] == 2


def test_acks_0_is_not_answered_and_an_error_ends_the_connection(
    server: Any, client: RawClient
) -> None:
    create(server, "silent")
    client.send(PRODUCE, 7, produced("silent", made([b"a"]), acks=0))
    assert client.ask(API_VERSIONS, 0, {})["error_code"] == 0
    client.send(PRODUCE, 7, produced("no-such-topic", made([b"a"]), acks=0))
    assert client.is_closed()
    with RawClient(server.kafka_address) as other:
        (answer,) = parts_of(other.ask(PRODUCE, 7, produced("silent", made([b"b"]))))
    assert answer["base_offset"] == 1


def test_one_bad_partition_does_not_keep_the_others(server: Any, client: RawClient) -> None:
    create(server, "mixed", partitions=2)
    broken = bytearray(made([b"b"]))
    broken[-1] ^= 1
    answer = client.ask(PRODUCE, 9, produced("mixed", made([b"a"]), bytes(broken), made([b"c"])))
    codes = [each["error_code"] for each in parts_of(answer)]
    assert codes == [0, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(
    ("format_name", "columns", "record"),
    [
        ("frame", {"headers": [None, [{"key": "h", "value": b"1"}]]}, 1),
        ("wal", {"headers": [None, [{"key": "h", "value": b"1"}]]}, 1),
        ("wal", {"keys": [b"k", None]}, 0),
        ("frame", {}, 1),
        ("wal", {}, 1),
    ],
)
def test_what_a_format_cannot_keep_names_the_record(
    server: Any, client: RawClient, format_name: str, columns: dict[str, Any], record: int
) -> None:
    topic = f"{format_name}-{'-'.join(columns)}"
    create(server, topic, format=format_name)
    values = [b"a", b"b"] if columns else [b"a", None]
    (answer,) = parts_of(client.ask(PRODUCE, 9, produced(topic, made(values, **columns))))
    assert answer["error_code"] == ErrorCode.INVALID_RECORD
    assert [each["batch_index"] for each in answer["record_errors"]] == [record]
    with lamina.connect(server.flight_url) as store:
        assert store.latest_offset(topic) == store.earliest_offset(topic)


def test_a_record_that_is_too_large_and_wrong_acks_are_refused(
    server: Any, client: RawClient
) -> None:
    create(server, "small", config={"max.message.bytes": 1024})
    (answer,) = parts_of(client.ask(PRODUCE, 9, produced("small", made([b"x" * 2000]))))
    assert answer["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    (answer,) = parts_of(client.ask(PRODUCE, 9, produced("small", made([b"x"]), acks=2)))
    assert answer["error_code"] == ErrorCode.INVALID_REQUIRED_ACKS


# ---------------------------------------------------------------- fetch


def test_the_first_record_comes_whole_and_offsets_are_judged(
    server: Any, client: RawClient
) -> None:
    create(server, "large")
    client.ask(PRODUCE, 9, produced("large", made([b"x" * 100_000, b"y"])))
    request = fetched("large", 0, max_bytes=1, partition_max_bytes=1)
    found = partition_of(client.ask(FETCH, 12, request))
    assert offsets_of(found["records"])[0][0] == 0
    for offset, code in ((2, 0), (3, ErrorCode.OFFSET_OUT_OF_RANGE), (-1, 1)):
        assert partition_of(client.ask(FETCH, 12, fetched("large", offset)))["error_code"] == code
    answer = partition_of(client.ask(FETCH, 12, fetched("nobody", 0, max_wait_ms=60_000)))
    assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleted_records_are_a_hole_that_readers_cross(server: Any, client: RawClient) -> None:
    create(server, "holes", format="wal")
    with lamina.connect(server.flight_url) as store:
        for number in range(6):
            store.append("holes", [{"value": b"%d" % number, "tag": b"t%d" % (number >= 3)}])
        store.delete("holes", 0, tag=b"t1")
        reached, end, seen = store.earliest_offset("holes"), store.latest_offset("holes"), 0
    while reached < end:
        found = partition_of(client.ask(FETCH, 12, fetched("holes", reached)))
        batches = offsets_of(found["records"])
        assert batches, "a reader stands still"
        reached = batches[-1][1] + 1
        seen += sum(count for _, _, count in batches)
    assert seen == 3


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_a_lost_record_is_told_before_it_is_crossed(
    tmp_path: Path, format_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t", format=format_name, config={"segment.bytes": 4096})
        for number in range(40):
            store.append("t", [b"%03d" % number + b"x" * 300])
        store.maintain()
    for path in (tmp_path / "data").rglob("*"):
        if path.suffix in (".log", ".data") and b"005xxx" in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(b"005xxx", b"005xxy"))
    with served(tmp_path / "data", kafka_port=0) as service:
        first = service.broker.store.earliest_offset("t")
        for _ in range(2):  # each client is told
            with RawClient(service.kafka_address) as reader:
                reached, seen, errors = first, 0, []
                while reached < first + 40:
                    found = partition_of(reader.ask(FETCH, 12, fetched("t", reached)))
                    if found["error_code"]:
                        errors.append((reached, found["error_code"]))
                        continue
                    spans = offsets_of(found["records"])
                    reached = spans[-1][1] + 1
                    seen += sum(count for _, _, count in spans)
                assert errors == [(first + 5, ErrorCode.CORRUPT_MESSAGE)]
                assert seen == 39
    logged = [each.getMessage() for each in caplog.records if "Fetch of" in each.getMessage()]
    assert len(logged) == 1
    assert "damaged" in logged[0]


def test_what_the_disk_does_not_deliver_is_not_crossed(
    server: Any, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(server, "unread")
    client.ask(PRODUCE, 9, produced("unread", made([b"a", b"b"])))

    def unreadable(*_: object, **__: object) -> Any:
        raise RecordsMissing("a page", first=0, end=2, reason=UNREADABLE)

    with monkeypatch.context() as bad_disk:
        bad_disk.setattr(server.broker.store, "fetch", unreadable)
        for _ in range(3):
            found = partition_of(client.ask(FETCH, 12, fetched("unread", 0)))
            assert found["error_code"] == ErrorCode.CORRUPT_MESSAGE
    found = partition_of(client.ask(FETCH, 12, fetched("unread", 0)))
    assert offsets_of(found["records"]) == [(0, 1, 2)]


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_an_append_by_another_door_ends_a_long_poll_of_every_format(
    server: Any, client: RawClient, format_name: str
) -> None:
    topic = f"polled-{format_name}"
    create(server, topic, format=format_name)
    with lamina.connect(server.flight_url) as store:
        start = store.latest_offset(topic)
        client.send(FETCH, 11, fetched(topic, start, max_wait_ms=29_000))
        client.socket.settimeout(20)
        store.append(topic, b"soon")
        found = partition_of(client.receive(FETCH, 11)[1])
    assert offsets_of(found["records"]) == [(start, start, 1)]


def test_trimmed_records_are_out_of_range(server: Any, client: RawClient) -> None:
    create(server, "trimmed", config={"segment.bytes": 65536})
    for _ in range(6):
        client.ask(PRODUCE, 9, produced("trimmed", made([b"x" * 50_000])))
    with lamina.connect(server.flight_url) as store:
        store.trim("trimmed", 0, 4)
        earliest = store.earliest_offset("trimmed")
    assert earliest > 0
    found = partition_of(client.ask(FETCH, 12, fetched("trimmed", 0)))
    assert found["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert found["log_start_offset"] == earliest


def deleted(client: RawClient, topic: str, offset: int, version: int = 2) -> tuple[int, int]:
    parts = [{"partition_index": 0, "offset": offset}]
    asked = {"topics": [{"name": topic, "partitions": parts}], "timeout_ms": 1000}
    answer = client.ask(DELETE_RECORDS, version, asked)["topics"][0]
    assert answer["name"] == topic
    (part,) = answer["partitions"]
    return part["error_code"], part["low_watermark"]


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
@pytest.mark.parametrize("version", range(DELETE_RECORDS.first, DELETE_RECORDS.last + 1))
def test_records_are_deleted_up_to_an_offset(
    server: Any, client: RawClient, format_name: str, version: int
) -> None:
    topic = f"deleted-{format_name}-{version}"
    create(server, topic, format=format_name)
    client.ask(PRODUCE, 9, produced(topic, made([b"a", b"b", b"c", b"d"])))
    first, end = listed(client, topic, -2)[1], listed(client, topic, -1)[1]
    assert end - first == 4
    assert deleted(client, topic, first + 2, version) == (0, first + 2)
    assert listed(client, topic, -2)[1] == first + 2
    found = partition_of(client.ask(FETCH, 12, fetched(topic, first + 1)))
    assert found["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert found["log_start_offset"] == first + 2
    found = partition_of(client.ask(FETCH, 12, fetched(topic, first + 2)))
    assert [span[:2] for span in offsets_of(found["records"])] == [(first + 2, end - 1)]
    assert deleted(client, topic, first, version) == (0, first + 2), "it only moves up"
    assert deleted(client, topic, end + 1, version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert deleted(client, topic, -2, version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert deleted(client, topic, -1, version) == (0, end)
    assert deleted(client, f"{topic}-none", -1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def grown(client: RawClient, topic: str, count: int, version: int = 3, **more: Any) -> int:
    one = {"name": topic, "count": count, "assignments": more.pop("assignments", None)}
    asked = {"topics": [one], "timeout_ms": 1000, "validate_only": False} | more
    (answer,) = client.ask(CREATE_PARTITIONS, version, asked)["results"]
    assert answer["name"] == topic
    assert (answer["error_code"] == 0) == (answer["error_message"] is None)
    return int(answer["error_code"])


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
@pytest.mark.parametrize("version", range(CREATE_PARTITIONS.first, CREATE_PARTITIONS.last + 1))
def test_partitions_are_added_to_a_topic(
    server: Any, client: RawClient, format_name: str, version: int
) -> None:
    topic = f"grown-{format_name}-{version}"
    create(server, topic, format=format_name)

    def count() -> int:
        (about,) = client.ask(METADATA, 9, {"topics": [{"name": topic}]})["topics"]
        return len(about["partitions"])

    assert grown(client, topic, 3, version, validate_only=True) == 0
    assert count() == 1
    for wrong in (-1, 0, 1, 1 << 30):
        assert grown(client, topic, wrong, version) == ErrorCode.INVALID_PARTITIONS
    for brokers in ([[1]], [[1], [2]], [[1], [1, 2]]):
        there = [{"broker_ids": each} for each in brokers]
        code = grown(client, topic, 3, version, assignments=there)
        assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert count() == 1
    assert grown(client, topic, 3, version, assignments=[{"broker_ids": [1]}] * 2) == 0
    assert count() == 3
    assert grown(client, f"{topic}-none", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_by_id_finds_its_topic_until_it_is_made_again(
    server: Any, client: RawClient
) -> None:
    create(server, "by-id")
    client.ask(PRODUCE, 9, produced("by-id", made([b"a"])))

    def id_now() -> bytes:
        topics = client.ask(METADATA, 12, {"topics": [{"name": "by-id"}]})["topics"]
        return bytes(topics[0]["topic_id"])

    before = id_now()
    assert id_now() == before != bytes(16)
    request = fetched("", 0)
    request["topics"][0]["topic_id"] = before
    assert offsets_of(partition_of(client.ask(FETCH, 16, request))["records"]) == [(0, 0, 1)]
    with lamina.connect(server.flight_url) as store:
        store.delete_topic("by-id")
        store.create_topic("by-id")
    assert id_now() != before
    answer = partition_of(client.ask(FETCH, 16, request))
    assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


# ---------------------------------------------------------------- offsets


def listed(client: RawClient, topic: str, timestamp: int) -> tuple[int, int, int]:
    partition = {"partition_index": 0, "timestamp": timestamp}
    request = {"topics": [{"name": topic, "partitions": [partition]}]}
    found = client.ask(LIST_OFFSETS, 9, request)["topics"][0]["partitions"][0]
    return found["error_code"], found["offset"], found["timestamp"]


def test_offsets_are_listed_by_position_and_exactly_by_time(server: Any, client: RawClient) -> None:
    create(server, "times")
    assert listed(client, "times", -1) == (0, 0, -1)
    assert listed(client, "times", -3) == (0, -1, -1)
    times = [1000, 5000, 3000, 9000, 4000]
    client.ask(PRODUCE, 9, produced("times", made([b"x"] * 5, times=times)))
    assert listed(client, "times", -1) == (0, 5, -1)
    assert listed(client, "times", -2) == (0, 0, -1)
    assert listed(client, "times", -3) == (0, 3, 9000)
    assert listed(client, "times", -4) == (0, 0, -1)
    assert listed(client, "times", -5) == (0, -1, -1)
    assert listed(client, "times", 0) == (0, 0, 1000)
    assert listed(client, "times", 1001) == (0, 1, 5000)
    assert listed(client, "times", 9000) == (0, 3, 9000)
    assert listed(client, "times", 9001) == (0, -1, -1)
    assert listed(client, "none-such", -1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = {"partition": 0, "leader_epoch": 0}
    request = {"topics": [{"topic": "times", "partitions": [asked]}]}
    answer = client.ask(OFFSET_FOR_LEADER_EPOCH, 4, request)["topics"][0]["partitions"][0]
    assert (answer["error_code"], answer["leader_epoch"], answer["end_offset"]) == (0, 0, 5)


# ---------------------------------------------------------------- topics


def test_topics_are_made_by_asking_only_where_the_client_says_so(client: RawClient) -> None:
    request = {"topics": [{"name": "asked"}], "allow_auto_topic_creation": False}
    (topic,) = client.ask(METADATA, 9, request)["topics"]
    assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request["allow_auto_topic_creation"] = True
    (topic,) = client.ask(METADATA, 9, request)["topics"]
    assert (topic["error_code"], len(topic["partitions"])) == (0, 1)
    (topic,) = client.ask(METADATA, 9, {"topics": [{"name": "../no"}]})["topics"]
    assert topic["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert client.ask(METADATA, 9, {"topics": []})["topics"] == []
    everything = client.ask(METADATA, 0, {"topics": []})["topics"]
    assert "asked" in {each["name"] for each in everything}


def created(name: str, **more: Any) -> dict[str, Any]:
    configs = [{"name": key, "value": value} for key, value in more.pop("configs", {}).items()]
    asked = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": configs}
    return {"topics": [asked | more]}


def test_topics_are_created_described_altered_and_deleted(client: RawClient) -> None:
    configs = {"retention.ms": "3600000", "cleanup.policy": "delete"}
    request = created("made", num_partitions=3, replication_factor=3, configs=configs)
    (dry,) = client.ask(CREATE_TOPICS, 7, request | {"validate_only": True})["topics"]
    assert dry["error_code"] == 0
    (topic,) = client.ask(CREATE_TOPICS, 7, request)["topics"]
    assert (topic["error_code"], topic["num_partitions"], topic["replication_factor"]) == (0, 3, 1)
    assert len(topic["configs"]) > 20
    (again,) = client.ask(CREATE_TOPICS, 7, request)["topics"]
    assert again["error_code"] == ErrorCode.TOPIC_ALREADY_EXISTS

    def settings() -> dict[str, dict[str, Any]]:
        asked = {"resource_type": 2, "resource_name": "made", "configuration_keys": None}
        request = {"resources": [asked], "include_synonyms": True}
        (found,) = client.ask(DESCRIBE_CONFIGS, 4, request)["results"]
        assert found["error_code"] == 0
        return {each["name"]: each for each in found["configs"]}

    assert (settings()["retention.ms"]["value"], settings()["retention.ms"]["config_source"]) == (
        "3600000",
        1,
    )
    assert settings()["segment.bytes"]["config_source"] == 5
    change = {"name": "retention.ms", "config_operation": 0, "value": "7200000"}
    resource = {"resource_type": 2, "resource_name": "made", "configs": [change]}
    (done,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    assert done["error_code"] == 0
    assert settings()["retention.ms"]["value"] == "7200000"
    whole = {"resource_type": 2, "resource_name": "made", "configs": []}
    (done,) = client.ask(ALTER_CONFIGS, 2, {"resources": [whole]})["responses"]
    assert done["error_code"] == 0
    assert settings()["retention.ms"]["value"] == "-1"
    change["name"] = "no.such.setting"
    (done,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    assert done["error_code"] == ErrorCode.INVALID_CONFIG
    (gone,) = client.ask(DELETE_TOPICS, 1, {"topic_names": ["made"]})["responses"]
    assert gone["error_code"] == 0
    (gone,) = client.ask(DELETE_TOPICS, 1, {"topic_names": ["made"]})["responses"]
    assert gone["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (created("bad", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (created("bad", configs={"cleanup.policy": "shred"}), ErrorCode.INVALID_CONFIG),
        (
            created("bad", configs={"cleanup.policy": "compact", "lamina.format": "wal"}),
            ErrorCode.INVALID_CONFIG,
        ),
        (created("bad", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (created("bad", num_partitions=0), ErrorCode.INVALID_PARTITIONS),
        (created("bad", num_partitions=20_000), ErrorCode.INVALID_PARTITIONS),
        (created("b/d"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (created("bad", configs={"lamina.format": "none"}), ErrorCode.INVALID_CONFIG),
        (created("bad", configs={"retention.records": "9"}), ErrorCode.INVALID_CONFIG),
        (created("bad", configs={"remote.storage.enable": "true"}), ErrorCode.INVALID_CONFIG),
        ({"topics": created("bad")["topics"] * 2}, ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_a_topic_that_cannot_be_is_refused(
    client: RawClient, request_: dict[str, Any], code: ErrorCode, validate_only: bool
) -> None:
    asked = request_ | {"validate_only": validate_only}
    for topic in client.ask(CREATE_TOPICS, 5, asked)["topics"]:
        assert topic["error_code"] == code
        assert topic["error_message"]


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_setting_that_a_topic_cannot_have_is_refused(
    server: Any, client: RawClient, validate_only: bool
) -> None:
    topic = f"settled-{validate_only}"
    create(server, topic)
    for name, value in (("retention.records", "9"), ("remote.storage.enable", "true")):
        change = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
        asked = {"resources": [resource], "validate_only": validate_only}
        (done,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, asked)["responses"]
        assert done["error_code"] == ErrorCode.INVALID_CONFIG, name


# ---------------------------------------------------------------- the protocol itself


def test_an_unknown_version_of_api_versions_is_answered_as_version_0(client: RawClient) -> None:
    client.send(API_VERSIONS, 4, {})
    assert len(client.receive(API_VERSIONS, 4)[1]["api_keys"]) > 20
    client.socket.sendall(struct.pack(">ihhih", 10, 18, 99, 7, -1))
    number, answer = client.receive(API_VERSIONS, 0)
    assert (number, answer["error_code"]) == (7, ErrorCode.UNSUPPORTED_VERSION)
    assert [each["api_key"] for each in answer["api_keys"]] == [18]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\x7f\xff\xff\xff", "2147483647"),
        (b"\xff\xff\xff\xff", "-1"),
        (struct.pack(">ihhih", 10, 9999, 0, 1, -1), "API 9999"),
        (struct.pack(">ihhih", 10, 0, 1, 1, -1), "Produce version 1"),
        (struct.pack(">ihhih", 10, 3, 1, 1, -1), "ends too early"),
        (b"\x00\x00\x00\x64half", "no more"),
    ],
)
def test_who_does_not_speak_the_protocol_is_disconnected_and_logged_once(
    server: Any, data: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lamina.server"):
        for _ in range(3):
            with RawClient(server.kafka_address) as stranger:
                stranger.socket.sendall(data)
                assert stranger.is_closed()
    assert len([each for each in caplog.records if said in each.getMessage()]) <= 1
    with RawClient(server.kafka_address) as client:
        assert client.ask(API_VERSIONS, 0, {})["error_code"] == 0


def test_a_client_that_hangs_up_gives_everything_back(server: Any) -> None:
    create(server, "left")
    for _ in range(10):
        with RawClient(server.kafka_address) as client:
            client.send(PRODUCE, 9, produced("left", made([b"x" * 200_000])))
            client.send(FETCH, 11, fetched("left", 0, max_wait_ms=30_000))
    with RawClient(server.kafka_address) as client:
        client.ask(API_VERSIONS, 0, {})
    assert server.broker.work.wait_until_unused(30)
    assert server.broker.inflight.wait_until_unused(30)


def test_many_idle_connections_hold_no_threads(server: Any) -> None:
    before = threading.active_count()
    clients = [RawClient(server.kafka_address) for _ in range(200)]
    try:
        for client in clients:
            client.send(FETCH, 11, fetched("left", 1 << 40, max_wait_ms=0))
        for client in clients:
            client.receive(FETCH, 11)
        assert threading.active_count() <= before + 8
    finally:
        for client in clients:
            client.socket.close()


# ---------------------------------------------------------------- keys


def test_keys_scopes_and_prefixes_hold(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    _, admin = auth.create(keys, scope="admin")
    _, reader = auth.create(keys, scope="read", prefix="orders.")

    def entered(address: str | None, key: str) -> tuple[RawClient, int]:
        client = RawClient(address)
        assert client.ask(API_VERSIONS, 3, {})["error_code"] == 0
        assert client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})["error_code"] == 0
        said = b"\0anybody\0" + key.encode()
        answer = client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": said})
        return client, answer["error_code"]

    with served(tmp_path / "data", kafka_port=0, keys_file=keys) as service:
        with RawClient(service.kafka_address) as stranger:
            stranger.send(METADATA, 1, {"topics": None})
            assert stranger.is_closed()
        stranger, code = entered(service.kafka_address, "lamina_wrong")
        assert code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert stranger.is_closed()
        stranger.socket.close()
        owner, code = entered(service.kafka_address, admin)
        assert code == 0
        for topic in ("orders.a", "secret"):
            owner.ask(CREATE_TOPICS, 5, created(topic))
            owner.ask(PRODUCE, 9, produced(topic, made([b"a"])))
        narrow, code = entered(service.kafka_address, reader)
        assert code == 0
        topics = narrow.ask(METADATA, 9, {"topics": None})["topics"]
        assert [each["name"] for each in topics] == ["orders.a"]
        for topic in ("secret", "not-there"):
            answer = narrow.ask(METADATA, 9, {"topics": [{"name": topic}]})["topics"][0]
            assert answer["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            found = partition_of(narrow.ask(FETCH, 12, fetched(topic, 0)))
            assert found["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert listed(narrow, topic, -1)[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found = partition_of(narrow.ask(FETCH, 12, fetched("orders.a", 0)))
        assert offsets_of(found["records"]) == [(0, 0, 1)]
        for topic in ("orders.a", "secret", "not-there"):
            assert deleted(narrow, topic, -1) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
            assert grown(narrow, topic, 3) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        (answer,) = parts_of(narrow.ask(PRODUCE, 9, produced("orders.a", made([b"b"]))))
        assert answer["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        owner.socket.close()
        narrow.socket.close()


def test_the_golden_header_is_what_the_door_sends(server: Any, client: RawClient) -> None:
    create(server, "sent")
    client.ask(PRODUCE, 9, produced("sent", made([b"a"])))
    records = partition_of(client.ask(FETCH, 12, fetched("sent", 0)))["records"]
    head = batch.HEADER.unpack(records)
    assert (head["magic"], head["partition_leader_epoch"], head["producer_id"]) == (2, 0, -1)
