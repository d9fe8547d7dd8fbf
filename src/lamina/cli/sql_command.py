"""`lamina sql`: a query over topics, by DuckDB; every topic that it names is a table.

Rules.
1. A query reads: topics are registered as tables, and nothing of theirs can be changed.
2. Only topics that the text of the query names are opened: a store may have thousands.
3. What a filter rules out is not read (`lamina.engines`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lamina.cli.target import Json, Where, placed
from lamina.errors import InvalidRequest

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from lamina.api import StoreApi
    from lamina.engines.dataset import LogDataset

ROWS_SHOWN = 10_000
"""A table for people ends here; with --json all rows are printed."""
_ROWS_AT_ONCE = 1 << 12
_WORD = re.compile(r"[A-Za-z0-9._-]+")


@placed
def sql(
    query: Annotated[str, typer.Argument(help="A query; topics are its tables.")],
    *,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Leave out records that are lost, with a warning."),
    ] = False,
    errors: Annotated[
        str,
        typer.Option(
            metavar="raise|null",
            help="A value that its topic's schema does not fit is an error, or a row of nulls with"
            " a column _error.",
        ),
    ] = "raise",
    where: Where,
    as_json: Json = False,
) -> None:
    """Runs a query over topics with DuckDB and prints its rows.

    A topic is a table with the columns _offset, _partition, _timestamp, _key, value, and what else
    its format keeps, or the columns of its schema. Conditions on the first three decide what is
    read at all. Names with dots or dashes need double quotes. --data takes the URL of an archive,
    too. DuckDB comes with the extra `duckdb`.
    """
    from lamina.cli.output import emit, say
    from lamina.cli.target import readable

    with readable(where) as store:
        tables = _tables(store, query, fail_on_data_loss=not skip_lost, errors=errors)
        connection = _connected()
        with contextlib.closing(connection), _typed(store, list(tables.values())):
            for topic, table in tables.items():
                connection.register(topic, table)
            rows = _rows(connection, query)
            if as_json:
                emit(rows, as_json=True)
                return
            shown = [row for row, _ in zip(rows, range(ROWS_SHOWN), strict=False)]
            emit(shown, as_json=False)
            if len(shown) == ROWS_SHOWN and next(rows, None) is not None:
                say(f"… only the first {ROWS_SHOWN:,} rows are shown; use limit, or --json for all")


def _connected() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise InvalidRequest("`lamina sql` needs DuckDB: pip install 'lamina[duckdb]'") from error
    return duckdb.connect(":memory:", config={"autoinstall_known_extensions": "false"})


def _tables(store: StoreApi, query: str, **how: Any) -> dict[str, LogDataset]:
    """Makes a table of every topic that the query may name; `how` is for `lamina.dataset`."""
    from lamina.engines.open_table import dataset

    return {topic: dataset(store, topic, **how) for topic in _named(store.topics(), query)}


def _named(topics: list[str], query: str) -> Iterator[str]:
    """Yields the topics that a query may name, in capitals or not: to DuckDB they are the same.

    Of topics whose names differ in nothing else the one is meant that the query writes alike.
    """
    written = set(_WORD.findall(query))
    words = {word.lower() for word in written}
    alike: dict[str, list[str]] = {}
    for topic in topics:
        if topic.lower() in words:
            alike.setdefault(topic.lower(), []).append(topic)
    for several in alike.values():
        meant = [topic for topic in several if topic in written] or several
        if len(meant) > 1:
            raise InvalidRequest(
                f"topics {', '.join(meant)} are one name to DuckDB, which takes capitals for small"
                " letters: write one of them, or query them as lamina.dataset in Python"
            )
        yield meant[0]


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of the last statement, with values that can be printed."""
    from lamina.inspect.render import render_value

    result = connection.sql(query)
    if result is None:  # a statement that has no rows
        return
    for batch in result.to_arrow_reader(_ROWS_AT_ONCE):
        for row in _with_printed_times(batch).to_pylist():
            yield cast("dict[str, Any]", render_value(row))


def _with_printed_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns times as Arrow prints them: Python has none beyond the year 9999."""
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            printed = batch.column(index).cast(pa.string())
            batch = batch.set_column(index, field.name, printed)
    return batch


@contextlib.contextmanager
def _typed(store: StoreApi, tables: list[LogDataset]) -> Iterator[None]:
    """Turns errors of DuckDB into typed ones; one of ours that it wraps is raised as it is.

    What comes up behind the first rows is wrapped by Arrow as well, as an error of its own.
    """
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        ours = [table.failure for table in tables if table.failure is not None]
        if ours:
            raise ours[0] from error
        if not isinstance(error, duckdb.Error):
            raise
        problem = " ".join(str(error).split())
        if isinstance(error, duckdb.CatalogException):
            names = store.topics()
            listed = ", ".join(names[:20]) + (", …" if names[20:] else "")
            problem += f"; the topics are: {listed or 'none'}"
        raise InvalidRequest(problem) from error
