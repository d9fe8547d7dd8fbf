"""Takes away what recovery or a running partition has decided about: whole segments, or a tail.

Rule: each step is durable before the next, so that a crash in between leaves no hole that the next
opening does not understand. Bytes that nobody was told of are kept aside before they go.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from lamina.formats.log_format import Codec
from lamina.log.active_segment import ActiveSegment
from lamina.log.directory import Place
from lamina.log.segment import SealedSegment
from lamina.storage.paths import SegmentFile


def remove_files(place: Place, codec: Codec, base_offset: int) -> None:
    """Removes a segment that has a tombstone: indexes, log, and the tombstone last."""
    for suffix in ("idx", codec.time_suffix, "log"):
        path = os.path.join(place.segments, SegmentFile(base_offset, suffix).name)
        if place.files.exists(path):
            place.files.remove(path)
    place.files.sync_directory(place.segments)
    place.files.remove(os.path.join(place.segments, SegmentFile(base_offset, "tomb").name))
    place.files.sync_directory(place.segments)


def take_back(
    place: Place, codec: Codec, segments: Sequence[SealedSegment | ActiveSegment], offset: int
) -> None:
    """Cuts records from an offset on, which nobody was told of; the partition is recovered anew.

    Newest first, each step durable, so that a crash in between leaves no hole. Kept aside before.
    """
    files = place.files
    for segment in reversed(segments):
        bound = segment.end if isinstance(segment, SealedSegment) else segment.tail
        if bound.next_offset <= offset and segment.base_offset < offset:
            break
        first = max(offset, segment.base_offset)
        position = codec.header_bytes
        if bound.next_offset > first:
            position = segment.locate(first, bound)
            cut = segment.window(position, bound.position - position, bound)
            place.set_aside(segment.path("log"), bytes(memoryview(cut)), position)
        if segment.base_offset > offset:
            for suffix in ("idx", codec.time_suffix, "log"):
                if files.exists(segment.path(suffix)):
                    files.remove(segment.path(suffix))
            files.sync_directory(place.segments)
        else:
            file = files.open(segment.path("log"))
            file.truncate(position)
            file.sync()
            file.close()
