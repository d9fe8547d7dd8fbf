"""What a Python worker of Spark loads: no more than it needs, for each has to load it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lamina.spark.worker_daemon import BEFORE_FORK, WORKER, without_zips

HEAVY = ("numba", "pandas", "obstore", "lamina.store.store", "lamina.store.read_only")


@pytest.mark.parametrize(
    ("modules", "allowed"),
    [
        ("pyspark_lamina, lamina.spark.batch, lamina.spark.pieces.task", set()),
        ("lamina.spark.pieces.segment_piece", set()),
        (", ".join(BEFORE_FORK[WORKER][1:]), {"numba"}),  # before the fork, once for all of them
    ],
)
def test_a_worker_loads_no_more_than_it_needs(modules: str, allowed: set[str]) -> None:
    program = f"import sys, {modules}; print(*(n for n in {HEAVY} if n in sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert set(said.stdout.decode().split()) == allowed


def test_the_installed_pyspark_goes_before_its_own_zip() -> None:
    packages = "/venv/lib/site-packages"
    zips = [f"{packages}/pyspark/python/lib/{name}.zip" for name in ("pyspark", "py4j-src")]
    others = ["/jobs/code.zip", "/venv/lib/python.zip"]
    assert without_zips([*zips, *others, packages]) == [*others, packages]
    cluster = "/opt/spark/python/lib/pyspark.zip"
    assert without_zips([cluster, *zips, "/elsewhere"]) == [cluster, *zips, "/elsewhere"]
