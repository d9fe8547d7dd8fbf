"""What a store is asked to keep and to remove: records below an offset, by tag, by age and size.

A part of `StoreApi`, like `TypedApi`, which it stands on.
"""

from __future__ import annotations

from collections.abc import Iterable

from lamina.api.answers import Decision
from lamina.api.typed_api import TypedApi


class KeepingApi(TypedApi):
    """The part of a store that keeps and removes records."""

    def trim(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes whole segments below an offset; returns the earliest offset that is left."""
        raise self._cannot("trim")

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes all records below an offset, for good; returns the earliest offset that is left.

        The offset may lie anywhere up to the durable end: inside of a segment, too, which stays on
        disk until the last of its records is removed. Raises OffsetOutOfRange beyond the end.
        """
        raise self._cannot("delete_records")

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
        """Deletes records of a wal topic, at once and for good; returns how many.

        Either all before an offset, those with a tag or a tag's beginning, or single ones. Only
        records that are there now are meant, not later ones.
        """
        raise self._cannot("delete")

    def explain_retention(self, topic: str, partition: int = 0) -> list[Decision]:
        """Returns for each segment, oldest first, whether it stays or goes, and why."""
        raise self._cannot("explain_retention")

    def apply_retention(self, topic: str, partition: int = 0) -> int:
        """Removes what retention lets go now; returns how many segments went."""
        raise self._cannot("apply_retention")

    def roll(self, topic: str, partition: int = 0) -> None:
        """Seals the active segment, if it holds anything."""
        raise self._cannot("roll")
