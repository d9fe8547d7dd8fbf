"""What a checkpoint that was cut short leaves at the end of a segment, told from anything else."""

from __future__ import annotations

from lamina.formats.wal.layout import SEGMENT_FRAME
from lamina.storage.files import Files
from lamina.wal.segments import Segment


def is_torn_copy(files: Files, segment: Segment, position: int, sequence: int) -> bool:
    """Returns whether a segment's end may be what is left of copying a record there from the WAL.

    That is the beginning of the record's frame, with zeros where a page was not written: from some
    byte of it on, or up to one. Whatever else it is, the WAL does not hold it.
    """
    file = files.open_read_only(segment.path("data"))
    try:
        found = file.read_at(position, SEGMENT_FRAME.size)
    finally:
        file.close()
    start = SEGMENT_FRAME.at("topic_id")
    wanted = segment.topic_id.to_bytes(8, "little") + sequence.to_bytes(8, "little")
    held = found[start : start + len(wanted)]
    differing = [row for row, byte in enumerate(held) if byte != wanted[row]]
    if not differing:
        return True
    has_lost_its_end = not any(found[start + differing[0] :])
    has_lost_its_start = not any(found[: start + differing[-1] + 1])
    return has_lost_its_end or has_lost_its_start
