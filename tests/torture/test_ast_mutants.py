"""The mutator changes what it says, and the tests of a few modules catch what it draws there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.ast_mutants import drawing
from tests.torture.ast_mutants.changes import mutated, mutations_of
from tests.torture.ast_mutants.drawing import SOURCE, draw, modules, named
from tests.torture.ast_mutants.published import (
    CAUGHT_SINCE,
    GONE,
    LIVED,
    MAY_LIVE,
    SECOND_MAY_LIVE,
)

ROOT = Path(__file__).parents[2]
MODULES = (
    "storage/paths.py",
    "storage/files.py",
    "formats/documents/tombstone.py",
    "formats/documents/topic_file.py",
)
TESTS = ("tests/storage", "tests/formats/test_frame_files.py", "tests/formats/test_ledger_topic.py")
FUNCTION = """
def f(a, b):
    if not a < 1 and b == 2:
        raise ValueError("7")
    a.sync()
    a.close()
    return min(a[1:], b) + 3
"""
CHANGED = {
    "not": "if not not a < 1 and b == 2:",
    "comparison": "if not a <= 1 and b == 2:",
    "boolean": "if not a < 1 or b == 2:",
    "constant": "if not a < 2 and b == 2:",
    "raise": "pass",
    "call": "pass",
    "order": "a.close()\n    a.sync()",
    "extreme": "max(a[1:], b)",
    "slice": "min(a[1 + 1:], b)",
    "arithmetic": "min(a[1:], b) - 3",
    "return": "return\n",
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_change_is_made_in_one_place(kind: str) -> None:
    found = [each for each in mutations_of("f.py", FUNCTION) if each.kind == kind]
    text = ast.unparse(mutated(FUNCTION, found[0]))
    assert CHANGED[kind] in text + "\n"
    assert text != ast.unparse(ast.parse(FUNCTION))


LEFT_ALONE = """
@kernel
def k(a):
    return a + 1

@kernel_at_once(rows_at)
def at_once(a):
    return a + 1

def generates():
    @instruction
    def peek(a):
        return a + 1
    return peek

def _shown(value):
    return repr(value)[:100]

def g(a, file):
    try:
        a = a.astype(int, copy=False, size=1 << 3)
        return zip(a, a, strict=True)
    finally:
        file.close()
    raise ValueError(f"{1}", 2)
"""


def test_messages_kernels_sizes_and_what_has_no_outcome_are_left_alone() -> None:
    assert [each.kind for each in mutations_of("g.py", LEFT_ALONE)] == ["raise"]


def test_a_change_names_the_lines_that_a_test_has_to_run() -> None:
    source = (
        "def f(a):\n    if (a\n            < 1):\n        a.sync()\n        a += 2\n    return a\n"
    )
    found = {each.kind: (each.line, each.end_line) for each in mutations_of("f.py", source)}
    assert found == {"comparison": (2, 3), "constant": (5, 5), "call": (4, 4)}


def test_an_edit_of_one_function_moves_no_mutation_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "storage").mkdir()
    monkeypatch.setattr(drawing, "SOURCE", tmp_path)
    module = tmp_path / "storage" / "a.py"
    module.write_text(FUNCTION + "\ndef g(a):\n    return a + 1\n")
    before = [each.name for each in draw(100, 7)]
    module.write_text(FUNCTION + "\ndef g(a, b):\n    return a + 1 - b * 2\n")
    after = [each.name for each in draw(100, 7)]
    assert [name for name in after if ":f:" in name] == [name for name in before if ":f:" in name]
    assert {each.name for each in named(before)} == set(before) < set(after)


def test_a_draw_is_the_same_for_a_seed_takes_every_module_and_compiles() -> None:
    drawn = draw(len(modules()), 7)
    assert drawn == draw(len(modules()), 7) != draw(len(modules()), 8)
    assert len({each.path for each in drawn}) > 100
    for each in drawn[:60]:
        compile(mutated((SOURCE / each.path).read_text(), each), each.path, "exec")


def test_a_few_mutants_are_caught(tmp_path: Path) -> None:
    """Of the modules that the quickest tests hold; `make mutants-ast` draws from all of them."""
    log = tmp_path / "verdicts.jsonl"
    words = ["--count", "15", "--only", *MODULES, "--tests", *TESTS]
    words += ["--kept", str(tmp_path / "reached"), "--log", str(log)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.torture.ast_mutants", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(verdicts) == 15, ended.stdout[-2000:] + ended.stderr[-2000:]
    lived = [each["name"] for each in verdicts if not each["caught_by"]]
    assert len(lived) <= 2, lived


def test_the_page_gives_a_reason_for_each_that_may_live_or_is_gone() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for name, why in {**MAY_LIVE, **SECOND_MAY_LIVE, **GONE}.items():
        assert f"| `{name}` | {why} |" in page


def test_what_catches_a_mutant_that_lived_is_there() -> None:
    for file, caught in CAUGHT_SINCE.items():
        source = (ROOT / file).read_text()
        assert [test for test in caught.values() if f"\ndef {test}(" not in source] == []


def test_the_page_counts_what_became_of_the_survivors() -> None:
    since = sum(map(len, CAUGHT_SINCE.values()))
    page = (ROOT / "docs" / "reliability.md").read_text()
    caught = 330 - len(MAY_LIVE) - len(GONE) - len(LIVED)
    assert since + 236 == caught
    total = (330, 330, caught, len(MAY_LIVE), len(GONE), len(LIVED))
    assert f"| all | {' | '.join(map(str, total))} |" in page
