"""A job whose driver is killed before a chosen step of all that it changes on disk.

Started as `python -m tests.spark.killed_job <job> <data> <step>`: `convert` takes topic `k` into
topic `plain`, `export` into `<data>/../table`, `delta` into `<data>/../delta`. A step is a file
made, renamed or removed, or a directory synced, by the driver, and Delta's own commit; workers are
not counted. Without a kill it prints how many steps there were.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import lamina.spark
from lamina.spark.jobs import copy
from lamina.spark.jobs import export as exporting
from lamina.spark.jobs.export import Export
from lamina.spark.jobs.job import Silent, Summary
from lamina.spark.jobs.lakes.delta_table import DeltaLake
from lamina.spark.jobs.lakes.parquet_table import ParquetLake
from lamina.spark.jobs.whereabouts import Place
from lamina.storage.files import LocalFiles
from tests.spark.conftest import QUICK
from tests.spark.stepping import NAMES, Steps, count

CONVERSION = copy.Conversion("k", "plain", rules={"headers": "drop", "value": "none"})


def run(job: str, spark: SparkSession, data: str) -> Summary:
    place, beside = Place.of(data, None), Path(data).parent
    if job == "convert":
        return copy.convert(spark, place, CONVERSION, dry_run=False, progress=Silent())
    lake: Any = (
        ParquetLake(str(beside / "table")) if job == "export" else DeltaLake(str(beside / "delta"))
    )
    return exporting.export(spark, place, "k", lake, dry_run=False, progress=Silent())


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_before(step: int) -> Steps:
    """Counts the steps of the real file system and of Delta, and kills before one of them."""
    steps = Steps(step, kill)
    count(LocalFiles, NAMES, steps)
    commit = DeltaLake.commit

    def committed(lake: DeltaLake, export: Export) -> None:
        steps.take()
        commit(lake, export)
        steps.take()

    DeltaLake.commit = committed  # type: ignore[method-assign]
    return steps


def main() -> None:
    job, data, step = sys.argv[1:]
    spark = lamina.spark.session(master="local[1]", config=QUICK)
    steps = kill_before(int(step))
    run(job, spark, data)
    print("steps", steps.done)


if __name__ == "__main__":
    main()
