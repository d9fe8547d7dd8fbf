"""A bulk job is killed before every step that it takes on disk, its tasks' steps among them.

Without Spark: the tasks run one after the other in the process that is killed, which is a real one.
`test_jobs_bulk_killed` kills the driver of a real session at a few points.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina
from lamina.formats.strm.segment import read_from
from lamina.spark.jobs import bulk_lane, compact, erase
from lamina.store.store import Store
from tests.spark.bulk import archived_only, cold_rows, make, opened, rows
from tests.spark.killed_bulk import GONE, kill_before, run
from tests.spark.logs import fill, stored

COUNT = 500
ALONE: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
STRIDE = {"archive": 7, "compact": 7, "erase": 13}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_alone(_: Any, tasks: Any, work: Any, progress: Any) -> list[Any]:
        return [work(each) for task in tasks for each in task]

    monkeypatch.setattr(bulk_lane, "run", run_alone)


def killed_at_every(stride: int, job: str, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yields copies of a directory and its archive, each left by a kill at another step."""
    data, cold = folder / "data", folder / "cold"
    for step in range(0, 10_000, stride):
        shutil.rmtree(folder / "killed", ignore_errors=True)
        mine = folder / "killed" / "data", folder / "killed" / "cold"
        shutil.copytree(data, mine[0])
        shutil.copytree(cold, mine[1])
        child = os.fork()
        if child == 0:
            kill_before(step)
            run(job, ALONE, str(mine[0]), str(mine[1]))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            assert step > 3 * stride, "it was killed a few times"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield mine


def stays_of(job: str, before: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    if job == "erase":
        return [row for row in before if row[1] != GONE]
    if job == "compact":
        last = {row[1]: row[0] for row in before}
        return [row for row in before if row[1] is None or last[row[1]] == row[0]]
    return before


def check_every(stride: int, job: str, folder: Path) -> None:
    data, cold = folder / "data", folder / "cold"
    cold.mkdir()
    (archived_only if job == "compact" else make)(data, cold, COUNT)
    if job == "erase":
        run("archive", ALONE, str(data), str(cold))
    before = rows(data, cold)
    stays = stays_of(job, before)
    assert 0 < len(stays) <= len(before) == COUNT
    for mine in killed_at_every(stride, job, folder):
        left = rows(*mine)
        assert set(stays) <= set(left) <= set(before), "what stays is there at every moment"
        with opened(*mine) as store:
            assert not store.recovery_report.of("gap")
            fill(store, "k", 250, headers=False, first=COUNT)
        summary = run(job, ALONE, str(mine[0]), str(mine[1]))
        assert not summary.has_failed, summary.rows
        assert [row for row in rows(*mine) if row[0] < COUNT] == stays
        if job != "archive":
            end = cold_rows(mine[1])[-1][0]
            assert cold_rows(mine[1]) == [row for row in rows(*mine) if row[0] <= end]


@pytest.mark.parametrize("job", STRIDE)
def test_a_job_that_is_killed_at_some_step_loses_nothing_and_is_run_again(
    tmp_path: Path, job: str
) -> None:
    check_every(STRIDE[job], job, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("job", STRIDE)
def test_a_job_that_is_killed_at_any_step_loses_nothing_and_is_run_again(
    tmp_path: Path, job: str
) -> None:
    check_every(1, job, tmp_path)


def test_erase_reaches_objects_that_no_list_names(tmp_path: Path) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    archived_only(data, cold, COUNT)
    compact.run(ALONE, str(data), str(cold))  # those that were joined are still there
    assert len(list(cold.rglob("*.seg"))) > 2
    stays = stays_of("erase", rows(data, cold))
    done = run("erase", ALONE, str(data), str(cold))
    assert not done.has_failed, done.rows
    assert rows(data, cold) == cold_rows(cold) == stays
    for path in cold.rglob("*.seg"):
        keys = [key for batch in read_from(path.read_bytes()) for key in batch["key"].to_pylist()]
        assert keys
        assert GONE not in keys
    (cold / "data" / "k" / "0" / "manifest.json").unlink()
    assert cold_rows(cold) == stays


def test_a_reader_that_has_a_segment_open_sees_what_an_erasure_left_of_it(tmp_path: Path) -> None:
    """The last record of a segment goes: the file is another one, and its name is the same."""
    data = str(tmp_path / "data")
    with Store(data) as store:
        store.create_topic("k")
        for key in (b"stays", GONE):
            store.append("k", [{"key": key, "value": b"value of " + key}])
        store.roll("k")
        store.append("k", [{"key": b"stays", "value": b"behind"}])
    with lamina.open(data, read_only=True) as reader:
        for _ in range(2):  # a segment that was seen before is looked at in another way
            assert [row[0] for row in stored(reader, "k", 0, "offset")] == [0, 1, 2]
        assert not erase.run(ALONE, data, keys=[GONE]).has_failed
        assert [row[0] for row in stored(reader, "k", 0, "offset")] == [0, 2]
