"""The bulk lane: descriptors of segments and objects go out, small results come back.

    driver: plan ──▶ one task each ──mapInArrow──▶ worker: bytes through the kernels ──▶ results

A task is one row of a DataFrame and a few descriptors of what lies side by side. Its bytes are
read, checked and written inside the Python worker; no record passes through the JVM, and nothing is
shuffled. The driver hears of each task as it ends, and commits when all have.

Rules.
1. A descriptor says what and where, never how to get in: what opens an archive (`access.Access`)
   goes with the code of the task, so that no row, plan or log of Spark shows it.
2. What a task returns is small. What it writes is seen by nobody before the driver commits, and a
   task that runs twice writes the same.
3. An error that trying again cannot mend comes back from a task as itself; what may pass fails the
   task, and Spark tries it again.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark import Accumulator, inheritable_thread_target
from pyspark.sql import SparkSession

from lamina.errors import LaminaError, Unavailable
from lamina.spark.jobs.job import Progress
from lamina.spark.jobs.lane import typed_failures

TASK_BYTES = 256 << 20
TASKS_PER_CORE = 4
POLL_S = 0.05
RESULTS = "number long, outcome binary"

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
    found: Iterable[Descriptor[_What]], task_bytes: int = TASK_BYTES
) -> list[list[Descriptor[_What]]]:
    """Puts small neighbours into one task, up to about so many bytes; a large one is alone."""
    tasks: list[list[Descriptor[_What]]] = []
    room = 0
    for each in found:
        if not tasks or each.size_bytes > room:
            tasks.append([])
            room = task_bytes
        tasks[-1].append(each)
        room -= each.size_bytes
    return tasks


def task_bytes_for(spark: SparkSession, total_bytes: int, most: int = TASK_BYTES) -> int:
    """Chooses how large tasks are: every core gets some, and none is huge."""
    cores = spark.sparkContext.defaultParallelism
    return max(1, min(most, total_bytes // (TASKS_PER_CORE * cores) + 1))


def run(
    spark: SparkSession,
    tasks: Sequence[Sequence[Descriptor[_What]]],
    work: Callable[[Descriptor[_What]], _Result],
    progress: Progress,
) -> list[_Result]:
    """Works on every descriptor, one Spark task for each list of them; results in their order.

    Raises the error of the first task that failed for good.
    """
    flat = [each for task in tasks for each in task]
    progress.expect(sum(each.size_bytes for each in flat), "bytes")
    if not flat:
        return []
    done = spark.sparkContext.accumulator(0)
    ends = list(itertools.accumulate(len(task) for task in tasks))
    ranges = [range(end - len(task), end) for task, end in zip(tasks, ends, strict=True)]
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(
        _working(flat, ranges, work, done), RESULTS
    )
    outcomes: dict[int, Any] = {}
    for number, outcome in _collected(spark, frame.collect, done, progress):
        outcomes[number] = pickle.loads(bytes(outcome))  # noqa: S301 - from our own workers
    for number in range(len(flat)):
        if isinstance(outcomes[number], LaminaError):
            raise outcomes[number]
    return [outcomes[number] for number in range(len(flat))]


def _working(
    found: Sequence[Descriptor[_What]],
    ranges: Sequence[range],
    work: Callable[[Descriptor[_What]], _Result],
    done: Accumulator[int],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Makes what a worker runs: a row says which task, and the descriptors came with the code."""

    def working(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tasks = [task for batch in batches for task in batch.column("id").to_pylist()]
        for number in [number for task in tasks for number in ranges[task]]:
            try:
                outcome: object = work(found[number])
            except Unavailable:
                raise
            except LaminaError as error:
                outcome = error
            done.add(found[number].size_bytes)
            yield pa.record_batch(
                {
                    "number": pa.array([number], pa.int64()),
                    "outcome": pa.array([pickle.dumps(outcome)], pa.binary()),
                }
            )

    return working


def _collected(
    spark: SparkSession,
    collect: Callable[[], list[Any]],
    done: Accumulator[int],
    progress: Progress,
) -> list[Any]:
    """Runs the tasks in a thread and reports what has ended meanwhile."""
    rows: list[Any] = []
    failures: list[BaseException] = []

    def collecting() -> None:
        try:
            with typed_failures():
                rows.extend(collect())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(
        target=inheritable_thread_target(spark)(collecting), name="lamina-lane"
    )
    thread.start()
    told = 0
    while thread.is_alive():
        thread.join(POLL_S)
        if done.value > told:
            progress.advance(done.value - told)
            told = done.value
    if failures:
        raise failures[0]
    return rows
