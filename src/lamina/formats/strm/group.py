"""Several neighbouring STRM blocks decoded by one call into one set of columns.

Making a batch of Arrow columns costs about as much Python as a third of a block's decoding, so
whoever has several blocks in memory reads them together. Every check of a single block is made.

Rules.
1. A group is sound as a whole or it is nothing: then its blocks are read one by one, which says
   what is wrong, and where.
2. Memory is bounded before it is taken: by the sizes in the blocks' headers, which the compressed
   bytes must be able to fill, and by `GROUP_BYTES_MAX`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.binary import address_of, as_bytes, peek_u32_be
from lamina.formats.compile import kernel
from lamina.formats.strm import block, lz4, records
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
_LZ4 = int(Compression.LZ4)


class Group(NamedTuple):
    """The records of some neighbouring blocks, and what is known of each block."""

    batch: pa.RecordBatch
    rows: NDArray[np.int64]
    max_timestamps_ms: NDArray[np.int64]
    min_timestamps_ms: NDArray[np.int64]


def read_group(segment: Segment, first: int, end: int, buffer: Buffer) -> Group | None:
    """Decodes the blocks from one up to another from exactly their bytes.

    None where anything is wrong, or they are too large to be read together.
    """
    coding = segment.header.coding
    if coding.compression is Compression.ZSTD:
        return None
    data = as_bytes(buffer)
    edges = np.append(segment.positions[first:end], segment.block_range(end - 1)[1])
    edges -= edges[0]
    compression = int(coding.compression)
    rows, raw_bytes = _measure(data, edges, compression)
    if rows < 0 or raw_bytes > GROUP_BYTES_MAX or int(edges[-1]) != len(data):
        return None
    columns = records.Columns(rows, raw_bytes)
    bases = segment.offsets[first:end]
    facts = np.empty((4, end - first), dtype=np.int64)
    starts = columns.starts
    is_good, ends = _read(
        data,
        (edges, np.ascontiguousarray(bases), compression),
        (columns.room, columns.numbers, columns.keys),
        (starts[1], starts[2], starts[3], starts[4]),
        (rows, facts),
    )
    columns.key_bytes, columns.key_count, columns.value_bytes = ends
    if not is_good or not _agree(segment, first, end, facts):
        return None
    if coding.enveloped and columns.check_envelopes()[0] != records.FINE:
        return None
    return Group(columns.batch(enveloped=coding.enveloped), facts[0], facts[3], facts[2])


def _agree(segment: Segment, first: int, end: int, facts: NDArray[np.int64]) -> bool:
    """Compares blocks with header and index, as reading a single one does."""
    rows, lasts, least, most = facts
    header = segment.header
    after = header.max_offset + 1
    following = segment.offsets[first + 1 : end + 1]
    if end == len(segment):
        following = np.append(following, after)
        if lasts[-1] != header.max_offset:
            return False
    spans = following - segment.offsets[first:end]
    if (lasts >= following).any():
        return False
    has_holes = header.record_count != after - header.base_offset
    if not has_holes and (rows != spans).any():
        return False
    bounds = header.min_timestamp_ms, header.max_timestamp_ms
    return bounds == (0, 0) or bool((least >= bounds[0]).all() and (most <= bounds[1]).all())


@kernel
def _measure(data: Any, edges: Any, compression: int) -> tuple[int, int]:
    """How many records and raw bytes some blocks claim to hold; -1 where that cannot be."""
    origin = address_of(data)
    rows, raw_bytes = 0, 0
    for number in range(len(edges) - 1):
        start, end = edges[number], edges[number + 1]
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
    return rows, raw_bytes


@kernel
def _read(data: Any, blocks: Any, rooms: Any, positions: Any, wanted: Any) -> Any:
    """Reads blocks behind each other: (whether all are sound, the ends of keys and values).

    Each is decompressed above the values of those before it, which it can only move down to.
    """
    edges, bases, compression = blocks
    room, numbers, keys = rooms
    rows, facts = wanted
    columns = records.addresses(numbers, positions, keys, room, rows)
    source, target = address_of(data), address_of(room)
    ends = (0, 0, 0)
    row = 0
    for number in range(len(bases)):
        at = source + edges[number]
        length = edges[number + 1] - edges[number]
        verdict, found = block.check(at, length, compression)
        if verdict != block.GOOD or found != length:
            return False, ends
        raw_size = peek_u32_be(at)
        count = peek_u32_be(at + _RECORD_COUNT)
        start, limit = at + _HEADER, at + length
        if compression == _LZ4:
            start += block.LZ4_PREFIX_BYTES
            if not lz4.decode_at(start, limit, target, target + raw_size):
                return False, ends
            start, limit = target, target + raw_size
        target += raw_size
        code, _, ends, found_facts = records.read_all(
            start, limit, columns, (row, count, bases[number]), ends
        )
        if code != records.FINE:
            return False, ends
        row += count
        facts[0, number] = count
        facts[1, number] = found_facts[0]
        facts[2, number] = found_facts[1]
        facts[3, number] = found_facts[2]
    return True, ends
