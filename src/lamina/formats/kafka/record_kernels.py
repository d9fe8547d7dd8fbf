"""The records of a batch as Arrow columns and back: one kernel to read, one to write.

    record = length attributes(0) timestampDelta offsetDelta keyLength key valueLength value
             headerCount *(keyLength key valueLength value)          zigzag varints, -1 is null

Reading fills key and value columns that have room for all bytes of the records, which bounds them;
headers are checked and counted in the same pass and gathered by a second one where there are any.
Writing measures every record, then writes them, then the checksum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats import envelope
from lamina.formats.kernels import arrow
from lamina.formats.kernels.binary import (
    address_of,
    copy,
    peek_u8,
    poke_i64_be,
    poke_u8,
    poke_u16_be,
    poke_u32_be,
    wrapping_add,
    wrapping_subtract,
)
from lamina.formats.kernels.crc import crc32c
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.kernels.varint import put_varint, read_varint, varint_size

# What reading the records of a batch can find.
FINE, BAD_VARINT, BAD_LENGTH, BAD_OFFSET, BAD_KEY, BAD_VALUE = range(6)
BAD_HEADER, BAD_NAME, LEFTOVER = range(6, 9)
PROBLEMS = {
    BAD_VARINT: "a number that does not end in 10 bytes or in the batch",
    BAD_LENGTH: "a length that is not that of its fields",
    BAD_OFFSET: "an offset that does not count up from 0",
    BAD_KEY: "a key length that does not fit",
    BAD_VALUE: "a value length that does not fit",
    BAD_HEADER: "a header whose lengths do not fit",
    BAD_NAME: "a header whose name is not UTF-8",
    LEFTOVER: "bytes after the last record",
}
RECORD_BYTES_MIN = 7
HEADER_BYTES = 61
_DELTA_MAX = (1 << 31) - 1
_RECORD_BYTES_MAX = 1 << 30


@inlined
def _look_at_headers(at: int, end: int) -> Any:
    """Checks headers: (problem, address after them, items, bytes of names, bytes of values)."""
    count, at = read_varint(at, end)
    if at == 0:
        return BAD_VARINT, 0, 0, 0, 0
    if count < 0 or count > end - at:
        return BAD_HEADER, 0, 0, 0, 0
    names, values = 0, 0
    for _ in range(count):
        name_len, at = read_varint(at, end)
        if at == 0 or name_len < 0 or name_len > end - at:
            return BAD_HEADER, 0, 0, 0, 0
        if not envelope.is_utf8(at, name_len):
            return BAD_NAME, 0, 0, 0, 0
        value_len, at = read_varint(at + name_len, end)
        if at == 0 or value_len < -1 or value_len > end - at:
            return BAD_HEADER, 0, 0, 0, 0
        names += name_len
        values += max(value_len, 0)
        at += max(value_len, 0)
    return FINE, at, count, names, values


@inlined
def _read_head(at: int, end: int, row: int) -> Any:
    """A record's numbers: (problem, its end, timestamp delta, address of the key's length)."""
    length, at = read_varint(at, end)
    if at == 0:
        return BAD_VARINT, 0, 0, 0
    if length < RECORD_BYTES_MIN - 1 or length > end - at:
        return BAD_LENGTH, 0, 0, 0
    stop = at + length
    delta, at = read_varint(at + 1, stop)  # after the attributes, which nothing uses
    if at == 0:
        return BAD_VARINT, 0, 0, 0
    offset, at = read_varint(at, stop)
    if at == 0:
        return BAD_VARINT, 0, 0, 0
    if offset != row:
        return BAD_OFFSET, 0, 0, 0
    return FINE, stop, delta, at


@inlined
def _take(at: int, stop: int, target: int, bits: Any, row: int) -> Any:
    """Copies a key or a value: (its length or -1, the address after it), address 0 if it is bad."""
    length, at = read_varint(at, stop)
    if at == 0 or length < -1 or length > stop - at:
        return -1, 0
    if length >= 0:
        bits[row >> 3] |= np.uint8(1 << (row & 7))
        copy(target, at, length)
        at += length
    return length, at


@kernel
def read(payload: Any, numbers: Any, rooms: Any, facts: Any, base_timestamp: int) -> Any:
    """Reads all records; returns (FINE or the problem, the row at fault).

    `numbers` is (timestamps, key offsets, value offsets, positions of headers), `rooms` is (keys,
    values, key bits, value bits, timestamp bits), `facts` is filled with the bytes of keys and
    values, how many keys, values and timestamps there are, and the totals of headers.
    """
    timestamps, key_offsets, value_offsets, header_positions = numbers
    keys, values, key_bits, value_bits, time_bits = rooms
    start = address_of(payload)
    at, end = start, start + len(payload)
    rows = len(timestamps)
    key_end, value_end, key_count, value_count, time_count = 0, 0, 0, 0, 0
    items, name_bytes, header_bytes, listed = 0, 0, 0, 0
    key_room, value_room = address_of(keys), address_of(values)
    for row in range(rows):
        code, stop, delta, at = _read_head(at, end, row)
        if code != FINE:
            return code, row
        timestamp = wrapping_add(base_timestamp, delta)
        timestamps[row] = timestamp
        if timestamp != -1:
            time_bits[row >> 3] |= np.uint8(1 << (row & 7))
            time_count += 1
        key_offsets[row] = key_end
        value_offsets[row] = value_end
        length, at = _take(at, stop, key_room + key_end, key_bits, row)
        if at == 0:
            return BAD_KEY, row
        key_end += max(length, 0)
        key_count += length >= 0
        length, at = _take(at, stop, value_room + value_end, value_bits, row)
        if at == 0:
            return BAD_VALUE, row
        value_end += max(length, 0)
        value_count += length >= 0
        header_positions[row] = at - start
        if stop - at == 1 and peek_u8(at) == 0:
            at = stop
            continue
        code, at, count, names, others = _look_at_headers(at, stop)
        if code != FINE:
            return code, row
        if at != stop:
            return BAD_LENGTH, row
        items += count
        name_bytes += names
        header_bytes += others
        listed += count > 0
    key_offsets[rows] = key_end
    value_offsets[rows] = value_end
    facts[0], facts[1], facts[2] = key_end, value_end, key_count
    facts[3], facts[4] = value_count, time_count
    facts[5], facts[6], facts[7], facts[8] = items, name_bytes, header_bytes, listed
    return (FINE if at == end else LEFTOVER), rows


@kernel
def read_headers(payload: Any, header_positions: Any, targets: Any, ends: Any) -> None:
    """Gathers the headers of all records, which `read` has checked.

    A record without headers has a null list: Kafka knows no other way to say that there are none.
    """
    start = address_of(payload)
    end = start + len(payload)
    for row in range(len(header_positions)):
        targets[0][row] = ends[0]
        count, at = read_varint(start + header_positions[row], end)
        if count > 0:
            targets[1][row >> 3] |= np.uint8(1 << (row & 7))
        for _ in range(count):
            name_len, at = read_varint(at, end)
            name = at
            value_len, at = read_varint(at + name_len, end)
            envelope.put_header(targets, ends, name, name_len, at, value_len)
            at += max(value_len, 0)


# ---------------------------------------------------------------- writing


@inlined
def _slot_size(column: Any, row: int) -> Any:
    """The bytes of a length and what follows it; below 0 the batch is broken."""
    if arrow.is_null(column, row):
        return 1
    length = arrow.slot(column, row)[1]
    if length < 0:
        return -1
    return varint_size(length) + length


@inlined
def _put_slot(target: int, column: Any, row: int) -> Any:
    if arrow.is_null(column, row):
        poke_u8(target, 1)  # zigzag of -1
        return target + 1
    source, length = arrow.slot(column, row)
    target = put_varint(target, length)
    copy(target, source, length)
    return target + length


@inlined
def _headers_size(headers: Any, row: int) -> Any:
    """The bytes of a row's headers, with their count; below 0 the batch is broken."""
    lists, names, values, items = headers
    if arrow.is_null(lists, row):
        return 1
    first, last = arrow.span(lists, row)
    if last < first:
        return -1
    size = varint_size(last - first)
    for item in range(first, last):
        if arrow.is_null(items, item) or arrow.is_null(names, item):
            return -1
        name, value = _slot_size(names, item), _slot_size(values, item)
        if name < 0 or value < 0:
            return -1
        size += name + value
    return size


