"""Write-ahead log (`wal-<n>.log`) and segment (`seg-<first_seq>.data`): the same frames, twice.

Truth: the WAL. Derived: a segment, copied from the WAL's bytes. The byte tables are in `layout`.

Rules.
1. Nothing here reads a file or a clock.
2. A scan never raises on bad bytes; it stops and returns why. An unknown type or flag is a newer
   format only where the checksum is good.
3. A `decode` is only called on what a scan of the same kind accepted; of a WAL that has control
   frames, on what `headers.select` chose from it: control frames are no records.
4. What exists for the WAL and for the segment runs one kernel: `prefix` is the size of what a frame
   of that kind has before `frame_len`, 1 or 0. Kernels compute with it and do not branch on it:
   Numba 0.68 with LLVM 20 miscompiled a loop that did both (the contract tests notice).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import InvalidRequest
from lamina.formats.kernels import arrow
from lamina.formats.kernels.arrow import PlainValues
from lamina.formats.kernels.binary import (
    address_of,
    as_bytes,
    copy,
    peek_i64,
    peek_u8,
    peek_u16,
    peek_u32,
    peek_u64,
    poke_i64,
    poke_u8,
    poke_u16,
    poke_u32,
)
from lamina.formats.kernels.call_size import rows_at, rows_of_batch, rows_within
from lamina.formats.kernels.declare import inlined, kernel_at_once
from lamina.formats.kernels.xxh3 import xxh3, xxh3_of
from lamina.formats.scan import SMALL_BYTES, Limit, Scan, Stop, refuse_start, walk
from lamina.formats.wal.layout import (
    BODY_BYTES_MAX,
    DURABLE,
    HAS_NODE,
    HAS_TAG,
    NAME_BYTES_MAX,
    OVERHEAD_BYTES,
    PREFIX,
    ROUTED,
    SEGMENT_FRAME,
    SEQUENCE_MAX,
    TRAILER,
    FrameType,
    as_signed,
)
from lamina.records import INPUT_SCHEMAS, OUTPUT_SCHEMAS, TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

_APPEND = int(FrameType.APPEND)
KNOWN_TYPES = sum(1 << kind for kind in FrameType)
KNOWN_FLAGS = HAS_TAG | HAS_NODE | DURABLE | ROUTED
_IN_WAL, _IN_SEGMENT = PREFIX.size, 0

_FLAGS = SEGMENT_FRAME.at("flags")
_TOPIC = SEGMENT_FRAME.at("topic_id")
_SEQUENCE = SEGMENT_FRAME.at("sequence")
_TIMESTAMP = SEGMENT_FRAME.at("timestamp_ms")
_NODE_LEN = SEGMENT_FRAME.at("node_len")
_TAG_LEN = SEGMENT_FRAME.at("tag_len")
_DATA_LEN = SEGMENT_FRAME.at("data_len")
_BODY = SEGMENT_FRAME.size
_XXH3_SIZE = TRAILER.size
_FRAME_LEN_SIZE = _FLAGS
_FRAME_LEN_MIN = OVERHEAD_BYTES - _FRAME_LEN_SIZE
GOOD = -1
_END = int(Stop.END)
_LIMIT = int(Stop.LIMIT)
_TORN = int(Stop.TORN)
_BAD_VERSION = int(Stop.BAD_VERSION)
_BAD_LENGTH = int(Stop.BAD_LENGTH)
_BAD_CHECKSUM = int(Stop.BAD_CHECKSUM)
_BAD_OFFSET = int(Stop.BAD_OFFSET)


class Owners(NamedTuple):
    """Whose each row is: its topic (by `as_signed`), sequence, and DURABLE and ROUTED flags."""

    topic_ids: NDArray[np.int64]
    sequences: NDArray[np.int64]
    flags: NDArray[np.uint8]


def encode(
    batch: pa.RecordBatch,
    *,
    topic_id: int,
    base_sequence: int,
    durable: bool,
    out: NDArray[np.uint8] | None = None,
) -> arrow.Encoded:
    """Encodes a batch of one topic as consecutive WAL Append frames from `base_sequence` on.

    The result lies in `out` where that has room. Raises InvalidRequest for a null value, a tag or
    node over `NAME_BYTES_MAX`, a null time or a record over `BODY_BYTES_MAX`; nothing is written
    then.
    """
    rows = batch.num_rows
    if not 1 <= base_sequence <= SEQUENCE_MAX - rows:
        raise InvalidRequest(f"sequences are from 1 and below 2^63, not {base_sequence}")
    owners = Owners(
        np.full(rows, as_signed(topic_id), dtype=np.int64),
        np.arange(base_sequence, base_sequence + rows, dtype=np.int64),
        np.full(rows, DURABLE if durable else 0, dtype=np.uint8),
    )
    return encode_mixed(batch, owners, out)


def encode_mixed(
    records: pa.RecordBatch | PlainValues, owners: Owners, out: NDArray[np.uint8] | None = None
) -> arrow.Encoded:
    """Encodes records of many topics, each row with its own topic, sequence and flags."""
    rows = records.rows if isinstance(records, PlainValues) else records.num_rows
    if any(len(column) != rows for column in owners):
        raise ValueError(f"{rows} rows need as many topics, sequences and flags")
    if isinstance(records, PlainValues):
        return arrow.encode_at(records.address, rows, _encode, out, *owners)
    return arrow.encode_with(_encode, records, INPUT_SCHEMAS["wal"], out, *owners)


@kernel_at_once(rows_of_batch)
def _encode(
    batch: int, out: Any, positions: Any, topic_ids: Any, sequences: Any, flags: Any
) -> tuple[int, int]:
    rows = arrow.length_of(batch)
    timestamps = arrow.fixed_column(batch, 0)
    values = arrow.column(batch, 1)
    tags = arrow.column(batch, 2)
    nodes = arrow.column(batch, 3)
    names = arrow.spread(tags, rows) + arrow.spread(nodes, rows)
    needed = rows * (_IN_WAL + OVERHEAD_BYTES) + names + arrow.spread(values, rows)
    if rows > len(positions):
        return arrow.BROKEN, len(positions)
    if needed > len(out):
        return arrow.NO_ROOM, needed
    start = address_of(out)
    position = 0
    for row in range(rows):
        value, value_len = arrow.slot(values, row)
        if arrow.is_null(values, row):
            return arrow.NULL_VALUE, row
        if arrow.is_null(timestamps, row):
            return arrow.NULL_TIME, row
        node, node_len, node_flag = _name(nodes, row, HAS_NODE)
        tag, tag_len, tag_flag = _name(tags, row, HAS_TAG)
        if node_len < 0 or tag_len < 0 or value_len < 0:
            return arrow.BROKEN, row
        body = node_len + tag_len + value_len
        if node_len > NAME_BYTES_MAX or tag_len > NAME_BYTES_MAX or body > BODY_BYTES_MAX:
            return arrow.TOO_LARGE, row
        if position + _IN_WAL + OVERHEAD_BYTES + body > len(out):
            return arrow.BROKEN, row  # offsets that go up and down again: more than they span
        positions[row] = position
        poke_u8(start + position, _APPEND)
        frame = start + position + _IN_WAL
        poke_u32(frame, _FRAME_LEN_MIN + body)
        poke_u8(frame + _FLAGS, int(flags[row]) | node_flag | tag_flag)
        poke_i64(frame + _TOPIC, topic_ids[row])
        poke_i64(frame + _SEQUENCE, sequences[row])
        poke_i64(frame + _TIMESTAMP, arrow.number(timestamps, row))
        poke_u16(frame + _NODE_LEN, node_len)
        poke_u16(frame + _TAG_LEN, tag_len)
        poke_u32(frame + _DATA_LEN, value_len)
        if node_len > 0:
            copy(frame + _BODY, node, node_len)
        if tag_len > 0:
            copy(frame + _BODY + node_len, tag, tag_len)
        copy(frame + _BODY + node_len + tag_len, value, value_len)
        if row > 0:
            _seal(start + positions[row - 1] + _IN_WAL)
        position += _IN_WAL + OVERHEAD_BYTES + body
    if rows > 0:
        _seal(start + positions[rows - 1] + _IN_WAL)
    return arrow.OK, position


@inlined
def _name(column: arrow.Column, row: int, flag: int) -> tuple[int, int, int]:
    """A tag or node as (address, length, flag); a null has neither length nor flag."""
    if arrow.is_null(column, row):
        return 0, 0, 0
    address, length = arrow.slot(column, row)
    return address, length, flag


@inlined
def _seal(frame: int) -> None:
    """Adds the checksum. One row late: reading bytes stored just now stalls the processor."""
    checked = peek_u32(frame) - _XXH3_SIZE
    body = frame + _FRAME_LEN_SIZE
    checksum: Any = np.int64(xxh3(body, checked, np.uint64(0)))
    poke_i64(body + checked, checksum)


def encode_control(
    frame_type: FrameType, topic_id: int, sequence: int, timestamp_ms: int, body: bytes
) -> bytes:
    """Encodes one control frame, always durable; `control` makes the body."""
    if frame_type is FrameType.APPEND or len(body) > BODY_BYTES_MAX:
        raise InvalidRequest(f"{frame_type.name} with {len(body)} bytes is not a control frame")
    head = SEGMENT_FRAME.pack(
        frame_len=_FRAME_LEN_MIN + len(body),
        flags=DURABLE,
        topic_id=topic_id,
        sequence=sequence,
        timestamp_ms=timestamp_ms,
        node_len=0,
        tag_len=0,
        data_len=len(body),
    )
    trailer = TRAILER.pack(xxh3=xxh3_of(head[_FRAME_LEN_SIZE:] + body, int(frame_type)))
    return PREFIX.pack(frame_type=int(frame_type)) + head + body + trailer


@inlined
def type_at(at: int, prefix: int) -> int:
    """The type of a frame; a segment, which has no prefix, holds Append frames only."""
    return _APPEND + prefix * (peek_u8(at) - _APPEND)


@inlined
def measure(start: int, position: int, size: int, prefix: int) -> tuple[int, int]:
    """Judges the lengths of a frame: (GOOD or why not, its length with the prefix)."""
    remaining = size - position - prefix
    frame = start + position + prefix
    if remaining < _FRAME_LEN_SIZE:
        return _TORN, 0
    frame_len = peek_u32(frame)
    if type_at(start + position, prefix) == 0 or frame_len == 0:
        return _TORN, 0
    if frame_len > _FRAME_LEN_MIN + BODY_BYTES_MAX:
        return _BAD_LENGTH, 0
    if remaining < OVERHEAD_BYTES:
        return _TORN, 0
    node_len = peek_u16(frame + _NODE_LEN)
    tag_len = peek_u16(frame + _TAG_LEN)
    if frame_len != _FRAME_LEN_MIN + node_len + tag_len + peek_u32(frame + _DATA_LEN):
        return _BAD_LENGTH, 0
    if frame_len > remaining - _FRAME_LEN_SIZE:
        return _TORN, 0
    return GOOD, prefix + _FRAME_LEN_SIZE + frame_len


@inlined
def check(at: int, prefix: int) -> int:
    """Judges all but the lengths of a frame that was measured: GOOD or why not."""
    frame = at + prefix
    frame_type = type_at(at, prefix)
    seed = np.uint64(0)
    if frame_type != _APPEND:
        seed = np.uint64(frame_type)
    checked = peek_u32(frame) - _XXH3_SIZE
    body = frame + _FRAME_LEN_SIZE
    if peek_u64(body + checked) != xxh3(body, checked, seed):
        return _BAD_CHECKSUM
    flags = peek_u8(frame + _FLAGS)
    if flags & ~KNOWN_FLAGS or frame_type > 63 or not (KNOWN_TYPES >> frame_type) & 1:
        return _BAD_VERSION
    if peek_u16(frame + _NODE_LEN) > 0 and not flags & HAS_NODE:
        return _BAD_LENGTH
    if peek_u16(frame + _TAG_LEN) > 0 and not flags & HAS_TAG:
        return _BAD_LENGTH
    sequence = peek_i64(frame + _SEQUENCE)
    if sequence < 0 or (sequence == 0 and frame_type == _APPEND):
        return _BAD_OFFSET
    return GOOD


def scan(buffer: Buffer, start: int = 0, *, limit: Limit = Limit()) -> Scan:
    """Walks the frames of a WAL file from `start`, checking every field.

    Topics and types are mixed, and a topic's sequences may have holes or come again after a crash:
    which frames count is up to replay.
    """
    return _scan_as(_IN_WAL, as_bytes(buffer), start, (0, 0), limit)


def scan_segment(
    buffer: Buffer,
    start: int = 0,
    *,
    topic_id: int | None = None,
    minimum_sequence: int = 1,
    limit: Limit = Limit(),
) -> Scan:
    """Walks the frames of a segment's `.data` from `start`, checking every field.

    Each frame must be of the topic (None takes that of the first), and its sequence be at least
    `minimum_sequence` (it is in the file's name) and above the one before it. Holes are legal.
    """
    data = as_bytes(buffer)
    refuse_start(start, len(data))
    topic = _topic_at(data, start) if topic_id is None else topic_id
    above = min(max(minimum_sequence, 1) - 1, SEQUENCE_MAX)
    return _scan_as(_IN_SEGMENT, data, start, (as_signed(topic), above), limit)


def _topic_at(data: NDArray[np.uint8], position: int) -> int:
    if len(data) - position < SEGMENT_FRAME.size:
        return 0
    return int(SEGMENT_FRAME.unpack(data.data, position)["topic_id"])


def _scan_as(
    prefix: int, data: NDArray[np.uint8], start: int, expected: tuple[int, int], limit: Limit
) -> Scan:
    overhead = prefix + OVERHEAD_BYTES
    state = (start, 0, prefix, *expected, 0, 0)
    positions, _, after, stop = walk(_scan, data, state, limit, overhead)
    end, count, *_, tags, nodes = after
    values = end - start - count * overhead - tags - nodes
    return Scan(positions, end, stop, (values, tags, nodes))


@kernel_at_once(rows_within)
def _scan(
    data: Any,
    positions: Any,
    _: Any,
    state: tuple[int, int, int, int, int, int, int],
    bounds: tuple[int, int],
) -> Any:
    position, count, prefix, topic_id, before, tag_bytes, node_bytes = state
    ordered = prefix - 1  # all bits in a segment, none in a WAL
    bytes_end, budget = bounds
    size = len(data)
    origin = address_of(data)
    stop, wasted = _END, 0
    while position < size:
        if count == len(positions):
            stop = _LIMIT
            break
        verdict, length = measure(origin, position, size, prefix)
        if verdict == GOOD and length > SMALL_BYTES and length > budget:
            verdict = _BAD_CHECKSUM
        elif verdict == GOOD:
            verdict = check(origin + position, prefix)
            if verdict == _BAD_CHECKSUM:
                wasted = length
        if verdict != GOOD:
            stop = verdict
            break
        frame = origin + position + prefix
        sequence = peek_i64(frame + _SEQUENCE)
        other_topic = (peek_i64(frame + _TOPIC) ^ topic_id) & ordered
        if other_topic != 0 or sequence <= (before | ~ordered):
            stop = _BAD_OFFSET
            break
        before = sequence
        if count > 0 and position + length > bytes_end:
            stop = _LIMIT
            break
        positions[count] = position
        count += 1
        tag_bytes += peek_u16(frame + _TAG_LEN)
        node_bytes += peek_u16(frame + _NODE_LEN)
        position += length
    return (position, count, prefix, topic_id, before, tag_bytes, node_bytes), stop, wasted


def decode(buffer: Buffer, found: Scan) -> pa.RecordBatch:
    """Gathers the columns of the records of a WAL: Append frames that `select` chose."""
    return _decode(buffer, found.positions + _IN_WAL, found.column_bytes)


def decode_segment(buffer: Buffer, found: Scan) -> pa.RecordBatch:
    """Gathers the columns of the records that `scan_segment` found in the same buffer."""
    return _decode(buffer, found.positions, found.column_bytes)


def _decode(
    buffer: Buffer, frames: NDArray[np.int64], column_bytes: tuple[int, ...]
) -> pa.RecordBatch:
    rows = len(frames)
    sequences = np.empty(rows, dtype=np.int64)
    timestamps = np.empty(rows, dtype=np.int64)
    values, tags, nodes = (
        (np.empty(rows + 1, dtype=np.int32), arrow.empty_bytes(size)) for size in column_bytes
    )
    tag_bits, node_bits = arrow.bitmap(rows), arrow.bitmap(rows)
    _gather(
        as_bytes(buffer),
        frames,
        (sequences, timestamps),
        values,
        (*tags, tag_bits),
        (*nodes, node_bits),
    )
    columns = [
        arrow.number_array(pa.int64(), sequences),
        arrow.number_array(TIMESTAMP, timestamps),
        arrow.binary_array(*values),
        arrow.binary_array(*tags, tag_bits),
        arrow.binary_array(*nodes, node_bits),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=OUTPUT_SCHEMAS["wal"])


@kernel_at_once(rows_at)
def _gather(data: Any, frames: Any, numbers: Any, values: Any, tags: Any, nodes: Any) -> None:
    origin = address_of(data)
    sequences, timestamps = numbers
    value_offsets, value_data = values
    tag_offsets, tag_data, tag_bits = tags
    node_offsets, node_data, node_bits = nodes
    value_target = address_of(value_data)
    tag_target = address_of(tag_data)
    node_target = address_of(node_data)
    value_end = 0
    tag_end = 0
    node_end = 0
    for row in range(len(frames)):
        frame = origin + frames[row]
        flags = peek_u8(frame + _FLAGS)
        node_len = peek_u16(frame + _NODE_LEN)
        tag_len = peek_u16(frame + _TAG_LEN)
        value_len = peek_u32(frame + _DATA_LEN)
        sequences[row] = peek_i64(frame + _SEQUENCE)
        timestamps[row] = peek_i64(frame + _TIMESTAMP)
        value_offsets[row] = value_end
        tag_offsets[row] = tag_end
        node_offsets[row] = node_end
        if flags & HAS_NODE:
            copy(node_target + node_end, frame + _BODY, node_len)
            node_bits[row >> 3] |= np.uint8(1 << (row & 7))
        if flags & HAS_TAG:
            copy(tag_target + tag_end, frame + _BODY + node_len, tag_len)
            tag_bits[row >> 3] |= np.uint8(1 << (row & 7))
        copy(value_target + value_end, frame + _BODY + node_len + tag_len, value_len)
        value_end += value_len
        tag_end += tag_len
        node_end += node_len
    value_offsets[len(frames)] = value_end
    tag_offsets[len(frames)] = tag_end
    node_offsets[len(frames)] = node_end
