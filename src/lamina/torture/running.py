"""Runs rows of the matrix: one trial a format, and what came of each."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lamina.torture.rows import Column, Row, Trial, Violation


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
    row: Row, format_name: str, seed: int, rounds: int, *, case: str | None = None
) -> Outcome:
    """Runs one trial of a row in a directory of its own, which is gone afterwards."""
    if reason := row.needs():
        return Outcome(row, format_name, seed, not_run=reason)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lamina-torture-") as scratch:
        trial = Trial(row, format_name, seed, rounds, Path(scratch), case)
        try:
            row.run(trial)
            if not trial.counts:
                raise Violation("I12", "nothing was tried: there is no such case")
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


def run_column(
    chosen: list[Row], column: Column, seed: int, formats: tuple[str, ...] | None = None
) -> Iterator[Outcome]:
    """Runs the rows that a column has, for each of their formats."""
    for row in chosen:
        rounds = row.rounds.of(column)
        for format_name in row.formats if rounds is not None else ():
            if formats is None or format_name in formats:
                yield run_row(row, format_name, seed, rounds or 0)
