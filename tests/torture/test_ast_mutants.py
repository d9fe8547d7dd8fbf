"""The mutator changes what it says, and the tests of a few modules catch what it draws there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.ast_mutants.changes import mutated, mutations_of
from tests.torture.ast_mutants.drawing import SOURCE, draw, modules
from tests.torture.ast_mutants.published import MAY_LIVE

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


def test_messages_kernels_and_sizes_are_left_alone() -> None:
    source = (
        "@kernel\ndef k(a):\n    return a + 1\ndef g():\n    raise ValueError(f'{1}', 2, 1 << 3)\n"
    )
    assert [each.kind for each in mutations_of("g.py", source)] == ["raise"]


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
    words += ["--map", str(tmp_path / "calls.json"), "--log", str(log)]
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


def test_the_page_gives_a_reason_for_each_that_may_live() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for name, why in MAY_LIVE.items():
        assert f"| `{name}` | {why} |" in page
