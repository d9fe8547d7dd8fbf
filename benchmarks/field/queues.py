"""Logs and queues in one process that are not Lamina: SQLite, persist-queue, litequeue."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.field.system import DEFAULT, FSYNC, System, needs_package


class Sqlite(System):
    """A table with a rowid in WAL mode; synchronous NORMAL, or FULL for fsync before ack."""

    name = "SQLite WAL"
    kind = "embedded"

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

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        for batch in values:
            now = time.time_ns() // 1_000_000
            self.database.executemany(
                "INSERT INTO log (at, value) VALUES (?, ?)", [(now, value) for value in batch]
            )
            self.database.commit()

    produce_each = produce

    def append(self, value: bytes) -> None:
        now = time.time_ns() // 1_000_000
        self.database.execute("INSERT INTO log (at, value) VALUES (?, ?)", (now, value))
        self.database.commit()

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        return with_threads(producers, seconds, lambda: _SqliteProducer(self._opened(), value))

    def read(self, count: int) -> int:
        cursor = self.database.execute("SELECT id, at, value FROM log ORDER BY id")
        cursor.arraysize = 10_000
        found = 0
        while rows := cursor.fetchmany():
            found += len(rows)
        return found

    def seek(self, timestamp_ms: int) -> None:
        self.database.execute(
            "SELECT id, value FROM log WHERE at >= ? ORDER BY id LIMIT 1", (timestamp_ms,)
        ).fetchone()


class _SqliteProducer:
    def __init__(self, database: sqlite3.Connection, value: bytes) -> None:
        self.database = database
        self.value = value

    def __call__(self) -> None:
        self.database.execute("INSERT INTO log (at, value) VALUES (0, ?)", (self.value,))
        self.database.commit()


def with_threads(producers: int, seconds: float, make: Callable[[], Callable[[], object]]) -> float:
    """Appends a second of threads that each append and wait, over and over."""
    counts = [0] * producers
    appends = [make() for _ in range(producers)]
    deadline = time.perf_counter() + seconds

    def run(number: int) -> None:
        with contextlib.suppress(sqlite3.OperationalError):
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

    def read(self, count: int) -> int:
        for _ in range(count):
            self.queue.get(timeout=10)
        return count


class LiteQueue(System):
    """litequeue: a queue in SQLite, WAL mode with synchronous NORMAL."""

    name = "litequeue"
    kind = "queue"
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

    def read(self, count: int) -> int:
        found = 0
        while self.queue.pop() is not None:
            found += 1
        return found


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
