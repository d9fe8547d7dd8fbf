"""Defects that cells still meet: each is printed in docs/reliability.md until it is mended.

A violation that one of these explains is counted as known and does not fail the row; whatever else
a cell meets does. An entry goes with its defect: `lamina torture` counts how often each was met.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lamina_torture.cross.axes import Cell
from lamina_torture.rows import Violation


@dataclass(frozen=True, slots=True)
class Known:
    """A defect: in which cells it is met, what is seen there, and what it is."""

    cells: str
    seen: str
    about: str


KNOWN: tuple[Known, ...] = ()
"""What is known and not mended yet."""


def explain(cell: Cell, violation: Violation) -> Known | None:
    """Returns the known defect that a violation in a cell is due to, if it is one."""
    names = (cell.format, cell.tier, cell.damage, cell.user)
    for known in KNOWN:
        wanted = [part.split(",") for part in known.cells.split(":")]
        matches = all("*" in part or name in part for part, name in zip(wanted, names, strict=True))
        if matches and re.search(known.seen, violation.what):
            return known
    return None


def known_lines() -> list[str]:
    """The known defects as lines for docs/reliability.md."""
    if not KNOWN:
        return ["No cell is known to fail."]
    lines = ["| cells | what is not mended yet |", "|---|---|"]
    return lines + [f"| `{known.cells}` | {known.about} |" for known in KNOWN]
