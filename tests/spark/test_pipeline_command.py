"""`lamina pipeline` and the end of `lamina demo`, through the program's own `main`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lamina
from lamina.cli import main as cli
from lamina.cli import pipeline_running
from lamina.spark.jobs.job import Summary
from lamina.store.store import Store
from tests.spark.logs import fill, records, values

TIME = "1700000000000:1700000000100"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with Store(str(path)) as store:
        store.create_topic("k", partitions=2)
        store.create_topic("other")
        fill(store, "k", 500, headers=True)
    return path


@pytest.fixture
def pipeline(
    spark: SparkSession,
    log: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Runs a job in this process, with the session that is there; returns code, lines, errors."""

    def run(*words: object) -> tuple[int, list[Any], str]:
        given = ["lamina", "pipeline", *map(str, words), "--data", str(log), "--json"]
        monkeypatch.setattr(sys, "argv", given)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, [json.loads(line) for line in out.splitlines()], err

    return run


def test_each_job_runs_and_says_what_it_did(pipeline: Any, log: Path, tmp_path: Path) -> None:
    rules = ("--map", "headers=drop", "--map", "value=none")
    code, lines, err = pipeline("convert", "k", "plain", "--format", "frame", *rules)
    assert (code, lines[-1]["records"], err) == (0, 500, "")
    assert sum(row["records"] for row in lines[:-1]) == 500
    code, lines, _ = pipeline("replay", "k", "other", "-o", f"@{TIME}")
    assert (code, lines[-1]["job"], lines[-1]["records"]) == (0, "replay", 100)
    (tmp_path / "more.csv").write_text("value\nfrom a file\n")
    code, lines, _ = pipeline("ingest", tmp_path / "more.csv", "other", "--format", "csv")
    assert (code, lines[-1]["records"]) == (0, 1)
    code, lines, _ = pipeline("profile", "k", "--html", tmp_path / "page.html")
    assert (code, lines[-1]["records"]) == (0, 500)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with lamina.open(str(log), read_only=True) as store:
        assert sum(values(store, "other").values()) == 101
        assert values(store, "plain") == values(store, "k")


def test_exit_codes_are_those_of_the_errors(pipeline: Any, tmp_path: Path) -> None:
    code, lines, err = pipeline("convert", "k", "plain", "--format", "frame")
    assert (code, lines) == (2, [])
    assert "--map headers=drop|none" in err
    assert pipeline("export", "missing", tmp_path / "out")[0] == 2
    assert pipeline("export", "k", "s3://bucket/table")[0] == 2
    code, _, err = pipeline("ingest", tmp_path / "nothing", "other")
    assert (code, "PATH_NOT_FOUND" in err) == (2, True)


def test_what_takes_records_away_is_a_dry_run_until_yes(pipeline: Any, log: Path) -> None:
    with lamina.open(str(log), read_only=True) as store:
        before = values(store, "k")
    erase = ("erase", "--key", "key 1")
    for words in (erase, (*erase, "--dry-run", "--yes"), ("repair",)):
        code, lines, _ = pipeline(*words)
        assert (code, lines[-1]["dry_run"]) == (0, True)
    with lamina.open(str(log), read_only=True) as store:
        assert values(store, "k") == before
    for words in (erase, ("repair",)):
        code, lines, _ = pipeline(*words, "--yes")
        assert (code, lines[-1]["dry_run"]) == (0, False)
    with lamina.open(str(log), read_only=True) as store:
        left = values(store, "k")
    erased = [each["value"] for each in records(0, 500) if each["key"] == b"key 1"]
    assert before - left == Counter(erased)


def test_compacting_by_key_is_a_dry_run_until_yes(pipeline: Any, log: Path, tmp_path: Path) -> None:
    compact = ("compact", "--archive", tmp_path / "cold")
    for words, is_dry in {(): False, ("--keep-last",): True, ("--keep-last", "-y"): False}.items():
        code, lines, _ = pipeline(*compact, *words)
        assert (code, lines[-1]["dry_run"]) == (0, is_dry)


def test_findings_end_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    found = Summary("verify", False, [{"path": "a\x1b[2J"}], {"findings": 1}, has_failed=True)
    pipeline_running.emit(found, as_json=False)
    out = capsys.readouterr().out
    assert out.endswith("verify: failed: findings 1\n")
    assert "\x1b" not in out


def test_the_program_itself_prints_json_and_nothing_else(log: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lamina.cli.main", "pipeline", "export", "k"]
    command += [str(tmp_path / "out"), "--data", str(log), "--json", "--master", "local[1]"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()][-1]["records"] == 500
    assert ran.stderr == "", "Spark's own log is for a file, and a bar for terminals"


@pytest.mark.long  # `make demo` is the same, and longer than the other commands together
def test_the_demo_ends_with_the_pipeline(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lamina", "demo"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    out = capsys.readouterr().out
    end = out[out.rindex("a producer is killed") :]
    steps = (
        "kill -9",
        "archived up to offset",
        "the stream runs",
        "it runs again",
        "$ lamina verify",
    )
    places = [end.index(step) for step in steps]
    assert places == sorted(places)
    stored = [line.rpartition("holds ")[2] for line in end.splitlines() if "till-3 holds" in line]
    assert len(stored) == 2
    assert stored[0] == stored[1]
    assert end.count("all sound") == 2


def test_a_session_that_another_thread_has_started_is_left_running(spark: SparkSession) -> None:
    """Spark's active session is a thread's own: where there is none, there may still be one."""

    def use() -> int:
        with pipeline_running.spark_session("local[1]") as found:
            return found.range(3).count()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(use).result() == 3
    assert spark.range(4).count() == 4
