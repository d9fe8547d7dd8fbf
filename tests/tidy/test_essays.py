"""Every package begins with an essay: what lives there, its rules, and where to look."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
LINES = range(20, 81)
FACES = {"lamina", "pyspark_lamina"}
"""What users import: their docstrings are for users."""


def packages() -> list[str]:
    found = (path.parent.relative_to(SOURCE) for path in SOURCE.rglob("__init__.py"))
    return sorted(str(each) for each in found if str(each) not in FACES)


def essay_of(package: str) -> str:
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    return ast.get_docstring(tree) or ""


def unknown_names(package: str, essay: str) -> list[str]:
    """Names in backticks that look like modules of the package and are none."""
    folder = SOURCE / package
    there = {path.stem for path in folder.iterdir()}
    listed = re.findall(r"^    ([a-z_]+)(?:  +\S)", essay, re.MULTILINE)
    return sorted({name for name in listed if name not in there and "_" in name})


@pytest.mark.parametrize("package", packages())
def test_a_package_begins_with_an_essay(package: str) -> None:
    essay = essay_of(package)
    assert len(essay.splitlines()) + 1 in LINES
    assert "Rules." in essay or "Rule:" in essay
    assert unknown_names(package, essay) == []


@pytest.mark.parametrize("package", packages())
def test_an_essay_names_every_module_of_its_package(package: str) -> None:
    essay = essay_of(package)
    names = {path.stem for path in (SOURCE / package).glob("*.py")} - {"__init__"}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", essay)) == []


def test_an_unknown_module_is_noticed() -> None:
    assert unknown_names("lamina/wire", "    no_such_thing   what it does") == ["no_such_thing"]
