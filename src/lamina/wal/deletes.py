"""Which sequences a delete covers. Found in the records themselves: there is no tag index.

A kernel compares tags at known places, in the WAL and (for entries that have a tag, by `.idx`) in
segments; that takes milliseconds for a hundred thousand records, and no memory per record. Records
that only the archive has, or that are damaged here, are read for it: if the object store does not
answer, or the device does not deliver them, nothing is deleted.
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from lamina.errors import UNREADABLE, InvalidRequest, RecordsMissing, Unavailable
from lamina.formats import ranges
from lamina.formats.documents.ledger import ARCHIVED, LOST
from lamina.formats.ranges import Ranges
from lamina.formats.scan import Limit
from lamina.formats.wal import control, located
from lamina.formats.wal.layout import HAS_TAG, NAME_BYTES_MAX
from lamina.log.gap_walk import scan_over
from lamina.log.interfaces import Deletion, Searched
from lamina.wal import segments
from lamina.wal.reader import TopicReader, unread_ranges
from lamina.wal.shard import POSITION_BITS, POSITION_MASK

_LOOKED_AT = Limit(max_records=1 << 18, max_bytes=4 << 20)


def control_of(topic: TopicReader, deletion: Deletion) -> control.Delete:
    """Makes the control frame's body: a moment (one past the head) and what goes before it."""
    upper = topic.written_end
    given = [deletion.before, deletion.tag, deletion.tag_prefix, deletion.offsets]
    if sum(each is not None for each in given) != 1:
        raise InvalidRequest("delete takes exactly one of before, tag, tag_prefix and offsets")
    if deletion.before is not None:
        if deletion.before < 0:
            raise InvalidRequest(f"offsets count from 1, got {deletion.before}")
        return control.DeleteBefore(upper, min(deletion.before, upper))
    if deletion.offsets is not None:
        wanted = sorted({each for each in deletion.offsets if topic.earliest <= each < upper})
        return control.DeleteSequences(upper, tuple(wanted))
    name = deletion.tag if deletion.tag is not None else deletion.tag_prefix
    if not isinstance(name, bytes) or len(name) > NAME_BYTES_MAX:
        raise InvalidRequest(f"a tag is bytes, at most {NAME_BYTES_MAX}, not {name!r}")
    if deletion.tag is not None:
        return control.DeleteTag(upper, name)
    return control.DeleteTagPrefix(upper, name)


def matching(topic: TopicReader, wanted: control.DeleteTag | control.DeleteTagPrefix) -> Ranges:
    """Finds the live records below the delete's moment that carry the tag."""
    tag, exact = _meant(wanted)
    parts = [
        *_in_segments(topic, tag, exact=exact),
        *_in_wal(topic, tag, exact=exact),
    ]
    sequences = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    live = (sequences >= topic.earliest) & (sequences < wanted.upper_sequence)
    return Ranges.of_sequences(sequences[live])


def refuse_unread(topic: TopicReader) -> None:
    """Raises Unavailable where a search did not see records that the device withholds."""
    for segment in topic.layout.segments:
        walked = topic.distrusted.get(segment.first_sequence)
        if walked is not None and walked.is_unread:
            raise Unavailable(
                f"{segment.path('data')}: the device does not deliver all of it, and a delete by"
                " tag has to be finished; read again, or look at the device"
            )


def _meant(wanted: control.DeleteTag | control.DeleteTagPrefix) -> tuple[bytes, bool]:
    if isinstance(wanted, control.DeleteTag):
        return wanted.tag, True
    return wanted.prefix, False


def in_archive(
    topic: TopicReader,
    wanted: control.DeleteTag | control.DeleteTagPrefix,
    before: Searched | None = None,
) -> Searched:
    """Finds the live records with the tag that no sound frame here holds.

    What was searched `before` is not read again. Records that are lost are passed by.
    """
    known = Searched(ranges.EMPTY.bounds, ranges.EMPTY.bounds) if before is None else before
    searched, found = Ranges(known.searched), Ranges(known.bounds)
    tag, exact = _meant(wanted)
    away = _away(topic).from_on(topic.earliest).minus(searched)
    for span in away.pairs():
        for part in _in_objects(topic, span, tag, exact=exact):
            found = found.union(Ranges.of_sequences(part))
    return Searched(searched.union(away).bounds, found.bounds)


def _away(topic: TopicReader) -> Ranges:
    """Returns where the records are that the archive has, or may have, or the device withholds."""
    spans = [(topic.earliest, topic.local_start)]
    spans += [(gap.first, gap.end) for gap in topic.ledger.gaps if gap.reason in (ARCHIVED, LOST)]
    for segment in topic.layout.segments:
        walked = topic.distrusted.get(segment.first_sequence)
        if walked is not None and walked.is_unread:
            spans += unread_ranges(segment, walked)
    return Ranges.of(spans)


def _in_objects(
    topic: TopicReader, span: tuple[int, int], tag: bytes, *, exact: bool
) -> list[NDArray[np.int64]]:
    parts: list[NDArray[np.int64]] = []
    sequence, end = max(span[0], topic.earliest), span[1]
    for step in scan_over(lambda at: topic.scan(at, _LOOKED_AT, end=end), sequence, end):
        if isinstance(step, RecordsMissing):
            if step.reason == UNREADABLE:
                raise Unavailable(f"{step}; nothing was deleted") from step
            continue
        tags = step.column("tag")
        same = pc.equal(tags, tag) if exact else pc.starts_with(tags, tag)
        found = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        parts.append(step.column("offset").to_numpy()[found])
    return parts


def _in_segments(topic: TopicReader, tag: bytes, *, exact: bool) -> list[NDArray[np.int64]]:
    parts = []
    for segment in topic.layout.segments:
        if segment.end_sequence <= topic.earliest:
            continue
        entries = topic.sound_entries(segment)
        rows = np.flatnonzero((entries["flags"] & HAS_TAG != 0) & (entries["length"] != 0))
        if not len(rows):
            continue
        positions = entries["position"][rows].astype(np.int64)
        data = segments.salvaged_data_of(topic.sources.files, segment).data
        found = located.tag_matches(data, positions, tag, prefix_bytes=0, exact=exact)
        parts.append(rows[found] + segment.first_sequence)
    return parts


def _in_wal(topic: TopicReader, tag: bytes, *, exact: bool) -> list[NDArray[np.int64]]:
    parts = []
    for run in topic.layout.runs:
        places = np.frombuffer(run.locations[:], dtype=np.int64)
        for number in np.unique(places >> POSITION_BITS).tolist():
            rows = np.flatnonzero(places >> POSITION_BITS == number)
            file = topic.sources.wal.get(number)
            assert file is not None, "a file that runs point to is not freed"
            positions = places[rows] & POSITION_MASK
            data = file.load()
            found = located.tag_matches(data, positions, tag, prefix_bytes=1, exact=exact)
            parts.append(rows[found] + run.first_sequence)
    return parts
