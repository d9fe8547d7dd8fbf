"""The fixed fields of many frames as columns, without their bodies: what replay and copying need.

A WAL mixes topics and control frames. Replay and the compactor look at the columns, choose rows
by a mask, and `select` turns them into a `Scan` that `log.decode` takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import (
    address_of,
    as_bytes,
    peek_i64,
    peek_u8,
    peek_u16,
    peek_u32,
)
from lamina.formats.kernels.call_size import rows_at
from lamina.formats.kernels.declare import kernel_at_once
from lamina.formats.scan import Scan
from lamina.formats.wal.layout import OVERHEAD_BYTES, PREFIX, SEGMENT_FRAME, TRAILER, FrameType

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FLAGS = SEGMENT_FRAME.at("flags")
_TOPIC = SEGMENT_FRAME.at("topic_id")
_SEQUENCE = SEGMENT_FRAME.at("sequence")
_TIMESTAMP = SEGMENT_FRAME.at("timestamp_ms")
_NODE_LEN = SEGMENT_FRAME.at("node_len")
_TAG_LEN = SEGMENT_FRAME.at("tag_len")
_DATA_LEN = SEGMENT_FRAME.at("data_len")


@dataclass(frozen=True, slots=True, eq=False)
class Headers:
    """One row a frame. `lengths` are those of whole frames, with the type byte where there is one.

    In a WAL, the bytes that go into a segment are `buffer[position + 1 : position + length]`.
    """

    types: NDArray[np.uint8]
    topic_ids: NDArray[np.uint64]
    sequences: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    flags: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    value_lens: NDArray[np.int64]
    tag_lens: NDArray[np.int64]
    node_lens: NDArray[np.int64]


def headers(buffer: Buffer, found: Scan) -> Headers:
    """Gathers the fixed fields of the frames that `log.scan` found in the same buffer."""
    data = as_bytes(buffer)
    return _headers(data, found.positions + PREFIX.size, data[found.positions], PREFIX.size)


def headers_segment(buffer: Buffer, found: Scan) -> Headers:
    """Gathers the fixed fields of the frames that `log.scan_segment` found in the same buffer."""
    types = np.full(len(found), int(FrameType.APPEND), dtype=np.uint8)
    return _headers(as_bytes(buffer), found.positions, types, 0)


def select(found: Scan, columns: Headers, chosen: NDArray[np.bool_]) -> Scan:
    """Keeps the chosen frames of a scan; where it ended and why stay as they were."""
    lens = (columns.value_lens, columns.tag_lens, columns.node_lens)
    sizes = tuple(int(column[chosen].sum()) for column in lens)
    return replace(found, positions=found.positions[chosen], column_bytes=sizes)


def body_of(buffer: Buffer, found: Scan, columns: Headers, row: int) -> bytes:
    """Returns the data of one frame: the body that `control.decode` takes, or a record's value."""
    end = int(found.positions[row] + columns.lengths[row]) - TRAILER.size
    return as_bytes(buffer)[end - int(columns.value_lens[row]) : end].tobytes()


def _headers(
    data: NDArray[np.uint8], frames: NDArray[np.int64], types: NDArray[np.uint8], prefix: int
) -> Headers:
    rows = len(frames)
    topic_ids, sequences, timestamps = (np.empty(rows, dtype=np.int64) for _ in range(3))
    value_lens, tag_lens, node_lens = (np.empty(rows, dtype=np.int64) for _ in range(3))
    flags = np.empty(rows, dtype=np.uint8)
    numbers = (topic_ids, sequences, timestamps, flags)
    _gather_headers(data, frames, numbers, (value_lens, tag_lens, node_lens))
    lengths = value_lens + tag_lens + node_lens + (prefix + OVERHEAD_BYTES)
    return Headers(
        types=types,
        topic_ids=topic_ids.view(np.uint64),
        sequences=sequences,
        timestamps=timestamps,
        flags=flags,
        lengths=lengths,
        value_lens=value_lens,
        tag_lens=tag_lens,
        node_lens=node_lens,
    )


@kernel_at_once(rows_at)
def _gather_headers(data: Any, frames: Any, numbers: Any, lens: Any) -> None:
    origin = address_of(data)
    topic_ids, sequences, timestamps, flags = numbers
    value_lens, tag_lens, node_lens = lens
    for row in range(len(frames)):
        frame = origin + frames[row]
        flags[row] = peek_u8(frame + _FLAGS)
        topic_ids[row] = peek_i64(frame + _TOPIC)
        sequences[row] = peek_i64(frame + _SEQUENCE)
        timestamps[row] = peek_i64(frame + _TIMESTAMP)
        node_lens[row] = peek_u16(frame + _NODE_LEN)
        tag_lens[row] = peek_u16(frame + _TAG_LEN)
        value_lens[row] = peek_u32(frame + _DATA_LEN)
