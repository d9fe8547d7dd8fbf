"""Transactional producers of three Kafka libraries, which write down how each transaction ended.

A producer sends values that nobody else sends to some partitions, and commits or aborts. What it
is told decides what must be read in the end: everything of a transaction whose commit was
confirmed, nothing of one that was aborted, or that ended before its commit was asked for; and of
one whose commit got no answer all or nothing. After an error that its library takes for final, a
producer begins again under the same transactional id, as a program has to.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from lamina_torture.histories import Anomaly, Operation, Outcome
from lamina_torture.kafka_clients import PARTITIONS, TOPIC

WAIT_S = 20
TIMEOUT_MS = 60_000
_UNDER_WAY = 1 << 62


@dataclass(frozen=True)
class Transaction:
    """What one transaction sent, and how it ended."""

    values: tuple[tuple[int, str], ...]
    """Partitions and values."""
    outcome: Outcome = "info"
    ended_ns: int = _UNDER_WAY


class Unfinished(Exception):
    """A commit was asked for, and nobody knows how it ended."""


class Transacting(ABC):
    """A producer with transactions; its name is its transactional id, and part of every value."""

    library: ClassVar[str]

    def __init__(self, address: str, note: Callable[[Operation], None], seed: object) -> None:
        self.name = f"{self.library}.transactional"
        self.address = address
        self.committed = 0
        self.aborted = 0
        self.transactions: dict[int, Transaction] = {}
        self._note = note
        self._luck = random.Random(f"{seed} {self.name}")  # noqa: S311
        self._sent = 0

    def run(self, ended: threading.Event) -> None:
        """Runs transactions until it is told to end; begins again after an error."""
        while not ended.is_set():
            with contextlib.suppress(Exception), self.opened():
                while not ended.is_set():
                    self._transaction()

    @abstractmethod
    def opened(self) -> contextlib.AbstractContextManager[object]:
        """Opens the client as the present instance of its id, and closes it afterwards."""

    @abstractmethod
    def send(self, rows: list[tuple[int, bytes]]) -> None:
        """Begins a transaction and sends all of it; raises what was not taken."""

    @abstractmethod
    def end(self, *, commit: bool) -> None:
        """Ends it; raises Unfinished where a commit got no answer, and what says that it failed."""

    def _transaction(self) -> None:
        number, began = len(self.transactions), time.monotonic_ns()
        partitions = self._luck.sample(range(PARTITIONS), self._luck.choice((1, 2, 3)))
        rows = []
        for partition in sorted(partitions):
            for _ in range(self._luck.choice((1, 1, 4))):
                rows.append((partition, f"{self.name}-{self._sent}"))
                self._sent += 1
        mine = self.transactions[number] = Transaction(tuple(rows))
        asked = [
            Operation("send", self.name, partition, began, _UNDER_WAY, "info", (value,))
            for partition, value in rows
        ]
        for each in asked:
            self._note(each)
        commit = self._luck.random() < 0.7
        outcome: Outcome = "info"
        try:
            self.send([(partition, value.encode()) for partition, value in rows])
            self.end(commit=commit)
            outcome = "ok" if commit else "fail"
        except Unfinished:
            raise
        except Exception:
            outcome = "fail"  # its commit was not asked for, or was refused
            raise
        finally:
            now = time.monotonic_ns()
            self.transactions[number] = dataclasses.replace(mine, outcome=outcome, ended_ns=now)
            for each in asked:
                self._note(dataclasses.replace(each, ended_ns=now, outcome=outcome))
            self.committed += outcome == "ok"
            self.aborted += outcome == "fail"


class ConfluentTransactions(Transacting):
    """librdkafka."""

    library = "confluent"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the client; librdkafka closes it by itself."""
        self._kafka = importlib.import_module("confluent_kafka")
        self._producer = self._kafka.Producer(
            {
                "bootstrap.servers": self.address,
                "transactional.id": self.name,
                "transaction.timeout.ms": TIMEOUT_MS,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(WAIT_S)
        yield
        del self._producer

    def send(self, rows: list[tuple[int, bytes]]) -> None:
        """Sends; what is wrong with a record is told by the commit."""
        self._producer.begin_transaction()
        for partition, value in rows:
            self._producer.produce(TOPIC, value, partition=partition)
        self._producer.flush(WAIT_S)

    def end(self, *, commit: bool) -> None:
        """Ends it; a commit that the library gives up is aborted, and then is not stored."""
        if not commit:
            self._producer.abort_transaction(WAIT_S)
            return
        try:
            self._producer.commit_transaction(WAIT_S)
        except self._kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise Unfinished from error
            try:
                self._producer.abort_transaction(WAIT_S)
            except self._kafka.KafkaException as unknown:
                raise Unfinished from unknown
            raise


class PythonTransactions(Transacting):
    """kafka-python."""

    library = "python"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the client and closes it."""
        self._producer = importlib.import_module("kafka").KafkaProducer(
            bootstrap_servers=self.address,
            transactional_id=self.name,
            transaction_timeout_ms=TIMEOUT_MS,
            retry_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            max_block_ms=WAIT_S * 1000,
        )
        try:
            self._producer.init_transactions()
            yield
        finally:
            self._producer.close(timeout=0)
            del self._producer

    def send(self, rows: list[tuple[int, bytes]]) -> None:
        """Sends, and waits for each."""
        self._producer.begin_transaction()
        futures = [self._producer.send(TOPIC, value, partition=place) for place, value in rows]
        for future in futures:
            future.get(WAIT_S)

    def end(self, *, commit: bool) -> None:
        """Ends it; a commit that fails leaves open whether it is stored."""
        if not commit:
            self._producer.abort_transaction()
            return
        try:
            self._producer.commit_transaction()
        except Exception as error:
            raise Unfinished from error


class AioTransactions(Transacting):
    """aiokafka, on an event loop of its own."""

    library = "aiokafka"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the client and closes it."""
        with asyncio.Runner() as self._runner:
            self._producer = self._runner.run(self._started())
            try:
                yield
            finally:
                with contextlib.suppress(Exception):
                    self._runner.run(asyncio.wait_for(self._producer.stop(), WAIT_S))
                del self._producer

    async def _started(self) -> Any:
        producer = importlib.import_module("aiokafka").AIOKafkaProducer(
            bootstrap_servers=self.address,
            transactional_id=self.name,
            transaction_timeout_ms=TIMEOUT_MS,
            retry_backoff_ms=50,
            request_timeout_ms=WAIT_S * 1000,
        )
        try:
            await asyncio.wait_for(producer.start(), WAIT_S)
        except BaseException:
            await producer.stop()
            raise
        return producer

    def send(self, rows: list[tuple[int, bytes]]) -> None:
        """Sends, and waits for all."""
        self._runner.run(asyncio.wait_for(self._send(rows), WAIT_S))

    async def _send(self, rows: list[tuple[int, bytes]]) -> None:
        await self._producer.begin_transaction()
        sent: list[Any] = []
        try:
            for place, value in rows:
                sent.append(await self._producer.send(TOPIC, value, partition=place))
            await asyncio.gather(*sent)
        finally:
            await asyncio.gather(*sent, return_exceptions=True)  # or each says that nobody looked

    def end(self, *, commit: bool) -> None:
        """Ends it; a commit that fails leaves open whether it is stored."""
        own = self._producer
        try:
            asked = own.commit_transaction() if commit else own.abort_transaction()
            self._runner.run(asyncio.wait_for(asked, WAIT_S))
        except Exception as error:
            if commit:
                raise Unfinished from error
            raise


TRANSACTING: tuple[type[Transacting], ...] = (
    ConfluentTransactions,
    PythonTransactions,
    AioTransactions,
)


def torn(transactions: list[Transaction], final: dict[int, dict[int, str]]) -> Iterator[Anomaly]:
    """Yields every transaction of which some records are there in the end, and others are not."""
    there = {(partition, value) for partition, rows in final.items() for value in rows.values()}
    for each in transactions:
        found = [pair in there for pair in each.values]
        if any(found) and not all(found):
            missing = [value for (_, value), is_in in zip(each.values, found, strict=True)
                       if not is_in]  # fmt: skip
            yield Anomaly("torn", f"{missing[:3]} of {len(found)} are missing ({each.outcome})")
