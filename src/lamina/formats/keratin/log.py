"""Keratin v1 segment log (`<base_offset>.log`): a header, then one record after the other.

Truth: every other file of the partition can be rebuilt from this one.
All integers big-endian. Checksums: CRC-32C. The file header:

    | at | size | field         | type      | meaning                                       |
    |----|------|---------------|-----------|-----------------------------------------------|
    |  0 |    8 | magic         | bytes[8]  | "KLOG", four zeros                            |
    |  8 |    2 | version       | u16       | 1                                             |
    | 10 |    2 | flags         | u16       | written as 0, ignored                         |
    | 12 |    4 | header_len    | u32       | 68                                            |
    | 16 |    8 | base_offset   | i64       | offset of the first record, the file's name   |
    | 24 |    8 | created_ts_ms | i64       | milliseconds since 1970                       |
    | 32 |   32 | reserved      | bytes[32] | zeros                                         |
    | 64 |    4 | header_crc32c | u32       | over the 64 bytes before it                   |

A record:

    | at | size | field         | type | meaning                                            |
    |----|------|---------------|------|----------------------------------------------------|
    |  0 |    2 | magic         | u16  | 0x4B52 ("KR")                                      |
    |  2 |    2 | version       | u16  | 1                                                  |
    |  4 |    2 | flags         | u16  | written as 0, ignored                              |
    |  6 |    2 | reserved0     | u16  | written as 0, ignored                              |
    |  8 |    4 | header_len    | u32  | bytes of headers                                   |
    | 12 |    4 | payload_len   | u32  | bytes of payload                                   |
    | 16 |    8 | timestamp_ms  | i64  | milliseconds since 1970                            |
    | 24 |    8 | offset        | i64  | record number, continues the file                  |

    followed by: headers, payload, and the trailer

    | at | size | field         | type | meaning                                            |
    |----|------|---------------|------|----------------------------------------------------|
    |  0 |    4 | crc32c        | u32  | from version through payload, without the magic    |

The payload is the value. Key, headers and a null value travel in `headers`, as an envelope
(`lamina.formats.envelope`); a record without them has header_len 0.

Awkward cases. The document has u64 where this has i64: the bytes are the same below 2^63, and an
offset at or above it is damage. Headers bytes that are no envelope of a keratin record (foreign
bytes, a tag or node, a null value that has a payload) surface as one header; nothing is dropped.

Rules.
1. Nothing here reads a file or a clock.
2. `scan` never raises: it stops and returns why. Another version is newer if the checksum is good.
3. `decode` is only called on what `scan` accepted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats import envelope
from lamina.formats.claims import Head, claimed_end
from lamina.formats.keratin import header
from lamina.formats.kernels import arrow
from lamina.formats.kernels.arrow import PlainValues
from lamina.formats.kernels.binary import (
    Layout,
    address_of,
    as_bytes,
    copy,
    peek_i64_be,
    peek_u16_be,
    peek_u32_be,
    poke_i64_be,
    poke_u16_be,
    poke_u32_be,
    wrapping_add,
)
from lamina.formats.kernels.call_size import rows_at, rows_of_batch, rows_within
from lamina.formats.kernels.crc import crc32c
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
from lamina.records import HEADERS, INPUT_SCHEMAS, OUTPUT_SCHEMAS, TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER = Layout(
    ">",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    header_len="u32",
    base_offset="i64",
    created_ts_ms="i64",
    reserved="bytes[32]",
    header_crc32c="u32",
)
FILE_MAGIC = b"KLOG\0\0\0\0"
HEADER = Layout(
    ">",
    magic="u16",
    version="u16",
    flags="u16",
    reserved0="u16",
    header_len="u32",
    payload_len="u32",
    timestamp_ms="i64",
    offset="i64",
)
TRAILER = Layout(">", crc32c="u32")
MAGIC = 0x4B52
VERSION = 1
FILE_HEADER_BYTES = FILE_HEADER.size
OVERHEAD_BYTES = HEADER.size + TRAILER.size
BODY_BYTES_MAX = 1 << 30

_VERSION, _FLAGS = HEADER.at("version"), HEADER.at("flags")
_HEADER_LEN, _PAYLOAD_LEN = HEADER.at("header_len"), HEADER.at("payload_len")
_TIMESTAMP, _OFFSET = HEADER.at("timestamp_ms"), HEADER.at("offset")
_BODY = HEADER.size
_HEAD = Head(1, MAGIC << 16 | VERSION, _VERSION, _OFFSET, _HEADER_LEN, _PAYLOAD_LEN,
             HEADER.size, OVERHEAD_BYTES, BODY_BYTES_MAX)  # fmt: skip
_GOOD = -1
_END, _LIMIT, _TORN = int(Stop.END), int(Stop.LIMIT), int(Stop.TORN)
_BAD_MAGIC, _BAD_VERSION = int(Stop.BAD_MAGIC), int(Stop.BAD_VERSION)
_BAD_LENGTH, _BAD_CHECKSUM = int(Stop.BAD_LENGTH), int(Stop.BAD_CHECKSUM)
_BAD_OFFSET = int(Stop.BAD_OFFSET)


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a segment log."""

    base_offset: int
    created_ms: int


