"""The page about typed topics does what it says: its programs run, in order, in one directory."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import pytest

from lamina.formats.documents import topic_schemas

PAGE = Path(__file__).parents[2] / "docs" / "typed.md"


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) >= 4
    page = types.ModuleType("typed_page")
    monkeypatch.setitem(sys.modules, page.__name__, page)  # where dataclasses look for their names
    exec("\n".join(programs), vars(page))  # one after the other, as a reader types them


def test_the_levels_and_policies_of_the_page_are_those_of_the_code() -> None:
    from lamina.formats.typed.evolution import LEVELS
    from lamina.formats.typed.typed_scan import POLICIES

    text = PAGE.read_text(encoding="utf-8").split("## The file")[0]
    assert all(f"`{each}`" in text for each in LEVELS if "TRANSITIVE" not in each)
    policies = text.split("## Records that are not what the schema says")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", policies, re.MULTILINE)[1:] == list(POLICIES)


def test_every_field_of_the_file_is_on_the_page() -> None:
    made = topic_schemas.TopicSchemas("t", 1, "avro", "plain", "", "NONE", ())
    table = PAGE.read_text(encoding="utf-8").split("## The file")[1]
    told = [name for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", line)]  # fmt: skip
    assert told == list(json.loads(topic_schemas.encode(made)))
