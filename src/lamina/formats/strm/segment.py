"""Reading a whole STRM object, or its parts as range requests bring them.

A reader of ranges fetches the last 32 bytes (`decode_footer`), the index and the first 64 bytes
(`decode_header`, `decode_index`), then any block (`Segment.block_range`, `read_block`). A reader
that has the whole object uses `open_segment` and `read_from`; `verify` checks everything there is.

What a reader of ranges cannot see: the header and the index are under the file's checksum only.
Damage there that contradicts neither the sizes, nor the neighbours, nor the blocks goes unnoticed
until `verify` (format page, "What protects what").

Rules.
1. `scan` never raises on bad bytes; it stops and returns why.
2. Everything else raises CorruptData.
3. Of a whole object the checksum is verified first: NewerFormat means that its bytes are as they
   were written. An unknown version, flag or reserved byte is damage in any other object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents.flips import is_one_flip
from lamina.formats.kernels.binary import address_of, as_bytes
from lamina.formats.kernels.declare import kernel
from lamina.formats.scan import WHOLE, Scan, Stop, refuse_start, walk
from lamina.formats.strm import block, block_group
from lamina.formats.strm.layout import (
    BLOCK_BYTES_MIN,
    FOOTER,
    HEADER,
    UNCOVERED_BYTES,
    Segment,
    decode_footer,
    decode_header,
    decode_index,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_END = int(Stop.END)
_LIMIT = int(Stop.LIMIT)


def scan(buffer: Buffer, start: int = HEADER.size) -> Scan:
    """Walks the blocks of an object from the block at `start`, checking sizes and checksums.

    Ends at the index where the footer is sound. Without a footer it walks as far as blocks are
    sound, and an object that ends there is torn. `decode_block` checks what is inside a block.
    """
    data = memoryview(buffer)
    refuse_start(start, max(len(data), HEADER.size))
    nothing = np.empty(0, dtype=np.int64)
    try:
        header = decode_header(data)
    except NewerFormat:
        stop = Stop.BAD_VERSION if has_own_checksum(data) else Stop.BAD_CHECKSUM
        return Scan(nothing, min(start, len(data)), stop)
    except CorruptData:
        short = len(data) < HEADER.size
        return Scan(nothing, min(start, len(data)), Stop.TORN if short else Stop.BAD_MAGIC)
    try:
        end, has_footer = decode_footer(data[-FOOTER.size :], len(data)).index_offset, True
    except CorruptData:
        end, has_footer = len(data), False
    state = (start, 0, int(header.coding.compression))
    positions, _, after, stop = walk(
        _scan, as_bytes(data[: max(end, start)]), state, WHOLE, BLOCK_BYTES_MIN
    )
    if has_footer and stop is Stop.TORN:
        stop = Stop.BAD_LENGTH
    elif not has_footer and stop is Stop.END:
        stop = Stop.TORN
    return Scan(positions, after[0], stop)


@kernel
def _scan(
    data: Any, positions: Any, _: Any, state: tuple[int, int, int], bounds: tuple[int, int]
) -> Any:
    """Bounded by the object alone: its bytes are those of one file."""
    position, count, compression = state
    origin = address_of(data)
    stop = _END
    while position < len(data):
        if count == len(positions):
            stop = _LIMIT
            break
        verdict, length = block.check(origin + position, len(data) - position, compression)
        if verdict != block.GOOD:
            stop = verdict
            break
        positions[count] = position
        count += 1
        position += length
    return (position, count, compression), stop, 0


def open_segment(buffer: Buffer) -> Segment:
    """Checks header, footer and index of a whole object against each other."""
    data = memoryview(buffer)
    try:
        header = decode_header(data)
        footer = decode_footer(data[-FOOTER.size :], len(data))
    except NewerFormat as error:
        if is_newer(data):
            raise
        raise CorruptData(f"the object is damaged: {error.problem}", position=error.position) from (
            error
        )
    return decode_index(data[footer.index_offset : -FOOTER.size], header, footer)


def has_own_checksum(buffer: Buffer) -> bool:
    """Returns whether the checksum at an object's end fits all that is before it."""
    data = memoryview(buffer)
    if len(data) < HEADER.size + FOOTER.size:
        return False
    stored = FOOTER.unpack(data[-FOOTER.size :])["file_crc"]
    return block.crc32_of(as_bytes(data[:-UNCOVERED_BYTES])) == int(stored)


def is_newer(buffer: Buffer) -> bool:
    """Returns whether an object that is not understood is a newer one, and not a damaged one.

    The checksum does not cover the reserved bytes behind it: one bit there is a flipped one.
    """
    data = memoryview(buffer)
    if not has_own_checksum(data):
        return False
    try:
        decode_header(data)
    except NewerFormat:
        return True
    except CorruptData:
        return False
    reserved = FOOTER.unpack(data[-FOOTER.size :])["reserved"]
    return any(reserved) and not is_one_flip(reserved, bytes(len(reserved)))


