"""What a store keeps and removes when it is asked to: trim, delete, retention, rolling.

Rule: whatever frees space may use the space that is reserved for it, also on a full disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from lamina.api import Decision
from lamina.errors import ArchiveUnavailable
from lamina.log.interfaces import Deletion
from lamina.log.sealed import Archivable
from lamina.store.disk_reserve import Reserve
from lamina.store.lookup import Lookup


class Keeping:
    """Removes records of single partitions, in turn with their appends."""

    def __init__(self, lookup: Lookup[Archivable], reserve: Reserve) -> None:
        self._lookup = lookup
        self._reserve = reserve

    def _with_archive(self, topic: str, partition: int) -> Archivable:
        """Returns a partition after asking the archive, whose records are the oldest, for them."""
        target = self._lookup.partition(topic, partition)
        with contextlib.suppress(ArchiveUnavailable):
            target.ask_archive()
        return target

    def trim(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes whole segments below an offset; returns the earliest offset that is left."""
        target = self._with_archive(topic, partition)
        return self._reserve.use(lambda: target.exclusively(lambda: target.trim(before_offset)))

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes all records below an offset; returns the earliest offset that is left."""
        target = self._with_archive(topic, partition)
        return self._reserve.use(
            lambda: target.exclusively(lambda: target.delete_records(before_offset))
        )

    def delete(
        self,
        topic: str,
        partition: int = 0,
        *,
        before: int | None = None,
        tag: bytes | None = None,
        tag_prefix: bytes | None = None,
        offsets: Iterable[int] | None = None,
    ) -> int:
        """Deletes records of a wal topic; returns how many."""
        target = self._lookup.partition(topic, partition)
        chosen = None if offsets is None else tuple(offsets)
        # The archive is searched first, in this thread: appends do not wait for an object store.
        deletion = target.search_archive(Deletion(before, tag, tag_prefix, chosen))
        return self._reserve.use(lambda: target.exclusively(lambda: target.delete(deletion)))

    def explain_retention(self, topic: str, partition: int = 0) -> list[Decision]:
        """Returns for each segment, oldest first, whether it stays or goes, and why."""
        return self._with_archive(topic, partition).explain_retention()

    def apply_retention(self, topic: str, partition: int = 0) -> int:
        """Removes what retention lets go now; returns how many segments went."""
        target = self._with_archive(topic, partition)
        return self._reserve.use(lambda: target.exclusively(target.apply_retention))

    def roll(self, topic: str, partition: int = 0) -> None:
        """Seals the active segment, if it holds anything."""
        target = self._lookup.partition(topic, partition)
        target.exclusively(target.roll)
