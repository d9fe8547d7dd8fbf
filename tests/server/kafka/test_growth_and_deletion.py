"""Records deleted and partitions added by real clients, under consumers and producers of theirs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioPartitions
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PythonPartition

import lamina
from tests.server.rig import served

COUNT = 60
END = -1
"""What clients call the end of a partition."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("kafka") / "data", kafka_port=0) as service:
        yield service


def filled(server: Any, topic: str, partitions: int = 1, **more: Any) -> int:
    """Makes a topic; returns the offset of its first record."""
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, partitions=partitions, **more)
        for number in range(partitions):
            store.append(topic, [b"%d-%d" % (number, n) for n in range(COUNT)], partition=number)
        return store.earliest_offset(topic)


# ---------------------------------------------------------------- the clients


class Confluent:
    """confluent-kafka: deletes, adds, and reads a partition from its beginning."""

    def __init__(self, address: str) -> None:
        self._address = {"bootstrap.servers": address}
        self._admin = AdminClient(self._address)

    def delete(self, topic: str, before: int, partition: int = 0) -> int:
        asked = TopicPartition(topic, partition, before)
        (answer,) = self._admin.delete_records([asked]).values()
        return int(answer.result(30).low_watermark)

    def grow(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        asked = [NewPartitions(topic, total)]
        self._admin.create_partitions(asked, validate_only=validate_only)[topic].result(30)

    def extent(self, topic: str) -> tuple[int, int]:
        consumer = Consumer(self._address | {"group.id": "x"})
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
        consumer.close()
        return low, high

    def read(self, topic: str, start: int | None, count: int) -> list[int]:
        reset = {"group.id": "x", "auto.offset.reset": "earliest"}
        consumer = Consumer(self._address | reset)
        consumer.assign([TopicPartition(topic, 0, -2 if start is None else start)])
        found: list[int] = []
        while len(found) < count:
            for message in consumer.consume(count - len(found), 5):
                assert message.error() is None
                found.append(message.offset())
        consumer.close()
        return found


class Python:
    """kafka-python."""

    def __init__(self, address: str) -> None:
        self._address = address

    def delete(self, topic: str, before: int, partition: int = 0) -> int:
        place = PythonPartition(topic, partition)
        answer = self._with_admin(lambda admin: admin.delete_records({place: before}))
        return int(answer[place]["low_watermark"])

    def grow(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        self._with_admin(
            lambda admin: admin.create_partitions({topic: total}, validate_only=validate_only)
        )

    def _with_admin(self, work: Callable[[Any], Any]) -> Any:
        admin = KafkaAdminClient(bootstrap_servers=self._address)
        try:
            return work(admin)
        finally:
            admin.close()

    def extent(self, topic: str) -> tuple[int, int]:
        consumer, place = KafkaConsumer(bootstrap_servers=self._address), PythonPartition(topic, 0)
        low = consumer.beginning_offsets([place])[place]
        high = consumer.end_offsets([place])[place]
        consumer.close()
        return low, high

    def read(self, topic: str, start: int | None, count: int) -> list[int]:
        place = PythonPartition(topic, 0)
        consumer = KafkaConsumer(bootstrap_servers=self._address, auto_offset_reset="earliest")
        consumer.assign([place])
        if start is None:
            consumer.seek_to_beginning(place)
        else:
            consumer.seek(place, start)
        found: list[int] = []
        while len(found) < count:
            for messages in consumer.poll(5_000).values():
                found += [message.offset for message in messages]
        consumer.close()
        return found


class Aio:
    """aiokafka."""

    def __init__(self, address: str) -> None:
        self._address = address

    def delete(self, topic: str, before: int, partition: int = 0) -> int:
        place = AioPartition(topic, partition)
        asked = {place: RecordsToDelete(before)}
        return int(self._with_admin(lambda admin: admin.delete_records(asked))[place])

    def grow(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        asked = {topic: AioPartitions(total)}
        self._with_admin(lambda admin: admin.create_partitions(asked, validate_only=validate_only))

    def _with_admin(self, work: Callable[[Any], Any]) -> Any:
        async def ask() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
            await admin.start()
            try:
                return await work(admin)
            finally:
                await admin.close()

        return asyncio.run(ask())

    def _with_consumer(self, work: Callable[[Any], Any]) -> Any:
        async def ask() -> Any:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._address, auto_offset_reset="earliest"
            )
            await consumer.start()
            try:
                return await work(consumer)
            finally:
                await consumer.stop()

        return asyncio.run(ask())

    def extent(self, topic: str) -> tuple[int, int]:
        place = AioPartition(topic, 0)

        async def ask(consumer: Any) -> tuple[int, int]:
            low = (await consumer.beginning_offsets([place]))[place]
            return low, (await consumer.end_offsets([place]))[place]

        found: tuple[int, int] = self._with_consumer(ask)
        return found

    def read(self, topic: str, start: int | None, count: int) -> list[int]:
        place = AioPartition(topic, 0)

        async def ask(consumer: Any) -> list[int]:
            consumer.assign([place])
            if start is None:
                await consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, start)
            found: list[int] = []
            while len(found) < count:
                batch = await consumer.getmany(timeout_ms=5_000)
                for messages in batch.values():
                    found += [message.offset for message in messages]
            return found

        found: list[int] = self._with_consumer(ask)
        return found


CLIENTS = {"confluent": Confluent, "python": Python, "aiokafka": Aio}


@pytest.fixture(params=CLIENTS)
def client(server: Any, request: Any) -> Any:
    made = CLIENTS[request.param](server.kafka_address)
    made.name = request.param
    return made


# ---------------------------------------------------------------- deleting


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_what_a_client_deletes_no_client_reads(server: Any, client: Any, format_name: str) -> None:
    topic = f"deleted-{client.name}-{format_name}"
    first = filled(server, topic, format=format_name)
    before, end = first + 25, first + COUNT
    assert client.extent(topic) == (first, end)
    assert client.delete(topic, before) == before
    assert client.delete(topic, before - 5) == before, "it only moves up"
    assert client.extent(topic) == (before, end)
    left = list(range(before, end))
    assert client.read(topic, None, len(left)) == left
    assert client.read(topic, first, len(left)) == left, "from below, it is reset to earliest"
    with lamina.connect(server.flight_url) as store:
        found = [at for batch in store.scan(topic) for at in batch["offset"].to_pylist()]
        assert found == left
        assert client.delete(topic, END) == end
        assert client.extent(topic) == (end, end)
        store.append(topic, b"after")
    assert client.read(topic, None, 1) == [end]


def test_what_cannot_be_deleted_is_refused_and_nothing_goes(server: Any, client: Any) -> None:
    topic = f"refused-{client.name}"
    filled(server, topic)
    for before in (COUNT + 1, -7):
        with pytest.raises(Exception, match=r"(?i)out.?of.?range"):
            client.delete(topic, before)
    with pytest.raises(Exception, match=r"(?i)unknown|NotLeader|leader"):
        client.delete(topic, 1, partition=9)
    assert client.extent(topic) == (0, COUNT)


def test_a_refused_partition_keeps_no_other_back(server: Any) -> None:
    filled(server, "mixed", partitions=2)
    admin = AdminClient({"bootstrap.servers": server.kafka_address})
    asked = [TopicPartition("mixed", 0, COUNT + 1), TopicPartition("mixed", 1, 10)]
    answers = {place.partition: each for place, each in admin.delete_records(asked).items()}
    with pytest.raises(Exception, match="OFFSET_OUT_OF_RANGE"):
        answers[0].result(30)
    assert answers[1].result(30).low_watermark == 10


def test_a_group_that_committed_below_goes_on_where_the_records_begin(server: Any) -> None:
    filled(server, "committed")
    settings = {
        "bootstrap.servers": server.kafka_address,
        "group.id": "committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    member = Consumer(settings)
    member.subscribe(["committed"])
    assert member.consume(1, 30)[0].offset() == 0
    member.commit(offsets=[TopicPartition("committed", 0, 5)], asynchronous=False)
    member.close()
    Confluent(server.kafka_address).delete("committed", 40)
    member = Consumer(settings)
    member.subscribe(["committed"])
    found: list[int] = []
    while len(found) < COUNT - 40:
        found += [message.offset() for message in member.consume(COUNT, 1)]
    member.close()
    assert found == list(range(40, COUNT))


# ---------------------------------------------------------------- adding


def counted(server: Any, topic: str) -> int:
    with lamina.connect(server.flight_url) as store:
        return len(store.describe_topic(topic).partitions)


def test_a_client_adds_partitions_and_only_tries_when_told(server: Any, client: Any) -> None:
    topic = f"grown-{client.name}"
    filled(server, topic)
    client.grow(topic, 3, validate_only=True)
    assert counted(server, topic) == 1
    for validate_only in (True, False):
        for total in (1, 20_000):
            with pytest.raises(Exception, match=r"(?i)invalid.?partitions"):
                client.grow(topic, total, validate_only=validate_only)
        with pytest.raises(Exception, match=r"(?i)unknown"):
            client.grow(f"{topic}-not-there", 3, validate_only=validate_only)
    client.grow(topic, 3)
    assert counted(server, topic) == 3
    assert client.delete(topic, END, partition=2) == 0


class Producing:
    """A producer that runs until it is told to stop, without keys; knows what was acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        self.acknowledged: list[tuple[int, int]] = []
        self.failed: list[KafkaError] = []
        self.reached: set[int] = set()
        self._topic = topic
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "topic.metadata.refresh.interval.ms": 100,
                "sticky.partitioning.linger.ms": 0,
                "enable.idempotence": True,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(self._topic, b"more", on_delivery=self._told)
            self._producer.poll(0.002)
        self._producer.flush(60)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        place = message.partition(), message.offset()
        assert None not in place
        self.acknowledged.append(place)  # type: ignore[arg-type]
        self.reached.add(place[0])  # type: ignore[arg-type]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_group_gets_new_partitions_and_a_running_producer_uses_them(
    server: Any, assignor: str
) -> None:
    topic = f"growing-{assignor}"
    filled(server, topic, partitions=2)
    settings = {
        "bootstrap.servers": server.kafka_address,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 100,
        "heartbeat.interval.ms": 200,
        "auto.commit.interval.ms": 200,
        "partition.assignment.strategy": assignor,
    }
    members = [Consumer(settings), Consumer(settings)]
    seen: Counter[tuple[int | None, int | None]] = Counter()

    def poll() -> list[int]:
        """Polls both members once; returns how many partitions each has."""
        for member in members:
            for message in member.consume(500, 0.05):
                assert message.error() is None
                seen[message.partition(), message.offset()] += 1
        return [len(member.assignment()) for member in members]

    for member in members:
        member.subscribe([topic])
    while poll() != [1, 1]:
        pass
    producing = Producing(server.kafka_address, topic)
    try:
        Confluent(server.kafka_address).grow(topic, 6)
        while poll() != [3, 3] or len(producing.reached) < 6:
            pass
    finally:
        producing.stop()
    assert producing.failed == []
    stored = {(number, at) for number in range(2) for at in range(COUNT)}
    stored |= set(producing.acknowledged)
    while len(seen) < len(stored):
        poll()
    for member in members:
        member.close()
    assert set(seen) == stored
    assert set(seen.values()) == {1}, "none came twice"
