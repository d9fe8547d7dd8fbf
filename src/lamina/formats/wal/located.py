"""Frames whose positions are known: checked, copied and matched without a walk.

A topic's newest records are scattered over the WAL, between those of other topics; the engine keeps
only where each one starts. Here they are read (`sound_at`), copied into a segment (`gather`), and
searched for tags (`tag_matches`). After a restart, `places` finds out where they start.

Rule: a position is a claim. Every kernel checks it against the buffer before it looks further.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import address_of, as_bytes, copy, peek_i64, peek_u8, peek_u16
from lamina.formats.kernels.call_size import rows_at, rows_within
from lamina.formats.kernels.declare import kernel, kernel_at_once
from lamina.formats.scan import Scan, Stop
from lamina.formats.wal.layout import HAS_TAG, PREFIX, SEGMENT_FRAME, FrameType, as_signed
from lamina.formats.wal.log import GOOD, check, measure

if TYPE_CHECKING:
    from typing_extensions import Buffer

_APPEND = int(FrameType.APPEND)
_FLAGS = SEGMENT_FRAME.at("flags")
_TOPIC = SEGMENT_FRAME.at("topic_id")
_SEQUENCE = SEGMENT_FRAME.at("sequence")
_TIME = SEGMENT_FRAME.at("timestamp_ms")
_NODE_LEN = SEGMENT_FRAME.at("node_len")
_TAG_LEN = SEGMENT_FRAME.at("tag_len")
_BODY = SEGMENT_FRAME.size
_OVERHEAD = SEGMENT_FRAME.size + 8
_PREFIX = PREFIX.size


class Expected(NamedTuple):
    """Whose frames lie at the positions: one topic's, with sequences that go up by one."""

    topic_id: int
    first_sequence: int


def sound_at(
    buffer: Buffer, positions: NDArray[np.int64], expected: Expected, max_bytes: int
) -> Scan:
    """Checks WAL Append frames at positions, as far as they are sound and fit; LIMIT if all were.

    The scan takes at least one sound frame however small `max_bytes` is. BAD_OFFSET is any frame
    that is not the expected one, BAD_CHECKSUM one that is damaged.
    """
    data = as_bytes(buffer)
    topic = as_signed(expected.topic_id)
    rows, size, tags, nodes, verdict = _sound_at(
        data, positions, topic, expected.first_sequence, max_bytes
    )
    values = size - rows * (_PREFIX + _OVERHEAD) - tags - nodes
    stop = Stop.LIMIT if verdict == GOOD else Stop(verdict)
    return Scan(positions[:rows], 0, stop, (values, tags, nodes))


@kernel_at_once(rows_at)
def _sound_at(
    data: Any, positions: Any, topic_id: int, first_sequence: int, max_bytes: int
) -> tuple[int, int, int, int, int]:
    origin = address_of(data)
    size = len(data)
    total = tags = nodes = rows = 0
    for row in range(len(positions)):
        position = positions[row]
        if position < 0 or position >= size:
            return rows, total, tags, nodes, 1
        verdict, length = measure(origin, position, size, _PREFIX)
        if verdict == GOOD:
            verdict = check(origin + position, _PREFIX)
        if verdict != GOOD:
            return rows, total, tags, nodes, verdict
        frame = origin + position + _PREFIX
        mine = peek_u8(origin + position) == _APPEND and peek_i64(frame + _TOPIC) == topic_id
        if not mine or peek_i64(frame + _SEQUENCE) != first_sequence + row:
            return rows, total, tags, nodes, 6
        if rows > 0 and total + length > max_bytes:
            break
        total += length
        tags += peek_u16(frame + _TAG_LEN)
        nodes += peek_u16(frame + _NODE_LEN)
        rows += 1
    return rows, total, tags, nodes, GOOD


def time_of_segment_frame(buffer: Buffer, expected: Expected) -> int | None:
    """Returns the time of a buffer that is one sound frame of a segment, and the expected one.

    None where it is anything else.
    """
    topic = as_signed(expected.topic_id)
    sound, time_ms = _time_of_segment_frame(as_bytes(buffer), topic, expected.first_sequence)
    return int(time_ms) if sound else None


