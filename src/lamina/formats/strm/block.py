"""Reading a STRM block: header, checksum, decompression, records (tables: layout.py, write.py).

The checksum covers the compressed bytes only, so sizes and counts are checked against each other:
a block whose checksum was made to fit still cannot make a reader allocate more than
`BLOCK_BYTES_MAX` and the columns of `BLOCK_RECORDS_MAX` records, read outside the
block or return bytes that were never written.

Rules.
1. `check` judges everything that can be judged without decompressing; `decode_block` the rest.
2. A bad block raises CorruptData from `decode_block`; nothing of it is returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats.kernels import lz4
from lamina.formats.kernels.binary import address_of, as_bytes, peek_u32, peek_u32_be
from lamina.formats.kernels.crc import crc32
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.scan import Stop
from lamina.formats.strm import record_codec
from lamina.formats.strm.layout import (
    BLOCK,
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS_MAX,
    RECORD_BYTES_MIN,
    Coding,
    Compression,
)
from lamina.formats.strm.record_codec import Columns

if TYPE_CHECKING:
    from typing_extensions import Buffer

GOOD = -1
LZ4_PREFIX_BYTES = 4

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


class Decoded(NamedTuple):
    """A block's records, and what the next checks need to know of them."""

    batch: pa.RecordBatch
    last_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int


def decode_block(buffer: Buffer, base_offset: int, coding: Coding, *, position: int = 0) -> Decoded:
    """Decodes one block: exactly its header and its payload.

    `base_offset` is the block's in the index. `position` is where the block lies in the
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
    size, rows = header["uncompressed_size"], header["record_count"]
    columns = Columns(rows, size)
    payload, is_lz4 = data[_HEADER:], coding.compression is Compression.LZ4
    if is_lz4:
        payload = payload[LZ4_PREFIX_BYTES:]
    elif coding.compression is Compression.ZSTD:
        payload = _decompressed(data, size, position)
    code, row, facts = columns.fill(payload, base_offset, is_lz4=is_lz4)
    if code == record_codec.UNDECODABLE:
        raise _undecodable(position, size, "another LZ4 block, or none")
    if code == record_codec.FINE and coding.enveloped:
        code, row = columns.check_envelopes()
    if code != record_codec.FINE:
        raise CorruptData(
            f"record {row} of the block: {record_codec.PROBLEMS[code]}",
            position=position,
            expected=f"{rows} records in {size} bytes",
            found=f"{row} good ones",
        )
    return Decoded(columns.batch(enveloped=coding.enveloped), *facts)


def _decompressed(data: NDArray[np.uint8], size: int, position: int) -> NDArray[np.uint8]:
    try:
        return as_bytes(pa.Codec("zstd").decompress(data[_HEADER:], decompressed_size=size))
    except OSError as error:
        raise _undecodable(position, size, str(error)) from error


def _undecodable(position: int, size: int, found: str) -> CorruptData:
    return CorruptData(
        "the block does not decompress",
        position=position,
        expected=f"{size} bytes",
        found=found,
    )
