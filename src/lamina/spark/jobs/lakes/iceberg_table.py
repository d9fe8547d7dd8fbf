"""An Iceberg table, committed with the package `pyiceberg` (extra `iceberg`): no jar.

How far each partition is exported is a property of the table, set in the same commit that adds the
files. The table is partitioned by the day of `timestamp`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from urllib.parse import unquote, urlparse

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, NotInstalledError
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from lamina.errors import InvalidRequest, ObjectConflict
from lamina.spark.jobs.export import Export
from lamina.spark.jobs.lakes.table_lock import alone_in
from lamina.spark.jobs.topic_rows import Topic
from lamina.storage.files import LocalFiles
from lamina.storage.paths import absolute, join

PROPERTY = "lamina.export"


class IcebergLake:
    """An Iceberg table of a catalog that pyiceberg knows, in a directory that all share."""

    def __init__(self, identifier: str, catalog: str, properties: Mapping[str, str]) -> None:
        if identifier.count(".") < 1:
            raise InvalidRequest(f"an Iceberg table is named NAMESPACE.TABLE, not {identifier!r}")
        self._identifier = identifier
        self._catalog = catalog_of(catalog, properties)
        self._created: Table | None = None

    @property
    def name(self) -> str:
        """The table's name in its catalog."""
        return f"iceberg {self._identifier}"

    def _table(self) -> Table | None:
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def alone(self) -> AbstractContextManager[None]:
        """Keeps other runs on this machine away; the catalog refuses those of others."""
        return alone_in(LocalFiles(), self._root())

    def done(self, topic: Topic) -> dict[int, int]:
        """Returns what the table's property says."""
        table = self._table()
        if table is None or (not table.metadata.snapshots and PROPERTY not in table.properties):
            return {}
        held = json.loads(table.properties.get(PROPERTY, "{}"))
        if held.get("topic") != topic.identity:
            raise InvalidRequest(
                f"{self._identifier} holds {held.get('topic') or 'a table'}, not {topic.identity}"
            )
        return {int(number): end for number, end in held["done"].items()}

    def _root(self) -> str:
        """Where the catalog keeps tables of this namespace, as a path."""
        return root_of(self._catalog, self._identifier, self._table())

    def directory(self) -> str:
        """The table's directory for data: Iceberg reads only what its snapshots name."""
        return join(self._root(), "data")

    def commit(self, export: Export) -> None:
        """Adds files and offsets in one commit of the catalog."""
        table = self._table()
        if table is None:
            self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            table = self._catalog.create_table(
                self._identifier, schema=export.schema, location=f"file://{self._root()}"
            )
        if table.spec().is_unpartitioned():
            with table.update_spec() as spec:
                spec.add_field("timestamp", DayTransform(), "date")
        done = {str(number): end for number, end in sorted(export.done.items())}
        state = json.dumps({"topic": export.topic.identity, "done": done})
        paths = [f"file://{join(self.directory(), file.path)}" for file in export.files]
        try:
            with table.transaction() as transaction:
                if paths:
                    transaction.add_files(paths, check_duplicate_files=False)
                transaction.set_properties({PROPERTY: state})
        except CommitFailedException as error:
            raise ObjectConflict(
                f"{self._identifier}: another one committed meanwhile; run it again ({error})"
            ) from error


def root_of(catalog: Catalog, identifier: str, table: Table | None) -> str:
    """Returns the directory of a table, or the one that it would get, as a path."""
    if table is not None:
        return local_path(table.location())
    warehouse = catalog.properties.get("warehouse")
    if not warehouse:
        raise InvalidRequest("the catalog has no property 'warehouse' to make a table in")
    return join(local_path(warehouse), *identifier.split("."))


def catalog_of(name: str, properties: Mapping[str, str]) -> Catalog:
    """Opens a catalog that pyiceberg knows; raises InvalidRequest for one that it does not."""
    try:
        return load_catalog(name, **properties)
    except (ValueError, NotInstalledError) as error:
        raise InvalidRequest(
            f"the Iceberg catalog {name!r} cannot be opened: {error}; name its type, uri and"
            " warehouse by --option, or by pyiceberg's own settings"
        ) from error


def local_path(location: str) -> str:
    """Returns a location as a path; raises InvalidRequest for what is no directory."""
    parsed = urlparse(location)
    if parsed.scheme not in ("", "file"):
        raise InvalidRequest(f"{location}: Iceberg tables are exported to directories")
    return unquote(parsed.path) if parsed.scheme else absolute(location)
