"""Which of a topic's oldest records are older than `retention.ms` now, wherever they lie.

Files go whole and in time (`eviction`); a record that is too old is out of sight at once, in the
WAL and in the active segment too. What has expired is always a run from the front: it ends at the
first record that is not too old, so that readers are told of one gap.

Rules.
1. The clock is the one by which records grow old: one that jumps ahead makes none older.
2. The answer holds until the first live record grows too old: until then a look costs no search.
3. Nothing here changes what is stored. Where archived records come first and nobody has asked how
   old those are, only what lies locally is judged.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.config import NO_LIMIT
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.wal import index
from lamina.formats.wal.layout import SEGMENT_FRAME
from lamina.wal import archived, segments
from lamina.wal.segments import Segment
from lamina.wal.shard import POSITION_BITS, POSITION_MASK, frame_bytes

if TYPE_CHECKING:
    from lamina.config import TopicSettings
    from lamina.wal.reader import TopicReader
    from lamina.wal.topic import Run

_FOREVER_MS = 1 << 62
_LOOK_AGAIN_MS = 1000
"""After this it is looked again at what could not be judged."""
_STEP_RECORDS = 1 << 12
_WINDOW_BYTES = 1 << 20
_TIME_AT = 1 + SEGMENT_FRAME.at("timestamp_ms")


class Expired(NamedTuple):
    """Records from `first` to below `end` are too old; so it stays until a time, or an append."""

    first: int
    end: int
    until_ms: int = _FOREVER_MS
    judged_end: int = 0
    """What was the topic's end, where every record up to it has expired."""
    dropped: int = 0
    """What was the first offset that had not been dropped."""
    settings: TopicSettings | None = None

    def still_holds(self, topic: TopicReader, now_ms: int) -> bool:
        """Tells whether a search would find the same."""
        return (
            self.settings is topic.settings
            and now_ms <= self.until_ms
            and self.dropped == topic.earliest
            and (not self.judged_end or topic.durable_end == self.judged_end)
        )


NOTHING = Expired(0, 0)


def now(topic: TopicReader) -> Expired:
    """Returns what has expired of a topic, above what was dropped already."""
    settings = topic.settings
    if settings.retention_ms == NO_LIMIT or settings.retention_wait_groups:
        return NOTHING
    now_ms = topic.place.aging_ms()
    if not topic.expired.still_holds(topic, now_ms):
        with contextlib.suppress(OSError):  # a layer has just moved: it is searched again
            topic.expired = _search(topic, now_ms)
    return topic.expired


class _Boundary(NamedTuple):
    """The first record that is not too old, and its time; no time where all are."""

    sequence: int
    time_ms: int | None


def _search(topic: TopicReader, now_ms: int) -> Expired:
    settings, layers, dropped = topic.settings, topic.layers, topic.earliest
    end, local = topic.durable_end, max(dropped, topic.local_start)
    cutoff_ms = now_ms - settings.retention_ms
    first = dropped if _has_expired_before(topic, local, cutoff_ms) else local
    reached = _Boundary(local, None)
    for segment in layers.segments:
        if reached.time_ms is None and segment.end_sequence > reached.sequence:
            reached = _in_segment(topic, segment, reached.sequence, cutoff_ms)
    for run in layers.runs:
        if reached.time_ms is None and run.end > reached.sequence:
            reached = _in_run(topic, run, max(reached.sequence, run.first), end, cutoff_ms)
    if reached.time_ms is None:
        if not layers.segments and not layers.runs:  # archived or not, it is not judged here
            first = reached.sequence
        return Expired(first, reached.sequence, _FOREVER_MS, end, dropped, settings)
    until_ms = max(reached.time_ms + settings.retention_ms, now_ms)
    if reached.sequence == local:  # no local record is too old: of archived ones nothing is said
        first = local
    return Expired(first, reached.sequence, until_ms, 0, dropped, settings)


def _has_expired_before(topic: TopicReader, local: int, cutoff_ms: int) -> bool:
    """Tells whether all that is archived in front of the local layers is too old, and known."""
    if local <= topic.earliest:
        return True
    if topic.cold is not None and topic.cold.is_loaded:
        return all(each.max_timestamp_ms < cutoff_ms for each in archived.only_archived(topic))
    return not len(archived.handed_over(topic.ledger).from_on(topic.earliest))


def _in_segment(topic: TopicReader, segment: Segment, start: int, cutoff_ms: int) -> _Boundary:
    """Finds the boundary by the times in `.idx`, which are running maxima."""
    if segment.frames and segment.newest_ms < cutoff_ms:
        return _Boundary(segment.end_sequence, None)
    again_ms = cutoff_ms + _LOOK_AGAIN_MS
    start = max(start, segment.first_sequence)
    entries = segments.load_entries(topic.sources.files, segment)
    if entries is None:  # whoever reads it rebuilds it
        return _Boundary(start, again_ms)
    count = index.expired(entries, cutoff_ms)
    if count >= len(entries):  # it contradicts what is known of the segment
        return _Boundary(start, again_ms)
    if count and _own_time(topic, segment, entries, count - 1) >= cutoff_ms:
        return _Boundary(start, again_ms)  # the index is wrong; a reader will find out
    time_ms = int(entries["timestamp_ms"][count])
    return _Boundary(max(start, segment.first_sequence + count), time_ms)


def _own_time(topic: TopicReader, segment: Segment, entries: index.Entries, row: int) -> int:
    """Reads the time of a record from its frame; of a hole, or a wrong entry, one far ahead."""
    file = topic.sources.files.open_read_only(segment.path("data"))
    try:
        frame = file.read_at(int(entries["position"][row]), SEGMENT_FRAME.size)
    finally:
        file.close()
    if len(frame) < SEGMENT_FRAME.size:
        return _FOREVER_MS
    fields = SEGMENT_FRAME.unpack(frame)
    if entries["length"][row] and int(fields["sequence"]) != segment.first_sequence + row:
        return _FOREVER_MS
    return int(fields["timestamp_ms"])


def _in_run(topic: TopicReader, run: Run, start: int, end: int, cutoff_ms: int) -> _Boundary:
    """Finds the boundary by the times of the frames themselves."""
    stop = min(run.end, end)
    while start < stop:
        row = start - run.first
        count = min(_STEP_RECORDS, stop - start)
        places = np.frombuffer(run.locations[row : row + count], dtype=np.int64)
        number = int(places[0]) >> POSITION_BITS
        same = places >> POSITION_BITS == number
        places = places if same.all() else places[: int(np.argmin(same))]
        times = _times(topic, number, places & POSITION_MASK)
        live = np.flatnonzero(times >= cutoff_ms)
        if len(live):
            return _Boundary(start + int(live[0]), int(times[live[0]]))
        start += len(places)
    return _Boundary(max(start, stop), None)


def _times(topic: TopicReader, number: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    file = topic.sources.wal.get(number)
    if file is None:
        raise FileNotFoundError(f"WAL file {number} was freed")
    found: list[NDArray[np.int64]] = []
    while len(positions):
        some, origin, data = file.frames(positions, _WINDOW_BYTES)
        if frame_bytes(data, 0) > file.size:  # damaged, or not delivered
            error = file.read_error(origin, _TIME_AT + 8)
            if error is not None:
                raise error
        picked = as_bytes(data)[(some - origin)[:, None] + np.arange(_TIME_AT, _TIME_AT + 8)]
        found.append(np.ascontiguousarray(picked).view("<i8").ravel())
        positions = positions[len(some) :]
    return np.concatenate(found)
