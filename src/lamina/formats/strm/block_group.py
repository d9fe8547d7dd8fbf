"""Several neighbouring STRM blocks decoded by one call into one set of columns.

Making a batch of Arrow columns costs as much Python time as a third of decoding a block, so callers
that have several blocks in memory read them together. Every check of a single block is made.

Rules.
1. A group is sound as a whole or refused: then its blocks are read one by one, which shows what is
   wrong, and where.
2. Memory is bounded before it is taken: by the sizes in the blocks' headers, which the compressed
   bytes must be able to fill, and by `GROUP_BYTES_MAX`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.kernels import lz4
from lamina.formats.kernels.binary import address_of, as_bytes, peek_u32_be
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.strm import block, record_codec
from lamina.formats.strm.layout import (
    BLOCK,
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS_MAX,
    RECORD_BYTES_MIN,
    Compression,
    Segment,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

GROUP_BLOCKS = 4
GROUP_BYTES_MAX = 8 << 20
_HEADER = BLOCK.size
_COMPRESSED_SIZE = BLOCK.at("compressed_size")
_RECORD_COUNT = BLOCK.at("record_count")
_NONE, _LZ4 = int(Compression.NONE), int(Compression.LZ4)


class Group(NamedTuple):
    """The records of some neighbouring blocks, and what is known of each block."""

    batch: pa.RecordBatch
    rows: NDArray[np.int64]
    min_timestamps_ms: NDArray[np.int64]
    max_timestamps_ms: NDArray[np.int64]


def read_group(segment: Segment, first: int, end: int, buffer: Buffer) -> Group | None:
    """Decodes the blocks from one up to another from exactly their bytes.

    None where anything is wrong, or they are too large to be read together.
    """
    header = segment.header
    compression = int(header.coding.compression)
    if compression not in (_NONE, _LZ4) or not segment.unreadable.isdisjoint(range(first, end)):
        return None
    data = as_bytes(buffer)
    index = (segment.positions, segment.offsets, segment.footer.index_offset)
    rows, raw_bytes = _measure(data, index, (first, end), compression)
    if rows < 0 or raw_bytes > GROUP_BYTES_MAX:
        return None
    columns = record_codec.Columns(rows, raw_bytes)
    has_holes = header.record_count != header.max_offset - header.base_offset + 1
    claims = (header.max_offset, has_holes, header.min_timestamp_ms, header.max_timestamp_ms)
    facts = np.empty((3, end - first), dtype=np.int64)
    is_good, ends = _read(
        data, index, (first, end, compression, rows), claims, columns.places, facts
    )
    columns.key_bytes, columns.key_count, columns.value_bytes = ends
    if not is_good:
        return None
    is_enveloped = header.coding.enveloped
    if is_enveloped and columns.check_envelopes()[0] != record_codec.FINE:
        return None
    return Group(columns.batch(enveloped=is_enveloped), *facts)


@inlined
def _edges(index: Any, number: int, first: int) -> tuple[int, int]:
    """Where a block starts and ends in the bytes of a group."""
    positions, _, index_offset = index
    end = positions[number + 1] if number + 1 < len(positions) else np.int64(index_offset)
    return positions[number] - positions[first], end - positions[first]


@kernel
def _measure(data: Any, index: Any, span: Any, compression: int) -> tuple[int, int]:
    """How many records and raw bytes some blocks claim to hold; -1 where that cannot be."""
    origin = address_of(data)
    rows, raw_bytes, end = 0, 0, 0
    for number in range(span[0], span[1]):
        start, end = _edges(index, number, span[0])
        if start < 0 or end - start < _HEADER or end > len(data):
            return -1, 0
        raw_size = peek_u32_be(origin + start)
        size = peek_u32_be(origin + start + _COMPRESSED_SIZE)
        count = peek_u32_be(origin + start + _RECORD_COUNT)
        if size != end - start - _HEADER or raw_size > BLOCK_BYTES_MAX:
            return -1, 0
        if count > raw_size // RECORD_BYTES_MIN or count > BLOCK_RECORDS_MAX:
            return -1, 0
        if raw_size > (lz4.RATIO_MAX * size if compression == _LZ4 else size):
            return -1, 0
        rows += count
        raw_bytes += raw_size
    return (rows if end == len(data) else -1), raw_bytes


@inlined
def _agrees(index: Any, number: int, claims: Any, count: int, found: Any) -> bool:
    """Compares a block with header and index, as reading a single one does."""
    _, offsets, _ = index
    max_offset, has_holes, time_min, time_max = claims
    last_offset, least, most = found
    is_last = number + 1 == len(offsets)
    last_possible = np.int64(max_offset) if is_last else offsets[number + 1] - 1
    if last_offset > last_possible or (is_last and last_offset != max_offset):
        return False
    if not has_holes and count - 1 != last_possible - offsets[number]:
        return False
    if time_min == 0 and time_max == 0:
        return True
    return bool(least >= time_min and most <= time_max)


@kernel
def _read(data: Any, index: Any, span: Any, claims: Any, places: Any, facts: Any) -> Any:
    """Reads blocks behind each other: (whether all are sound, the ends of keys and values).

    Each is decompressed above the values of those before it, which it can only move down to.
    """
    first, end, compression, rows = span
    columns = record_codec.addresses(places, rows)
    source, target = address_of(data), address_of(places[0])
    ends = (0, 0, 0)
    row = 0
    for number in range(first, end):
        start, stop = _edges(index, number, first)
        at, length = source + start, stop - start
        verdict, found = block.check(at, length, compression)
        if verdict != block.GOOD or found != length:
            return False, ends
        raw_size = peek_u32_be(at)
        count = peek_u32_be(at + _RECORD_COUNT)
        begin, limit = at + _HEADER, at + length
        if compression == _LZ4:
            begin += block.LZ4_PREFIX_BYTES
            if not lz4.decode_at(begin, limit, target, target + raw_size):
                return False, ends
            begin, limit = target, target + raw_size
        target += raw_size
        code, _, ends, seen = record_codec.read_all(
            begin, limit, columns, (row, count, index[1][number]), ends
        )
        if code != record_codec.FINE or not _agrees(index, number, claims, count, seen):
            return False, ends
        row += count
        facts[0, number - first] = count
        facts[1, number - first] = seen[1]
        facts[2, number - first] = seen[2]
    return True, ends
