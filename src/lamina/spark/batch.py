"""A batch query: its ranges are fixed when it is planned, and its tasks read by the executors.

Rule: what plans is imported when something is planned; an executor only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast, overload

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lamina.errors import InvalidRequest
from lamina.spark import plan as planning
from lamina.spark.columns import Projection, schema_of
from lamina.spark.gaps import LOGGER
from lamina.spark.options import SOURCE_OPTIONS, Given, SourceOptions, Typing
from lamina.spark.pieces.task import Task, read_task
from lamina.spark.plan import PRUNED, Log, Plan, Pruned
from lamina.spark.typed_projection import (
    TypedProjection,
    chosen_version,
    only_topic,
    projection_of,
    typed_schema,
    versions_now,
)


class BatchReader(DataSourceReader):
    """Reads ranges that are fixed when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._projection: Projection | TypedProjection
        if options.typing is None:
            self._projection = Projection(schema, options.keys)
        else:
            self._projection = projection_of(options, schema, looked_at(options))
        self._columns = schema.fieldNames()

    def plan(self) -> Plan:
        """Looks at the log and plans the tasks."""
        return self._planned(looked_at(self._options))

    def _planned(self, log: Log) -> Plan:
        ranges = planning.batch_ranges(log, self._options)
        plan = planning.plan(log, ranges, self._options, self._columns)
        if isinstance(self._projection, Projection):
            return plan
        return replace(plan, available=self._projection.available)

    def partitions(self) -> list[InputPartition]:
        """Returns the tasks; without any, Spark would make one up that nobody can read."""
        log = looked_at(self._options)
        plan = self._planned(log)
        versions = versions_now(log, self._options)  # after the ends: no record has a newer one
        LOGGER.info("%s: %s", self._options.where.name, plan)
        return [Task(pieces, versions) for pieces in plan.tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task; runs on an executor."""
        return read_task(partition, self._projection, self._options)


def looked_at(options: SourceOptions) -> Log:
    """Opens the log that options name, and looks at it once."""
    from lamina.spark.logs.open_log import open_log

    log = open_log(options)
    log.look()
    return log


def source_schema(options: Mapping[str, str], *, streaming: bool = False) -> StructType:
    """Returns the columns that options ask for; those of a topic's schema are looked up."""
    given = Given(options, SOURCE_OPTIONS)
    if Typing.parse(given) is None:
        return schema_of(given)
    parsed = SourceOptions.parse(options, streaming=streaming)
    assert parsed.typing is not None
    topic = only_topic(parsed.selection)
    versions = versions_now(None if parsed.typing.format else looked_at(parsed), parsed)
    chosen = chosen_version(StructType(), parsed.typing, topic, versions)
    return typed_schema(given, chosen.arrow, parsed.typing.errors)


@overload
def explain(what: DataFrame) -> Pruned: ...
@overload
def explain(what: str | None = None, **options: Any) -> Plan: ...
def explain(what: str | DataFrame | None = None, **options: Any) -> Plan | Pruned:
    """Plans a batch read without Spark: prints as tasks, bytes, and how much it skips.

    `what` is the path of a log, or a frame that `lamina.spark.read` returned: of that, it says what
    its filter left out.
    """
    if isinstance(what, DataFrame):
        found = vars(what).get(PRUNED)
        if found is None:
            raise InvalidRequest("only a frame that lamina.spark.read returned can be explained")
        return cast(Pruned, found)
    path = what
    where = {} if path is None else {"path": path}
    given = CaseInsensitiveDict(where | {name: str(value) for name, value in options.items()})
    schema = source_schema(given)
    return BatchReader(SourceOptions.parse(given, streaming=False), schema).plan()
