"""`make bench-kafka`: the same confluent-kafka clients against Lamina, other brokers, and a mock.

librdkafka's mock broker stores nothing and is the ceiling of what this client can do; Apache Kafka
0.9 and Tansu on S3 are the brokers that answer when a record is on a disk. A lone durable append is
held against a bare write and fdatasync plus one round trip on loopback; 16 lone producers against
16 of Arrow Flight, on the same server. Everything is measured in interleaved rounds of one run, and
medians are compared. What is not installed is reported as not run, and its bars are left out.

The mock keeps about 5 MB, so that many records are read from everybody, again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import TopicPartition
from rich.console import Console
from rich.table import Table

import lamina
from benchmarks.bars import Bar, finish
from benchmarks.field.kafka import (
    TOPIC,
    Kafka,
    KafkaClient,
    LaminaByKafka,
    MockBroker,
    TansuMemory,
    TansuS3,
)
from benchmarks.field.queues import with_threads
from benchmarks.field.system import DEFAULT, FSYNC, HOST

BROKERS: tuple[tuple[type[KafkaClient], str], ...] = (
    (LaminaByKafka, FSYNC),
    (Kafka, FSYNC),
    (Kafka, DEFAULT),
    (TansuS3, FSYNC),
    (TansuMemory, DEFAULT),
    (MockBroker, DEFAULT),
)
OURS, CEILING = LaminaByKafka.name, MockBroker.name
BATCH = 10_000
LONE = 16
KEPT_BYTES = 4 << 20
"""What the mock surely keeps of what was written last."""
READ_BATCH = 10_000


@dataclass(frozen=True)
class Sizes:
    """How much of everything a run does."""

    rounds: int = 5
    produced_bytes: int = 100 << 20
    passes: int = 10
    lone: int = 400
    seconds: float = 2.0
    slow_share: float = 0.02
    """The share that a broker gets to do that would need minutes for all of it."""


QUICK = Sizes(rounds=1, produced_bytes=2 << 20, passes=1, lone=20, seconds=0.2)
SLOW = ("Tansu on S3",)
VALUE_BYTES = {"100 B": 100, "1 KiB": 1024}


# ---------------------------------------------------------------- the disk and the wire alone


def serve_echo() -> None:
    """Sends back whatever comes, on one connection."""
    with socket.create_server((HOST, 0)) as listener:
        print(f"ready {listener.getsockname()[1]}", flush=True)
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(4096):
            connection.sendall(data)


@contextlib.contextmanager
def bare_floor(folder: str) -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives a call that times a bare write with fdatasync, and one round trip on loopback."""
    words = [sys.executable, "-c", "from benchmarks.kafka import serve_echo; serve_echo()"]
    echo = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert echo.stdout is not None
    port = int(echo.stdout.readline().split()[1])
    descriptor = os.open(os.path.join(folder, "bare"), os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, bytes(8 << 20), 0)
    os.fdatasync(descriptor)
    data, position = b"v" * 100, 0
    with socket.create_connection((HOST, port)) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def measure() -> tuple[float, float]:
            nonlocal position
            started = time.perf_counter()
            os.pwrite(descriptor, data, position)
            os.fdatasync(descriptor)
            synced = time.perf_counter()
            wire.sendall(data)
            wire.recv(4096)
            position = (position + 140) % (8 << 20)
            return synced - started, time.perf_counter() - synced

        yield measure
    os.close(descriptor)
    echo.kill()
    echo.wait()
    echo.stdout.close()


# ---------------------------------------------------------------- what clients do


class NeverCame(Exception):
    """Records that a broker has acknowledged were not there to be read in time."""


def produced(system: KafkaClient, value_bytes: int, total_bytes: int) -> float:
    """Records per second until all are acknowledged."""
    count = max(1, total_bytes // value_bytes // BATCH)
    values = [os.urandom(value_bytes) for _ in range(BATCH)]
    batches = list(system.prepare([values])) * count
    started = time.perf_counter()
    system.produce(batches)
    return count * BATCH / (time.perf_counter() - started)


def consumed(system: KafkaClient, value_bytes: int, passes: int) -> float:
    """Records per second of reading the end of the log, again and again."""
    count = KEPT_BYTES // (value_bytes + 40)
    consumer = system.reader()
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=10)
    seconds = 0.0
    for number in range(passes + 1):
        started = time.perf_counter()
        consumer.assign([TopicPartition(TOPIC, 0, end - count)])
        left = count
        while left > 0:
            messages = consumer.consume(min(left, READ_BATCH), 10)
            if not messages:
                raise NeverCame(f"{left} of {count} records never came")
            assert all(each.error() is None for each in messages)
            left -= len(messages)
        if number:  # the first pass opens connections
            seconds += time.perf_counter() - started
        consumer.unassign()
    consumer.close()
    return count * passes / seconds


def lone_producers(system: KafkaClient, seconds: float) -> float:
    """Appends per second of clients with a connection each, every one waiting for its answer."""

    def make() -> Any:
        return system.appender(b"v" * 100)

    return with_threads(LONE, seconds, make)


def lone_by_flight(system: LaminaByKafka, seconds: float) -> float:
    """The same by `lamina.connect`, without idempotence as the others."""
    clients: list[Any] = []

    def make() -> Any:
        client = lamina.connect(f"grpc://{HOST}:{system.flight_port}", idempotent=False)
        clients.append(client)
        return lambda: client.append(TOPIC, b"v" * 100, partition=0)

    try:
        return with_threads(LONE, seconds, make)
    finally:
        for client in clients:
            client.close()


# ---------------------------------------------------------------- a run

Figures = dict[tuple[str, str], list[float]]


