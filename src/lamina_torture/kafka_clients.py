"""Producers and group members of three Kafka libraries, which write down what they were told.

    confluent     confluent-kafka, that is librdkafka
    aiokafka      asyncio
    python        kafka-python

A producer sends short bursts of values that nobody else sends, with acks=all, and waits for the
answers: idempotent, with several requests under way, or plain, with one. A member reads what its
group is assigned, and commits. Every library sends again by itself what was not answered: of a
plain producer, a value may therefore be stored twice, but never of an idempotent one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import random
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

from lamina_torture.group_histories import Read
from lamina_torture.histories import Operation, Outcome

TOPIC = "events"
PARTITIONS = 4
PATIENCE_S = 60
POLL_RECORDS = 40
POLL_S = 0.1
SESSION_MS = 6_000
HEARTBEAT_MS = 300
COMMIT_S = 20.0
_UNDER_WAY = 1 << 62
_PLAIN, _IDEMPOTENT = "plain", "idempotent"

Sent: TypeAlias = tuple[Outcome, int]
"""How one value ended, and at which offset."""


def needs_clients() -> str | None:
    """Returns which library is not installed here, or None."""
    for package, name in (
        ("confluent_kafka", "confluent-kafka"),
        ("aiokafka", "aiokafka"),
        ("kafka", "kafka-python"),
    ):
        if importlib.util.find_spec(package) is None:
            return f"{name} is not installed"
    return None


def collect_remains() -> None:
    """Collects what closed clients left behind, so that it is nobody else's.

    kafka-python forgets the socket of a connection that it is just making when it is closed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def may_repeat(value: str) -> bool:
    """Whether a value may be stored twice, because its producer is not idempotent."""
    return _PLAIN in value.split("-", maxsplit=1)[0]


# ---------------------------------------------------------------- producers


class Producing(ABC):
    """A producer of some library; its name is part of every value that it sends."""

    library: ClassVar[str]

    def __init__(
        self, address: str, note: Callable[[Operation], None], seed: object, *, idempotent: bool
    ) -> None:
        self.name = f"{self.library}.{_IDEMPOTENT if idempotent else _PLAIN}"
        self.address = address
        self.idempotent = idempotent
        self.answered = 0
        self.errors: list[str] = []
        self._note = note
        self._luck = random.Random(f"{seed} {self.name}")  # noqa: S311
        self._sent = 0

    def run(self, ended: threading.Event) -> None:
        """Sends bursts until it is told to end."""
        try:
            with self.opened():
                while not ended.is_set():
                    self._burst()
        except Exception as error:
            self.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    @abstractmethod
    def opened(self) -> contextlib.AbstractContextManager[object]:
        """Opens the client, and closes it afterwards."""

    @abstractmethod
    def send(self, partition: int, values: list[bytes]) -> list[Sent]:
        """Sends values without waiting in between, then waits for how each of them ended."""

    def _burst(self) -> None:
        partition = self._luck.randrange(PARTITIONS)
        count = self._luck.choice((1, 1, 3, 8))
        values = [f"{self.name}-{self._sent + row}" for row in range(count)]
        self._sent += count
        asked = [
            Operation(
                "send", self.name, partition, time.monotonic_ns(), _UNDER_WAY, "info", (value,)
            )
            for value in values
        ]
        for each in asked:
            self._note(each)
        answers = self.send(partition, [value.encode() for value in values])
        now = time.monotonic_ns()
        for each, (outcome, offset) in zip(asked, answers, strict=True):
            # One that is stored already may be answered without its offset.
            found = ((offset, each.values[0]),) if outcome == "ok" and offset >= 0 else ()
            self._note(dataclasses.replace(each, ended_ns=now, outcome=outcome, found=found))
            self.answered += outcome == "ok"

    def failed(self, error: object) -> Sent:
        """Returns the end of a value of which nobody knows whether it is stored."""
        self.errors.append(f"{self.name}: {type(error).__name__}: {error}")
        return "info", -1


class ConfluentProducer(Producing):
    """librdkafka."""

    library = "confluent"

    @contextlib.contextmanager
    def opened(self) -> Any:
        """Opens the client; librdkafka closes it by itself."""
        self._producer = importlib.import_module("confluent_kafka").Producer(
            {
                "bootstrap.servers": self.address,
                "acks": "all",
                "linger.ms": 0,
                "enable.idempotence": self.idempotent,
                "max.in.flight.requests.per.connection": 5 if self.idempotent else 1,
                "message.timeout.ms": PATIENCE_S * 1000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "log_level": 0,
            }
        )
        yield
        self._producer.flush(PATIENCE_S)
        del self._producer

    def send(self, partition: int, values: list[bytes]) -> list[Sent]:
        """Sends, and serves the callbacks until all are answered."""
        found: dict[int, Sent] = {}
        for number, value in enumerate(values):

            def told(error: Any, message: Any, number: int = number) -> None:
                found[number] = self.failed(error) if error else ("ok", message.offset())

            self._producer.produce(TOPIC, value, partition=partition, on_delivery=told)
            self._producer.poll(0)
        self._producer.flush(2 * PATIENCE_S)
        return [found.get(number) or self.failed("no answer") for number in range(len(values))]


