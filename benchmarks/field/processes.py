"""What only a fresh process shows: start-up to the first durable ack, and opening after a kill.

Run as `python -m benchmarks.field.processes <what> <system> <folder> [records]`; prints seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

EMBEDDED = ("keratin", "frame", "wal", "sqlite")


def first_ack(system: str, folder: str) -> float:
    """Seconds from the start of a Python process to its first durable record, imports included."""
    started = time.perf_counter()
    _run("append", system, folder)
    return time.perf_counter() - started


def opened_after_kill(system: str, folder: str, records: int) -> float:
    """Seconds to open and append after a kill with so many records; imports aside."""
    _run("fill", system, folder, str(records), killed=True)
    return float(json.loads(_run("reopen", system, folder))["seconds"])


def _run(what: str, system: str, folder: str, *more: str, killed: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.field.processes", what, system, folder, *more],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    expected = -signal.SIGKILL if killed else 0
    assert done.returncode == expected, f"{what} {system} ended with {done.returncode}"
    return done.stdout


def _system(name: str, folder: str) -> object:
    from benchmarks.field import embedded, queues

    kinds = {
        "keratin": embedded.Keratin,
        "frame": embedded.Frame,
        "wal": embedded.Wal,
        "sqlite": queues.Sqlite,
    }
    return kinds[name](folder, "fsync")


def _first_append(name: str, folder: str) -> None:
    """What the shortest program of a user does: no more is imported than that needs."""
    if name == "sqlite":
        import sqlite3

        os.makedirs(folder, exist_ok=True)
        database = sqlite3.connect(os.path.join(folder, "log.db"))
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, value BLOB)")
        database.execute("INSERT INTO log (value) VALUES (?)", (b"first",))
        database.commit()
        return
    import lamina

    with lamina.open(folder) as store:
        store.create_topic("first", format=name)
        store.append("first", b"first")


def main(arguments: list[str]) -> None:
    """Does one thing in this process."""
    what, name, folder, *more = arguments
    if what == "append":
        return _first_append(name, folder)
    system = _system(name, folder)
    if what == "fill":
        from benchmarks.field.suite import values_of

        system.start()  # type: ignore[attr-defined]
        batches = system.prepare(values_of(100, 100))  # type: ignore[attr-defined]
        for _ in range(int(more[0]) // 100_000):
            system.produce(batches)  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)
    import lamina.engine.store  # noqa: F401  # imports aside

    started = time.perf_counter()
    system.start()  # type: ignore[attr-defined]
    system.append(b"after")  # type: ignore[attr-defined]
    taken = time.perf_counter() - started
    system.stop()  # type: ignore[attr-defined]
    print(json.dumps({"seconds": taken}))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
