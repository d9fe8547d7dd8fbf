"""Real processes that are really killed: at random instants, and at each of their system calls."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina_torture.forked import Workers, kill
from lamina_torture.rows import ALL, Rounds, Trial, demand, row
from lamina_torture.witness import Witness
from lamina_torture.worker import Errand

KILLS_PER_DIRECTORY = 25
ATTACH_S = 20
CALLS = {
    "sync": ("fdatasync,fsync", 24),
    "write": ("pwrite64", 16),
    "open": ("openat", 40),
    "rename": ("rename", 6),
    "cut": ("ftruncate", 6),
    "unlink": ("unlink,unlinkat", 6),
}
"""The system calls that a store makes, by what they do, and how many a thread makes of them here.

strace counts the calls of each thread for itself.
"""


@row("F1", "kill-9", invariants="I1 I2 I3 I5 I6 I7 I8 I12", rounds=Rounds(None, 150, 6700))
def kill_at_random(trial: Trial) -> None:
    """SIGKILL of a process that appends, trims, rolls and consumes, at a random instant."""
    with Workers() as workers:
        for first in range(0, trial.rounds, KILLS_PER_DIRECTORY):
            directory = f"{trial.scratch}/{first}"
            with trial.case(first, counted="directories") as wanted:
                witness = Witness(trial.format)
                last = min(first + KILLS_PER_DIRECTORY, trial.rounds)
                for number in range(first, last) if wanted else ():
                    _kill_once(trial, workers, witness, (directory, number))
                    trial.counts["kills"] += 1
            shutil.rmtree(directory, ignore_errors=True)


def _kill_once(trial: Trial, workers: Workers, witness: Witness, at: tuple[str, int]) -> None:
    directory, number = at
    drawn = trial.luck(number)
    errand = Errand(directory, trial.format, str(trial.seed), number, witness.once)
    delay_s = drawn.choice((drawn.uniform(0, 0.02), drawn.uniform(0.02, 0.4)))
    for words in workers.run_and_kill(errand, delay_s):
        witness.hear(words)
    demand(not witness.refused, "I12", f"refused: {witness.refused[:3]}")
    witness.check(directory)


def needs_strace() -> str | None:
    """Returns why system calls cannot be tampered with here, or None."""
    found = shutil.which("strace")
    if found is None:
        return "strace is not installed"
    words = [found, "-o", os.devnull, "-e", "inject=getpid:error=EIO", "true"]
    ended = subprocess.run(words, capture_output=True, check=False)  # noqa: S603
    return None if ended.returncode == 0 else "ptrace is not allowed here"


@contextmanager
def tampered(process_id: int, calls: str, what: str, when: int, told: Path) -> Iterator[None]:
    """Attaches strace to a stopped process, so that its n-th call of a kind goes wrong.

    What strace told of it is in a file afterwards.
    """
    strace = shutil.which("strace")
    assert strace is not None
    _await(lambda: _is_stopped(process_id), "the worker did not stop")
    with tempfile.TemporaryFile() as heard:
        words = [strace, "-f", "-p", str(process_id), "-o", str(told), "-e", f"trace={calls}"]
        words += ["-e", f"inject={calls}:{what}:when={when}"]
        tracer = subprocess.Popen(words, stderr=heard)  # noqa: S603
        try:
            _await(lambda: _is_attached(heard.fileno(), tracer), "strace did not attach")
            os.kill(process_id, signal.SIGCONT)
            yield
        finally:
            tracer.terminate()
            tracer.wait()


def _await(is_so: Callable[[], bool], what_not: str) -> None:
    deadline = time.monotonic() + ATTACH_S
    while not is_so():
        demand(time.monotonic() < deadline, "I12", what_not)
        time.sleep(0.002)


def _is_stopped(process_id: int) -> bool:
    """Returns whether a process has stopped itself: told to go on before that, it never would."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _is_attached(heard: int, tracer: subprocess.Popen[bytes]) -> bool:
    demand(tracer.poll() is None, "I12", f"strace ended: {os.pread(heard, 300, 0)!r}")
    return b"attached" in os.pread(heard, 4096, 0)


def _with_fault(trial: Trial, workers: Workers, calls: str, what: str, when: int) -> Witness:
    """Runs two errands: one as a start, and one in which the n-th call goes wrong.

    The second may be over before its n-th call: only what was hit is counted as `hit`.
    """
    directory, told = Path(trial.scratch) / "data", Path(trial.scratch) / "strace"
    witness = Witness(trial.format)
    for number in range(2):
        errand = Errand(
            str(directory), trial.format, str(trial.seed), number, witness.once, 8, bool(number)
        )
        process_id = workers.send(errand)
        if number == 0:
            _listen(workers, witness)
            continue
        try:
            with tampered(process_id, calls, what, when, told):
                _listen(workers, witness)
        finally:
            kill(process_id)
    said = told.read_text(errors="replace")
    trial.counts["hit"] += "INJECTED" in said or "killed by SIGKILL" in said
    status = witness.numbers["gone"]
    is_over = os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    demand(is_over, "I12", f"it waits for ever: status {status}")
    witness.check(str(directory))
    shutil.rmtree(directory, ignore_errors=True)
    return witness


def _listen(workers: Workers, witness: Witness) -> None:
    for words in workers.listen():
        witness.hear(words)


def _points(trial: Trial) -> Iterator[tuple[str, int]]:
    """Calls by kind and number, the same ones first in every column."""
    points = [(kind, when) for kind, (_, most) in CALLS.items() for when in range(1, most + 1)]
    random.Random(trial.seed).shuffle(points)  # noqa: S311
    yield from points[: trial.rounds]


@row(
    "F2",
    "kill-at-call",
    invariants="I1 I2 I3 I5 I6 I7 I8",
    rounds=Rounds(None, 40, ALL),
    needs=needs_strace,
)
def kill_at_call(trial: Trial) -> None:
    """SIGKILL, by strace, as a process enters its n-th fsync, write, open, rename or unlink."""
    with Workers() as workers:
        for kind, when in _points(trial):
            with trial.case(f"{kind}-{when}") as wanted:
                if wanted:
                    _with_fault(trial, workers, CALLS[kind][0], "signal=KILL", when)


@row(
    "F11",
    "strace",
    invariants="I1 I2 I3 I5 I6 I12",
    rounds=Rounds(1, 40, ALL),
    needs=needs_strace,
)
def error_at_call(trial: Trial) -> None:
    """A real system call returns EIO or ENOSPC, by strace: the n-th fsync, write, rename or cut."""
    with Workers() as workers:
        for number, (kind, when) in enumerate(_points(trial)):
            error = "ENOSPC" if kind in ("write", "open") and number % 2 else "EIO"
            with trial.case(f"{kind}-{when}-{error}") as wanted:
                if wanted:
                    witness = _with_fault(trial, workers, CALLS[kind][0], f"error={error}", when)
                    trial.counts["refused calls"] += len(witness.refused)
