"""docs/architecture.md speaks of this tree: every path and every name that it mentions is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.house_map import crossed_by_an_append, modules, single_importers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BASES = (ROOT / "src" / "lamina", ROOT / "src", ROOT)
CROSSED_MAX = 12
"""Modules that an append of one record may cross."""
COUNTED_WITHIN = 0.1
"""How far the page may lag behind the tree before a figure of it is to be renewed."""
ASSERTION = re.compile(r"^\s*assert\b", re.MULTILINE)
PLACE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+(?:\.py|\.md|/))(?::([A-Za-z_][\w.]*))?`")

MODULE = re.compile(r"`(\w+\.py|lamina(?:_torture)?(?:\.\w+)+)`")


def places(text: str) -> list[tuple[str, str | None]]:
    """Paths in backticks, each with the name behind its colon: `log/commit.py:Writer.append`."""
    return [(path, name or None) for path, name in PLACE.findall(text)]


def located(path: str) -> Path | None:
    return next((base / path for base in BASES if (base / path).exists()), None)


def is_defined(path: Path, name: str) -> bool:
    scope: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in scope if part in _names(node)]
        if not found:
            return False
        scope = getattr(found[0], "body", [])
    return True


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def is_there(name: str, files: set[str]) -> bool:
    """Whether a module (`recovery.py`), or something by its whole name (`lamina.open`), exists."""
    if name.endswith(".py"):
        return name in files
    folder, parts = ROOT / "src", name.split(".")
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if not parts:
        return True
    module = folder / f"{parts[0]}.py"
    if module.exists():
        return len(parts) == 1 or re.search(rf"\b{parts[1]}\b", module.read_text()) is not None
    return re.search(rf"\b{parts[0]}\b", (folder / "__init__.py").read_text()) is not None


def test_modules_that_sources_speak_of_are_there() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    files = {path.name for path in sources}
    spoken = {(path, name) for path in sources for name in MODULE.findall(path.read_text())}
    assert len(spoken) > 50
    assert sorted((path, name) for path, name in spoken if not is_there(name, files)) == []


@pytest.mark.parametrize(("path", "name"), sorted(set(places(PAGE.read_text())), key=str))
def test_what_the_page_mentions_is_in_the_tree(path: str, name: str | None) -> None:
    found = located(path)
    assert found is not None, f"there is no {path}"
    assert name is None or is_defined(found, name), f"{path} defines no {name}"


def test_the_page_has_every_package() -> None:
    text = PAGE.read_text()
    rooms = {each.package for each in modules().values()} - {"lamina", "__main__", "pyspark_lamina"}
    assert sorted(room for room in rooms if not re.search(rf"`{room}(?:/|\.py|`)", text)) == []


def stated(text: str, row: str) -> int:
    """The figure that a row of the table "Before and after" gives of the present tree."""
    found = re.search(rf"^\| {row} \|[^|]*\| about ([\d,]+)", text, re.MULTILINE)
    assert found is not None, f"there is no row {row}"
    return int(found[1].replace(",", ""))


def test_what_the_page_counts_is_what_there_is() -> None:
    text, found = PAGE.read_text(), modules()
    lines = sum(each.lines for each in found.values() if each.package != "lamina_torture")
    assert stated(text, "lines of `src/lamina`") == pytest.approx(lines, rel=COUNTED_WITHIN)
    alone = stated(text, "modules with one importer")
    assert alone == pytest.approx(len(single_importers(found)), rel=COUNTED_WITHIN)
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    asserted = sum(len(ASSERTION.findall(each)) for each in tests)
    assert stated(text, "assertions in `tests`") == pytest.approx(asserted, rel=COUNTED_WITHIN)


def test_an_append_crosses_few_modules() -> None:
    crossed = crossed_by_an_append()
    assert len(crossed) <= CROSSED_MAX, crossed
    assert {"lamina.store.store", "lamina.log.commit", "lamina.storage.files"} <= set(crossed)


def test_a_wrong_place_is_noticed() -> None:
    assert places("see `log/commit.py:Writer.append` and `storage/`") == [
        ("log/commit.py", "Writer.append"),
        ("storage/", None),
    ]
    assert located("log/nothing.py") is None
    assert is_there("lamina.log.commit.Writer", set())
    assert not is_there("lamina.log.commit.Vanished", set())
    assert not is_there("lamina.engine.view", set())
    assert not is_there("active.py", {"active_segment.py"})
    commit = located("log/commit.py")
    assert commit is not None
    assert is_defined(commit, "Writer.append")
    assert not is_defined(commit, "Writer.vanish")