@inlined
def _put_headers(target: int, headers: Any, row: int) -> Any:
    lists, names, values, _ = headers
    if arrow.is_null(lists, row):
        poke_u8(target, 0)
        return target + 1
    first, last = arrow.span(lists, row)
    target = put_varint(target, last - first)
    for item in range(first, last):
        target = _put_slot(target, names, item)
        target = _put_slot(target, values, item)
    return target


@inlined
def _measure(columns: Any, row: int, base: Any) -> Any:
    """The bytes of a record behind its length: (OK, size) or (the problem, the row)."""
    offsets, timestamps, keys, values, headers = columns
    delta = arrow.number(offsets, row) - base[0]
    if arrow.is_null(timestamps, row):
        return arrow.NULL_TIME, row
    if delta < 0 or delta > _DELTA_MAX:
        return arrow.BROKEN, row
    key, value, others = _slot_size(keys, row), _slot_size(values, row), _headers_size(headers, row)
    if key < 0 or value < 0 or others < 0:
        return arrow.BROKEN, row
    elapsed = wrapping_subtract(arrow.number(timestamps, row), base[1])
    size = 1 + varint_size(elapsed) + varint_size(delta) + key + value + others
    if size > _RECORD_BYTES_MAX:
        return arrow.TOO_LARGE, row
    return arrow.OK, size


