"""F15: a thread is cut off in the middle of a call, by Ctrl-C or by a lack of memory, and goes on.

The program is one that survives both. What it was answered stays true; of what got no answer a
reader sees all or nothing; the next call works, or says by a typed error that the store must be
opened again; and nothing ever waits for the thread that was cut off.
"""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from lamina_torture.forked import Workers
from lamina_torture.interrupted import BROKEN
from lamina_torture.rows import ALL, Rounds, Trial, demand, row, violated
from lamina_torture.small import scratch_of
from lamina_torture.witness import Witness
from lamina_torture.worker import Errand

MODULE = "lamina_torture.interrupted"
ALLOCATIONS = 10_000
"""About so many allocations the program makes."""


def needs_allocator() -> str | None:
    """Returns why allocations cannot be made to fail here, or None."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") or find_spec("_testcapi") is None:
        return "this Python has no _testcapi"
    return None


def _break(trial: Trial, workers: Workers, breaks: str, *, may_die: bool = False) -> Witness:
    """Runs the program once with a break, and holds what it left against what it said."""
    directory = scratch_of(Path(trial.scratch), f"{trial.format}-{trial.row.name}")
    shutil.rmtree(directory, ignore_errors=True)
    witness = Witness(trial.format)
    try:
        workers.send(Errand(str(directory), trial.format, str(trial.seed), 0, breaks=breaks))
        for words in list(workers.listen()):
            witness.hear(words)
        status = witness.numbers["gone"]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            demand(may_die, "I12", f"it died of {signal.Signals(number).name}")
            trial.counts["died"] += 1
        elif status:
            violated("I12", "it waits for ever")
        broken = [each for each in witness.refused if each.startswith(BROKEN)]
        trial.counts["broken calls"] += len(broken)
        witness.check(str(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(f"{directory}-archive", ignore_errors=True)
    return witness


def _interrupt_everywhere(trial: Trial, kind: str) -> None:
    """Interrupts at each place in turn, or at as many of them as there are rounds."""
    with Workers(MODULE) as workers:
        total = _break(trial, workers, f"{kind}:0").numbers["events"]
        demand(total > 0, "I12", "no place was seen")
        points = list(range(1, total + 1))
        trial.luck("order").shuffle(points)
        for at in points[: trial.rounds]:
            with trial.case(at) as wanted:
                if wanted:
                    _break(trial, workers, f"{kind}:{at}")


@row("F15", "interrupt", invariants="I1 I2 I3 I5 I6 I12", rounds=Rounds(8, 300, ALL))
def interrupt(trial: Trial) -> None:
    """KeyboardInterrupt wherever Python can raise it in appends, polls, acks, trims and rolls."""
    _interrupt_everywhere(trial, "interrupt")


@row("F15", "open", invariants="I1 I2 I3 I5 I6 I12", rounds=Rounds(8, 100, ALL))
def interrupt_open(trial: Trial) -> None:
    """KeyboardInterrupt anywhere in opening: no lock, thread or file stays, the next open works."""
    _interrupt_everywhere(trial, "open")


@row("F15", "close", invariants="I1 I2 I3 I5 I6 I12", rounds=Rounds(8, 100, ALL))
def interrupt_close(trial: Trial) -> None:
    """KeyboardInterrupt anywhere in `close`: another `close` ends it, and nothing of it stays."""
    _interrupt_everywhere(trial, "close")


@row(
    "F15",
    "no-memory",
    invariants="I1 I2 I3 I5 I6 I12",
    rounds=Rounds(8, 300, 16_000),
    needs=needs_allocator,
)
def no_memory(trial: Trial) -> None:
    """The n-th allocation of Python's fails: MemoryError, wherever that is."""
    with Workers(MODULE) as workers:
        for number in range(trial.rounds):
            at = trial.luck(number).randrange(ALLOCATIONS)
            with trial.case(at) as wanted:
                if wanted:
                    _break(trial, workers, f"memory:{at}", may_die=True)
        if trial.only is None and trial.rounds > 50 and not trial.counts["broken calls"]:
            violated("I12", "no allocation failed")
