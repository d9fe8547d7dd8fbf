"""Every defect can still be put back; a few are here, all by `make track-record`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.ast_mutants.drawing import SOURCE
from tests.torture.defects import DEFECTS, Defect
from tests.torture.track_record import PAGE, RECORD, ROOT, page

PUT_BACK = [each for each in DEFECTS if each.pieces]
NAMING = (ROOT / "docs" / "reliability.md", ROOT / "tests/torture/ast_mutants/published.py")
SAMPLE = ("zeros-of-a-roll", "jumping-clock", "directory-not-durable")


@pytest.mark.parametrize("defect", PUT_BACK, ids=lambda each: each.name)
def test_a_defect_can_be_put_back_and_names_what_catches_it(defect: Defect) -> None:
    for path, text in defect.sources(SOURCE).items():
        assert text != (SOURCE / path).read_text()
        compile(text, path, "exec")
    file, _, test = defect.caught_by.partition("::")
    if file.startswith("tests/"):
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_what_is_not_put_back_says_why_and_names_are_given_once() -> None:
    assert all(each.not_put_back for each in DEFECTS if not each.pieces)
    assert len({each.name for each in DEFECTS}) == len(DEFECTS)


def test_each_was_seen_to_be_caught_at_a_commit_and_the_page_says_so() -> None:
    record = json.loads(RECORD.read_text())
    assert record.keys() == {each.name for each in PUT_BACK}, "run `make track-record`"
    assert PAGE.read_text() == page(), "run `python -m tests.torture.track_record --page`"


def test_every_commit_that_is_named_is_one_of_this_history() -> None:
    """A commit that was moved, and landed under another name, can be looked up by nobody."""
    if not _is_whole_clone():
        pytest.skip("it takes git, and a clone with all of its history")
    told = {*re.findall(r"commit `([0-9a-f]{7,40})`", "".join(map(Path.read_text, NAMING)))}
    named = {*json.loads(RECORD.read_text()).values(), *told}
    lost = [each for each in named if _git("merge-base", "--is-ancestor", each, "HEAD").returncode]
    assert not lost, "run `make track-record` for what names them, on a branch that is not moved"


def _is_whole_clone() -> bool:
    if shutil.which("git") is None:
        return False
    return _git("rev-parse", "--show-prefix", "--is-shallow-repository").stdout.split() == ["false"]


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_some_of_them_are_caught() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.torture.track_record", "--check", *SAMPLE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert f"{len(SAMPLE)} of {len(SAMPLE)} defects are caught" in ended.stdout