class PythonProducer(Producing):
    """kafka-python."""

    library = "python"

    @contextlib.contextmanager
    def opened(self) -> Any:
        """Opens the client and closes it."""
        self._producer = importlib.import_module("kafka").KafkaProducer(
            bootstrap_servers=self.address,
            acks="all",
            enable_idempotence=self.idempotent,
            max_in_flight_requests_per_connection=5 if self.idempotent else 1,
            retry_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            delivery_timeout_ms=PATIENCE_S * 1000,
        )
        try:
            yield
        finally:
            self._producer.close(timeout=PATIENCE_S)
            del self._producer

    def send(self, partition: int, values: list[bytes]) -> list[Sent]:
        """Sends, and waits for each."""
        futures = [self._producer.send(TOPIC, value, partition=partition) for value in values]
        return [self._awaited(each) for each in futures]

    def _awaited(self, future: Any) -> Sent:
        try:
            return "ok", future.get(2 * PATIENCE_S).offset
        except Exception as error:
            return self.failed(error)


class AioProducer(Producing):
    """aiokafka, on an event loop of its own."""

    library = "aiokafka"

    @contextlib.contextmanager
    def opened(self) -> Any:
        """Opens the client and closes it."""
        with asyncio.Runner() as self._runner:
            self._producer = self._runner.run(self._started())
            try:
                yield
            finally:
                self._runner.run(self._producer.stop())
                del self._producer

    async def _started(self) -> Any:
        producer = importlib.import_module("aiokafka").AIOKafkaProducer(
            bootstrap_servers=self.address,
            acks="all",
            enable_idempotence=self.idempotent,
            retry_backoff_ms=50,
            request_timeout_ms=PATIENCE_S * 1000,
        )
        await producer.start()
        return producer

    def send(self, partition: int, values: list[bytes]) -> list[Sent]:
        """Sends, and waits for all."""
        return self._runner.run(self._send(partition, values))

    async def _send(self, partition: int, values: list[bytes]) -> list[Sent]:
        futures = [await self._producer.send(TOPIC, each, partition=partition) for each in values]
        told = await asyncio.gather(*futures, return_exceptions=True)
        return [
            self.failed(each) if isinstance(each, BaseException) else ("ok", each.offset)
            for each in told
        ]


# ---------------------------------------------------------------- members of groups


class Reading(ABC):
    """A member of a group; with each assignment it begins to read again."""

    library: ClassVar[str]

    def __init__(
        self, address: str, note: Callable[[Operation], None], name: str, group: str
    ) -> None:
        self.name = f"{self.library}.{name}"
        self.address = address
        self.group = group
        self.reads: list[Read] = []
        self.committed = 0
        self.errors: list[str] = []
        self._note = note
        self._stretch = 0
        self._positions: dict[int, int] = {}

    def run(self, ended: threading.Event) -> None:
        """Reads and commits until it is told to end."""
        try:
            self.consume(ended)
        except Exception as error:
            self.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    @abstractmethod
    def consume(self, ended: threading.Event) -> None:
        """Opens the client, polls, `note`s and commits, and closes it."""

    def assigned(self) -> None:
        """Is told by the library that partitions came or went: reading begins from a commit."""
        self._stretch += 1
        self._positions.clear()

    def note(self, partition: int, rows: list[tuple[int, str]], began_ns: int) -> None:
        """Writes down what a poll has returned of a partition."""
        start = self._positions.get(partition, rows[0][0])
        self._positions[partition] = rows[-1][0] + 1
        self.reads += [Read(self.group, partition, offset) for offset, _ in rows]
        client, now = f"{self.name}.{self._stretch}", time.monotonic_ns()
        self._note(
            Operation("poll", client, partition, began_ns, now, "ok", (), tuple(rows), start)
        )

    def noted(self, found: Iterable[tuple[Any, Any]], began_ns: int) -> dict[Any, int]:
        """Writes down all that a poll has returned; returns where it ended in each partition."""
        ends = {}
        for place, messages in found:
            rows = [(each.offset, each.value.decode()) for each in messages]
            self.note(place.partition, rows, began_ns)
            ends[place] = rows[-1][0] + 1
        return ends


