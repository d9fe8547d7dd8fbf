"""What bounds a read of records, and what a diff returns.

`scan` bounds each batch of a stream; `scan_from` bounds the whole stream, by `bounded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, Self

import pyarrow as pa

from lamina.api.answers import Gap
from lamina.api.portraits import Portrait, Shown, counted
from lamina.arguments import whole
from lamina.errors import InvalidRequest

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1 << 20
"""What one batch of a scan holds at most, unless the caller asks for something else."""


@dataclass(frozen=True, slots=True)
class Diff:
    """What is new to a follower: records, the missing ranges, and where the next read starts.

    `caught_up` says that nothing more was durable when the read ended.
    """

    records: pa.RecordBatch
    next_offset: int
    caught_up: bool
    gaps: tuple[Gap, ...]


class BatchStream(Shown):
    """The batches of a scan, as they are asked for; `close` ends it early.

    Whatever takes a stream of Arrow takes it as it is (`polars.from_arrow(store.scan("orders"))`),
    batch by batch, and ends it by dropping it. Shows how far it is, and reads nothing for that.
    """

    __slots__ = ("__weakref__", "_batches", "_count", "_name", "_records", "_schema_of", "_state")

    def __init__(
        self, name: str, batches: Iterator[pa.RecordBatch], schema_of: Callable[[], pa.Schema]
    ) -> None:
        self._name = name
        self._batches = batches
        self._schema_of = schema_of
        self._state = "open"
        self._count = self._records = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
        except BaseException as error:
            self._state = "at its end" if isinstance(error, StopIteration) else "broken off"
            raise
        self._count += 1
        self._records += batch.num_rows
        return batch

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch; asking for them reads no record."""
        return self._schema_of()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hands out what was not read yet, as a stream of Arrow's C interface.

        Some readers ask twice, the first time for the columns: nothing is read before they read.
        """
        if self._state != "open":
            raise InvalidRequest(f"the batches of {self._name} are {self._state}: scan again")
        reader = pa.RecordBatchReader.from_batches(self.schema, self._handed_out())
        return reader.__arrow_c_stream__(requested_schema)

    def _handed_out(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self
        finally:
            self.close()

    def close(self) -> None:
        """Ends the scan; nothing more comes."""
        if self._state == "open":
            self._state = "closed"
        end = getattr(self._batches, "close", None)
        if end is not None:
            end()

    def _portrait(self) -> Portrait:
        so_far = f"{counted(self._count, 'batch', 'batches')}, {counted(self._records, 'record')}"
        return Portrait(f"<batches of {self._name}: {so_far} so far, {self._state}>")


class _Scan(Protocol):
    def __call__(self, max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        """Begins a scan whose batches have these limits."""


def bounded(
    scan: _Scan, schema_of: Callable[[], pa.Schema], max_bytes: int | None, max_msgs: int | None
) -> BatchStream:
    """Streams batches until so many records, or about so many bytes, were handed out.

    At least one record comes, if there is one, however small `max_bytes` is.
    """
    for name, given in (("max_bytes", max_bytes), ("max_msgs", max_msgs)):
        if given is not None and whole(name, given) < 1:
            raise InvalidRequest(f"{name} must be 1 or more, not {given}")
    records = BATCH_RECORDS if max_msgs is None else min(max_msgs, BATCH_RECORDS)
    size = BATCH_BYTES if max_bytes is None else min(max_bytes, BATCH_BYTES)
    counted = _counted(scan(records, size), max_bytes, max_msgs)
    return BatchStream("a bounded scan", counted, schema_of)


def _counted(
    batches: Iterator[pa.RecordBatch], max_bytes: int | None, max_msgs: int | None
) -> Iterator[pa.RecordBatch]:
    sent_bytes = sent = 0
    for batch in batches:
        left = batch.num_rows if max_msgs is None else min(batch.num_rows, max_msgs - sent)
        part = batch.slice(0, left)
        yield part
        sent += part.num_rows
        sent_bytes += part.nbytes
        is_full = max_bytes is not None and sent_bytes >= max_bytes
        if is_full or (max_msgs is not None and sent >= max_msgs):
            return
