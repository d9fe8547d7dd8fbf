"""Real clients: what they produce with every codec is what every one of them reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

import lamina
from tests.server.rig import served

Record = tuple[bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""Key, value, timestamp and headers."""
RECORDS: list[Record] = [
    (b"key", b"value", 1_700_000_000_000, (("a", b"1"), ("a", b""), ("ü", b"2"))),
    (None, b"no key", 1_700_000_000_001, ()),
    (b"tombstone", None, 1_700_000_000_005, ()),
    (b"", b"", 1_700_000_000_003, (("", b""),)),
    *((b"k%d" % n, b"v" * 100, 1_700_000_001_000 + n, ()) for n in range(50)),
]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("kafka") / "data", kafka_port=0) as service:
        yield service


# ---------------------------------------------------------------- producing


def by_confluent(address: str, topic: str, codec: str) -> None:
    failed: list[Any] = []

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 20, "acks": "all"}
    )
    for key, value, timestamp, headers in RECORDS:
        producer.produce(
            topic,
            key=key,
            value=value,
            timestamp=timestamp,
            headers=list(headers),
            partition=0,
            on_delivery=told,
        )
    assert producer.flush(120) == 0
    assert failed == []


def by_kafka_python(address: str, topic: str, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=address,
        compression_type=None if codec == "none" else codec,
        linger_ms=20,
        acks="all",
        enable_idempotence=False,
    )
    sent = [
        producer.send(
            topic,
            key=key,
            value=value,
            timestamp_ms=timestamp,
            headers=list(headers),
            partition=0,
        )
        for key, value, timestamp, headers in RECORDS
    ]
    producer.flush()
    assert [each.get(30).offset for each in sent] == list(range(len(RECORDS)))
    producer.close()


def by_aiokafka(address: str, topic: str, codec: str) -> None:
    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            acks="all",
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    key=key,
                    value=value,
                    timestamp_ms=timestamp,
                    headers=list(headers),
                    partition=0,
                )
                for key, value, timestamp, headers in RECORDS
            ]
            assert [(await each).offset for each in sent] == list(range(len(RECORDS)))
        finally:
            await producer.stop()

    asyncio.run(produce())


PRODUCERS = {"confluent": by_confluent, "python": by_kafka_python, "aiokafka": by_aiokafka}
WITH_CODECS = {"confluent": CODECS, "python": CODECS, "aiokafka": CODECS}


# ---------------------------------------------------------------- consuming


def read_by_confluent(address: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "x", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 30):
            assert message.error() is None
            headers = tuple(message.headers() or ())
            found.append((message.key(), message.value(), message.timestamp()[1], headers))
    consumer.close()
    return found


def read_by_kafka_python(address: str, topic: str, count: int) -> list[Record]:
    consumer = KafkaConsumer(bootstrap_servers=address, check_crcs=True)
    consumer.assign([PythonPartition(topic, 0)])
    consumer.seek(PythonPartition(topic, 0), 0)
    found: list[Record] = []
    while len(found) < count:
        for messages in consumer.poll(30_000).values():
            found += [(m.key, m.value, m.timestamp, tuple(m.headers)) for m in messages]
    consumer.close()
    return found


def read_by_aiokafka(address: str, topic: str, count: int) -> list[Record]:
    async def consume() -> list[Record]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        try:
            consumer.assign([AioPartition(topic, 0)])
            consumer.seek(AioPartition(topic, 0), 0)
            found: list[Record] = []
            while len(found) < count:
                batch = await asyncio.wait_for(consumer.getmany(timeout_ms=30_000), 40)
                for messages in batch.values():
                    found += [(m.key, m.value, m.timestamp, tuple(m.headers)) for m in messages]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(consume())


READERS: dict[str, Callable[[str, str, int], list[Record]]] = {
    "confluent": read_by_confluent,
    "python": read_by_kafka_python,
    "aiokafka": read_by_aiokafka,
}


def plain(row: dict[str, Any]) -> Record:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    return row["key"], row["value"], int(row["timestamp"].timestamp() * 1000 + 0.5), headers


@pytest.mark.parametrize(
    ("name", "codec"), [(name, codec) for name in PRODUCERS for codec in WITH_CODECS[name]]
)
def test_what_a_client_produces_every_door_reads(server: Any, name: str, codec: str) -> None:
    topic = f"{name}-{codec}"
    try:
        PRODUCERS[name](server.kafka_address, topic, codec)
    except RuntimeError as error:
        pytest.skip(f"the client has no {codec}: {error}")
    for read in READERS.values():
        assert read(server.kafka_address, topic, len(RECORDS)) == RECORDS
    with lamina.connect(server.flight_url) as store:
        rows = [row for batch in store.scan(topic) for row in batch.to_pylist()]
    assert [plain(row) for row in rows] == RECORDS


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_what_other_doors_append_clients_read(
    server: Any, read: Callable[[str, str, int], list[Record]], request: Any
) -> None:
    topic = f"from-flight-{request.node.callspec.id}"
    rows = [
        {
            "key": key,
            "value": value,
            "timestamp": timestamp,
            "headers": [{"key": name, "value": text} for name, text in headers] or None,
        }
        for key, value, timestamp, headers in RECORDS
    ]
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic)
        store.append(topic, rows)
    assert read(server.kafka_address, topic, len(RECORDS)) == RECORDS


def test_a_new_record_ends_a_long_poll(server: Any) -> None:
    consumer = Consumer(
        {"bootstrap.servers": server.kafka_address, "group.id": "x", "fetch.wait.max.ms": 20_000}
    )
    with lamina.connect(server.flight_url) as store:
        store.create_topic("polled")
        consumer.assign([TopicPartition("polled", 0, 0)])
        assert consumer.poll(0.5) is None
        store.append("polled", b"soon")
        message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"soon"
    consumer.close()


def test_a_closed_server_leaves_what_it_acknowledged(tmp_path: Path) -> None:
    with served(tmp_path / "data", kafka_port=0) as service:
        by_confluent(service.kafka_address or "", "kept", "none")
    with lamina.open(str(tmp_path / "data")) as store:
        assert store.latest_offset("kept") == len(RECORDS)
