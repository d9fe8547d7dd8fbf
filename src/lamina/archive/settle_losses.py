"""What became of records that no file here holds, once the archive has answered.

While it cannot be reached nothing that it may hold is entered as lost, and a store that was opened
without it may have entered as lost what it does hold. Its list decides both.

Rules.
1. It runs before anything is archived: an object that spans a range which exists nowhere would
   imply that the records in it had been deleted.
2. An object may have holes of its own. What was called lost is archived only where the object has
   none, or was read for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lamina.api import Gap
from lamina.archive.object_list import lacking
from lamina.archive.object_reader import ColdLog
from lamina.errors import NewerFormat
from lamina.formats.documents.archive_manifest import Objects
from lamina.formats.documents.ledger import ARCHIVED, LOST, Ledger
from lamina.formats.ranges import Span
from lamina.log.batch_offsets import after, first_of
from lamina.log.sealed import Archivable
from lamina.log.sound_copies import archived

_WHY = "neither here nor in the archive"


def settle(partition: Archivable, listed: Objects, cold: ColdLog) -> None:
    """Enters as lost what the archive does not have, and as archived what it has after all."""
    now_ms = partition.place.now_ms()
    nowhere = list(lacking(listed, partition.ledger, partition.published))
    partition.turn(ARCHIVED, [Gap(first, end, LOST, now_ms, _WHY) for first, end in nowhere])
    if partition.ledger.lost():
        cold.show(listed)
        found = [Gap(first, end, ARCHIVED, now_ms) for first, end in held(partition.ledger, cold)]
        partition.turn(LOST, found)


def held(known: Ledger, cold: ColdLog) -> Iterator[Span]:
    """Yields the ranges, in order, that a ledger calls lost and the archive has."""
    for gap in known.lost():
        for entry in cold.entries:
            first, end = max(gap.first, entry.base_offset), min(gap.end, entry.next_offset)
            if first >= end:
                continue
            if entry.is_dense:
                yield first, end
                continue
            with contextlib.suppress(NewerFormat):  # it stays lost until it can be read
                yield from ((first_of(run), after(run)) for run in archived(cold, (first, end)))
