"""Pieces of code are found where they are now, and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.placing import put

CODE = "class A:\n    def f(self):\n        self.sync()\n        self.close()\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text(CODE)
    (tmp_path / "b.py").write_text("x = 1\n")
    return tmp_path


def test_a_piece_is_replaced_as_it_is_written_down(root: Path) -> None:
    assert put(root, {}, "a.py", "self.sync()\n", "pass\n") == {
        "a.py": CODE.replace("self.sync()", "pass")
    }


@pytest.mark.parametrize("named", ["a.py", "b.py", "gone.py"])
def test_code_that_moved_or_is_indented_otherwise_is_found(root: Path, named: str) -> None:
    now, before = "    self.sync()\n    self.close()\n", "    if self:\n        self.close()\n"
    found = put(root, {}, named, now, before)
    assert found == {
        "a.py": "class A:\n    def f(self):\n        if self:\n            self.close()\n"
    }


def test_pieces_add_up(root: Path) -> None:
    found = put(root, {"b.py": "x = 2\n"}, "a.py", "self.close()", "pass")
    assert put(root, found, "b.py", "x = 2", "x = 3") == {
        "a.py": CODE.replace("self.close()", "pass"),
        "b.py": "x = 3\n",
    }


def test_what_is_not_there_or_there_twice_is_an_error(root: Path) -> None:
    with pytest.raises(ValueError, match="0 times"):
        put(root, {}, "a.py", "self.open()\n", "")
    (root / "b.py").write_text("if True:\n    self.sync()\n")
    with pytest.raises(ValueError, match="2 times"):
        put(root, {}, "gone.py", "self.sync()\n", "")
    with pytest.raises(ValueError, match="2 times"):
        put(root, {}, "a.py", "self.", "")
