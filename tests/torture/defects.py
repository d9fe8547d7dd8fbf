"""The defects that were ever found in Lamina, as data: what happened, how each is put back, and
which test or row of the matrix (`F17/jumps:frame:3` is the row, a format, a number of rounds)
catches it then. `track_record` runs them.

Each file of `found` is a chapter. Its entries have:

    name, what      a defect, and what was seen of it
    caught_by       the test or row that fails while it is there
    piece           a file below the package, what stands in it `now`, and what stood there `before`
    mutant          instead of pieces: the mutant of `tests.torture.mutants` that puts it back
    apart           what catches it starts other processes: they need a copy of the source
    not_put_back    instead of pieces: the reason why it is not
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.mutants import MUTANTS
from tests.torture.placing import put

FOUND = Path(__file__).parent / "found"
Piece = tuple[str, str, str]
"""A file below the package, what stands in it, and what stood there while the defect did."""


@dataclass(frozen=True)
class Defect:
    """One defect: put back by its pieces, or the reason why it is not."""

    chapter: str
    name: str
    what: str
    caught_by: str
    pieces: tuple[Piece, ...] = ()
    apart: bool = False
    not_put_back: str = ""

    @property
    def is_row(self) -> bool:
        """Whether a row of the matrix catches it, and no test."""
        return self.caught_by.startswith("F")

    def sources(self, root: Path) -> dict[str, str]:
        """The files with the defect in them; each piece must be there, once."""
        found: dict[str, str] = {}
        for path, now, before in self.pieces:
            try:
                found = put(root, found, path, now, before)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from error
        return found


def _defect(chapter: str, entry: dict[str, Any]) -> Defect:
    entry = dict(entry)
    pieces = [(each["file"], each["now"], each["before"]) for each in entry.pop("piece", ())]
    mutant = entry.pop("mutant", None)
    pieces += [(each.path, each.old, each.new) for each in MUTANTS if each.name == mutant]
    if mutant is not None and not pieces:
        raise LookupError(f"{entry['name']}: there is no mutant {mutant!r}")
    return Defect(chapter, pieces=tuple(pieces), **entry)


def _read(path: Path) -> list[Defect]:
    found = tomllib.loads(path.read_text())
    return [_defect(found["chapter"], entry) for entry in found["defect"]]


DEFECTS = tuple(defect for path in sorted(FOUND.glob("*.toml")) for defect in _read(path))
