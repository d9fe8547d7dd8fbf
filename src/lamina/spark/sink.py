"""`df.write.format("lamina")` and `df.writeStream.format("lamina")`: exactly once.

Tasks stage their rows (`staging`), the driver publishes one transaction (`transactions`), keyed by
`txnAppId` and the batch id or `txnVersion`.

Rule: `abort` touches nothing. Spark calls it after a `commit` that raised, too, when the
transaction may be committed all the same; what no commit names is swept by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from lamina.errors import InvalidRequest, UnknownTopic
from lamina.formats.documents.sink_transaction import Part, Transaction
from lamina.formats.documents.topic_file import TopicFile
from lamina.spark.commit.sink_target import target_of
from lamina.spark.commit.staging import Stager, Staging
from lamina.spark.options import SinkOptions
from lamina.storage.files import Files, LocalFiles, wall_clock_ms

SINK_COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "tag": ("string", "binary"),
    "timestamp": ("timestamp",),
}
OF_THE_SOURCE = ("offset", "timestampType", "epoch", "segment")
"""Columns that the source gives and the log assigns itself: not stored."""
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


class Staged(WriterCommitMessage):
    """A task's answer: what it staged, and for which query."""

    def __init__(self, part: Part, query: str) -> None:
        self.part = part
        self.query = query


class Sink:
    """What batch and streaming writers share; made on the driver, used on executors."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest("a log is appended to, not overwritten: use mode 'append'")
        _check_columns(schema, options.topic)
        self._options = options
        self._target = target_of(options.where, options.staging, options.checkpoint)
        self._topics: dict[str, TopicFile] = self._target.topics()
        self._files: Files = LocalFiles()
        if options.topic is not None and options.topic not in self._topics:
            raise UnknownTopic(
                f"there is no topic {options.topic!r}; create it before it is written to"
            )

    def stage(self, rows: Iterator[pa.RecordBatch]) -> Staged:
        """Stages the rows of one task; runs on an executor."""
        context = TaskContext.get()
        assert context is not None
        number, query = self._options.version, ""
        if number is None:
            number = int(context.getLocalProperty(BATCH_ID) or "")
            query = context.getLocalProperty(QUERY_ID) or ""
        place = Staging(self._files, self._target.data, self._options.application, number)
        stager = Stager(
            place,
            self._topics,
            topic=self._options.topic,
            now_ms=wall_clock_ms(),
            turn=context.partitionId(),
        )
        return Staged(stager.stage(rows), query)

    def publish(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        """Commits what the tasks staged; runs on the driver."""
        staged = [message for message in messages if isinstance(message, Staged)]
        transaction = Transaction(
            self._options.application,
            number,
            staged[0].query if staged else "",
            tuple(each.part for each in staged),
        )
        self._target.publish(transaction, self._files, self._options.timeout_ms)


def _check_columns(schema: StructType, topic: str | None) -> None:
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name in SINK_COLUMNS and kind not in SINK_COLUMNS[name]:
            raise InvalidRequest(f"column {name!r} must be {SINK_COLUMNS[name][0]}, not {kind}")
        if name not in SINK_COLUMNS and name not in OF_THE_SOURCE:
            raise InvalidRequest(f"unknown column {name!r}; the sink reads {list(SINK_COLUMNS)}")
    if "value" not in found:
        raise InvalidRequest("the sink needs a column 'value'")
    if topic is None and "topic" not in found:
        raise InvalidRequest("give the option 'topic', or a column 'topic'")


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch query."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        assert options.version is not None
        self._sink = Sink(options, schema, overwrite)
        self._number = options.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages one task's rows."""
        return self._sink.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes what the tasks staged."""
        self._sink.publish(messages, self._number)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Touches nothing: see the module."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages one task's rows."""
        return self._sink.stage(iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Publishes what the tasks staged of a micro-batch."""
        self._sink.publish(messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Touches nothing: see the module."""
