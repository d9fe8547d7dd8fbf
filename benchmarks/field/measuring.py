"""One workload of one system, in a process of its own: `python -m benchmarks.field.measuring`.

A process a workload keeps systems out of each other's way: no threads of another's client are
left, memory is the system's own, and one that hangs or crashes ends nothing but itself. Its result
is a line of JSON in a file; whatever servers it started and left are ended by whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.field import cold, limits, spark_jobs, starting, suite
from benchmarks.field.suite import Figures
from benchmarks.field.system import LEFT_PROCESSES, System

WORKLOADS: dict[str, Callable[[Figures, str], None]] = {
    "records": suite.records,
    "starts": starting.starts,
    "archive": cold.archive,
    "spark": spark_jobs.jobs,
}
WITHIN_S = 180
LIMITS = "limits"


def measure(kind: type[System], durability: str, workload: str, folder: str) -> dict[str, object]:
    """Has one workload done; returns its figures and problems."""
    return _in_process(folder, kind.name, durability, workload)


def measure_limits(folder: str) -> dict[str, float]:
    """Has the limits measured."""
    return _in_process(folder, LIMITS)["figures"]  # type: ignore[return-value]


def _in_process(folder: str, *what: str) -> dict[str, object]:
    os.makedirs(folder, exist_ok=True)
    result, started = Path(folder, "result.json"), Path(folder, "processes")
    result.unlink(missing_ok=True)
    started.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.field.measuring", folder, *what],
        env={**os.environ, LEFT_PROCESSES: str(started)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    problem = ""
    try:
        _, errors = process.communicate(timeout=WITHIN_S)
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            problem = f"its process ended with {process.returncode}: {''.join(last):.300}"
    except subprocess.TimeoutExpired:
        problem = f"it was not done within {WITHIN_S} s"
    finally:
        _end(process.pid)
        process.wait()
        for number in started.read_text().split():
            _end(int(number))
    if result.exists() and not problem:
        return json.loads(result.read_text())  # type: ignore[no-any-return]
    return {"figures": {}, "problems": [problem or "it left no result"]}


def _end(session: int) -> None:
    """Ends a process that was started here, with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    """Does one workload and writes down what came of it."""
    folder, *what = arguments
    if what == [LIMITS]:
        found: object = {"figures": limits.measure(os.path.join(folder, "limits"))}
    else:
        from benchmarks.field.systems import named

        name, durability, workload = what
        figures = Figures(named(name), durability)
        try:
            WORKLOADS[workload](figures, os.path.join(folder, "system"))
        except Exception as error:
            figures.problems.append(f"{error!r:.300}")
        found = {"figures": figures.rounds, "problems": figures.problems}
    Path(folder, "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
