"""`make bench-log`: the partition log beside what the disk and the kernels allow, in one run.

Everything is compared with a measurement of the same run: a bare loop that writes and fdatasyncs
groups of the same size into a file prepared the same way; the scan kernel on the same bytes in
memory; opening a log after a kill at 1, 4 and 16 times the data. The first durable record on a
machine that has compiled no kernel is the one figure in seconds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar, finish
from lamina import records
from lamina.formats.log_format import CODECS
from lamina.formats.scan import Limit
from lamina.store.store import Store

VALUE = b"v" * 100
SECONDS = 1.0
ROUNDS = 5
FORMATS = ("keratin", "frame")


def batch_of(count: int, format_name: str) -> pa.RecordBatch:
    table = pa.table({"value": pa.array([VALUE] * count, pa.binary())})
    return records.prepare(table, format_name, now_ms=1_700_000_000_000)


# ---------------------------------------------------------------- what the disk allows


def bare_groups(folder: str, group_bytes: int, *, prepared: bool) -> float:
    """Groups per second of a loop that writes and fdatasyncs, and does nothing else."""
    path = os.path.join(folder, "bare")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    data = os.urandom(group_bytes)
    total = 64 << 20
    if prepared:
        os.pwrite(descriptor, bytes(total), 0)
        os.fdatasync(descriptor)
    position = groups = 0
    started = time.perf_counter()
    while time.perf_counter() - started < SECONDS / 2 and position + group_bytes <= total * 8:
        os.pwrite(descriptor, data, position)
        os.fdatasync(descriptor)
        position += group_bytes
        groups += 1
        if prepared and position + group_bytes > total:
            position = 0
    elapsed = time.perf_counter() - started
    os.close(descriptor)
    os.unlink(path)
    return groups / elapsed


def bare_hand_over(folder: str, producers: int, group_bytes: int) -> float:
    """Requests per second of asyncio producers with a bare write + fdatasync behind them.

    The same as `with_asyncio` without a log: a future for each request, one thread that writes a
    group as soon as everybody is there. What is lost here against `bare_groups` is the price of
    two hand-overs between threads and of the event loop itself.
    """
    path = os.path.join(folder, "handed")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    data = os.urandom(group_bytes)

    async def run() -> float:
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        position = done = 0

        def resolve(futures: list[asyncio.Future[None]]) -> None:
            for future in futures:
                future.set_result(None)

        def commit(futures: list[asyncio.Future[None]]) -> None:
            nonlocal position
            os.pwrite(descriptor, data, position)
            os.fdatasync(descriptor)
            position += group_bytes
            loop.call_soon_threadsafe(resolve, futures)

        async def produce() -> None:
            nonlocal done, waiting
            while time.perf_counter() < deadline:
                future = loop.create_future()
                waiting.append(future)
                if len(waiting) == producers:
                    futures, waiting = waiting, []
                    pool.submit(commit, futures)
                await future
                done += 1

        with ThreadPoolExecutor(1) as pool:
            started = time.perf_counter()
            deadline = started + SECONDS / 2
            tasks = [asyncio.create_task(produce()) for _ in range(producers)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            elapsed = time.perf_counter() - started
            for task in tasks:
                task.cancel()
        return done / elapsed

    try:
        return asyncio.run(run())
    finally:
        os.close(descriptor)
        os.unlink(path)


# ---------------------------------------------------------------- producers


def with_threads(store: Store, topic: str, producers: int, request: object) -> float:
    """Requests per second of producers in threads, each waiting for its answer."""
    counts = [0] * producers
    stop = threading.Event()

    def produce(number: int) -> None:
        while not stop.is_set():
            store.append(topic, request, partition=0)
            counts[number] += 1

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def with_asyncio(store: Store, topic: str, producers: int, request: object) -> float:
    """Requests per second of producers that are tasks of one event loop."""

    async def run() -> float:
        deadline = time.perf_counter() + SECONDS
        count = 0

        async def produce() -> None:
            nonlocal count
            while time.perf_counter() < deadline:
                await store.append_async(topic, request, partition=0)
                count += 1

        started = time.perf_counter()
        await asyncio.gather(*(produce() for _ in range(producers)))
        return count / (time.perf_counter() - started)

    return asyncio.run(run())


def lone_latency(folder: str, format_name: str) -> tuple[float, float]:
    """Median seconds of a lone durable append, and of a bare write+fdatasync, interleaved."""
    store = Store(os.path.join(folder, f"lone-{format_name}"))
    store.create_topic("lone", format=format_name)
    encoded = CODECS[format_name].encode(batch_of(1, format_name), 0)[0].tobytes()
    path = os.path.join(folder, "bare-lone")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.pwrite(descriptor, bytes(8 << 20), 0)
    os.fdatasync(descriptor)
    ours, bare = [], []
    for number in range(1500):
        started = time.perf_counter()
        store.append("lone", VALUE)
        middle = time.perf_counter()
        os.pwrite(descriptor, encoded, number * len(encoded))
        os.fdatasync(descriptor)
        bare.append(time.perf_counter() - middle)
        ours.append(middle - started)
    os.close(descriptor)
    store.close()
    return statistics.median(ours[100:]), statistics.median(bare[100:])


def produce_figures(folder: str, format_name: str) -> tuple[list[list[str]], list[Bar]]:
    rows, ratios = [], {}
    for producers, count in ((1, 1), (16, 1), (64, 1), (1, 100), (16, 100), (64, 100)):
        batch = batch_of(count, format_name)
        encoded_bytes = len(CODECS[format_name].encode(batch, 0)[0])
        request: object = VALUE if count == 1 else batch
        best: dict[str, float] = {"threads": 0, "asyncio": 0, "handed": 0, "bare": 0}
        for _ in range(ROUNDS if producers == 16 else 2):
            for name, run in (("threads", with_threads), ("asyncio", with_asyncio)):
                path = os.path.join(folder, "produce")
                with Store(path) as store:
                    store.create_topic("t", format=format_name)
                    best[name] = max(best[name], run(store, "t", producers, request))
                shutil.rmtree(path)
            handed = bare_hand_over(folder, producers, producers * encoded_bytes)
            best["handed"] = max(best["handed"], handed)
            allowed = bare_groups(folder, producers * encoded_bytes, prepared=False) * producers
            best["bare"] = max(best["bare"], allowed)
        rows.append(
            [format_name, str(producers), str(count)]
            + [f"{best[name] * count:,.0f}" for name in best]
            + [f"{max(best['threads'], best['asyncio']) / best['bare']:.0%}"]
        )
        ratios[producers, count] = max(best["threads"], best["asyncio"]) / best["bare"]
    bars = [
        Bar(f"{format_name}-16x100-of-bare-groups", ratios[16, 100], 0.7),
        Bar(f"{format_name}-16x1-of-bare-groups", ratios[16, 1], 0.6),
    ]
    return rows, bars


# ---------------------------------------------------------------- reading


def scan_share(folder: str, format_name: str) -> tuple[float, float]:
    """Records per second of a full scan into Arrow, and of the kernels on the bytes in memory."""
    path = os.path.join(folder, f"scan-{format_name}")
    codec = CODECS[format_name]
    batch = batch_of(10_000, format_name)
    with Store(path) as store:
        store.create_topic("t", format=format_name)
        for _ in range(200):
            store.append("t", batch, acks=1)
        store.flush()
        encoded = codec.encode(batch, 0)[0]
        limit = Limit(max_records=1 << 16, max_bytes=1 << 20)
        ours, kernels = 0.0, 0.0
        for _ in range(ROUNDS):
            started = time.perf_counter()
            rows = sum(batch.num_rows for batch in store.scan("t"))
            ours = max(ours, rows / (time.perf_counter() - started))
            assert rows == 2_000_000
            started = time.perf_counter()
            for _ in range(200):
                position = 0
                while position < len(encoded):
                    found = codec.scan(encoded, position, expected_offset=None, limit=limit)
                    codec.decode(encoded, found)
                    position = found.end
            kernels = max(kernels, rows / (time.perf_counter() - started))
    shutil.rmtree(path)
    return ours, kernels


# ---------------------------------------------------------------- opening after a kill

_WRITER = """
import sys, os, signal
from benchmarks.log import batch_of
from lamina.store.store import Store
path, format_name, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store(path)
store.create_topic("t", format=format_name)
batch = batch_of(10_000, format_name)
for _ in range(records // 10_000):
    store.append("t", batch, acks=1)
store.flush()
for _ in range(20):
    store.append("t", batch_of(100, format_name))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def open_after_kill(folder: str, format_name: str, count: int) -> float:
    """Median seconds to open a log of so many records whose writer was killed."""
    path = os.path.join(folder, f"killed-{format_name}-{count}")
    arguments = [sys.executable, "-c", _WRITER, path, format_name, str(count)]
    killed = subprocess.run(arguments, check=False, stdout=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL
    assert killed.stdout == b"ready\n"
    times = []
    for _ in range(5):
        copy = path + "-copy"
        subprocess.run(["cp", "-r", path, copy], check=True)
        os.sync()  # or the first fsync of the open would pay for the copy
        started = time.perf_counter()
        store = Store(copy)
        times.append(time.perf_counter() - started)
        assert store.latest_offset("t") == count + 2000
        store.close()
        shutil.rmtree(copy)
    shutil.rmtree(path)
    return statistics.median(times)


NEW_PROGRAM = """
import sys, time
started = time.perf_counter()
import lamina
with lamina.open(sys.argv[1]) as store:
    store.create_topic("t", format=sys.argv[2])
    store.append("t", b"first")
    print(time.perf_counter() - started)
"""


def first_ack_on_a_new_machine(folder: str, format_name: str) -> float:
    """Seconds from `import lamina` to the first durable record where no kernel is compiled."""
    new = tempfile.mkdtemp(dir=folder)
    nowhere = dict.fromkeys(
        ("HOME", "XDG_CACHE_HOME", "TMPDIR", "LAMINA_KERNEL_CACHE", "NUMBA_CACHE_DIR"), new
    )
    command = [sys.executable, "-c", NEW_PROGRAM, os.path.join(new, "data"), format_name]
    ran = subprocess.run(
        command, env=os.environ | nowhere, check=True, capture_output=True, text=True
    )
    return float(ran.stdout)


def main() -> None:
    console = Console(width=120)
    folder = tempfile.mkdtemp(prefix="lamina-bench-", dir=os.environ.get("BENCH_DIR"))
    bars: list[Bar] = []
    produce = Table(title="durable records/s; bare: groups of that size, +loop: by asyncio")
    headings = "format producers records threads asyncio bare+loop bare best/bare"
    for heading in headings.split():
        produce.add_column(heading, justify="right")
    try:
        for format_name in FORMATS:
            rows, more = produce_figures(folder, format_name)
            for row in rows:
                produce.add_row(*row)
            bars += more
        console.print(produce)
        for format_name in FORMATS:
            ours, bare = lone_latency(folder, format_name)
            console.print(f"{format_name}: lone {ours * 1e6:.0f} µs, bare {bare * 1e6:.0f} µs")
            bars.append(Bar(f"{format_name}-lone-vs-bare", ours / bare, 1.15, at_most=True))
        for format_name in FORMATS:
            ours, kernels = scan_share(folder, format_name)
            console.print(f"{format_name}: scan {ours:,.0f}/s, kernels alone {kernels:,.0f}/s")
            bars.append(Bar(f"{format_name}-scan-of-kernel", ours / kernels, 0.4))
        for format_name in FORMATS:
            times = [open_after_kill(folder, format_name, n * 1_000_000) for n in (1, 4, 16)]
            shown = ", ".join(f"{seconds * 1000:.1f} ms" for seconds in times)
            console.print(f"{format_name}: open after kill with 1, 4, 16 M records: {shown}")
            bars.append(Bar(f"{format_name}-open-16x-vs-1x", times[2] / times[0], 2, at_most=True))
        for format_name in (*FORMATS, "wal"):
            seconds = statistics.median(
                first_ack_on_a_new_machine(folder, format_name) for _ in range(3)
            )
            console.print(f"{format_name}: first durable record on a new machine {seconds:.2f} s")
            bars.append(Bar(f"{format_name}-first-ack-new-machine", seconds, 2, at_most=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    finish(bars)


if __name__ == "__main__":
    main()
