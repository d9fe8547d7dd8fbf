"""Reading a STRM block: header, checksum, decompression, records (tables: layout.py, write.py).

The checksum covers the compressed bytes only, so sizes and counts are checked against each other:
a block whose checksum was made to fit still cannot make a reader allocate more than
`BLOCK_BYTES_MAX` and the columns of `BLOCK_RECORDS_MAX` records, read outside the
block or return bytes that nobody wrote.

Rules.
1. `check` judges everything that can be judged without decompressing; `decode_block` the rest.
2. A bad block raises CorruptData from `decode_block`; nothing of it is returned.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats import arrow, envelope
from lamina.formats.binary import (
    address_of,
    as_bytes,
    copy,
    peek_u8,
    peek_u32,
    peek_u32_be,
    wrapping_add,
)
from lamina.formats.compile import inlined, kernel
from lamina.formats.crc import crc32
from lamina.formats.scan import OFFSET_MAX, Stop
from lamina.formats.strm import lz4
from lamina.formats.strm.layout import (
    BLOCK,
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS_MAX,
    RECORD_BYTES_MIN,
    Coding,
    Compression,
)
from lamina.records import HEADERS, OUTPUT_SCHEMAS, TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

GOOD = -1
LZ4_PREFIX_BYTES = 4
SCRATCH_BYTES_MAX = 2 << 20
"""Twice what a writer by the document puts into a block."""

_HEADER = BLOCK.size
_COMPRESSED_SIZE = BLOCK.at("compressed_size")
_RECORD_COUNT = BLOCK.at("record_count")
_CRC32 = BLOCK.at("crc32")
_NONE, _LZ4 = int(Compression.NONE), int(Compression.LZ4)
_TORN = int(Stop.TORN)
_BAD_LENGTH = int(Stop.BAD_LENGTH)
_BAD_CHECKSUM = int(Stop.BAD_CHECKSUM)
_PROBLEMS = {
    _TORN: "the block is cut off",
    _BAD_LENGTH: "sizes and counts of the block contradict",
    _BAD_CHECKSUM: "the block's checksum does not fit",
}

# What reading the records of a block can find.
_FINE, _BAD_VARINT, _BAD_OFFSET, _BAD_KEY, _BAD_VALUE, _LEFTOVER, _BAD_ENVELOPE = range(7)
_RECORD_PROBLEMS = {
    _BAD_VARINT: "a number that does not end in 10 bytes or in the block",
    _BAD_OFFSET: "an offset that does not rise",
    _BAD_KEY: "a key length that does not fit",
    _BAD_VALUE: "a value length that does not fit",
    _LEFTOVER: "bytes after the last record",
    _BAD_ENVELOPE: "a value without a proper envelope",
}


class _Slots(NamedTuple):
    """A variable column before its bytes are copied: where each row's are, and where they go."""

    starts: NDArray[np.int32]
    offsets: NDArray[np.int32]
    bits: NDArray[np.uint8]

    @classmethod
    def with_room(cls, rows: int) -> _Slots:
        offsets = np.empty(rows + 1, dtype=np.int32)
        return cls(np.empty(rows, dtype=np.int32), offsets, arrow.bitmap(rows))


def crc32_of(data: NDArray[np.uint8]) -> int:
    """Returns the CRC-32 of bytes, several times faster than zlib's."""
    return int(_crc32_of(read_only(data)))


