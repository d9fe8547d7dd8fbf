"""The records of a STRM block as Arrow columns, read in one pass.

    LZ4 ──▶ room for the block ──numbers, keys──▶ columns, scratch
            values move down in the same room, over the numbers before them

So the room becomes the value column as it is, and no other megabyte is touched.

Rules.
1. Values move only to where records were read already.
2. Every length is checked against what the block holds before a byte is copied by it.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats import envelope
from lamina.formats.kernels import arrow, lz4
from lamina.formats.kernels.binary import (
    address_of,
    copy,
    copy_32,
    move,
    peek_i64,
    peek_u32_be,
    poke_i64,
    poke_u32,
    wrapping_add,
)
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.kernels.varint import read_varint
from lamina.formats.scan import OFFSET_MAX
from lamina.records import OUTPUT_SCHEMAS, TIMESTAMP

SCRATCH_BYTES_MAX = 8 << 20
"""Twice what a writer by the document puts into the blocks that are read together."""

# What reading the records of a block can find.
FINE, BAD_VARINT, BAD_OFFSET, BAD_KEY, BAD_VALUE, LEFTOVER, BAD_ENVELOPE, UNDECODABLE = range(8)
PROBLEMS = {
    BAD_VARINT: "a number that does not end in 10 bytes or in the block",
    BAD_OFFSET: "an offset that does not rise",
    BAD_KEY: "a key length that does not fit",
    BAD_VALUE: "a value length that does not fit",
    LEFTOVER: "bytes after the last record",
    BAD_ENVELOPE: "a value without a proper envelope",
}
# Most records of a large block: three numbers of two bytes, and no key (-1) before the last one.
_USUAL_MASK, _USUAL = 0x80_81_FF_80_80_80_81, 0x00_80_01_00_80_00_80
_SCHEMA = OUTPUT_SCHEMAS["strm"]
_TIME_MIN, _TIME_MAX = -(1 << 63), (1 << 63) - 1


class _Scratch(threading.local):
    """Each thread's room for the keys of one block: they are copied out before the next one.

    A fresh megabyte for every block would cost more, in page faults, than decoding it.
    """

    room = np.empty(0, dtype=np.uint8)


_SCRATCH = _Scratch()


def _scratch(size: int) -> NDArray[np.uint8]:
    """Returns bytes to fill that hold until the next call in this thread; large ones are new."""
    if size > SCRATCH_BYTES_MAX:
        return arrow.empty_bytes(size)
    if len(_SCRATCH.room) < size:
        _SCRATCH.room = np.empty(SCRATCH_BYTES_MAX, dtype=np.uint8)
    return _SCRATCH.room


_NULL_ROWS = 1 << 14
_NULLS = {name: pa.nulls(_NULL_ROWS, _SCHEMA.field(name).type) for name in ("key", "headers")}


def _nulls(name: str, rows: int) -> pa.Array:
    if rows > _NULL_ROWS:
        return pa.nulls(rows, _SCHEMA.field(name).type)
    return _NULLS[name].slice(0, rows)


class Columns:
    """The columns of one block of known size and count, to be filled and then made a batch."""

    def __init__(self, rows: int, raw_bytes: int) -> None:
        self.rows = rows
        self.data = pa.allocate_buffer(raw_bytes)
        self.room = np.frombuffer(self.data, dtype=np.uint8)
        sizes = (8 * rows, 8 * rows, 4 * (rows + 1), 4 * (rows + 1), (rows + 7) >> 3)
        self.starts = [0]
        for size in sizes:
            self.starts.append(self.starts[-1] + (size + 63 & ~63))
        self.buffer = pa.allocate_buffer(self.starts[-1])
        self.keys = _scratch(raw_bytes)
        numbers = np.frombuffer(self.buffer, dtype=np.uint8)
        self.places = (self.room, numbers, self.keys, tuple(self.starts[1:5]))
        self.key_bytes = self.key_count = self.value_bytes = 0
        self.totals = np.zeros(6, dtype=np.int64)

    def fill(
        self, payload: NDArray[np.uint8], base_offset: int, *, is_lz4: bool
    ) -> tuple[int, int, tuple[int, int, int]]:
        """Reads all records from the bytes of the block, or from its LZ4 block.

        Returns (FINE or the problem, the row, (last offset, smallest and largest timestamp)).
        """
        read = _read_lz4 if is_lz4 else _read_plain
        code, row, ends, facts = read(payload, self.places, (self.rows, base_offset))
        self.key_bytes, self.key_count, self.value_bytes = ends
        return code, row, facts

    def check_envelopes(self) -> tuple[int, int]:
        """Looks at every value's envelope: (FINE or BAD_ENVELOPE, the row)."""
        code, row = _scan_envelopes(self.room, self._value_offsets(), self.totals)
        return code, row

    def batch(self, *, enveloped: bool) -> pa.RecordBatch:
        """Makes the batch of what was filled."""
        columns = [
            pa.Array.from_buffers(pa.int64(), self.rows, [None, self._part(0)]),
            pa.Array.from_buffers(TIMESTAMP, self.rows, [None, self._part(1)]),
            self._key_column(),
        ]
        if enveloped:
            columns += self._open_envelopes()
        else:
            data = self.data
            if self.value_bytes < len(self.room) >> 1:  # or a small column would hold all of it
                data = pa.py_buffer(self.room[: self.value_bytes].copy())
            columns.append(
                pa.Array.from_buffers(pa.binary(), self.rows, [None, self._part(3), data])
            )
            nothing = _nulls("key", self.rows)
            columns += [_nulls("headers", self.rows), nothing, nothing]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _part(self, number: int) -> pa.Buffer:
        start = self.starts[number]
        return self.buffer.slice(start, self.starts[number + 1] - start)

    def _key_column(self) -> pa.Array:
        if self.key_count == 0:
            return _nulls("key", self.rows)
        data = arrow.empty_bytes(self.key_bytes)
        data[:] = self.keys[: self.key_bytes]
        buffers = [self._part(4), self._part(2), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), self.rows, buffers)

    def _value_offsets(self) -> NDArray[np.int32]:
        return np.frombuffer(self._part(3), dtype=np.int32, count=self.rows + 1)

    def _open_envelopes(self) -> list[pa.Array]:
        """Makes the columns value, headers, tag and node from values with envelopes."""
        rows = self.rows
        value_bytes, tag_bytes, node_bytes, items, name_bytes, header_bytes = self.totals.tolist()
        targets = tuple(
            (np.empty(rows + 1, dtype=np.int32), arrow.empty_bytes(size), arrow.bitmap(rows))
            for size in (value_bytes, tag_bytes, node_bytes)
        )
        headers = envelope.HeaderArrays.with_room(rows, items, name_bytes, header_bytes)
        ends = np.zeros(3, dtype=np.int64)
        _gather_envelopes(self.room, self._value_offsets(), targets, tuple(headers), ends)
        value, tag, node = (arrow.binary_array(*target) for target in targets)
        return [value, headers.column(ends), tag, node]


