"""`make bench-groups`: poll and ack, durable, beside two bare fdatasyncs and Redis Streams.

Everything is measured in one run. Bare: for each batch two writes of the bytes that our journal
writes for a poll and for an ack, each with its fdatasync. Redis: XREADGROUP and XACK with
`appendfsync always`, on a server of our own on loopback; skipped where redis-server is missing.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

try:
    import redis
except ImportError:
    redis = None
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar, finish
from lamina.formats.keratin import delta
from lamina.formats.keratin.delta import Event
from lamina.groups.state import State, events_of
from lamina.store.store import Store

VALUE = b"v" * 100
SECONDS = 1.0
ROUNDS = 3
BATCHES = (1, 100, 1000)
RECORDS = 400_000


def timed(step: Callable[[], int]) -> float:
    """Records per second of a step that returns how many it has done."""
    done = step()
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        done += step()
    return done / elapsed


def bare(folder: str, batch: int) -> Callable[[], int]:
    """Two writes and fdatasyncs for each batch, of the bytes that the journal writes."""
    marks = delta.encode(int(Event.MARK_INFLIGHT), np.arange(batch), 1, 1).tobytes()
    ack = delta.encode(int(Event.BUMP_ACKED_UNTIL), batch).tobytes()
    descriptor = os.open(os.path.join(folder, "bare"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    position = 0

    def step() -> int:
        nonlocal position
        for data in (marks, ack):
            os.pwrite(descriptor, data, position)
            os.fdatasync(descriptor)
            position += len(data)
        return batch

    return step


def ours(store: Store, batch: int) -> Callable[[], int]:
    group = store.group("t", f"by-{batch}")
    state = {"at": 0}

    def step() -> int:
        polled = group.poll(batch)
        if not polled.num_rows:
            store.reset_group("t", f"by-{batch}", to="earliest", execute=True)
            polled = group.poll(batch)
        group.ack(polled)
        state["at"] += polled.num_rows
        return polled.num_rows

    return step


@contextmanager
def redis_server(folder: str) -> Iterator[Any]:
    """A Redis of our own on a free port; None where it is not installed."""
    program = shutil.which("redis-server")
    if program is None or redis is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.path.join(folder, "redis")
    os.mkdir(path)
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", path, "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    try:
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        yield client
    finally:
        client.close()
        server.terminate()
        server.wait()


def of_redis(client: Any, batch: int) -> Callable[[], int]:
    name = f"by-{batch}"
    client.xgroup_create("t", name, id="0", mkstream=True)

    def step() -> int:
        found = client.xreadgroup(name, "c", {"t": ">"}, count=batch)
        if not found:
            client.xgroup_setid("t", name, "0")
            found = client.xreadgroup(name, "c", {"t": ">"}, count=batch)
        entries = found[0][1]
        client.xack("t", name, *[entry for entry, _ in entries])
        return len(entries)

    return step


def random_acks() -> float:
    """The peak MiB of a state in which 10 M offsets are acked in random order within 100 k."""
    drawn = np.random.default_rng(1)
    state = State().apply(events_of(Event.ACK, 0))
    tracemalloc.start()
    for start in range(0, 10_000_000, 100_000):
        order = start + drawn.permutation(100_000)
        for first in range(0, 100_000, 1000):
            state = state.apply(events_of(Event.ACK, np.sort(order[first : first + 1000])))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert state.acked_until == 10_000_000
    return peak / (1 << 20)


def fill(store: Store, client: Any) -> None:
    store.create_topic("t")
    for _ in range(RECORDS // 10_000):
        store.append("t", [VALUE] * 10_000, acks=1)
    store.flush()
    if client is not None:
        for _ in range(100):
            pipe = client.pipeline(transaction=True)
            for _ in range(1000):
                pipe.xadd("t", {"v": VALUE})
            pipe.execute()


def main() -> None:
    console = Console(width=120)
    folder = tempfile.mkdtemp(prefix="lamina-bench-", dir=os.environ.get("BENCH_DIR"))
    bars: list[Bar] = []
    table = Table(title="durable poll + ack, records/s, one consumer")
    for heading in ("batch", "lamina", "two bare fdatasyncs", "share", "redis always", "times"):
        table.add_column(heading, justify="right")
    try:
        with Store(os.path.join(folder, "data")) as store, redis_server(folder) as client:
            fill(store, client)
            for batch in BATCHES:
                steps = {"lamina": ours(store, batch), "bare": bare(folder, batch)}
                if client is not None:
                    steps["redis"] = of_redis(client, batch)
                best = dict.fromkeys(steps, 0.0)
                for _ in range(ROUNDS):
                    for name, step in steps.items():
                        best[name] = max(best[name], timed(step))
                share = best["lamina"] / best["bare"]
                row = [str(batch), f"{best['lamina']:,.0f}", f"{best['bare']:,.0f}", f"{share:.0%}"]
                if client is not None:
                    times = best["lamina"] / best["redis"]
                    row += [f"{best['redis']:,.0f}", f"{times:.1f}"]
                    if batch == 100:
                        bars.append(Bar("groups-100-vs-redis-always", times, 3))
                table.add_row(*row)
                if batch == 1000:
                    bars.append(Bar("groups-1000-of-two-bare-fdatasyncs", share, 0.5))
            if client is None:
                console.print("redis-server or its Python client is missing: that bar is skipped")
        console.print(table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peak = random_acks()
    console.print(f"10 M acks in random order within 100 k: {peak:.1f} MiB at most")
    bars.append(Bar("groups-random-acks-mib", peak, 50, at_most=True))
    finish(bars)


if __name__ == "__main__":
    sys.exit(main())
