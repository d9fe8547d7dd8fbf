"""A typed table of plain Parquet files, with a commit of our own.

    <out>/2026-01-31-<uuid>.parquet     rows, by day or by bucket
    <out>/_lamina/table.json            the table: its files, its columns, how far the topic is
    <out>/_lamina/staging/…             files that are not committed, or not moved yet

    {"version": 1, "run": "…", "state": "{…}", "columns": "…",
     "files": [{"name": "2026-01-31-….parquet", "rows": 100, "size_bytes": 4096}], "crc32": "…"}

*All or nothing.* Executors write into the staging directory, which readers of Parquet skip, as they
skip all that begins with an underscore. `table.json` is replaced in one step: it decides. Then
files of rows that are gone are removed, and the new ones are moved to their places; a run that is
killed meanwhile is finished by the next one. `files_of_table` names the files of the last commit
wherever they are, and is exact at every moment; who reads the directory may see it being moved.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.documents import strict_json
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
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles

VERSION = 1
DOCUMENT, STAGING = f"{OURS}/table.json", f"{OURS}/staging"
_OURS = re.compile(r"-[0-9a-f]{32}\.parquet$")
_FIELDS = {"version": int, "run": str, "state": str, "columns": str, "files": list}
_FILE = {"name": str, "rows": int, "size_bytes": int}


def decode(raw: bytes) -> dict[str, Any]:
    """Decodes a table's document; raises CorruptData or NewerFormat for what is not exactly one."""
    fields = strict_json.check_sealed(strict_json.parse(raw), VERSION)
    strict_json.check_fields(fields, "the table", _FIELDS)
    for each in fields["files"]:
        file = strict_json.as_object(each, "a file")
        strict_json.check_fields(file, "a file", _FILE)
        if "/" in file["name"] or file["name"] in ("", ".", ".."):
            raise CorruptData("a file's name leads out of the table", found=file["name"])
    return fields


def files_of_table(path: str) -> list[str]:
    """Lists the Parquet files of a table, wherever they are by now."""
    table = ParquetRows(path)
    return [table.found(file) for file in table.files()]


class ParquetRows:
    """A directory of plain Parquet files, which driver and executors share."""

    has_times = True

    def __init__(self, path: str, files: Files | None = None) -> None:
        if "://" in path:
            raise InvalidRequest(f"{path!r}: Parquet tables are written to directories")
        self._files = files or LocalFiles()
        self._path = paths.absolute(path)
        self._run = uuid.uuid4().hex
        self._columns: pa.Schema | None = None

    @property
    def name(self) -> str:
        """The table's directory."""
        return self._path

    def _document(self) -> dict[str, Any] | None:
        path = self._at(DOCUMENT)
        if not self._files.exists(path):
            return None
        try:
            return decode(self._files.read(path))
        except CorruptData as error:
            raise CorruptData(f"{path}: {error}") from error

    def files(self) -> list[TableFile]:
        """Lists the files of the last commit."""
        document = self._document()
        return [] if document is None else [TableFile(**each) for each in document["files"]]

    def found(self, file: TableFile) -> str:
        """Returns where a file of the last commit is."""
        place = self._at(file.name)
        if self._files.exists(place):
            return place
        document = self._document()
        assert document is not None
        return self._at(STAGING, document["run"], file.name)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the table's lock; finishes what a killed run has committed, removes the rest."""
        with alone_in(self._files, self._path):
            self.held([])
            self._files.make_directory(self._at(STAGING))
            self._settle()
            yield

    def read_from(self) -> str:
        """Returns the table's directory."""
        return self._path

    def scratch(self) -> str:
        """Returns a directory that readers of Parquet skip."""
        return self._at(STAGING, f"{self._run}-changes")

    def held(self, partitions: Iterable[int]) -> Held | None:
        """Returns what the table's document says."""
        if self._files.exists(self._at("_delta_log")):
            raise InvalidRequest(f"{self._path} has a table of another kind: Delta's")
        document = self._document()
        if document is None:
            return None
        columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["columns"])))
        return Held(TableState.of_text(document["state"]), columns, self.files())

    def begin(
        self, state: TableState, columns: pa.Schema, change: Sequence[ColumnChange] | None
    ) -> Begun:
        """Takes the columns; rows under others have to be written again."""
        self._columns = columns
        keeps = change is None or all(
            each.change == Change.SAME and not each.is_renamed for each in change
        )
        return Begun(columns, keeps, self._at(STAGING, self._run))

    def commit(self, commit: Commit) -> None:
        """Replaces the document, then puts files to their places."""
        assert self._columns is not None, "a commit is begun first"
        gone = {file.name for file in commit.removed}
        stays = [file for file in self.files() if file.name not in gone]
        fields = {
            "version": VERSION,
            "run": self._run,
            "state": commit.state.to_text(),
            "columns": base64.b64encode(self._columns.serialize()).decode(),
            "files": [asdict(file) for file in (*stays, *commit.added)],
        }
        raw = json.dumps(fields | {strict_json.SEAL: strict_json.seal(fields)}) + "\n"
        self._files.replace(self._at(DOCUMENT), raw.encode())
        self._settle()
        self._run = uuid.uuid4().hex

    def expire(self, keep_ms: int) -> Swept:
        """Does nothing: plain Parquet has no snapshots, and nothing is left lying about."""
        return Swept()

    def _settle(self) -> None:
        """Removes files of no commit, moves files that are not in their places yet."""
        document = self._document()
        named = {file.name for file in self.files()}
        for name in self._files.list(self._path):
            if document is not None and _OURS.search(name) and name not in named:
                self._files.remove(self._at(name))
        staged = "" if document is None else self._at(STAGING, document["run"])
        if staged and self._files.exists(staged):
            for name in sorted(named & set(self._files.list(staged))):
                self._files.rename(paths.join(staged, name), self._at(name))
            self._files.sync_directory(staged)
        self._files.sync_directory(self._path)
        self._sweep(self._at(STAGING))

    def _sweep(self, directory: str) -> None:
        """Removes all that is staged: no run is under way."""
        for name in self._files.list(directory):
            path = paths.join(directory, name)
            if self._files.is_directory(path):
                self._sweep(path)
                self._files.remove_directory(path)
            else:
                self._files.remove(path)

    def _at(self, *names: str) -> str:
        return paths.join(self._path, *names)
