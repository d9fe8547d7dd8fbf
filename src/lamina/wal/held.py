"""What the WAL holds of one topic, for putting the topic together after a restart."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np

from lamina.wal.replay import Frames
from lamina.wal.segments import Segment
from lamina.wal.topic import Run


def holds(frames: Frames, sequence: int) -> bool:
    """Returns whether the WAL holds a record."""
    row = int(np.searchsorted(frames.sequences, sequence))
    return row < len(frames.sequences) and int(frames.sequences[row]) == sequence


def is_durable(segment: Segment, frames: Frames, marked: int) -> bool:
    """Returns whether a segment was durable before the crash, its middle as well as its end.

    It was if a CheckpointMark covers it, or if the WAL holds none of it: a WAL file is removed only
    when everything in it is marked.
    """
    if marked >= segment.end_sequence - 1:
        return True
    bounds = (segment.first_sequence, segment.end_sequence)
    first, end = np.searchsorted(frames.sequences, bounds)
    return bool(first == end)


def bytes_from(frames: Frames, start: int) -> int:
    """The bytes of the records that only the WAL holds: of what it has in all, their share.

    Records that segments hold as well are counted there; to count them twice would let a cap remove
    what it should keep.
    """
    count = int(np.count_nonzero(frames.sequences >= start))
    return frames.size_bytes * count // max(1, len(frames.sequences))


def runs_from(frames: Frames, first: int) -> tuple[Run, ...]:
    """Makes runs of the frames from a sequence on; a hole begins a new one."""
    row = int(np.searchsorted(frames.sequences, first))
    sequences, locations = frames.sequences[row:], frames.locations[row:]
    if not len(sequences):
        return ()
    edges = np.flatnonzero(np.diff(sequences) != 1) + 1
    bounds = [0, *edges.tolist(), len(sequences)]
    runs = []
    for begin, end in pairwise(bounds):
        places = array("q")
        places.frombytes(locations[begin:end].tobytes())
        runs.append(Run(int(sequences[begin]), places))
    return tuple(runs)
