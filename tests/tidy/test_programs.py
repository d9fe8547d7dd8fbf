"""Programs that no test runs can at least be loaded: every module below benchmarks and examples."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def programs() -> list[str]:
    """The dotted names of all modules that are started by hand."""
    found = [
        *(path.relative_to(ROOT) for path in (ROOT / "benchmarks").rglob("*.py")),
        *(path.relative_to(ROOT / "examples") for path in (ROOT / "examples").rglob("*.py")),
    ]
    return sorted(".".join(path.with_suffix("").parts) for path in found)


@pytest.mark.parametrize("name", programs())
def test_every_program_can_be_loaded(name: str) -> None:
    importlib.import_module(name)


def test_all_of_them_are_found() -> None:
    assert {"benchmarks.jobs", "benchmarks.field.suite"} <= set(programs())
