"""Which of a topic's oldest records are older than `retention.ms` now, wherever they lie.

Files go whole and in time (`eviction`); a record that is too old is out of sight at once, in the
WAL and in the active segment too. What has expired is always a run from the front: it ends at the
first record that is not too old, so that readers get one gap.

Rules.
1. The clock is the one by which records grow old: one that jumps ahead makes none older.
2. The answer holds until the first live record grows too old: until then a look costs no search.
3. Nothing here changes what is stored. Where archived records come first and the archive's list is
   not known yet, only what lies locally is judged: `now` waits for no object store.
4. The list has the times of whole objects only. Readers that reach archived records call `exactly`,
   which looks into the object that holds the boundary: no archived record is returned unchecked.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.config import NO_LIMIT, TopicSettings
from lamina.errors import ArchiveUnavailable, RecordsMissing
from lamina.formats.documents.ledger import ARCHIVED
from lamina.formats.kernels.binary import as_bytes
from lamina.formats.scan import Limit
from lamina.formats.wal import index
from lamina.formats.wal.layout import SEGMENT_FRAME
from lamina.log.layers import is_timed
from lamina.storage.files import Files
from lamina.wal import archived, segments
from lamina.wal.segments import Segment
from lamina.wal.shard import POSITION_BITS, POSITION_MASK, WalFiles, frame_bytes
from lamina.wal.topic import Run, Sources, TopicState

_FOREVER_MS = 1 << 62
_LOOK_AGAIN_MS = 1000
"""After this it is looked again at what could not be judged."""
_STEP_RECORDS = 1 << 12
_STEP = Limit(max_records=_STEP_RECORDS, max_bytes=1 << 20)
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
    knows_archive: bool = False
    """Whether the archive's list was known."""
    is_exact: bool = True
    """False where `end` is that of an object: the first records of the next may have expired."""

    def still_holds(self, topic: TopicState, now_ms: int) -> bool:
        """Returns whether a search would find the same."""
        return (
            self.settings is topic.settings
            and now_ms <= self.until_ms
            and self.dropped == topic.earliest
            and (not self.judged_end or topic.durable_end == self.judged_end)
            and self.knows_archive == _knows_archive(topic)
        )


NOTHING = Expired(0, 0)


class Expiry:
    """What was found last to have expired of a topic, and the search for it."""

    __slots__ = ("_found", "_sources")

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._found = NOTHING

    def now(self, topic: TopicState) -> Expired:
        """Returns what has expired of a topic, above what was dropped already."""
        settings = topic.settings
        if settings.retention_ms == NO_LIMIT or settings.retention_wait_groups:
            return NOTHING
        now_ms = topic.place.aging_ms()
        if not self._found.still_holds(topic, now_ms):
            with contextlib.suppress(OSError):  # a layer has just moved: it is searched again
                self._found = _search(topic, self._sources, now_ms)
        return self._found

    def exactly(self, topic: TopicState) -> Expired:
        """Returns what has expired, to the record, where archived ones must be looked at for it.

        Has the archive's list read where it is not known yet: raises ArchiveUnavailable.
        """
        if topic.settings.retention_ms == NO_LIMIT:
            return NOTHING
        archived.ask_for_all(topic)
        found = self.now(topic)
        if found.is_exact:
            return found
        settings = topic.settings
        reached = _in_object(topic, found.end, topic.place.aging_ms() - settings.retention_ms)
        until_ms = found.until_ms
        if reached.time_ms is not None:
            until_ms = reached.time_ms + settings.retention_ms
        self._found = found._replace(end=reached.sequence, until_ms=until_ms, is_exact=True)
        return self._found

    def as_far_as_known(self, topic: TopicState) -> Expired:
        """Returns what has expired, as exactly as that is known without waiting for the archive."""
        try:
            return self.exactly(topic)
        except ArchiveUnavailable:
            return self.now(topic)


class _Boundary(NamedTuple):
    """The first record that is not too old, and its time; no time where all are."""

    sequence: int
    time_ms: int | None


def _search(topic: TopicState, sources: Sources, now_ms: int) -> Expired:
    settings, layout, dropped = topic.settings, topic.layout, topic.earliest
    end, local = topic.durable_end, max(dropped, topic.local_start)
    cutoff_ms, knows_archive = now_ms - settings.retention_ms, _knows_archive(topic)
    first = dropped
    if local > dropped and knows_archive:
        found = _in_list(topic, now_ms)
        if found is not None:
            return found
    elif local > dropped and len(topic.ledger.ranges(ARCHIVED).from_on(dropped)):
        first = local
    reached = _Boundary(local, None)
    for segment in layout.segments:
        if reached.time_ms is None and segment.end_sequence > reached.sequence:
            reached = _in_segment(sources.files, segment, reached.sequence, cutoff_ms)
    for run in layout.runs:
        if reached.time_ms is None and run.end_sequence > reached.sequence:
            start = max(reached.sequence, run.first_sequence)
            reached = _in_run(sources.wal, run, (start, end), cutoff_ms)
    if reached.time_ms is None:
        if not knows_archive and not layout.segments and not layout.runs:  # it is not judged here
            first = reached.sequence
        return Expired(first, reached.sequence, _FOREVER_MS, end, dropped, settings, knows_archive)
    until_ms = max(reached.time_ms + settings.retention_ms, now_ms)
    if reached.sequence == local and not (knows_archive and archived.only_archived(topic)):
        first = local  # no record is too old: what is missing in front is missing for a reason
    return Expired(first, reached.sequence, until_ms, 0, dropped, settings, knows_archive)


