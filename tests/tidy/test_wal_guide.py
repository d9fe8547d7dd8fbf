"""The guide to wal topics tells the settings as they are, and the words of a topic as they are."""

from __future__ import annotations

import re
from pathlib import Path

from lamina.config import DURABILITIES, WAL_ONLY_KEYS, WalSettings
from lamina.wal.engine import TOPICS_PER_MARK

GUIDE = (Path(__file__).parents[2] / "docs" / "wal.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with a heading."""
    table = GUIDE[GUIDE.index(f"| {heading} ") :].split("\n\n")[0]
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    return [[cell.strip().strip("`") for cell in line] for line in lines[2:]]


def test_every_setting_is_told_with_its_variable_default_and_unit() -> None:
    variables = {key: name for name, key in WalSettings.environment.items()}
    expected = [
        [each["key"], variables[each["key"]], str(each["default"]), each["unit"]]
        for each in WalSettings.explained()
    ]
    assert rows("key") == expected


def test_every_level_of_durability_is_on_the_page() -> None:
    assert [row[0].split("`")[0] for row in rows("level")] == list(DURABILITIES)


def test_settings_that_only_wal_topics_have_are_told() -> None:
    (told,) = re.findall(r"beside those of every format: (.*)\.\n", GUIDE)
    assert sorted(re.findall(r"`([^`]+)`", told)) == sorted(WAL_ONLY_KEYS)


def test_the_number_of_topics_copied_together_is_told() -> None:
    assert f"For up to {TOPICS_PER_MARK} topics at a time" in GUIDE
