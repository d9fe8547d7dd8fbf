"""Keratin group snapshot (`<topic-partition>_<group>.snap`): what a group has done and is doing.

Together with the delta log it is the truth about a group. Replaced as a whole, never changed.
All integers big-endian. Checksums: CRC-32C. The file header:

    | at | size | field          | type      | meaning                                      |
    |----|------|----------------|-----------|----------------------------------------------|
    |  0 |    8 | magic          | bytes[8]  | "KSNAP", three zeros                         |
    |  8 |    2 | version        | u16       | 1                                            |
    | 10 |    2 | flags          | u16       | written as 0, ignored                        |
    | 12 |    4 | header_len     | u32       | 76                                           |
    | 16 |    8 | created_ts_ms  | i64       | milliseconds since 1970                      |
    | 24 |    8 | tp_hash        | u64       | FNV-1a 64 of "topic/partition"               |
    | 32 |    8 | group_hash     | u64       | FNV-1a 64 of the group's name                |
    | 40 |   32 | reserved       | bytes[32] | zeros                                        |
    | 72 |    4 | header_crc32c  | u32       | over the 72 bytes before it                  |

The payload:

    | at | size | field          | type | meaning                                           |
    |----|------|----------------|------|---------------------------------------------------|
    |  0 |    8 | acked_until    | i64  | every offset below is acked                       |
    |  8 |    4 | inflight_count | u32  | entries that follow                               |
    | 12 |    4 | reserved0      | u32  | written as 0, ignored                             |

Then for each record that is with a consumer:

    | at | size | field          | type | meaning                                           |
    |----|------|----------------|------|---------------------------------------------------|
    |  0 |    8 | offset         | i64  | the record's                                      |
    |  8 |    8 | deadline_ts_ms | i64  | when it becomes deliverable again                 |
    | 16 |    4 | epoch          | u32  | deliveries so far, from 1                         |
    | 20 |    4 | reserved       | u32  | written as 0, ignored                             |

And the trailer:

    | at | size | field             | type | meaning                                        |
    |----|------|-------------------|------|------------------------------------------------|
    |  0 |    8 | min_deadline_hint | i64  | the earliest deadline, 0 = none                |
    |  8 |    4 | payload_crc32c    | u32  | from acked_until through min_deadline_hint     |

Awkward cases. The hint can always be computed from the entries, so `encode` does that and `decode`
does not believe it. Acks out of order have no room here: the new delta log begins with them.

Rule: what is read is bounded by the bytes that are there; a byte too many is damage as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats.keratin import header
from lamina.formats.kernels.binary import Layout
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.kernels.fnv import fnv1a_64

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER = Layout(
    ">",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    header_len="u32",
    created_ts_ms="i64",
    tp_hash="u64",
    group_hash="u64",
    reserved="bytes[32]",
    header_crc32c="u32",
)
PAYLOAD = Layout(
    ">",
    acked_until="i64",
    inflight_count="u32",
    reserved0="u32",
)
INFLIGHT = np.dtype(
    [
        ("offset", ">i8"),
        ("deadline_ts_ms", ">i8"),
        ("epoch", ">u4"),
        ("reserved", ">u4"),
    ]
)
TRAILER = Layout(
    ">",
    min_deadline_hint="i64",
    payload_crc32c="u32",
)
FILE_MAGIC = b"KSNAP\0\0\0"
NO_DEADLINE = 0
_INFLIGHT = FILE_HEADER.size + PAYLOAD.size


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a group. The arrays are columns of the records inflight, of equal length."""

    created_ms: int
    tp_hash: int
    group_hash: int
    acked_until: int
    offsets: NDArray[np.int64]
    deadlines_ms: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @property
    def min_deadline_ms(self) -> int | None:
        """The earliest deadline; None when nothing is inflight."""
        return int(self.deadlines_ms.min()) if len(self.deadlines_ms) else None


def hash_topic_partition(topic: str, partition: int) -> int:
    """Returns the `tp_hash` of a partition."""
    return fnv1a_64(f"{topic}/{partition}".encode())


def hash_group(group: str) -> int:
    """Returns the `group_hash` of a group."""
    return fnv1a_64(group.encode())


def encode(snapshot: Snapshot) -> bytes:
    """Encodes a whole snapshot file. Raises ValueError for what the fields cannot hold."""
    entries = np.zeros(len(snapshot.offsets), dtype=INFLIGHT)
    _refuse_out_of_range(snapshot)
    entries["offset"] = snapshot.offsets
    entries["deadline_ts_ms"] = snapshot.deadlines_ms
    entries["epoch"] = snapshot.epochs
    head = header.encode(
        FILE_HEADER,
        FILE_MAGIC,
        created_ts_ms=snapshot.created_ms,
        tp_hash=snapshot.tp_hash,
        group_hash=snapshot.group_hash,
    )
    payload = PAYLOAD.pack(
        acked_until=snapshot.acked_until, inflight_count=len(entries), reserved0=0
    )
    earliest = snapshot.min_deadline_ms
    hint = NO_DEADLINE if earliest is None else earliest
    payload += entries.tobytes() + TRAILER.pack(min_deadline_hint=hint, payload_crc32c=0)[:-4]
    return head + payload + crc32c_of(payload).to_bytes(4, "big")


def _refuse_out_of_range(snapshot: Snapshot) -> None:
    if not len(snapshot.offsets) == len(snapshot.deadlines_ms) == len(snapshot.epochs):
        raise ValueError("the columns of the records inflight differ in length")
    if snapshot.acked_until < 0 or np.any(snapshot.offsets < 0):
        raise ValueError("an offset is negative")
    if np.any((snapshot.epochs < 0) | (snapshot.epochs >> 32 != 0)):
        raise ValueError("an epoch is outside of 32 bits")


def decode(buffer: Buffer) -> Snapshot:
    """Reads a whole snapshot file. Raises CorruptData, or NewerFormat for one not ours."""
    fields = header.decode(buffer, FILE_HEADER, FILE_MAGIC)
    data = bytes(buffer)
    header.refuse_short(data, _INFLIGHT + TRAILER.size, "the snapshot ends inside its payload")
    payload = PAYLOAD.unpack(data, FILE_HEADER.size)
    count = payload["inflight_count"]
    expected = _INFLIGHT + count * INFLIGHT.itemsize + TRAILER.size
    if len(data) != expected:
        raise CorruptData(
            "the size does not fit the number of records inflight",
            position=FILE_HEADER.size + PAYLOAD.at("inflight_count"),
            expected=f"{expected} bytes",
            found=f"{len(data)} bytes",
        )
    stored = TRAILER.unpack(data, expected - TRAILER.size)["payload_crc32c"]
    header.refuse_mismatch(expected - 4, crc32c_of(data[FILE_HEADER.size : -4]), stored)
    header.refuse_negative(PAYLOAD, payload, "acked_until", start=FILE_HEADER.size)
    entries = np.frombuffer(data, dtype=INFLIGHT, count=count, offset=_INFLIGHT)
    if np.any(entries["offset"] < 0):
        raise CorruptData("an offset is out of range", position=_INFLIGHT)
    return Snapshot(
        created_ms=fields["created_ts_ms"],
        tp_hash=fields["tp_hash"],
        group_hash=fields["group_hash"],
        acked_until=payload["acked_until"],
        offsets=entries["offset"].astype(np.int64),
        deadlines_ms=entries["deadline_ts_ms"].astype(np.int64),
        epochs=entries["epoch"].astype(np.int64),
    )
