"""The archived part of a partition, as far as reading needs it: what `lamina.archive` provides.

The log knows an archive by this interface alone, so that neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.scan import Limit
from lamina.formats.strm import layout


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

    def look(self) -> None:
        """Asks once for entries that are not known, for callers that only count; never raises.

        An object store that has just not answered is left alone for a while.
        """

    def entry_for(self, offset: int) -> ArchivedObject | None:
        """Returns the object whose span includes an offset."""

    def next_base(self, offset: int) -> int | None:
        """Returns where the first object above an offset begins."""

    def scan(self, offset: int, stop: int, limit: Limit) -> Iterator[pa.RecordBatch]:
        """Yields records from an offset that an object spans; raises RecordsMissing."""

    def segment_of(self, entry: ArchivedObject, offset: int) -> layout.Segment:
        """Returns an object's index; raises RecordsMissing, from an offset on, without one."""

    def offset_before_time(self, entry: ArchivedObject, timestamp_ms: int) -> int:
        """Returns an offset such that all records of an object before it are older than a time."""


def in_objects(cold: Cold, start: int, end: int, limit: Limit) -> Iterator[pa.RecordBatch]:
    """Yields what the objects of a list hold of a range, whatever lies between them.

    Raises RecordsMissing at what an object should hold and does not.
    """
    while start < end:
        entry = cold.entry_for(start)
        if entry is None:
            following = cold.next_base(start)
            start = end if following is None else following
            continue
        stop = min(entry.next_offset, end)
        yield from cold.scan(start, stop, limit)
        start = stop
