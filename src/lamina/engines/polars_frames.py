"""A topic as a lazy frame of Polars; needs `pip install 'lamina[polars]'`.

Polars hands its projection, its predicate and its limit to a source. Arrow's reading of the
predicate only decides which ranges are read. Polars and Arrow disagree about nulls (`~is_in`) and
NaN (`x == NaN`), so Polars itself decides about every row.

Rules.
1. The rows are those that the same query returns for a frame in memory.
2. A limit counts rows before the predicate applies, as Polars defines it; then nothing is pruned.
3. A part of the predicate that Arrow cannot express prunes nothing; the other parts still do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import polars
import pyarrow as pa
from polars.exceptions import PolarsError
from polars.io.plugins import register_io_source

from lamina.engines.bounds import Expression
from lamina.engines.dataset import LogDataset
from lamina.engines.open_table import Where, dataset


def scan(
    where: Where,
    topic: str,
    *,
    archive: str | None = None,
    api_key: str | None = None,
    fail_on_data_loss: bool = True,
    errors: str = "raise",
) -> polars.LazyFrame:
    """Returns a topic as a lazy frame; see `lamina.dataset` for the arguments.

    Filters on `_offset`, `_partition` and `_timestamp` decide what is read at all.
    """
    table = dataset(
        *(where, topic),
        archive=archive,
        api_key=api_key,
        fail_on_data_loss=fail_on_data_loss,
        errors=errors,
    )

    def source(
        columns: list[str] | None,
        predicate: polars.Expr | None,
        limit: int | None,
        batch_rows: int | None,
    ) -> Iterator[polars.DataFrame]:
        return _frames(table, columns, predicate, limit)

    return register_io_source(source, schema=_frame(table.schema.empty_table()).schema)


def _frames(
    table: LogDataset,
    columns: list[str] | None,
    predicate: polars.Expr | None,
    limit: int | None,
) -> Iterator[polars.DataFrame]:
    """Yields the rows that pass the predicate, of at most the first `limit` rows."""
    filter = None
    if predicate is not None and limit is None:
        filter = _arrow_filter(table.schema, predicate)
    for batch in table.candidates(_needed(table.schema, columns, predicate), filter):
        frame = _frame(batch)
        if limit is not None:
            frame = frame.head(limit)
            limit -= frame.height
        if predicate is not None:
            frame = frame.filter(predicate)
        yield frame if columns is None else frame.select(columns)
        if limit == 0:
            return


def _frame(rows: pa.RecordBatch | pa.Table) -> polars.DataFrame:
    return cast("polars.DataFrame", polars.from_arrow(rows))


def _needed(
    schema: pa.Schema, columns: list[str] | None, predicate: polars.Expr | None
) -> list[str] | None:
    """Returns the columns that the answer and the predicate need; None for all of them."""
    if columns is None:
        return None
    asked = {*columns, *(() if predicate is None else predicate.meta.root_names())}
    return [name for name in schema.names if name in asked]


class _Listener:
    """Stands for a dataset without rows, and keeps the filter that Polars hands to it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.heard: Expression | None = None

    def to_table(
        self, columns: list[str] | None = None, filter: Expression | None = None, **_: Any
    ) -> pa.Table:
        """Answers with no rows."""
        self.heard = filter
        empty = self.schema.empty_table()
        return empty if columns is None else empty.select(columns)

    def to_batches(
        self, columns: list[str] | None = None, filter: Expression | None = None, **_: Any
    ) -> Iterator[pa.RecordBatch]:
        """Answers with no rows."""
        self.heard = filter
        return iter(())


def _arrow_filter(schema: pa.Schema, predicate: polars.Expr) -> Expression | None:
    """Returns a predicate as Polars translates it for Arrow; None if it cannot."""
    filter = None
    for part in _conjuncts(predicate):
        listener = _Listener(schema)
        try:
            polars.scan_pyarrow_dataset(cast("Any", listener)).filter(part).collect()
        except PolarsError:  # whatever is wrong with it, the rows will show
            continue
        if listener.heard is not None:
            filter = listener.heard if filter is None else filter & listener.heard
    return filter


def _conjuncts(predicate: polars.Expr) -> Iterator[polars.Expr]:
    """Yields the parts of a predicate all of which must hold."""
    parts = predicate.meta.pop()
    if len(parts) == 2 and any(
        (one & other).meta.eq(predicate) for one, other in (parts, reversed(parts))
    ):
        for part in parts:
            yield from _conjuncts(part)
    else:
        yield predicate
