"""Which appends of idempotent producers a crash has finished, and what is left of the others.

An append of several records is one write of the WAL, but power loss may keep any part of it. Its
entry in the producers' journal was durable before. So for every entry whose records are not all in
segments, the WAL decides:

    all of them                     finished: a repeat gets its first answer
    none of them                    never stored: the entry goes, a repeat is stored
    some, and a barrier follows     it had been synced; what is missing is reported as lost
    some, and all were written      the same: damage came later
    some, and no barrier follows    unfinished: what is left of it is hidden, the entry goes

What is hidden is entered in the ledger as truncated before a repeat can be stored: it was never
acknowledged as durable. Recovery skips records of the WAL that the ledger has as truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lamina.formats.documents.ledger import Ledger
from lamina.formats.producer_journal import Entry
from lamina.wal.replay import Frames, Replayed

TRUNCATED = "truncated"


class Judged(NamedTuple):
    """The entries that count, and where those were stored in part that do not."""

    finished: list[Entry]
    left_over: list[tuple[int, int]]


def judge(
    entries: Sequence[Entry],
    settled_end: int,
    frames: Frames,
    replayed: Replayed,
    claimed: Collection[int] = (),
) -> Judged:
    """Separates requests that are stored already from those that are not.

    `claimed` are sequences of frames that were written, and are damaged now. Below `settled_end`
    everything was durable: it is in segments, or was deleted since.
    """
    finished: list[Entry] = []
    left_over: list[tuple[int, int]] = []
    for entry in entries:
        end = entry.base_offset + entry.count
        first, last = np.searchsorted(frames.sequences, (entry.base_offset, end)).tolist()
        found = last - first
        if entry.base_offset < settled_end or found == entry.count:
            finished.append(entry)
        elif first < len(frames.locations) and replayed.is_synced(int(frames.locations[first])):
            finished.append(entry)  # this, or what was written after it
        elif found and (end - 1 in claimed or _has_arrived(end, frames, replayed)):
            finished.append(entry)
        elif found:
            left_over.append((entry.base_offset, int(frames.sequences[last - 1]) + 1))
    return Judged(finished, left_over)


def _has_arrived(end: int, frames: Frames, replayed: Replayed) -> bool:
    """Returns whether a topic's records below a sequence were written, whatever became of them."""
    row = int(np.searchsorted(frames.sequences, end - 1))
    return row < len(frames.locations) and replayed.has_arrived(int(frames.locations[row]))


def without_truncated(frames: Frames, known: Ledger) -> Frames:
    """Leaves out the records that the ledger calls truncated."""
    hidden = [(gap.first, gap.end) for gap in known.gaps if gap.reason == TRUNCATED]
    if not hidden or not len(frames.sequences):
        return frames
    kept = np.ones(len(frames.sequences), dtype=np.bool_)
    for first, end in np.searchsorted(frames.sequences, hidden).tolist():
        kept[first:end] = False
    return Frames(frames.sequences[kept], frames.locations[kept], frames.size_bytes)
