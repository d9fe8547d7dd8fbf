"""A bulk job whose driver is killed before a chosen step of all that it changes on disk.

Started as `python -m tests.spark.killed_bulk <job> <data> <archive> <step>`. A step is a file made,
renamed or removed, or a directory synced, by the driver once the job runs; workers are not counted.
Without a kill it prints how many steps there were.
"""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import SparkSession

import lamina.spark
from lamina.spark.jobs import archive, compact, erase
from lamina.spark.jobs.job import Summary
from lamina.storage.files import LocalFiles
from tests.spark.conftest import QUICK
from tests.spark.stepping import NAMES, Steps, count

GONE = b"key 13"


def run(job: str, spark: SparkSession, data: str, cold: str) -> Summary:
    if job == "archive":
        return archive.run(spark, data, cold)
    if job == "compact":
        return compact.run(spark, data, cold, keep_last=True, clean_age_ms=0)
    return erase.run(spark, data, cold, keys=[GONE])


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_before(step: int) -> Steps:
    """Counts the steps of the real file system, and kills this process before one of them."""
    steps = Steps(step, kill)
    count(LocalFiles, NAMES, steps)
    return steps


def main() -> None:
    job, data, cold, step = sys.argv[1:]
    spark = lamina.spark.session(master="local[1]", config=QUICK)
    steps = kill_before(int(step))
    run(job, spark, data, cold)
    print("steps", steps.done)


if __name__ == "__main__":
    main()
