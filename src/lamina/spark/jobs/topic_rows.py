"""A topic as a job sees it: its facts, the offsets it takes of each partition, and its rows.

Rows are read by the reader of `format("lamina")` itself, called in the bulk lane: what Spark would
plan for a query and give to the JVM, a job plans and reads in its own workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition

from lamina.api import StoreApi
from lamina.errors import ArchiveUnavailable
from lamina.formats.documents.ledger import ARCHIVED
from lamina.records import KEPT_COLUMNS
from lamina.spark import gaps
from lamina.spark.batch import BatchReader
from lamina.spark.gaps import TOLD_MAX, LeftOut
from lamina.spark.jobs.job import Progress
from lamina.spark.jobs.lane import over_tasks
from lamina.spark.jobs.whereabouts import Place
from lamina.spark.pieces.task import Task
from lamina.spark.source import LaminaSource

_Answer = TypeVar("_Answer")

Spans: TypeAlias = dict[int, tuple[int, int]]
"""For each partition the first offset that is taken, and one past the last."""
Chosen: TypeAlias = Callable[[StoreApi, int], tuple[int, int]]
"""Finds the offsets of one partition that are wanted."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a job needs to know of a topic."""

    name: str
    format: str
    epoch: int
    created_ms: int
    extents: Spans
    settings: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Distinguishes this topic from any other one of the same name."""
        return f"{self.name}@{self.epoch}.{self.created_ms}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the source gives of what this format keeps."""
        kept = KEPT_COLUMNS[self.format]
        fields = [name for name in ("key", "value", "headers", "tag") if name in kept]
        return ("partition", "offset", "timestamp", *fields)


def described(place: Place, name: str) -> Topic:
    """Looks at a topic; raises UnknownTopic if it is not there."""
    with place.reading() as store:
        info = store.describe_topic(name)
        extents = {  # from the first one on that anybody can read: archived ones count
            each.partition: (store.earliest_offset(name, each.partition), each.durable_offset)
            for each in info.partitions
        }
    return Topic(info.name, info.format, info.epoch, info.created_ms, extents, info.settings)


def beyond(topic: Topic, ends: Mapping[int, int]) -> Spans:
    """Returns what each partition has beyond the offsets that are done; empty spans left out."""
    found = {}
    for number, (earliest, end) in topic.extents.items():
        start = ends.get(number, earliest)
        if start < end:
            found[number] = (start, end)
    return found


def offsets(spans: Spans) -> int:
    """Counts the offsets of all spans."""
    return sum(end - start for start, end in spans.values())


def to_plain(spans: Spans) -> dict[str, list[int]]:
    """Turns spans into what JSON can hold."""
    return {str(number): [start, end] for number, (start, end) in sorted(spans.items())}


def from_plain(plain: Mapping[str, Any]) -> Spans:
    """Turns them back."""
    return {int(number): (int(start), int(end)) for number, (start, end) in plain.items()}


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a topic: a reader for the executors, the tasks that it can read, and the rest.

    `left_out` is what is known to be lost before anything is read.
    """

    reader: DataSourceReader
    tasks: list[InputPartition]
    left_out: tuple[LeftOut, ...] = ()

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task; runs on an executor."""
        return self.reader.read(task)

    def over(
        self,
        spark: SparkSession,
        work: Callable[[int, Iterator[pa.RecordBatch]], _Answer],
        progress: Progress,
    ) -> tuple[list[_Answer], list[LeftOut]]:
        """Runs a function on the number and the rows of each task, on the executors.

        Returns the answers in order, and everything that was left out.
        """

        def one(number: int) -> tuple[_Answer, list[LeftOut]]:
            with gaps.noted() as found:
                answer = work(number, self.read(self.tasks[number]))
            return answer, found

        answers = over_tasks(spark, range(len(self.tasks)), one, progress)
        later = [each for _, found in answers for each in found]
        return [answer for answer, _ in answers], [*self.left_out, *later]


def rows_of(
    place: Place,
    topic: Topic,
    spans: Spans,
    columns: Collection[str],
    *,
    skip_lost: bool = False,
    more: Mapping[str, str] | None = None,
) -> Rows:
    """Plans reading spans of a topic; raises RecordsMissing if some are gone, unless skipped.

    `more` are further options of the source, as for typed columns. What is archived where nobody
    can reach it is not gone: ArchiveUnavailable in any case.
    """
    edges = [{str(number): span[side] for number, span in spans.items()} for side in (0, 1)]
    options = {
        "assign": {topic.name: sorted(spans)},
        "startingOffsets": {topic.name: edges[0]},
        "endingOffsets": {topic.name: edges[1]},
    }
    given = {name: json.dumps(value) for name, value in options.items()}
    source = LaminaSource(
        CaseInsensitiveDict(
            {
                **place.source_options,
                **given,
                **(more or {}),
                "columns": ",".join(columns),
                "failOnDataLoss": str(not skip_lost).lower(),
            }
        )
    )
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    if not spans:
        return Rows(reader, [])
    plan = reader.plan()
    for each in plan.left_out:
        if each.reason == ARCHIVED:
            raise ArchiveUnavailable(
                f"{each}: the archive cannot be reached; name it by --archive, or try again"
            )
    return Rows(reader, [Task(pieces) for pieces in plan.tasks], plan.left_out)


def reported(left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """What a summary says of records that a job went on without: nothing if there are none."""
    if not left_out:
        return {}
    ranges = [str(each) for each in left_out[:TOLD_MAX]]
    return {"left_out": gaps.count(left_out), "left_out_ranges": ranges}


def counted(batch: pa.RecordBatch, counts: dict[int, int]) -> None:
    """Adds the rows of a batch to the counts of their partitions."""
    found = pc.value_counts(batch.column("partition"))
    for number, count in zip(found.field("values").to_pylist(), found.field("counts"), strict=True):
        counts[number] = counts.get(number, 0) + count.as_py()
