"""The archived part of a partition, as far as reading needs it: what `lamina.archive` provides.

The log knows an archive by this interface alone, so that neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.scan import Limit


class Cold(Protocol):
    """The archived part of a partition, as far as reading needs it."""

    @property
    def entries(self) -> tuple[ArchivedObject, ...]:
        """The archived objects, oldest first."""

    @property
    def is_loaded(self) -> bool:
        """Whether the entries are known: the object store has answered once."""

    def load(self) -> None:
        """Asks the object store for the entries; raises ArchiveUnavailable."""

    def entry_for(self, offset: int) -> ArchivedObject | None:
        """Returns the object whose span includes an offset."""

    def next_base(self, offset: int) -> int | None:
        """Returns where the first object above an offset begins."""

    def scan(self, offset: int, stop: int, limit: Limit) -> Iterator[pa.RecordBatch]:
        """Yields records from an offset that an object spans; raises RecordsMissing."""

    def offset_before_time(self, entry: ArchivedObject, timestamp_ms: int) -> int:
        """Returns an offset such that all records of an object before it are older than a time."""
