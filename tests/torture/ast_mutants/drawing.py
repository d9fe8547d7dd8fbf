"""Draws mutations by a seed, evenly over all modules, so that a large module takes no more."""

from __future__ import annotations

import random
from collections.abc import Container, Sequence
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
    (*(f"store/{name}.py" for name in ("layers", "introspection")), "log/writer_stats.py")
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


def draw(
    count: int, seed: int, only: Sequence[str] = (), called: Container[str] | None = None
) -> list[Mutation]:
    """Draws so many mutations, one of each module in turn.

    With `called`, only from functions (`path:name`) that some test calls at all.
    """
    chance = random.Random(seed)
    piles: list[list[Mutation]] = []
    for path in modules():
        if only and not any(path.startswith(each) for each in only):
            continue
        found = mutations_of(path, (SOURCE / path).read_text())
        if called is not None:
            found = [each for each in found if f"{each.path}:{each.function}" in called]
        chance.shuffle(found)
        if found:
            piles.append(found)
    drawn: list[Mutation] = []
    while len(drawn) < count and piles:
        chance.shuffle(piles)
        for pile in piles:
            drawn.append(pile.pop())
            if len(drawn) == count:
                break
        piles = [pile for pile in piles if pile]
    return drawn
