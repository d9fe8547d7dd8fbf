"""The archived part of a partition's pile: the objects that hold what no local layer does.

The same for every format: retention, counts and the drawn layers see cold and local parts as one
pile, oldest first. An object that reaches into the local part counts as far as nothing local holds
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lamina.api import SegmentFacts
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import Span

if TYPE_CHECKING:
    from lamina.log.cold import Cold


def spans_of(cold: Cold | None) -> list[Span] | None:
    """Returns which offsets the objects span; None where the archive has not been asked yet."""
    if cold is None or not cold.is_loaded:
        return None
    return [(each.base_offset, each.next_offset) for each in cold.entries]


def only_archived(
    entries: Iterable[ArchivedObject], earliest: int, local: int
) -> list[ArchivedObject]:
    """Returns the objects that hold offsets from `earliest` on and below the local ones."""
    return [each for each in entries if earliest < each.next_offset and each.base_offset < local]


def facts_of(entries: Iterable[ArchivedObject], earliest: int, local: int) -> list[SegmentFacts]:
    """Returns what retention needs to know of them, each as far as nothing local holds it."""
    found = []
    for each in only_archived(entries, earliest, local):
        end = min(each.next_offset, local)
        share = (end - each.base_offset) / (each.next_offset - each.base_offset)
        is_timed = (each.min_timestamp_ms, each.max_timestamp_ms) != (0, 0)
        found.append(
            SegmentFacts(
                each.base_offset,
                end,
                int(each.size_bytes * share),
                each.max_timestamp_ms if is_timed else None,
                sealed=True,
                cold=True,
            )
        )
    return found
