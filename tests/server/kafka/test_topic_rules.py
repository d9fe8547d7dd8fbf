"""What a topic's settings make of records that Kafka clients send: sizes, keys, times."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, UnsupportedField
from lamina.formats.kafka import batch
from lamina.formats.kernels.crc import crc32c_of
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.record_apis import FETCH, LIST_OFFSETS, PRODUCE
from lamina.wire.kafka.topic_apis import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)
from tests.server.kafka.raw_client import RawClient, fetched, made, offsets_of, produced
from tests.server.rig import served

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("kafka") / "data", kafka_port=0) as service:
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made_client:
        yield made_client


def create(client: RawClient, topic: str, **config: str) -> None:
    configs = [{"name": key, "value": value} for key, value in config.items()]
    asked = {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    (answer,) = client.ask(CREATE_TOPICS, 5, {"topics": [asked]})["topics"]
    assert answer["error_code"] == 0, answer["error_message"]


def produce(client: RawClient, topic: str, data: bytes, acks: int = -1) -> dict[str, Any]:
    answer = client.ask(PRODUCE, 9, produced(topic, data, acks=acks))
    found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return found


def described(client: RawClient, topic: str, key: str) -> dict[str, Any]:
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": [key]}
    request = {"resources": [asked], "include_synonyms": True, "include_documentation": True}
    (found,) = client.ask(DESCRIBE_CONFIGS, 4, request)["results"]
    (row,) = found["configs"]
    assert row["name"] == key
    return dict(row)


def altered(client: RawClient, topic: str, key: str, value: str) -> int:
    change = {"name": key, "config_operation": 0, "value": value}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [change]}
    (done,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    return int(done["error_code"])


def zipped(data: bytes) -> bytes:
    """The same batch with its records compressed by gzip."""
    body = gzip.compress(data[batch.HEADER.size :])
    head = batch.HEADER.unpack(data)
    head |= {"attributes": 1, "batch_length": batch.HEADER.size - 12 + len(body)}
    rest = (batch.HEADER.pack(**head) + body)[batch.UNSEALED_BYTES :]
    return batch.HEADER.pack(**head | {"crc32c": crc32c_of(rest)}) + body


# ---------------------------------------------------------------- max.message.bytes


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_a_batch_above_max_message_bytes_is_refused_and_one_at_it_is_stored(
    server: Any, client: RawClient, format_name: str
) -> None:
    data = made([b"x" * 100] * 20)  # each record is far below
    topic, limit = f"sized-{format_name}", len(data)
    create(client, topic, **{"max.message.bytes": str(limit), "lamina.format": format_name})
    assert described(client, topic, "max.message.bytes")["value"] == str(limit)
    assert produce(client, topic, data)["error_code"] == 0
    answer = produce(client, topic, made([b"x" * 100] * 19 + [b"x" * 101]))
    assert answer["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert f"batch of {limit + 1} bytes" in answer["error_message"]
    assert f"max.message.bytes {limit}" in answer["error_message"]
    with lamina.connect(server.flight_url) as store:
        assert store.latest_offset(topic) - store.earliest_offset(topic) == 20


def test_the_size_of_a_compressed_batch_is_that_on_the_wire(client: RawClient) -> None:
    data = made([b"x" * 100] * 50)
    create(client, "zipped", **{"max.message.bytes": "2000"})
    assert produce(client, "zipped", data)["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert len(zipped(data)) < 2000
    assert produce(client, "zipped", zipped(data))["error_code"] == 0
    answer = produce(client, "zipped", zipped(made([b"x" * 2001])))  # a record has its limit too
    assert answer["error_code"] == ErrorCode.MESSAGE_TOO_LARGE
    assert "a record of 2001 bytes" in answer["error_message"]


# ---------------------------------------------------------------- cleanup.policy


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
@pytest.mark.parametrize("format_name", ["keratin", "frame"])
def test_a_compacted_topic_refuses_records_without_a_key(
    server: Any, client: RawClient, policy: str, format_name: str
) -> None:
    topic = f"keyed-{format_name}-{policy.replace(',', '-')}"
    create(client, topic, **{"cleanup.policy": policy, "lamina.format": format_name})
    row = described(client, topic, "cleanup.policy")
    assert (row["value"], row["config_source"], row["config_type"]) == (policy, 1, 7)
    assert "superseded" in row["documentation"]
    assert not row["read_only"]
    answer = produce(client, topic, made([b"1", b"2", b"3"], keys=[b"k", None, None]))
    assert answer["error_code"] == ErrorCode.INVALID_RECORD
    assert [each["batch_index"] for each in answer["record_errors"]] == [1]
    assert produce(client, topic, made([b"1", b"2"], keys=[b"k", b"k"]))["error_code"] == 0
    with lamina.connect(server.flight_url) as store:
        for door in (store, server.broker.store):  # by Flight, and embedded
            for keyless in (b"v", [b"v"], [(None, b"v")], pa.record_batch({"value": [b"v"]})):
                for partition in (0, None):
                    with pytest.raises(UnsupportedField, match=r"no key, and cleanup\.policy"):
                        door.append(topic, keyless, partition=partition)
        values = [row for found in store.scan(topic) for row in found["value"].to_pylist()]
    assert values == [b"1", b"2"]  # the first is superseded, and kept


def test_a_policy_is_remembered_altered_and_taken_back(client: RawClient) -> None:
    create(client, "policies")
    row = described(client, "policies", "cleanup.policy")
    assert (row["value"], row["config_source"]) == ("delete", 5)
    assert produce(client, "policies", made([b"1"]))["error_code"] == 0
    assert altered(client, "policies", "cleanup.policy", "compact") == 0
    assert described(client, "policies", "cleanup.policy")["value"] == "compact"
    assert produce(client, "policies", made([b"2"]))["error_code"] == ErrorCode.INVALID_RECORD
    assert altered(client, "policies", "cleanup.policy", "delete") == 0
    assert produce(client, "policies", made([b"2"]))["error_code"] == 0
    assert altered(client, "policies", "cleanup.policy", "shred") == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("policy", "kept"), [("compact", True), ("compact,delete", False)])
@pytest.mark.parametrize("format_name", ["keratin", "frame"])
def test_compact_alone_keeps_what_retention_would_remove(
    tmp_path: Path, policy: str, kept: bool, format_name: str
) -> None:
    config = {"segment.bytes": 1024, "retention.bytes": 1, "cleanup.policy": policy}
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, config=config)
        before = config | {"cleanup.policy": "delete"}
        store.create_topic("later", format=format_name, config=before)
        store.alter_topic("later", {"cleanup.policy": policy})
        for number in range(5):
            for topic in ("t", "later"):
                store.append(topic, [(b"key", b"%d" % number * 1000)])
    with lamina.open(tmp_path / "data") as store:
        store.maintain()
        assert store.describe_topic("t").settings["cleanup.policy"] == policy
        assert store.describe_topic("t").settings["retention.bytes"] == 1
        for topic in ("t", "later"):
            assert (store.earliest_offset(topic) == 0) is kept


def test_a_topic_that_keeps_no_keys_is_not_compacted(tmp_path: Path) -> None:
    with lamina.open(tmp_path / "data") as store:
        with pytest.raises(InvalidRequest, match="wal topics do not keep"):
            store.create_topic("t", format="wal", config={"cleanup.policy": "compact"})
        store.create_topic("t", format="wal", config={"cleanup.policy": "delete"})
        with pytest.raises(InvalidRequest, match="wal topics do not keep"):
            store.alter_topic("t", {"cleanup.policy": "compact,delete"})


# ---------------------------------------------------------------- message.timestamp.type


def batches_of(records: memoryview) -> list[dict[str, Any]]:
    found, data = [], bytes(records)
    while data:
        found.append(batch.HEADER.unpack(data))
        data = data[12 + found[-1]["batch_length"] :]
    return found


def times_by_flight(server: Any, topic: str) -> list[int]:
    with lamina.connect(server.flight_url) as store:
        batches = list(store.scan(topic))
    return [time for found in batches for time in found["timestamp"].cast(pa.int64()).to_pylist()]


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
@pytest.mark.parametrize("acks", [1, -1])
def test_append_times_are_answered_and_fetched_as_such(
    server: Any, client: RawClient, format_name: str, acks: int
) -> None:
    topic = f"times-{format_name}-{acks}"
    create(client, topic, **APPEND_TIME, **{"lamina.format": format_name})
    told = [
        produce(client, topic, made([b"a", b"b"], times=[5, 7]), acks)["log_append_time_ms"]
        for _ in range(20)
    ]
    assert min(told) > 1_700_000_000_000
    assert produce(client, topic, made([b"last"]), -1)["error_code"] == 0
    stored = times_by_flight(server, topic)
    assert stored[:-1] == [time for time in told for _ in range(2)]
    first = 1 if format_name == "wal" else 0
    answer = client.ask(FETCH, 11, fetched(topic, first))["responses"][0]["partitions"][0]
    heads = batches_of(answer["records"])
    assert all(head["attributes"] == 1 << 3 for head in heads)
    # What clients make of it: the batch's largest time is that of all its records.
    seen = [head["max_timestamp"] for head in heads for _ in range(head["count"])]
    assert seen == stored
    assert [head["base_timestamp"] for head in heads] == [head["max_timestamp"] for head in heads]
    asked = {"partition_index": 0, "timestamp": stored[-1]}
    request = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    (found,) = client.ask(LIST_OFFSETS, 3, request)["topics"][0]["partitions"]
    assert (found["timestamp"], found["offset"]) == (stored[-1], first + stored.index(stored[-1]))


def test_create_times_are_kept_and_answered_as_none(server: Any, client: RawClient) -> None:
    create(client, "own-times")
    answer = produce(client, "own-times", made([b"a", b"b"], times=[5, 7]))
    assert answer["log_append_time_ms"] == -1
    found = client.ask(FETCH, 11, fetched("own-times", 0))["responses"][0]["partitions"][0]
    (head,) = batches_of(found["records"])
    assert (head["attributes"], head["base_timestamp"], head["max_timestamp"]) == (0, 5, 7)
    assert times_by_flight(server, "own-times") == [5, 7]


def test_many_appends_of_different_times_are_fetched_within_the_bytes_asked_for(
    server: Any, client: RawClient
) -> None:
    create(client, "many-times")
    times = list(range(3000))
    produce(client, "many-times", made([b"v"] * 3000, times=times))
    assert altered(client, "many-times", "message.timestamp.type", "LogAppendTime") == 0
    offset, answers = 0, 0
    while offset < 3000:
        asked = fetched("many-times", offset, partition_max_bytes=20_000)
        answer = client.ask(FETCH, 11, asked)["responses"][0]["partitions"][0]
        assert 0 < len(answer["records"]) <= 20_000
        spans = offsets_of(answer["records"])
        assert spans == [(offset + n, offset + n, 1) for n in range(len(spans))]
        offset, answers = offset + len(spans), answers + 1
    assert answers > 3


# ---------------------------------------------------------------- waiting


def fetch_while(
    server: Any, client: RawClient, asked: dict[str, Any], data: bytes
) -> dict[str, Any]:
    """The answer to a fetch that may wait for a batch, which comes on another connection."""
    client.send(FETCH, 11, asked)
    with RawClient(server.kafka_address) as other:
        produce(other, asked["topics"][0]["topic"], data)
    found: dict[str, Any] = client.receive(FETCH, 11)[1]["responses"][0]["partitions"][0]
    return found


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_min_bytes_counts_the_bytes_of_the_answer(
    server: Any, client: RawClient, format_name: str
) -> None:
    topic, first = f"least-{format_name}", 1 if format_name == "wal" else 0
    create(client, topic, **{"lamina.format": format_name})
    produce(client, topic, made([b"x" * 1000] * 10))
    found = client.ask(FETCH, 11, fetched(topic, first))["responses"][0]["partitions"][0]
    size = len(found["records"])
    assert size > 10_000
    exactly = fetched(topic, first, min_bytes=size, max_wait_ms=1 << 30)
    found = client.ask(FETCH, 11, exactly)["responses"][0]["partitions"][0]  # at once
    assert len(found["records"]) == size
    more = fetched(topic, first, min_bytes=size + 1, max_wait_ms=1 << 30)
    found = fetch_while(server, client, more, made([b"y"]))
    assert found["high_watermark"] == first + 11
    assert len(found["records"]) > size


def test_many_small_records_are_not_taken_for_many_bytes(server: Any, client: RawClient) -> None:
    create(client, "tiny")
    produce(client, "tiny", made([b"x"] * 10))
    found = fetch_while(
        server, client, fetched("tiny", 0, min_bytes=900, max_wait_ms=1 << 30), made([b"x"] * 100)
    )
    assert sum(count for _, _, count in offsets_of(found["records"])) == 110
    assert len(found["records"]) >= 900


def test_min_bytes_is_bounded_by_what_an_answer_may_have(client: RawClient) -> None:
    create(client, "bounded")
    produce(client, "bounded", made([b"x" * 1000] * 10))
    asked = fetched("bounded", 0, min_bytes=1 << 20, max_bytes=2000, max_wait_ms=1 << 30)
    found = client.ask(FETCH, 11, asked)["responses"][0]["partitions"][0]  # at once
    assert found["records"]
    none = fetched("bounded", 10, min_bytes=0, max_wait_ms=1 << 30)
    found = client.ask(FETCH, 11, none)["responses"][0]["partitions"][0]
    assert (found["error_code"], bytes(found["records"] or b"")) == (0, b"")


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_an_append_that_is_not_durable_in_time_is_answered_and_stored_all_the_same(
    server: Any, client: RawClient, format_name: str
) -> None:
    topic = f"late-{format_name}"
    create(client, topic, **{"lamina.format": format_name})
    assert produce(client, topic, made([b"first"]))["error_code"] == 0
    store = server.broker.store
    (log,) = [*store.segmented([topic]), *store.wal_partitions([topic])]
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        release.wait()

    holder = threading.Thread(target=log.exclusively, args=(hold,))
    holder.start()
    try:
        assert held.wait(60)
        with RawClient(server.kafka_address) as patient:
            written = produced(topic, made([b"written"]), acks=1) | {"timeout_ms": 1}
            patient.send(PRODUCE, 9, written)
            answer = client.ask(PRODUCE, 9, produced(topic, made([b"late"])) | {"timeout_ms": 50})[
                "responses"
            ][0]["partition_responses"][0]
            assert answer["error_code"] == ErrorCode.REQUEST_TIMED_OUT
            assert "not durable within 0.05 s" in answer["error_message"]
            release.set()
            _, answer = patient.receive(PRODUCE, 9)  # acks=1 has no such end
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    finally:
        release.set()
        holder.join()
    assert produce(client, topic, made([b"after"]))["error_code"] == 0
    with lamina.connect(server.flight_url) as remote:
        values = [row for found in remote.scan(topic) for row in found["value"].to_pylist()]
    assert (values[0], values[-1]) == (b"first", b"after")
    assert sorted(values[1:-1]) == [b"late", b"written"]
