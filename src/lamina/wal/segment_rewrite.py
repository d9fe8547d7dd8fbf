"""Sealed segments of a wal topic rewritten without the records that a choice does not keep.

A `.data` may have holes: frames are copied as they are, without those that go. The reason is in the
ledger before anything goes. While the first record of a segment stays the file is replaced under
its name; otherwise what is left gets the name of its own first sequence, and the old file is
removed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import Gap
from lamina.formats.documents.ledger import DELETED
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Damage, Limit, Scan, Stop, runs
from lamina.formats.wal import index, log
from lamina.formats.wal.walks import SegmentFrames
from lamina.wal import segments
from lamina.wal.segments import Segment
from lamina.wal.topic import TopicLayout
from lamina.wal.wal_partition import WalPartition

Choice = Callable[[pa.RecordBatch], NDArray[np.bool_]]


def erase(topic: WalPartition, stays: Choice, *, dry_run: bool = False) -> int:
    """Rewrites every segment that holds a record which goes; returns how many. For the leader."""
    gone = 0
    for segment in topic.layout.segments:
        data = memoryview(segments.data_of(topic.sources.files, segment)).cast("B")
        data = data[: segment.data_bytes]
        kept, dropped = _split(segment, data, stays)
        if not len(dropped):
            continue
        gone += len(dropped)
        if dry_run:
            continue
        try:
            _replace(topic, segment, data, kept, dropped)
        except OSError as error:  # its file may be the old one or the new
            raise topic.fail(error) from error
    return gone


def _split(
    segment: Segment, data: memoryview, stays: Choice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (sequence, first byte, end byte) of the frames that stay; the others' sequences."""
    kept, dropped = [np.empty((0, 3), dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    frames = SegmentFrames(data, segment.topic_id)
    limit = Limit(max_records=1 << 20, max_bytes=1 << 26)
    for step in runs(frames, 0, segment.first_sequence, limit=limit):
        if isinstance(step, Damage):
            continue
        found = step.found
        batch = log.decode_segment(data, found)
        sequences = batch.column("offset").to_numpy()
        keeps = stays(batch)
        ends = np.append(found.positions[1:], found.end)
        kept.append(np.stack([sequences, found.positions, ends], axis=1)[keeps])
        dropped.append(sequences[~keeps])
    return np.concatenate(kept), np.concatenate(dropped)


def _replace(
    topic: WalPartition,
    segment: Segment,
    data: memoryview,
    kept: NDArray[np.int64],
    dropped: NDArray[np.int64],
) -> None:
    files, now_ms = topic.sources.files, topic.place.now_ms()
    spans = Ranges.of_sequences(dropped).pairs()
    gaps = [Gap(first, end, DELETED, now_ms) for first, end in spans]
    files.make_directory(topic.place.directory)
    topic.ledger = topic.place.enter_gaps(topic.ledger, gaps)
    replaced(topic, segment, [(sequence, data[a:b]) for sequence, a, b in kept.tolist()])


def replaced(topic: WalPartition, segment: Segment, frames: list[tuple[int, memoryview]]) -> None:
    """Puts a segment of some frames, in their order, in the place of another. For the leader."""
    files = topic.sources.files
    new = _written(topic, segment, frames) if frames else None
    rest = tuple(new if each is segment else each for each in topic.layout.segments)
    topic.layout = TopicLayout(tuple(each for each in rest if each is not None), topic.layout.runs)
    topic.distrusted.pop(segment.first_sequence, None)
    topic.verified.discard(segment.first_sequence)
    if new is None or new.first_sequence != segment.first_sequence:
        segments.remove(files, segment)


def _written(
    topic: WalPartition, segment: Segment, frames: list[tuple[int, memoryview]]
) -> Segment:
    files = topic.sources.files
    body = b"".join(frame for _, frame in frames)
    lengths = np.array([frame.nbytes for _, frame in frames], dtype=np.int64)
    positions = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    first = frames[0][0]
    entries = index.build(body, Scan(positions, len(body), Stop.END), first_sequence=first)
    entries = index.mark_deleted(entries, first, topic.flagged().pairs())
    new = segment._replace(
        first_sequence=first,
        end_sequence=first + len(entries),
        data_bytes=len(body),
        frames=len(frames),
        newest_ms=int(entries["timestamp_ms"][-1]),
        sealed=True,
    )
    if files.exists(segment.path("idx")):  # it is rebuilt if a crash comes between
        files.remove(segment.path("idx"))
    files.replace(new.path("data"), body)
    segments.save_entries(files, new, entries)
    files.sync_directory(segment.directory)  # an erasure is done when the old bytes cannot return
    return new