@kernel
def write(batch: int, out: Any, sizes: Any, last_offset: int, attributes: int) -> tuple[int, int]:
    """Writes one batch: (OK, its bytes), (NO_ROOM, the bytes needed) or (a problem, the row).

    The columns are offset, timestamp, key, value, headers. The batch reaches to `last_offset`, at
    least to that of its last record.
    """
    rows = arrow.length_of(batch)
    columns = (
        *(arrow.fixed_column(batch, 0), arrow.fixed_column(batch, 1)),
        *(arrow.column(batch, 2), arrow.column(batch, 3), envelope.header_columns(batch, 4)),
    )
    if rows == 0 or rows > len(sizes):
        return arrow.BROKEN, 0
    offsets, timestamps, keys, values, headers = columns
    first = arrow.number(offsets, 0)
    base = (first, arrow.number(timestamps, 0))
    needed = HEADER_BYTES
    for row in range(rows):
        code, size = _measure(columns, row, base)
        if code != arrow.OK:
            return code, size
        sizes[row] = size
        needed += varint_size(size) + size
    last = max(last_offset, arrow.number(offsets, rows - 1))
    if needed > _RECORD_BYTES_MAX or last - first > _DELTA_MAX:
        return arrow.TOO_LARGE, rows - 1
    if needed > len(out):
        return arrow.NO_ROOM, needed
    start = address_of(out)
    at: Any = start + HEADER_BYTES
    newest = base[1]
    for row in range(rows):
        timestamp = arrow.number(timestamps, row)
        newest = max(newest, timestamp)
        at = put_varint(at, sizes[row])
        poke_u8(at, 0)
        at = put_varint(at + 1, wrapping_subtract(timestamp, base[1]))
        at = put_varint(at, arrow.number(offsets, row) - first)
        at = _put_slot(at, keys, row)
        at = _put_slot(at, values, row)
        at = _put_headers(at, headers, row)
    _put_head(start, needed, (first, last - first, rows), (base[1], newest), attributes)
    return arrow.OK, needed


@inlined
def _put_head(start: int, size: int, offsets: Any, times: Any, attributes: int) -> None:
    poke_i64_be(start, offsets[0])
    poke_u32_be(start + 8, size - 12)
    poke_u32_be(start + 12, 0)
    poke_u8(start + 16, 2)
    poke_u16_be(start + 21, attributes)
    poke_u32_be(start + 23, offsets[1])
    poke_i64_be(start + 27, times[0])
    poke_i64_be(start + 35, times[1])
    poke_i64_be(start + 43, -1)
    poke_u16_be(start + 51, -1)
    poke_u32_be(start + 53, -1)
    poke_u32_be(start + 57, offsets[2])
    poke_u32_be(start + 17, crc32c(start + 21, size - 21))
