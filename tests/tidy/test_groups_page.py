"""The page about groups: its example runs, its links lead somewhere, its settings exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lamina.config import TopicSettings
from lamina.groups.group import Group

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "groups.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, PAGE.name, "exec"), {})
    assert (tmp_path / "data" / "groups").is_dir()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert links
    for link in links:
        assert (PAGE.parent / link).exists(), link


def test_every_call_and_setting_it_names_exists() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| (`[a-z_]+.*?`) \|", text, re.MULTILINE)
    calls = re.findall(r"`([a-z_]+)", " ".join(rows))
    assert len(calls) >= 9
    for call in calls:
        assert hasattr(Group, call), call
    for key in re.findall(r"`((?:group\.share|retention)\.[a-z.]+)", text):
        assert key in TopicSettings().as_dict(), key
