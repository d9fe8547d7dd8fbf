"""Decompresses the records of a batch: the four codecs of Kafka, with a bound on what comes out.

How large the records are is written nowhere, so a few bytes may claim to be any size. Streams are
read in steps and stopped at the bound; a snappy block begins with its size, which is checked first.
Whoever has to keep the room for it is told of each step, before the next one, and may refuse it.
Xerial's blocks are counted, too: each is a step of Python, and 5 bytes may call themselves one.

    codec    what arrives
    gzip     one or more members
    snappy   a raw block (librdkafka) or Xerial's framing around several (Java)
    lz4      the frame format
    zstd     frames
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import pyarrow as pa

from lamina.formats.kafka.faults import BadBatch, Fault

_STEP_BYTES = 256 << 10
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16  # the magic and two version numbers
_BLOCKS_FREE, _BLOCK_BYTES_MIN = 256, 4 << 10
"""So many small blocks are taken, then one for so many bytes; clients write 32 KiB in each."""
_SNAPPY_FACTOR = 256
"""A snappy block of n bytes holds fewer than so many times n: copies are of at most 64 bytes."""
Take: TypeAlias = Callable[[int], None]
"""Is told how many bytes more there are; raises where there is no room for them."""


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_STREAMS = {Codec.GZIP: "gzip", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


def decompress(codec: Codec, data: memoryview, bytes_max: int, take: Take) -> pa.Buffer:
    """Returns the records; raises BadBatch for what does not decompress or is beyond the bound."""
    try:
        if codec is Codec.SNAPPY:
            return _snappy(data, bytes_max, take)
        return _stream(_STREAMS[codec], data, bytes_max, take)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadBatch(
            Fault.CORRUPT, f"the records do not decompress as {codec.name.lower()}"
        ) from error


def _stream(name: str, data: memoryview, bytes_max: int, take: Take) -> pa.Buffer:
    out = pa.BufferOutputStream()
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name) as stream:
        while True:
            part = stream.read_buffer(min(_STEP_BYTES, bytes_max + 1 - size))
            size += part.size
            if size > bytes_max:
                raise _too_large(bytes_max)
            take(part.size)
            if part.size == 0:
                return out.getvalue()
            out.write(part)


def _snappy(data: memoryview, bytes_max: int, take: Take) -> pa.Buffer:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _block(data, bytes_max, take)
    out = pa.BufferOutputStream()
    position, size, blocks = _XERIAL_HEAD_BYTES, 0, 0
    while position < len(data):
        blocks += 1
        if blocks > _BLOCKS_FREE + size // _BLOCK_BYTES_MIN:
            raise BadBatch(Fault.CORRUPT, f"{blocks} blocks of snappy hold only {size} bytes")
        length = int.from_bytes(data[position : position + 4], signed=True)
        position += 4
        if not 0 < length <= len(data) - position:
            raise BadBatch(Fault.CORRUPT, "a block of snappy is longer than the batch")
        part = _block(data[position : position + length], bytes_max - size, take)
        size += part.size
        out.write(part)
        position += length
    return out.getvalue()


def _block(data: memoryview, bytes_max: int, take: Take) -> pa.Buffer:
    size = shift = 0
    for byte in bytes(data[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise BadBatch(Fault.CORRUPT, "a block of snappy does not begin with its size")
    if size > bytes_max:
        raise _too_large(bytes_max)
    if size > len(data) * _SNAPPY_FACTOR:
        raise BadBatch(Fault.CORRUPT, "a block of snappy claims more than it can hold")
    take(size)
    return pa.decompress(pa.py_buffer(data), size, "snappy")


def _too_large(bytes_max: int) -> BadBatch:
    return BadBatch(Fault.TOO_LARGE, f"the batch decompresses to more than {bytes_max} bytes")
