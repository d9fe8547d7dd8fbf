"""Records that a query does not get: named with their recorded reason, and judged.

Rule: what was erased on purpose, or was never durable, is no loss; everything else stops the query,
or is only told where `failOnDataLoss` is false.
"""

from __future__ import annotations

import logging

from lamina.errors import ArchiveUnavailable, LaminaError, RecordsMissing
from lamina.formats.ledger import ARCHIVED, Gap

LOGGER = logging.getLogger("lamina.spark")
NO_LOSS = frozenset({"deleted", "truncated", "compacted", "aborted"})
"""Reasons that take nothing from a reader: erased on purpose, or never durable."""


def is_loss(gap: Gap) -> bool:
    """Tells whether a gap takes something from a reader."""
    return gap.reason not in NO_LOSS


def judge(problem: RecordsMissing, *, fail_on_data_loss: bool) -> None:
    """Raises if records that a task wants are lost to it, and that matters; else only tells."""
    if problem.reason in NO_LOSS:
        return
    if fail_on_data_loss:
        raise problem
    LOGGER.warning("%s", problem)


def missing(name: str, gap: Gap, start: int) -> LaminaError:
    """Says which records a query from `start` on will not get, why, and what can be done."""
    if gap.reason == ARCHIVED:
        return ArchiveUnavailable(
            f"{name}: offsets {gap.first} to {gap.end} are archived; say where with the option"
            " 'archive', as the store's own is given"
        )
    return RecordsMissing(
        f"{name}: records that the query has not read are gone; start"
        " at a later offset, or set failOnDataLoss to false to go on without them",
        first=max(gap.first, start),
        end=gap.end,
        reason=gap.reason,
    )
