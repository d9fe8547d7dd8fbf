"""Every command is on its page, every setting is explained, every page is linked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer

from lamina.cli.main import app
from lamina.client import consumer_settings
from lamina.errors import EXIT_CODES
from lamina.server.http_errors import STATUS
from lamina.server.setting_table import ServerSettings

ROOT = Path(__file__).parents[2]
CLI_PAGE = (ROOT / "docs" / "cli.md").read_text()
SERVER_PAGE = (ROOT / "docs" / "server.md").read_text()


def commands(group: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if hasattr(group, "commands"):
        for name, command in group.commands.items():
            yield from commands(command, (*words, name))
    else:
        yield words


def test_every_command_is_on_the_page_and_the_page_names_no_other() -> None:
    there = {" ".join(words) for words in commands(typer.main.get_command(app))}
    on_page = {
        line.split("`")[1]
        for line in CLI_PAGE.splitlines()
        if line.startswith("| `") and "…" not in line
    }
    assert len(there) > 15
    assert there - {"dump", "verify"} <= on_page
    assert {f"{noun} {verb}" for noun in ("segment",) for verb in ("dump", "verify")} <= there


def test_every_status_and_exit_code_is_on_its_page() -> None:
    for kind, status in STATUS.items():
        if status != 500:
            assert kind.__name__ in SERVER_PAGE
        assert str(status) in SERVER_PAGE
    for code in EXIT_CODES.values():
        assert f"{code} " in CLI_PAGE.split("Exit codes:")[1].split("\n")[0]


def test_settings_that_the_page_names_exist() -> None:
    known = {row["key"] for row in ServerSettings.explained()} | set(consumer_settings.DEFAULTS)
    kinds = ("max", "rate", "idle", "drain", "flight", "http", "tls", "keys")
    named = set(re.findall(rf"`((?:{'|'.join(kinds)})\.[a-z.]+)`", SERVER_PAGE))
    named |= set(re.findall(r"--set ([a-z.]+)=", SERVER_PAGE))
    assert named <= known
    assert len(named) > 8
