"""F1 through the doors: embedded, Flight and HTTP clients at once, and the server is killed."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import lamina
from lamina.store.store import Store
from lamina_torture.driving import PARTITIONS, TOPIC, Client, HttpDoor, StoreDoor
from lamina_torture.histories import Operation, judge
from lamina_torture.hosting import Host, first_offset
from lamina_torture.rows import Invariant, Rounds, Trial, demand, row, violated

KILLS = 2
CLIENTS = 2
ANSWER_S = 60.0
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
}
"""Which invariant an anomaly breaks."""


@row("F1", "doors", invariants="I1 I2 I3 I5 I12", rounds=Rounds(1, 2, 400))
def through_all_doors(trial: Trial) -> None:
    """SIGKILL of a server with embedded, Flight and HTTP clients; Jepsen's rules judge them."""
    for number in range(trial.rounds):
        directory = f"{trial.scratch}/{number}"
        with trial.case(number) as wanted:
            if wanted:
                history = _lived_through(trial, number, directory)
                trial.counts["operations"] += len(history)
                _judge(history, _final(directory, trial.format))
        shutil.rmtree(directory, ignore_errors=True)


def _lived_through(trial: Trial, number: int, directory: str) -> list[Operation]:
    """Runs the clients of all doors while the server is killed and started again."""
    drawn, ended = trial.luck(number), threading.Event()
    ports = _free_port(), _free_port()
    host = Host(directory, trial.format, ports)
    told: list[Operation] = []
    with ExitStack() as closing:
        host.start()
        store: Any = closing.enter_context(
            lamina.connect(f"grpc://127.0.0.1:{ports[0]}", timeout_s=ANSWER_S)
        )
        options: dict[str, Any] = {
            "first": first_offset(trial.format),
            "seed": f"{trial.seed} {number}",
            "note": told.append,
        }
        clients = [
            *(Client(f"flight{each}", StoreDoor(store), **options) for each in range(CLIENTS)),
            *(Client(f"http{each}", HttpDoor(ports[1]), **options) for each in range(CLIENTS)),
        ]
        threads = [threading.Thread(target=each.run, args=(ended,)) for each in clients]
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            _await_more(told, drawn.randrange(20, 200))
            host.kill()
            trial.counts["kills"] += 1
            host.start()
        _await_more(told, drawn.randrange(20, 200))
        ended.set()
        for thread in threads:
            thread.join(2 * ANSWER_S)
            demand(not thread.is_alive(), "I12", "a client got no answer")
        host.stop()
    for client in clients:
        demand(not client.errors, "I12", f"a sound call was refused: {client.errors[:3]}")
    last = {(each.client, each.began_ns): each for each in told}
    return [*last.values(), *host.history]


def _await_more(told: list[Operation], count: int) -> None:
    """Waits until clients have written down so much more; a slow machine takes longer for it."""
    target, deadline = len(told) + count, time.monotonic() + ANSWER_S
    while len(told) < target:
        demand(time.monotonic() < deadline, "I12", "no client gets on")
        time.sleep(0.001)


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


def _judge(history: list[Operation], final: dict[int, dict[int, str]]) -> None:
    kinds = {(each.client.rstrip("0123456789."), each.kind, each.outcome) for each in history}
    for door in ("embedded", "flight", "http"):
        for kind in ("send", "poll", "end"):
            demand((door, kind, "ok") in kinds, "I12", f"no {kind} by {door} was answered")
    anomalies = judge(history, final)
    if anomalies:
        shown = "; ".join(f"{rule}: {what}" for rule, what in anomalies[:3])
        violated(BREAKS[anomalies[0].rule], f"{len(anomalies)} anomalies: {shown}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
