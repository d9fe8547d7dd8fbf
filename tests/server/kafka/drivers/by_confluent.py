"""confluent-kafka (librdkafka) as a driver."""

from __future__ import annotations

import sys
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from conversation import converse, packed, records_of, row_of

ADDRESS = sys.argv[1]


class Client:
    def __init__(self) -> None:
        self._producers: dict[str, Any] = {}
        self._members: dict[str, Any] = {}
        self._admin = AdminClient({"bootstrap.servers": ADDRESS})

    def version(self) -> str:
        return str(confluent_kafka.__version__)

    def produce(self, topic: str, codec: str, records: Any, partition: int = 0) -> list[int]:
        if codec not in self._producers:
            settings = {"bootstrap.servers": ADDRESS, "compression.type": codec, "linger.ms": 20}
            self._producers[codec] = Producer(settings | {"message.max.bytes": 1 << 24})
        producer, offsets = self._producers[codec], []

        def told(error: Any, message: Any) -> None:
            offsets.append(KafkaException(error) if error else message.offset())

        for key, value, time, named in records_of(records):
            producer.produce(
                topic,
                key=key,
                value=value,
                timestamp=time,
                headers=named,
                partition=partition,
                on_delivery=told,
            )
        producer.flush(60)
        for each in offsets:
            if isinstance(each, Exception):
                raise each
        return offsets

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Any]:
        consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "x", "check.crcs": True})
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[Any] = []
        while len(found) < count:
            found += [
                row_of(m.key(), m.value(), m.timestamp()[1], m.headers())
                for m in consumer.consume(count - len(found), 5)
            ]
        consumer.close()
        return found

    def join(self, member: str, group: str, topic: str) -> None:
        self._members[member] = Consumer(
            {
                "bootstrap.servers": ADDRESS,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 10_000,
            }
        )
        self._members[member].subscribe([topic])

    def assigned(self, member: str) -> list[int]:
        consumer = self._members[member]
        message = consumer.poll(0.1)
        assert message is None or message.error() is not None, "nothing was produced yet"
        return sorted(each.partition for each in consumer.assignment())

    def take(self, member: str, count: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < count:
            message = self._members[member].poll(1)
            if message is not None and message.error() is None:
                taken.append([message.partition(), message.offset(), packed(message.value())])
        return taken

    def seek(self, member: str, topic: str, offset: int) -> None:
        self._members[member].seek(TopicPartition(topic, 0, offset))

    def commit(self, member: str, topic: str, offset: int) -> None:
        place = TopicPartition(topic, 0, offset, metadata="note")
        self._members[member].commit(offsets=[place], asynchronous=False)

    def committed(self, member: str, group: str, topic: str) -> int | None:
        del group
        (found,) = self._members[member].committed([TopicPartition(topic, 0)], 30)
        return None if found.offset < 0 else int(found.offset)

    def leave(self, member: str) -> None:
        self._members.pop(member).close()

    def time(self, topic: str, timestamp: int) -> int | None:
        consumer = Consumer({"bootstrap.servers": ADDRESS, "group.id": "x"})
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], 30)
        consumer.close()
        return None if found.offset < 0 else int(found.offset)

    # ------------------------------------------------------------ administration

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        made = NewTopic(topic, num_partitions=partitions, config=config)
        self._admin.create_topics([made])[topic].result(30)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(30)

    def topics(self) -> list[str]:
        return list(self._admin.list_topics(timeout=30).topics)

    def groups(self) -> list[str]:
        return [each.group_id for each in self._admin.list_consumer_groups().result(30).valid]

    def config(self, topic: str) -> dict[str, Any]:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        found = self._admin.describe_configs([asked])[asked].result(30)
        return {name: row.value for name, row in found.items()}


if __name__ == "__main__":
    converse(Client())
