"""A typed table in Delta, committed with the package `deltalake` (extra `delta`): no jar.

How far each partition is in the table, and by which version of the schema, are transaction
identifiers of Delta's own protocol, in the commit that has the files: applications
`lamina-table/<topic>/<partition>`, whose version is the end offset, and `lamina-table/<topic>`,
whose version is the schema's. What never changes is in the table's description.

Rules.
1. Columns that are null in old rows are added in front of the commit, where nobody can mind; any
   other change of columns replaces every file in the commit that changes them.
2. The table is not partitioned; each file's least and greatest offset and time are in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from lamina.errors import InvalidRequest, LaminaError, ObjectConflict
from lamina.spark.jobs.lakes.table_lock import OURS, alone_in
from lamina.spark.jobs.tables.column_changes import Change, ColumnChange
from lamina.spark.jobs.tables.parquet_rows import DOCUMENT
from lamina.spark.jobs.tables.table_contract import (
    Begun,
    Commit,
    Held,
    Swept,
    TableFile,
    TableState,
)
from lamina.spark.typed_columns import OFFSET, TIMESTAMP
from lamina.storage import paths
from lamina.storage.files import LocalFiles, wall_clock_ms

APPLICATION = "lamina-table"
HOUR_MS = 3_600_000


class DeltaRows:
    """A Delta table in a directory that driver and executors share."""

    has_times = False

    def __init__(self, path: str) -> None:
        if "://" in path:
            raise InvalidRequest(f"{path!r}: Delta tables are written to directories")
        self._path = paths.absolute(path)
        self._schema: Schema | None = None
        self._replaces = False

    @property
    def name(self) -> str:
        """The table's directory."""
        return f"delta {self._path}"

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._path)
        except TableNotFoundError:
            return None

    def alone(self) -> AbstractContextManager[None]:
        """Keeps other runs away; what one of them has committed needs no finishing."""
        return alone_in(LocalFiles(), self._path)

    def read_from(self) -> str:
        """Returns the table's own directory: Delta reads only what its log names."""
        return self._path

    def scratch(self) -> str:
        """Returns a directory that Delta passes over."""
        return paths.join(self._path, OURS, "changes")

    def held(self, partitions: Iterable[int]) -> Held | None:
        """Returns what the table's log says."""
        if LocalFiles().exists(paths.join(self._path, DOCUMENT)):
            raise InvalidRequest(f"{self._path} has a table of another kind: plain Parquet")
        table = self._table()
        if table is None:
            return None
        try:
            fixed = TableState.of_text(table.metadata().description or "")
        except LaminaError as error:
            raise InvalidRequest(
                f"{self._path} is a table that `lamina pipeline table` has not made"
            ) from error
        version = table.transaction_version(_id(fixed))
        done = {}
        for number in partitions:
            end = table.transaction_version(_id(fixed, number))
            if end is not None:
                done[number] = end
        state = TableState(fixed.topic, version or fixed.schema, fixed.latest, fixed.buckets, done)
        schema = pa.schema(table.schema().to_arrow())
        return Held(state, schema, _files_of(table))

    def begin(
        self, state: TableState, columns: pa.Schema, change: Sequence[ColumnChange] | None
    ) -> Begun:
        """Adds columns that are null in old rows; remembers the others for the commit."""
        self._schema = Schema.from_arrow(columns)
        self._replaces = False
        table = self._table()
        if table is not None and change is not None:
            self._replaces = any(
                each.change not in (Change.SAME, Change.ADDED) or each.is_renamed for each in change
            )
            if not self._replaces:
                known = {field.name for field in table.schema().fields}
                fields: list[Field] = [
                    field for field in self._schema.fields if field.name not in known
                ]
                if fields:
                    table.alter.add_columns(fields)
        return Begun(columns, not self._replaces, self._path)

    def commit(self, commit: Commit) -> None:
        """Commits files and how far the topic is in one entry of Delta's log."""
        assert self._schema is not None, "a commit is begun first"
        state, now_ms = commit.state, wall_clock_ms()
        added = [self._added(file, now_ms, is_new=commit.has_new_rows) for file in commit.added]
        removed = [
            RemoveAction(quote(file.name), commit.has_new_rows, now_ms, file.size_bytes, {})
            for file in commit.removed
        ]
        done = [Transaction(_id(state, number), end) for number, end in state.done.items()]
        done.append(Transaction(_id(state), state.schema))
        properties = CommitProperties(app_transactions=done)
        table = self._table()
        try:
            if table is None:
                create_table_with_add_actions(
                    self._path,
                    self._schema,
                    added,
                    description=_fixed(state).to_text(),
                    commit_properties=properties,
                )
            elif self._replaces:
                table.create_write_transaction(
                    [*added], "overwrite", self._schema, commit_properties=properties
                )
            else:
                table.create_write_transaction(
                    [*added, *removed], "append", table.schema(), commit_properties=properties
                )
        except DeltaError as error:
            raise ObjectConflict(f"{self._path}: the commit was refused: {error}") from error

    def _added(self, file: TableFile, now_ms: int, *, is_new: bool) -> AddAction:
        statistics = _statistics(paths.join(self._path, file.name))
        told = json.dumps({"numRecords": file.rows, **statistics})
        return AddAction(quote(file.name), file.size_bytes, {}, now_ms, is_new, told)

    def expire(self, keep_ms: int) -> Swept:
        """Removes old files that no version of the last while names, and what is old of the log."""
        table = self._table()
        if table is None:
            return Swept()
        hours = -(-keep_ms // HOUR_MS)
        removed = table.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        table = self._table()
        assert table is not None
        table.cleanup_metadata()
        return Swept(0, len(removed))


def _fixed(state: TableState) -> TableState:
    """What never changes of a table, for its description."""
    return TableState(state.topic, state.schema, state.latest, state.buckets)


def _id(state: TableState, partition: int | None = None) -> str:
    application = f"{APPLICATION}/{state.topic}"
    return application if partition is None else f"{application}/{partition}"


def _files_of(table: DeltaTable) -> list[TableFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    columns = (actions.column(name).to_pylist() for name in ("path", "num_records", "size_bytes"))
    return [
        TableFile(unquote(path), int(rows), int(size))
        for path, rows, size in zip(*columns, strict=True)
    ]


def _statistics(path: str) -> Mapping[str, Any]:
    """What Delta's log says of a file's rows, so that readers can pass over it."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            name, found = column.path_in_schema, column.statistics
            if name not in (OFFSET, TIMESTAMP) or found is None or not found.has_min_max:
                continue
            low, high = _printed(found.min), _printed(found.max)
            least[name] = min(least.get(name, low), low)
            greatest[name] = max(greatest.get(name, high), high)
    return {"minValues": least, "maxValues": greatest, "nullCount": dict.fromkeys(least, 0)}


def _printed(value: Any) -> Any:
    """Returns a number as it is, and a time as Delta writes it."""
    return value if isinstance(value, int) else value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
