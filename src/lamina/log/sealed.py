"""A partition whose sealed layers can be archived, and then leave the local disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lamina.api import Gap
from lamina.formats.documents.ledger import Ledger
from lamina.log.interfaces import LogWriter

if TYPE_CHECKING:
    from lamina.log.cold import Cold


class Archivable(LogWriter, Protocol):
    """A partition whose sealed part can be archived, and then leave the local disk."""

    cold: Cold | None
    """Its archived part, as readers see it."""

    ledger: Ledger
    """Its missing ranges with their reasons, and those that only the archive holds."""

    @property
    def published(self) -> Ledger:
        """Every missing range, for the archive's own copy of the ledger."""

    @property
    def local_start(self) -> int:
        """The first offset that lies here, and not only in the archive."""

    def enter_gaps(self, gaps: Sequence[Gap]) -> None:
        """Enters why ranges of offsets are missing, or are about to be: at once, and durably."""

    def turn(self, old: str, gaps: Sequence[Gap]) -> None:
        """Enters another reason, durably, for what has an old one in some ranges."""

    def found_again(self, spans: Sequence[tuple[int, int]]) -> None:
        """Takes back, durably, that the records of some ranges are lost, or only archived."""

    @property
    def sealed_end(self) -> int:
        """One past the last offset in a sealed layer."""

    def has_local_excess(self, archived_end: int) -> bool:
        """Returns whether local retention would remove anything that is archived."""

    def check_local_excess(self, archived_end: int) -> None:
        """Reads what would go; raises NewerFormat for records that this version cannot judge."""

    def apply_local_retention(self, archived_end: int) -> int:
        """Removes local copies of what is archived; returns how many segments. For the leader."""
