"""What a run asks of a kind of table, and what a table says of itself.

A kind of table is begun, then written to, then committed to: `begin` says how files have to look
and whether old ones can stay; the executors write; `commit` makes it all true at once.

Rules.
1. `held` reads the last commit: a run that was killed has left nothing else that counts.
2. `begin` changes nothing that a reader of rows sees, apart from columns that are null everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Protocol

import pyarrow as pa

from lamina.errors import CorruptData
from lamina.formats.documents import strict_json
from lamina.spark.jobs.tables.column_changes import ColumnChange

VERSION = 1
_STATE = {"version": int, "topic": str, "schema": int, "latest": bool, "buckets": int, "done": dict}


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table says of itself: whose it is, its schema's version, and how far it has come."""

    topic: str
    """The topic's identity, which differs for a topic that was created again."""
    schema: int
    latest: bool
    buckets: int
    """How many buckets the keys of a table of latest rows are dealt to; 0 for every other one."""
    done: Mapping[int, int] = field(default_factory=dict)
    """For each partition, one past the last offset that the table has."""

    def to_text(self) -> str:
        """Returns it as JSON."""
        fields = asdict(self) | {"done": {str(key): end for key, end in sorted(self.done.items())}}
        return json.dumps({"version": VERSION, **fields})

    @classmethod
    def of_text(cls, text: str) -> TableState:
        """Parses what `to_text` made; raises CorruptData or NewerFormat for anything else."""
        fields = strict_json.parse(text.encode())
        strict_json.check_fields(fields, "a table's state", _STATE)
        if fields.pop("version") != VERSION:
            raise CorruptData("a table's state is of another version", found=text)
        done = {int(key): int(end) for key, end in fields.pop("done").items()}
        return cls(**fields, done=done)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file: where it is below the table's directory of data, and what is in it."""

    name: str
    rows: int
    size_bytes: int

    @property
    def group(self) -> str:
        """The day or the bucket that all of its rows belong to: its name says so."""
        return self.name.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Held:
    """A table as its last commit left it."""

    state: TableState
    schema: pa.Schema
    """How files are read: columns with their numbers, where the table has numbers."""
    files: Sequence[TableFile]


@dataclass(frozen=True, slots=True)
class Begun:
    """How the files of a commit are written."""

    schema: pa.Schema
    keeps_files: bool
    """Whether the files that are there can stay; else their rows have to be written again."""
    directory: str


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit changes."""

    state: TableState
    added: Sequence[TableFile]
    removed: Sequence[TableFile]
    has_new_rows: bool = True
    """False where the same rows were only rearranged."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What an expiry took away."""

    snapshots: int = 0
    files: int = 0


class TableLake(Protocol):
    """A kind of table that a topic's rows can be committed to."""

    has_times: bool
    """Whether its columns can be times of day; durations are numbers in every kind."""

    @property
    def name(self) -> str:
        """What people call the table."""

    def alone(self) -> AbstractContextManager[object]:
        """Keeps other runs away, and finishes what a killed one has committed."""

    def held(self, partitions: Iterable[int]) -> Held | None:
        """Returns the table as it is, and how far these partitions are; None before the first run.

        Raises InvalidRequest for a table that no run has made.
        """

    def begin(
        self, state: TableState, columns: pa.Schema, change: Sequence[ColumnChange] | None
    ) -> Begun:
        """Prepares a commit with these columns; `change` says what became of the former ones."""

    def scratch(self) -> str:
        """Returns a directory for files of this run alone; the run removes what it put there."""

    def read_from(self) -> str:
        """Returns the directory that the files of commits are in."""

    def commit(self, commit: Commit) -> None:
        """Makes files part of the table and others not, all at once; raises ObjectConflict."""

    def expire(self, keep_ms: int) -> Swept:
        """Forgets snapshots that are older than that, and removes files that nothing needs."""


def rows_in(files: Iterable[TableFile]) -> int:
    """Counts the rows of files."""
    return sum(file.rows for file in files)
