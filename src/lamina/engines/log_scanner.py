"""One scan of a topic: a stream of batches, filtered and projected as each one comes.

Arrow's own scanner over a stream reads ahead in threads of its own, which go on after the reader
is gone, even while the interpreter shuts down. Here nothing is read before it is asked for: Arrow
filters and projects one batch at a time, and dropping the reader ends the scan.

Rules.
1. Filter and columns mean exactly what they mean to Arrow: each batch goes through its scanner.
2. No thread outlives a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pd

from lamina.engines.bounds import Expression, is_filtered_by

_ALIGNED_BYTES = 8


class LogScanner(pd.Scanner):  # type: ignore[misc]
    """The rows of some ranges of a topic; each call that returns rows reads them again."""

    def __init__(
        self,
        schema: pa.Schema,
        rows: Callable[[list[str] | None], Iterator[pa.RecordBatch]],
        columns: Any,
        filter: Expression | None,
    ) -> None:
        self._schema = schema
        self._rows = rows
        self._columns = columns
        self._filter = filter
        self._projected = self._applied(_none_of(schema), None).schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """The columns of the topic."""
        return self._schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the answer."""
        return self._projected

    def __repr__(self) -> str:
        return f"LogScanner({self._projected.names}, filter {self._filter})"

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows that pass the filter, as they are read."""
        whole = self._filter is None and self._columns is None
        for batch in self._rows(self._needed()):
            if whole:
                yield batch
                continue
            for kept in self._applied(batch, self._filter).to_batches():
                if kept.num_rows:
                    yield kept

    def scan_batches(self) -> Iterator[pd.TaggedRecordBatch]:
        """Yields the same, each with the fragment that it is of: none that could be named."""
        for batch in self.to_batches():
            yield pd.TaggedRecordBatch(batch, None)

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns the rows as a stream."""
        return pa.RecordBatchReader.from_batches(self._projected, self.to_batches())

    def to_table(self) -> pa.Table:
        """Returns all rows."""
        return pa.Table.from_batches(self.to_batches(), schema=self._projected)

    def head(self, num_rows: int) -> pa.Table:
        """Returns the first rows, and reads no batch beyond them."""
        taken: list[pa.RecordBatch] = []
        left = num_rows
        for batch in self.to_batches():
            taken.append(batch.slice(0, left))
            left -= taken[-1].num_rows
            if left <= 0:
                break
        return pa.Table.from_batches(taken, schema=self._projected).slice(0, num_rows)

    def count_rows(self) -> int:
        """Counts the rows that pass the filter."""
        return sum(batch.num_rows for batch in self.to_batches())

    def take(self, indices: Any) -> pa.Table:
        """Returns some rows by their place in the answer."""
        return self.to_table().take(indices)

    def _needed(self) -> list[str] | None:
        """Returns the columns that the answer and the filter need; None for all columns."""
        if not isinstance(self._columns, list):
            return None
        return [
            name
            for name in self._schema.names
            if name in self._columns or is_filtered_by(self._schema, self._filter, name)
        ]

    def _applied(self, batch: pa.RecordBatch, filter: Expression | None) -> pa.Table:
        return pd.Scanner.from_batches(
            [_aligned(batch)],
            schema=self._schema,
            columns=self._columns,
            filter=filter,
            use_threads=False,
        ).to_table()


def _aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch as Arrow's scanner wants it: what Flight received lies at any address."""
    buffers = (buffer for column in batch.columns for buffer in column.buffers())
    if all(buffer is None or buffer.address % _ALIGNED_BYTES == 0 for buffer in buffers):
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)


def _none_of(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)
