"""`make bench`: runs the suite, writes a report with plots, and prints one line a bar."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.bars import finish
from benchmarks.field import cold, judging, limits, processes, report
from benchmarks.field.embedded import Frame, Keratin, Wal
from benchmarks.field.files import ArrowFile, ParquetFiles
from benchmarks.field.kafka import Kafka, MockBroker, TansuMemory, TansuS3
from benchmarks.field.nats_stream import Nats
from benchmarks.field.queues import LiteQueue, PersistQueue, Sqlite
from benchmarks.field.rabbit import RabbitStreams
from benchmarks.field.redis_streams import RedisStreams
from benchmarks.field.served import Served, ServedByMany
from benchmarks.field.suite import Figures, one_round, recover
from benchmarks.field.system import System

SYSTEMS: tuple[type[System], ...] = (
    *(Keratin, Frame, Wal, Served, ServedByMany),
    *(Kafka, TansuMemory, TansuS3, Nats, RedisStreams, RabbitStreams),
    *(Sqlite, PersistQueue, LiteQueue, ArrowFile, ParquetFiles, MockBroker),
)
OPENED = ("keratin", "frame", "wal", "sqlite")


def main() -> None:
    """Runs everything; `--only` and `--rounds` for a quick look, which judges no bars."""
    asked = _arguments()
    console = Console(stderr=True)
    chosen = [kind for kind in SYSTEMS if asked.only.lower() in kind.name.lower()]
    absent = {kind.name: why for kind in chosen if (why := kind.missing()) is not None}
    figures = [
        Figures(kind, durability)
        for kind in chosen
        if kind.name not in absent
        for durability in kind.durabilities
    ]
    found = report.Run(figures, absent)
    folder = tempfile.mkdtemp(prefix="lamina-field-", dir=asked.folder)
    try:
        for number in range(asked.rounds):
            found.add_limits(limits.measure(os.path.join(folder, "limits")))
            label = f"round {number + 1} of {asked.rounds}"
            for each in track(figures, label, console=console):
                _guarded(each, one_round, os.path.join(folder, "system"))
        if not asked.only:
            for each in track(figures, "killed and started", console=console):
                _guarded(each, recover, os.path.join(folder, "system"))
            _fresh_processes(found, folder)
            found.cold = cold.measure(os.path.join(folder, "cold"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    written = report.write(found, Path(asked.report))
    console.print(f"report: {written}")
    if not asked.only:
        finish(judging.bars(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=main.__doc__)
    parser.add_argument("--only", default="", help="part of a system's name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", default="build/bench", help="where the report is written")
    parser.add_argument("--folder", default=None, help="where the systems keep their data")
    return parser.parse_args()


def _guarded(figures: Figures, work: Callable[[Figures, str], None], folder: str) -> None:
    """A system that fails is reported with its problem; the others go on."""
    try:
        work(figures, folder)
    except Exception as error:
        figures.problems.append(f"{error!r:.200}")


def _fresh_processes(found: report.Run, folder: str) -> None:
    for name in OPENED:
        for _ in range(3):
            place = os.path.join(folder, "fresh")
            found.keep(f"first ack {name} s", processes.first_ack(name, place))
            shutil.rmtree(place)
        for records in (1_000_000, 10_000_000):
            place = os.path.join(folder, "killed")
            seconds = processes.opened_after_kill(name, place, records)
            found.keep(f"opened after kill {name} {records // 1_000_000}M s", seconds)
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
