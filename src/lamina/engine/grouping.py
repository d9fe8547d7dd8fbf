"""From requests to bytes: joins small requests, gives offsets, encodes, and cuts at segment ends.

Pure, but for the producers it asks. Requests of plain values (`list[bytes]`) that stand next to
each other become one batch, so that a thousand small producers cost one encode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina import records
from lamina.config import TopicSettings
from lamina.engine.codec import Codec
from lamina.engine.writer import Ack, Outcome, ProducerStamp, Request
from lamina.records import INPUT_SCHEMAS, TIMESTAMP


class Judge(Protocol):
    """Whether an idempotent append is new: see `producers.Producers`."""

    def judge(self, stamp: ProducerStamp, count: int) -> Outcome | None:
        """Returns the answer to a repeat or a zombie, None for what is new."""

    def note(self, stamped: Stamped) -> None:
        """Takes note of what was new and where it goes, until the group is kept or taken back."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A new append of an idempotent producer, and where it goes."""

    stamp: ProducerStamp
    base_offset: int
    count: int


@dataclass(slots=True)
class EncodedGroup:
    """A group as it goes to disk; positions count from the first byte."""

    outcomes: list[Outcome]
    stamps: list[Stamped]
    data: NDArray[np.uint8]
    positions: NDArray[np.int64]
    timestamps: NDArray[np.int64]


@dataclass(slots=True)
class _Joined:
    """The batches of a group in order; plain values wait to be joined."""

    format_name: str
    now_ms: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def add(self, request: Request) -> None:
        if isinstance(request.records, list):
            self.values += request.records
        else:
            self.flush()
            self.batches.append(request.records)

    def flush(self) -> None:
        if self.values:
            self.batches.append(values_batch(self.values, self.format_name, self.now_ms))
            self.values = []


_NULLS_MAX = 4096
_NULLS = {field.name: pa.nulls(_NULLS_MAX, field.type) for field in records.RECORD_SCHEMA}


def values_batch(values: Sequence[bytes], format_name: str, now_ms: int) -> pa.RecordBatch:
    """Makes a batch of plain values with one time and no other field."""
    count = len(values)
    columns = []
    for item in INPUT_SCHEMAS[format_name]:
        if item.name == "value":
            columns.append(pa.array(values, pa.binary()))
        elif item.name == "timestamp":
            times = pa.py_buffer(np.full(count, now_ms, dtype=np.int64))
            columns.append(pa.Array.from_buffers(TIMESTAMP, count, [None, times]))
        elif count <= _NULLS_MAX:
            columns.append(_NULLS[item.name].slice(0, count))
        else:
            columns.append(pa.nulls(count, item.type))
    return pa.RecordBatch.from_arrays(columns, schema=INPUT_SCHEMAS[format_name])


@dataclass(frozen=True, slots=True)
class GroupEncoder:
    """Encodes the groups of one partition."""

    codec: Codec
    settings: TopicSettings
    judge: Judge

    def encode(
        self,
        group: Sequence[Request],
        *,
        base_offset: int,
        now_ms: int,
        out: NDArray[np.uint8],
    ) -> EncodedGroup:
        """Gives every new request its offsets and encodes them all, into `out` where it fits."""
        joined = _Joined(self.codec.name, now_ms)
        outcomes: list[Outcome] = []
        stamps: list[Stamped] = []
        offset = base_offset
        for request in group:
            if request.stamp is not None:
                known = self.judge.judge(request.stamp, request.count)
                if known is not None:
                    outcomes.append(known)
                    continue
                stamps.append(Stamped(request.stamp, offset, request.count))
                self.judge.note(stamps[-1])
            outcomes.append(Ack(offset, request.count, "written"))
            joined.add(request)
            offset += request.count
        joined.flush()
        if self.settings.timestamp_type == "LogAppendTime":
            joined.batches = [_at(batch, now_ms) for batch in joined.batches]
        data, positions = _encode_all(self.codec, joined.batches, base_offset, out)
        return EncodedGroup(outcomes, stamps, data, positions, _timestamps(joined.batches))


def _encode_all(
    codec: Codec, batches: list[pa.RecordBatch], base_offset: int, out: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Encodes batches one behind the other."""
    if len(batches) == 1:
        return codec.encode(batches[0], base_offset, out)
    parts, positions, size, in_place = [], [], 0, True
    for batch in batches:
        room = out[size:] if in_place else None
        data, starts = codec.encode(batch, base_offset, room)
        in_place = in_place and np.shares_memory(data, out)
        parts.append(data)
        positions.append(starts + size)
        size += len(data)
        base_offset += batch.num_rows
    if not batches:
        return out[:0], np.empty(0, dtype=np.int64)
    joined = out[:size] if in_place else np.concatenate(parts)
    return joined, np.concatenate(positions)


def _at(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    times = pa.array(np.full(batch.num_rows, now_ms, dtype=np.int64)).cast(TIMESTAMP)
    index = batch.schema.get_field_index("timestamp")
    return batch.set_column(index, batch.schema.field(index), times)


def _timestamps(batches: list[pa.RecordBatch]) -> NDArray[np.int64]:
    parts = []
    for batch in batches:
        column = batch.column(batch.schema.get_field_index("timestamp"))
        view = np.frombuffer(column.buffers()[1], dtype=np.int64)
        parts.append(view[column.offset : column.offset + len(column)])
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def cut(
    positions: NDArray[np.int64], size: int, *, room: int, capacity: int, is_empty: bool
) -> list[tuple[slice, slice]]:
    """Cuts encoded records into (rows, bytes) for the current segment and those that follow it.

    The current one takes what fits its room (nothing is legal, unless it is empty); each further
    one takes what fits its capacity, and at least one record however large.
    """
    if size <= room:
        return [(slice(0, len(positions)), slice(0, size))]
    ends = np.append(positions[1:], size)
    parts: list[tuple[slice, slice]] = []
    row, byte, limit = 0, 0, room
    while row < len(positions):
        last = int(np.searchsorted(ends, byte + limit, side="right"))
        if last <= row:
            last = row + 1 if is_empty or parts else row
        end = int(ends[last - 1]) if last > row else byte
        parts.append((slice(row, last), slice(byte, end)))
        row, byte, limit = last, end, capacity
    return parts
