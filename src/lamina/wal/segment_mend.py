"""A sealed segment of a wal topic made whole again, from the archive where its frames are damaged.

Frames that are sound are copied as they are; archived records are encoded again in their place; the
`.data` is replaced under its name and its `.idx` rebuilt. What exists nowhere is entered as lost.
Damaged spots are set aside before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina.api import Gap
from lamina.formats.documents.ledger import ARCHIVED, LOST
from lamina.formats.ranges import Ranges, Span
from lamina.formats.wal import log
from lamina.formats.wal.layout import PREFIX
from lamina.log.batch_offsets import first_of
from lamina.log.sound_copies import Mended, Piece, archived, covered
from lamina.records import INPUT_SCHEMAS
from lamina.wal import segments
from lamina.wal.reader import damaged_ranges
from lamina.wal.segment_rewrite import replaced
from lamina.wal.segments import Segment
from lamina.wal.wal_partition import WalPartition


def mend(topic: WalPartition, segment: Segment) -> Mended:
    """Makes a segment whole, as far as that can be done. For the leader."""
    files = topic.sources.files
    data = memoryview(segments.data_of(files, segment)).cast("B")[: segment.data_bytes]
    found = segments.walk(files, segment, segment.data_bytes)
    for each in found.damages:
        spot = bytes(data[each.first_byte : each.end_byte])
        topic.place.set_aside(segment.path("data"), spot, each.first_byte)
    rows = np.flatnonzero(found.entries["length"] != 0)
    starts = found.entries["position"][rows].astype(np.int64)
    ends = starts + found.entries["length"][rows].astype(np.int64)
    sequences = rows + segment.first_sequence
    frames = {
        sequence: data[start:end]
        for sequence, start, end in zip(
            sequences.tolist(), starts.tolist(), ends.tolist(), strict=True
        )
    }
    missing = _missing(topic, segment, sequences)
    restored = [piece for span in missing.pairs() for piece in _encoded(topic, span)]
    for piece in restored:
        edges = [*piece.positions.tolist(), piece.data.nbytes]
        for row in range(len(piece.positions)):
            frames[piece.first + row] = piece.data[edges[row] + PREFIX.size : edges[row + 1]]
    back = covered(restored)
    damaged = Ranges.of((first, end) for first, end, _ in damaged_ranges(segment, found))
    known = topic.ledger.ranges_but(ARCHIVED)
    still = damaged.minus(back).minus(topic.deleted).minus(known).pairs()
    why = f"{segment.path('data')}: damaged"
    topic.enter_gaps([Gap(a, b, LOST, topic.place.now_ms(), why) for a, b in still])
    if _keeps_its_end(topic, segment, max(frames, default=0)):
        replaced(topic, segment, [(sequence, frames[sequence]) for sequence in sorted(frames)])
    topic.found_again(back.pairs())
    return Mended(back.pairs(), still)


def _missing(topic: WalPartition, segment: Segment, sound: NDArray[np.int64]) -> Ranges:
    """Returns the sequences of a segment that have no sound frame and should have one.

    A segment goes up to the next one: where its last frames are damaged it seems to end before.
    """
    later = [each.first_sequence for each in topic.layout.segments]
    end = min((each for each in later if each > segment.first_sequence), default=0)
    end = max(end, segment.end_sequence)
    whole = Ranges.between(max(segment.first_sequence, topic.earliest), end)
    known = topic.ledger.ranges_but(LOST, ARCHIVED)
    return whole.minus(Ranges.of_sequences(sound)).minus(topic.deleted).minus(known)


def _keeps_its_end(topic: WalPartition, segment: Segment, last: int) -> bool:
    """Returns whether a segment may be replaced: the last one marks where the topic ends."""
    return segment is not topic.layout.segments[-1] or last + 1 == segment.end_sequence


def _encoded(topic: WalPartition, span: Span) -> list[Piece]:
    names = INPUT_SCHEMAS["wal"].names
    found = []
    for batch in archived(topic.cold, span):
        first = first_of(batch)
        data, positions = log.encode(
            batch.select(names), topic_id=topic.topic_id, base_sequence=first, durable=True
        )
        found.append(Piece(first, memoryview(data.tobytes()), positions.astype(np.int64)))
    return found
