"""Keratin group journal (`<topic-partition>_<group>.delta`): a header, then event after event.

Together with the snapshot it is the truth about a group.
All integers big-endian. Checksums: CRC-32C. The file header:

    | at | size | field         | type      | meaning                                       |
    |----|------|---------------|-----------|-----------------------------------------------|
    |  0 |    8 | magic         | bytes[8]  | "KDELTA", two zeros                           |
    |  8 |    2 | version       | u16       | 1                                             |
    | 10 |    2 | flags         | u16       | written as 0, ignored                         |
    | 12 |    4 | header_len    | u32       | 60                                            |
    | 16 |    8 | created_ts_ms | i64       | milliseconds since 1970                       |
    | 24 |   32 | reserved      | bytes[32] | zeros                                         |
    | 56 |    4 | header_crc32c | u32       | over the 56 bytes before it                   |

An event:

    | at | size | field         | type | meaning                                            |
    |----|------|---------------|------|----------------------------------------------------|
    |  0 |    2 | magic         | u16  | 0x4B45 ("KE")                                      |
    |  2 |    2 | version       | u16  | 1                                                  |
    |  4 |    2 | event_type    | u16  | 1 … 5, see below                                   |
    |  6 |    2 | flags         | u16  | written as 0, ignored                              |
    |  8 |    4 | len           | u32  | bytes of payload                                   |

    followed by: payload, and the trailer

    | at | size | field         | type | meaning                                            |
    |----|------|---------------|------|----------------------------------------------------|
    |  0 |    4 | crc32c        | u32  | from version through payload, without the magic    |

The payload is the first `len` bytes of this, by type: 1 MarkInflight 20, 2 Ack 8, 3 ClearInflight
8, 4 BumpAckedUntil 8 (`offset` is then acked_until), 5 Reset 0.

    | at | size | field          | type | meaning                                           |
    |----|------|----------------|------|---------------------------------------------------|
    |  0 |    8 | offset         | i64  | the record's                                      |
    |  8 |    8 | deadline_ts_ms | i64  | when it becomes deliverable again                 |
    | 16 |    4 | epoch          | u32  | deliveries so far, from 1                         |

Awkward case. A sound event of an unknown type, or of a known type with another length, was written
by a newer version: BAD_VERSION, which recovery refuses and never cuts off.

Rules.
1. `scan` never raises on bad bytes; it stops and returns why.
2. `decode` is only called on what `scan` accepted.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina.formats.keratin import header
from lamina.formats.kernels.binary import (
    Layout,
    address_of,
    as_bytes,
    peek_i64_be,
    peek_u16_be,
    peek_u32_be,
    poke_i64_be,
    poke_u16_be,
    poke_u32_be,
)
from lamina.formats.kernels.call_size import rows_at, rows_within
from lamina.formats.kernels.crc import crc32c
from lamina.formats.kernels.declare import inlined, kernel_at_once
from lamina.formats.scan import Budget, Limit, Scan, Stop, walk

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_HEADER = Layout(
    ">",
    magic="bytes[8]",
    version="u16",
    flags="u16",
    header_len="u32",
    created_ts_ms="i64",
    reserved="bytes[32]",
    header_crc32c="u32",
)
HEADER = Layout(
    ">",
    magic="u16",
    version="u16",
    event_type="u16",
    flags="u16",
    len="u32",
)
PAYLOAD = Layout(
    ">",
    offset="i64",
    deadline_ts_ms="i64",
    epoch="u32",
)
TRAILER = Layout(
    ">",
    crc32c="u32",
)
FILE_MAGIC = b"KDELTA\0\0"
MAGIC = 0x4B45
VERSION = 1
_EVENT_START = b"KE\0\1\0"
_ONE = Limit(max_records=1)
FILE_HEADER_BYTES = FILE_HEADER.size
OVERHEAD_BYTES = HEADER.size + TRAILER.size
PAYLOAD_BYTES_MAX = 1 << 20
"""What even a newer event may not exceed; a larger length is damage."""


class Event(IntEnum):
    """What can happen to the state of a group."""

    MARK_INFLIGHT = 1
    ACK = 2
    CLEAR_INFLIGHT = 3
    BUMP_ACKED_UNTIL = 4
    RESET = 5


class Events(NamedTuple):
    """Events as columns of equal length; fields that an event's type does not have are 0.

    `offsets` holds acked_until for BUMP_ACKED_UNTIL.
    """

    types: NDArray[np.int64]
    offsets: NDArray[np.int64]
    deadlines_ms: NDArray[np.int64]
    epochs: NDArray[np.int64]


_VERSION = HEADER.at("version")
_TYPE = HEADER.at("event_type")
_FLAGS = HEADER.at("flags")
_LEN = HEADER.at("len")
_PAYLOAD = HEADER.size
_MARK_BYTES = PAYLOAD.size
_DEADLINE = PAYLOAD.at("deadline_ts_ms")
_EPOCH = PAYLOAD.at("epoch")
_MARK = int(Event.MARK_INFLIGHT)
_RESET = int(Event.RESET)
_UNKNOWN = -1
_GOOD = -1
_END = int(Stop.END)
_LIMIT = int(Stop.LIMIT)
_TORN = int(Stop.TORN)
_BAD_MAGIC = int(Stop.BAD_MAGIC)
_BAD_VERSION = int(Stop.BAD_VERSION)
_BAD_LENGTH = int(Stop.BAD_LENGTH)
_BAD_CHECKSUM = int(Stop.BAD_CHECKSUM)
_BAD_OFFSET = int(Stop.BAD_OFFSET)


def encode_header(created_ms: int) -> bytes:
    """Encodes the header of a delta log."""
    return header.encode(FILE_HEADER, FILE_MAGIC, created_ts_ms=created_ms)


def decode_header(buffer: Buffer) -> int:
    """Reads the header of a delta log and returns when it was created, in milliseconds.

    Raises CorruptData, or NewerFormat for a header not ours.
    """
    created_ms: int = header.decode(buffer, FILE_HEADER, FILE_MAGIC)["created_ts_ms"]
    return created_ms


def encode(
    types: ArrayLike, offsets: ArrayLike = 0, deadlines_ms: ArrayLike = 0, epochs: ArrayLike = 0
) -> NDArray[np.uint8]:
    """Encodes events, without a file header. A single number stands for a column of it.

    Raises ValueError for an unknown type, a negative offset or an epoch outside of 32 bits.
    """
    columns = np.broadcast_arrays(*np.atleast_1d(types, offsets, deadlines_ms, epochs))
    return encode_events(
        Events(*(np.ascontiguousarray(column, dtype=np.int64) for column in columns))
    )


def encode_events(events: Events) -> NDArray[np.uint8]:
    """Encodes events whose columns are contiguous; raises ValueError as `encode` does."""
    out = np.empty(len(events.types) * (OVERHEAD_BYTES + PAYLOAD.size), dtype=np.uint8)
    end = _encode(tuple(events), out)
    if end < 0:
        raise ValueError(f"event {-end - 1} has an unknown type, a bad offset or a bad epoch")
    return out[:end]


@inlined
def _payload_bytes(event_type: int) -> int:
    if event_type == _MARK:
        return _MARK_BYTES
    if event_type == _RESET:
        return 0
    return 8 if _MARK < event_type < _RESET else _UNKNOWN


@kernel_at_once(lambda events, out: len(events[0]))
def _encode(events: Any, out: Any) -> int:
    """Returns the bytes written, or -1 - row for the row at fault."""
    types, offsets, deadlines_ms, epochs = events
    start: int = address_of(out)
    position = start
    for row in range(len(types)):
        length = _payload_bytes(types[row])
        if length == _UNKNOWN or offsets[row] < 0 or not 0 <= epochs[row] <= 0xFFFFFFFF:
            return -1 - row
        poke_u16_be(position, MAGIC)
        poke_u16_be(position + _VERSION, VERSION)
        poke_u16_be(position + _TYPE, types[row])
        poke_u16_be(position + _FLAGS, 0)
        poke_u32_be(position + _LEN, length)
        if length > 0:
            poke_i64_be(position + _PAYLOAD, offsets[row])
        if length > _DEADLINE:
            poke_i64_be(position + _PAYLOAD + _DEADLINE, deadlines_ms[row])
            poke_u32_be(position + _PAYLOAD + _EPOCH, epochs[row])
        checked = _PAYLOAD - _VERSION + length
        poke_u32_be(position + _VERSION + checked, crc32c(position + _VERSION, checked))
        position += OVERHEAD_BYTES + length
    return position - start


@inlined
def _check(event: int, remaining: int) -> tuple[int, int]:
    """Judges the event at an address: (_GOOD or why not, its length)."""
    if remaining < 2:
        return _TORN, 0
    magic = peek_u16_be(event)
    if magic == 0:
        return _TORN, 0
    if magic != MAGIC:
        return _BAD_MAGIC, 0
    if remaining < OVERHEAD_BYTES:
        return _TORN, 0
    payload = peek_u32_be(event + _LEN)
    if payload > PAYLOAD_BYTES_MAX:
        return _BAD_LENGTH, 0
    length = OVERHEAD_BYTES + payload
    if length > remaining:
        return _TORN, 0
    checked = _PAYLOAD - _VERSION + payload
    if peek_u32_be(event + _VERSION + checked) != crc32c(event + _VERSION, checked):
        return _BAD_CHECKSUM, 0
    if peek_u16_be(event + _VERSION) != VERSION:
        return _BAD_VERSION, 0
    if payload != _payload_bytes(peek_u16_be(event + _TYPE)):
        return _BAD_VERSION, 0
    if payload > 0 and peek_i64_be(event + _PAYLOAD) < 0:
        return _BAD_OFFSET, 0
    return _GOOD, length


def scan(buffer: Buffer, start: int = FILE_HEADER_BYTES, *, limit: Limit = Limit()) -> Scan:
    """Walks the events of a buffer from `start` (behind the file header), checking every field.

    A buffer that ends inside the file header is torn.
    """
    data = as_bytes(buffer)
    if start == FILE_HEADER_BYTES > len(data):
        return Scan(np.empty(0, dtype=np.int64), len(data), Stop.TORN)
    positions, _, after, stop = walk(_scan, data, (start, 0), limit, OVERHEAD_BYTES)
    return Scan(positions, after[0], stop)


@kernel_at_once(rows_within)
def _scan(
    data: Any, positions: Any, _: Any, state: tuple[int, int], bounds: tuple[int, int]
) -> Any:
    """Nothing to charge a budget for: an event is small."""
    position, count = state
    size = len(data)
    origin = address_of(data)
    stop = _END
    while position < size:
        if count == len(positions):
            stop = _LIMIT
            break
        verdict, length = _check(origin + position, size - position)
        if verdict != _GOOD:
            stop = verdict
            break
        if count > 0 and position + length > bounds[0]:
            stop = _LIMIT
            break
        positions[count] = position
        count += 1
        position += length
    return (position, count), stop, 0


class EventLog:
    """The events of a buffer as `scan.runs` walks them: no number orders them."""

    def __init__(self, buffer: Buffer) -> None:
        self.data = memoryview(buffer).cast("B")

    def scan(self, start: int, number: int | None, limit: Limit) -> Scan:
        """Walks events."""
        return scan(self.data, start, limit=limit)

    def resync(self, damage: Scan, number: int | None, budget: Budget) -> int | None:
        """Finds the next event; there is nothing to charge a budget for, as events are small."""
        raw = bytes(self.data)
        position = damage.end
        while (position := raw.find(_EVENT_START, position + 1)) >= 0:
            if len(scan(self.data, position, limit=_ONE)):
                return position
        return None

    def number_at(self, position: int) -> int:
        """Returns 0."""
        return 0


def decode(buffer: Buffer, found: Scan) -> Events:
    """Gathers the columns of the events that `scan` found in the same buffer."""
    events = Events(*np.zeros((4, len(found)), dtype=np.int64))
    _gather(as_bytes(buffer), found.positions, tuple(events))
    return events


@kernel_at_once(rows_at)
def _gather(data: Any, positions: Any, columns: Any) -> None:
    types, offsets, deadlines_ms, epochs = columns
    origin = address_of(data)
    for row in range(len(positions)):
        event = origin + positions[row]
        payload = peek_u32_be(event + _LEN)
        types[row] = peek_u16_be(event + _TYPE)
        if payload > 0:
            offsets[row] = peek_i64_be(event + _PAYLOAD)
        if payload > _DEADLINE:
            deadlines_ms[row] = peek_i64_be(event + _PAYLOAD + _DEADLINE)
            epochs[row] = peek_u32_be(event + _PAYLOAD + _EPOCH)
