"""kafka-python as a driver, from 2.0.2 to 3."""

from __future__ import annotations

import sys
import threading
from typing import Any

import kafka
from conversation import converse, packed, records_of, row_of
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.structs import OffsetAndMetadata

ADDRESS = sys.argv[1]


class Client:
    def __init__(self) -> None:
        self._producers: dict[str, Any] = {}
        self._members: dict[str, Any] = {}
        self._taken: dict[str, list[Any]] = {}

    def version(self) -> str:
        return str(kafka.__version__)

    def produce(self, topic: str, codec: str, records: Any, partition: int = 0) -> list[int]:
        if codec not in self._producers:
            self._producers[codec] = KafkaProducer(
                bootstrap_servers=ADDRESS,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
                acks="all",
                max_request_size=1 << 24,
                retries=20,
            )
        producer = self._producers[codec]
        sent = [
            producer.send(
                topic, key=key, value=value, timestamp_ms=time, headers=named, partition=partition
            )
            for key, value, time, named in records_of(records)
        ]
        producer.flush()
        try:
            return [each.get(30).offset for each in sent]
        except Exception:
            del self._producers[codec]  # an idempotent one of version 3 sends nothing more
            raise

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Any]:
        consumer = KafkaConsumer(bootstrap_servers=ADDRESS, check_crcs=True)
        place = TopicPartition(topic, partition)
        consumer.assign([place])
        consumer.seek(place, offset)
        found: list[Any] = []
        while len(found) < count:
            for each in consumer.poll(200).values():
                found += [row_of(m.key, m.value, m.timestamp, m.headers) for m in each]
        consumer.close()
        return found

    def join(self, member: str, group: str, topic: str) -> None:
        self._taken[member] = []
        self._members[member] = KafkaConsumer(
            topic,
            bootstrap_servers=ADDRESS,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
            max_poll_records=5,
        )

    def _poll(self, member: str, wait_ms: int) -> None:
        for each in self._members[member].poll(wait_ms).values():
            self._taken[member] += [[m.partition, m.offset, packed(m.value)] for m in each]

    def assigned(self, member: str) -> list[int]:
        # Version 2.0.2 waits inside of a poll until all members are back: they poll at once.
        polls = [threading.Thread(target=self._poll, args=(each, 100)) for each in self._members]
        for each in polls:
            each.start()
        for each in polls:
            each.join()
        return sorted(each.partition for each in self._members[member].assignment())

    def take(self, member: str, count: int) -> list[Any]:
        while len(self._taken[member]) < count:
            self._poll(member, 1000)
        taken = self._taken[member]
        self._taken[member] = taken[count:]
        return taken[:count]

    def seek(self, member: str, topic: str, offset: int) -> None:
        self._members[member].seek(TopicPartition(topic, 0), offset)
        self._taken[member] = []

    def commit(self, member: str, topic: str, offset: int) -> None:
        place = OffsetAndMetadata(offset, "note", *([-1] * (len(OffsetAndMetadata._fields) - 2)))
        self._members[member].commit({TopicPartition(topic, 0): place})

    def committed(self, member: str, group: str, topic: str) -> int | None:
        del group
        found = self._members[member].committed(TopicPartition(topic, 0))
        return None if found is None else int(found)

    def leave(self, member: str) -> None:
        self._members.pop(member).close()

    def time(self, topic: str, timestamp: int) -> int | None:
        consumer = KafkaConsumer(bootstrap_servers=ADDRESS)
        found = consumer.offsets_for_times({TopicPartition(topic, 0): timestamp})
        consumer.close()
        (place,) = found.values()
        return None if place is None else int(place.offset)

    # ------------------------------------------------------------ administration

    def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        made = NewTopic(topic, partitions, 1, topic_configs=config)
        self._with_admin("create_topics", [made])

    def delete(self, topic: str) -> None:
        self._with_admin("delete_topics", [topic])

    def topics(self) -> list[str]:
        return list(self._with_admin("list_topics"))

    def groups(self) -> list[str]:
        has_new = hasattr(KafkaAdminClient, "list_groups")
        found = self._with_admin("list_groups" if has_new else "list_consumer_groups")
        return [each["group_id"] if isinstance(each, dict) else each[0] for each in found]

    def config(self, topic: str) -> dict[str, Any]:
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        found = self._with_admin("describe_configs", asked)
        if isinstance(found, dict):
            return {name: row["value"] for name, row in found["topic"][topic].items()}
        (answer,) = found
        if hasattr(answer, "resources"):
            return {row[0]: row[1] for row in answer.resources[0][4]}
        return {name: row["value"] for name, row in answer.items()}

    def _with_admin(self, action: str, *given: Any) -> Any:
        admin = KafkaAdminClient(bootstrap_servers=ADDRESS)
        try:
            return getattr(admin, action)(*given)
        finally:
            admin.close()


if __name__ == "__main__":
    converse(Client())
