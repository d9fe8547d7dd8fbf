"""F1 through the doors: embedded, Flight, HTTP, Kafka and Spark clients at once; the server dies.

What all of them asked and were told is one history, judged by the rules of `histories`.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeAlias

import lamina
from lamina.store.store import Store
from lamina_torture.cross import sparks
from lamina_torture.driving import PARTITIONS, TOPIC, Client, HttpDoor, StoreDoor
from lamina_torture.faults.cross import needs_spark
from lamina_torture.histories import Operation, judge
from lamina_torture.hosting import Host, first_offset
from lamina_torture.kafka_clients import needs_clients
from lamina_torture.kafka_driving import LIBRARIES, KafkaUser
from lamina_torture.rows import Invariant, Rounds, Trial, demand, row, violated
from lamina_torture.spark_driving import ServedDoor, SparkReader, SparkStream, SparkWriter

KILLS = 2
CLIENTS = 2
ANSWER_S = 60.0
SPARK_S = 600.0
"""Spark takes its time: so long it may need for a few jobs on a machine that is busy."""
SPARK_PAUSE_S = 0.05
"""How long the other clients rest between calls meanwhile, or they would fill the history."""
_Doors: TypeAlias = dict[str, tuple[str, ...]]
_EVERYWHERE = ("embedded", "flight", "http", *(() if needs_clients() else ("kafka",)))
"""Kafka's libraries are a door where they are installed."""
DOORS: _Doors = dict.fromkeys(_EVERYWHERE, ("send", "poll", "end"))
SPARK_DOORS: _Doors = {
    "spark-write": ("send",),
    "spark-read": ("poll",),
    "spark-stream": ("poll",),
}
"""The kinds of calls that each door must have answered, or the history shows nothing."""
BREAKS: dict[str, Invariant] = {
    "never sent": "I2",
    "aborted read": "I2",
    "inconsistent": "I3",
    "duplicate": "I3",
    "lost write": "I1",
    "nonmonotonic send": "I3",
    "nonmonotonic poll": "I5",
    "skipped": "I3",
    "end moved back": "I5",
    "lost commit": "I6",
    "foreign commit": "I6",
    "unread": "I6",
    "assigned twice": "I6",
}
"""Which invariant an anomaly breaks."""


class User(Protocol):
    """A client of any door."""

    errors: Any

    def run(self, ended: threading.Event) -> None:
        """Uses the log until it is told to end."""


@row("F1", "doors", invariants="I1 I2 I3 I5 I12", rounds=Rounds(1, 2, 400))
def through_all_doors(trial: Trial) -> None:
    """SIGKILL of a server with embedded, Flight, HTTP and Kafka clients; Jepsen's rules."""
    for number in range(trial.rounds):
        directory = f"{trial.scratch}/{number}"
        with trial.case(number) as wanted:
            if wanted:
                history = _Life(trial, number, directory).history()
                _judge(trial, history, _final(directory, trial.format), DOORS)
        shutil.rmtree(directory, ignore_errors=True)


@row(
    "F1",
    "spark",
    invariants="I1 I2 I3 I5 I11 I12",
    rounds=Rounds(None, 1, 60),
    needs=needs_spark,
)
def with_spark(trial: Trial) -> None:
    """The same with Spark's batch writes, batch reads and a stream as further clients."""
    sparks.session()
    for number in range(trial.rounds):
        directory = f"{trial.scratch}/{number}"
        with trial.case(number) as wanted:
            if wanted:
                history = _SparkLife(trial, number, directory).history()
                _judge(trial, history, _final(directory, trial.format), DOORS | SPARK_DOORS)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(f"{directory}-spark", ignore_errors=True)


