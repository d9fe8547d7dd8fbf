"""A batch query: its ranges are fixed when it is planned, and its tasks read by the executors.

Rule: what plans is imported when something is planned; an executor only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lamina.spark import plan as planning
from lamina.spark.columns import Projection, schema_of
from lamina.spark.gaps import LOGGER
from lamina.spark.options import SOURCE_OPTIONS, Given, SourceOptions
from lamina.spark.pieces.task import Task, read_task
from lamina.spark.plan import Plan


class BatchReader(DataSourceReader):
    """Reads ranges that are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._projection = Projection(schema, options.keys)
        self._columns = schema.fieldNames()

    def plan(self) -> Plan:
        """Looks at the log and plans the tasks."""
        from lamina.spark.logs.open_log import open_log

        log = open_log(self._options)
        log.look()
        ranges = planning.batch_ranges(log, self._options)
        return planning.plan(log, ranges, self._options, self._columns)

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks; without any, Spark would make one up that nobody can read."""
        plan = self.plan()
        LOGGER.info("%s: %s", self._options.where.name, plan)
        return [Task(pieces) for pieces in plan.tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task; runs on an executor."""
        return read_task(partition, self._projection, self._options)


def explain(path: str | None = None, **options: Any) -> Plan:
    """Plans a batch read without Spark: prints as tasks, bytes, and how much it skips."""
    where = {} if path is None else {"path": path}
    given = CaseInsensitiveDict(where | {name: str(value) for name, value in options.items()})
    schema = schema_of(Given(given, SOURCE_OPTIONS))
    return BatchReader(SourceOptions.parse(given, streaming=False), schema).plan()
