"""The driver is killed around staging and commit; the query goes on from its checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lamina
from lamina.store.store import Store
from tests.spark.killed_driver import start
from tests.spark.logs import fill, values

ROOT = Path(__file__).parents[2]
POINTS = [
    *(("stage", step) for step in range(3)),
    *(("commit", step) for step in (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)),
]
IN_EVERY_RUN = {("stage", 1), ("commit", 8)}


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        pytest.param(*point, marks=() if point in IN_EVERY_RUN else pytest.mark.long)
        for point in POINTS
    ],
)
def test_a_killed_driver_stores_every_row_once(
    spark: SparkSession, tmp_path: Path, phase: str, step: int
) -> None:
    data, checkpoint = str(tmp_path / "data"), str(tmp_path / "checkpoint")
    with Store(data) as store:
        store.create_topic("k")
        store.create_topic("streamed", partitions=2)
        fill(store, "k", 1000, headers=False)
    command = [sys.executable, "-m", "tests.spark.killed_driver", data, checkpoint, phase]
    command.append(str(step))
    killed = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode != 0, killed.stderr
    assert "StreamingQueryException" in killed.stderr or "Py4J" in killed.stderr, killed.stderr
    assert start(spark, data, checkpoint).awaitTermination(120)
    with lamina.open(data, read_only=True) as store:
        assert values(store, "streamed") == values(store, "k")
    assert not list((tmp_path / "data" / "sink").rglob("*.part"))