def measure(systems: dict[str, KafkaClient], folder: str, sizes: Sizes) -> Figures:
    """Does everything in interleaved rounds; figures by system and what was measured."""
    figures: Figures = defaultdict(list)
    for _ in range(sizes.rounds):
        for size, value_bytes in VALUE_BYTES.items():
            for name, system in systems.items():
                share = sizes.slow_share if name.startswith(SLOW) else 1.0
                total = int(sizes.produced_bytes * share)
                rate = produced(system, value_bytes, max(total, KEPT_BYTES + (1 << 20)))
                figures[name, f"produce {size}"].append(rate)
            for name, system in list(systems.items()):
                if isinstance(system, Kafka):  # its client has no timestamps, nor an end
                    continue
                try:
                    rate = consumed(system, value_bytes, sizes.passes)
                except NeverCame as error:  # the other figures are still worth having
                    if name == OURS:
                        raise
                    print(f"not measured any more: {name}: {error}")
                    del systems[name]
                else:
                    figures[name, f"consume {size}"].append(rate)
        _lone(figures, systems, folder, sizes)
    return figures


def _lone(figures: Figures, systems: dict[str, KafkaClient], folder: str, sizes: Sizes) -> None:
    appends = {
        name: system.appender(b"v" * 100)
        for name, system in systems.items()
        if not name.startswith(SLOW)
    }
    with bare_floor(folder) as floor:
        for _ in range(sizes.lone):
            disk_s, trip_s = floor()
            figures["disk", "lone"].append(disk_s)
            figures["loopback", "lone"].append(trip_s)
            for name, append in appends.items():
                started = time.perf_counter()
                append()
                figures[name, "lone"].append(time.perf_counter() - started)
    ours = systems[OURS]
    assert isinstance(ours, LaminaByKafka)
    figures[OURS, "16 lone"].append(lone_producers(ours, sizes.seconds))
    figures["Flight", "16 lone"].append(lone_by_flight(ours, sizes.seconds))
    for name, system in systems.items():
        if name != OURS and not name.startswith(SLOW):
            figures[name, "16 lone"].append(lone_producers(system, sizes.seconds))


def named(kind: type[KafkaClient], durability: str) -> str:
    """How a broker is called in the table: with its durability where it has two."""
    return (
        kind.name
        if len(kind.durabilities) == 1 or kind.name == OURS
        else (f"{kind.name}, {durability}")
    )


@contextlib.contextmanager
def running(folder: str, only: str, console: Console) -> Iterator[dict[str, KafkaClient]]:
    """Starts what is installed, and ends it."""
    systems: dict[str, KafkaClient] = {}
    with contextlib.ExitStack() as closing:
        for number, (kind, durability) in enumerate(BROKERS):
            name = named(kind, durability)
            if only and kind.name != OURS and only.lower() not in name.lower():
                continue
            why = kind.missing()
            if why is None:
                system = kind(os.path.join(folder, str(number)), durability)
                closing.callback(system.stop)
                try:
                    system.start()
                except Exception as error:
                    why = f"it did not start: {error!r:.200}"
            if why is not None:
                console.print(f"not run: {name}: {why}")
                continue
            systems[name] = system
        yield systems


def bars(figures: Figures) -> list[Bar]:
    """Holds the medians against what is wanted."""
    middle = {key: statistics.median(found) for key, found in figures.items()}
    durable = {named(kind, each) for kind, each in BROKERS if each == FSYNC} - {OURS}
    found = []
    for size in VALUE_BYTES:
        key = f"produce {size}"
        rivals = [middle[name, key] for name in durable if (name, key) in middle]
        label = size.replace(" ", "")
        if (CEILING, key) in middle:
            of_mock = middle[OURS, key] / middle[CEILING, key]
            found.append(Bar(f"produce-{label}-of-mock", of_mock, 0.9))
        if rivals:
            found.append(Bar(f"produce-{label}-of-best", middle[OURS, key] / max(rivals), 1.0))
        key = f"consume {size}"
        if (CEILING, key) in middle:
            of_mock = middle[OURS, key] / middle[CEILING, key]
            found.append(Bar(f"consume-{label}-of-mock", of_mock, 0.9))
    floor = middle["disk", "lone"] + middle["loopback", "lone"]
    found.append(Bar("lone-vs-disk-and-trip", middle[OURS, "lone"] / floor, 1.6, at_most=True))
    of_flight = middle[OURS, "16 lone"] / middle["Flight", "16 lone"]
    found.append(Bar("16-lone-of-flight", of_flight, 4.0))
    return found


def table_of(figures: Figures) -> Table:
    """Shows the medians."""
    columns = [f"{what} {size}" for size in VALUE_BYTES for what in ("produce", "consume")]
    table = Table(title="records/s; lone: median µs of a durable append; 16 lone: appends/s")
    for heading in ("", *columns, "lone µs", "16 lone/s"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in dict.fromkeys(name for name, _ in figures):
        cells = []
        for key in (*columns, "lone", "16 lone"):
            found = figures.get((name, key))
            scale = 1e6 if key == "lone" else 1
            cells.append(f"{statistics.median(found) * scale:,.0f}" if found else "–")
        table.add_row(name, *cells)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    parser.add_argument("--only", default="", help="Lamina, and what has this word in its name")
    parser.add_argument("--rounds", type=int, default=None)
    asked = parser.parse_args()
    sizes = QUICK if asked.quick else Sizes()
    if asked.rounds:
        sizes = replace(sizes, rounds=asked.rounds)
    console = Console(width=150)
    folder = tempfile.mkdtemp(prefix="lamina-bench-", dir=os.environ.get("BENCH_DIR"))
    try:
        with running(folder, asked.only, console) as systems:
            figures = measure(systems, folder, sizes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(table_of(figures))
    finish(bars(figures))


if __name__ == "__main__":
    main()
