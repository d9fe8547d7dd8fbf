"""The axes of the cross product, and the cells that cannot be: each with its reason.

    format × tier × damage × user  =  a cell

A cell is tried by drawing a file of its tier and a spot in it: `sealed:bit:scan:17` is the 17th
draw of a cell of the row's format. What a cell promises is in `promise`, what a user does in
`users` and its neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

FORMATS = ("frame", "keratin", "wal")
"""The formats of a topic; archived objects are a tier of each."""

TIERS: dict[str, str] = {
    "wal": "the write-ahead log, of records that are nowhere else yet",
    "active": "the segment that still grows, and its indexes",
    "sealed": "a sealed segment that is not archived, and its indexes",
    "copied": "a sealed segment that the archive has as well, and its indexes",
    "cold": "a segment that was moved to the cold directory",
    "object": "an object of the archive, of local records or of records that are nowhere else",
    "metadata": "the files beside the logs: identity, topics, ledgers, groups, snapshots",
    "shelf": "the files beside the objects: the lists, and the archive's copies of metadata",
}
"""Where the damaged file lies."""

DAMAGES: dict[str, str] = {
    "bit": "one bit is flipped",
    "cut": "the file ends early",
    "gone": "the file is not there",
    "foreign": "the file holds the bytes of something else",
    "newer": "the file says that it is of the next version, with a checksum that fits",
    "eio": "one page of the file cannot be read",
}
"""What happened to it."""

ARCHIVED_TIERS = ("copied", "object", "shelf")
"""The tiers that only a store with an archive has."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the cross product."""

    format: str
    tier: str
    damage: str
    user: str

    def case(self, draw: int) -> str:
        """Names one draw of the cell; the row's own `--format` names the format."""
        return f"{self.tier}:{self.damage}:{self.user}:{draw}"


def is_archived(tier: str, draw: int) -> bool:
    """Whether a draw's store has an archive: always where the tier needs one, else every other."""
    return tier in ARCHIVED_TIERS or draw % 2 == 1


def impossible(cell: Cell) -> str | None:
    """Returns why a cell cannot be, or None. What a user cannot meet is said by the user itself."""
    if cell.format != "wal" and cell.tier in ("wal", "cold"):
        return "only wal topics have a write-ahead log and a cold directory"
    return None


def ordered(cells: list[Cell], luck: random.Random) -> Iterator[Cell]:
    """Yields cells so that users take turns, and within a user tiers and damages are mixed."""
    by_user: dict[str, list[Cell]] = {}
    for cell in cells:
        by_user.setdefault(cell.user, []).append(cell)
    waiting = [by_user[name] for name in sorted(by_user)]
    for each in waiting:
        luck.shuffle(each)
    while waiting:
        for each in waiting:
            yield each.pop()
        waiting = [each for each in waiting if each]
