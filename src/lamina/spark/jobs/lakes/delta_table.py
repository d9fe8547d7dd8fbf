"""A Delta table, committed with the package `deltalake` (extra `delta`): no jar.

How far each partition is exported is a transaction identifier of Delta's own protocol: application
`lamina-export/<topic>/<partition>`, version the end offset, in the same commit as the files.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from urllib.parse import quote

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from lamina.errors import InvalidRequest, ObjectConflict
from lamina.spark.jobs.export import Export
from lamina.spark.jobs.lakes.table_lock import alone_in
from lamina.spark.jobs.topic_rows import Topic
from lamina.storage import paths
from lamina.storage.files import LocalFiles, wall_clock_ms

DATE = pa.field("date", pa.date32())
SAYS = "lamina topic "
"""How the table's description begins; the topic it holds follows."""


class DeltaLake:
    """A Delta table in a directory that driver and executors share."""

    def __init__(self, path: str) -> None:
        if "://" in path:
            raise InvalidRequest(f"{path!r}: Delta tables are exported to directories")
        self._path = paths.absolute(path)

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

    def done(self, topic: Topic) -> dict[int, int]:
        """Returns the versions of the topic's transaction identifiers."""
        table = self._table()
        if table is None:
            return {}
        held = table.metadata().description or "another table"
        if held != SAYS + topic.identity:
            raise InvalidRequest(f"{self._path} holds {held}, not {SAYS}{topic.identity}")
        ends = {number: table.transaction_version(_id(topic, number)) for number in topic.extents}
        return {number: end for number, end in ends.items() if end is not None}

    def directory(self) -> str:
        """The table's own: Delta reads only what its log names."""
        return self._path

    def commit(self, export: Export) -> None:
        """Adds files and offsets in one commit of Delta's log; makes the table with the first."""
        topic = export.topic
        now_ms = wall_clock_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                quote(file.path, safe="/="),
                file.size_bytes,
                {"date": file.date},
                now_ms,
                True,
                json.dumps(
                    {
                        "numRecords": file.rows,
                        "minValues": {"offset": file.first_offset},
                        "maxValues": {"offset": file.last_offset},
                        "nullCount": {"offset": 0},
                    }
                ),
            )
            for file in export.files
        ]
        done = [Transaction(_id(topic, number), end) for number, end in export.done.items()]
        properties = CommitProperties(app_transactions=done)
        schema = Schema.from_arrow(export.schema.append(DATE))
        table = self._table()
        try:
            if table is None:
                create_table_with_add_actions(
                    self._path,
                    schema,
                    [each for each in actions if isinstance(each, AddAction)],
                    partition_by=["date"],
                    description=SAYS + topic.identity,
                    commit_properties=properties,
                )
            else:
                table.create_write_transaction(
                    actions, "append", schema, partition_by=["date"], commit_properties=properties
                )
        except DeltaError as error:
            raise ObjectConflict(f"{self._path}: the commit was refused: {error}") from error


def _id(topic: Topic, partition: int) -> str:
    return f"lamina-export/{topic.identity}/{partition}"
