"""Runs rows of the matrix: one trial a format, and what came of each."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from lamina_torture.budgets import Budget
from lamina_torture.rows import Column, Row, Trial, Violation, rows

_SPAWNING = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Outcome:
    """What a trial did: counts of what was tried, what failed, or why it was not run."""

    row: Row
    format: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    failures: tuple[Violation, ...] = ()
    not_run: str = ""
    seconds: float = 0.0


def run_row(
    row: Row,
    format_name: str,
    seed: int,
    rounds: int,
    *,
    case: str | None = None,
    failures_max: int = 10,
) -> Outcome:
    """Runs one trial of a row in a directory of its own, which is gone afterwards."""
    if reason := row.needs():
        return Outcome(row, format_name, seed, not_run=reason)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lamina-torture-") as scratch:
        trial = Trial(
            row, format_name, seed, rounds, Path(scratch), case, failures_max=failures_max
        )
        budget = Budget(trial)
        try:
            row.run(trial)
            if not trial.counts:
                raise Violation("I12", "nothing was tried: there is no such case")
            if not trial.failures:  # what failed holds whatever it was about
                budget.check()
        except Violation as violation:
            if violation not in trial.failures:  # not in a case: the whole trial runs again
                trial.failures.append(
                    Violation(violation.invariant, violation.what, trial.command())
                )
        except Exception as error:
            found = Violation("I12", f"{type(error).__name__}: {error}", trial.command())
            found.__cause__ = error
            trial.failures.append(found)
    seconds = time.perf_counter() - started
    return Outcome(row, format_name, seed, trial.counts, tuple(trial.failures), "", seconds)


def trials(
    chosen: list[Row], column: Column, formats: list[str] | None, rounds: int | None
) -> list[tuple[str, str, int]]:
    """Lists (row, format, rounds) of the rows that a column has; rounds that are given win."""
    found = []
    for row in chosen:
        wanted = rounds if rounds is not None else row.rounds.of(column)
        for format_name in row.formats if wanted is not None else ():
            if not formats or format_name in formats:
                found.append((row.key, format_name, wanted or 0))
    return found


def run_trials(
    wanted: list[tuple[str, str, int]], seed: int, case: str | None = None, jobs: int = 1
) -> Iterator[Outcome]:
    """Runs trials, several at a time in processes of their own; yields each when it is done."""
    if jobs == 1:
        for key, format_name, rounds in wanted:
            yield run_row(rows(key)[0], format_name, seed, rounds, case=case)
        return
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_run_apart, trial, seed, case) for trial in wanted]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run_apart(trial: tuple[str, str, int], seed: int, case: str | None) -> Outcome:
    """Runs a trial in a process of its own; one that dies there has failed, the others go on."""
    key, format_name, rounds = trial
    row = rows(key)[0]
    hearing, telling = _SPAWNING.Pipe(duplex=False)
    process = _SPAWNING.Process(target=_tell, args=(telling, trial, seed, case))
    process.start()
    telling.close()
    with hearing:
        try:
            told = hearing.recv()
        except EOFError:
            told = None
    process.join()
    if told is not None:
        return Outcome(row, format_name, seed, *told)
    again = Trial(row, format_name, seed, rounds, Path()).command(case)
    died = Violation("I12", f"the process of the trial ended with {process.exitcode}", again)
    return Outcome(row, format_name, seed, failures=(died,))


def _tell(telling: Connection, trial: tuple[str, str, int], seed: int, case: str | None) -> None:
    """Runs a trial and sends what came of it."""
    key, format_name, rounds = trial
    done = run_row(rows(key)[0], format_name, seed, rounds, case=case)
    failures = tuple(Violation(each.invariant, each.what, each.command) for each in done.failures)
    telling.send((done.counts, failures, done.not_run, done.seconds))
    telling.close()