def encode_header(base_offset: int, created_ms: int) -> bytes:
    """Encodes the header of a segment log."""
    return header.encode(FILE_HEADER, FILE_MAGIC, base_offset=base_offset, created_ts_ms=created_ms)


def decode_header(buffer: Buffer) -> FileHeader:
    """Reads the header of a segment log. Raises CorruptData, or NewerFormat for one not ours."""
    fields = header.decode(buffer, FILE_HEADER, FILE_MAGIC)
    header.refuse_negative(FILE_HEADER, fields, "base_offset")
    return FileHeader(fields["base_offset"], fields["created_ts_ms"])


def encode(
    batch: pa.RecordBatch, base_offset: int, out: NDArray[np.uint8] | None = None
) -> arrow.Encoded:
    """Encodes a batch as consecutive records from `base_offset` on, without a file header.

    The result lies in `out` where that has room. Raises InvalidRequest for a record whose fields
    exceed `BODY_BYTES_MAX` together, a null time, a header's name that is not UTF-8 and offsets
    beyond 2^63.
    """
    arrow.refuse_offsets(base_offset, batch.num_rows)
    return arrow.encode_with(_encode, batch, INPUT_SCHEMAS["keratin"], out, int(base_offset))


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
    values = arrow.column(batch, 2)
    fields = (
        *(arrow.column(batch, 1), values, envelope.header_columns(batch, 3)),
        *(arrow.NO_COLUMN, arrow.NO_COLUMN),
    )
    if rows > len(positions):
        return arrow.BROKEN, len(positions)
    room = len(out)
    needed = rows * OVERHEAD_BYTES + arrow.spread(values, rows) + envelope.spread(fields, rows)
    if needed > room:
        return arrow.NO_ROOM, needed
    start = address_of(out)
    position = 0
    for row in range(rows):
        flags = envelope.flags_of(fields, row)
        value, value_len = arrow.slot(values, row)
        if flags & envelope.NULL_VALUE:
            value_len = 0
        header_len = envelope.size_of(fields, row, flags)
        body = header_len + value_len
        if header_len == envelope.NOT_UTF8:
            return arrow.BAD_NAME, row
        if arrow.is_null(timestamps, row):
            return arrow.NULL_TIME, row
        if body > BODY_BYTES_MAX:
            return arrow.TOO_LARGE, row
        if header_len < 0 or value_len < 0 or position + OVERHEAD_BYTES + body > room:
            return arrow.BROKEN, row
        positions[row] = position
        record = start + position
        poke_u16_be(record, MAGIC)
        poke_u16_be(record + _VERSION, VERSION)
        poke_u32_be(record + _FLAGS, 0)
        poke_u32_be(record + _HEADER_LEN, header_len)
        poke_u32_be(record + _PAYLOAD_LEN, value_len)
        poke_i64_be(record + _TIMESTAMP, arrow.number(timestamps, row))
        poke_i64_be(record + _OFFSET, base_offset + row)
        envelope.write(record + _BODY, fields, row, flags)
        copy(record + _BODY + header_len, value, value_len)
        if row > 0:
            _seal(start + positions[row - 1])
        position += OVERHEAD_BYTES + body
    if rows > 0:
        _seal(start + positions[rows - 1])
    return arrow.OK, position


@inlined
def _checked_bytes(record: int) -> int:
    """The bytes from the version through the payload: what the checksum is over."""
    body = peek_u32_be(record + _HEADER_LEN) + peek_u32_be(record + _PAYLOAD_LEN)
    return _BODY - _VERSION + body


@inlined
def _seal(record: int) -> None:
    """Adds the checksum. One row late: reading bytes stored just now stalls the processor."""
    checked = _checked_bytes(record)
    poke_u32_be(record + _VERSION + checked, crc32c(record + _VERSION, checked))


@inlined
def _frame(start: int, position: int, size: int) -> tuple[int, int]:
    """Judges the lengths of a record: (_GOOD or why not, its length)."""
    remaining = size - position
    record = start + position
    if remaining < 2:
        return _TORN, 0
    magic = peek_u16_be(record)
    if magic == 0:
        return _TORN, 0
    if magic != MAGIC:
        return _BAD_MAGIC, 0
    if remaining < OVERHEAD_BYTES:
        return _TORN, 0
    body = peek_u32_be(record + _HEADER_LEN) + peek_u32_be(record + _PAYLOAD_LEN)
    if body > BODY_BYTES_MAX:
        return _BAD_LENGTH, 0
    length = OVERHEAD_BYTES + body
    if length > remaining:
        return _TORN, 0
    return _GOOD, length


