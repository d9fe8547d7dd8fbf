"""The archived part of a wal topic: read where no local layer holds a record any more.

Rules.
1. What was deleted or evicted is never served, whatever an object still holds: every batch goes
   through the floors and the deleted set as they are when it is handed out.
2. A hole in an object is skipped silently if its records were deleted, and reported otherwise.
3. The object store is asked for every record that no local layer has, whatever the ledger's reason
   is: what is lost here may be there. Only what was removed on purpose is reported without asking.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lamina.errors import ArchiveUnavailable, RecordsMissing
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.ledger import ARCHIVED
from lamina.formats.scan import Limit
from lamina.log import layers as pile
from lamina.log.batch_offsets import after, first_of, runs
from lamina.log.gap_walk import scan_over
from lamina.wal.topic import TopicState

_WHY = "the archived object does not hold them"


def ask(topic: TopicState, sequence: int) -> None:
    """Loads the list of objects if a sequence may be archived and the list is not loaded yet."""
    if topic.cold is None:
        gap = topic.ledger.at(sequence)
        if gap is not None and gap.reason == ARCHIVED:
            raise ArchiveUnavailable(
                f"{topic.place.name}: offsets {gap.first} to {gap.end} are archived;"
                " open the store with `archive`"
            )
    elif not topic.cold.is_loaded:
        topic.cold.load()


def ask_for_all(topic: TopicState) -> None:
    """Loads the list if the archive alone holds some records; raises ArchiveUnavailable."""
    for gap in topic.ledger.archived()[:1]:
        ask(topic, gap.first)


def holds(topic: TopicState, sequence: int) -> bool:
    """Returns whether an archived object spans a sequence."""
    ask(topic, sequence)
    return topic.cold is not None and topic.cold.entry_for(sequence) is not None


def only_archived(topic: TopicState) -> list[ArchivedObject]:
    """Returns the objects that hold what no local layer does and nobody has removed, in order."""
    entries = topic.cold.entries if topic.cold is not None else ()
    return pile.only_archived(entries, topic.earliest, topic.local_start)


def is_hidden(topic: TopicState) -> bool:
    """Returns whether records are archived and the object store has not been asked for them yet."""
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
    for step in scan_over(lambda at: cold.scan(at, end, limit), sequence, end):
        if isinstance(step, RecordsMissing):
            _explain(topic, max(sequence, step.first), step.end, step)
            yield _NOTHING, step.end
            return
        for part in runs(step):
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
