"""docs/reliability.md names every row as it is, every invariant, and what saw each mutant."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import typer.testing

from lamina.cli.main import app
from lamina_torture.page import table
from lamina_torture.rows import FAULTS, INVARIANTS, Column, rows
from lamina_torture.running import run_trials
from tests.torture.test_sees import MUTANTS

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
MATRIX = PAGE.split("## The matrix, and what was run")[1].split("\n## ")[0]


def run(*words: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["torture", *words])


def test_the_page_names_every_row_once_with_what_it_does() -> None:
    for row in rows():
        begins = f"| `{row.key}` | {row.about} |"
        (line,) = [line for line in MATRIX.splitlines() if line.startswith(begins)]
        assert " ".join(row.invariants) in line
        assert ", ".join(row.formats) in line
        run, failed = [cell.strip() for cell in line.split("|")][-3:-1]
        is_run = run != "not run" and not run.startswith("not possible here: ")
        assert failed == ("0" if is_run else "–"), "a row that failed is not published"


def test_every_row_holds_a_promise() -> None:
    held = PAGE.split("## The promise")[1].split("## Not promised")[0]
    assert [row.key for row in rows() if f"`{row.key}`" not in held] == []


def test_the_page_names_no_row_that_is_not_there() -> None:
    keys = {row.key for row in rows()}
    named = {word for word in PAGE.replace("`", " ").split() if word.split("/")[0] in FAULTS}
    named = {word.strip(",.;").partition(":")[0] for word in named if "/" in word}
    assert named <= keys


def test_the_page_names_every_invariant_and_every_mutants_row() -> None:
    for name, meaning in INVARIANTS.items():
        assert f"| {name} | {meaning} |" in PAGE
    seen = PAGE.split("## That the harness sees")[1]
    assert all(f"`{key}`" in seen for key, _, _ in MUTANTS)


def test_the_list_gives_every_row_to_programs() -> None:
    told = [json.loads(line) for line in run("--list", "--json").stdout.splitlines()]
    assert [each["row"] for each in told] == [row.key for row in rows()]
    assert all(set(each["rounds"]) == set(Column) for each in told)
    assert {each["fault"] for each in told} <= set(FAULTS)


def test_a_fault_or_column_that_is_not_there_is_refused() -> None:
    assert "no row 'F99'" in str(run("--fault", "F99").exception)
    assert "sample, ci or long" in str(run("--column", "some").exception)


def test_a_case_that_is_not_there_does_not_pass() -> None:
    result = run("--fault", "F17/jumps", "--format", "frame", "--rounds", "1", "--case", "none")
    assert result.exit_code == 1
    assert "nothing was tried" in result.stdout


def test_the_table_tells_what_a_run_did_not_reach() -> None:
    told = {"row": "F17/jumps", "format": "wal", "counts": {"cases": 3}, "not_run": ""}
    failed = {**told, "format": "frame", "failures": [{"invariant": "I8"}]}
    lines = table(rows("F17"), [json.dumps({**told, "failures": []}), json.dumps(failed)])
    assert lines[-1].endswith("| 6 cases (not keratin) | 1 |")
    assert table(rows("F17"), [])[-1].endswith("| not run | – |")
    skipped = json.dumps({**told, "counts": {}, "not_run": "no strace", "failures": []})
    assert table(rows("F17"), [skipped])[-1].endswith("| not possible here: no strace | – |")


def test_a_run_says_how_far_it_is_and_keeps_lines_that_become_the_table(tmp_path: Path) -> None:
    log = str(tmp_path / "torture.jsonl")
    result = run("--fault", "F17", "--rounds", "1", "--log", log)
    assert result.exit_code == 0
    said = result.stdout.splitlines()
    assert said[0].startswith("[1/3] F17/jumps frame: 1 cases in ")
    assert said[-1].endswith("3 hold, 0 fail, 0 are not possible here")
    kept = [json.loads(line) for line in Path(log).read_text().splitlines()]
    assert [each["format"] for each in kept] == ["frame", "keratin", "wal"]
    assert all(each["seconds"] > 0 for each in kept)
    assert run("--fault", "F17", "--table", log).stdout.strip().endswith("| 3 cases | 0 |")


def test_a_column_without_the_row_is_refused_rather_than_passed() -> None:
    assert "sample has no such row" in str(run("--fault", "F24", "--column", "sample").exception)


def test_a_trial_whose_process_dies_has_failed() -> None:
    """The trial would take hours; it is killed, and the line that runs it again is told."""
    wanted = [("F28/generations", "frame", 1 << 20)]
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lambda: list(run_trials(wanted, 5, jobs=2)))
        while not multiprocessing.active_children():
            assert not future.done()
        for process in multiprocessing.active_children():
            process.kill()
        (outcome,) = future.result()
    (failure,) = outcome.failures
    assert "ended with -9" in failure.what
    assert failure.command.endswith(
        "--fault F28/generations --format frame --seed 5 --rounds 1048576"
    )
