"""A tree with a file of every kind, and the program's own `main`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from lamina.cli import main as cli
from tests.cli.tree import KINDS, Ran


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, (_, data) in KINDS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


@functools.cache
def built() -> Any:
    """All commands, made once: doing that for each call takes longer than what most of them do."""
    return typer.main.get_command(cli.app)


@pytest.fixture
def lamina(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the program's own `main` in this process: options, errors and exit codes included."""

    monkeypatch.setattr(cli, "app", built())

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["lamina", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert isinstance(caught.value.code, int)
        out, err = capsys.readouterr()
        return Ran(caught.value.code, out, err)

    return run
