"""F18: requests that come twice, late, or from a producer that was replaced, over a real network.

A producer numbers its batches. Some answers are lost, and it asks again; some requests are held
back on their way, it asks again elsewhere, and the old ones arrive behind newer ones; a second
process takes its place with a higher epoch, and the first goes on unaware. Each batch is stored
once, in its order, and nothing of the one that was replaced.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lamina.api import ProducerStamp
from lamina.client.remote_store import RemoteStore
from lamina.errors import Fenced, OutOfSequence
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina_torture.network import Network
from lamina_torture.rows import Rounds, Trial, demand, row, violated

PATIENCE_S = 60
BATCHES = 8
FATES = ("plain", "lost", "skipped", "late", "twice", "replaced")


@contextmanager
def served(directory: Path) -> Iterator[int]:
    """A server in this process; gives the port of its Flight door."""
    service = Service(str(directory), ServerSettings(flight_port=0, http_port=0, kafka_port=-1))
    service.start()
    try:
        yield int(service.flight_url.rsplit(":", 1)[1])
    finally:
        service.stop()


class Late(threading.Thread):
    """A request that is on its way for long; keeps what it is answered."""

    def __init__(self, session: Session, batch: Batch) -> None:
        super().__init__(daemon=True)
        self._session, self._batch = session, batch
        self.offset: int | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Sends, and waits for the answer."""
        try:
            self.offset = self._session.send(self._session.slow, self._batch)
        except Exception as error:
            self.error = error


@dataclass(frozen=True)
class Batch:
    """What one request holds."""

    stamp: ProducerStamp
    values: tuple[bytes, ...]


@dataclass
class Session:
    """A topic, two ways to its server, and what must be in it."""

    topic: str
    network: Network
    direct: RemoteStore
    slow: RemoteStore
    """The client behind the network."""
    luck: random.Random
    first: int
    """The topic's first offset."""
    epoch: int = 0
    sequence: int = 0
    stored: list[bytes] = field(default_factory=list)
    late: list[tuple[Late, int]] = field(default_factory=list)
    """Requests that were held back, with the offset of what they hold."""

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.first + len(self.stored)

    def next(self) -> Batch:
        """Makes the next batch."""
        count = self.luck.randint(1, 4)
        values = [b"%d.%d.%d" % (self.epoch, self.sequence, row) for row in range(count)]
        return Batch(ProducerStamp(7, self.epoch, self.sequence), tuple(values))

    def send(self, store: RemoteStore, batch: Batch) -> int:
        """Sends a batch; returns its first offset."""
        ack = store.append(self.topic, list(batch.values), partition=0, producer=batch.stamp)
        return ack.base_offset

    def keep(self, batch: Batch, offset: int) -> None:
        """Notes that a batch was answered."""
        expected = self.end
        demand(offset == expected, "I3", f"{batch.stamp}: stored at {offset}, not at {expected}")
        self.stored += batch.values
        self.sequence += len(batch.values)

    def play(self, fate: str) -> None:
        """Sends the next batch, and lets something happen to it."""
        batch = self.next()
        first = self.end
        if fate == "skipped" and self.sequence:  # of a new producer any sequence is the first
            self._skip(batch)
        if fate == "lost":
            self.keep(batch, self._lose_the_answer(batch))
        elif fate == "late":
            self._hold_back(batch)
            self.keep(batch, self.send(self.direct, batch))
        else:
            self.keep(batch, self.send(self.direct, batch))
        if fate == "twice":
            again = self.send(self.slow, batch)
            demand(again == first, "I3", f"{batch.stamp}: a repeat was stored at {again}")
        if fate == "replaced":
            self._replace(batch)

    def _skip(self, batch: Batch) -> None:
        """The batch behind this one comes first: taken, it would leave no place for this one."""
        stamp = ProducerStamp(7, self.epoch, self.sequence + len(batch.values))
        try:
            self.send(self.slow, Batch(stamp, (b"too early",)))
        except OutOfSequence:
            return
        violated("I3", f"{stamp} was taken before {batch.stamp}")

    def _lose_the_answer(self, batch: Batch) -> int:
        """Cuts the connection when the batch is stored and before the answer has come."""
        self.network.deafen()
        request = Late(self, batch)
        request.start()
        self.direct.fetch(self.topic, 0, self.end, wait_ms=PATIENCE_S * 1000)
        self.network.cut()
        request.join(PATIENCE_S)
        demand(request.offset is not None, "I12", f"no answer after a cut: {request.error!r}")
        assert request.offset is not None
        return request.offset

    def _hold_back(self, batch: Batch) -> None:
        self.network.hold()
        request = Late(self, batch)
        request.start()
        demand(self.network.await_held(), "I12", "the request was never sent")
        self.late.append((request, self.end))

    def _replace(self, last: Batch) -> None:
        """Another process takes over; whatever the old one does now is refused."""
        old, self.epoch, self.sequence = self.next(), self.epoch + 1, 0
        batch = self.next()
        self.keep(batch, self.send(self.direct, batch))
        for each in (old, last):
            try:
                self.send(self.slow, each)
            except Fenced:
                continue
            violated("I3", f"{each.stamp} is of a producer that was replaced, and was taken")

    def arrive(self) -> None:
        """Lets what was held back arrive: it is recognized, or refused."""
        self.network.release()
        for request, first in self.late:
            request.join(PATIENCE_S)
            demand(not request.is_alive(), "I12", "a late request gets no answer")
            if request.offset is None:
                typed = isinstance(request.error, Fenced | OutOfSequence)
                demand(typed, "I12", f"a late request: {request.error!r}")
            else:
                demand(request.offset == first, "I3", f"a late repeat got offset {request.offset}")
        self.late.clear()

    def check(self) -> None:
        """The topic holds what was answered, once, in order."""
        found: list[bytes] = []
        for batch in self.direct.scan(self.topic):
            found += batch.column("value").to_pylist()
        demand(found == self.stored, "I3", f"{len(found)} records, not {len(self.stored)}: {found}")


@row("F18", "requests", invariants="I1 I3 I12", rounds=Rounds(2, 60, 2500))
def requests(trial: Trial) -> None:
    """Answers are lost, requests held back or sent twice, producers replaced, by a proxy."""
    with (
        served(trial.scratch / "data") as port,
        RemoteStore(f"grpc://127.0.0.1:{port}") as direct,
    ):
        for number in range(trial.rounds):
            with trial.case(number) as wanted:
                if wanted:
                    _play(trial, direct, port, number)


def _play(trial: Trial, direct: RemoteStore, port: int, number: int) -> None:
    luck, topic = trial.luck(number), f"t{number}"
    config = {} if trial.format == "wal" else {"segment.bytes": 1024}
    direct.create_topic(topic, format=trial.format, config=config)
    with Network(port) as network, RemoteStore(f"grpc://127.0.0.1:{network.port}") as slow:
        slow.describe_topic(topic)
        session = Session(topic, network, direct, slow, luck, first=int(trial.format == "wal"))
        try:
            for _ in range(BATCHES):
                if session.late and luck.random() < 0.5:
                    session.arrive()
                session.play("plain" if session.late else luck.choice(FATES))
                trial.counts["batches"] += 1
        finally:
            network.release()
        session.arrive()
        session.check()
    direct.delete_topic(topic)
