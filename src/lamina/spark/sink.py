"""`df.write.format("lamina")` and `df.writeStream.format("lamina")`: exactly once.

Tasks stage their rows (`staging`), the driver publishes one transaction (`transactions`), keyed by
`txnAppId` and the batch id or `txnVersion`. A frame with the columns of a typed topic's schema is
encoded by the tasks, under the version that was the newest when the query began.

Rules.
1. Columns that cannot be written are refused on the driver, before any task runs.
2. `abort` touches nothing. Spark calls it after a `commit` that raised, too, when the transaction
   may be committed all the same; what no commit names is swept by the next one.
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

from lamina.api import TopicSchema
from lamina.errors import InvalidRequest, SchemaError, UnknownTopic
from lamina.formats.documents.sink_transaction import Part, Transaction
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.typed.value_codec import encoded
from lamina.spark.commit.sink_target import Target, target_of
from lamina.spark.commit.staging import Stager, Staging
from lamina.spark.options import SinkOptions
from lamina.spark.typed_columns import ERROR, KEY, OFFSET, PARTITION, TIMESTAMP, cut_times, misfit
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
TYPED_PLACES = {KEY: ("binary", "string"), TIMESTAMP: ("timestamp",)}
"""Columns of a typed frame that are not the schema's: a record's own key and time."""
OF_THE_LOG = (OFFSET, PARTITION)
"""Columns that typed frames have from the source, and that the log assigns itself: not stored."""
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
        self._options = options
        self._target = target_of(options.where, options.staging, options.checkpoint)
        self._topics: dict[str, TopicFile] = self._target.topics()
        self._files: Files = LocalFiles()
        if options.topic is not None and options.topic not in self._topics:
            raise UnknownTopic(
                f"there is no topic {options.topic!r}; create it before it is written to"
            )
        self._schema: TopicSchema | None = None
        if options.topic is not None and _has_columns_of_its_own(schema):
            self._schema = _checked_schema(schema, self._target, options.topic)
        else:
            _check_columns(schema, options.topic)

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
        return Staged(stager.stage(self._records(rows)), query)

    def _records(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encodes typed rows; others are records already."""
        if self._schema is None:
            yield from rows
            return
        for batch in rows:
            names = [name for name in batch.schema.names if name not in OF_THE_LOG]
            typed = cut_times(batch.select(names), self._schema.arrow)
            yield from encoded(self._schema, typed).to_batches()

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


def _has_columns_of_its_own(schema: StructType) -> bool:
    """Returns whether a frame has other columns than a record's: those of a schema."""
    names = set(schema.fieldNames())
    return "value" not in names or not names <= {*SINK_COLUMNS, *OF_THE_SOURCE}


def _checked_schema(schema: StructType, target: Target, topic: str) -> TopicSchema | None:
    """Returns the schema that a frame is written by; raises unless every column of it fits.

    A topic without a schema has none: then the columns must be a record's own.
    """
    versions = target.schemas(topic)
    if not versions:
        _check_columns(schema, topic)
        return None
    version = versions[-1]
    found = {field.name: field for field in schema.fields}
    if len(found) < len(schema.fields):
        raise InvalidRequest("the frame has two columns of one name")
    if ERROR in found:
        raise InvalidRequest(
            f"rows with an {ERROR} have no values: filter them and drop the column"
        )
    for name, kind in TYPED_PLACES.items():
        if name in found and found[name].dataType.simpleString() not in kind:
            raise InvalidRequest(f"column {name!r} must be {kind[0]}")
    own = {each: found[each] for each in found if each not in (*TYPED_PLACES, *OF_THE_LOG)}
    for name, field in own.items():
        if name not in version.arrow.names:
            known = ", ".join(version.arrow.names)
            raise SchemaError(f"the schema has no column {name!r}; it has {known}", field=name)
        if problem := misfit(field.dataType, version.arrow.field(name).type, name):
            raise SchemaError(f"topic {topic!r}: {problem}", field=name)
    # Columns that are missing and have no default, and a key that is: as an append would say it.
    nothing = pa.schema([version.arrow.field(name) for name in own]).empty_table()
    encoded(version, nothing)
    return version


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