# ---------------------------------------------------------------- kernels


@inlined
def _copy_down(target: int, source: int, length: int, ends: tuple[int, int]) -> None:
    """Copies bytes to a lower address or to another room; `ends` are those of both rooms.

    In vectors where what they write too much is nothing yet, or was read.
    """
    apart = source - target
    if (
        (apart >= 64 or apart < 0)
        and ends[0] - target >= length + 64
        and ends[1] - source >= length + 64
    ):
        done = target + length
        copy_32(target, source)
        target += 32 - (target & 31)  # stores that straddle two lines cost twice as much
        source = target + apart
        while target < done:
            copy_32(target, source)
            copy_32(target + 32, source + 32)
            target += 64
            source += 64
    else:
        move(target, source, length)


@inlined
def _two_bytes(word: int) -> int:
    """The zigzag varint in the lowest two bytes of a word."""
    bits = word & 0x7F | (word & 0x7F00) >> 1
    return bits >> 1 ^ -(bits & 1)


@inlined
def _two_bytes_above(word: int) -> int:
    """The zigzag varint in the lowest two bytes of a word, known not to be negative."""
    return (word & 0x7E) >> 1 | (word & 0x7F00) >> 2


@inlined
def _read_head(at: int, end: int) -> Any:
    """A record's numbers: (problem, (offset delta, time), (key, value length), their addresses)."""
    if end - at >= 8:
        word = peek_i64(at)
        if word & _USUAL_MASK == _USUAL:
            delta, timestamp = _two_bytes_above(word), _two_bytes(word >> 16)
            value_len = _two_bytes_above(word >> 40)
            if value_len <= end - at - 7:
                return FINE, (delta, timestamp), (-1, value_len), (at + 4, at + 7)
    delta, at = read_varint(at, end)
    if at == 0:
        return BAD_VARINT, (0, 0), (0, 0), (0, 0)
    timestamp, at = read_varint(at, end)
    if at == 0:
        return BAD_VARINT, (0, 0), (0, 0), (0, 0)
    key_len, at = read_varint(at, end)
    if at == 0:
        return BAD_VARINT, (0, 0), (0, 0), (0, 0)
    if key_len < -1 or key_len > end - at:
        return BAD_KEY, (0, 0), (0, 0), (0, 0)
    key = at
    value_len, at = read_varint(at + max(key_len, 0), end)
    if at == 0:
        return BAD_VARINT, (0, 0), (0, 0), (0, 0)
    if value_len < 0 or value_len > end - at:
        return BAD_VALUE, (0, 0), (0, 0), (0, 0)
    return FINE, (delta, timestamp), (key_len, value_len), (key, at)


