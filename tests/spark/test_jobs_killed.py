"""The driver of a job is killed around its commit; run again, every record is there once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import lamina
from lamina.spark.jobs.lakes.parquet_table import committed
from lamina.store.store import Store
from tests.spark.killed_job import run
from tests.spark.logs import START_MS, fill, values

ROOT = Path(__file__).parents[2]
POINTS = [
    # before and behind the intent, staged, decided, half stored, stored, swept, remembered
    *(("convert", step) for step in (3, 5, 6, 18, 30, 31, 33, 35, 36, 38, 40, 50, 52)),
    # staged, before and behind the commit, no file moved, one of two, both
    *(("export", step) for step in (3, 4, 5, 6, 8, 9, 10, 11, 13)),
    # before and behind Delta's commit
    *(("delta", step) for step in (2, 3)),
]
IN_EVERY_RUN = {("convert", 35), ("export", 10)}
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("job", "step"),
    [
        pytest.param(*point, marks=() if point in IN_EVERY_RUN else pytest.mark.long)
        for point in POINTS
    ],
)
def test_a_killed_job_is_done_once_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path, job: str, step: int
) -> None:
    data = str(tmp_path / "data")
    with Store(data) as store:
        store.create_topic("k", partitions=2)
        store.create_topic("plain", partitions=2, format="frame")
        fill(store, "k", 500, headers=True)
        store.append("k", [{"value": b"a day later", "timestamp": START_MS + DAY_MS}])
        everything = values(store, "k")
    command = [sys.executable, "-m", "tests.spark.killed_job", job, data, str(step)]
    killed = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stdout + killed.stderr
    assert exported(job, tmp_path) in (Counter(), everything), "a crash leaves no half"
    with Store(data) as store:  # producers go on
        fill(store, "k", 250, headers=True, first=500)
        everything = values(store, "k")
    run(job, spark, data)
    again = run(job, spark, data)
    assert again.totals["records"] == 0
    if job == "convert":
        with lamina.open(data, read_only=True) as store:
            assert values(store, "plain") == everything
        assert not list((tmp_path / "data" / "sink").rglob("*.part"))
    else:
        assert exported(job, tmp_path) == everything
        assert not list(tmp_path.rglob("staging/*/*"))


def exported(job: str, beside: Path) -> Counter[bytes]:
    """The values that a reader of the table sees."""
    found: Counter[bytes] = Counter()
    if job == "export" and (beside / "table").exists():
        for path in committed(str(beside / "table")):
            found.update(pq.read_table(path, partitioning=None)["value"].to_pylist())
    if job == "delta" and (beside / "delta" / "_delta_log").exists():
        found.update(DeltaTable(str(beside / "delta")).to_pyarrow_table()["value"].to_pylist())
    return found
