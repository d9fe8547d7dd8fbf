"""aiokafka as a driver, from 0.12 on."""

from __future__ import annotations

import sys
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code
from conversation import converse, packed, records_of, row_of

ADDRESS = sys.argv[1]


class Client:
    def __init__(self) -> None:
        self._producers: dict[str, Any] = {}
        self._members: dict[str, Any] = {}
        self._taken: dict[str, list[Any]] = {}

    def version(self) -> str:
        return str(aiokafka.__version__)

    async def produce(self, topic: str, codec: str, records: Any, partition: int = 0) -> list[int]:
        if codec not in self._producers:
            producer = AIOKafkaProducer(
                bootstrap_servers=ADDRESS,
                compression_type=None if codec == "none" else codec,
                linger_ms=20,
                acks="all",
                max_request_size=1 << 24,
            )
            await producer.start()
            self._producers[codec] = producer
        sent = [
            await self._producers[codec].send(
                topic, key=key, value=value, timestamp_ms=time, headers=named, partition=partition
            )
            for key, value, time, named in records_of(records)
        ]
        return [(await each).offset for each in sent]

    async def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Any]:
        place = TopicPartition(topic, partition)
        found: list[Any] = []
        async with AIOKafkaConsumer(bootstrap_servers=ADDRESS) as consumer:
            consumer.assign([place])
            consumer.seek(place, offset)
            while len(found) < count:
                for each in (await consumer.getmany(timeout_ms=5000)).values():
                    found += [row_of(m.key, m.value, m.timestamp, m.headers) for m in each]
        return found

    async def join(self, member: str, group: str, topic: str) -> None:
        self._taken[member] = []
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=ADDRESS,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
            session_timeout_ms=10_000,
        )
        await consumer.start()
        self._members[member] = consumer

    async def _poll(self, member: str, wait_ms: int) -> None:
        found = await self._members[member].getmany(timeout_ms=wait_ms, max_records=5)
        for each in found.values():
            self._taken[member] += [[m.partition, m.offset, packed(m.value)] for m in each]

    async def assigned(self, member: str) -> list[int]:
        await self._poll(member, 100)
        return sorted(each.partition for each in self._members[member].assignment())

    async def take(self, member: str, count: int) -> list[Any]:
        while len(self._taken[member]) < count:
            await self._poll(member, 1000)
        taken = self._taken[member]
        self._taken[member] = taken[count:]
        return taken[:count]

    def seek(self, member: str, topic: str, offset: int) -> None:
        self._members[member].seek(TopicPartition(topic, 0), offset)
        self._taken[member] = []

    async def commit(self, member: str, topic: str, offset: int) -> None:
        await self._members[member].commit({TopicPartition(topic, 0): (offset, "note")})

    async def committed(self, member: str, group: str, topic: str) -> int | None:
        del group
        found: int | None = await self._members[member].committed(TopicPartition(topic, 0))
        return found

    async def leave(self, member: str) -> None:
        await self._members.pop(member).stop()

    async def time(self, topic: str, timestamp: int) -> int | None:
        async with AIOKafkaConsumer(bootstrap_servers=ADDRESS) as consumer:
            found = await consumer.offsets_for_times({TopicPartition(topic, 0): timestamp})
        (place,) = found.values()
        return None if place is None else int(place.offset)

    # ------------------------------------------------------------ administration

    async def create(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        made = NewTopic(topic, partitions, 1, topic_configs=config)
        answer = await self._with_admin("create_topics", [made])
        _refuse(answer.topic_errors)

    async def delete(self, topic: str) -> None:
        answer = await self._with_admin("delete_topics", [topic])
        _refuse(answer.topic_error_codes)

    async def topics(self) -> list[str]:
        return list(await self._with_admin("list_topics"))

    async def groups(self) -> list[str]:
        return [each[0] for each in await self._with_admin("list_consumer_groups")]

    async def config(self, topic: str) -> dict[str, Any]:
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        (answer,) = await self._with_admin("describe_configs", asked)
        return {row[0]: row[1] for row in answer.resources[0][4]}

    async def _with_admin(self, action: str, *given: Any) -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=ADDRESS)
        await admin.start()
        try:
            return await getattr(admin, action)(*given)
        finally:
            await admin.close()


def _refuse(answers: list[Any]) -> None:
    """Raises what an answer says: this client leaves that to its callers."""
    for each in answers:
        if each[1]:
            raise for_code(each[1])(each)


if __name__ == "__main__":
    converse(Client())