@inlined
def read_all(at: int, end: int, columns: Any, block: Any, ends: Any) -> Any:
    """Reads the records between two addresses; returns what `Columns.fill` needs.

    `columns` are addresses, see `addresses`. `block` is (first row, rows, base offset), `ends` how
    far keys and values were filled before.
    """
    offsets, timestamps, key_offsets, value_offsets, key_bits, keys, values = columns
    first_row, rows, base_offset = block
    row, previous, first_timestamp = first_row, -1, 0
    rows += first_row
    key_end, key_count, value_end = ends
    least, most = _TIME_MAX, _TIME_MIN
    delta_max = OFFSET_MAX - base_offset
    code = FINE
    while row < rows:
        code, numbers, lengths, starts = _read_head(at, end)
        if code != FINE:
            break
        delta, timestamp = numbers
        key_len, value_len = lengths
        if (row == first_row and delta != 0) or delta <= previous or delta > delta_max:
            code = BAD_OFFSET  # the first record is the block's base
            break
        poke_i64(offsets + 8 * row, base_offset + delta)
        timestamp = wrapping_add(timestamp, first_timestamp)
        poke_i64(timestamps + 8 * row, timestamp)
        least, most = min(least, timestamp), max(most, timestamp)
        poke_u32(key_offsets + 4 * row, key_end)
        poke_u32(value_offsets + 4 * row, value_end)
        if key_len >= 0:
            key_bits[row >> 3] |= np.uint8(1 << (row & 7))
            _copy_down(keys[0] + key_end, starts[0], key_len, (keys[1], end))
            key_end += key_len
            key_count += 1
        _copy_down(values[0] + value_end, starts[1], value_len, (values[1], end))
        if row == first_row:
            first_timestamp = timestamp
        value_end += value_len
        previous = delta
        at = starts[1] + value_len
        row += 1
    if code == FINE and at != end:
        code = LEFTOVER
    poke_u32(key_offsets + 4 * rows, key_end)
    poke_u32(value_offsets + 4 * rows, value_end)
    ends = (key_end, key_count, value_end)
    return code, row - first_row, ends, (base_offset + previous, least, most)


