"""Torn or rotted: damage in the WAL, and at the end of a topic's segment.

A damaged frame of the WAL that had once been written whole has rotted; otherwise it is torn. A
barrier proves that everything before it was durable. For the last group there is no barrier, so its
bytes have to prove it: power loss keeps or loses whole sectors of a write, and a killed process
leaves the beginning of one. A frame within one sector was therefore written whole if its head was.
One that spans two sectors was if the next frame of the same write begins in the second; that it is
the same write follows from there being no barrier between them, because appends that ask to be
durable are synced before the next write. About longer frames nothing can be proven.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from lamina.formats.kernels.binary import as_bytes
from lamina.formats.wal.layout import DURABLE, OVERHEAD_BYTES, PREFIX, SEGMENT_FRAME, FrameType
from lamina.storage.files import Files
from lamina.wal.segments import Segment

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES = 512
_HEAD_BYTES = PREFIX.size + SEGMENT_FRAME.size
_WHOLE_BYTES = PREFIX.size + OVERHEAD_BYTES
_BEFORE_FLAGS = PREFIX.size + SEGMENT_FRAME.at("flags")


class Claim(NamedTuple):
    """The head of a frame, sound or not: topic, sequence, and its length by either field."""

    kind: int
    flags: int
    topic_id: int
    sequence: int
    frame_bytes: int
    parts_bytes: int

    def precedes(self, other: Claim) -> bool:
        """Returns whether another record is the next one of the same topic."""
        return (self.topic_id, self.sequence + 1) == (other.topic_id, other.sequence)


def claim_at(data: Buffer, position: int) -> Claim | None:
    """Reads the head of a frame, or nothing where there is not enough for one."""
    view = memoryview(data).cast("B")
    if position + _HEAD_BYTES > view.nbytes:
        return None
    fields = SEGMENT_FRAME.unpack(view, position + PREFIX.size)
    return Claim(
        view[position],
        int(fields["flags"]),
        int(fields["topic_id"]),
        int(fields["sequence"]),
        _BEFORE_FLAGS + int(fields["frame_len"]),
        _WHOLE_BYTES + int(fields["node_len"] + fields["tag_len"] + fields["data_len"]),
    )


def claims_in(data: Buffer, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (topic id, sequence) of the records that damaged bytes seem to begin with."""
    while first < end:
        head = claim_at(data, first)
        if head is None:
            return
        yield head.topic_id, head.sequence
        if head.frame_bytes != head.parts_bytes:
            return
        first += head.frame_bytes


def end_of_claims(end: int, claimed: Collection[int]) -> int:
    """Returns where a topic ends that has lost the records behind its end."""
    while end in claimed:
        end += 1
    return end


def rotten_tail(data: Buffer, first: int) -> int | None:
    """Returns where a damaged frame ends behind which nothing follows, if it was written whole."""
    head, raw = claim_at(data, first), as_bytes(data)
    if head is None or head.kind not in set(FrameType) or head.frame_bytes != head.parts_bytes:
        return None
    end = first + head.frame_bytes
    if end > len(raw) or not _is_one_sector(first, end) or raw[end:].any():
        return None
    return end if raw[end - 1] else None  # a write that was cut leaves zeros


def has_rotted(data: Buffer, before: int | None, first: int, after: int) -> bool:
    """Returns whether the bytes between two sound frames are of one that was written whole."""
    head, length = claim_at(data, first), after - first
    if head is None or not _is_one_frame(data, before, first, after, head):
        return False
    if _is_one_sector(first, after):
        return True
    second = after - after % SECTOR_BYTES
    return (
        head.frame_bytes == head.parts_bytes == length
        and bool(head.flags & DURABLE)
        and first >= second - SECTOR_BYTES
        and bool(as_bytes(data)[second:after].any())
    )


def _is_one_frame(data: Buffer, before: int | None, first: int, after: int, head: Claim) -> bool:
    """Whether any field of a head that damage has spared says that it is one, and whole."""
    if after - first in (head.frame_bytes, head.parts_bytes):
        return True
    previous = None if before is None else claim_at(data, before)
    following = claim_at(data, after)
    return (
        previous is not None
        and following is not None
        and previous.precedes(head)
        and head.precedes(following)
    )


def _is_one_sector(first: int, end: int) -> bool:
    return first // SECTOR_BYTES == (end - 1) // SECTOR_BYTES


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
