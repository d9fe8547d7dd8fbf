"""What a task of the sink leaves behind: one durable file with its rows, ready to be appended.

Rows are checked, completed and given their partition here, on the executor: a row that cannot be
stored fails its task, not the commit. The file says nothing about itself; the task's answer (a
`Part`) says what is where, with a checksum for each run, and only a commit that names it counts.

Rules.
1. Each attempt of a task has a file of its own name: retries and speculation never meet.
2. The file and its name are durable before the task answers.
3. At most `FLUSH_BYTES` of rows, and one batch of Spark, are held in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lamina.api import DURABLE
from lamina.config import TopicSettings
from lamina.errors import InvalidRequest, UnknownTopic
from lamina.formats.documents.sink_transaction import Part, Run
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.partitioning import NO_KEY, partitions_of
from lamina.log.appending import make_request
from lamina.records import KEPT_COLUMNS, RECORD_SCHEMA, TIMESTAMP, split
from lamina.storage import paths
from lamina.storage.files import File, Files

FLUSH_BYTES = 8 << 20
RECORD_COLUMNS = ("key", "value", "headers", "tag", "timestamp")
"""The columns of a row that are stored; `topic` and `partition` say where."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a transaction's parts are staged, and which topics there are."""

    files: Files
    data: str
    application: str
    number: int

    @property
    def directory(self) -> str:
        """The transaction's directory; its parts and its commit lie there."""
        folder = paths.sink_directory(self.application)
        return paths.join(self.data, folder, str(self.number))


class Stager:
    """Stages the rows of one attempt of one task."""

    def __init__(
        self,
        place: Staging,
        topics: dict[str, TopicFile],
        *,
        topic: str | None,
        now_ms: int,
        turn: int = 0,
    ) -> None:
        self._place = place
        self._topics = topics
        self._topic = topic
        self._now_ms = now_ms
        self._turn = turn
        self._name = f"{now_ms:013}-{uuid.uuid4().hex}{paths.SINK_PART}"
        self._file: File | None = None
        self._position = 0
        self._runs: list[Run] = []

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Part:
        """Writes all rows and makes them durable; without rows there is no file."""
        for batch in _gathered(batches):
            for about, rows in self._by_topic(batch):
                self._add(about, rows)
        if self._file is not None:
            # `commit.json` will name this file: its bytes and its name must not vanish behind it.
            self._file.sync()
            self._file.close()
            self._place.files.sync_directory(self._place.directory)
        return Part(self._name, tuple(self._runs))

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[TopicFile, pa.RecordBatch]]:
        """Parts rows by their topic, order kept."""
        if self._topic is not None:
            yield self._about(self._topic), batch
            return
        names = batch.column("topic")
        if names.null_count:
            raise InvalidRequest("a row has no topic; give the option 'topic', or fill the column")
        for name in pc.unique(names).to_pylist():
            yield self._about(name), batch.filter(pc.equal(names, name))

    def _about(self, name: str) -> TopicFile:
        about = self._topics.get(name)
        if about is None:
            raise UnknownTopic(f"there is no topic {name!r}; create it before it is written to")
        return about

    def _add(self, about: TopicFile, rows: pa.RecordBatch) -> None:
        """Completes rows of one topic, parts them by partition and writes them."""
        settings = TopicSettings.parse(about.settings)
        request = make_request(
            _as_records(rows), about.format, settings, acks=DURABLE, now_ms=self._now_ms
        )
        chosen = self._partitions(about, rows)
        if chosen is None:
            self._write(about, self._turn % about.partitions, request.records)
        else:
            for number, records in split(request.records, chosen, about.partitions):
                self._write(about, number, records)
        self._turn += 1

    def _partitions(self, about: TopicFile, rows: pa.RecordBatch) -> NDArray[np.int64] | None:
        """Chooses each row's partition: its own, its key's, or the next in turn; None is in turn.

        The same choice as `Store.append` makes.
        """
        names = rows.schema.names
        keyed = "key" in names and "key" in KEPT_COLUMNS[about.format] and about.partitions > 1
        placed = "partition" in names and rows.column("partition").null_count < rows.num_rows
        if not keyed and not placed:
            return None
        turn = self._turn % about.partitions
        chosen = np.full(rows.num_rows, NO_KEY, dtype=np.int64)
        if keyed:
            chosen = partitions_of(rows.column("key").cast(pa.binary()), about.partitions)
        chosen[chosen == NO_KEY] = turn
        if placed:
            given = pc.fill_null(rows.column("partition").cast(pa.int64()), -1).to_numpy()
            own = pc.is_valid(rows.column("partition")).to_numpy(zero_copy_only=False)
            if own.any() and not (given[own].min() >= 0 and given[own].max() < about.partitions):
                raise UnknownTopic(
                    f"topic {about.name!r} has partitions 0 to {about.partitions - 1}; a row names"
                    " another"
                )
            chosen[own] = given[own]
        return chosen

    def _write(self, about: TopicFile, partition: int, records: pa.RecordBatch) -> None:
        if self._file is None:
            self._place.files.make_directory(self._place.directory)
            self._file = self._place.files.create(paths.join(self._place.directory, self._name))
        message = records.serialize()
        self._file.write_at(self._position, message)
        checksum = crc32c_of(message)
        self._runs.append(
            Run(
                about.name,
                about.epoch,
                partition,
                records.num_rows,
                self._position,
                message.size,
                checksum,
            )
        )
        self._position += message.size


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins Spark's batches into larger ones, so that each partition gets long runs."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= FLUSH_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Takes the columns that are stored, in our types; times are rounded to milliseconds."""
    names = [name for name in RECORD_COLUMNS if name in rows.schema.names]
    columns = []
    for name in names:
        column = rows.column(name)
        if name == "timestamp":
            column = _milliseconds(column)
        columns.append(column.cast(RECORD_SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(columns, names)


def _milliseconds(column: pa.Array) -> pa.Array:
    """Rounds Spark's microseconds, half upwards."""
    if column.type == TIMESTAMP:
        return column
    microseconds = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    filled = pc.fill_null(microseconds, 0).to_numpy()
    whole, rest = np.divmod(filled, 1000)
    rounded = pa.array(whole + (rest >= 500), mask=~_valid(column))
    return rounded.cast(TIMESTAMP)


def _valid(column: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = pc.is_valid(column).to_numpy(zero_copy_only=False)
    return valid
