"""STRM v1 objects (`<base_offset>.seg`): the fixed parts around the compressed record blocks.

Truth for what is archived. All integers big-endian. An object is: header, blocks, index, footer.

Header:

    | at | size | field            | type     | meaning                                          |
    |----|------|------------------|----------|--------------------------------------------------|
    |  0 |    4 | magic            | bytes[4] | "STRM"                                           |
    |  4 |    2 | version          | u16      | 1                                                |
    |  6 |    2 | flags            | u16      | low bits compression; bit 15 values in envelopes |
    |  8 |    8 | topic_hash       | u64      | FNV-1a 64 of the topic's name; 0 is unset        |
    | 16 |    4 | partition        | u32      | partition number                                 |
    | 20 |    8 | base_offset      | u64      | offset of the first record                       |
    | 28 |    8 | max_offset       | u64      | offset of the last record                        |
    | 36 |    4 | record_count     | u32      | records in all blocks; at least 1                |
    | 40 |    8 | created_at_ms    | i64      | when the object was made                         |
    | 48 |    8 | min_timestamp_ms | i64      | smallest record timestamp                        |
    | 56 |    8 | max_timestamp_ms | i64      | largest; both 0: the writer did not say          |

Before the compressed records of each block:

    | at | size | field             | type | meaning                                             |
    |----|------|-------------------|------|-----------------------------------------------------|
    |  0 |    4 | uncompressed_size | u32  | bytes of the records; at most 32 MiB                |
    |  4 |    4 | compressed_size   | u32  | bytes that follow this header                       |
    |  8 |    4 | record_count      | u32  | records in the block; 1 to 2^20                     |
    | 12 |    4 | crc32             | u32  | zlib's CRC-32 of the bytes that follow              |

Index: the count, then one entry per block:

    | at | size | field       | type | meaning                                                   |
    |----|------|-------------|------|-----------------------------------------------------------|
    |  0 |    4 | entry_count | u32  | blocks in the object                                      |

    | at | size | field    | type | meaning                                                      |
    |----|------|----------|------|--------------------------------------------------------------|
    |  0 |    8 | offset   | u64  | the block's base offset: that of its first record            |
    |  8 |    8 | position | u64  | where the block's header starts in the object                |

Footer:

    | at | size | field        | type      | meaning                                               |
    |----|------|--------------|-----------|-------------------------------------------------------|
    |  0 |    8 | index_offset | u64       | where the index starts                                |
    |  8 |    4 | index_size   | u32       | 4 + 16 × entry_count                                  |
    | 12 |    4 | file_crc     | u32       | CRC-32 of everything before this field                |
    | 16 |   12 | reserved     | bytes[12] | zeros; anything else is a newer format                |
    | 28 |    4 | magic        | bytes[4]  | "MRTS"                                                |

Awkward cases. The index is not derived: a block stores offsets relative to its base, and the base
of every block but the first is only in the index.

Rules.
1. Nothing here reads a file or a clock.
2. `decode_…` raises CorruptData for bytes that contradict themselves or each other, NewerFormat for
   a version, flag or reserved byte that this code does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData, NewerFormat
from lamina.formats.kernels.binary import Layout

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = Layout(
    ">",
    magic="bytes[4]",
    version="u16",
    flags="u16",
    topic_hash="u64",
    partition="u32",
    base_offset="u64",
    max_offset="u64",
    record_count="u32",
    created_at_ms="i64",
    min_timestamp_ms="i64",
    max_timestamp_ms="i64",
)
BLOCK = Layout(
    ">",
    uncompressed_size="u32",
    compressed_size="u32",
    record_count="u32",
    crc32="u32",
)
INDEX = Layout(
    ">",
    entry_count="u32",
)
INDEX_ENTRY = Layout(
    ">",
    offset="u64",
    position="u64",
)
FOOTER = Layout(
    ">",
    index_offset="u64",
    index_size="u32",
    file_crc="u32",
    reserved="bytes[12]",
    magic="bytes[4]",
)
MAGIC = b"STRM"
FOOTER_MAGIC = b"MRTS"
VERSION = 1
ENVELOPED = 1 << 15
RECORD_BYTES_MIN = 4
BLOCK_BYTES_MIN = BLOCK.size + RECORD_BYTES_MIN
BLOCK_BYTES_MAX = 32 << 20
"""The most that the records of one block take before compression."""
BLOCK_RECORDS_MAX = 1 << 20
"""The most records of one block: ten times what a writer by the document puts into its 1 MiB."""
UNCOVERED_BYTES = FOOTER.size - FOOTER.at("file_crc")
"""The end of an object that its file CRC does not cover."""

_RESERVED = bytes(12)
_OFFSET_MAX = (1 << 63) - 1


class Compression(IntEnum):
    """How the records of each block are stored; the low bits of the header's flags."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class Coding:
    """What a reader must know to read a block: the header's flags.

    In an `enveloped` object every value is: envelope length u32, envelope (`formats/envelope.py`),
    value. It keeps headers, null values, tags and nodes; a plain reader refuses it.
    """

    compression: Compression = Compression.LZ4
    enveloped: bool = False

    @property
    def flags(self) -> int:
        """The header field."""
        return int(self.compression) | (ENVELOPED if self.enveloped else 0)


