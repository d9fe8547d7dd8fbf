"""A typed table in Iceberg, committed with the package `pyiceberg` (extra `iceberg`): no jar.

A commit is one transaction of Iceberg: columns, files, and the property that says how far the topic
is in the table. Files carry the numbers of their columns, so that a column that is renamed or
widened needs no file to be written again. Rows that are only added are partitioned by the day of
`_timestamp`.

Rules.
1. The transaction is begun before files are written, for the numbers of new columns, and committed
   behind them: what a run leaves that was killed between is files that nobody reads.
2. Files are deleted only if no snapshot names them and they are older than what is kept.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform

from lamina.errors import InvalidRequest, ObjectConflict
from lamina.spark.jobs.lakes.iceberg_table import catalog_of, root_of
from lamina.spark.jobs.lakes.table_lock import OURS, alone_in
from lamina.spark.jobs.tables.column_changes import Change, ColumnChange
from lamina.spark.jobs.tables.table_contract import (
    Begun,
    Commit,
    Held,
    Swept,
    TableFile,
    TableState,
)
from lamina.spark.typed_columns import TIMESTAMP
from lamina.storage.files import LocalFiles, wall_clock_ms
from lamina.storage.paths import join, split

PROPERTY = "lamina.table"
DAY = "day"
_SETTINGS = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}


class IcebergRows:
    """An Iceberg table of a catalog that pyiceberg knows, in a directory that all share."""

    has_times = True

    def __init__(self, identifier: str, catalog: str, properties: Mapping[str, str]) -> None:
        if identifier.count(".") < 1:
            raise InvalidRequest(f"an Iceberg table is named NAMESPACE.TABLE, not {identifier!r}")
        self._identifier = identifier
        self._catalog: Catalog = catalog_of(catalog, properties)
        self._staged: Transaction | None = None

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return f"iceberg {self._identifier}"

    def _table(self) -> Table | None:
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _root(self) -> str:
        return root_of(self._catalog, self._identifier, self._table())

    def alone(self) -> AbstractContextManager[None]:
        """Keeps other runs on this machine away; the catalog refuses those of others."""
        return alone_in(LocalFiles(), self._root())

    def read_from(self) -> str:
        """Returns the table's directory of data: Iceberg reads only what its snapshots name."""
        return join(self._root(), "data")

    def scratch(self) -> str:
        """Returns a directory beside the data, where nothing of Iceberg is."""
        return join(self._root(), OURS, "changes")

    def held(self, partitions: Iterable[int]) -> Held | None:
        """Returns what the table's property and its current snapshot say."""
        table = self._table()
        if table is None:
            return None
        text = table.properties.get(PROPERTY)
        if text is None:
            raise InvalidRequest(
                f"{self._identifier} is a table that `lamina pipeline table` has not made"
            )
        files = [_file_of(task.file) for task in table.scan().plan_files()]
        return Held(TableState.of_text(text), _arrow_of(table.schema()), files)

    # ------------------------------------------------------------------ a commit

    def begin(
        self, state: TableState, columns: pa.Schema, change: Sequence[ColumnChange] | None
    ) -> Begun:
        """Stages the columns in a transaction; makes the table, empty, if it is not there."""
        table = self._table() or self._created(state, columns)
        self._staged = table.transaction()
        keeps = True
        if change is not None:
            keeps = all(each.change != Change.OTHER for each in change)
            self._restage(change, columns)
        schema = _arrow_of(self._staged.table_metadata.schema())
        return Begun(schema, keeps, self.read_from())

    def _created(self, state: TableState, columns: pa.Schema) -> Table:
        self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
        empty = TableState(state.topic, state.schema, state.latest, state.buckets)
        return self._catalog.create_table(
            self._identifier,
            schema=columns,
            location=f"file://{self._root()}",
            properties={PROPERTY: empty.to_text(), **_SETTINGS},
        )

    def _restage(self, change: Sequence[ColumnChange], columns: pa.Schema) -> None:
        """Changes columns by their numbers; one that has to be written again gets a new number."""
        assert self._staged is not None
        gone = {each.former for each in change if each.change == Change.DROPPED}
        gone |= {each.former for each in change if each.change == Change.OTHER and each.former}
        try:
            with self._staged.update_schema(allow_incompatible_changes=True) as update:
                for name in sorted(gone):
                    update.delete_column(name)
            with self._staged.update_schema() as update:
                update.union_by_name(_chosen(columns, change, Change.WIDENED))
            with self._staged.update_schema() as update:
                for each in change:
                    if each.is_renamed and each.change in (Change.SAME, Change.WIDENED):
                        update.rename_column(each.former, each.name)
            with self._staged.update_schema() as update:
                update.union_by_name(_chosen(columns, change, Change.ADDED, Change.OTHER))
        except ValueError as error:
            raise InvalidRequest(
                f"{self._identifier}: Iceberg cannot change its columns so: {error}; give the new"
                " version of the schema a table of its own"
            ) from error

    def commit(self, commit: Commit) -> None:
        """Commits columns, files and how far the topic is, all of it in one transaction."""
        staged, self._staged = self._staged, None
        assert staged is not None, "a commit is begun first"
        if not commit.state.latest and staged.table_metadata.spec().is_unpartitioned():
            with staged.update_spec() as spec:
                spec.add_field(TIMESTAMP, DayTransform(), DAY)
        try:
            if commit.removed:
                self._replace(staged, commit)
            elif commit.added:
                with staged.update_snapshot().merge_append() as snapshot:
                    for file in commit.added:
                        snapshot.append_data_file(self._data_file(staged, file))
            staged.set_properties({PROPERTY: commit.state.to_text()})
            staged.commit_transaction()
        except CommitFailedException as error:
            raise ObjectConflict(
                f"{self._identifier}: another one committed meanwhile; run it again ({error})"
            ) from error

    def _replace(self, staged: Transaction, commit: Commit) -> None:
        table = self._table()
        assert table is not None
        gone = {file.name for file in commit.removed}
        with staged.update_snapshot().overwrite() as snapshot:
            for task in table.scan().plan_files():
                if split(task.file.file_path)[1] in gone:
                    snapshot.delete_data_file(task.file)
            for file in commit.added:
                snapshot.append_data_file(self._data_file(staged, file))

    def _data_file(self, staged: Transaction, file: TableFile) -> DataFile:
        path, metadata = join(self.read_from(), file.name), staged.table_metadata
        schema = metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(path),
            stats_columns=compute_statistics_plan(schema, metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"file://{path}",
            file_format=FileFormat.PARQUET,
            partition=statistics.partition(metadata.spec(), schema),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    # ------------------------------------------------------------------ upkeep

    def expire(self, keep_ms: int) -> Swept:
        """Expires old snapshots, then removes old files that none of the others names."""
        table = self._table()
        if table is None:
            return Swept()
        until = wall_clock_ms() - keep_ms
        before = len(table.metadata.snapshots)
        if any(each.timestamp_ms < until for each in table.metadata.snapshots):
            limit = datetime.datetime.fromtimestamp(until / 1000, datetime.UTC)
            table.maintenance.expire_snapshots().older_than(limit).commit()
            table = self._table()
            assert table is not None
        named = {name for each in table.metadata.snapshots for name in _named_by(table, each)}
        removed = sum(
            _remove_old(folder, named, until)
            for folder in (self.read_from(), join(self._root(), "metadata"))
        )
        return Swept(before - len(table.metadata.snapshots), removed)


def _file_of(file: DataFile) -> TableFile:
    return TableFile(split(file.file_path)[1], file.record_count, file.file_size_in_bytes)


def _arrow_of(schema: Schema) -> pa.Schema:
    """Returns columns with their numbers, and without the large types that pyiceberg prefers."""
    return pa.schema([_plain(field) for field in schema_to_pyarrow(schema)])


def _plain(field: pa.Field) -> pa.Field:
    kind = field.type
    if kinds.is_large_string(kind):
        return field.with_type(pa.string())
    if kinds.is_large_binary(kind):
        return field.with_type(pa.binary())
    if kinds.is_large_list(kind) or kinds.is_list(kind):
        return field.with_type(pa.list_(_plain(kind.value_field)))
    if kinds.is_map(kind):
        return field.with_type(pa.map_(_plain(kind.key_field), _plain(kind.item_field)))
    if kinds.is_struct(kind):
        return field.with_type(pa.struct([_plain(each) for each in kind]))
    return field


def _chosen(columns: pa.Schema, change: Sequence[ColumnChange], *wanted: Change) -> pa.Schema:
    """Returns columns that changed so: under the former name where they keep their number."""
    keeps = Change.WIDENED in wanted
    return pa.schema(
        [
            pa.field(each.former if keeps else each.name, columns.field(each.name).type)
            for each in change
            if each.change in wanted
        ]
    )


def _named_by(table: Table, snapshot: Snapshot) -> set[str]:
    """Returns the names of all files that a snapshot needs."""
    found = {split(snapshot.manifest_list)[1]}
    for manifest in snapshot.manifests(table.io):
        found.add(split(manifest.manifest_path)[1])
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        found |= {split(entry.data_file.file_path)[1] for entry in entries}
    return found


def _remove_old(folder: str, named: set[str], until_ms: int) -> int:
    """Removes files that nothing names; the metadata's own documents are Iceberg's to remove."""
    files, removed = LocalFiles(), 0
    for name in files.list(folder) if files.exists(folder) else []:
        path = join(folder, name)
        is_data = name.endswith((".parquet", ".avro"))
        if is_data and name not in named and files.modified_ms(path) < until_ms:
            files.remove(path)
            removed += 1
    return removed
