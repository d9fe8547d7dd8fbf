"""Threads, descriptors and memory of a server after hostile traffic are what they were before.

One round warms everything up: kernels, arenas, pools. What later rounds leave behind is a leak.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina.errors import LaminaError
from lamina.wire import messages
from tests.fuzz.arrow import stream_of
from tests.server.rig import ServerProcess
from tests.server.test_hasty import HALVES
from tests.server.test_hostile import garbage
from tests.server.test_hostile_arrow import LIES, Raw

THREADS, DESCRIPTORS, MEMORY_BYTES = 12, 12, 64 << 20
SETTLED_S = 30


class Budget(NamedTuple):
    """What a process holds."""

    threads: int
    descriptors: int
    memory_bytes: int


def budget_of(server: ServerProcess) -> Budget:
    assert server.process is not None
    process = f"/proc/{server.process.pid}"
    memory = int(Path(f"{process}/statm").read_text().split()[1]) * 4096
    return Budget(len(os.listdir(f"{process}/task")), len(os.listdir(f"{process}/fd")), memory)


def connected(server: ServerProcess, door: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", door), timeout=20)


def lie(server: ServerProcess) -> None:
    raw = Raw(server.url, "none")
    for make in LIES.values():
        assert isinstance(raw.append(make(), "t"), LaminaError)
    large = pa.record_batch([pa.array([bytes(64 << 20)], pa.binary())], ["value"])
    assert isinstance(raw.append(stream_of(large, "zstd"), "t"), lamina.InvalidRequest)
    with pytest.raises((flight.FlightError, OSError)):
        raw.send_own(large, "zstd")
    raw.close()


def send_garbage(server: ServerProcess) -> None:
    for seed in range(20):
        for door in (server.flight_port, server.http_port):
            with connected(server, door) as client:
                client.sendall(garbage(seed))


def send_halves(server: ServerProcess) -> None:
    for half in HALVES.values():
        with connected(server, server.http_port) as client:
            client.sendall(half)


def hang_up(server: ServerProcess) -> None:
    """Long polls of both doors and scans, given up while they wait."""
    paths = ("partitions/0/records?start=99999999&wait_ms=20000", "partitions/0/watch")
    for path in paths * 5:
        with connected(server, server.http_port) as client:
            client.sendall(f"GET /v1/topics/t/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    questions = [
        messages.Question("scan", "t", 0, 0, max_records=1),
        messages.Question("fetch", "t", 0, 1 << 30, wait_ms=20_000),
        messages.Poll("t", "g", wait_ms=20_000),
    ]

    def ask(question: Any) -> None:
        client = flight.connect(server.url)
        options = flight.FlightCallOptions(timeout=0.3)
        with contextlib.suppress(flight.FlightError, pa.ArrowException, StopIteration, OSError):
            reader = client.do_get(flight.Ticket(messages.encode_question(question)), options)
            reader.read_chunk()
            reader.cancel()
            reader.read_chunk()
        client.close()

    askers = [threading.Thread(target=ask, args=(each,)) for each in questions * 5]
    for each in askers:
        each.start()
    for each in askers:
        each.join(60)


def make_groups(server: ServerProcess) -> None:
    """As many as there may be and more; they are deleted again."""
    with lamina.connect(server.url, timeout_s=60) as store:
        made = []
        try:
            for number in range(50):
                made.append(f"flood{number}")
                store.group("t", made[-1])
        except lamina.InvalidRequest:
            made.pop()
        assert len(made) < 50, "there is a bound"
        for name in made:
            store.delete_group("t", name)


TRAFFIC: list[Callable[[ServerProcess], None]] = [
    lie,
    send_garbage,
    send_halves,
    hang_up,
    make_groups,
]


def soaked(folder: Path, rounds: int) -> None:
    with ServerProcess(folder, "idle.ms=500", "max.request.bytes=1048576") as server:
        with lamina.connect(server.url) as store:
            store.create_topic("t", config={"max.groups": 20})
            store.append("t", [b"x" * 10_000] * 50)
            store.group("t", "g")
        for number in range(rounds + 1):
            if number == 1:
                before = budget_of(server)
            for traffic in TRAFFIC:
                traffic(server)
        allowed = Budget(
            before.threads + THREADS,
            before.descriptors + DESCRIPTORS,
            before.memory_bytes + MEMORY_BYTES,
        )
        deadline = time.monotonic() + SETTLED_S
        while not within(budget_of(server), allowed) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert within(budget_of(server), allowed), f"{before} became {budget_of(server)}"
        with lamina.connect(server.url) as store:
            assert store.append("t", b"still here").base_offset >= 50


def within(found: Budget, allowed: Budget) -> bool:
    return all(is_now <= limit for is_now, limit in zip(found, allowed, strict=True))


def test_hostile_traffic_leaves_nothing_behind(tmp_path: Path) -> None:
    soaked(tmp_path / "data", rounds=2)


@pytest.mark.long
def test_much_hostile_traffic_leaves_nothing_behind(tmp_path: Path) -> None:
    soaked(tmp_path / "data", rounds=60)
