"""Every command has the options that docs/cli.md gives it, an example, and -h."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer

from lamina.cli import main as cli

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
TABLE = {
    row[0].strip(): re.findall(r"`([^`]+)`", row[1])
    for line in PAGE.split("## Where a command works")[1].split("\n\n")[1].splitlines()[2:]
    if (row := line.strip("|").split("|"))
}
BOTH, DIRECTORY, ARGUMENT, NOWHERE, SILENT = TABLE.values()
PLACED = {"--data", "--server", "--archive", "--ca"}
DESTRUCTIVE = [
    *("topic delete", "topic trim", "topic delete-records", "topic retention"),
    *("group seek", "group delete", "router delete", "key delete"),
    *("tier orphans", "pipeline compact", "pipeline repair", "pipeline erase"),
]


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))
    if not hasattr(group, "commands"):
        yield " ".join(words), group


ALL = dict(commands(typer.main.get_command(cli.app)))


def options(command: str) -> set[str]:
    return {name for parameter in ALL[command].params for name in parameter.opts}


def is_in(command: str, patterns: list[str]) -> bool:
    return any(fnmatch(command, pattern) for pattern in patterns)


@pytest.mark.parametrize("command", ALL)
def test_a_command_has_the_options_that_the_page_gives_it(command: str) -> None:
    given = options(command)
    kinds = [is_in(command, each) for each in (BOTH, DIRECTORY, ARGUMENT, NOWHERE)]
    assert sum(kinds) == 1, f"docs/cli.md puts {command} into one row of its first table"
    if kinds[0]:
        assert given >= PLACED
    elif kinds[1]:
        assert "--data" in given
        assert "--server" not in given
    elif kinds[2]:
        assert not given & PLACED
    assert ("--json" in given) == (not is_in(command, SILENT))


def test_the_page_names_no_command_that_does_not_exist() -> None:
    for pattern in {*BOTH, *DIRECTORY, *ARGUMENT, *NOWHERE, *SILENT} - {"server *", "--json"}:
        assert any(fnmatch(command, pattern) for command in ALL), pattern


@pytest.mark.parametrize("command", DESTRUCTIVE)
def test_a_command_that_destroys_is_a_dry_run_without_yes(command: str) -> None:
    assert "--yes" in options(command)
    assert "--yes" in (ALL[command].help or "")


@pytest.mark.parametrize(
    "command", ["", *sorted({each.partition(" ")[0] for each in ALL if " " in each}), *ALL]
)
def test_h_explains_every_command(lamina: Any, command: str) -> None:
    ran = lamina(*command.split(), "-h")
    assert ran.code == 0
    assert f"lamina {command}".rstrip() in ran.out
    if command:
        text = " ".join(ran.out.replace("│", " ").split())
        assert (
            f"Example: lamina {command.partition(' ')[0]}" in text
            or "| lamina topic produce" in text
        )


@pytest.mark.parametrize("command", ALL)
def test_every_option_is_explained(command: str) -> None:
    silent = [
        parameter.opts[0]
        for parameter in ALL[command].params
        if parameter.param_type_name == "option" and not parameter.help
    ]
    assert silent == []