@inlined
def _check(record: int, expected_offset: int) -> int:
    """Judges all but the lengths of a record that was measured: _GOOD or why not.

    The checksum comes first: another version is a newer format only in a sound record.
    """
    checked = _checked_bytes(record)
    if peek_u32_be(record + _VERSION + checked) != crc32c(record + _VERSION, checked):
        return _BAD_CHECKSUM
    if peek_u16_be(record + _VERSION) != VERSION:
        return _BAD_VERSION
    offset = peek_i64_be(record + _OFFSET)
    if offset < 0 or expected_offset not in (ANY_OFFSET, offset):
        return _BAD_OFFSET
    return _GOOD


def scan(
    buffer: Buffer,
    start: int = FILE_HEADER_BYTES,
    *,
    expected_offset: int | None = None,
    limit: Limit = Limit(),
) -> Scan:
    """Walks the records of a buffer from `start` (behind the file header), checking every field.

    `expected_offset` is what the first record must carry (it is in the file's name); None takes it
    from that record. Each following record must continue it. A buffer that ends inside the file
    header is torn.
    """
    data = as_bytes(buffer)
    if start == FILE_HEADER_BYTES > len(data):
        return Scan(np.empty(0, dtype=np.int64), len(data), Stop.TORN, (0, 0))
    state = (start, 0, as_expected(expected_offset), 0)
    positions, timestamps, after, stop = walk(_scan, data, state, limit, OVERHEAD_BYTES)
    end, count, _, header_bytes = after
    value_bytes = end - start - count * OVERHEAD_BYTES - header_bytes
    return Scan(positions, end, stop, (header_bytes, value_bytes), timestamps)


@kernel_at_once(rows_within)
def _scan(data: Any, positions: Any, timestamps: Any, state: Any, bounds: Any) -> Any:
    position, count, expected_offset, header_bytes = state
    bytes_end, budget = bounds
    size = len(data)
    origin = address_of(data)
    stop, wasted = _END, 0
    while position < size:
        if count == len(positions):
            stop = _LIMIT
            break
        verdict, length = _frame(origin, position, size)
        if verdict == _GOOD and length > SMALL_BYTES and length > budget:
            verdict = _BAD_CHECKSUM
        elif verdict == _GOOD:
            verdict = _check(origin + position, expected_offset)
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
            timestamps[count] = peek_i64_be(origin + position + _TIMESTAMP)
        count += 1
        header_bytes += peek_u32_be(origin + position + _HEADER_LEN)
        expected_offset = wrapping_add(peek_i64_be(origin + position + _OFFSET), 1)
        position += length
    return (position, count, expected_offset, header_bytes), stop, wasted


