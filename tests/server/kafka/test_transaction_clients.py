"""Transactions of real clients: all of one is read or nothing, and a newer producer fences."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.consumer.group import ConsumerGroupMetadata
from kafka.errors import ProducerFencedError
from kafka.structs import OffsetAndMetadata

import lamina
from lamina.store.store import Store
from tests.server.kafka.client_kinds import KINDS, Driver
from tests.server.rig import served

PATIENCE_S = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("kafka") / "data", kafka_port=0) as service:
        yield service


def created(server: Any, topic: str, partitions: int = 2) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, partitions=partitions)


def values_of(store: Any, topic: str, partitions: int = 2) -> list[list[bytes]]:
    return [
        [value for batch in store.scan(topic, number) for value in batch["value"].to_pylist()]
        for number in range(partitions)
    ]


def read(server: Any, topic: str, partitions: int = 2) -> list[list[bytes]]:
    with lamina.connect(server.flight_url) as store:
        return values_of(store, topic, partitions)


def committed(server: Any, group: str) -> dict[tuple[str, int], int]:
    found = server.broker.store.coordinator.offsets.of(group)
    return {place: each.offset for place, each in found.items()}


def confluent(address: str, name: str, **more: Any) -> Producer:
    settings = {"bootstrap.servers": address, "transactional.id": name, "linger.ms": 5}
    return Producer({**settings, "log_level": 0, **more})


# ---------------------------------------------------------------- confluent-kafka


def test_confluent_commits_and_aborts(server: Any) -> None:
    created(server, "c")
    producer = confluent(server.kafka_address, "c")
    producer.init_transactions(PATIENCE_S)
    for turn in range(4):
        producer.begin_transaction()
        for number in range(10):
            producer.produce("c", b"%d-%d" % (turn, number), partition=number % 2)
        producer.flush(PATIENCE_S)
        assert read(server, "c")[0] == read(server, "c")[0][: 5 * ((turn + 1) // 2)]
        if turn % 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    for partition, values in enumerate(read(server, "c")):
        assert values == [b"%d-%d" % (turn, n) for turn in (0, 2) for n in range(partition, 10, 2)]


def test_confluent_copies_exactly_once_with_its_offsets(server: Any) -> None:
    created(server, "in", 1)
    created(server, "out", 1)
    with lamina.connect(server.flight_url) as store:
        store.append("in", [b"%d" % n for n in range(30)], partition=0)
    consumer = Consumer(
        {
            "bootstrap.servers": server.kafka_address,
            "group.id": "copy",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["in"])
    producer = confluent(server.kafka_address, "copy")
    producer.init_transactions(PATIENCE_S)
    done = 0
    while done < 30:
        messages = consumer.consume(10, 5)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce("out", b"copy of " + (message.value() or b""))
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction(PATIENCE_S)
        done += len(messages)
        assert committed(server, "copy") == {("in", 0): done}
    consumer.close()
    assert read(server, "out", 1) == [[b"copy of %d" % n for n in range(30)]]


def test_a_second_instance_of_confluent_fences_the_first(server: Any) -> None:
    created(server, "f", 1)
    first = confluent(server.kafka_address, "f")
    first.init_transactions(PATIENCE_S)
    first.begin_transaction()
    first.produce("f", b"of the first")
    first.flush(PATIENCE_S)
    second = confluent(server.kafka_address, "f")
    second.init_transactions(PATIENCE_S)
    second.begin_transaction()
    second.produce("f", b"of the second")
    second.commit_transaction(PATIENCE_S)
    with pytest.raises(KafkaException) as found:
        first.commit_transaction(PATIENCE_S)
    assert found.value.args[0].fatal()
    assert read(server, "f", 1) == [[b"of the second"]]


def test_a_timeout_that_is_too_long_is_refused(server: Any) -> None:
    limits = {"transaction.timeout.ms": 16 * 60_000, "message.timeout.ms": 10_000}
    producer = confluent(server.kafka_address, "long", **limits)
    with pytest.raises(KafkaException, match="INVALID_TRANSACTION_TIMEOUT"):
        producer.init_transactions(PATIENCE_S)


# ---------------------------------------------------------------- aiokafka


def test_aiokafka_commits_aborts_and_sends_offsets(server: Any) -> None:
    created(server, "a", 1)

    async def run() -> None:
        settings = {"bootstrap_servers": server.kafka_address, "transactional_id": "a"}
        first, second = AIOKafkaProducer(**settings), AIOKafkaProducer(**settings)
        await first.start()
        try:
            for turn in range(3):
                await first.begin_transaction()
                await first.send_and_wait("a", b"%d" % turn, partition=0)
                await first.send_offsets_to_transaction({AioPartition("a", 0): turn}, "ga")
                await (first.abort_transaction() if turn == 1 else first.commit_transaction())
            await first.begin_transaction()
            await first.send_and_wait("a", b"lost", partition=0)
            await second.start()
            with pytest.raises(ProducerFenced):
                await first.commit_transaction()
        finally:
            await second.stop()
            await first.stop()

    asyncio.run(run())
    assert read(server, "a", 1) == [[b"0", b"2"]]
    assert committed(server, "ga") == {("a", 0): 2}


# ---------------------------------------------------------------- kafka-python


def test_kafka_python_commits_aborts_and_sends_offsets(server: Any) -> None:
    created(server, "p", 1)
    settings = {"bootstrap_servers": server.kafka_address, "transactional_id": "p"}
    producer, second = KafkaProducer(**settings), KafkaProducer(**settings)
    try:
        producer.init_transactions()
        for turn in range(3):
            producer.begin_transaction()
            producer.send("p", b"%d" % turn, partition=0).get(PATIENCE_S)
            place = {PythonPartition("p", 0): OffsetAndMetadata(turn, "note", -1)}
            producer.send_offsets_to_transaction(place, ConsumerGroupMetadata("gp", -1, "", None))
            if turn == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        producer.begin_transaction()
        producer.send("p", b"lost", partition=0).get(PATIENCE_S)
        second.init_transactions()
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
    finally:
        producer.close(0)
        second.close(0)
    assert read(server, "p", 1) == [[b"0", b"2"]]
    assert committed(server, "gp") == {("p", 0): 2}


# ---------------------------------------------------------------- Node.js


@pytest.mark.parametrize(
    ("name", "offsets"), [("kafkajs", {("kafkajs", 0): 2}), ("@platformatic", {})]
)
def test_clients_of_node_commit_and_abort(server: Any, name: str, offsets: Any) -> None:
    (kind,) = [each for each in KINDS if each.name.startswith(name)]
    topic = name.strip("@")
    if kind.missing:
        pytest.skip(kind.missing)
    created(server, topic, 1)
    turns = [
        {"values": [f"{turn}", f"{turn}b"], "offset": turn, "commit": turn != 1}
        for turn in range(3)
    ]
    with Driver(kind, server.kafka_address) as driver:
        driver.ask("transact", id=topic, topic=topic, group=topic, turns=turns)
    assert read(server, topic, 1) == [[b"0", b"0b", b"2", b"2b"]]
    assert committed(server, topic) == offsets


# ---------------------------------------------------------------- a broker that is killed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], str]]]:
    """Starts `lamina serve` on a directory, again and again."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], str]:
        words = [sys.executable, "-m", "lamina", "serve", "--data", str(tmp_path / "data")]
        words += [f"--set={door}.port=0" for door in ("flight", "http", "kafka")]
        process = subprocess.Popen([*words, "--quiet"], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready"), line
        address = next(word for word in line.split() if word.startswith("kafka"))
        return process, address.rpartition("//")[2].rpartition("=")[2]

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_kill_drops_what_was_open_and_keeps_what_was_committed(
    broker: Callable[[], tuple[subprocess.Popen[str], str]], tmp_path: Path
) -> None:
    process, address = broker()
    producer = confluent(address, "k")
    producer.init_transactions(PATIENCE_S)
    for turn in (b"committed", b"open"):
        producer.begin_transaction()
        producer.produce("k", turn, partition=0)
        producer.flush(PATIENCE_S)
        if turn == b"committed":
            producer.commit_transaction(PATIENCE_S)
    process.kill()
    process.wait()
    _, address = broker()
    second = confluent(address, "k")
    second.init_transactions(PATIENCE_S)
    second.begin_transaction()
    second.produce("k", b"of the next", partition=0)
    second.commit_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition("k", 0, 0)])
    found = [message.value() for message in consumer.consume(2, PATIENCE_S)]
    consumer.close()
    assert found == [b"committed", b"of the next"]


def test_a_committed_transaction_is_stored_where_there_is_no_kafka_door(
    broker: Callable[[], tuple[subprocess.Popen[str], str]], tmp_path: Path
) -> None:
    process, address = broker()
    producer = confluent(address, "e")
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("e", b"x", partition=0)
    producer.commit_transaction(PATIENCE_S)
    process.kill()
    process.wait()
    with Store(str(tmp_path / "data")) as store:
        assert values_of(store, "e", 1) == [[b"x"]]
