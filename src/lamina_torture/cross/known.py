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


KNOWN: tuple[Known, ...] = (
    Known(
        "*:copied:bit,cut,gone,foreign:*",
        r"served|begins at",
        "a local segment that was lost or damaged is entered as lost although the archive has a"
        " sound copy of its records",
    ),
    Known(
        "*:shelf:newer:*",
        r"^told|^kept",
        "the archive's copy of topic.json that a newer version wrote is replaced by an older one,"
        " or hides the archived records without a word",
    ),
    Known(
        "*:object:gone:verify",
        r"^found",
        "`lamina verify` of an archive's directory does not find that a listed object is gone",
    ),
    Known(
        "*:object:foreign,cut:*",
        r"^served",
        "an object that is cut, or holds the bytes of something else, may hide records of the next"
        " one",
    ),
    Known(
        "wal:active:foreign:*",
        r"^kept",
        "an active segment of a wal topic that holds the bytes of something else is cut, and no"
        " copy is kept",
    ),
    Known(
        "frame,keratin:active,sealed:cut,gone:*",
        r"^told|^found: `doctor`",
        "a read-only store, and with it `lamina doctor`, does not tell that a log ends before the"
        " durable watermark, or that a segment is gone",
    ),
    Known(
        "*:active,sealed,copied,cold,metadata:eio:*",
        r"^opens: refused, \S+(\.log|\.data|/seg-\d+\.idx|/groups\.json) is eio: Unavailable: ",
        "a store does not open while recovery cannot read the first or last page of a sealed"
        " segment, an index of a wal topic, or the list of groups, which can be made again",
    ),
    Known(
        "*:copied:eio:*",
        r"^served",
        "records next to, or on, a page of a local segment that cannot be read are not taken from"
        " the archive, which has sound copies",
    ),
    Known(
        "frame,keratin:active:eio:*",
        r"^told",
        "a read-only store takes a page at the end of a log that cannot be read for the end",
    ),
    Known(
        "*:active,sealed,cold:eio:doctor",
        r"^found: `doctor`",
        "`lamina doctor` does not read segments whole, and so finds no page that cannot be read",
    ),
    Known(
        "*:shelf:foreign:erase",
        r"^kept: .*/topic\.json ",
        "`lamina pipeline erase` writes the archive's copy of topic.json over a file that holds the"
        " bytes of something else, and keeps no copy of them",
    ),
)
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
