"""The edges of what clients may send: mixed versions, the last number, a topic that goes away."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.formats.kafka import batch
from lamina.formats.kernels.crc import crc32c_of
from lamina.wire.kafka.connection_apis import API_VERSIONS
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import OFFSET_COMMIT, OFFSET_FETCH
from lamina.wire.kafka.message_schema import Api
from lamina.wire.kafka.record_apis import FETCH, INIT_PRODUCER_ID, LIST_OFFSETS, PRODUCE
from lamina.wire.kafka.topic_apis import CREATE_TOPICS, DELETE_TOPICS, METADATA
from tests.server.kafka.raw_client import RawClient, fetched, made, offsets_of, produced
from tests.server.rig import ServerProcess, free_port, served

SEQUENCES = 1 << 31


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("edges")
    with served(folder / "data", kafka_port=0) as service:
        yield service


@pytest.fixture
def client(server: Any) -> Iterator[RawClient]:
    with RawClient(server.kafka_address) as made_client:
        yield made_client


def create(server: Any, topic: str, **more: Any) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, **more)


def partition_of(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return found


def stamped(producer_id: int, epoch: int, sequence: int) -> bytes:
    """A batch of two records of an idempotent producer."""
    data = made([b"a", b"b"])
    head = batch.HEADER.unpack(data)
    head |= {"producer_id": producer_id, "producer_epoch": epoch}
    head |= {"base_sequence": sequence % SEQUENCES, "crc32c": 0}
    body = data[batch.HEADER.size :]
    head["crc32c"] = crc32c_of((batch.HEADER.pack(**head) + body)[batch.UNSEALED_BYTES :])
    return batch.HEADER.pack(**head) + body


def sent(client: RawClient, topic: str, data: bytes) -> tuple[int, int]:
    answer = client.ask(PRODUCE, 9, produced(topic, data))
    (part,) = answer["responses"][0]["partition_responses"]
    return part["error_code"], part["base_offset"]


def producer_id(client: RawClient) -> int:
    asked = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    return int(client.ask(INIT_PRODUCER_ID, 4, asked)["producer_id"])


def test_versions_may_be_mixed_on_one_connection(server: Any, client: RawClient) -> None:
    create(server, "mixed")
    place = [{"partition_index": 0, "timestamp": -1}]
    requests: list[tuple[Api, int, dict[str, Any]]] = [
        (PRODUCE, 11, produced("mixed", made([b"x"]))),
        (FETCH, 12, fetched("mixed", 0)),
        (METADATA, 12, {"topics": [{"name": "mixed"}]}),
        (API_VERSIONS, 4, {}),
        (LIST_OFFSETS, 10, {"topics": [{"name": "mixed", "partitions": place}]}),
    ]
    drawn = random.Random(20)
    asked: list[tuple[Api, int]] = []
    for _ in range(100):
        api, last, value = drawn.choice(requests)
        version = drawn.randint(max(1, api.first), last)
        client.send(api, version, value)
        asked.append((api, version))
    for number, (api, version) in enumerate(asked, 1):
        found, answer = client.receive(api, version)
        assert found == number
        if api is PRODUCE:
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0


def test_sequences_wrap_and_the_last_five_are_known_after_a_kill(tmp_path: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ServerProcess(tmp_path / "data", f"kafka.port={port}") as process:
        with RawClient(address) as client:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            topic |= {"assignments": [], "configs": []}
            client.ask(CREATE_TOPICS, 5, {"topics": [topic]})
            first, second = producer_id(client), producer_id(client)
            assert first != second
            sequences = [SEQUENCES - 5, SEQUENCES - 3, SEQUENCES - 1, 1, 3, 5]
            for row, sequence in enumerate(sequences):  # one batch has the wrap in its middle
                assert sent(client, "t", stamped(first, 0, sequence)) == (0, 2 * row)
        process.end(signal.SIGKILL)
        process.start()
        with RawClient(address) as client:
            told = [sent(client, "t", stamped(first, 0, sequence)) for sequence in sequences]
            assert told[0] == (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1)
            assert told[1:] == [(0, 2 * row) for row in range(1, 6)]
            gap = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert sent(client, "t", stamped(first, 0, 9)) == (gap, -1)
            assert sent(client, "t", stamped(first, 1, 7)) == (gap, -1)
            assert sent(client, "t", stamped(first, 1, 0)) == (0, 12)
            fenced = ErrorCode.INVALID_PRODUCER_EPOCH
            assert sent(client, "t", stamped(first, 0, 7)) == (fenced, -1)
            assert producer_id(client) > second
            records = partition_of(client.ask(FETCH, 12, fetched("t", 0)))["records"]
            assert sum(count for _, _, count in offsets_of(records)) == 14


@pytest.mark.parametrize("format_name", ["keratin", "wal"])
def test_a_topic_that_is_made_again_is_not_mistaken_for_the_one_before(
    server: Any, client: RawClient, format_name: str
) -> None:
    topic = f"again-{format_name}"
    create(server, topic, format=format_name)
    first = int(format_name == "wal")
    client.ask(PRODUCE, 9, produced(topic, made([b"old"] * 10)))
    client.send(FETCH, 12, fetched(topic, first + 10, max_wait_ms=20_000))
    with RawClient(server.kafka_address) as other:
        number = other.ask(METADATA, 12, {"topics": [{"name": topic}]})["topics"][0]["topic_id"]
        asked = {"topics": [{"name": topic, "topic_id": bytes(16)}]}
        assert other.ask(DELETE_TOPICS, 6, asked)["responses"][0]["error_code"] == 0
        _, answer = client.receive(FETCH, 12)  # long before its time is up
        assert partition_of(answer)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        create(server, topic, format=format_name)
        other.ask(PRODUCE, 9, produced(topic, made([b"new"] * 3)))
        by_id = fetched(topic, first)
        by_id["topics"][0]["topic_id"] = number
        answer = other.ask(FETCH, 13, by_id)
        assert partition_of(answer)["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
        answer = other.ask(FETCH, 12, fetched(topic, first + 10))
        assert partition_of(answer)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE
        answer = other.ask(FETCH, 12, fetched(topic, first))
        assert offsets_of(partition_of(answer)["records"]) == [(first, first + 2, 3)]


def test_a_hundred_partitions_are_committed_at_once_and_come_back_with_their_notes(
    server: Any, client: RawClient
) -> None:
    create(server, "hundred", partitions=100)
    parts = [
        {"partition_index": n, "committed_offset": 3 * n, "committed_metadata": f"note {n}"}
        for n in range(100)
    ]
    topics = [{"name": "hundred", "partitions": parts}]
    answer = client.ask(OFFSET_COMMIT, 8, {"group_id": "g", "topics": topics})
    assert {each["error_code"] for each in answer["topics"][0]["partitions"]} == {0}
    answer = client.ask(OFFSET_FETCH, 7, {"group_id": "g", "topics": None})
    (found,) = answer["topics"]
    assert [
        (each["partition_index"], each["committed_offset"], each["metadata"])
        for each in found["partitions"]
    ] == [(n, 3 * n, f"note {n}") for n in range(100)]
