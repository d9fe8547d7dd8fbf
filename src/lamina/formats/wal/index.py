"""Derived: rebuilt from the segment's `.data` by `build`; `.idx` finds a sequence by arithmetic.

Entry i belongs to sequence first_seq + i and lies at byte 20 * i. All integers little-endian.

    | at | size | field        | type     | meaning                                          |
    |----|------|--------------|----------|--------------------------------------------------|
    |  0 |    4 | position     | u32      | where in `.data` the frame starts                |
    |  4 |    4 | length       | u32      | bytes of the frame; 0 is a hole: no record       |
    |  8 |    8 | timestamp_ms | i64      | greatest timestamp of the segment so far         |
    | 16 |    1 | flags        | u8       | 1 has tag, 2 has node, 4 deleted                 |
    | 17 |    3 | padding      | bytes[3] | 0                                                |

Timestamps are running maxima, so that the age boundary is a binary search even where clocks went
back: a record is never taken for older than it is. A hole repeats the maximum before it (the least
i64 where there is none), and its position is where the next frame starts.

What is lost if it is wrong: nothing. It has no checksum, so a reader believes an entry only when
the frame it names is sound and carries the sequence; eviction looks at the boundary's frame before
it deletes. The deleted flag is a probe: the deleted set lives in the snapshot and in Delete frames,
and `mark_deleted` sets the flags from it after every load and rebuild.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.kernels.binary import (
    address_of,
    as_bytes,
    peek_i64,
    peek_u8,
    peek_u32,
    poke_i64,
    poke_u8,
    poke_u32,
)
from lamina.formats.kernels.call_size import rows_at
from lamina.formats.kernels.declare import kernel_at_once
from lamina.formats.scan import Scan
from lamina.formats.wal.layout import HAS_NODE, HAS_TAG, OVERHEAD_BYTES, SEGMENT_FRAME

if TYPE_CHECKING:
    from typing_extensions import Buffer

ENTRY = np.dtype(
    [
        ("position", "<u4"),
        ("length", "<u4"),
        ("timestamp_ms", "<i8"),
        ("flags", "u1"),
        ("padding", "u1", (3,)),
    ]
)
DELETED = 4
ENTRIES_MAX = 1 << 24
HOLE_ENTRIES, ENTRIES_PER_FRAME = 1 << 16, 64
DATA_BYTES_MAX = (1 << 32) - 1
TIMESTAMP_MIN = -(1 << 63)

_SIZE = ENTRY.itemsize
_, _LENGTH, _TIMESTAMP, _FLAGS, _ = (at for _, at, *_ in (ENTRY.fields or {}).values())
_FIXED = struct.Struct("<IIq")
_NAME_FLAGS = HAS_TAG | HAS_NODE
_KNOWN_FLAGS = _NAME_FLAGS | DELETED
_FRAME_LEN_SIZE = SEGMENT_FRAME.at("flags")
_FRAME_FLAGS = SEGMENT_FRAME.at("flags")
_FRAME_SEQUENCE = SEGMENT_FRAME.at("sequence")
_FRAME_TIMESTAMP = SEGMENT_FRAME.at("timestamp_ms")

Entries = NDArray[np.void]
"""A structured array of ENTRY, one row per sequence."""


def build(
    buffer: Buffer,
    found: Scan,
    *,
    first_sequence: int,
    base_position: int = 0,
    timestamp_floor_ms: int = TIMESTAMP_MIN,
) -> Entries:
    """Makes the entries of `first_sequence` through the last frame that `log.scan_segment` found.

    To extend an index, `base_position` is where in `.data` the buffer begins and
    `timestamp_floor_ms` the timestamp of the entry before. Raises InvalidRequest where the
    sequences begin below `first_sequence` or span more than `entries_max`: a hole that wide needs
    a new segment.
    """
    if len(found) == 0:
        return np.empty(0, dtype=ENTRY)
    data = as_bytes(buffer)
    first, last = (_sequence_at(data, int(found.positions[row])) for row in (0, -1))
    count = last + 1 - first_sequence
    if first < first_sequence or count > entries_max(len(found)):
        raise InvalidRequest(
            f"an index from {first_sequence} cannot cover the sequences {first} to {last}"
        )
    if base_position + found.end > DATA_BYTES_MAX:
        raise InvalidRequest("an index addresses at most 4 GiB of segment")
    entries = np.zeros(count, dtype=ENTRY)
    start = (first_sequence, base_position, timestamp_floor_ms)
    _build(data, found.positions, start, entries.view(np.uint8))
    return entries


def entries_max(frames: int) -> int:
    """Returns how many sequences, holes included, a segment with that many frames may span.

    Two frames could otherwise claim an index of 320 MiB. 2^16 lets a segment of a few frames have
    a hole several times as wide as a full segment of 10,000 records; 64 a frame grows with larger
    settings. A writer begins a new segment before a frame that would pass this.
    """
    return min(ENTRIES_MAX, ENTRIES_PER_FRAME * frames + HOLE_ENTRIES)


def _sequence_at(data: NDArray[np.uint8], position: int) -> int:
    return int(SEGMENT_FRAME.unpack(data.data, position)["sequence"])


@kernel_at_once(rows_at)
def _build(data: Any, positions: Any, start: tuple[int, int, int], entries: Any) -> None:
    sequence, base_position, latest = start
    origin = address_of(data)
    entry = address_of(entries)
    for row in range(len(positions)):
        position = positions[row]
        frame = origin + position
        while sequence < peek_i64(frame + _FRAME_SEQUENCE):
            poke_u32(entry, base_position + position)
            poke_i64(entry + _TIMESTAMP, latest)
            entry += _SIZE
            sequence += 1
        latest = max(latest, peek_i64(frame + _FRAME_TIMESTAMP))
        poke_u32(entry, base_position + position)
        poke_u32(entry + _LENGTH, _FRAME_LEN_SIZE + peek_u32(frame))
        poke_i64(entry + _TIMESTAMP, latest)
        poke_u8(entry + _FLAGS, peek_u8(frame + _FRAME_FLAGS) & _NAME_FLAGS)
        entry += _SIZE
        sequence += 1


def mark_deleted(
    entries: Entries, first_sequence: int, ranges: Iterable[tuple[int, int]]
) -> Entries:
    """Returns entries with the deleted flag exactly in some [from, to) ranges of sequences."""
    marked = entries.copy()
    flags = marked["flags"]
    flags &= _NAME_FLAGS
    for begin, end in ranges:
        low = max(0, begin - first_sequence)
        flags[low : max(low, end - first_sequence)] |= DELETED
    return marked


def encode(entries: Entries) -> bytes:
    """Encodes entries as they lie in the file."""
    return entries.tobytes()


def decode(buffer: Buffer) -> Entries:
    """Decodes the entries of a file; CorruptData where it does not end with an entry."""
    data = as_bytes(buffer)
    rest = len(data) % _SIZE
    if rest:
        raise CorruptData(
            "index ends inside an entry",
            position=len(data) - rest,
            expected=f"a multiple of {_SIZE} bytes",
            found=f"{len(data)} bytes",
        )
    return data.view(ENTRY)


def last_of(raw: bytes) -> tuple[int, int, int, int]:
    """Returns position, length and time of the last of some entries, and the time before it."""
    position, length, newest_ms = _FIXED.unpack_from(raw, len(raw) - _SIZE)
    if len(raw) == _SIZE:
        return position, length, newest_ms, TIMESTAMP_MIN
    return position, length, newest_ms, _FIXED.unpack_from(raw, len(raw) - 2 * _SIZE)[2]


def check(entries: Entries, data_bytes: int) -> None:
    """Raises CorruptData where entries contradict each other or a `.data` of that many bytes."""
    starts = entries["position"].astype(np.int64)
    lengths = entries["length"].astype(np.int64)
    ends = starts + lengths
    limits = np.append(starts[1:], data_bytes)
    times = entries["timestamp_ms"]
    _refuse((lengths != 0) & (lengths < OVERHEAD_BYTES), "has a length no frame can have")
    _refuse(ends > limits, "reaches past the next frame or the end of .data")
    _refuse(times[1:] < times[:-1], "is later than the entry after it")
    _refuse((entries["flags"] & ~np.uint8(_KNOWN_FLAGS)) != 0, "has unknown flags")
    _refuse(np.asarray(entries["padding"].any(axis=1)), "has padding that is not 0")


def _refuse(wrong: NDArray[np.bool_], problem: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptData(f"index entry {row} {problem}", position=row * _SIZE)


def position_of(sequence: int, first_sequence: int) -> int:
    """Returns the byte of a sequence's entry in the file."""
    return (sequence - first_sequence) * _SIZE


def expired(entries: Entries, cutoff_ms: int) -> int:
    """Counts the leading entries all of whose records are older than a time: the age boundary."""
    return bisect_left(entries["timestamp_ms"], cutoff_ms)