def check_file(buffer: Buffer, segment: Segment) -> None:
    """Checks a whole object against the checksum in its footer."""
    data = memoryview(buffer)
    found = block.crc32_of(as_bytes(data[:-UNCOVERED_BYTES]))
    if found != segment.footer.file_crc:
        raise CorruptData(
            "the object's checksum does not fit",
            position=len(data) - UNCOVERED_BYTES,
            expected=f"{segment.footer.file_crc:08x}",
            found=f"{found:08x}",
        )


def read_block(segment: Segment, number: int, buffer: Buffer) -> pa.RecordBatch:
    """Decodes block `number` from exactly its bytes, and checks it against header and index."""
    return checked_block(segment, number, buffer).batch


def checked_block(segment: Segment, number: int, buffer: Buffer) -> block.Decoded:
    """Decodes a block as `read_block` does; also returns its last offset and range of times."""
    start, end = segment.block_range(number)
    header = segment.header
    if number in segment.unreadable:
        raise CorruptData("the object is damaged here", position=start)
    if memoryview(buffer).nbytes != end - start:
        raise _contradiction(start, f"{end - start} bytes", memoryview(buffer).nbytes)
    base_offset = int(segment.offsets[number])
    decoded = block.decode_block(buffer, base_offset, header.coding, position=start)
    last_offset = decoded.last_offset
    if number + 1 == len(segment):
        if last_offset != header.max_offset:
            raise _contradiction(start, f"last offset {header.max_offset}", last_offset)
        span = header.max_offset + 1 - base_offset
    else:
        span = int(segment.offsets[number + 1]) - base_offset
    has_holes = header.record_count != header.max_offset - header.base_offset + 1
    if last_offset - base_offset >= span or not (has_holes or decoded.batch.num_rows == span):
        raise _contradiction(start, f"offsets up to {base_offset + span - 1}", last_offset)
    bounds = header.min_timestamp_ms, header.max_timestamp_ms
    if bounds != (0, 0):
        least, most = decoded.min_timestamp_ms, decoded.max_timestamp_ms
        if least < bounds[0] or most > bounds[1]:
            raise _contradiction(start, f"timestamps in {bounds}", (least, most))
    return decoded


def read_from(buffer: Buffer, start_offset: int = 0) -> Iterator[pa.RecordBatch]:
    """Yields the records of a whole object from an offset on, a few blocks in a batch."""
    data = memoryview(buffer)
    segment = open_segment(data)
    first = segment.block_of(start_offset)
    for number in range(first, len(segment), block_group.GROUP_BLOCKS):
        end = min(number + block_group.GROUP_BLOCKS, len(segment))
        for batch in read_blocks(segment, number, end, data):
            if number > first or int(segment.offsets[number]) >= start_offset:
                yield batch
                continue
            skipped = int(np.searchsorted(batch.column("offset").to_numpy(), start_offset))
            if skipped < batch.num_rows:
                yield batch.slice(skipped)


def read_blocks(
    segment: Segment, first: int, end: int, data: memoryview
) -> Iterator[pa.RecordBatch]:
    """Yields the records of neighbouring blocks of a whole object, together or one by one."""
    start, stop = segment.block_range(first)[0], segment.block_range(end - 1)[1]
    together = block_group.read_group(segment, first, end, data[start:stop])
    if together is not None:
        yield together.batch
        return
    for number in range(first, end):
        start, stop = segment.block_range(number)
        yield read_block(segment, number, data[start:stop])


def verify(buffer: Buffer) -> Segment:
    """Checks every byte and every claim of a whole object; raises CorruptData at the first lie."""
    return verify_blocks(buffer)[0]


def verify_blocks(buffer: Buffer) -> tuple[Segment, NDArray[np.int64]]:
    """Checks as `verify` does; also returns the largest timestamp of each block."""
    data = memoryview(buffer)
    segment = open_segment(data)
    check_file(data, segment)
    header = segment.header
    count = 0
    ranges = np.empty((len(segment), 2), dtype=np.int64)
    for first in range(0, len(segment), block_group.GROUP_BLOCKS):
        end = min(first + block_group.GROUP_BLOCKS, len(segment))
        start, stop = segment.block_range(first)[0], segment.block_range(end - 1)[1]
        together = block_group.read_group(segment, first, end, data[start:stop])
        if together is not None:
            count += together.batch.num_rows
            ranges[first:end, 0] = together.min_timestamps_ms
            ranges[first:end, 1] = together.max_timestamps_ms
            continue
        for number in range(first, end):
            start, stop = segment.block_range(number)
            decoded = checked_block(segment, number, data[start:stop])
            count += decoded.batch.num_rows
            ranges[number] = decoded.min_timestamp_ms, decoded.max_timestamp_ms
    if count != header.record_count:
        raise _contradiction(HEADER.at("record_count"), f"{header.record_count} records", count)
    found = int(ranges[:, 0].min()), int(ranges[:, 1].max())
    claimed = header.min_timestamp_ms, header.max_timestamp_ms
    if claimed not in (found, (0, 0)):
        raise _contradiction(HEADER.at("min_timestamp_ms"), f"timestamps {claimed}", found)
    return segment, ranges[:, 1]


def _contradiction(position: int, expected: str, found: object) -> CorruptData:
    return CorruptData(
        "the blocks contradict the header or the index",
        position=position,
        expected=expected,
        found=str(found),
    )