@dataclass(frozen=True, slots=True)
class Header:
    """What an object records about itself in its first 64 bytes."""

    coding: Coding
    topic_hash: int
    partition: int
    base_offset: int
    max_offset: int
    record_count: int
    created_at_ms: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Footer:
    """Where the index is, and the checksum of the whole object."""

    index_offset: int
    index_size: int
    file_crc: int

    @property
    def object_size(self) -> int:
        """The bytes of the whole object."""
        return self.index_offset + self.index_size + FOOTER.size


@dataclass(frozen=True, slots=True)
class Segment:
    """An object whose header, footer and index agree: what a reader of ranges keeps.

    `offsets[i]` is the base offset of block i and `positions[i]` where it starts; both ascend. The
    `unreadable` ones of a damaged object are runs of bytes that must not be read as blocks.
    """

    header: Header
    footer: Footer
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    unreadable: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.positions)

    def block_range(self, number: int) -> tuple[int, int]:
        """Returns where a block starts and ends in the object."""
        ends_at_index = number + 1 == len(self)
        end = self.footer.index_offset if ends_at_index else self.positions[number + 1]
        return int(self.positions[number]), int(end)

    def block_of(self, offset: int) -> int:
        """Returns the number of the last block that can hold an offset; 0 if all lie above it."""
        return max(0, int(np.searchsorted(self.offsets, offset, side="right")) - 1)


def encode_header(header: Header) -> bytes:
    """Encodes the first 64 bytes of an object."""
    return HEADER.pack(
        magic=MAGIC,
        version=VERSION,
        flags=header.coding.flags,
        topic_hash=header.topic_hash,
        partition=header.partition,
        base_offset=header.base_offset,
        max_offset=header.max_offset,
        record_count=header.record_count,
        created_at_ms=header.created_at_ms,
        min_timestamp_ms=header.min_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
    )


def decode_header(buffer: Buffer) -> Header:
    """Decodes the header at the start of a buffer; the buffer may hold more than the header."""
    _need("the header", memoryview(buffer).nbytes, HEADER.size)
    fields = HEADER.unpack(buffer)
    if fields["magic"] != MAGIC:
        raise _corrupt("not a STRM object", 0, MAGIC, fields["magic"])
    if fields.pop("version") != VERSION:
        raise NewerFormat("unknown version", position=HEADER.at("version"))
    flags = fields.pop("flags")
    if flags & ~ENVELOPED not in tuple(Compression):
        raise NewerFormat(f"unknown flags {flags:#06x}", position=HEADER.at("flags"))
    coding = Coding(Compression(flags & ~ENVELOPED), bool(flags & ENVELOPED))
    del fields["magic"]
    header = Header(coding, **fields)
    span = header.max_offset - header.base_offset + 1
    if header.max_offset > _OFFSET_MAX or not 1 <= header.record_count <= span:
        at = HEADER.at("record_count")
        raise _corrupt(
            "record count and offsets contradict", at, f"1 to {span}", header.record_count
        )
    if header.min_timestamp_ms > header.max_timestamp_ms:
        at = HEADER.at("max_timestamp_ms")
        least, most = header.min_timestamp_ms, header.max_timestamp_ms
        raise _corrupt("timestamps contradict", at, f"at least {least}", most)
    return header


