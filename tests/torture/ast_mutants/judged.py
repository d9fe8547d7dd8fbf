"""What became of mutants in this run and in earlier ones, as rows of a file.

A row holds for a mutation while the function that it changes is as it was: a draw of hundreds can
be judged in pieces, and after an edit only what it touched is judged again. Mutants that lived are
always judged again, for a test may have come since.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.torture.ast_mutants.catching import Verdict
from tests.torture.ast_mutants.changes import Mutation, functions_of
from tests.torture.ast_mutants.drawing import SOURCE


@dataclass(frozen=True)
class Row:
    """A mutant, what its function was, and the test that caught it; empty where it lived."""

    name: str
    function: str
    line: int
    what: str
    caught_by: str
    tests: int
    seconds: float


@functools.cache
def _digests(path: str) -> dict[str, str]:
    """Each function of a file by name: what it does, wherever it stands and however it is laid."""
    found = functions_of(ast.parse((SOURCE / path).read_text()))
    return {name: hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16] for name, node in found}


def digest_of(mutation: Mutation) -> str:
    """What the function of a mutation is now."""
    return _digests(mutation.path)[mutation.function]


def row_of(verdict: Verdict) -> Row:
    """A verdict as it is written down."""
    mutation = verdict.mutation
    seconds = round(verdict.seconds, 1)
    words = (mutation.line, mutation.what, verdict.caught_by, verdict.tests, seconds)
    return Row(mutation.name, digest_of(mutation), *words)


def note(log: Path, row: Row) -> None:
    """Writes a row down, behind the others."""
    with log.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def rows_of(log: Path, drawn: Sequence[Mutation]) -> dict[str, Row]:
    """The last row of each of these mutants, where its function is still the same."""
    if not log.exists():
        return {}
    rows = {row["name"]: Row(**row) for row in map(json.loads, log.read_text().splitlines())}
    return {
        each.name: rows[each.name]
        for each in drawn
        if each.name in rows and rows[each.name].function == digest_of(each)
    }


def table(drawn: Sequence[Mutation], rows: dict[str, Row]) -> list[str]:
    """How many of each package were drawn and caught, as a table of the page."""
    counts: dict[str, list[int]] = {}
    for each in drawn:
        row = rows.get(each.name)
        for name in (f"`{each.path.rpartition('/')[0]}`", "all"):
            count = counts.setdefault(name, [0, 0, 0])
            count[0] += 1
            count[1] += row is not None and bool(row.caught_by)
            count[2] += row is not None and not row.caught_by
    ordered = sorted(counts.items(), key=lambda each: (each[0] == "all", each[0]))
    head = ["| package | drawn | caught | lived |", "|---|---|---|---|"]
    return head + [f"| {name} | {' | '.join(map(str, count))} |" for name, count in ordered]
