"""Logs and queues in one process that are not Lamina: SQLite, persist-queue, litequeue."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from benchmarks.field.system import DEFAULT, FSYNC, IN_FLIGHT, System, needs_package


class Sqlite(System):
    """A table with a rowid in WAL mode; synchronous NORMAL, or FULL for fsync before ack."""

    name = "SQLite WAL"
    kind = "embedded"

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        return workload == "records" or (workload == "starts" and durability == FSYNC)

    @classmethod
    def version(cls) -> str:
        return f"{sqlite3.sqlite_version}, sqlite3"

    def start(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.database = self._opened()
        self.database.execute(
            "CREATE TABLE IF NOT EXISTS log"
            " (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, value BLOB NOT NULL)"
        )
        self.database.commit()

    def _opened(self) -> sqlite3.Connection:
        path = os.path.join(self.folder, "log.db")
        database = sqlite3.connect(path, timeout=60, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        level = "FULL" if self.durability == FSYNC else "NORMAL"
        database.execute(f"PRAGMA synchronous={level}")
        return database

    def stop(self) -> None:
        self.database.close()

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[list[tuple[bytes]]]:
        return [[(value,) for value in batch] for batch in values]

    def produce(self, values: Sequence[Sequence[tuple[bytes]]]) -> None:
        """As many batches share a transaction as others have under way."""
        for start in range(0, len(values), IN_FLIGHT):
            for batch in values[start : start + IN_FLIGHT]:
                self._insert(batch)
            self.database.commit()

    def produce_each(self, values: Sequence[Sequence[tuple[bytes]]]) -> None:
        for batch in values:
            self._insert(batch)
            self.database.commit()

    def _insert(self, rows: Sequence[tuple[bytes]]) -> None:
        now = time.time_ns() // 1_000_000
        self.database.executemany(f"INSERT INTO log (at, value) VALUES ({now}, ?)", rows)

    def append(self, value: bytes) -> None:
        now = time.time_ns() // 1_000_000
        self.database.execute("INSERT INTO log (at, value) VALUES (?, ?)", (now, value))
        self.database.commit()

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        """One connection and a lock: faster than a connection each, which wait by sleeping."""
        turn = threading.Lock()

        def append() -> None:
            with turn:
                self.append(value)

        return with_threads(producers, seconds, lambda: append)

    def chunks(self, count: int) -> Iterator[list[tuple[int, int, bytes]]]:
        cursor = self.database.execute("SELECT id, at, value FROM log ORDER BY id")
        while rows := cursor.fetchmany(10_000):
            yield rows

    def values(self, chunk: list[tuple[int, int, bytes]]) -> Sequence[bytes]:
        return [value for _, _, value in chunk]

    def seek(self, timestamp_ms: int) -> bytes:
        """Bisects by id, as times only rise: no index has to be kept up for it."""
        low, high = self.database.execute(
            "SELECT (SELECT min(id) FROM log), (SELECT max(id) FROM log)"
        ).fetchone()
        while low < high:
            middle = (low + high) // 2
            (at,) = self.database.execute("SELECT at FROM log WHERE id = ?", (middle,)).fetchone()
            if at < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        (value,) = self.database.execute("SELECT value FROM log WHERE id = ?", (low,)).fetchone()
        return bytes(value)


def with_threads(producers: int, seconds: float, make: Callable[[], Callable[[], object]]) -> float:
    """Appends a second of threads that each append and wait, over and over."""
    counts = [0] * producers
    appends = [make() for _ in range(producers)]
    deadline = time.perf_counter() + seconds

    def run(number: int) -> None:
        while time.perf_counter() < deadline:
            appends[number]()
            counts[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


class PersistQueue(System):
    """persist-queue's file queue; it fsyncs nothing that a setting could ask for."""

    name = "persist-queue"
    kind = "queue"
    reads_once = True
    durabilities = (DEFAULT,)

    @classmethod
    def missing(cls) -> str | None:
        return needs_package("persist-queue")

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("persist-queue")

    def start(self) -> None:
        import persistqueue

        self.queue = persistqueue.Queue(self.folder, autosave=True)

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        for batch in values:
            for value in batch:
                self.queue.put(value)

    def append(self, value: bytes) -> None:
        self.queue.put(value)

    def chunks(self, count: int) -> Iterator[list[bytes]]:
        for _ in range(count // 1000):
            yield [self.queue.get(timeout=10) for _ in range(1000)]


class LiteQueue(System):
    """litequeue: a queue in SQLite, WAL mode with synchronous NORMAL."""

    name = "litequeue"
    kind = "queue"
    reads_once = True
    durabilities = (DEFAULT,)

    @classmethod
    def missing(cls) -> str | None:
        return needs_package("litequeue")

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version("litequeue")

    def start(self) -> None:
        from litequeue import LiteQueue as Queue

        os.makedirs(self.folder, exist_ok=True)
        self.queue = Queue(os.path.join(self.folder, "queue.db"))

    def stop(self) -> None:
        self.queue.close()

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        for batch in values:
            for value in batch:
                self.queue.put(value.decode("latin-1"))

    def append(self, value: bytes) -> None:
        self.queue.put(value.decode("latin-1"))

    def chunks(self, count: int) -> Iterator[list[bytes]]:
        for _ in range(count // 1000):
            yield [self.queue.pop().data.encode("latin-1") for _ in range(1000)]


async def with_tasks(
    producers: int, seconds: float, append: Callable[[], Awaitable[object]]
) -> float:
    """Appends a second of tasks of one event loop that each append and wait, over and over."""
    deadline = time.perf_counter() + seconds
    count = 0

    async def produce() -> None:
        nonlocal count
        while time.perf_counter() < deadline:
            await append()
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(producers)))
    return count / (time.perf_counter() - started)
