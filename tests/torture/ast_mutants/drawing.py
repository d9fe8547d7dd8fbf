"""Draws mutations by a seed, evenly over all modules, so that a large module takes no more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tests.torture.ast_mutants.changes import Mutation, mutations_of

SOURCE = Path(__file__).parents[3] / "src" / "lamina"
PACKAGES = (
    "storage",
    "log",
    "wal",
    "archive",
    "groups",
    "store",
    "formats",
    "formats/documents",
    "formats/kernels",
    "formats/frame",
    "formats/keratin",
    "formats/wal",
    "formats/strm",
)
NOT_THE_LOG = frozenset(
    (*(f"store/{name}.py" for name in ("picture", "introspection")), "log/requests.py")
)
"""What shows files and stores to people; the commands' and the console's own tests hold it."""
COMPILED = frozenset(
    f"formats/kernels/{name}.py" for name in ("compile", "crc", "xxh3", "lz4", "compile_notice")
)
"""What runs while a kernel is compiled, and no more once it is cached."""


def modules() -> list[str]:
    """The files that are mutated, as paths below the package."""
    return sorted(
        str(path.relative_to(SOURCE))
        for package in PACKAGES
        for path in (SOURCE / package).glob("*.py")
        if str(path.relative_to(SOURCE)) not in NOT_THE_LOG | COMPILED
    )


def draw(count: int, seed: int, only: Sequence[str] = ()) -> list[Mutation]:
    """Draws so many mutations, one of each module in turn.

    Each mutation has its place in the row of its module by the seed and its own name, so an edit
    of one function moves no mutation of another.
    """
    piles: list[list[Mutation]] = []
    for path in modules():
        if not only or any(path.startswith(each) for each in only):
            found = mutations_of(path, (SOURCE / path).read_text())
            piles.append(sorted(found, key=lambda each: _rank(seed, each.name), reverse=True))
    drawn: list[Mutation] = []
    while len(drawn) < count and any(piles):
        piles = sorted(
            (pile for pile in piles if pile), key=lambda each: _rank(seed, each[-1].path)
        )
        drawn += [pile.pop() for pile in piles[: count - len(drawn)]]
    return drawn


def _rank(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def named(names: Sequence[str]) -> list[Mutation]:
    """The mutations of these names, as far as they are still there."""
    paths = {name.partition(":")[0] for name in names}
    found = [each for path in sorted(paths) for each in _of_module(path)]
    return [each for each in found if each.name in names]


def _of_module(path: str) -> list[Mutation]:
    at = SOURCE / path
    return mutations_of(path, at.read_text()) if at.exists() else []
