"""The driver of a bulk job is killed around its commit: nothing is lost, a second run ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lamina.spark.jobs import verify
from tests.spark.bulk import archived_only, cold_rows, make, opened, rows
from tests.spark.killed_bulk import GONE, run
from tests.spark.logs import fill

ROOT = Path(__file__).parents[2]
POINTS = [
    *(("archive", step) for step in (8, 12, 16, 20, 24)),
    *(("compact", step) for step in (8, 14, 18, 22, 26, 30, 34)),
    *(("erase", step) for step in (8, 14, 20, 26, 30, 36, 42, 50, 60, 80, 110, 140)),
]
COUNT = 500


@pytest.mark.long  # without a Spark of its own, every run kills them in test_jobs_bulk_steps
@pytest.mark.parametrize(("job", "step"), POINTS)
def test_a_killed_bulk_job_loses_nothing_and_ends_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path, job: str, step: int
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    (archived_only if job == "compact" else make)(data, cold, COUNT)
    before = rows(data, cold)
    stays = {
        "archive": before,
        "compact": [row for row in before if row in _last(before)],
        "erase": [row for row in before if row[1] != GONE],
    }[job]
    command = [sys.executable, "-m", "tests.spark.killed_bulk", job, str(data), str(cold)]
    killed = subprocess.run(
        [*command, str(step)], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert killed.returncode == -9, killed.stdout + killed.stderr
    with opened(data, cold) as store:  # producers go on
        fill(store, "k", 250, headers=False, first=COUNT)
    left = set(rows(data, cold))
    assert left >= set(stays), "what stays is there at every moment"
    run(job, spark, str(data), str(cold))
    again = run(job, spark, str(data), str(cold))
    assert again.totals.get("records", again.totals.get("erased", 0)) == 0
    found = rows(data, cold)
    assert [row for row in found if row[0] < COUNT] == stays
    if job == "archive":
        end = len(cold_rows(cold))
        assert end > COUNT // 2
        assert cold_rows(cold) == found[:end]
    if job == "erase":
        assert not verify.run(spark, str(data), str(cold)).rows


def _last(before: list[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """The last record of each key, and all without one."""
    last = {row[1]: row for row in before if row[1] is not None}
    return {*last.values(), *(row for row in before if row[1] is None)}
