"""Frame v1 segment log (`<base_offset>.log`): a plain run of frames, one record each.

Truth: every other file of the partition can be rebuilt from this one.
All integers little-endian. Checksum: CRC-32 (zlib's) over header, key and value.

    | at | size | field        | type | meaning                                     |
    |----|------|--------------|------|---------------------------------------------|
    |  0 |    4 | magic        | u32  | 0xB10B5E01                                  |
    |  4 |    2 | version      | u16  | 1                                           |
    |  6 |    2 | flags        | u16  | 0; anything else is a newer format          |
    |  8 |    8 | offset       | i64  | record number, continues the file           |
    | 16 |    8 | timestamp_ms | i64  | milliseconds since 1970                     |
    | 24 |    4 | key_len      | u32  | bytes of key; 0 reads back as no key        |
    | 28 |    4 | value_len    | u32  | bytes of value                              |

    followed by: key, value, and the trailer

    | at | size | field        | type | meaning                                     |
    |----|------|--------------|------|---------------------------------------------|
    |  0 |    4 | crc32        | u32  | over everything before it                   |
    |  4 |    4 | frame_len    | u32  | 40 + key_len + value_len                    |

Awkward cases. An empty key and no key have the same bytes: both read back as no key.
The trailing length allows reading backwards; it must agree with the header.

Rules.
1. Nothing here reads a file or a clock.
2. `scan` never raises on bad bytes; it stops and returns why. Another version or flag is a newer
   format only where the checksum is good, and damage otherwise.
3. `decode` is only called on what `scan` accepted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.claims import Head, claimed_end
from lamina.formats.kernels import arrow
from lamina.formats.kernels.arrow import PlainValues
from lamina.formats.kernels.binary import (
    Layout,
    address_of,
    as_bytes,
    copy,
    peek_i64,
    peek_u16,
    peek_u32,
    poke_i64,
    poke_u16,
    poke_u32,
    wrapping_add,
)
from lamina.formats.kernels.call_size import rows_at, rows_of_batch, rows_within
from lamina.formats.kernels.crc import crc32
from lamina.formats.kernels.declare import inlined, kernel, kernel_at_once
from lamina.formats.scan import (
    ANY_OFFSET,
    SMALL_BYTES,
    Budget,
    Limit,
    Scan,
    Stop,
    as_expected,
    search,
    walk,
)
from lamina.records import INPUT_SCHEMAS, OUTPUT_SCHEMAS, TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = Layout(
    "<",
    magic="u32",
    version="u16",
    flags="u16",
    offset="i64",
    timestamp_ms="i64",
    key_len="u32",
    value_len="u32",
)
TRAILER = Layout(
    "<",
    crc32="u32",
    frame_len="u32",
)
FILE_HEADER_BYTES = 0
"""A frame log begins with its first frame."""
MAGIC = 0xB10B5E01
VERSION = 1
OVERHEAD_BYTES = HEADER.size + TRAILER.size
BODY_BYTES_MAX = 16 << 20

_FLAGS = HEADER.at("flags")
_VERSION = HEADER.at("version")
_OFFSET = HEADER.at("offset")
_TIMESTAMP = HEADER.at("timestamp_ms")
_KEY_LEN = HEADER.at("key_len")
_VALUE_LEN = HEADER.at("value_len")
_BODY = HEADER.size
_HEAD = Head(0, MAGIC << 16 | VERSION, _VERSION, _OFFSET, _KEY_LEN, _VALUE_LEN,
             HEADER.size, OVERHEAD_BYTES, BODY_BYTES_MAX)  # fmt: skip
_GOOD = -1
_END = int(Stop.END)
_LIMIT = int(Stop.LIMIT)
_TORN = int(Stop.TORN)
_BAD_MAGIC = int(Stop.BAD_MAGIC)
_BAD_VERSION = int(Stop.BAD_VERSION)
_BAD_LENGTH = int(Stop.BAD_LENGTH)
_BAD_CHECKSUM = int(Stop.BAD_CHECKSUM)
_BAD_OFFSET = int(Stop.BAD_OFFSET)


def encode(
    batch: pa.RecordBatch, base_offset: int, out: NDArray[np.uint8] | None = None
) -> arrow.Encoded:
    """Encodes a batch as consecutive frames from `base_offset` on.

    The result lies in `out` where that has room. Raises InvalidRequest for a null value or time, a
    record whose key and value exceed `BODY_BYTES_MAX` and offsets beyond 2^63; nothing is written
    then.
    """
    arrow.refuse_offsets(base_offset, batch.num_rows)
    return arrow.encode_with(_encode, batch, INPUT_SCHEMAS["frame"], out, int(base_offset))


def encode_values(
    values: PlainValues, base_offset: int, out: NDArray[np.uint8] | None = None
) -> arrow.Encoded:
    """Encodes what was last filled into plain values, as `encode` does a batch."""
    arrow.refuse_offsets(base_offset, values.rows)
    return arrow.encode_at(values.address, values.rows, _encode, out, int(base_offset))


@kernel_at_once(rows_of_batch)
def _encode(batch: int, out: Any, positions: Any, base_offset: int) -> tuple[int, int]:
    rows = arrow.length_of(batch)
    timestamps = arrow.fixed_column(batch, 0)
    keys = arrow.column(batch, 1)
    values = arrow.column(batch, 2)
    needed = rows * OVERHEAD_BYTES + arrow.spread(keys, rows) + arrow.spread(values, rows)
    if rows > len(positions):
        return arrow.BROKEN, len(positions)
    if needed > len(out):
        return arrow.NO_ROOM, needed
    start = address_of(out)
    position = 0
    for row in range(rows):
        key, key_len = arrow.slot(keys, row)
        value, value_len = arrow.slot(values, row)
        if arrow.is_null(values, row):
            return arrow.NULL_VALUE, row
        if arrow.is_null(timestamps, row):
            return arrow.NULL_TIME, row
        if key_len < 0 or value_len < 0:
            return arrow.BROKEN, row
        if arrow.is_null(keys, row):
            key_len = 0
        if key_len + value_len > BODY_BYTES_MAX:
            return arrow.TOO_LARGE, row
        if position + OVERHEAD_BYTES + key_len + value_len > len(out):
            return arrow.BROKEN, row  # offsets that go up and down again: more than they span
        positions[row] = position
        frame = start + position
        poke_u32(frame, MAGIC)
        poke_u16(frame + _VERSION, VERSION)
        poke_u16(frame + _FLAGS, 0)
        poke_i64(frame + _OFFSET, base_offset + row)
        poke_i64(frame + _TIMESTAMP, arrow.number(timestamps, row))
        poke_u32(frame + _KEY_LEN, key_len)
        poke_u32(frame + _VALUE_LEN, value_len)
        if key_len > 0:
            copy(frame + _BODY, key, key_len)
        copy(frame + _BODY + key_len, value, value_len)
        checked = _BODY + key_len + value_len
        poke_u32(frame + checked + 4, checked + 8)
        if row > 0:
            _seal(start + positions[row - 1])
        position += checked + 8
    if rows > 0:
        _seal(start + positions[rows - 1])
    return arrow.OK, position


@inlined
def _seal(frame: int) -> None:
    """Adds the checksum. One row late: reading bytes stored just now stalls the processor."""
    checked = _BODY + peek_u32(frame + _KEY_LEN) + peek_u32(frame + _VALUE_LEN)
    poke_u32(frame + checked, crc32(frame, checked))


@inlined
def _measure(start: int, position: int, size: int) -> tuple[int, int]:
    """Judges the lengths of a frame: (_GOOD or why not, its length)."""
    remaining = size - position
    frame = start + position
    if remaining < 4:
        return _TORN, 0
    magic = peek_u32(frame)
    if magic == 0:
        return _TORN, 0
    if magic != MAGIC:
        return _BAD_MAGIC, 0
    if remaining < OVERHEAD_BYTES:
        return _TORN, 0
    body = peek_u32(frame + _KEY_LEN) + peek_u32(frame + _VALUE_LEN)
    if body > BODY_BYTES_MAX:
        return _BAD_LENGTH, 0
    length = OVERHEAD_BYTES + body
    if length > remaining:
        return _TORN, 0
    if peek_u32(frame + length - 4) != length:
        return _BAD_LENGTH, 0
    return _GOOD, length


@inlined
def _check(frame: int, length: int, expected_offset: int) -> int:
    """Judges all but the lengths of a frame that was measured: _GOOD or why not.

    The checksum comes first: an unknown version or flag is a newer format only where the
    frame is sound, and a flipped bit otherwise.
    """
    if peek_u32(frame + length - 8) != crc32(frame, length - 8):
        return _BAD_CHECKSUM
    if peek_u16(frame + _VERSION) != VERSION or peek_u16(frame + _FLAGS) != 0:
        return _BAD_VERSION
    offset = peek_i64(frame + _OFFSET)
    if offset < 0 or expected_offset not in (ANY_OFFSET, offset):
        return _BAD_OFFSET
    return _GOOD


def scan(
    buffer: Buffer, start: int = 0, *, expected_offset: int | None = None, limit: Limit = Limit()
) -> Scan:
    """Walks the frames of a buffer from `start`, checking every field.

    `expected_offset` is what the first frame must carry (it is in the file's name); None takes it
    from that frame. Each following frame must continue it.
    """
    state = (start, 0, as_expected(expected_offset), 0)
    positions, timestamps, after, stop = walk(_scan, as_bytes(buffer), state, limit, OVERHEAD_BYTES)
    end, count, _, key_bytes = after
    value_bytes = end - start - count * OVERHEAD_BYTES - key_bytes
    return Scan(positions, end, stop, (key_bytes, value_bytes), timestamps)


@kernel_at_once(rows_within)
def _scan(data: Any, positions: Any, timestamps: Any, state: Any, bounds: Any) -> Any:
    position, count, expected_offset, key_bytes = state
    bytes_end, budget = bounds
    size = len(data)
    origin = address_of(data)
    stop, wasted = _END, 0
    while position < size:
        if count == len(positions):
            stop = _LIMIT
            break
        verdict, length = _measure(origin, position, size)
        if verdict == _GOOD and length > SMALL_BYTES and length > budget:
            verdict = _BAD_CHECKSUM
        elif verdict == _GOOD:
            verdict = _check(origin + position, length, expected_offset)
            if verdict == _BAD_CHECKSUM:
                wasted = length
        if verdict != _GOOD:
            stop = verdict
            break
        if count > 0 and position + length > bytes_end:
            stop = _LIMIT
            break
        positions[count] = position
        if len(timestamps):
            timestamps[count] = peek_i64(origin + position + _TIMESTAMP)
        count += 1
        key_bytes += peek_u32(origin + position + _KEY_LEN)
        expected_offset = wrapping_add(peek_i64(origin + position + _OFFSET), 1)
        position += length
    return (position, count, expected_offset, key_bytes), stop, wasted


def resync(
    buffer: Buffer, start: int, *, minimum_offset: int = 0, budget: Budget | None = None
) -> int | None:
    """Finds the next sound frame at or after `start`, as one must after damage; None if none is.

    Frames with an offset below `minimum_offset` do not count: they are leftovers of older times.
    Nor do those inside of a damaged one whose end is still known (`claims`). All searches of one
    walk share a `budget`; None is one of its own.
    """
    minimum = as_expected(max(0, minimum_offset))
    return search(_resync, as_bytes(buffer), start, budget, minimum)


@kernel
def _resync(data: Any, start: int, budget: int, minimum_offset: int) -> tuple[int, int]:
    size = len(data)
    origin = address_of(data)
    spent = 0
    position = start
    while position <= size - OVERHEAD_BYTES:
        frame = origin + position
        if position != start and peek_u32(frame) != MAGIC:
            position += 1
            continue
        verdict, length = _measure(origin, position, size)
        if verdict == _GOOD and (length <= SMALL_BYTES or length <= budget - spent):
            spent += length
            if _check(frame, length, ANY_OFFSET) == _GOOD:
                if 0 <= minimum_offset <= peek_i64(frame + _OFFSET):
                    return position, spent
                position += length  # a leftover, with whatever its value holds
                continue
        is_known = position == start
        end = claimed_end(origin, position, size, minimum_offset, is_known, _HEAD)
        position = max(end, position + 1)
    return -1, spent


def decode(buffer: Buffer, found: Scan, columns: Collection[str] | None = None) -> pa.RecordBatch:
    """Gathers the columns of the records that `scan` found in the same buffer.

    Of `columns` only those are there, in the schema's order; keys and values that are not asked
    for are not copied.
    """
    rows = len(found)
    schema = arrow.selected(OUTPUT_SCHEMAS["frame"], columns)
    wants_keys, wants_values = "key" in schema.names, "value" in schema.names
    key_bytes, value_bytes = found.column_bytes
    offsets = np.empty(rows, dtype=np.int64)
    timestamps = np.empty(rows, dtype=np.int64)
    keys = arrow.room_for(rows, key_bytes if wants_keys else 0)
    values = arrow.room_for(rows, value_bytes if wants_values else 0)
    wanted = (wants_keys, wants_values)
    _gather(as_bytes(buffer), found.positions, (offsets, timestamps), keys, values, wanted)
    made = {
        "offset": lambda: arrow.number_array(pa.int64(), offsets),
        "timestamp": lambda: arrow.number_array(TIMESTAMP, timestamps),
        "key": lambda: arrow.binary_array(*keys),
        "value": lambda: arrow.binary_array(values[0], values[1]),
    }
    return pa.RecordBatch.from_arrays([made[name]() for name in schema.names], schema=schema)


@kernel_at_once(rows_at)
def _gather(
    data: Any, positions: Any, numbers: Any, keys: Any, values: Any, wanted: tuple[bool, bool]
) -> None:
    origin = address_of(data)
    offsets, timestamps = numbers
    key_offsets, key_data, key_bits = keys
    value_offsets, value_data, _ = values
    wants_keys, wants_values = wanted
    key_target = address_of(key_data)
    value_target = address_of(value_data)
    key_end = 0
    value_end = 0
    for row in range(len(positions)):
        frame = origin + positions[row]
        key_len = peek_u32(frame + _KEY_LEN)
        value_len = peek_u32(frame + _VALUE_LEN)
        offsets[row] = peek_i64(frame + _OFFSET)
        timestamps[row] = peek_i64(frame + _TIMESTAMP)
        key_offsets[row] = key_end
        value_offsets[row] = value_end
        if wants_keys and key_len > 0:
            copy(key_target + key_end, frame + _BODY, key_len)
            key_bits[row >> 3] |= np.uint8(1 << (row & 7))
            key_end += key_len
        if wants_values:
            copy(value_target + value_end, frame + _BODY + key_len, value_len)
            value_end += value_len
    key_offsets[len(positions)] = key_end
    value_offsets[len(positions)] = value_end
