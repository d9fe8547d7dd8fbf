"""Kafka's libraries as a door of the log: single values by two producers, reads by librdkafka.

A client of this door does what the others of `driving` do, and writes the same history. It sends
one value at a time: what a Kafka client is given together may become several appends.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import Any

from lamina.errors import InvalidRequest
from lamina_torture.driving import POLL_RECORDS, TOPIC, Client, Note, Unanswered
from lamina_torture.kafka_clients import PRODUCERS, Producing

LIBRARIES = ("confluent", "aiokafka")
"""Not kafka-python, which leaves a socket open for each try to reach a server that is away."""
_ANSWER_S = 20
_POLL_S = 0.05


class KafkaDoor:
    """An idempotent producer of one library, and librdkafka's consumer and its offsets."""

    sends_most = 1

    def __init__(self, address: str, producer: Producing) -> None:
        self._kafka = importlib.import_module("confluent_kafka")
        self._producer = producer
        self._settings = {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        self._consumers: dict[int, Any] = {}
        self._following: dict[int, int] = {}

    def send(self, partition: int, values: list[bytes]) -> int:
        """Sends, and waits for the answer; -1 where the library was told no offset."""
        ((outcome, offset),) = self._producer.send(partition, values)
        if outcome != "ok":
            raise Unanswered
        return offset

    def fetch(self, partition: int, start: int) -> list[tuple[int, str]]:
        """Polls; the consumer goes on where it was, across every end of the server."""
        consumer = self._consumer(partition)
        if self._following.get(partition) != start:
            consumer.assign([self._kafka.TopicPartition(TOPIC, partition, start)])
        rows = []
        for message in consumer.consume(POLL_RECORDS, _POLL_S):
            if message.error() is None:
                rows.append((message.offset(), message.value().decode()))
            elif message.error().code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
                raise InvalidRequest(f"{partition} does not reach {start} any more: {message}")
        self._following[partition] = rows[-1][0] + 1 if rows else start
        return rows

    def end(self, partition: int) -> int:
        """Asks for the high watermark."""
        consumer = self._consumer(partition)
        place = self._kafka.TopicPartition(TOPIC, partition)
        try:
            return int(consumer.get_watermark_offsets(place, _ANSWER_S)[1])
        except self._kafka.KafkaException as error:
            raise Unanswered from error

    def close(self) -> None:
        """Closes the consumers."""
        for consumer in self._consumers.values():
            consumer.close()

    def _consumer(self, partition: int) -> Any:
        if partition not in self._consumers:
            self._consumers[partition] = self._kafka.Consumer(self._settings)
        return self._consumers[partition]


class KafkaUser:
    """A client of this door; it opens its library's client when it begins, and closes it."""

    def __init__(
        self,
        name: str,
        library: str,
        port: int,
        *,
        first: int,
        seed: object,
        note: Note,
        pause_s: float = 0.0,
    ) -> None:
        address = f"127.0.0.1:{port}"
        kind = next(each for each in PRODUCERS if each.library == library)
        self._producer = kind(address, note, seed, idempotent=True)
        self._door = KafkaDoor(address, self._producer)
        self._client = Client(name, self._door, first=first, seed=seed, note=note, pause_s=pause_s)
        self.errors = self._client.errors

    def run(self, ended: threading.Event) -> None:
        """Uses the log until it is told to end."""
        with self._producer.opened(), contextlib.closing(self._door):
            self._client.run(ended)
