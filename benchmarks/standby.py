"""`make bench-standby`: what a cluster costs: taking over, acks=archived, and the bill.

- The time from the takeover's first request to a store that is open, at 1, 4 and 16 times the data:
  archived records are mounted and not copied, so it must not grow with them.
- `acks="archived"` beside a bare conditional PUT of as many bytes to the same S3 server, in turn.
- Requests of two servers, at rest and under load, counted; an hour of that at a price list.

`--short` takes fewer rounds, to see that it works.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.support.s3_servers import S3Server, moto_server

from benchmarks.bars import Bar, finish
from lamina.cluster.lease import Identity, Watch
from lamina.cluster.steps import run
from lamina.cluster.tails import take_over
from lamina.errors import NotPrimary
from lamina.server.clustered import replica_of
from lamina.storage.files import LocalFiles, boot_clock_ms
from lamina.storage.objects import ObjectInfo, Objects, Stored, open_objects
from lamina.store import collecting
from lamina.store.cluster_life import Charter, Membership, Replica
from lamina.store.seat import Seat
from lamina.store.store import Store

TOPIC = "orders"
TTL_MS = 600_000
"""Longer than a measurement takes: nobody renews what is held here."""
SEGMENT_BYTES = 1 << 20
SIZES = (1, 4, 16)
RECORDS = 4_000
"""Of a kilobyte each, in the smallest of the stores: four segments."""
PUT_DOLLARS, GET_DOLLARS = 5e-6, 0.4e-6
"""Per request, as Amazon lists S3 Standard in us-east-1; listing costs what a PUT does."""


# ---------------------------------------------------------------- taking over


def opened(data: Path, objects: Objects) -> tuple[Store, float]:
    """Takes the cluster over on a directory; returns the store, and the seconds that it took."""
    started = time.perf_counter()
    watch, me = Watch(), Identity(uuid.uuid4().hex, "grpc://bench", TTL_MS)
    run(objects, watch.look(boot_clock_ms))
    taken = run(objects, take_over(watch, me, boot_clock_ms))
    seat = Seat(taken, boot_clock_ms, tail_ms=3_600_000)  # what is shipped, is at our word
    store = Store(str(data), archive=objects, seat=seat)
    return store, time.perf_counter() - started


def fill(store: Store, objects: Objects, records: int) -> None:
    bytes_ = {"segment.bytes": SEGMENT_BYTES, "archive.object.bytes": SEGMENT_BYTES}
    store.create_topic(TOPIC, partitions=4, config={**bytes_, "archive.delay.ms": 0})
    luck = random.Random(1)
    for first in range(0, records, 500):
        values = [luck.randbytes(1024) for _ in range(500)]
        store.append(TOPIC, values, partition=first // 500 % 4)
    for partition in range(4):
        store.roll(TOPIC, partition)
    assert store.seat is not None
    assert store.seat.shipper is not None
    store.seat.shipper.ship()  # only what a window holds is archived
    store.archive()
    for _ in range(3):  # a full window, and those before it go
        store.seat.shipper.ship()
        store.seat.shipper.collector.collect(objects)


def bench_takeover(console: Console, server: S3Server, folder: Path, rounds: int) -> Bar:
    kept, collecting.BYTES_MAX = collecting.BYTES_MAX, SEGMENT_BYTES  # small beside the data
    try:
        return _bench_takeover(console, server, folder, rounds)
    finally:
        collecting.BYTES_MAX = kept


def _bench_takeover(console: Console, server: S3Server, folder: Path, rounds: int) -> Bar:
    archives = {size: server.objects(f"takeover-{size}") for size in SIZES}
    table = Table("times the data", "archived bytes", "objects", "takeover, ms (median)")
    shown: dict[int, list[str]] = {}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for size, objects in archives.items():
        store, _ = opened(folder / f"first-{size}", objects)
        fill(store, objects, RECORDS * size)
        found = store.tier_status()
        sums = sum(each.size_bytes for each in found), sum(each.objects for each in found)
        shown[size] = [f"{each:,}" for each in sums]
        store.close()
    for number in range(rounds):
        for size, objects in archives.items():
            store, seconds = opened(folder / f"next-{size}-{number}", objects)
            times[size].append(seconds)
            store.close()
    medians = {size: statistics.median(each) for size, each in times.items()}
    for size in SIZES:
        table.add_row(str(size), *shown[size], f"{medians[size] * 1000:,.0f}")
    console.print(table)
    ratio = medians[SIZES[-1]] / medians[SIZES[0]]
    return Bar("takeover at 16 times the data", ratio, 1.3, at_most=True)


# ---------------------------------------------------------------- acks=archived


def bench_latency(console: Console, server: S3Server, folder: Path, rounds: int) -> Bar:
    objects = server.objects("latency")
    store, _ = opened(folder / "latency", objects)
    store.create_topic(TOPIC)
    value = bytes(100)
    times: dict[str, list[float]] = {"acks=archived": [], "conditional PUT": [], "GET": []}
    store.append(TOPIC, value, partition=0, acks="archived")
    tail = max((info for info in objects.list("tail")), key=lambda info: info.key)
    body = objects.read(tail.key).data

    def timed(name: str, call: Callable[[], Any]) -> None:
        started = time.perf_counter()
        call()
        times[name].append(time.perf_counter() - started)

    for number in range(rounds):
        timed("acks=archived", lambda: store.append(TOPIC, value, partition=0, acks="archived"))
        key = f"bare/{number}"
        timed("conditional PUT", lambda: objects.create(key, body))  # noqa: B023
        timed("GET", lambda: objects.read(key))  # noqa: B023
    store.close()
    table = Table("one record of 100 bytes", "p50, ms", "p99, ms")
    for name, found in times.items():
        found.sort()
        p99 = found[int(len(found) * 0.99)]
        table.add_row(name, f"{statistics.median(found) * 1000:.2f}", f"{p99 * 1000:.2f}")
    console.print(table)
    ratio = statistics.median(times["acks=archived"]) / statistics.median(times["conditional PUT"])
    return Bar("acks=archived beside a conditional PUT", ratio, 1.5, at_most=True)


# ---------------------------------------------------------------- the bill


class Counted:
    """An object store that counts what it is asked, as a price list has it."""

    def __init__(self, objects: Objects) -> None:
        self.url = objects.url
        self._objects = objects
        self.asked: Counter[str] = Counter()

    def read(self, key: str) -> Stored:
        self.asked["GET"] += 1
        return self._objects.read(key)

    def read_range(self, key: str, start: int, end: int) -> Any:
        self.asked["GET"] += 1
        return self._objects.read_range(key, start, end)

    def size(self, key: str) -> int:
        self.asked["GET"] += 1
        return self._objects.size(key)

    def create(self, key: str, data: Any) -> None:
        self.asked["PUT"] += 1
        self._objects.create(key, data)

    def replace(self, key: str, data: bytes, etag: str | None) -> str:
        self.asked["PUT"] += 1
        return self._objects.replace(key, data, etag)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.asked["PUT"] += 1
        return self._objects.list(prefix)

    def delete(self, key: str) -> None:
        self._objects.delete(key)


class Doors:
    """Stands for a server's doors."""

    store: Store | None = None

    def serve(self, store: Store) -> None:
        self.store = store

    def drain(self) -> None:
        return

    def retract(self) -> None:
        self.store = None

    def follow(self, replica: Replica | None) -> None:
        return


