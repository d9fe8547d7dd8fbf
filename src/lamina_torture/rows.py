"""The fault matrix as code: each row says what it breaks, what must hold, and how often it tries.

    @row("F4", "reordered", formats=LOGS, invariants="I1 I2 I3", rounds=Rounds(20, 900, 20_000))
    def reordered(trial: Trial) -> None:
        for number in range(trial.rounds):
            with trial.case(f"{number}") as wanted:
                if wanted:
                    ...                               # raises when something does not hold

Rules.
1. A row is a function of its trial alone: the same seed, format and case do the same again. What
   it draws comes from `trial.luck(case)`, what it writes goes below `trial.scratch`.
2. Every single thing that is tried is a case with a name. A failure in a case becomes a `Violation`
   that knows the one line which runs this case again, and only it.
3. A row checks by `demand`, which names the invariant; any other exception in a case is one too:
   of I12, for whatever was not said by a typed error must not get out.
4. The same case has the same name in every column: a column only says how many are tried.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import random
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, TypeAlias

from lamina.errors import InvalidRequest
from lamina_torture import faults as _modules

LOGS = ("frame", "keratin", "wal")
"""The formats of a topic. A row may name others, as `groups` or `tier`, for what it breaks."""
ALL = 1 << 40
"""As a number of rounds: every case there is."""
FAULTS = tuple(f"F{number}" for number in range(1, 30))

Invariant: TypeAlias = Literal[
    "I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12"
]
INVARIANTS: dict[str, str] = {
    "I1": "an acknowledged record is readable, at its offset, with its bytes",
    "I2": "nothing is read that was never appended, and never with wrong bytes",
    "I3": "offsets are dense or the gap has a reason; none is used twice",
    "I4": "only what is above the durable watermark is cut; the rest is set aside and reported",
    "I5": "what a reader of durable records saw stays; the end never moves back",
    "I6": "a group is never ahead of the log; acked stays acked, unacked comes again",
    "I7": "recovery gives the same when it is repeated, also when it was killed",
    "I8": "nothing goes because metadata forgot it; what was deleted never comes back",
    "I9": "derived files are only caches: without them, or damaged, answers are the same",
    "I10": "opening ends, in bounded time and memory, whatever lengths a file claims",
    "I11": "Spark reads each record once, and its sink writes each batch once",
    "I12": "after an error the next call works or fails with a typed error",
}


class Column(StrEnum):
    """How much is run: a sample in `make test`, `make torture`, `make torture-long`."""

    SAMPLE = "sample"
    CI = "ci"
    LONG = "long"


class Violation(AssertionError):
    """An invariant does not hold; `command` runs the case again in which it did not."""

    def __init__(self, invariant: str, what: str, command: str = "") -> None:
        super().__init__(invariant, what, command)
        self.invariant = invariant
        self.what = what
        self.command = command

    def __str__(self) -> str:
        again = f"\n  again: {self.command}" if self.command else ""
        return f"{self.invariant}: {self.what}{again}"


def demand(holds: object, invariant: Invariant, what: str) -> None:
    """Raises a Violation of an invariant unless something holds."""
    if not holds:
        raise Violation(invariant, what)


def violated(invariant: Invariant, what: str) -> NoReturn:
    """Raises a Violation."""
    raise Violation(invariant, what)


class Rounds(NamedTuple):
    """How many cases a row tries for a format: in `make test`, `make torture`, the long run.

    None in a column keeps the row out of it.
    """

    sample: int | None
    ci: int | None
    long: int | None

    def of(self, column: Column) -> int | None:
        """Returns the number for a column."""
        return {Column.SAMPLE: self.sample, Column.CI: self.ci, Column.LONG: self.long}[column]


@dataclass(repr=False)
class Trial:
    """One run of a row: what it may depend on, and the count of what it did."""

    row: Row
    format: str
    seed: int
    rounds: int
    scratch: Path
    only: str | None = None
    """The name of the one case that is wanted; None wants all."""
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Violation] = field(default_factory=list)
    failures_max: int = 10
    behind_case: Callable[[], None] = lambda: None
    """Called when a case has ended."""

    def luck(self, case: object = "") -> random.Random:
        """Returns the case's own source of choices; the number of rounds does not change it."""
        return random.Random(f"{self.row.key} {self.format} {self.seed} {case}")  # noqa: S311

    def wants(self, case: object) -> bool:
        """Returns whether a case is run, for a row that would otherwise prepare it for long."""
        return self.only is None or self.only == str(case)

    @contextlib.contextmanager
    def case(self, name: object, counted: str = "cases") -> Iterator[bool]:
        """Holds one case; gives False when another one is wanted.

        Its failure is kept and the row goes on, up to `failures_max`.
        """
        if not self.wants(name):
            yield False
            return
        self.counts[counted] += 1
        try:
            yield True
        except Violation as violation:
            self._fail(violation.invariant, violation.what, str(name), violation)
        except Exception as error:
            self._fail("I12", f"{type(error).__name__}: {error}", str(name), error)
        self.behind_case()

    def _fail(self, invariant: str, what: str, case: str, cause: BaseException) -> None:
        found = Violation(invariant, what, self.command(case))
        found.__cause__ = cause
        self.failures.append(found)
        if len(self.failures) >= self.failures_max:
            raise found from cause

    def command(self, case: str | None = None) -> str:
        """Returns the line that runs this trial, or one case of it, again."""
        words = ["lamina", "torture", "--fault", self.row.key, "--format", self.format]
        words += ["--seed", str(self.seed), "--rounds", str(self.rounds)]
        return shlex.join([*words, "--case", case] if case is not None else words)


@dataclass(frozen=True)
class Row:
    """A row of the matrix: a fault, how it is made, and what must hold."""

    fault: str
    name: str
    formats: tuple[str, ...]
    invariants: tuple[str, ...]
    rounds: Rounds
    run: Callable[[Trial], None]
    about: str
    needs: Callable[[], str | None]

    @property
    def key(self) -> str:
        """The row's name on the command line: `F4/reordered`."""
        return f"{self.fault}/{self.name}"


_ROWS: dict[str, Row] = {}


def row(
    fault: str,
    name: str,
    *,
    formats: tuple[str, ...] = LOGS,
    invariants: str,
    rounds: Rounds,
    needs: Callable[[], str | None] = lambda: None,
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Declares a row; its docstring's first line says how the fault is made.

    `needs` says why the row cannot run on this machine, or None.
    """

    def declare(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
        about = (run.__doc__ or "").strip().split("\n")[0]
        made = Row(fault, name, formats, tuple(invariants.split()), rounds, run, about, needs)
        if fault not in FAULTS or not about or not set(made.invariants) <= INVARIANTS.keys():
            raise ValueError(f"{made.key}: an unknown fault or invariant, or no docstring")
        if made.key in _ROWS:
            raise ValueError(f"{made.key} is declared twice")
        _ROWS[made.key] = made
        return run

    return declare


@functools.cache
def _load() -> None:
    for found in pkgutil.iter_modules(_modules.__path__, f"{_modules.__name__}."):
        importlib.import_module(found.name)


def rows(fault: str | None = None) -> list[Row]:
    """Returns the rows of a fault (`F4`) or one of them (`F4/reordered`); all without one."""
    _load()
    chosen = [each for each in _ROWS.values() if fault in (None, each.fault, each.key)]
    if not chosen:
        raise InvalidRequest(f"there is no row {fault!r}; `lamina torture --list` names them")
    return sorted(chosen, key=lambda each: (FAULTS.index(each.fault), each.name))
