"""F1 and F3 by Kafka clients: the broker is killed, or power is lost, under three libraries.

What producers and members of groups were told is one history, judged by the rules of
`histories` and `group_histories`.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lamina.server.broker import Broker
from lamina.server.kafka.listener import KafkaDoor
from lamina.server.setting_table import ServerSettings
from lamina.store.store import Store
from lamina_torture.disk import Disk
from lamina_torture.faults.doors import BREAKS, User, free_port
from lamina_torture.group_histories import Commit, judge_groups
from lamina_torture.histories import Operation, judge
from lamina_torture.hosting import first_offset
from lamina_torture.kafka_clients import (
    MEMBERS,
    PARTITIONS,
    PRODUCERS,
    TOPIC,
    Producing,
    Reading,
    collect_remains,
    may_repeat,
    needs_clients,
)
from lamina_torture.kafka_tap import Tap
from lamina_torture.rows import Rounds, Trial, demand, row, violated
from lamina_torture.simulated import SimulatedFiles

KILLS = 2
DISKS_PER_LIFE = 12
START_S = 120
GROUPS = {
    "one": ("confluent", "confluent"),
    "two": ("aiokafka", "aiokafka"),
    "three": ("python", "python"),
    "mixed": ("confluent", "aiokafka", "python"),
}
"""The libraries of each group's members."""
DATA = "/data"
_LAST_NS = 1 << 62


@row(
    "F1",
    "kafka",
    invariants="I1 I2 I3 I5 I6 I12",
    rounds=Rounds(1, 4, 400),
    needs=needs_clients,
)
def broker_killed(trial: Trial) -> None:
    """SIGKILL of a broker under producers and groups of three Kafka libraries; Jepsen's rules."""
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


@row(
    "F3",
    "kafka",
    invariants="I1 I2 I3 I5 I6",
    rounds=Rounds(1, 8, 2000),
    needs=needs_clients,
)
def power_lost(trial: Trial) -> None:
    """Power is lost under the same clients: what was answered as stored or committed is there."""
    for number in range(trial.rounds):
        with trial.case(number, counted="lives") as wanted:
            if wanted:
                with Tap() as tap:
                    clients = _Clients(tap, f"{trial.seed} {number}")
                    disks = _disks_of_a_life(trial, number, clients)
                for each, (moment_ns, disk) in enumerate(disks):
                    choice = trial.luck(f"{number} {each}").randrange(1 << 30)
                    crashed = disk.crash(choice if each % 2 else "dropped")
                    trial.counts["disks"] += 1
                    with Store(DATA, files=crashed) as store:
                        _judge(trial, clients, store, moment_ns)


# ---------------------------------------------------------------- clients


