"""The lane of every job: tasks that read, work and answer inside the Python workers.

    driver: plan ──▶ one task each ──mapInArrow──▶ worker: bytes through the kernels ──▶ answers

A job hands over a list of tasks and a function; Spark runs one task in each of its partitions, and
the answers come back to the driver in the order of the tasks. No record passes through the JVM, and
nothing is shuffled; the one exception is `over_rows`, for rows that Spark itself has read. Jobs on
files, whose tasks are packed and told by their bytes, come here through `bulk_lane`.

Rules.
1. A task's answer is small: a report, never records.
2. What trying again cannot mend comes back as the typed error that it is; what may pass
   (`Unavailable`, and whatever is not ours) fails the task, and Spark tries it again.
3. Tasks go with the code, so that no row, plan or log of Spark shows what opens an archive.
4. Nothing here commits.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lamina.errors import InvalidRequest, LaminaError, Unavailable
from lamina.spark.jobs.job import Progress
from lamina.spark.worker_daemon import settle

ANSWER = "answer binary"
LOOK_S = 0.2
TASKS = "tasks"

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
Rows = Iterator[pa.RecordBatch]
Look: TypeAlias = Callable[[], tuple[int, int]]
"""Reports how much is done, and of how much."""


def over_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], _Answer],
    progress: Progress,
) -> list[_Answer]:
    """Runs a function on each task, on the executors; returns the answers in order."""
    return watched_over_tasks(spark, tasks, work, told(spark, progress))


def watched_over_tasks(
    spark: SparkSession,
    tasks: Sequence[_Task],
    work: Callable[[_Task], _Answer],
    watching: AbstractContextManager[None],
) -> list[_Answer]:
    """Does what `over_tasks` does, while something of the caller's tells how far it is."""
    if not tasks:
        return []

    def one(batches: Rows) -> Rows:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield _answered(lambda number=number: work(tasks[number]))  # type: ignore[misc]

    frame = spark.range(0, len(tasks), 1, numPartitions=len(tasks)).mapInArrow(one, ANSWER)
    return _collected(frame, watching)


def over_rows(
    frame: DataFrame, work: Callable[[Rows], _Answer], progress: Progress
) -> list[_Answer]:
    """Runs a function on the rows of each partition of a frame; returns the answers in order."""

    def one(batches: Rows) -> Rows:
        yield _answered(lambda: work(batches))

    return _collected(frame.mapInArrow(one, ANSWER), told(frame.sparkSession, progress))


def _answered(work: Callable[[], Any]) -> pa.RecordBatch:
    try:
        answer = work()
    except Unavailable:
        raise
    except LaminaError as error:
        answer = error
    settle()
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)], pa.binary())], ["answer"])


def _collected(frame: DataFrame, watching: AbstractContextManager[None]) -> list[Any]:
    with watching, typed_failures():
        rows = frame.collect()
    answers = [pickle.loads(row.answer) for row in rows]  # noqa: S301 - our own workers'
    for answer in answers:
        if isinstance(answer, LaminaError):
            raise answer
    return answers


@contextlib.contextmanager
def told(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Reports how many tasks are done of the Spark jobs that run meanwhile."""
    context, group = spark.sparkContext, uuid.uuid4().hex
    tracker = context.statusTracker()

    def look() -> tuple[int, int]:
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(group)]
        found = [tracker.getStageInfo(at) for job in jobs if job for at in job.stageIds]
        stages = [stage for stage in found if stage]
        done = sum(stage.numCompletedTasks for stage in stages)
        return done, sum(stage.numTasks for stage in stages)

    context.setJobGroup(group, "lamina pipeline")
    with watched(look, TASKS, progress):
        yield


@contextlib.contextmanager
def watched(look: Look, unit: str, progress: Progress) -> Iterator[None]:
    """Reports now and then how much of what runs meanwhile is done; at the end, too."""
    ended = threading.Event()

    def watch() -> None:
        done = expected = 0
        is_last = False
        while not is_last:
            is_last = ended.wait(LOOK_S)
            now, total = look()
            if total > expected:
                progress.expect(total, unit)
                expected, done = total, 0
            if now > done:
                progress.advance(now - done)
                done = now

    watcher = threading.Thread(target=watch, name="lamina-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextlib.contextmanager
def typed_failures() -> Iterator[None]:
    """Turns what Spark raises into an error of Lamina: ours where it was one in a worker."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _typed(str(error)) from error


def _typed(said: str) -> LaminaError:
    """Finds in Spark's report what went wrong; SQL states 22 and 42 are wrong data and requests."""
    ours = re.findall(r"^(?:\w+: )*lamina\.errors\.\w+: (.*)$", said, re.MULTILINE)
    if ours:
        return Unavailable(ours[-1])
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it failed"]
    named = [line for line in lines if re.search(r"\[[A-Z_.]{4,}\]", line)]
    problem = (named or lines)[0].rpartition("SparkException: ")[2]
    wrong = re.search(r"SQLSTATE: (22|42)", said) is not None
    return (InvalidRequest if wrong else Unavailable)(f"Spark: {problem}")


def gathered(counts: Iterable[dict[Any, int]]) -> dict[Any, int]:
    """Adds up counts by name, sorted."""
    total: dict[Any, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
