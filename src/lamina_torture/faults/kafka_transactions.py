"""F1 for transactions of Kafka clients: the broker is killed under three libraries.

What producers and readers were told is one history, judged by the rules of `histories`: an aborted
record is never read, a confirmed one is never lost; and no transaction is torn.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import threading
import time
from collections.abc import Iterator

from lamina.store.store import Store
from lamina_torture.faults.doors import BREAKS
from lamina_torture.faults.kafka import BrokerProcess, create_topic, final_of
from lamina_torture.histories import Operation, judge
from lamina_torture.kafka_clients import (
    MEMBERS,
    Reading,
    collect_remains,
    needs_clients,
)
from lamina_torture.kafka_tap import Tap
from lamina_torture.rows import Rounds, Trial, demand, row, violated
from lamina_torture.transactional_clients import TRANSACTING, Transacting, torn

KILLS = 2
PATIENCE_S = 120
READERS = ("confluent", "aiokafka")


@row(
    "F1",
    "transactions",
    invariants="I1 I2 I3 I5 I12",
    rounds=Rounds(1, 4, 400),
    needs=needs_clients,
)
def broker_killed(trial: Trial) -> None:
    """SIGKILL of a broker under transactions of three Kafka libraries: none is torn or undone."""
    for number in range(trial.rounds):
        directory = f"{trial.scratch}/{number}"
        with trial.case(number) as wanted:
            if wanted:
                with Tap() as tap:
                    clients = _Clients(tap, f"{trial.seed} {number}")
                    _live_and_kill(trial, number, directory, clients)
                with Store(directory) as store:
                    _judge(trial, clients, store)
        shutil.rmtree(directory, ignore_errors=True)


class _Clients:
    """Producers of all libraries, readers beside them, and what they were told."""

    def __init__(self, tap: Tap, seed: object) -> None:
        address = f"127.0.0.1:{tap.port}"
        self.tap = tap
        self.told: list[Operation] = []
        self.producers: list[Transacting] = [
            kind(address, self.told.append, seed) for kind in TRANSACTING
        ]
        self.readers: list[Reading] = [
            kind(address, self.told.append, "reader", f"of {kind.library}")
            for kind in MEMBERS
            if kind.library in READERS
        ]

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Runs all of them, each in a thread."""
        # Each says at length that the broker is away, and that a producer was given up.
        for library in ("aiokafka", "kafka", "asyncio"):
            logging.getLogger(library).setLevel(logging.CRITICAL)
        ended = threading.Event()
        users: list[Transacting | Reading] = [*self.producers, *self.readers]
        threads = [threading.Thread(target=each.run, args=(ended,)) for each in users]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(PATIENCE_S)
            collect_remains()
        demand(not any(each.is_alive() for each in threads), "I12", "a client got no answer")
        errors = [each for reader in self.readers for each in reader.errors]
        demand(not errors, "I12", f"a sound call was refused: {errors[:3]}")

    def await_progress(self) -> None:
        """Waits until every producer has committed and aborted again."""
        marks = [(each, each.committed + 2) for each in self.producers]
        deadline = time.monotonic() + PATIENCE_S
        while stuck := [each.name for each, mark in marks if each.committed < mark]:
            demand(time.monotonic() < deadline, "I12", f"clients get on no more: {stuck}")
            time.sleep(0.005)

    def history(self) -> list[Operation]:
        """Returns what was told last of each operation."""
        last = {
            (each.client, each.kind, each.began_ns, each.values or each.partition): each
            for each in list(self.told)
        }
        return list(last.values())


def _live_and_kill(trial: Trial, number: int, directory: str, clients: _Clients) -> None:
    luck, tap = trial.luck(number), clients.tap
    broker = BrokerProcess(directory, tap)
    broker.start()
    try:
        create_topic(tap, trial.format)
        with clients.at_work():
            for _ in range(KILLS):
                clients.await_progress()
                time.sleep(luck.uniform(0, 0.3))
                if luck.random() < 0.5:  # answers are lost, so that ends are asked for again
                    tap.deafen()
                    time.sleep(luck.uniform(0, 0.3))
                broker.end(signal.SIGKILL)
                tap.cut()
                trial.counts["kills"] += 1
                broker.start()
            clients.await_progress()
    finally:
        broker.end(signal.SIGTERM)


def _judge(trial: Trial, clients: _Clients, store: Store) -> None:
    final = final_of(store, trial.format)
    history = clients.history()
    transactions = [each for own in clients.producers for each in own.transactions.values()]
    trial.counts["operations"] += len(history)
    trial.counts["transactions"] += len(transactions)
    anomalies = [*judge(history, final), *torn(transactions, final)]
    if anomalies:
        shown = "; ".join(f"{rule}: {what}" for rule, what in anomalies[:3])
        rule = anomalies[0].rule
        violated(BREAKS.get(rule, "I2"), f"{len(anomalies)} anomalies: {shown}")
