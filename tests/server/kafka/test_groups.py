"""Consumer groups of real clients: members share partitions, commit, and go on where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

import lamina
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.kafka.group_apis import HEARTBEAT, OFFSET_COMMIT, SYNC_GROUP
from tests.server.kafka.raw_client import RawClient
from tests.server.rig import served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("kafka") / "data", kafka_port=0) as service:
        yield service


def filled(server: Any, topic: str, partitions: int = 4, each: int = 25) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic(topic, partitions=partitions)
        for number in range(partitions):
            rows = [b"%d-%d" % (number, n) for n in range(each)]
            store.append(topic, rows, partition=number)


def confluent(server: Any, group: str, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server.kafka_address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            **more,
        }
    )


def polled(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 5):
            assert message.error() is None
            found.append(message.value())
    return found


@pytest.mark.parametrize("assignor", ["range,roundrobin", "cooperative-sticky"])
def test_two_members_share_the_partitions_of_a_group(server: Any, assignor: str) -> None:
    topic = f"shared-{assignor[:5]}"
    filled(server, topic)
    settings = {"partition.assignment.strategy": assignor}
    first = confluent(server, topic, **settings)
    second = confluent(server, topic, **settings)
    first.subscribe([topic])
    second.subscribe([topic])
    while not (len(first.assignment()) == len(second.assignment()) == 2):
        first.poll(0.1)
        second.poll(0.1)
    both = {each.partition for consumer in (first, second) for each in consumer.assignment()}
    assert both == {0, 1, 2, 3}
    second.close()
    while len(first.assignment()) < 4:
        first.poll(0.1)
    first.close()


def test_a_restarted_consumer_goes_on_where_it_committed(server: Any) -> None:
    filled(server, "again", partitions=1)
    first = confluent(server, "again")
    first.subscribe(["again"])
    assert polled(first, 10) == [b"0-%d" % n for n in range(10)]
    first.commit(offsets=[TopicPartition("again", 0, 10, metadata="a note")], asynchronous=False)
    first.close()
    second = confluent(server, "again")
    second.subscribe(["again"])
    assert polled(second, 1) == [b"0-10"]
    committed = second.committed([TopicPartition("again", 0)])[0]
    assert (committed.offset, committed.metadata) == (10, "a note")
    second.close()


def test_a_group_of_one_client_is_continued_by_others(server: Any) -> None:
    filled(server, "handed", partitions=1)
    first = confluent(server, "handed")
    first.subscribe(["handed"])
    polled(first, 5)
    first.commit(offsets=[TopicPartition("handed", 0, 5)], asynchronous=False)
    first.close()

    python = KafkaConsumer(
        "handed",
        bootstrap_servers=server.kafka_address,
        group_id="handed",
        enable_auto_commit=False,
        max_poll_records=5,
    )
    found: list[bytes] = []
    while len(found) < 5:
        for messages in python.poll(5_000).values():
            found += [message.value for message in messages]
    assert found == [b"0-%d" % n for n in range(5, 10)]
    python.commit()
    python.close()

    async def rest() -> bytes:
        consumer = AIOKafkaConsumer(
            "handed",
            bootstrap_servers=server.kafka_address,
            group_id="handed",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            message = await asyncio.wait_for(consumer.getone(), 30)
            await consumer.commit({AioPartition("handed", 0): message.offset + 1})
            return bytes(message.value)
        finally:
            await consumer.stop()

    assert asyncio.run(rest()) == b"0-10"
    with lamina.connect(server.flight_url) as store:
        assert [each.offset for each in store.committed_offsets("handed")] == [11]


def test_a_group_is_listed_described_and_deleted(server: Any) -> None:
    filled(server, "looked", partitions=2)
    admin = AdminClient({"bootstrap.servers": server.kafka_address})
    member = confluent(server, "looked", **{"client.id": "me"})
    member.subscribe(["looked"])
    polled(member, 1)
    listed = admin.list_consumer_groups().result()
    assert "looked" in {each.group_id for each in listed.valid}
    about = admin.describe_consumer_groups(["looked"])["looked"].result()
    assert about.state.name == "STABLE"
    assert [each.client_id for each in about.members] == ["me"]
    assert len(about.members[0].assignment.topic_partitions) == 2
    with pytest.raises(Exception, match="empty"):
        admin.delete_consumer_groups(["looked"])["looked"].result()
    member.commit(offsets=[TopicPartition("looked", 1, 3)], asynchronous=False)
    member.close()
    asked = [ConsumerGroupTopicPartitions("looked")]
    found = admin.list_consumer_group_offsets(asked)["looked"].result().topic_partitions
    assert [(each.topic, each.partition, each.offset) for each in found] == [("looked", 1, 3)]
    moved = [ConsumerGroupTopicPartitions("looked", [TopicPartition("looked", 1, 1)])]
    admin.alter_consumer_group_offsets(moved)["looked"].result()
    admin.delete_consumer_groups(["looked"])["looked"].result()
    listed = admin.list_consumer_groups().result()
    assert "looked" not in {each.group_id for each in listed.valid}


def test_a_group_without_commits_begins_where_the_client_says(server: Any) -> None:
    filled(server, "fresh", partitions=1)
    consumer = confluent(server, "fresh")
    assert consumer.committed([TopicPartition("fresh", 0)])[0].offset == -1001
    consumer.subscribe(["fresh"])
    assert polled(consumer, 1) == [b"0-0"]
    consumer.close()


def test_an_idempotent_producer_gets_a_number_and_stores_once(server: Any) -> None:
    with lamina.connect(server.flight_url) as store:
        store.create_topic("once")
    producer = Producer(
        {"bootstrap.servers": server.kafka_address, "enable.idempotence": True, "linger.ms": 0}
    )
    for number in range(300):
        producer.produce("once", b"%d" % number)
        producer.poll(0)
    assert producer.flush(60) == 0
    with lamina.connect(server.flight_url) as store:
        values = [row for batch in store.scan("once") for row in batch["value"].to_pylist()]
    assert values == [b"%d" % number for number in range(300)]


def test_commits_of_one_connection_count_in_their_order(server: Any) -> None:
    """A client that commits without waiting has committed what it sent last."""
    filled(server, "ordered", partitions=1, each=1)
    version, together = 8, 40
    with RawClient(server.kafka_address) as client:
        for turn in range(10):
            offsets = range(turn * together, (turn + 1) * together)
            for offset in offsets:
                place = {"partition_index": 0, "committed_offset": offset}
                topics = [{"name": "ordered", "partitions": [place]}]
                client.send(OFFSET_COMMIT, version, {"group_id": "ordered", "topics": topics})
            for _ in offsets:
                _, answer = client.receive(OFFSET_COMMIT, version)
                assert answer["topics"][0]["partitions"][0]["error_code"] == 0
            committed = server.broker.store.coordinator.offsets.of("ordered")
            assert committed["ordered", 0].offset == offsets[-1]


def test_a_member_looks_for_its_coordinator_while_the_server_stops(server: Any) -> None:
    """With any other number a member of aiokafka ends for good."""
    filled(server, "stopping", partitions=1)
    member = {"group_id": "stopping", "generation_id": 1, "member_id": "m"}
    with RawClient(server.kafka_address) as client:
        assert client.ask(HEARTBEAT, 3, member)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
        server.broker.stopping.set()
        try:
            assert client.ask(HEARTBEAT, 3, member)["error_code"] == ErrorCode.NOT_COORDINATOR
            assert client.ask(SYNC_GROUP, 3, member)["error_code"] == ErrorCode.NOT_COORDINATOR
        finally:
            server.broker.stopping.clear()
