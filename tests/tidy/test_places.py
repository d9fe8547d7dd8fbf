"""Paths that pages and sources name are in this tree, and so are the tests named behind them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.test_architecture import is_defined, located

ROOT = Path(__file__).parents[2]
ROOMS = "tests|src|benchmarks|docs|examples|console|lamina_torture"
PLACE = re.compile(rf"(?<![\w./~<-])((?:{ROOMS})/[\w./*-]*\w)(?:::(\w+))?(?![\w<{{])")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def wrong_places(page: Path, text: str) -> list[str]:
    """What a text names and the tree does not have."""
    wrong = []
    for path, test in PLACE.findall(text):
        found = next(page.parent.glob(path), None) or next(ROOT.glob(path), None) or located(path)
        if found is None or (test and not is_defined(found, test)):
            wrong.append(f"{path}::{test}" if test else path)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_on_a_page_is_in_the_tree(page: Path) -> None:
    assert wrong_places(page, page.read_text(encoding="utf-8")) == []


def test_every_path_in_the_source_is_in_the_tree() -> None:
    wrong = {path: wrong_places(path, path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_a_wrong_place_is_noticed() -> None:
    here = "tests/tidy/test_places.py"
    text = f"`tests/engine/test_x.py`, {here}::test_nothing, {here}::test_a_wrong_place_is_noticed"
    assert wrong_places(PAGES[0], text) == ["tests/engine/test_x.py", f"{here}::test_nothing"]
