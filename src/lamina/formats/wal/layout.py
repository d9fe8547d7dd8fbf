"""The frame of the write-ahead log and of its segments: the bytes, named.

All integers little-endian. Checksum: XXH3-64, over everything between `frame_len` and itself.

A segment (`seg-<first_seq>.data`) is a plain run of these frames, all of one topic:

    | at | size | field        | type | meaning                                             |
    |----|------|--------------|------|-----------------------------------------------------|
    |  0 |    4 | frame_len    | u32  | bytes after this field: 41 + node + tag + data      |
    |  4 |    1 | flags        | u8   | 1 has tag, 2 has node, 4 durable, 8 routed          |
    |  5 |    8 | topic_id     | u64  | the topic's number                                  |
    | 13 |    8 | sequence     | u64  | record number in the topic, from 1, below 2^63      |
    | 21 |    8 | timestamp_ms | i64  | milliseconds since 1970 (two's complement)          |
    | 29 |    2 | node_len     | u16  | bytes of node                                       |
    | 31 |    2 | tag_len      | u16  | bytes of tag                                        |
    | 33 |    4 | data_len     | u32  | bytes of data: the record's value or a control body |

    followed by: node, tag, data, and the trailer

    | at | size | field        | type | meaning                                             |
    |----|------|--------------|------|-----------------------------------------------------|
    |  0 |    8 | xxh3         | u64  | seed 0 for Append, else the frame's type            |

A WAL (`wal-<n>.log`) is a run of frames of all topics and types, each preceded by

    | at | size | field        | type | meaning                                             |
    |----|------|--------------|------|-----------------------------------------------------|
    |  0 |    1 | frame_type   | u8   | what the frame is: `FrameType`                      |

So a segment's bytes are those of each WAL Append frame without its first byte: positions plus
lengths (`headers`) are all that a compactor needs to copy them.

Awkward cases. A tag or node of no bytes is distinguished from none by its flag. A type of 0 or a
`frame_len` of 0 is space that was never written. There is no magic: `search` looks for lengths that
agree. The type is not among the checksummed bytes; as the checksum's seed it is guarded all the
same.
"""

from __future__ import annotations

from enum import IntEnum

from lamina.formats.kernels.binary import Layout

PREFIX = Layout(
    "<",
    frame_type="u8",
)
SEGMENT_FRAME = Layout(
    "<",
    frame_len="u32",
    flags="u8",
    topic_id="u64",
    sequence="u64",
    timestamp_ms="i64",
    node_len="u16",
    tag_len="u16",
    data_len="u32",
)
TRAILER = Layout(
    "<",
    xxh3="u64",
)
OVERHEAD_BYTES = SEGMENT_FRAME.size + TRAILER.size
BODY_BYTES_MAX = 1 << 30
NAME_BYTES_MAX = 0xFFFF
SEQUENCE_MAX = (1 << 63) - 1

HAS_TAG, HAS_NODE, DURABLE, ROUTED = 1, 2, 4, 8


class FrameType(IntEnum):
    """What a WAL frame is; the bodies of all but Append are in `control`."""

    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER = 4
    DELETE = 6
    EVICT_WATERMARK = 7
    CHECKPOINT_MARK = 8
    ROUTED_MARK = 9


def as_signed(topic_id: int) -> int:
    """Returns a u64 with the bits of an int64, the type in which kernels compare it."""
    return topic_id if topic_id < 1 << 63 else topic_id - (1 << 64)
