"""One group of four libraries: whoever leads, each partition is one member's, and all are read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

import lamina
from tests.server.rig import served

PARTITIONS = 8
PATIENCE_S = 30
TIMES = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 200}


class Floor:
    """Who has which partitions, as members are told; two at a time have none."""

    def __init__(self, server: Any, topic: str, assignor: str) -> None:
        self.server, self.topic, self.assignor = server, topic, assignor
        self.ended = threading.Event()
        self.leaving: set[str] = set()
        self.having: dict[str, set[int]] = {}
        self.read: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def stays(self, name: str) -> bool:
        return not self.ended.is_set() and name not in self.leaving

    def got(self, name: str, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                holders = [each for each, share in self.having.items() if number in share]
                assert not holders, f"{number} came to {name} and is {holders[0]}'s"
                self.having.setdefault(name, set()).add(number)

    def gave(self, name: str, numbers: Iterable[int]) -> None:
        with self._lock:
            self.having[name] = self.having.get(name, set()) - set(numbers)

    def settle(self, members: set[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            time.sleep(0.02)
            with self._lock:
                shares = {name: len(share) for name, share in self.having.items() if share}
            is_whole = set(shares) == members and sum(shares.values()) == PARTITIONS
            if is_whole and max(shares.values()) - min(shares.values()) <= 1:
                return
        pytest.fail(f"they never shared: {self.having}")

    def produce(self, store: Any, turn: int) -> None:
        for number in range(PARTITIONS):
            store.append(self.topic, b"%d" % turn, partition=number)
        wanted = [(number, turn) for number in range(PARTITIONS)]
        deadline = time.monotonic() + PATIENCE_S
        while sorted(each for each in self.read if each[1] == turn) != wanted:
            assert time.monotonic() < deadline, f"read: {self.read}"
            time.sleep(0.02)


def by_lamina(floor: Floor) -> None:
    config = {
        "group.id": floor.topic,
        "partition.assignment.strategy": floor.assignor,
        "heartbeat.interval.ms": 200,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
    }
    with (
        lamina.connect(floor.server.flight_url) as store,
        lamina.Consumer(store, config) as consumer,
    ):
        consumer.subscribe(
            [floor.topic],
            on_assign=lambda _, places: floor.got("lamina", [p.partition for p in places]),
            on_revoke=lambda _, places: floor.gave("lamina", [p.partition for p in places]),
        )
        while floor.stays("lamina"):
            for message in consumer.consume(10, 0.05):
                floor.read.append((message.partition(), message.offset()))


def by_confluent(floor: Floor) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": floor.server.kafka_address,
            "group.id": floor.topic,
            "partition.assignment.strategy": floor.assignor,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(
        [floor.topic],
        on_assign=lambda _, places: floor.got("confluent", [p.partition for p in places]),
        on_revoke=lambda _, places: floor.gave("confluent", [p.partition for p in places]),
    )
    while floor.stays("confluent"):
        for message in consumer.consume(10, 0.05):
            floor.read.append((message.partition(), message.offset()))
    consumer.close()


class Listening(kafka.ConsumerRebalanceListener, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, floor: Floor, name: str) -> None:
        self._floor, self._name = floor, name

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._floor.got(self._name, [each.partition for each in assigned])

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._floor.gave(self._name, [each.partition for each in revoked])


def by_kafka_python(floor: Floor) -> None:
    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=floor.server.kafka_address,
        group_id=floor.topic,
        auto_offset_reset="earliest",
        partition_assignment_strategy=(assignors[floor.assignor],),
        **TIMES,
    )
    consumer.subscribe([floor.topic], listener=Listening(floor, "kafka-python"))
    while floor.stays("kafka-python"):
        for messages in consumer.poll(50).values():
            floor.read += [(each.partition, each.offset) for each in messages]
    floor.gave("kafka-python", range(PARTITIONS))
    consumer.close()


def by_aiokafka(floor: Floor) -> None:
    async def run() -> None:
        assignors = {"range": AioRange, "roundrobin": AioRoundRobin}
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=floor.server.kafka_address,
            group_id=floor.topic,
            auto_offset_reset="earliest",
            partition_assignment_strategy=(assignors[floor.assignor],),
            **TIMES,
        )
        consumer.subscribe([floor.topic], listener=Listening(floor, "aiokafka"))
        await consumer.start()
        while floor.stays("aiokafka"):
            for messages in (await consumer.getmany(timeout_ms=50)).values():
                floor.read += [(each.partition, each.offset) for each in messages]
        floor.gave("aiokafka", range(PARTITIONS))
        await consumer.stop()

    asyncio.run(run())


KINDS: dict[str, Callable[[Floor], None]] = {
    "lamina": by_lamina,
    "confluent": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}
MEETINGS = [
    ("range", "lamina"),
    *(("roundrobin", leader) for leader in KINDS),
    *(("cooperative-sticky", leader) for leader in KINDS if leader != "aiokafka"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("mixed") / "data", kafka_port=0) as service:
        yield service


@pytest.mark.parametrize(("assignor", "leader"), MEETINGS, ids=map("-".join, MEETINGS))
def test_members_of_all_libraries_share_one_group(server: Any, assignor: str, leader: str) -> None:
    floor = Floor(server, f"{assignor}-{leader}", assignor)
    lacks = {"aiokafka"} if assignor == "cooperative-sticky" else set()
    others = [name for name in KINDS if name not in lacks and name != leader]
    with ThreadPoolExecutor(4) as pool, lamina.connect(server.flight_url) as store:
        store.create_topic(floor.topic, partitions=PARTITIONS)
        running = [pool.submit(KINDS[leader], floor)]
        try:
            floor.settle({leader})
            floor.produce(store, 0)
            running += [pool.submit(KINDS[name], floor) for name in others]
            floor.settle({leader, *others})
            floor.produce(store, 1)
            floor.leaving.add(leader)
            floor.settle(set(others))
            floor.produce(store, 2)
        finally:
            floor.ended.set()
        for each in running:
            each.result(PATIENCE_S)
