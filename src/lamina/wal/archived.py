"""The archived part of a wal topic: read where no local layer holds a record any more.

Rules.
1. What was deleted or evicted is never served, whatever an object still holds: every batch goes
   through the floors and the deleted set as they are when it is handed out.
2. A hole in an object is stepped over silently where its records were deleted, and told otherwise.
3. The object store is asked for every record that no local layer gives, whatever the ledger says of
   it: what is lost here may be there. Only what was removed on purpose is told without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lamina.api import Gap, SegmentFacts
from lamina.errors import ArchiveUnavailable, RecordsMissing
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED, Ledger
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Limit
from lamina.log import archived_layers
from lamina.log.batch_offsets import after, first_of, runs

if TYPE_CHECKING:
    from lamina.wal.topic import TopicState

_WHY = "the archived object does not hold them"


def deleted_in(known: Ledger) -> Ranges:
    """Returns what a ledger remembers as deleted."""
    return Ranges.of((gap.first, gap.end) for gap in known.gaps if gap.reason == "deleted")


def as_gaps(deleted: Ranges) -> list[Gap]:
    """Returns deleted records as gaps of a ledger."""
    return [Gap(first, end, "deleted", 0) for first, end in deleted.pairs()]


def handed_over(known: Ledger) -> Ranges:
    """Returns what is archived and not in local segments, as a ledger says."""
    return Ranges.of((gap.first, gap.end) for gap in known.gaps if gap.reason == ARCHIVED)


def ask(topic: TopicState, sequence: int) -> None:
    """Has the list of objects read, if a sequence may be archived and nobody has asked yet."""
    if topic.cold is None:
        gap = topic.ledger.at(sequence)
        if gap is not None and gap.reason == ARCHIVED:
            raise ArchiveUnavailable(
                f"{topic.place.name}: offsets {gap.first} to {gap.end} are archived;"
                " open the store with `archive`"
            )
    elif not topic.cold.is_loaded:
        topic.cold.load()


def holds(topic: TopicState, sequence: int) -> bool:
    """Tells whether an archived object spans a sequence."""
    ask(topic, sequence)
    return topic.cold is not None and topic.cold.entry_for(sequence) is not None


def only_archived(topic: TopicState) -> list[ArchivedObject]:
    """Returns the objects that hold what no local layer does and nobody has removed, in order."""
    entries = topic.cold.entries if topic.cold is not None else ()
    return archived_layers.only_archived(entries, topic.earliest, topic.local_start)


def facts(topic: TopicState) -> list[SegmentFacts]:
    """Returns what retention needs to know of them, each as far as nothing local holds it."""
    entries = topic.cold.entries if topic.cold is not None else ()
    return [
        replace(each, removed=topic.removed_between(each.base_offset, each.next_offset))
        for each in archived_layers.facts_of(entries, topic.earliest, topic.local_start)
    ]


def is_hidden(topic: TopicState) -> bool:
    """Tells whether records are archived that nobody has asked the object store for yet."""
    is_known = topic.cold is not None and topic.cold.is_loaded
    return not is_known and bool(topic.ledger.archived())


def scan(
    topic: TopicState, sequence: int, end: int, limit: Limit
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields live archived records up to a sequence, and where to go on after each batch.

    Ends where no object goes on. Raises RecordsMissing at what is missing and was not deleted.
    """
    cold = topic.cold
    assert cold is not None, "it holds the sequence"
    batches = cold.scan(sequence, end, limit)
    while True:
        try:
            batch = next(batches, None)
        except RecordsMissing as missing:
            _explain(topic, max(sequence, missing.first), missing.end, missing)
            yield _NOTHING, missing.end
            return
        if batch is None:
            break
        for part in runs(batch):
            _explain(topic, sequence, first_of(part))
            sequence = after(part)
            yield live(topic, part), sequence
    span = cold.entry_for(end - 1)
    if span is not None and span.base_offset <= sequence < end:
        _explain(topic, sequence, end)
        yield _NOTHING, end


_NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, pa.int64())], names=["offset"])


def live(topic: TopicState, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Takes out of a batch what was deleted or dropped."""
    sequences = batch.column("offset").to_numpy()
    gone = topic.deleted.contains(sequences) | (sequences < topic.earliest)
    return batch.filter(pa.array(~gone)) if gone.any() else batch


def _explain(
    topic: TopicState, sequence: int, end: int, unread: RecordsMissing | None = None
) -> None:
    """Raises RecordsMissing at the first record of a hole that was not deleted.

    `unread` is why it could not be read, where the object should hold it.
    """
    sequence = max(sequence, topic.earliest)
    live_at = topic.deleted.end_at(sequence)
    if live_at >= end:
        return
    bounds = topic.deleted.bounds
    row = int(np.searchsorted(bounds, live_at, side="right"))
    end = min(end, int(bounds[row])) if row < len(bounds) else end
    gap = topic.gap_at(live_at)
    problem, reason = _WHY, "deleted"
    if unread is not None:
        problem, reason = f"{unread.path}: {unread.problem}", unread.reason
    if gap is not None and gap.reason != ARCHIVED:
        problem, reason, end = gap.detail or problem, gap.reason, min(end, gap.end)
    raise RecordsMissing(
        f"{topic.place.name}: {problem}", first=live_at, end=end, reason=reason
    ) from unread
