"""docs/spark.md: its programs run, one after the other, and print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lamina.spark.options import SOURCE_OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
PLACES = ("data", "cold", "checkpoint")


def masked(text: str) -> list[str]:
    """Lines without counts of bytes, which may change, nor of objects: a tier moves by itself."""
    lines = re.sub(r"\d+ bytes", "… bytes", text).splitlines()
    return [_without_tier(line.rstrip()) for line in lines if line.strip()]


def _without_tier(line: str) -> str:
    if "objects skipped" not in line:
        return line
    return re.sub(r"\d+", "…", re.sub(r", \d+ blocks, \d+ blocks skipped", "", line))


def test_the_programs_of_the_page_run_and_print_what_it_says(
    spark: SparkSession,  # the page's own session is this one
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert {kind for kind, _ in parts} == {"python", ""}
    names: dict[str, object] = {}
    said = ""
    for kind, text in parts:
        if kind == "python":
            # Spark itself may run elsewhere: other tests have started it.
            program = re.sub(rf'"({"|".join(PLACES)})"', rf'"{tmp_path}/\1"', text)
            capfd.readouterr()
            exec(compile(program, "spark.md", "exec"), names)
            said = capfd.readouterr().out
        else:
            assert masked(said) == masked(text)


def test_every_option_of_the_source_is_on_the_page() -> None:
    named = set(re.findall(r"`([\w.]+)`", PAGE.split("## Reading")[1].split("### Every tier")[0]))
    missing = {each for each in SOURCE_OPTIONS if each not in named}
    assert not missing
