"""The row jobs on topics of which most is archived: all of it, or an error, or counted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lamina.cli import main as cli
from tests.server.rig import served
from tests.spark.test_left_out import COUNT, make

FORMATS = ("keratin", "wal")
ENDED_WELL, DAMAGED, UNAVAILABLE = 0, 1, 3


@pytest.fixture
def pipeline(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs a job in this process; returns its exit code, its last line, and what it complained."""

    def run(*words: object) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setattr(sys, "argv", ["lamina", "pipeline", *map(str, words), "--json"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, json.loads((out.splitlines() or ["{}"])[-1]), err

    return run


def jobs(path: Path, where: tuple[str, ...], number: int) -> Iterator[tuple[str, ...]]:
    """Every job that reads a topic's records, each under a name that was not used before."""
    state = ("--state", str(path / "state")) if "--server" in where else ()
    yield "profile", "t", *where
    yield "export", "t", str(path / f"lake-{number}"), *where
    yield "convert", "t", f"copy-{number}", "--format", "keratin", *state, *where
    yield "replay", "t", f"copy-{number}", "-o", ":end", "--id", "again", *state, *where


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_job_reads_what_is_archived_without_being_told_where(
    tmp_path: Path, pipeline: Any, format_name: str
) -> None:
    make(tmp_path, format_name)
    mapped = ("--map", "tag=key", "--map", "node=drop") if format_name == "wal" else ()
    for job in jobs(tmp_path, ("--data", str(tmp_path / "data")), 1):
        code, last, err = pipeline(*job, *(mapped if job[0] in ("convert", "replay") else ()))
        assert (code, last["records"], err) == (ENDED_WELL, COUNT, ""), job
        assert "left_out" not in last
    with served(tmp_path / "data") as service:
        for job in jobs(tmp_path, ("--server", service.flight_url), 2):
            code, last, _ = pipeline(*job, *(mapped if job[0] in ("convert", "replay") else ()))
            assert (code, last["records"]) == (ENDED_WELL, COUNT), job


def test_no_job_goes_on_without_an_archive_that_is_away(tmp_path: Path, pipeline: Any) -> None:
    make(tmp_path, "keratin")
    os.rename(tmp_path / "cold", tmp_path / "elsewhere")
    data = "--data", str(tmp_path / "data")
    for number, where in enumerate([data, (*data, "--skip-lost")]):
        for job in jobs(tmp_path, where, number):
            code, last, err = pipeline(*job)
            assert (code, last) == (UNAVAILABLE, {}), (job, err)
            assert "archive" in err
    code, last, _ = pipeline("export", "t", tmp_path / "lake", *data, "--archive", "")
    assert (code, last) == (UNAVAILABLE, {})
    where = ("--archive", str(tmp_path / "elsewhere"))
    code, last, _ = pipeline("export", "t", tmp_path / "lake", *data, *where)
    assert (code, last["records"]) == (ENDED_WELL, COUNT)


def test_a_damaged_object_stops_a_job_or_is_counted_in_its_report(
    tmp_path: Path, pipeline: Any
) -> None:
    make(tmp_path, "keratin")
    victim = sorted((tmp_path / "cold" / "data" / "t" / "0").glob("*.seg"))[1]
    victim.unlink()
    data = "--data", str(tmp_path / "data")
    code, _, err = pipeline("export", "t", tmp_path / "lake", *data)
    assert code == DAMAGED
    assert victim.name in err
    for job in jobs(tmp_path, (*data, "--skip-lost"), 1):
        code, last, _ = pipeline(*job)
        assert code == ENDED_WELL, job
        assert last["left_out"] == COUNT - last["records"] > 0
        assert any(victim.name in each for each in last["left_out_ranges"])