def bench_bill(console: Console, folder: Path, seconds: float) -> None:
    objects = Counted(open_objects("memory://"))
    table = Table("two servers, ttl 15 s, tail.ms 1000", "PUT/h", "GET/h", "US-$ a month")
    doors = Doors()
    members: list[Membership] = []
    for name in ("a", "b"):
        data = str(folder / f"bill-{name}")
        charter = Charter("bench", f"grpc://{name}:1", data, objects)

        def opening(seat: Seat, data: str = data) -> Store:
            return Store(data, archive=objects, seat=seat)

        def refusal(place: int = len(members)) -> NotPrimary | None:
            return members[place].refusal()

        member = Membership(
            *(charter, doors if name == "a" else Doors(), LocalFiles()),
            opening=opening,
            following=lambda objects, refusal=refusal: replica_of(objects, refusal),
        )
        members.append(member)
        member.start()
    assert doors.store is not None
    doors.store.create_topic(TOPIC)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            assert doors.store is not None
            doors.store.append(TOPIC, [bytes(100)] * 10, partition=0)
            time.sleep(0.01)

    for what in ("at rest", "appends with acks=all, without end"):
        thread = threading.Thread(target=load)
        if what != "at rest":
            thread.start()
        time.sleep(2)
        objects.asked.clear()
        time.sleep(seconds)
        an_hour = {name: objects.asked[name] * 3600 / seconds for name in ("PUT", "GET")}
        dollars = (an_hour["PUT"] * PUT_DOLLARS + an_hour["GET"] * GET_DOLLARS) * 730
        table.add_row(what, f"{an_hour['PUT']:,.0f}", f"{an_hour['GET']:,.0f}", f"{dollars:.2f}")
        if what != "at rest":
            stop.set()
            thread.join()
    for member in members:
        member.stop()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer rounds, to see that it works")
    short = parser.parse_args().short
    console = Console()
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as name:
        folder = Path(name)
        server = moto_server(folder)
        try:
            bars = [
                bench_takeover(console, server, folder, 3 if short else 15),
                bench_latency(console, server, folder, 50 if short else 1000),
            ]
            bench_bill(console, folder, 15 if short else 60)
        finally:
            server.kill()
    finish(bars)


if __name__ == "__main__":
    main()
