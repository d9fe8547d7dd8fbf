"""Finds the next sound frame behind damage, in a WAL file or in a segment's `.data`.

A value may hold the bytes of a sound frame, of any topic. So a damaged frame is first asked where
it ends, by either of the lengths that it has twice; only where both lead nowhere, a search looks
into it (`formats.claims` has the rule, for formats whose records have a magic). What is found then
is evidence, not certainty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lamina.formats.claims import is_unwritten
from lamina.formats.kernels.binary import (
    address_of,
    as_bytes,
    peek_i64,
    peek_u8,
    peek_u16,
    peek_u32,
)
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.scan import SMALL_BYTES, Budget, search
from lamina.formats.wal.layout import (
    BODY_BYTES_MAX,
    OVERHEAD_BYTES,
    PREFIX,
    SEGMENT_FRAME,
    SEQUENCE_MAX,
    as_signed,
)
from lamina.formats.wal.log import GOOD, KNOWN_FLAGS, KNOWN_TYPES, check, measure, type_at

if TYPE_CHECKING:
    from typing_extensions import Buffer

_IN_WAL, _IN_SEGMENT = PREFIX.size, 0
_FLAGS = SEGMENT_FRAME.at("flags")
_TOPIC = SEGMENT_FRAME.at("topic_id")
_SEQUENCE = SEGMENT_FRAME.at("sequence")
_NODE_LEN = SEGMENT_FRAME.at("node_len")
_TAG_LEN = SEGMENT_FRAME.at("tag_len")
_DATA_LEN = SEGMENT_FRAME.at("data_len")
_HEAD_BYTES = SEGMENT_FRAME.size
_FRAME_LEN_SIZE = _FLAGS
_FRAME_LEN_MIN = OVERHEAD_BYTES - _FRAME_LEN_SIZE


def resync(buffer: Buffer, start: int, *, budget: Budget | None = None) -> int | None:
    """Finds the next sound WAL frame at or after `start`, past damage; None if none is.

    All searches of one walk share a `budget`; None is one of its own.
    """
    return search(_resync, as_bytes(buffer), start, budget, _IN_WAL, (1, 0, -1))


def resync_segment(
    buffer: Buffer,
    start: int,
    *,
    topic_id: int | None = None,
    minimum_sequence: int = 1,
    budget: Budget | None = None,
) -> int | None:
    """Finds the next sound frame of a segment at or after `start`; None if none is.

    Frames of another topic or with a sequence below `minimum_sequence` do not count.
    """
    topic = 0 if topic_id is None else as_signed(topic_id)
    expected = (int(topic_id is None), topic, min(max(minimum_sequence, 1) - 1, SEQUENCE_MAX))
    return search(_resync, as_bytes(buffer), start, budget, _IN_SEGMENT, expected)


@kernel
def _resync(
    data: Any, start: int, budget: int, prefix: int, expected: tuple[int, int, int]
) -> tuple[int, int]:
    size = len(data)
    origin = address_of(data)
    spent = 0
    position = start
    while position <= size - prefix - OVERHEAD_BYTES:
        frame = origin + position + prefix
        by_length, by_parts = peek_u32(frame), _parts(frame)
        if position != start and by_length != by_parts:
            position += 1
            continue
        verdict, length = measure(origin, position, size, prefix)
        if verdict == GOOD and (length <= SMALL_BYTES or length <= budget - spent):
            spent += length
            if check(origin + position, prefix) == GOOD:
                if _is_wanted(frame, expected):
                    return position, spent
                position += length  # with whatever its value holds
                continue
        body = position + prefix + _FRAME_LEN_SIZE
        end = _leads_on(origin, body, by_parts, size, prefix, expected)
        if end < 0 and by_length != by_parts:
            end = _leads_on(origin, body, by_length, size, prefix, expected)
        position = max(end, position + 1)
    return -1, spent


@inlined
def _parts(frame: int) -> int:
    """What `frame_len` should be by the lengths of the parts."""
    parts = peek_u16(frame + _NODE_LEN) + peek_u16(frame + _TAG_LEN) + peek_u32(frame + _DATA_LEN)
    return _FRAME_LEN_MIN + parts


@inlined
def _is_wanted(frame: int, expected: tuple[int, int, int]) -> bool:
    any_topic, topic_id, before = expected
    wanted = any_topic > 0 or peek_i64(frame + _TOPIC) == topic_id
    return wanted and peek_i64(frame + _SEQUENCE) > before


@inlined
def _leads_on(
    origin: int, body: int, length: int, size: int, prefix: int, expected: tuple[int, int, int]
) -> int:
    """Returns where a body of this length ends, if the log goes on or ends there, or -1."""
    end = body + length
    if not _FRAME_LEN_MIN <= length <= _FRAME_LEN_MIN + BODY_BYTES_MAX or end > size:
        return -1
    left, following = size - end, origin + end + prefix
    if left == 0 or is_unwritten(origin + end, left):
        return end
    if left < prefix + _HEAD_BYTES or peek_u32(following) != _parts(following):
        return -1
    frame_type = type_at(origin + end, prefix)
    is_known = frame_type <= 63 and (KNOWN_TYPES >> frame_type) & 1
    if not is_known or peek_u8(following + _FLAGS) & ~KNOWN_FLAGS:
        return -1
    return end if _is_wanted(following, expected) else -1
