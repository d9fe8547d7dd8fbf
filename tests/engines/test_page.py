"""docs/engines.md: its program runs, and again in one directory; its columns are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lamina.engines.table_columns import schema_of

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()


def test_the_program_of_the_page_runs_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    for _ in range(2):
        exec(compile(block, "engines.md", "exec"), {})


def test_the_page_names_every_column() -> None:
    named = set(re.findall(r"^\| (`.*?) \|", PAGE.split("## Columns")[1].split("##")[0], re.M))
    told = {name for cell in named for name in re.findall(r"`(\w+)`", cell)}
    assert told == {name for each in ("frame", "keratin", "wal") for name in schema_of(each).names}
