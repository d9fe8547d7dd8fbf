"""Start-up to the first durable ack, and starting again after a kill -9 with many records.

What runs in the program's own process is measured in fresh ones: `first_ack_s` is the whole life
of `python -c`, imports included; `opened_*_s` is from the call that opens to the next
acknowledged record, imports and the loading of compiled code aside. For a server both are from its
start to an acknowledged record of a client that is there already.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

from benchmarks.field.suite import BATCH_RECORDS, Figures, batches_of, cycle, offered, running
from benchmarks.field.system import FSYNC, Server, System

FIRST_ACKS = 3
REOPENS = 3
FILL_BATCHES = 100
FILL_WITHIN_S = 60
MORE_RECORDS = "LAMINA_FIELD_RECORDS"
"""Names the environment's variable that asks for 10 million records beside one."""

SHORTEST = {
    "SQLite WAL": """
import os, sqlite3, sys
os.makedirs(sys.argv[1])
database = sqlite3.connect(os.path.join(sys.argv[1], "log.db"))
database.execute("PRAGMA journal_mode=WAL")
database.execute("PRAGMA synchronous=FULL")
database.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, at INTEGER, value BLOB)")
database.execute("INSERT INTO log (at, value) VALUES (0, ?)", (b"first",))
database.commit()
""",
    **{
        f"Lamina {name}": f"""
import sys
import lamina
with lamina.open(sys.argv[1]) as store:
    store.create_topic("first", format="{name}")
    store.append("first", b"first")
"""
        for name in ("keratin", "frame", "wal")
    },
}
"""The shortest program a user writes to have one durable record."""


def starts(figures: Figures, folder: str) -> None:
    """Measures both, for a system whose acknowledged records are on the disk."""
    asked = [int(text) for text in os.environ.get(MORE_RECORDS, "1000000").split(",")]
    if issubclass(figures.system, Server):
        with offered(figures):
            _server_first(figures, folder)
        for records in asked:
            with offered(figures):
                _server_again(figures, folder, records)
    elif figures.system.name in SHORTEST and figures.durability == FSYNC:
        for _ in range(FIRST_ACKS):
            figures.add("first_ack_s", _first_ack(figures.system.name, folder))
        for records in asked:
            _opened_after_kill(figures, folder, records)


def _named(records: int) -> str:
    return f"opened_{records // 1_000_000}M_s"


def _first_ack(name: str, folder: str) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", SHORTEST[name], folder], check=True, env=_warm_caches())
    taken = time.perf_counter() - started
    shutil.rmtree(folder)
    return taken


def _warm_caches() -> dict[str, str]:
    """An environment in which Python keeps its own bytecode, as it does unless told not to."""
    return {key: each for key, each in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def _opened_after_kill(figures: Figures, folder: str, records: int) -> None:
    """The file system's cache is warm for everybody: the fill was a moment ago."""
    kept = f"{folder}.kept"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run(figures.system.name, folder, "fill", str(records), killed=True)
    os.rename(folder, kept)
    for _ in range(REOPENS):
        shutil.copytree(kept, folder)  # as it was when it was killed, each time
        os.sync()  # and on the disk, as what was acknowledged was: a copy is not yet
        seconds = json.loads(_run(figures.system.name, folder, "reopen"))["seconds"]
        figures.add(_named(records), seconds)
        shutil.rmtree(folder)
    shutil.rmtree(kept)


def _run(name: str, folder: str, what: str, *more: str, killed: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.field.starting", name, folder, what, *more],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    expected = -signal.SIGKILL if killed else 0
    assert done.returncode == expected, f"{what} of {name} ended with {done.returncode}"
    return done.stdout


def _server_first(figures: Figures, folder: str) -> None:
    started = time.perf_counter()
    with running(figures.system, folder, figures.durability) as system:
        system.append(b"first")
        figures.add("first_ack_s", time.perf_counter() - started)


def _server_again(figures: Figures, folder: str, records: int) -> None:
    with running(figures.system, folder, figures.durability) as system:
        assert isinstance(system, Server)
        _fill(system, records)
        system.kill()
        started = time.perf_counter()
        system.launch()
        system.append(b"after")
        figures.add(_named(records), time.perf_counter() - started)


def _fill(system: System, records: int) -> None:
    plain = [list(batch) for batch in batches_of(100)]
    ready = system.prepare(plain) if system.reuses_batches else None
    deadline = time.monotonic() + FILL_WITHIN_S
    for _ in range(records // (FILL_BATCHES * BATCH_RECORDS)):
        system.produce(
            cycle(ready, FILL_BATCHES)
            if ready is not None
            else system.prepare(cycle(plain, FILL_BATCHES))
        )
        assert time.monotonic() < deadline, f"{records} records take over {FILL_WITHIN_S} s"


def main(arguments: list[str]) -> None:
    """Fills and kills itself, or opens what a killed process left; prints the seconds."""
    from benchmarks.field.systems import named

    name, folder, what, *more = arguments
    system = named(name)(folder, FSYNC)
    if what == "fill":
        system.start()
        _fill(system, int(more[0]))
        os.kill(os.getpid(), signal.SIGKILL)
    _warm(named(name), f"{folder}.warm")
    started = time.perf_counter()
    system.start()
    system.append(b"after")
    taken = time.perf_counter() - started
    system.stop()
    print(json.dumps({"seconds": taken}))


def _warm(kind: type[System], folder: str) -> None:
    """Imports and loaded machine code aside: the same on an empty folder, opened twice."""
    for _ in range(2):
        system = kind(folder, FSYNC)
        system.start()
        system.append(b"warm")
        system.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
