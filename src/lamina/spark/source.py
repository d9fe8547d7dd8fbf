"""`spark.read.format("lamina")`: a log as a DataFrame, read by the executors without a broker.

Planning happens once for each `load()`: a DataFrame is a snapshot. Filters are not pushed down
(Spark would cache the pushed plan and give wrong rows); options and a schema prune instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from lamina.spark import planning
from lamina.spark.columns import Projection, schema_of
from lamina.spark.losses import LOGGER
from lamina.spark.opening import open_log
from lamina.spark.options import SOURCE_OPTIONS, Given, SinkOptions, SourceOptions
from lamina.spark.planning import Plan
from lamina.spark.sink import BatchWriter, StreamWriter
from lamina.spark.streaming import StreamReader
from lamina.spark.tasks import Task, read_task


class BatchReader(DataSourceReader):
    """Reads ranges that are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._projection = Projection(schema, options.keys)
        self._columns = schema.fieldNames()

    def plan(self) -> Plan:
        """Looks at the log and plans the tasks."""
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


class LaminaSource(DataSource):
    """The data source that Spark knows as `lamina`."""

    @classmethod
    def name(cls) -> str:
        """Returns what `format(…)` is given."""
        return "lamina"

    def schema(self) -> StructType:
        """Returns the columns that the options ask for."""
        return schema_of(Given(self.options, SOURCE_OPTIONS))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Makes the reader of a batch query."""
        return BatchReader(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Makes the reader of a streaming query."""
        options = SourceOptions.parse(self.options, streaming=True)
        return StreamReader(options, schema, open_log(options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Makes the writer of a batch query."""
        return BatchWriter(SinkOptions.parse(self.options, streaming=False), schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Makes the writer of a streaming query."""
        return StreamWriter(SinkOptions.parse(self.options, streaming=True), schema, overwrite)


def explain(path: str | None = None, **options: Any) -> Plan:
    """Plans a batch read without Spark: prints as tasks, bytes, and how much it skips."""
    where = {} if path is None else {"path": path}
    given = CaseInsensitiveDict(where | {name: str(value) for name, value in options.items()})
    source = LaminaSource(given)
    return BatchReader(SourceOptions.parse(given, streaming=False), source.schema()).plan()