def read_only(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Views bytes as the one type of array that the reading kernels are compiled for."""
    view = data[:]
    view.setflags(write=False)
    return view


@kernel
def _crc32_of(data: Any) -> Any:
    return crc32(address_of(data), len(data))


@inlined
def check(block: int, remaining: int, compression: int) -> tuple[int, int]:
    """Judges the block at an address: (GOOD or a `Stop`, its length with the header)."""
    if remaining < _HEADER:
        return _TORN, 0
    raw_size = peek_u32_be(block)
    size = peek_u32_be(block + _COMPRESSED_SIZE)
    count = peek_u32_be(block + _RECORD_COUNT)
    if raw_size == 0 and size == 0 and count == 0:
        return _TORN, 0
    # What no compressor exceeds: an incompressible block grows by 1/255 (LZ4) or 1/256 (Zstd).
    if raw_size > BLOCK_BYTES_MAX or size > raw_size + (raw_size >> 7) + 128:
        return _BAD_LENGTH, 0
    if count < 1 or count > raw_size // RECORD_BYTES_MIN or count > BLOCK_RECORDS_MAX:
        return _BAD_LENGTH, 0
    if compression == _NONE and size != raw_size:
        return _BAD_LENGTH, 0
    if size > remaining - _HEADER:
        return _TORN, 0
    payload = block + _HEADER
    if compression == _LZ4:
        if size <= LZ4_PREFIX_BYTES or peek_u32(payload) != raw_size:
            return _BAD_LENGTH, 0
        if raw_size > lz4.RATIO_MAX * (size - LZ4_PREFIX_BYTES):
            return _BAD_LENGTH, 0
    if peek_u32_be(block + _CRC32) != crc32(payload, size):
        return _BAD_CHECKSUM, 0
    return GOOD, _HEADER + size


@kernel
def _check(data: Any, compression: int) -> tuple[int, int]:
    return check(address_of(data), len(data), compression)


def decode_block(
    buffer: Buffer, base_offset: int, coding: Coding, *, position: int = 0
) -> pa.RecordBatch:
    """Decodes one block: exactly its header and its payload.

    `base_offset` is what the index says of the block. `position` is where the block lies in the
    object, for the error message. Raises CorruptData for a block that is not sound in every field.
    """
    data = as_bytes(buffer)
    verdict, length = _check(data, int(coding.compression))
    if verdict == GOOD and length != len(data):
        verdict = _BAD_LENGTH
    if verdict != GOOD:
        raise CorruptData(
            _PROBLEMS[verdict],
            position=position,
            expected=f"a whole block of {len(data)} bytes",
            found=str(BLOCK.unpack(buffer) if len(data) >= _HEADER else len(data)),
        )
    header = BLOCK.unpack(buffer)
    raw = _decompress(data, header["uncompressed_size"], coding.compression, position)
    return _decode_records(raw, header["record_count"], base_offset, coding, position)


def _decompress(
    data: NDArray[np.uint8], size: int, compression: Compression, position: int
) -> NDArray[np.uint8]:
    if compression is Compression.NONE:
        return data[_HEADER:]
    if compression is Compression.LZ4:
        raw = _scratch(size)
        if not lz4.decode(data, _HEADER + LZ4_PREFIX_BYTES, raw):
            raise _undecodable(position, size, "another LZ4 block, or none")
        return read_only(raw)
    try:
        return as_bytes(pa.Codec("zstd").decompress(data[_HEADER:], decompressed_size=size))
    except OSError as error:
        raise _undecodable(position, size, str(error)) from error


class _Scratch(threading.local):
    """Each thread's room for one block's records: they are copied out before the next block.

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
    return _SCRATCH.room[:size]


def _undecodable(position: int, size: int, found: str) -> CorruptData:
    return CorruptData(
        "the block does not decompress",
        position=position,
        expected=f"{size} bytes",
        found=found,
    )


def _decode_records(
    raw: NDArray[np.uint8], rows: int, base_offset: int, coding: Coding, position: int
) -> pa.RecordBatch:
    offsets = np.empty(rows, dtype=np.int64)
    timestamps = np.empty(rows, dtype=np.int64)
    keys, values = _Slots.with_room(rows), _Slots.with_room(rows)
    code, row = _scan_records(raw, base_offset, (offsets, timestamps), keys, values)
    if code == _FINE and coding.enveloped:
        totals = np.zeros(6, dtype=np.int64)
        code, row = _scan_envelopes(raw, values, totals)
    if code != _FINE:
        raise CorruptData(
            f"record {row} of the block: {_RECORD_PROBLEMS[code]}",
            position=position,
            expected=f"{rows} records in {len(raw)} bytes",
            found=f"{row} good ones",
        )
    columns = [
        arrow.number_array(pa.int64(), offsets),
        arrow.number_array(TIMESTAMP, timestamps),
        arrow.binary_array(keys.offsets, _gathered(raw, keys), keys.bits),
    ]
    if coding.enveloped:
        columns += _open_envelopes(raw, values, totals)
    else:
        columns.append(arrow.binary_array(values.offsets, _gathered(raw, values)))
        columns += [pa.nulls(rows, kind) for kind in (HEADERS, pa.binary(), pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=OUTPUT_SCHEMAS["strm"])


def _gathered(raw: NDArray[np.uint8], slots: _Slots) -> NDArray[np.uint8]:
    data = arrow.empty_bytes(int(slots.offsets[-1]))
    if len(data):
        _gather(raw, slots.starts, slots.offsets, data)
    return data


def _open_envelopes(
    raw: NDArray[np.uint8], stored: _Slots, totals: NDArray[np.int64]
) -> list[pa.Array]:
    """Makes the columns value, headers, tag and node from values with envelopes."""
    rows = len(stored.starts)
    value_bytes, tag_bytes, node_bytes, items, name_bytes, header_bytes = totals.tolist()
    targets = tuple(
        (np.empty(rows + 1, dtype=np.int32), arrow.empty_bytes(size), arrow.bitmap(rows))
        for size in (value_bytes, tag_bytes, node_bytes)
    )
    headers = envelope.HeaderArrays.with_room(rows, items, name_bytes, header_bytes)
    ends = np.zeros(3, dtype=np.int64)
    _gather_envelopes(raw, stored, targets, tuple(headers), ends)
    value, tag, node = (arrow.binary_array(*target) for target in targets)
    return [value, headers.column(ends), tag, node]


# ---------------------------------------------------------------- kernels


@inlined
def _varint(at: int, end: int) -> Any:
    """A zigzag varint: (value, the address after it), address 0 if it is not one."""
    if at >= end:
        return 0, 0
    byte = peek_u8(at)
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    last = min(end, at + 10) - 1
    bits = np.uint64(byte & 0x7F)
    shift = np.uint64(0)
    while byte >= 0x80:
        if at == last:
            return 0, 0
        at += 1
        shift += np.uint64(7)
        byte = peek_u8(at)
        bits |= np.uint64(byte & 0x7F) << shift
    if shift == np.uint64(63) and byte > 1:
        return 0, 0
    half = np.int64(bits >> np.uint64(1))
    return half ^ -np.int64(bits & np.uint64(1)), at + 1


@kernel
def _scan_records(
    raw: Any, base_offset: int, numbers: Any, keys: Any, values: Any
) -> tuple[int, int]:
    """Reads every number of a block; finds where the bytes of keys and values lie."""
    offsets, timestamps = numbers
    start = address_of(raw)
    at, end = start, start + len(raw)
    previous, first_timestamp = -1, 0
    delta_max = OFFSET_MAX - base_offset
    key_end, value_end = 0, 0
    for row in range(len(offsets)):
        delta, at = _varint(at, end)
        if at == 0:
            return _BAD_VARINT, row
        if (row == 0 and delta != 0) or delta <= previous or delta > delta_max:
            return _BAD_OFFSET, row  # the first record is the block's base
        offsets[row] = base_offset + delta
        previous = delta
        timestamp, at = _varint(at, end)
        if at == 0:
            return _BAD_VARINT, row
        timestamps[row] = wrapping_add(timestamp, first_timestamp)
        if row == 0:
            first_timestamp = timestamp
        length, at = _varint(at, end)
        if at == 0:
            return _BAD_VARINT, row
        if length < -1 or length > end - at:
            return _BAD_KEY, row
        keys.starts[row] = at - start
        keys.offsets[row] = key_end
        if length >= 0:
            keys.bits[row >> 3] |= np.uint8(1 << (row & 7))
            key_end += length
            at += length
        length, at = _varint(at, end)
        if at == 0:
            return _BAD_VARINT, row
        if length < 0 or length > end - at:
            return _BAD_VALUE, row
        values.starts[row] = at - start
        values.offsets[row] = value_end
        value_end += length
        at += length
    keys.offsets[len(offsets)] = key_end
    values.offsets[len(offsets)] = value_end
    return (_FINE, len(offsets)) if at == end else (_LEFTOVER, len(offsets))


@kernel
def _gather(raw: Any, starts: Any, offsets: Any, data: Any) -> None:
    source, target = address_of(raw), address_of(data)
    for row in range(len(starts)):
        length = np.int64(offsets[row + 1]) - np.int64(offsets[row])
        copy(target + np.int64(offsets[row]), source + np.int64(starts[row]), length)


@inlined
def _stored(raw: int, stored: Any, row: int) -> Any:
    """A value with its envelope: (envelope, its length or -1, value, its length)."""
    at: Any = raw + np.int64(stored.starts[row])
    length = np.int64(stored.offsets[row + 1]) - np.int64(stored.offsets[row])
    if length < 4:
        return at, -1, at, 0
    envelope_len = peek_u32_be(at)
    if envelope_len > length - 4:
        return at, -1, at, 0
    return at + 4, envelope_len, at + 4 + envelope_len, length - 4 - envelope_len


@kernel
def _scan_envelopes(raw: Any, stored: Any, totals: Any) -> tuple[int, int]:
    """Checks every envelope; adds up the bytes of value, tag, node, and of the headers."""
    start = address_of(raw)
    rows = len(stored.starts)
    for row in range(rows):
        at, length, _, value_len = _stored(start, stored, row)
        if length < 0:
            return _BAD_ENVELOPE, row
        view = envelope.look(at, length)
        if view[0] == envelope.FOREIGN or view[0] & envelope.KEY:
            return _BAD_ENVELOPE, row
        if view[0] & envelope.NULL_VALUE and value_len > 0:
            return _BAD_ENVELOPE, row
        totals[0] += value_len
        totals[1] += view[4]
        totals[2] += view[6]
        totals[3] += view[8]
        totals[4] += view[9]
        totals[5] += view[10]
    return _FINE, rows


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
    for row in range(len(stored.starts)):
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