class _Life:
    """A server that is killed and started again while clients of all doors use it."""

    pause_s = 0.0
    patience_s = 2 * ANSWER_S

    def __init__(self, trial: Trial, number: int, directory: str) -> None:
        self.trial = trial
        self.directory = directory
        self.luck = trial.luck(number)
        self.ports = free_port(), free_port(), free_port()
        self.url = f"grpc://127.0.0.1:{self.ports[0]}"
        self.told: list[Operation] = []
        self.options: dict[str, Any] = {
            "first": first_offset(trial.format),
            "seed": f"{trial.seed} {number}",
            "note": self.told.append,
        }

    def users(self, store: Any) -> Sequence[User]:
        """Makes the clients of all doors of the server."""
        options = {**self.options, "pause_s": self.pause_s}
        libraries = LIBRARIES if "kafka" in DOORS else ()
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of every lost server
        return [
            *(
                KafkaUser(f"kafka{number}", library, self.ports[2], **options)
                for number, library in enumerate(libraries)
            ),
            *(Client(f"flight{each}", StoreDoor(store), **options) for each in range(CLIENTS)),
            *(Client(f"http{each}", HttpDoor(self.ports[1]), **options) for each in range(CLIENTS)),
        ]

    def goes_on(self) -> Callable[[], bool]:
        """Returns a question: whether clients have got on enough since now."""
        target = len(self.told) + self.luck.randrange(20, 200)
        return lambda: len(self.told) >= target

    def history(self) -> list[Operation]:
        """Lives it through; returns what everybody asked and was told."""
        host = Host(self.directory, self.trial.format, self.ports, self.pause_s)
        ended = threading.Event()
        with ExitStack() as closing:
            host.start()
            store = closing.enter_context(lamina.connect(self.url, timeout_s=ANSWER_S))
            users = self.users(store)
            threads = [threading.Thread(target=each.run, args=(ended,)) for each in users]
            for thread in threads:
                thread.start()
            try:
                for _ in range(KILLS):
                    self._await(self.goes_on())
                    host.kill()
                    self.trial.counts["kills"] += 1
                    host.start()
                self._await(self.goes_on())
            finally:
                ended.set()
            for thread in threads:
                thread.join(self.patience_s)
                demand(not thread.is_alive(), "I12", "a client got no answer")
            host.stop()
        for user in users:
            demand(not user.errors, "I12", f"a sound call was refused: {user.errors[:3]}")
        last = {(each.client, each.began_ns): each for each in self.told}
        return [*last.values(), *host.history]

    def _await(self, is_enough: Callable[[], bool]) -> None:
        """Waits until clients have got on; a slow machine takes longer for it."""
        deadline = time.monotonic() + self.patience_s
        while not is_enough():
            demand(time.monotonic() < deadline, "I12", "no client gets on")
            time.sleep(0.001)


class _SparkLife(_Life):
    """The same, with Spark beside them."""

    pause_s = SPARK_PAUSE_S
    patience_s = SPARK_S

    def users(self, store: Any) -> Sequence[User]:
        """Adds a writer, a reader and a stream."""
        door = ServedDoor(sparks.session(), self.url, f"{self.directory}-spark")
        self.spark = (
            SparkWriter(door, **self.options),
            SparkReader(door, **self.options),
            SparkStream(door, **self.options),
        )
        return [*super().users(store), *self.spark]

    def goes_on(self) -> Callable[[], bool]:
        """Each of Spark's clients has to get on; after that any moment is as good."""
        before = [each.answered for each in self.spark]
        more = self.luck.randint(1, 2)
        others = super().goes_on()
        return lambda: (
            others()
            and all(
                each.errors or each.answered >= count + more
                for each, count in zip(self.spark, before, strict=True)
            )
        )


def _final(directory: str, format_name: str) -> dict[int, dict[int, str]]:
    """Reads everything as it is in the end."""
    found: dict[int, dict[int, str]] = {}
    with Store(directory) as store:
        for partition in range(PARTITIONS):
            here = found.setdefault(partition, {})
            for batch in store.scan(TOPIC, partition, first_offset(format_name)):
                values = [value.decode() for value in batch.column("value").to_pylist()]
                here |= dict(zip(batch.column("offset").to_pylist(), values, strict=True))
    return found


def _judge(
    trial: Trial,
    history: list[Operation],
    final: dict[int, dict[int, str]],
    doors: _Doors,
) -> None:
    trial.counts["operations"] += len(history)
    if by_spark := sum(each.client.startswith("spark-") for each in history):
        trial.counts["operations of Spark"] += by_spark
    answered = {(each.client.rstrip("0123456789."), each.kind, each.outcome) for each in history}
    for door, kinds in doors.items():
        for kind in kinds:
            demand((door, kind, "ok") in answered, "I12", f"no {kind} by {door} was answered")
    anomalies = judge(history, final)
    if anomalies:
        shown = "; ".join(f"{rule}: {what}" for rule, what in anomalies[:3])
        violated(BREAKS[anomalies[0].rule], f"{len(anomalies)} anomalies: {shown}")


def free_port() -> int:
    """Returns a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