class ConfluentMember(Reading):
    """librdkafka."""

    library = "confluent"

    def consume(self, ended: threading.Event) -> None:
        """Polls one message at a time: callbacks then come between two of them."""
        kafka = importlib.import_module("confluent_kafka")
        consumer = kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": "range",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

        def changed(*_: Any) -> None:
            self.assigned()

        consumer.subscribe([TOPIC], on_assign=changed, on_revoke=changed, on_lost=changed)
        try:
            while not ended.is_set():
                for partition in self._polled(consumer):
                    place = kafka.TopicPartition(TOPIC, partition, self._positions[partition])
                    with contextlib.suppress(kafka.KafkaException):  # it may have to join again
                        consumer.commit(offsets=[place], asynchronous=False)
                        self.committed += 1
        finally:
            consumer.close()

    def _polled(self, consumer: Any) -> set[int]:
        """Returns the partitions of which there is something new."""
        began, stretch = time.monotonic_ns(), self._stretch
        rows: dict[int, list[tuple[int, str]]] = {}
        wait_s = POLL_S
        for _ in range(POLL_RECORDS):
            message = consumer.poll(wait_s)
            if self._stretch != stretch:  # what was read before is noted with its own stretch
                stretch, rows = self._stretch, {}
            if message is None:
                break
            if message.error() is None:
                row = (message.offset(), message.value().decode())
                rows.setdefault(message.partition(), []).append(row)
            wait_s = 0
        for partition, found in rows.items():
            self.note(partition, found, began)
        return set(rows)


class PythonMember(Reading):
    """kafka-python."""

    library = "python"

    def consume(self, ended: threading.Event) -> None:
        """Polls and commits."""
        kafka = importlib.import_module("kafka")
        structs = importlib.import_module("kafka.structs")
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=(_python_assignor(),),
            fetch_max_wait_ms=50,
            reconnect_backoff_max_ms=200,
            max_poll_records=POLL_RECORDS,
        )
        consumer.subscribe([TOPIC], listener=_listener(kafka.ConsumerRebalanceListener, self))
        try:
            while not ended.is_set():
                began = time.monotonic_ns()
                with contextlib.suppress(kafka.errors.KafkaError):  # while the broker is away
                    found = consumer.poll(int(POLL_S * 1000))
                    for place, end in self.noted(found.items(), began).items():
                        offset = structs.OffsetAndMetadata(end, "", -1)
                        consumer.commit({place: offset}, timeout_ms=int(COMMIT_S * 1000))
                        self.committed += 1
        finally:
            consumer.close()


class AioMember(Reading):
    """aiokafka, on an event loop of its own."""

    library = "aiokafka"

    def consume(self, ended: threading.Event) -> None:
        """Runs the loop until it is told to end."""
        asyncio.run(self._consume(ended))

    async def _consume(self, ended: threading.Event) -> None:
        kafka = importlib.import_module("aiokafka")
        assignors = importlib.import_module("aiokafka.coordinator.assignors.range")
        consumer = kafka.AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            partition_assignment_strategy=(assignors.RangePartitionAssignor,),
            fetch_max_wait_ms=50,
            retry_backoff_ms=50,
        )
        listener = _async_listener(kafka.abc.ConsumerRebalanceListener, self)
        consumer.subscribe([TOPIC], listener=listener)
        await consumer.start()
        try:
            while not ended.is_set():
                began = time.monotonic_ns()
                found = await consumer.getmany(
                    timeout_ms=int(POLL_S * 1000), max_records=POLL_RECORDS
                )
                await self._commit(consumer, self.noted(found.items(), began), kafka.errors)
        finally:
            await consumer.stop()

    async def _commit(self, consumer: Any, ends: dict[Any, int], errors: Any) -> None:
        refusals = (errors.KafkaError, asyncio.TimeoutError)
        for place, end in ends.items():
            with contextlib.suppress(*refusals):  # its partitions may be somebody else's by now
                await asyncio.wait_for(consumer.commit({place: end}), COMMIT_S)
                self.committed += 1


def _python_assignor() -> Any:
    return importlib.import_module("kafka.coordinator.assignors.range").RangePartitionAssignor


def _listener(base: Any, member: Reading) -> Any:
    """Makes a listener of kafka-python's kind."""

    def changed(listener: Any, partitions: Any) -> None:
        del listener, partitions
        member.assigned()

    names = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")
    return type("Listener", (base,), dict.fromkeys(names, changed))()


def _async_listener(base: Any, member: Reading) -> Any:
    """Makes a listener of aiokafka's kind."""

    async def changed(listener: Any, partitions: Any) -> None:
        del listener, partitions
        member.assigned()

    names = ("on_partitions_revoked", "on_partitions_assigned")
    return type("Listener", (base,), dict.fromkeys(names, changed))()


PRODUCERS: tuple[type[Producing], ...] = (ConfluentProducer, AioProducer, PythonProducer)
MEMBERS: tuple[type[Reading], ...] = (ConfluentMember, AioMember, PythonMember)