def resync(
    buffer: Buffer, start: int, *, minimum_offset: int = 0, budget: Budget | None = None
) -> int | None:
    """Finds the next sound record at or after `start`, as one must after damage; None if none is.

    Those with an offset below `minimum_offset` do not count: they are leftovers of older times; nor
    those in a damaged one whose end is known (`claims`). A walk's searches share one `budget`.
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
        record = origin + position
        if position != start and peek_u16_be(record) != MAGIC:
            position += 1
            continue
        verdict, length = _frame(origin, position, size)
        if verdict == _GOOD and (length <= SMALL_BYTES or length <= budget - spent):
            spent += length
            if _check(record, ANY_OFFSET) == _GOOD:
                if 0 <= minimum_offset <= peek_i64_be(record + _OFFSET):
                    return position, spent
                position += length  # a leftover, with whatever its value holds
                continue
        is_known = position == start
        end = claimed_end(origin, position, size, minimum_offset, is_known, _HEAD)
        position = max(end, position + 1)
    return -1, spent


# ---------------------------------------------------------------- from bytes to columns


def decode(buffer: Buffer, found: Scan, columns: Collection[str] | None = None) -> pa.RecordBatch:
    """Gathers the columns of the records that `scan` found in the same buffer.

    Of `columns` only those are there, in the schema's order; what is not asked for is not copied.
    """
    rows = len(found)
    data = as_bytes(buffer)
    schema = arrow.selected(OUTPUT_SCHEMAS["keratin"], columns)
    wants_keys, wants_values = "key" in schema.names, "value" in schema.names
    header_bytes, value_bytes = found.column_bytes
    looks = header_bytes and not set(schema.names) <= {"offset", "timestamp"}
    nulls, key_bytes, *totals = _measure(data, found.positions) if looks else (0,) * 6
    offsets, timestamps = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
    keys = arrow.room_for(rows, key_bytes if wants_keys else 0)
    values = arrow.room_for(rows, value_bytes if wants_values else 0)
    wanted = (wants_keys, wants_values)
    _gather(data, found.positions, (offsets, timestamps), keys, values, wanted)
    made = {
        "offset": lambda: arrow.number_array(pa.int64(), offsets),
        "timestamp": lambda: arrow.number_array(TIMESTAMP, timestamps),
        "key": lambda: arrow.binary_array(*keys),
        "value": lambda: arrow.binary_array(values[0], values[1], values[2] if nulls else None),
        "headers": lambda: _headers_column(data, found, *totals),
    }
    return pa.RecordBatch.from_arrays([made[name]() for name in schema.names], schema=schema)


def _headers_column(data: NDArray[np.uint8], found: Scan, lists: int, *totals: int) -> pa.Array:
    rows = len(found)
    if lists == 0:
        return pa.nulls(rows, HEADERS)
    arrays = envelope.HeaderArrays.with_room(rows, *totals)
    ends = np.zeros(3, dtype=np.int64)
    _gather_headers(data, found.positions, tuple(arrays), ends)
    return arrays.column(ends)


@inlined
def _look(record: int, header_len: int) -> Any:
    """Judges the headers of a record: an envelope counts only if keratin could have written it."""
    found = envelope.look(record + _BODY, header_len)
    flags = found[0]
    if flags < 0 or flags & (envelope.TAG | envelope.NODE):
        return envelope.foreign(record + _BODY, header_len)
    if flags & envelope.NULL_VALUE and peek_u32_be(record + _PAYLOAD_LEN) > 0:
        return envelope.foreign(record + _BODY, header_len)
    return found


@kernel_at_once(rows_at)
def _measure(data: Any, positions: Any) -> tuple[int, int, int, int, int, int]:
    """Counts null values, key bytes, rows with headers, headers, name bytes, header value bytes."""
    origin = address_of(data)
    nulls, key_bytes, lists, items, name_bytes, item_bytes = 0, 0, 0, 0, 0, 0
    for row in range(len(positions)):
        record = origin + positions[row]
        header_len = peek_u32_be(record + _HEADER_LEN)
        if header_len == 0:
            continue
        found = _look(record, header_len)
        flags = found[0]
        key_bytes += found[2]
        items += found[8]
        name_bytes += found[9]
        item_bytes += found[10]
        if flags == envelope.FOREIGN or flags & envelope.HAS_HEADERS:
            lists += 1
        if flags != envelope.FOREIGN and flags & envelope.NULL_VALUE:
            nulls += 1
    return nulls, key_bytes, lists, items, name_bytes, item_bytes


@kernel_at_once(rows_at)
def _gather(
    data: Any, positions: Any, numbers: Any, keys: Any, values: Any, wanted: tuple[bool, bool]
) -> None:
    origin = address_of(data)
    offsets, timestamps = numbers
    key_offsets, key_data, key_bits = keys
    value_offsets, value_data, value_bits = values
    wants_keys, wants_values = wanted
    wants_either = wants_keys or wants_values
    key_target = address_of(key_data)
    value_target = address_of(value_data)
    key_end = 0
    value_end = 0
    for row in range(len(positions)):
        record = origin + positions[row]
        header_len = peek_u32_be(record + _HEADER_LEN)
        value_len = peek_u32_be(record + _PAYLOAD_LEN)
        offsets[row] = peek_i64_be(record + _OFFSET)
        timestamps[row] = peek_i64_be(record + _TIMESTAMP)
        key_offsets[row] = key_end
        value_offsets[row] = value_end
        flags = 0
        if wants_either and header_len > 0:
            found = _look(record, header_len)
            flags = max(found[0], 0)
            if wants_keys:
                copy(key_target + key_end, found[1], found[2])
                key_end += found[2]
        if wants_keys and flags & envelope.KEY:
            key_bits[row >> 3] |= np.uint8(1 << (row & 7))
        if wants_values:
            if not flags & envelope.NULL_VALUE:
                value_bits[row >> 3] |= np.uint8(1 << (row & 7))
            copy(value_target + value_end, record + _BODY + header_len, value_len)
            value_end += value_len
    key_offsets[len(positions)] = key_end
    value_offsets[len(positions)] = value_end


@kernel_at_once(rows_at)
def _gather_headers(data: Any, positions: Any, targets: Any, ends: Any) -> None:
    origin = address_of(data)
    for row in range(len(positions)):
        record = origin + positions[row]
        header_len = peek_u32_be(record + _HEADER_LEN)
        envelope.put_headers(targets, ends, row, _look(record, header_len), header_len)
