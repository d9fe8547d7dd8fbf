"""`make bench`: runs the suite, adds to the results, writes the report, and prints one line a bar.

`--only` takes words, separated by commas: parts of systems' names, and workloads. A run of some of
it is added to what there is; the report and the bars are always of everything that is known.
`--report-only` writes the report again without running anything.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks.bars import finish
from benchmarks.field import judging, publishing, report
from benchmarks.field.measuring import WORKLOADS, measure, measure_limits
from benchmarks.field.results import Results
from benchmarks.field.starting import MORE_RECORDS
from benchmarks.field.system import System
from benchmarks.field.systems import SYSTEMS

Job = tuple[type[System], str, str]
ONCE = ("starts", "archive", "spark")
"""Workloads that take their rounds themselves."""
SECONDS = {"records": 9.0, "starts": 10.0, "archive": 15.0, "spark": 40.0}
"""About how long a workload takes beside the starts of the system, measured on two quiet cores."""
LIMITS_S = 6
STARTS = {"records": 2, "starts": 3}


def main() -> None:
    """Runs what was asked for."""
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
    console = Console(stderr=True)
    results = Results.load(Path(asked.results))
    if not asked.report_only:
        if asked.more:
            os.environ[MORE_RECORDS] = "1000000,10000000"
        _run(results, asked, console)
    results.save()
    written = report.write(results, Path(asked.report))
    publishing.publish(results)
    console.print(f"report: {written}")
    finish(judging.bars(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", default="", help="words: parts of systems' names, workloads")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--more", action="store_true", help="start with 10 M records, too")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("--results", default="docs/field/results.json")
    parser.add_argument("--report", default="docs/field", help="where the report is written")
    parser.add_argument("--folder", default=None, help="where the systems keep their data")
    return parser.parse_args()


def jobs(only: str) -> list[Job]:
    """What a run does: the workloads that were named, of the systems that were named."""
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    workloads = [word for word in words if word in WORKLOADS] or list(WORKLOADS)
    names = [word for word in words if word not in WORKLOADS]
    chosen = [
        kind
        for kind in SYSTEMS
        if not names or any(_matches(word, kind.name.lower()) for word in names)
    ]
    return [
        (kind, durability, workload)
        for workload in workloads
        for kind in chosen
        for durability in kind.durabilities
        if kind.takes(workload, durability)
    ]


def _matches(word: str, name: str) -> bool:
    """A word in quotation marks is a whole name."""
    return word.strip("'\"") == name if word[0] in "'\"" else word in name


def _run(results: Results, asked: argparse.Namespace, console: Console) -> None:
    """Runs all jobs, in interleaved rounds, each round with the limits before it."""
    asked_for = jobs(asked.only)
    absent = {kind.name: why for kind, _, _ in asked_for if (why := kind.missing()) is not None}
    results.absent = {
        **{name: why for name, why in results.absent.items() if name in absent},
        **absent,
    }
    ready = [job for job in asked_for if job[0].name not in absent]
    console.print(f"about {_estimate(ready, asked.rounds) / 60:.0f} minutes on two quiet cores")
    part = results.begin(asked.rounds, shlex.join(["make bench", *sys.argv[1:]]))
    started = time.monotonic()
    folder = tempfile.mkdtemp(prefix="lamina-field-", dir=asked.folder)
    try:
        for number in range(asked.rounds):
            some = [job for job in ready if number == 0 or job[2] not in ONCE]
            if not some:
                break
            part.add_limits(measure_limits(folder))
            for kind, durability, workload in some:
                at = time.monotonic()
                found = measure(kind, durability, workload, folder)
                row = results.row(kind, durability)
                row.version = kind.version()
                row.add(len(results.parts) - 1, workload, found)
                part.seconds = time.monotonic() - started
                results.save()
                console.print(
                    f"{part.seconds:5.0f} s: round {number + 1}, {workload} of {kind.name}"
                    f" ({durability}) {time.monotonic() - at:.1f} s",
                    *found["problems"],  # type: ignore[misc]
                    highlight=False,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _estimate(ready: list[Job], rounds: int) -> float:
    """Seconds that these jobs take."""
    return (
        sum(
            (SECONDS[workload] + kind.start_s * STARTS.get(workload, 0))
            * (1 if workload in ONCE else rounds)
            for kind, _, workload in ready
        )
        + LIMITS_S * rounds
    )


if __name__ == "__main__":
    main()
