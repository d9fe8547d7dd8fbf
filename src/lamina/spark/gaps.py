"""Records that a query does not get: named with their recorded reason, counted, and judged.

Rule: what was erased on purpose, or was never durable, is no loss; everything else stops the query.
Where `failOnDataLoss` is false it is left out, and told: each range, its reason, and how many.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from lamina.api import Gap
from lamina.errors import ArchiveUnavailable, LaminaError, RecordsMissing
from lamina.formats.documents.ledger import ARCHIVED
from lamina.log.gap_walk import NO_LOSS

LOGGER = logging.getLogger("lamina.spark")
TOLD_MAX = 20
"""So many ranges are named in one message; the others are only counted."""


class LeftOut(NamedTuple):
    """Offsets that a query went on without; `where` is the partition, its file or its object."""

    where: str
    first: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.first} to {self.end} ({self.reason})"


def tell(left_out: Sequence[LeftOut]) -> None:
    """Warns of what a plan leaves out: how many offsets, and which."""
    if left_out:
        named = "; ".join(map(str, left_out[:TOLD_MAX]))
        more = f"; and {len(left_out) - TOLD_MAX} more ranges" if left_out[TOLD_MAX:] else ""
        LOGGER.warning("%d offsets are left out: %s%s", count(left_out), named, more)


def count(left_out: Sequence[LeftOut]) -> int:
    """Counts the offsets."""
    return sum(each.end - each.first for each in left_out)


_noted: ContextVar[list[LeftOut] | None] = ContextVar("noted", default=None)
_where: ContextVar[str] = ContextVar("where", default="")


@contextlib.contextmanager
def noted() -> Iterator[list[LeftOut]]:
    """Gathers what reading within leaves out, for a task that reports it."""
    found: list[LeftOut] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def reading(where: str) -> None:
    """Is told what is read from now on: a partition's file, or an object."""
    _where.set(where)


def is_loss(gap: Gap) -> bool:
    """Returns whether a gap takes something from a reader."""
    return gap.reason not in NO_LOSS


def judge(problem: RecordsMissing, *, fail_on_data_loss: bool) -> None:
    """Raises if records that a task wants are lost to it, and that matters; else only tells."""
    if problem.reason in NO_LOSS:
        return
    if fail_on_data_loss:
        raise problem
    found = _noted.get()
    if found is not None:
        found.append(LeftOut(_where.get(), problem.first, problem.end, problem.reason))
    LOGGER.warning("%d offsets are left out: %s", problem.end - problem.first, problem)


def missing(name: str, gap: Gap, start: int) -> LaminaError:
    """Returns which records a query from `start` on will not get, why, and what can be done."""
    if gap.reason == ARCHIVED:
        return ArchiveUnavailable(
            f"{name}: offsets {max(gap.first, start)} to {gap.end} are archived, and "
            + (gap.detail or "nobody says where: name it by 'archive', as the store's own is named")
        )
    return RecordsMissing(
        f"{name}: records that the query has not read are gone; start"
        " at a later offset, or set failOnDataLoss to false to go on without them",
        first=max(gap.first, start),
        end=gap.end,
        reason=gap.reason,
    )
