"""A record batch of Kafka, magic 2: a header, then records, compressed as one piece or not at all.

All integers big-endian. Checksum: CRC-32C, over everything from the attributes on.

    | at | size | field                  | type | meaning                                        |
    |----|------|------------------------|------|------------------------------------------------|
    |  0 |    8 | base_offset            | i64  | of the first record; a producer writes 0       |
    |  8 |    4 | batch_length           | i32  | bytes after this field                         |
    | 12 |    4 | partition_leader_epoch | i32  | written as 0, ignored                          |
    | 16 |    1 | magic                  | u8   | 2                                              |
    | 17 |    4 | crc32c                 | u32  | from the attributes to the end                 |
    | 21 |    2 | attributes             | u16  | bits 0-2 codec, 3 to 5 as below                |
    | 23 |    4 | last_offset_delta      | i32  | of a producer: count - 1                       |
    | 27 |    8 | base_timestamp         | i64  | milliseconds; deltas count from it             |
    | 35 |    8 | max_timestamp          | i64  | milliseconds                                   |
    | 43 |    8 | producer_id            | i64  | -1 for none                                    |
    | 51 |    2 | producer_epoch         | i16  | -1 for none                                    |
    | 53 |    4 | base_sequence          | i32  | wraps from 2^31 - 1 to 0; -1 for none          |
    | 57 |    4 | count                  | i32  | records                                        |

    followed by: records (`lamina.formats.kafka.record_kernels`)

Bits of the attributes: 3 is set where the times are those of the append, 4 in batches of a
transaction, 5 in control batches.

Awkward cases. A timestamp of -1 means that there is none and is read as null: the log fills in its
own. A record with an empty list of headers has none. An empty batch has a count of 0 and spans
offsets that have no record any more. Of a batch with the time of its append, clients read the
largest time alone and give it to all records: such a batch holds records of one time.

Rules.
1. Nothing is decoded before the checksum was compared.
2. `decode` takes exactly one batch, as a partition of a Produce request has to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import InvalidRequest
from lamina.formats import envelope
from lamina.formats.kafka import record_kernels
from lamina.formats.kafka.compression import Codec, Take, decompress
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.formats.kernels import arrow
from lamina.formats.kernels.binary import Layout, as_bytes
from lamina.formats.kernels.crc import crc32c_of
from lamina.records import HEADERS, RECORD_SCHEMA, TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = Layout(
    ">",
    base_offset="i64",
    batch_length="i32",
    partition_leader_epoch="i32",
    magic="u8",
    crc32c="u32",
    attributes="u16",
    last_offset_delta="i32",
    base_timestamp="i64",
    max_timestamp="i64",
    producer_id="i64",
    producer_epoch="i16",
    base_sequence="i32",
    count="i32",
)
MAGIC = 2
UNSEALED_BYTES = 21
"""What lies before the bytes that the checksum is over."""
BATCH_BYTES = 1 << 20
"""About how large a written batch is."""
_LENGTH_BYTES = 12
_CODEC_BITS, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 1 << 3, 1 << 4, 1 << 5
_SPAN_MAX = (1 << 31) - 1
_NO_BYTES, _NO_HEADERS = pa.nulls(1, pa.binary()), pa.nulls(1, HEADERS)
"""What lone records mostly have of keys and headers: making it takes a sixth of decoding one."""

SCHEMA = pa.schema([RECORD_SCHEMA.field(name) for name in ("timestamp", "key", "value", "headers")])
"""What `decode` gives."""
INPUT_SCHEMA = pa.schema(
    [RECORD_SCHEMA.field(name) for name in ("offset", "timestamp", "key", "value", "headers")]
)
"""What `encode` takes."""


class Batch(NamedTuple):
    """A batch that was sent: its records, and who says that he sent them."""

    records: pa.RecordBatch
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    codec: Codec
    size_bytes: int
    """As it came: with its header, and compressed if it was."""


def decode(data: Buffer, bytes_max: int, take: Take = lambda _: None) -> Batch:
    """Decodes exactly one batch that a producer sent; raises BadBatch.

    `bytes_max` bounds what compressed records may become; `take` is told of them as they come, and
    what it raises ends it.
    """
    view = memoryview(data).cast("B")
    head = _head(view)
    codec = _checked(view, head)
    body: Any = view[HEADER.size :]
    if codec is not Codec.NONE:
        body = decompress(codec, body, bytes_max, take)
    return Batch(
        _columns(as_bytes(body), head["count"], head["base_timestamp"]),
        head["producer_id"],
        head["producer_epoch"],
        head["base_sequence"],
        bool(head["attributes"] & _TRANSACTIONAL),
        codec,
        len(view),
    )


def _head(view: memoryview) -> dict[str, Any]:
    if len(view) > UNSEALED_BYTES - 4 and view[16] < MAGIC:  # where every magic has it
        raise BadBatch(
            Fault.INVALID, f"messages of magic {view[16]} are too old; magic 2 is needed"
        )
    if len(view) < HEADER.size:
        raise BadBatch(Fault.CORRUPT, f"a batch has a header of {HEADER.size} bytes")
    head = HEADER.unpack(view)
    size = head["batch_length"] + _LENGTH_BYTES
    if head["magic"] != MAGIC:
        raise BadBatch(Fault.INVALID, f"a batch has magic 2, not {head['magic']}")
    if size < HEADER.size or size > len(view):
        raise BadBatch(Fault.CORRUPT, f"{len(view)} bytes hold no batch of {size}")
    if size < len(view):
        raise BadBatch(Fault.INVALID, "a partition takes one batch per request, not several")
    return head


def _checked(view: memoryview, head: dict[str, Any]) -> Codec:
    """Checks the checksum and what the header says of the records."""
    if crc32c_of(view[UNSEALED_BYTES:]) != head["crc32c"]:
        raise BadBatch(Fault.CORRUPT, "the checksum of the batch is wrong")
    if head["attributes"] & _CONTROL:
        raise BadBatch(Fault.INVALID, "a producer sends no control batches")
    if head["count"] < 1 or head["last_offset_delta"] != head["count"] - 1:
        raise BadBatch(
            Fault.INVALID,
            f"a batch of {head['count']} records has a last offset of {head['last_offset_delta']}",
        )
    try:
        return Codec(head["attributes"] & _CODEC_BITS)
    except ValueError as error:
        number = head["attributes"] & _CODEC_BITS
        raise BadBatch(Fault.CODEC, f"there is no codec {number}") from error


def _columns(payload: NDArray[np.uint8], rows: int, base_timestamp: int) -> pa.RecordBatch:
    size = len(payload)
    if rows * record_kernels.RECORD_BYTES_MIN > size:
        raise BadBatch(Fault.INVALID, f"{size} bytes hold no {rows} records")
    numbers = (
        np.empty(rows, dtype=np.int64),
        np.empty(rows + 1, dtype=np.int32),
        np.empty(rows + 1, dtype=np.int32),
        np.empty(rows, dtype=np.int64),
    )
    keys, values = arrow.empty_bytes(size), arrow.empty_bytes(size)
    bits = tuple(arrow.bitmap(rows) for _ in range(3))
    facts = np.zeros(9, dtype=np.int64)
    rooms = (keys, values, *bits)
    code, row = record_kernels.read(payload, numbers, rooms, facts, base_timestamp)
    if code != record_kernels.FINE:
        problem = record_kernels.PROBLEMS[code]
        at = row if code != record_kernels.LEFTOVER else None
        raise BadBatch(Fault.INVALID, problem, at)
    key_bytes, value_bytes, key_count, value_count, time_count, *headers = facts.tolist()
    times = pa.Array.from_buffers(
        TIMESTAMP,
        rows,
        [None if time_count == rows else pa.py_buffer(bits[2]), pa.py_buffer(numbers[0])],
    )
    columns = [
        times,
        _binary(numbers[1], (keys, key_bytes), bits[0], (key_count, rows)),
        _binary(numbers[2], (values, value_bytes), bits[1], (value_count, rows)),
        _headers(payload, numbers[3], headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _binary(
    offsets: NDArray[np.int32],
    room: tuple[NDArray[np.uint8], int],
    bits: NDArray[np.uint8],
    counts: tuple[int, int],
) -> pa.Array:
    """A binary column of what the kernel filled; a small one does not keep a large room."""
    there, rows = counts
    if there == 0:
        return _NO_BYTES if rows == 1 else pa.nulls(rows, pa.binary())
    data, size = room
    if size < len(data) >> 1:
        data = data[:size].copy()
    return arrow.binary_array(offsets, data, None if there == rows else bits)


def _headers(
    payload: NDArray[np.uint8], positions: NDArray[np.int64], totals: list[int]
) -> pa.Array:
    items, name_bytes, value_bytes, listed = totals
    if listed == 0:
        return _NO_HEADERS if len(positions) == 1 else pa.nulls(len(positions), HEADERS)
    targets = envelope.HeaderArrays.with_room(len(positions), items, name_bytes, value_bytes)
    ends = np.zeros(3, dtype=np.int64)
    record_kernels.read_headers(payload, positions, tuple(targets), ends)
    return targets.column(ends)


# ---------------------------------------------------------------- writing


def encode(
    records: pa.RecordBatch, last_offset: int = -1, *, at_append_time: bool = False
) -> memoryview:
    """Encodes records as one batch that reaches to `last_offset`, or to its last record.

    The columns are `INPUT_SCHEMA`, offsets rise. Raises InvalidRequest for offsets that are too far
    apart for one batch, and for more than a batch can hold.
    """
    given = last_offset, _APPEND_TIME if at_append_time else 0
    data, _ = arrow.encode_with(record_kernels.write, records, INPUT_SCHEMA, None, *given)
    return data.data


def encode_all(records: pa.RecordBatch, batch_bytes: int = BATCH_BYTES) -> Iterator[memoryview]:
    """Encodes records as batches of about so many bytes."""
    step = _step(records, batch_bytes)
    for first in range(0, records.num_rows, step):
        yield encode(records.slice(first, step))


def encode_by_append_time(
    records: pa.RecordBatch, batch_bytes: int = BATCH_BYTES
) -> Iterator[memoryview]:
    """Encodes records whose times are those of their appends: those of one time in a batch."""
    times = records.column(1).view(pa.int64()).to_numpy(zero_copy_only=False)
    step = _step(records, batch_bytes)
    first = 0
    changes = np.flatnonzero(times[1:] != times[:-1]) + 1
    for end in [*changes.tolist(), len(times)]:
        for start in range(first, end, step):
            rows = min(step, end - start)
            yield encode(records.slice(start, rows), at_append_time=True)
        first = end


def _step(records: pa.RecordBatch, batch_bytes: int) -> int:
    """How many records make a batch of about so many bytes."""
    pieces = max(1, -(-records.get_total_buffer_size() // batch_bytes))
    return int(max(1, -(-records.num_rows // pieces)))


def empty(first_offset: int, last_offset: int) -> bytes:
    """Makes a batch without records, so that a reader goes on behind offsets that are gone."""
    span = last_offset - first_offset
    if not 0 <= span <= _SPAN_MAX:
        raise InvalidRequest(f"one batch does not span {first_offset} to {last_offset}")
    fields = {
        "base_offset": first_offset,
        "batch_length": HEADER.size - _LENGTH_BYTES,
        "partition_leader_epoch": 0,
        "magic": MAGIC,
        "crc32c": 0,
        "attributes": 0,
        "last_offset_delta": span,
        "base_timestamp": -1,
        "max_timestamp": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "count": 0,
    }
    fields["crc32c"] = crc32c_of(HEADER.pack(**fields)[UNSEALED_BYTES:])
    return HEADER.pack(**fields)
