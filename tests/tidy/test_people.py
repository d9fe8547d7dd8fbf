"""docs/people.md and docs/faq.md: every row and answer says what holds it, and that test exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lamina

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "people.md").read_text()
FAQ = (ROOT / "docs" / "faq.md").read_text()
HEADINGS = ["The first minute", "The command line", "The service", "The pages", "The console"]
COLUMNS = ["what stopped a new user", "what holds now", "held by"]


def rows_of(page: str) -> list[tuple[str, list[str]]]:
    """Each row of each table, with the heading above it; the heads of tables are left out."""
    found, heading = [], ""
    for line in page.splitlines():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
            if cells != COLUMNS and set("".join(cells)) != {"-"}:
                found.append((heading, cells))
    return found


def missing_tests(page: str, root: Path = ROOT) -> list[str]:
    """What the last column of a row names and nobody finds; a row without a test, too."""
    found = []
    for heading, cells in rows_of(page):
        named = re.findall(r"`(tests/[^`]+)`", cells[-1])
        if len(cells) != len(COLUMNS) or not named:
            found.append(f"{heading}: {' | '.join(cells)}")
        found += [each for each in named if not _exists(each, root)]
    return found


def _exists(named: str, root: Path) -> bool:
    file, _, test = named.partition("::")
    path = root / file
    if not test:
        return path.exists()
    if not path.is_file():
        return False
    return test in _functions(path)


def _functions(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_each_row_names_a_test_that_exists() -> None:
    assert missing_tests(PAGE) == []


def test_the_page_has_one_table_per_way_in() -> None:
    assert re.findall(r"^## (.+)$", PAGE, re.MULTILINE) == HEADINGS
    assert PAGE.count(f"| {' | '.join(COLUMNS)} |") == len(HEADINGS)


@pytest.mark.parametrize(
    "last", ["`tests/nowhere.py`", "`tests/tidy/test_people.py::test_nothing`", "nothing"]
)
def test_a_row_without_a_test_is_found(last: str) -> None:
    assert missing_tests(f"## The pages\n| a | b | {last} |\n")
    sound = "`tests/tidy/test_people.py::test_a_row_without_a_test_is_found`"
    assert missing_tests(f"## The pages\n| a | b | {sound} |\n") == []


def unheld_answers(page: str) -> list[str]:
    """The questions whose answer names no test, or one that nobody finds."""
    found = []
    for answer in page.split("\n\n"):
        named = re.findall(r"<!-- held by `([^`]+)` -->", answer)
        if answer.startswith("**") and not (named and all(_exists(each, ROOT) for each in named)):
            found.append(answer.partition("?")[0])
    return found


def test_each_answer_of_the_faq_names_a_test_that_exists() -> None:
    assert unheld_answers(FAQ) == []
    assert len(re.findall(r"^\*\*.+\?\*\*", FAQ, re.MULTILINE)) >= 12
    assert unheld_answers("**Is it so?** Yes.") == ["**Is it so"]
    assert unheld_answers("**Is it so?** Yes.\n<!-- held by `tests/nowhere.py` -->") == [
        "**Is it so"
    ]


def test_the_faq_names_the_version_that_is_there() -> None:
    (said,) = re.findall(r"It is version (\d+\.\d+)\.", FAQ)
    assert lamina.__version__.startswith(f"{said}.")