def encode_footer(footer: Footer) -> bytes:
    """Encodes the last 32 bytes of an object."""
    return FOOTER.pack(
        index_offset=footer.index_offset,
        index_size=footer.index_size,
        file_crc=footer.file_crc,
        reserved=_RESERVED,
        magic=FOOTER_MAGIC,
    )


def decode_footer(buffer: Buffer, object_size: int) -> Footer:
    """Decodes the last 32 bytes of an object of a known size."""
    start = object_size - FOOTER.size
    _need("the object", object_size, HEADER.size + BLOCK_BYTES_MIN + FOOTER.size)
    _need("the footer", memoryview(buffer).nbytes, FOOTER.size)
    fields = FOOTER.unpack(buffer)
    if fields["magic"] != FOOTER_MAGIC:
        at = start + FOOTER.at("magic")
        raise _corrupt("no footer: the object is cut off", at, FOOTER_MAGIC, fields["magic"])
    if fields["reserved"] != _RESERVED:
        raise NewerFormat("unknown footer fields", position=start + FOOTER.at("reserved"))
    footer = Footer(fields["index_offset"], fields["index_size"], fields["file_crc"])
    if footer.object_size != object_size:
        raise _corrupt("index and object size contradict", start, object_size, footer.object_size)
    entries_size = footer.index_size - INDEX.size
    if entries_size < INDEX_ENTRY.size or entries_size % INDEX_ENTRY.size:
        at = start + FOOTER.at("index_size")
        raise _corrupt("no such index size", at, "4 + 16 for each block", footer.index_size)
    if footer.index_offset < HEADER.size + BLOCK_BYTES_MIN:
        raise _corrupt("no room for a block", start, "an index after it", footer.index_offset)
    return footer


def encode_index(offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> bytes:
    """Encodes the index of an object's blocks."""
    entries = np.stack([offsets, positions], axis=1).astype(">u8")
    return INDEX.pack(entry_count=len(offsets)) + entries.tobytes()


def decode_index(buffer: Buffer, header: Header, footer: Footer) -> Segment:
    """Decodes the index and checks header, footer and index against each other."""
    at = footer.index_offset
    size = memoryview(buffer).nbytes
    if size != footer.index_size:
        raise _corrupt("the index is cut off", at, f"{footer.index_size} bytes", size)
    possible = (size - INDEX.size) // INDEX_ENTRY.size
    count = INDEX.unpack(buffer)["entry_count"]
    if count != possible or count > header.record_count:
        raise _corrupt("entry count contradicts the index size", at, possible, count)
    entries = np.frombuffer(memoryview(buffer), dtype=">i8", offset=INDEX.size).reshape(-1, 2)
    offsets, positions = entries.astype(np.int64).T.copy()
    _check_ascent("offsets", offsets, 1, (header.base_offset, header.max_offset + 1), at)
    _check_ascent("positions", positions, BLOCK_BYTES_MIN, (HEADER.size, at), at)
    return Segment(header, footer, offsets, positions)


def _check_ascent(
    what: str, values: NDArray[np.int64], step_min: int, bounds: tuple[int, int], at: int
) -> None:
    """Checks that values start at the first bound, rise by the step and stay below the second."""
    first, end = bounds
    if values[0] != first:
        raise _corrupt(f"index {what} do not start as they should", at, first, values[0])
    # All values lie in [0, end) before they are subtracted: differences cannot wrap.
    inside = bool(np.all((values >= 0) & (values <= end - step_min)))
    if not inside or not np.all(np.diff(values) >= step_min):
        expected = f"ascending, below {end}"
        raise _corrupt(f"index {what} are not in order", at, expected, values[:8].tolist())


def _need(what: str, found: int, expected: int) -> None:
    if found < expected:
        raise _corrupt(f"{what} is cut off", found, f"{expected} bytes", found)


def _corrupt(problem: str, position: int, expected: object, found: object) -> CorruptData:
    return CorruptData(problem, position=position, expected=str(expected), found=str(found))