@inlined
def addresses(places: Any, rows: int) -> Any:
    """The addresses that `read_all` writes to, each with its end where lengths vary."""
    values, numbers, keys, positions = places
    start = address_of(numbers)
    bits = numbers[positions[3] : positions[3] + (rows + 7 >> 3)]
    bits[:] = 0
    return (
        *(start, start + positions[0], start + positions[1], start + positions[2], bits),
        (address_of(keys), address_of(keys) + len(keys)),
        (address_of(values), address_of(values) + len(values)),
    )


@kernel
def _read_plain(payload: Any, places: Any, block: Any) -> Any:
    columns = addresses(places, block[0])
    source = address_of(payload)
    place = (0, block[0], block[1])
    return read_all(source, source + len(payload), columns, place, (0, 0, 0))


@kernel
def _read_lz4(payload: Any, places: Any, block: Any) -> Any:
    source, room = address_of(payload), places[0]
    origin, limit = address_of(room), address_of(room) + len(room)
    if not lz4.decode_at(source, source + len(payload), origin, limit):
        return UNDECODABLE, 0, (0, 0, 0), (0, 0, 0)
    columns = addresses(places, block[0])
    return read_all(origin, limit, columns, (0, block[0], block[1]), (0, 0, 0))


@inlined
def _stored(raw: int, offsets: Any, row: int) -> Any:
    """A value with its envelope: (envelope, its length or -1, value, its length)."""
    at: Any = raw + np.int64(offsets[row])
    length = np.int64(offsets[row + 1]) - np.int64(offsets[row])
    if length < 4:
        return at, -1, at, 0
    envelope_len = peek_u32_be(at)
    if envelope_len > length - 4:
        return at, -1, at, 0
    return at + 4, envelope_len, at + 4 + envelope_len, length - 4 - envelope_len


@kernel
def _scan_envelopes(raw: Any, offsets: Any, totals: Any) -> tuple[int, int]:
    """Checks every envelope; adds up the bytes of value, tag, node, and of the headers."""
    start = address_of(raw)
    rows = len(offsets) - 1
    for row in range(rows):
        at, length, _, value_len = _stored(start, offsets, row)
        if length < 0:
            return BAD_ENVELOPE, row
        view = envelope.look(at, length)
        if view[0] == envelope.FOREIGN or view[0] & envelope.KEY:
            return BAD_ENVELOPE, row
        if view[0] & envelope.NULL_VALUE and value_len > 0:
            return BAD_ENVELOPE, row
        totals[0] += value_len
        totals[1] += view[4]
        totals[2] += view[6]
        totals[3] += view[8]
        totals[4] += view[9]
        totals[5] += view[10]
    return FINE, rows


@inlined
def _put_slot(target: Any, row: int, end: int, present: bool, source: int, length: int) -> int:
    offsets, data, bits = target
    offsets[row] = end
    if present:
        bits[row >> 3] |= np.uint8(1 << (row & 7))
        copy(address_of(data) + end, source, length)
        end += length
    offsets[row + 1] = end
    return end


@kernel
def _gather_envelopes(raw: Any, stored: Any, targets: Any, headers: Any, ends: Any) -> None:
    start = address_of(raw)
    value_end, tag_end, node_end = 0, 0, 0
    for row in range(len(stored) - 1):
        at, length, value, value_len = _stored(start, stored, row)
        view = envelope.look(at, length)
        flags = view[0]
        present = flags & envelope.NULL_VALUE == 0
        value_end = _put_slot(targets[0], row, value_end, present, value, value_len)
        present = flags & envelope.TAG != 0
        tag_end = _put_slot(targets[1], row, tag_end, present, view[3], view[4])
        present = flags & envelope.NODE != 0
        node_end = _put_slot(targets[2], row, node_end, present, view[5], view[6])
        envelope.put_headers(headers, ends, row, view, length)