@kernel_at_once(rows_within)
def _time_of_segment_frame(data: Any, topic_id: int, sequence: int) -> tuple[bool, int]:
    frame = address_of(data)
    verdict, length = measure(frame, 0, len(data), 0)
    if verdict != GOOD or length != len(data) or check(frame, 0) != GOOD:
        return False, 0
    mine = peek_i64(frame + _TOPIC) == topic_id and peek_i64(frame + _SEQUENCE) == sequence
    return mine, peek_i64(frame + _TIME)


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Frames as a segment holds them: `scan` has where each one starts in the output.

    `needed_bytes` is the length of the first frame that found no room, 0 if all did; `is_sound`
    is False where the first frame that was not copied is damaged.
    """

    scan: Scan
    is_sound: bool
    needed_bytes: int


def gather(
    buffer: Buffer, positions: NDArray[np.int64], expected: Expected, out: NDArray[np.uint8]
) -> Gathered:
    """Copies WAL Append frames without their type byte into `out`, as many as fit."""
    starts = np.empty(len(positions), dtype=np.int64)
    topic = as_signed(expected.topic_id)
    rows, end, needed, sound = _gather(
        as_bytes(buffer), positions, (topic, expected.first_sequence), out, starts
    )
    return Gathered(Scan(starts[:rows], end, Stop.LIMIT), bool(sound), needed)


@kernel_at_once(rows_at)
def _gather(
    data: Any, positions: Any, expected: tuple[int, int], out: Any, starts: Any
) -> tuple[int, int, int, int]:
    topic_id, first_sequence = expected
    origin = address_of(data)
    target = address_of(out)
    size, room = len(data), len(out)
    end = 0
    for row in range(len(positions)):
        position = positions[row]
        if position < 0 or position >= size:
            return row, end, 0, 0
        verdict, length = measure(origin, position, size, _PREFIX)
        frame = origin + position + _PREFIX
        if verdict != GOOD or peek_u8(origin + position) != _APPEND:
            return row, end, 0, 0
        if peek_i64(frame + _TOPIC) != topic_id:
            return row, end, 0, 0
        if peek_i64(frame + _SEQUENCE) != first_sequence + row:
            return row, end, 0, 0
        length -= _PREFIX
        if end + length > room:
            return row, end, length, 1
        copy(target + end, frame, length)
        starts[row] = end
        end += length
    return len(positions), end, 0, 1


def tag_matches(
    buffer: Buffer, positions: NDArray[np.int64], tag: bytes, *, prefix_bytes: int, exact: bool
) -> NDArray[np.bool_]:
    """Returns for each frame whether its tag is (`exact`) or begins with the given bytes.

    `prefix_bytes` is what a frame of the buffer has before `frame_len`: 1 in a WAL, 0 in a segment.
    """
    found = np.zeros(len(positions), dtype=np.bool_)
    wanted = np.frombuffer(tag + b"\0", dtype=np.uint8)
    _tag_matches(as_bytes(buffer), positions, (prefix_bytes, len(tag), int(exact)), wanted, found)
    return found


@kernel
def _tag_matches(
    data: Any, positions: Any, how: tuple[int, int, int], tag: Any, found: Any
) -> None:
    prefix, wanted_len, exact = how
    origin = address_of(data)
    size = len(data)
    for row in range(len(positions)):
        position = positions[row]
        if position < 0 or position + prefix + _OVERHEAD > size:
            continue
        frame = origin + position + prefix
        node_len = peek_u16(frame + _NODE_LEN)
        tag_len = peek_u16(frame + _TAG_LEN)
        if not peek_u8(frame + _FLAGS) & HAS_TAG or tag_len < wanted_len:
            continue
        if exact > 0 and tag_len != wanted_len:
            continue
        if position + prefix + _OVERHEAD + node_len + tag_len > size:
            continue
        at = frame + _BODY + node_len
        same = True
        for index in range(wanted_len):
            if peek_u8(at + index) != tag[index]:
                same = False
                break
        found[row] = same
