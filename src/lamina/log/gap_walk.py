"""The one walk over gaps: records where they can be read, and in between what is missing and why.

A scan raises RecordsMissing at a gap, so that no caller takes part of a log for all of it. Callers
that go on behind gaps (archiving, groups, restoring, Spark, the console) consume this walk instead
of catching the error themselves, and decide what each gap means to them.

Rules.
1. The walk always advances: after a gap, whatever its bounds are, by at least one offset.
2. A gap is yielded as the error itself: it has bounds, a reason and a sentence, and a caller that
   does not tolerate it raises it.
3. Any other error ends the walk: what is only out of reach is not missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from lamina.api import Gap
from lamina.errors import UNREADABLE, RecordsMissing
from lamina.formats.documents.ledger import LOST
from lamina.log.batch_offsets import after

NO_LOSS = frozenset({"deleted", "truncated", "compacted", "aborted"})
"""Reasons that take nothing from a reader: erased on purpose, or never durable."""

ScanFrom: TypeAlias = Callable[[int], Iterable[pa.RecordBatch]]
"""Yields batches from an offset on; raises RecordsMissing at a gap."""


def scan_over(
    scan: ScanFrom,
    start: int,
    end: int | None = None,
    *,
    reached: Callable[[pa.RecordBatch], int] = after,
) -> Iterator[pa.RecordBatch | RecordsMissing]:
    """Yields batches from an offset on and each gap between them, up to `end` if one is given.

    `scan` is called again after each gap; without `end` it is called at whatever offset a gap
    ends at, so it must accept any. `reached` tells one past the last offset of a batch.
    """
    at = start
    while end is None or at < end:
        try:
            for batch in scan(at):
                yield batch
                if batch.num_rows:
                    at = reached(batch)
            return
        except RecordsMissing as missing:
            gap = missing
        at = max(gap.end, at + 1)
        yield gap


def first_not_removed(gaps: Iterable[Gap], earliest: int) -> int:
    """Returns the first offset that was not removed on purpose: the earliest, or what is lost.

    Readers of everything begin there, so that a loss is told also where nothing is left before it.
    A loss that lies behind what retention removed has grown too old as well.
    """
    at = earliest
    for gap in sorted(gaps, key=lambda gap: gap.first, reverse=True):
        if gap.reason == LOST and gap.first < at <= gap.end:
            at = gap.first
    return at


def fetch_over(
    fetch: Callable[[int], pa.RecordBatch], at: int
) -> tuple[pa.RecordBatch | RecordsMissing, int]:
    """Makes one step of a walk: what a fetch returns, or the gap that it meets; and where to go on.

    For walks that are driven from outside, by a screen or a terminal; an empty batch means that
    there was nothing to do.
    """
    try:
        batch = fetch(at)
    except RecordsMissing as missing:
        return missing, max(missing.end, at + 1)
    return batch, after(batch) if batch.num_rows else at


def records_over(scan: ScanFrom, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yields the records of a range over its gaps, which the ledger explains.

    Raises RecordsMissing at what the device does not deliver just now: it is not gone, and what is
    made of the rest must not count as all there was.
    """
    for step in scan_over(scan, start, end):
        if not isinstance(step, RecordsMissing):
            yield step
        elif step.reason == UNREADABLE:
            raise step
