"""Keratin manifest (`manifest.bin`): where the partition stands, replaced as a whole.

Derived: rebuilt from the segments, which win where the two differ. What is lost with it: the
settings, and the proof that data beyond the last record once was durable (`next_offset`).
All integers big-endian. The header:

    | at | size | field              | type     | meaning                                        |
    |----|------|--------------------|----------|------------------------------------------------|
    |  0 |    8 | magic              | bytes[8] | "KERATIN", one zero                            |
    |  8 |    2 | version            | u16      | 1                                              |
    | 10 |    2 | flags              | u16      | written as 0, ignored                          |
    | 12 |    4 | header_len         | u32      | 20                                             |
    | 16 |    4 | crc32c             | u32      | of everything after it, to the end of the file |

The payload:

    | at | size | field              | type     | meaning                                        |
    |----|------|--------------------|----------|------------------------------------------------|
    |  0 |    8 | created_ts_ms      | i64      | milliseconds since 1970                        |
    |  8 |    8 | segment_max_bytes  | i64      | setting: a larger segment is rolled            |
    | 16 |    4 | index_stride_bytes | u32      | setting: bytes of log for one index entry      |
    | 20 |    2 | max_open_segments  | u16      | setting: files kept open at once               |
    | 22 |    2 | reserved0          | u16      | written as 0, ignored                          |
    | 24 |    8 | active_base_offset | i64      | name of the segment that is written            |
    | 32 |    8 | next_offset        | i64      | one past the last durable record               |
    | 40 |    4 | segment_count      | u32      | sealed segments that follow                    |

Then for each sealed segment, in the order of offsets:

    | at | size | field              | type     | meaning                                        |
    |----|------|--------------------|----------|------------------------------------------------|
    |  0 |    8 | base_offset        | i64      | offset of its first record                     |
    |  8 |    8 | last_offset        | i64      | offset of its last record, inclusive           |
    | 16 |    8 | log_bytes          | i64      | size of its `.log`                             |
    | 24 |    8 | idx_bytes          | i64      | size of its `.idx`                             |

Awkward case. The checksum leaves the header out. So flags may change unseen; they mean nothing.
A version or length that is one flipped bit away from ours is damage, any other a newer format.

Rules.
1. What is read is bounded by the bytes that are there; a byte too many is damage as well.
2. `encode` refuses what `decode` would refuse: offsets that contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lamina.errors import CorruptData
from lamina.formats.documents.flips import is_one_flip
from lamina.formats.keratin import header
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = Layout(
    ">",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    header_len="u32",
    crc32c="u32",
)
PAYLOAD = Layout(
    ">",
    created_ts_ms="i64",
    segment_max_bytes="i64",
    index_stride_bytes="u32",
    max_open_segments="u16",
    reserved0="u16",
    active_base_offset="i64",
    next_offset="i64",
    segment_count="u32",
)
SEGMENT = Layout(
    ">",
    base_offset="i64",
    last_offset="i64",
    log_bytes="i64",
    idx_bytes="i64",
)
MAGIC = b"KERATIN\0"
_SEGMENTS = HEADER.size + PAYLOAD.size


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that is written no more. `last_offset` is the document's: inclusive."""

    base_offset: int
    last_offset: int
    log_bytes: int
    idx_bytes: int

    @property
    def next_offset(self) -> int:
        """One past the last record."""
        return self.last_offset + 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of a partition. `segments` are the sealed ones, in the order of their offsets."""

    created_ms: int
    segment_bytes_max: int
    index_stride_bytes: int
    open_segments_max: int
    active_base_offset: int
    next_offset: int
    segments: tuple[SealedSegment, ...] = ()


def encode(manifest: Manifest) -> bytes:
    """Encodes a manifest. Raises ValueError for one whose offsets contradict each other."""
    problem = _contradiction(manifest)
    if problem:
        raise ValueError(problem)
    payload = PAYLOAD.pack(
        created_ts_ms=manifest.created_ms,
        segment_max_bytes=manifest.segment_bytes_max,
        index_stride_bytes=manifest.index_stride_bytes,
        max_open_segments=manifest.open_segments_max,
        reserved0=0,
        active_base_offset=manifest.active_base_offset,
        next_offset=manifest.next_offset,
        segment_count=len(manifest.segments),
    )
    payload += b"".join(
        SEGMENT.pack(
            base_offset=segment.base_offset,
            last_offset=segment.last_offset,
            log_bytes=segment.log_bytes,
            idx_bytes=segment.idx_bytes,
        )
        for segment in manifest.segments
    )
    head = HEADER.pack(
        magic=MAGIC,
        version=header.VERSION,
        flags=0,
        header_len=HEADER.size,
        crc32c=crc32c_of(payload),
    )
    return head + payload


def decode(buffer: Buffer) -> Manifest:
    """Reads a whole manifest. Raises CorruptData, or NewerFormat for one not ours."""
    data = bytes(buffer)
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptData("not a manifest", expected=repr(MAGIC), found=repr(data[:8]))
    header.refuse_short(data, HEADER.size, "the manifest ends inside its header")
    head = HEADER.unpack(data)
    header.refuse_mismatch(HEADER.at("crc32c"), crc32c_of(data[HEADER.size :]), head["crc32c"])
    _refuse_flipped(head)
    header.refuse_newer(HEADER, head)
    header.refuse_short(data, _SEGMENTS, "the manifest ends inside its payload")
    fields = PAYLOAD.unpack(data, HEADER.size)
    expected = _SEGMENTS + fields["segment_count"] * SEGMENT.size
    if len(data) != expected:
        raise CorruptData(
            "the size does not fit the number of segments",
            position=HEADER.size + PAYLOAD.at("segment_count"),
            expected=f"{expected} bytes",
            found=f"{len(data)} bytes",
        )
    positions = range(_SEGMENTS, len(data), SEGMENT.size)
    manifest = Manifest(
        created_ms=fields["created_ts_ms"],
        segment_bytes_max=fields["segment_max_bytes"],
        index_stride_bytes=fields["index_stride_bytes"],
        open_segments_max=fields["max_open_segments"],
        active_base_offset=fields["active_base_offset"],
        next_offset=fields["next_offset"],
        segments=tuple(SealedSegment(**SEGMENT.unpack(data, at)) for at in positions),
    )
    problem = _contradiction(manifest)
    if problem:
        raise CorruptData(problem, position=HEADER.size)
    return manifest


def _refuse_flipped(head: dict[str, Any]) -> None:
    """Raises CorruptData for a version or length that one flipped bit makes of ours."""
    version, length = head["version"], head["header_len"]
    found = version.to_bytes(2, "big") + length.to_bytes(4, "big")
    known = header.VERSION.to_bytes(2, "big") + HEADER.size.to_bytes(4, "big")
    if is_one_flip(found, known):
        raise CorruptData(
            "one bit of the version or of the header's length is flipped",
            position=HEADER.at("version"),
            expected=f"version {header.VERSION}, {HEADER.size} bytes",
            found=f"version {version}, {length} bytes",
        )


def _contradiction(manifest: Manifest) -> str:
    """Returns which offsets or sizes cannot all be true; empty if they can."""
    end = 0
    for segment in manifest.segments:
        if not end <= segment.base_offset <= segment.last_offset:
            return f"segment {segment.base_offset} is empty or does not follow the one before"
        if segment.log_bytes < 0 or segment.idx_bytes < 0:
            return f"segment {segment.base_offset} has a size of 2^63 or more"
        end = segment.next_offset
    if not end <= manifest.active_base_offset <= manifest.next_offset:
        return "the active segment does not follow the sealed ones, or ends before it begins"
    if manifest.segment_bytes_max < 0:
        return "segment_max_bytes is 2^63 or more"
    return ""