class _Clients:
    """Producers and members of all libraries, and what they were told."""

    def __init__(self, tap: Tap, seed: object) -> None:
        address = f"127.0.0.1:{tap.port}"
        self.tap = tap
        self.told: list[Operation] = []
        self.producers: list[Producing] = [
            kind(address, self.told.append, seed, idempotent=idempotent)
            for kind in PRODUCERS
            for idempotent in (False, True)
        ]
        kinds = {kind.library: kind for kind in MEMBERS}
        self.members: list[Reading] = [
            kinds[library](address, self.told.append, f"{group}{number}", group)
            for group, libraries in GROUPS.items()
            for number, library in enumerate(libraries)
        ]

    def _users(self) -> list[User]:
        return [*self.producers, *self.members]

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Runs all of them, each in a thread."""
        for library in ("aiokafka", "kafka"):  # each says at length that the broker is away
            logging.getLogger(library).setLevel(logging.CRITICAL)
        ended = threading.Event()
        threads = [threading.Thread(target=each.run, args=(ended,)) for each in self._users()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(START_S)
            collect_remains()
        demand(not any(each.is_alive() for each in threads), "I12", "a client got no answer")
        self.check()

    def check(self) -> None:
        """Demands that no call ended in an error: every library asks again until it is told."""
        errors = [each for user in self._users() for each in user.errors]
        demand(not errors, "I12", f"a sound call was refused: {errors[:3]}")

    def await_progress(self) -> None:
        """Waits until every producer was answered, and every group has committed, again."""
        is_enough = self._goes_on()
        deadline = time.monotonic() + START_S
        while not is_enough():
            self.check()
            demand(time.monotonic() < deadline, "I12", f"clients get on no more: {self._stuck()}")
            time.sleep(0.005)

    def _goes_on(self) -> Callable[[], bool]:
        self._marks = [each.answered for each in self.producers]
        self._group_marks = {group: self._committed(group) for group in GROUPS}
        return lambda: not self._stuck()

    def _stuck(self) -> list[str]:
        pairs = zip(self.producers, self._marks, strict=True)
        stuck = [each.name for each, mark in pairs if each.answered <= mark]
        marks = self._group_marks.items()
        return stuck + [f"group {each}" for each, mark in marks if self._committed(each) <= mark]

    def _committed(self, group: str) -> int:
        return sum(each.committed for each in self.members if each.group == group)

    def history(self) -> list[Operation]:
        """Returns what was told last of each operation."""
        last = {
            (each.client, each.kind, each.began_ns, each.values or each.partition): each
            for each in list(self.told)
        }
        return list(last.values())


# ---------------------------------------------------------------- a broker that is killed


class BrokerProcess:
    """`lamina serve`, as whoever kills it sees it."""

    def __init__(self, directory: str, tap: Tap) -> None:
        self._directory = directory
        self._tap = tap
        self._port = free_port()
        tap.point_at(self._port)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts the process and waits until it serves."""
        settings = {
            "flight.port": 0,
            "http.port": 0,
            "kafka.port": self._port,
            "kafka.advertised": f"127.0.0.1:{self._tap.port}",
        }
        words = [sys.executable, "-m", "lamina", "serve", "--data", self._directory, "--quiet"]
        words += [f"--set={name}={value}" for name, value in settings.items()]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)  # noqa: S603
        assert self._process.stdout is not None
        watch = threading.Timer(START_S, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        demand(line.startswith("ready"), "I12", f"the broker did not start: {line!r}")

    def end(self, number: signal.Signals) -> None:
        """Sends a signal, and waits for the end."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        code = self._process.wait(START_S)
        self._process.stdout.close()
        demand(code == (0 if number is signal.SIGTERM else -number), "I12", f"ended with {code}")


def _live_and_kill(trial: Trial, number: int, directory: str, clients: _Clients) -> None:
    luck = trial.luck(number)
    tap = clients.tap
    broker = BrokerProcess(directory, tap)
    broker.start()
    try:
        create_topic(tap, trial.format)
        with clients.at_work():
            for _ in range(KILLS):
                clients.await_progress()
                time.sleep(luck.uniform(0, 0.3))
                if luck.random() < 0.75:  # answers are lost, so that everybody asks again
                    tap.deafen()
                    _await(lambda: tap.lost_produces >= len(PRODUCERS))
                broker.end(signal.SIGKILL)
                tap.cut()
                tap.lost_produces = 0
                trial.counts["kills"] += 1
                broker.start()
            clients.await_progress()
    finally:
        broker.end(signal.SIGTERM)


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_so():
        demand(time.monotonic() < deadline, "I12", "clients send nothing any more")
        time.sleep(0.001)


def create_topic(tap: Tap, format_name: str) -> None:
    """Has the topic made by a client, before anybody uses it."""
    admin = importlib.import_module("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": f"127.0.0.1:{tap.port}", "log_level": 0})
    config = {"lamina.format": format_name}
    if format_name != "wal":
        config["segment.bytes"] = str(64 << 10)
    topic = admin.NewTopic(TOPIC, PARTITIONS, 1, config=config)
    client.create_topics([topic])[TOPIC].result(START_S)


# ---------------------------------------------------------------- a disk that loses power


@contextlib.contextmanager
def _on_simulated_disk(format_name: str, tap: Tap) -> Iterator[SimulatedFiles]:
    """Serves Kafka clients from a disk that can lose power; the rest of a server is not needed."""
    advertised: dict[str, Any] = {"kafka_advertised": f"127.0.0.1:{tap.port}", "kafka_port": 0}
    broker = Broker(ServerSettings(**advertised), None)
    door = KafkaDoor(broker)
    files = SimulatedFiles()
    with Store(DATA, files=files) as store:
        broker.serve(store)
        door.serve()
        tap.point_at(door.port)
        try:
            create_topic(tap, format_name)
            yield files
        finally:
            tap.cut()
            door.close()


def _disks_of_a_life(
    trial: Trial, number: int, clients: _Clients
) -> list[tuple[int, Disk[SimulatedFiles]]]:
    """Returns the disk at some moments of a life, each with the time just before it."""
    luck, disks = trial.luck(number), []
    with _on_simulated_disk(trial.format, clients.tap) as files, clients.at_work():
        for _ in range(DISKS_PER_LIFE):
            clients.await_progress()
            time.sleep(luck.uniform(0, 0.02))
            disks.append((time.monotonic_ns(), files.snapshot()))
    return disks


# ---------------------------------------------------------------- the verdict


def _judge(trial: Trial, clients: _Clients, store: Store, moment_ns: int = _LAST_NS) -> None:
    """Holds a store against what clients had been told until a moment."""
    history = list(_known_at(moment_ns, clients.history()))
    commits = [
        each if each.ended_ns < moment_ns else replace(each, outcome="info", ended_ns=_LAST_NS)
        for each in clients.tap.commits
        if each.ended_ns < moment_ns or not each.is_told
    ]
    commits += [
        Commit(group, partition, offset, _LAST_NS, _LAST_NS, is_told=True)
        for group in GROUPS
        for partition, offset in _committed(store, group).items()
    ]
    trial.counts["operations"] += len(history)
    trial.counts["commits"] += len(commits)
    final = final_of(store, trial.format)
    reads = [read for member in clients.members for read in member.reads]
    anomalies = judge(history, final, may_repeat)
    anomalies += judge_groups(commits, clients.tap.shares, reads, final)
    if anomalies:
        shown = "; ".join(f"{rule}: {what}" for rule, what in anomalies[:3])
        violated(BREAKS[anomalies[0].rule], f"{len(anomalies)} anomalies: {shown}")


def _known_at(moment_ns: int, history: list[Operation]) -> Iterator[Operation]:
    """Goes through what had been asked; answers that came later are not known yet."""
    for each in history:
        if each.ended_ns < moment_ns:
            yield each
        elif each.kind == "send":
            yield replace(each, outcome="info", found=())


def final_of(store: Store, format_name: str) -> dict[int, dict[int, str]]:
    """Reads everything as it is in the end."""
    found: dict[int, dict[int, str]] = {}
    for partition in range(PARTITIONS):
        here = found.setdefault(partition, {})
        for batch in store.scan(TOPIC, partition, first_offset(format_name)):
            values = [value.decode() for value in batch.column("value").to_pylist()]
            here |= dict(zip(batch.column("offset").to_pylist(), values, strict=True))
    return found


def _committed(store: Store, group: str) -> dict[int, int]:
    """Returns what a group has committed in the end; -1 where it has committed nothing."""
    found = {each.partition: each.offset for each in store.coordinator.offsets.of(group).values()}
    return {partition: found.get(partition, -1) for partition in range(PARTITIONS)}
