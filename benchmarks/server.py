"""`make bench-server`: the served log beside the embedded one, bare Flight and the bare disk.

Everything is compared with a measurement of the same run: the embedded store with as many
producers; a Flight server that stores nothing, in each direction; a bare write and fdatasync plus
an empty round trip on an open Flight stream. Servers are processes of their own.

Durable produce cannot be faster than the disk takes its bytes, so the same bytes are also written
and synced bare, a batch at a time: where the disk alone is below half of Flight, half of Flight
cannot be reached by anything durable, and the bar `of-disk` says how close it came to what can.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import flight
from rich.console import Console
from rich.table import Table

import lamina
from benchmarks.bars import Bar, finish

VALUE = b"v" * 100
SECONDS = float(os.environ.get("BENCH_SECONDS", "1.0"))
ROUNDS = 3
SHAPES = [(clients, count) for clients in (1, 16) for count in (1, 100, 10_000)]
LARGE = 10_000
RECORD_BYTES = 132
"""What a record of 100 B is in the log, about."""


def batch_of(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([VALUE] * count, pa.binary())], ["value"])


# ---------------------------------------------------------------- what Flight allows


class BareFlight(flight.FlightServerBase):  # type: ignore[misc]
    """Answers each batch and stores nothing; sends the same batch again and again."""

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        while True:
            try:
                reader.read_chunk()
            except StopIteration:
                return
            writer.write_metadata(b"ok")

    def do_get(self, context: Any, ticket: Any) -> Any:
        batch = batch_of(LARGE)
        count = int(ticket.ticket)
        return flight.GeneratorStream(batch.schema, (batch for _ in range(count)))


def serve_bare() -> None:
    server = BareFlight("grpc://127.0.0.1:0")
    print(f"ready grpc://127.0.0.1:{server.port}", flush=True)
    server.serve()


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[0] == "ready"
    return process, line[1]


def bare_stream(url: str) -> Callable[[pa.RecordBatch | None], None]:
    client = flight.connect(url)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"append"))
    writer.begin(batch_of(1).schema)

    def send(batch: pa.RecordBatch | None) -> None:
        if batch is None:
            writer.write_metadata(b"x")
        else:
            writer.write_with_metadata(batch, b"x")
        reader.read_chunk()

    return send


# ---------------------------------------------------------------- producing and consuming


def rate(actions: list[Callable[[], object]], count: int) -> float:
    """Records per second of callers in threads, each waiting for its answer."""
    done = [0] * len(actions)
    stop = threading.Event()

    def run(number: int) -> None:
        while not stop.is_set():
            actions[number]()
            done[number] += count

    for action in actions:
        action()
    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(actions))]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)


def bare_disk(folder: str, count: int) -> Callable[[], object]:
    """Writes the bytes of a batch behind each other and syncs each, without a log."""
    descriptor = os.open(os.path.join(folder, "bytes"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    data, position = os.urandom(count * RECORD_BYTES), 0

    def write() -> None:
        nonlocal position
        os.pwrite(descriptor, data, position)
        os.fdatasync(descriptor)
        position += len(data)

    return write


def appender(store: Any, count: int) -> Callable[[], object]:
    records: Any = VALUE if count == 1 else batch_of(count)
    return lambda: store.append("t", records, partition=0)


def fresh(store: Any) -> None:
    if "t" in store.topics():
        store.delete_topic("t")
    store.create_topic("t")


def consumed(store: Any) -> float:
    started = time.perf_counter()
    rows = sum(batch.num_rows for batch in store.scan("t", max_bytes=4 << 20))
    return rows / (time.perf_counter() - started)


def produce_figures(folder: str, url: str, bare: str) -> tuple[list[list[str]], dict[str, float]]:
    rows, best = [], {}
    embedded = lamina.open(os.path.join(folder, "embedded"))
    for clients, count in SHAPES:
        stores = [lamina.connect(url) for _ in range(clients)]
        plain = [lamina.connect(url, idempotent=False) for _ in range(clients)]
        figures = dict.fromkeys(("embedded", "served", "plain", "flight", "disk"), 0.0)
        for _ in range(ROUNDS if count == LARGE else 1):
            fresh(embedded)
            fresh(stores[0])
            sends = [bare_stream(bare) for _ in range(clients)]
            batch = batch_of(count)
            trials = {
                "embedded": [appender(embedded, count)] * clients,
                "served": [appender(store, count) for store in stores],
                "plain": [appender(store, count) for store in plain],
                "flight": [functools.partial(send, batch) for send in sends],
                "disk": [bare_disk(folder, count)],
            }
            for name, actions in trials.items():
                figures[name] = max(figures[name], rate(actions, count))
        rows.append([str(clients), str(count), *(f"{figures[name]:,.0f}" for name in figures)])
        best |= {f"{name}-{clients}x{count}": value for name, value in figures.items()}
        for store in (*stores, *plain):
            store.close()
    embedded.close()
    return rows, best


def consume_figures(folder: str, url: str, bare: str) -> dict[str, float]:
    """Records per second of a whole scan: embedded, served, and of bare Flight."""
    best = dict.fromkeys(("embedded", "served", "flight"), 0.0)
    batches = 200
    with lamina.open(os.path.join(folder, "embedded")) as embedded, lamina.connect(url) as served:
        for store in (embedded, served):
            fresh(store)
            for _ in range(batches):
                store.append("t", batch_of(LARGE), partition=0, acks=1)
            store.flush()
        client = flight.connect(bare)
        for _ in range(ROUNDS):
            best["embedded"] = max(best["embedded"], consumed(embedded))
            best["served"] = max(best["served"], consumed(served))
            started = time.perf_counter()
            reader = client.do_get(flight.Ticket(b"%d" % batches))
            total = sum(chunk.data.num_rows for chunk in reader)
            best["flight"] = max(best["flight"], total / (time.perf_counter() - started))
    return best


def lone_figures(folder: str, url: str, bare: str) -> dict[str, list[float]]:
    """Seconds of each lone call, interleaved: served appends, a bare disk, an empty round trip."""
    times: dict[str, list[float]] = {name: [] for name in ("append", "plain", "disk", "trip")}
    descriptor = os.open(os.path.join(folder, "bare"), os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, bytes(8 << 20), 0)
    os.fdatasync(descriptor)
    trip = bare_stream(bare)
    with lamina.connect(url) as stamped, lamina.connect(url, idempotent=False) as plain:
        fresh(stamped)
        for number in range(700):
            calls: dict[str, Callable[[], object]] = {
                "append": lambda: stamped.append("t", VALUE, partition=0),
                "plain": lambda: plain.append("t", VALUE, partition=0),
                "disk": lambda at=number * 140: (
                    os.pwrite(descriptor, VALUE, at),
                    os.fdatasync(descriptor),
                ),
                "trip": lambda: trip(None),
            }
            for name, call in calls.items():
                started = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - started)
    os.close(descriptor)
    return {name: sorted(found[50:]) for name, found in times.items()}


def main() -> None:
    console = Console(width=120)
    folder = tempfile.mkdtemp(prefix="lamina-bench-", dir=os.environ.get("BENCH_DIR"))
    data = os.path.join(folder, "served")
    ports = ["--set=flight.port=0", "--set=http.port=0", "--set=kafka.port=-1", "--quiet"]
    server, url = start("-m", "lamina.cli.main", "serve", "--data", data, *ports)
    bare_server, bare = start("-c", "from benchmarks.server import serve_bare; serve_bare()")
    try:
        rows, best = produce_figures(folder, url, bare)
        table = Table(title="durable records/s; plain: without idempotence; Flight: without a log")
        for heading in ("clients", "records", "embedded", "served", "plain", "Flight", "bare disk"):
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        reading = consume_figures(folder, url, bare)
        console.print(
            "scan: " + ", ".join(f"{name} {each:,.0f}/s" for name, each in reading.items())
        )
        lone = lone_figures(folder, url, bare)
        p50 = {name: statistics.median(times) for name, times in lone.items()}
        for name, times in lone.items():
            p99 = times[int(len(times) * 0.99)]
            console.print(f"lone {name}: p50 {p50[name] * 1e6:.0f} µs, p99 {p99 * 1e6:.0f} µs")
    finally:
        for process in (server, bare_server):
            process.send_signal(signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    floor = p50["disk"] + p50["trip"]
    bars = []
    for clients in (1, 16):
        shape = f"{clients}x{LARGE}"
        served = best[f"served-{shape}"]
        bars.append(Bar(f"produce-{shape}-of-embedded", served / best[f"embedded-{shape}"], 0.5))
        bars.append(Bar(f"produce-{shape}-of-flight", served / best[f"flight-{shape}"], 0.5))
        bars.append(Bar(f"produce-{shape}-of-disk", served / best[f"disk-{shape}"], 0.75))
    bars.append(Bar("consume-of-flight", reading["served"] / reading["flight"], 0.5))
    bars.append(Bar("lone-plain-vs-disk-and-trip", p50["plain"] / floor, 1.3, at_most=True))
    bars.append(Bar("lone-idempotent-vs-disk-and-trip", p50["append"] / floor, 1.3, at_most=True))
    finish(bars)


if __name__ == "__main__":
    main()
