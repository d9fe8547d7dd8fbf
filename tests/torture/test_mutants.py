"""Every mutant applies and names what catches it; a few are caught here, all by `make mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina_torture.rows import rows
from tests.torture.catching import ROOT, SOURCE, catch
from tests.torture.mutants import MUTANTS

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_there_are_enough_and_each_has_its_name() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 25


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mutant_applies_and_names_what_is_there(name: str) -> None:
    mutant = BY_NAME[name]
    ((path, text),) = mutant.applied().items()
    assert text != (SOURCE / "lamina" / path).read_text()
    compile(text, path, "exec")
    assert mutant.caught_by
    for catcher in mutant.caught_by:
        if catcher.startswith("tests/"):
            assert (ROOT / Path(catcher.partition("::")[0])).exists(), catcher
        else:
            key, format_name, _ = catcher.split(":")
            assert format_name in rows(key)[0].formats


@pytest.mark.long  # kernels are compiled again for each mutant
@pytest.mark.parametrize("name", ["misplaced-segment", "producer-sequence"])
def test_a_mutant_is_caught(name: str) -> None:
    assert catch(BY_NAME[name]) is not None


def test_the_page_names_every_mutant_and_what_catches_it() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text()
    for mutant in MUTANTS:
        row = f"| `{mutant.name}` |"
        line = next((each for each in page.splitlines() if each.startswith(row)), "")
        for catcher in mutant.caught_by:
            is_row = catcher.startswith("F")
            named = catcher.rpartition(":")[0] if is_row else catcher.partition("::")[0]
            assert f"`{named}`" in line, f"docs/reliability.md does not say that {named} catches it"
