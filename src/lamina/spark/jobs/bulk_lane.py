"""Jobs on files, over the lane (`lane`): tasks are descriptors of segments and objects.

A task is a few descriptors of neighbours, about so many bytes together, and progress is counted in
bytes. Everything else, how tasks run and how errors come back, is the lane's.

Rules.
1. A descriptor says what and where, never how to get in: credentials travel with the work
   (`lamina.spark.access`).
2. What a task writes is seen by nobody before the driver commits, and a task that runs twice
   writes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from lamina.spark.jobs import lane
from lamina.spark.jobs.job import Progress

TASK_BYTES = 256 << 20
TASKS_PER_CORE = 4
BYTES = "bytes"

_What = TypeVar("_What")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Descriptor(Generic[_What]):
    """One thing to work on: where it is, whose it is, where it begins, how many bytes it has.

    `what` is whatever else the work needs to know; it is pickled.
    """

    path: str
    identity: str
    base: int
    size_bytes: int
    what: _What


def pack(
    found: Sequence[Descriptor[_What]], task_bytes: int = TASK_BYTES
) -> list[list[Descriptor[_What]]]:
    """Deals neighbours to tasks of about so many bytes, all about equal.

    What is in the middle of the n-th part of all bytes belongs to the n-th task.
    """
    total = sum(each.size_bytes for each in found)
    count = max(1, -(-total // task_bytes))
    tasks: list[list[Descriptor[_What]]] = [[] for _ in range(count)]
    start = 0
    for each in found:
        middle = start + each.size_bytes // 2
        tasks[min(count - 1, middle * count // max(total, 1))].append(each)
        start += each.size_bytes
    return [task for task in tasks if task]


def task_bytes_for(
    spark: SparkSession,
    total_bytes: int,
    most: int = TASK_BYTES,
    tasks_per_core: int = TASKS_PER_CORE,
) -> int:
    """Chooses how large tasks are: every core gets some, and none is huge.

    A task costs a few hundredths of a second, however little it does: work that is over sooner than
    that is dealt once to each core.
    """
    tasks = tasks_per_core * spark.sparkContext.defaultParallelism
    return max(1, min(most, -(-total_bytes // tasks)))


def run(
    spark: SparkSession,
    tasks: Sequence[Sequence[Descriptor[_What]]],
    work: Callable[[Descriptor[_What]], _Result],
    progress: Progress,
) -> list[_Result]:
    """Works on every descriptor, one Spark task for each list of them; results in their order.

    Raises the error of the first task that failed for good.
    """
    total = sum(each.size_bytes for task in tasks for each in task)
    done = spark.sparkContext.accumulator(0)

    def one(task: Sequence[Descriptor[_What]]) -> list[_Result]:
        results = []
        for each in task:
            results.append(work(each))
            done.add(each.size_bytes)
        return results

    watching = lane.watched(lambda: (done.value, total), BYTES, progress)
    found = lane.watched_over_tasks(spark, tasks, one, watching)
    return [result for results in found for result in results]
