"""Removes what recovery or a running partition has decided to remove: whole segments, or a tail.

Rule: each step is durable before the next, so that a crash in between leaves no hole that the next
opening cannot explain. Bytes that were never acknowledged are set aside before they go.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.api import RecoveryReport
from lamina.errors import (
    NO_SPACE,
    PASSING,
    CorruptData,
    OffsetOutOfRange,
    StorageFull,
    Unavailable,
)
from lamina.formats.documents import tombstone
from lamina.formats.log_format import Codec
from lamina.log.active_segment import ActiveSegment
from lamina.log.directory import Place
from lamina.log.sealed_segment import SealedSegment
from lamina.storage import paths
from lamina.storage.files import Files, settle_names
from lamina.storage.paths import SegmentFile


def reason_at(files: Files, path: str) -> str:
    """Reads why a segment goes from its tombstone; one that is damaged means retention."""
    try:
        reason = tombstone.decode(files.read(path)).reason or "retention"
    except CorruptData:
        return "retention"
    return "deleted" if reason == "delete" else reason


def remove_files(place: Place, codec: Codec, base_offset: int) -> None:
    """Removes a segment that has a tombstone: indexes, log, and the tombstone last."""
    for suffix in ("idx", codec.time_suffix, "log"):
        path = paths.join(place.segments, SegmentFile(base_offset, suffix).name)
        if place.files.exists(path):
            place.files.remove(path)
    settle_names(place.files, place.segments)
    # The tombstone goes last: any file of the segment that a crash brings back is known as removed.
    place.files.remove(paths.join(place.segments, SegmentFile(base_offset, "tomb").name))
    settle_names(place.files, place.segments)


def require_within(name: str, before: int, end: int) -> None:
    """Refuses to delete records that do not exist yet: they would vanish when appended."""
    if not 0 <= before <= end:
        raise OffsetOutOfRange(
            f"{name}: records can be deleted up to the durable end {end}, not up to {before}"
        )


def unfinished(error: OSError, problem: str) -> OSError | Unavailable:
    """Returns the error of a removal that stopped half-way: to be asked for again, if it passes."""
    if error.errno not in PASSING:
        return error
    kind = StorageFull if error.errno in NO_SPACE else Unavailable
    return kind(f"{problem}, then: {error}; ask again for the rest")


def finish_trim(
    place: Place, codec: Codec, sealed: Sequence[SealedSegment], floor: int, report: RecoveryReport
) -> list[SealedSegment]:
    """Removes the segments below the ledger's floor, which a crash has left; returns the others.

    They need no tombstone: the ledger has them as removed until the last of their files is gone.
    """
    for segment in sealed:
        if segment.next_offset <= floor:
            for suffix in ("idx", codec.time_suffix, "log"):
                if place.files.exists(segment.path(suffix)):
                    place.files.remove(segment.path(suffix))
            settle_names(place.files, place.segments)
            report.add("deletion finished", segment.path("log"), f"all below {floor} was deleted")
    return [each for each in sealed if each.next_offset > floor]


def take_back(
    place: Place, codec: Codec, segments: Sequence[SealedSegment | ActiveSegment], offset: int
) -> None:
    """Cuts never acknowledged records from an offset on; the partition is then recovered again.

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
            # Gone for good before an earlier one is cut: otherwise it could return behind a hole.
            files.sync_directory(place.segments)
        else:
            file = files.open(segment.path("log"))
            file.truncate(position)
            file.sync()  # what was cut must not return behind records that are appended next
            file.close()
