"""Where a damaged record ends, by its own header: what a search behind it may trust.

A value may hold the bytes of a sound record. So a search behind damage first asks the damaged
record for its end, and looks into it only where that cannot be: where its lengths are out of range,
or lead neither to the next record's header, nor to the end of the log.

Rules.
1. A claim is believed by what lies at its end: the header of a record with a number that may
   follow, the end of the buffer, or the beginning of space that was never written.
2. Nothing is checksummed for it, and a claim only leads forward: a search stays linear.
"""

from __future__ import annotations

from typing import NamedTuple

from lamina.formats.kernels.binary import (
    peek_i64,
    peek_i64_be,
    peek_u8,
    peek_u16,
    peek_u16_be,
    peek_u32,
    peek_u32_be,
    wrapping_add,
)
from lamina.formats.kernels.declare import inlined

BLANK_BYTES = 64
"""So many zeros, or those that are left, are space that was never written."""


class Head(NamedTuple):
    """What a header of frame or keratin is recognised by, and where its fields are."""

    is_big_endian: int
    magic_and_version: int
    version_at: int
    offset_at: int
    key_len_at: int
    value_len_at: int
    head_bytes: int
    overhead_bytes: int
    body_bytes_max: int


@inlined
def is_unwritten(at: int, left: int) -> bool:
    """Returns whether zeros begin at an address: no record does with as many."""
    for byte in range(min(left, BLANK_BYTES)):
        if peek_u8(at + byte) != 0:
            return False
    return peek_u32(at - 4) != 0


@inlined
def _begins(at: int, head: Head) -> bool:
    """Returns whether magic and version are those of a record."""
    if head.is_big_endian:
        found = peek_u16_be(at) << 16 | peek_u16_be(at + head.version_at)
    else:
        found = peek_u32(at) << 16 | peek_u16(at + head.version_at)
    return found == head.magic_and_version


@inlined
def _offset(at: int, head: Head) -> int:
    return peek_i64_be(at + head.offset_at) if head.is_big_endian else peek_i64(at + head.offset_at)


@inlined
def claimed_end(
    origin: int, position: int, size: int, least: int, is_known: bool, head: Head
) -> int:
    """Returns where a damaged record of frame or keratin ends by its own lengths; -1 if nowhere.

    The record behind it has an offset of at least `least`, and is the next one; of bytes that are
    known to begin a record the latter is not asked: its offset may be what is damaged.
    """
    at = origin + position
    if head.is_big_endian:
        body = peek_u32_be(at + head.key_len_at) + peek_u32_be(at + head.value_len_at)
    else:
        body = peek_u32(at + head.key_len_at) + peek_u32(at + head.value_len_at)
    end = position + head.overhead_bytes + body
    if body > head.body_bytes_max or end > size or not (is_known or _begins(at, head)):
        return -1
    left, following = size - end, origin + end
    if left == 0 or is_unwritten(following, left):
        return end
    if left < head.head_bytes or not _begins(following, head):
        return -1
    offset = _offset(following, head)
    follows = is_known or offset == wrapping_add(_offset(at, head), 1)
    return end if follows and offset >= least else -1
