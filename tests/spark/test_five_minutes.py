"""The first section of docs/typed.md, as a reader types it: a query, a stream, a table."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lamina.cli import main as cli

PAGE = Path(__file__).parents[2] / "docs" / "typed.md"


def test_the_five_minutes_of_the_page_are_true(
    spark: SparkSession,  # the page's own session is this one
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake").mkdir()
    section = PAGE.read_text(encoding="utf-8").split("## In five minutes")[1].split("\n## ")[0]
    parts = re.findall(r"^```(py|)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in parts] == ["py", "", "py", "", "py"]
    names: dict[str, object] = {}
    for kind, text in parts:
        if kind == "py":
            # Spark itself may run elsewhere: other tests have started it.
            program = text.replace('"path", "data"', f'"path", "{tmp_path}/data"')
            exec(compile(program, "typed.md", "exec"), names)
            continue
        command, _, output = text.partition("\n")
        words = shlex.split(command.removeprefix("$ ").replace("$PWD", str(tmp_path)))
        monkeypatch.setattr(sys, "argv", words)
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        said = capsys.readouterr().out
        assert caught.value.code == 0
        assert [line.rstrip() for line in said.splitlines()] == output.splitlines() or not output