def _knows_archive(topic: TopicState) -> bool:
    return topic.cold is not None and topic.cold.is_loaded


def _in_list(topic: TopicState, now_ms: int) -> Expired | None:
    """Finds the boundary in the archived part, by the times of its objects; None if all expired."""
    settings, dropped = topic.settings, topic.earliest
    cutoff_ms, reached = now_ms - settings.retention_ms, dropped
    for each in archived.only_archived(topic):
        if is_timed(each) and each.max_timestamp_ms < cutoff_ms:
            reached = each.next_offset
            continue
        until_ms, is_exact = now_ms + _LOOK_AGAIN_MS, False
        if is_timed(each) and each.min_timestamp_ms >= cutoff_ms:
            until_ms, is_exact = each.min_timestamp_ms + settings.retention_ms, True
        return Expired(dropped, reached, until_ms, 0, dropped, settings, True, is_exact)
    return None


def _in_object(topic: TopicState, start: int, cutoff_ms: int) -> _Boundary:
    """Finds the boundary by the records of the first object that holds any from a sequence on."""
    cold = topic.cold
    assert cold is not None, "its list was judged"
    entry = next((each for each in cold.entries if each.next_offset > start), None)
    if entry is None:  # it has just left the list
        return _Boundary(start, None)
    try:
        start = max(start, cold.offset_before_time(entry, cutoff_ms))
        for batch in cold.scan(start, entry.next_offset, _STEP):
            times = batch.column("timestamp").cast(pa.int64()).to_numpy()
            live = np.flatnonzero(times >= cutoff_ms)
            row = int(live[0]) if len(live) else -1
            start = int(batch.column("offset")[row].as_py())
            if len(live):
                return _Boundary(start, int(times[row]))
            start += 1
    except RecordsMissing as missing:  # the age of what cannot be read is not known
        start = max(start, missing.first)
    return _Boundary(start, None)


def _in_segment(files: Files, segment: Segment, start: int, cutoff_ms: int) -> _Boundary:
    """Finds the boundary by the times in `.idx`, which are running maxima."""
    if segment.frames and segment.newest_ms < cutoff_ms:
        return _Boundary(segment.end_sequence, None)
    again_ms = cutoff_ms + _LOOK_AGAIN_MS
    start = max(start, segment.first_sequence)
    entries = segments.load_entries(files, segment)
    if entries is None:  # whoever reads it rebuilds it
        return _Boundary(start, again_ms)
    count = index.expired(entries, cutoff_ms)
    if count >= len(entries):  # it contradicts what is known of the segment
        return _Boundary(start, again_ms)
    if count and _own_time(files, segment, entries, count - 1) >= cutoff_ms:
        return _Boundary(start, again_ms)  # the index is wrong; a reader will find out
    time_ms = int(entries["timestamp_ms"][count])
    return _Boundary(max(start, segment.first_sequence + count), time_ms)


def _own_time(files: Files, segment: Segment, entries: index.Entries, row: int) -> int:
    """Reads the time of a record from its frame; of a hole, or a wrong entry, one far ahead."""
    file = files.open_read_only(segment.path("data"))
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


def _in_run(wal: WalFiles, run: Run, span: tuple[int, int], cutoff_ms: int) -> _Boundary:
    """Finds the boundary by the times of the frames themselves."""
    start, stop = span[0], min(run.end_sequence, span[1])
    while start < stop:
        row = start - run.first_sequence
        count = min(_STEP_RECORDS, stop - start)
        places = np.frombuffer(run.locations[row : row + count], dtype=np.int64)
        number = int(places[0]) >> POSITION_BITS
        same = places >> POSITION_BITS == number
        places = places if same.all() else places[: int(np.argmin(same))]
        times = _times(wal, number, places & POSITION_MASK)
        live = np.flatnonzero(times >= cutoff_ms)
        if len(live):
            return _Boundary(start + int(live[0]), int(times[live[0]]))
        start += len(places)
    return _Boundary(max(start, stop), None)


def _times(wal: WalFiles, number: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    file = wal.get(number)
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
