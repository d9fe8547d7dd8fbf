"""From requests to bytes: assigns offsets, joins small requests, encodes, cuts at segment ends.

Pure, except that it asks the producers. Requests of plain values (`list[bytes]`) that stand next to
each other become one batch, so that a thousand small producers cost one encode. Large ones are
encoded piece by piece into the same memory, which stays in the processor's cache, and one piece is
on its way to the disk while the next is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import Ack, ProducerStamp
from lamina.config import TopicSettings
from lamina.formats.kernels.arrow import PlainValues
from lamina.formats.log_format import Codec
from lamina.log.requests import Outcome, Request
from lamina.records import INPUT_SCHEMAS, TIMESTAMP, prepare

PIECE_BYTES = 2 << 20
"""Records are encoded together up to this size."""
Part: TypeAlias = pa.RecordBatch | list[bytes]


class Judge(Protocol):
    """Whether an idempotent append is new: see `producers.Producers`."""

    def judge(self, stamp: ProducerStamp, count: int) -> Outcome | None:
        """Returns the answer to a repeat or a zombie, None for what is new."""

    def note(self, stamped: Stamped) -> None:
        """Notes what was new and where it goes, until the group is kept or taken back."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A new append of an idempotent producer, and where it goes."""

    stamp: ProducerStamp
    base_offset: int
    count: int


@dataclass(slots=True)
class Judged:
    """A group whose requests have their offsets: an outcome each, and what has to be written."""

    outcomes: list[Outcome]
    stamps: list[Stamped]
    accepted: list[Request]
    base_offset: int
    size_bytes: int


@dataclass(slots=True)
class Piece:
    """A part of a group as it goes to disk; positions count from the first byte."""

    data: NDArray[np.uint8]
    positions: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    is_last: bool = True


class GroupEncoder:
    """Encodes the groups of one partition; for its leader alone."""

    def __init__(self, codec: Codec, judge: Judge) -> None:
        self._codec = codec
        self._judge = judge
        schema = INPUT_SCHEMAS[codec.name]
        self._time_column: int = schema.get_field_index("timestamp")
        self._plain = PlainValues(schema)
        self._out = np.empty(2 * PIECE_BYTES, dtype=np.uint8)

    def judge(self, group: Sequence[Request], base_offset: int) -> Judged:
        """Assigns offsets to every new request."""
        outcomes: list[Outcome] = []
        stamps: list[Stamped] = []
        accepted: list[Request] = []
        offset, size_bytes = base_offset, 0
        for request in group:
            if request.stamp is not None:
                known = self._judge.judge(request.stamp, request.count)
                if known is not None:
                    outcomes.append(known)
                    continue
                stamps.append(Stamped(request.stamp, offset, request.count))
                self._judge.note(stamps[-1])
            outcomes.append(Ack(offset, request.count, "written"))
            accepted.append(request)
            offset += request.count
            size_bytes += request.size_bytes
        return Judged(outcomes, stamps, accepted, base_offset, size_bytes)

    def pieces(self, judged: Judged, settings: TopicSettings, now_ms: int) -> Iterator[Piece]:
        """Encodes what was accepted; a piece is valid until the next one is asked for."""
        if judged.size_bytes <= PIECE_BYTES:
            run = [request.records for request in judged.accepted]
            yield self._encode(run, settings, judged.base_offset, now_ms)
            return
        offset = judged.base_offset
        runs = list(_runs(judged.accepted))
        for number, run in enumerate(runs, 1):
            piece = self._encode(run, settings, offset, now_ms)
            piece.is_last = number == len(runs)
            offset += len(piece.positions)
            yield piece

    def _encode(
        self,
        accepted: list[Part],
        settings: TopicSettings,
        base_offset: int,
        now_ms: int,
    ) -> Piece:
        values = _plain_values(accepted)
        if values is not None:
            self._plain.fill(values, now_ms)
            data, positions = self._codec.encode_values(self._plain, base_offset, self._out)
            return Piece(data, positions, self._plain.times())
        batch = self._joined_batch(accepted, now_ms)
        if settings.timestamp_type == "LogAppendTime":
            batch = at_time(batch, now_ms)
        data, positions = self._codec.encode(batch, base_offset, self._out)
        return Piece(data, positions, _timestamps(batch.column(self._time_column)))

    def _joined_batch(self, accepted: list[Part], now_ms: int) -> pa.RecordBatch:
        """Makes one batch of all: copying small ones together is cheaper than encoding each."""
        batches = []
        for is_plain, run in groupby(accepted, key=lambda records: type(records) is list):
            if is_plain:
                values = list(chain.from_iterable(run))
                batches.append(prepare(values, self._codec.name, now_ms=now_ms))
            else:
                batches += run
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _runs(requests: list[Request]) -> Iterator[list[Part]]:
    """What is encoded together: many small requests, or rows of a large one."""
    run: list[Part] = []
    run_bytes = 0
    for request in requests:
        size_bytes = request.size_bytes
        if size_bytes > PIECE_BYTES and isinstance(request.records, pa.RecordBatch):
            size_bytes = request.records.nbytes  # of a slice; its buffers are those of the whole
        for part in _parts(request, size_bytes):
            part_bytes = size_bytes * len(part) // request.count
            if run and run_bytes + part_bytes > PIECE_BYTES:
                yield run
                run, run_bytes = [], 0
            run.append(part)
            run_bytes += part_bytes
    if run:
        yield run


def _parts(request: Request, size_bytes: int) -> Iterator[Part]:
    """The rows of a request, in parts of one size where they are large; at least a row each."""
    parts = -(-size_bytes // PIECE_BYTES)
    rows = -(-request.count // max(1, parts))
    for start in range(0, request.count, rows):
        yield request.records if parts <= 1 else request.records[start : start + rows]


def _plain_values(parts: list[Part]) -> list[bytes] | None:
    """The values of all parts in one list, if none of them has anything else."""
    if len(parts) == 1:
        return parts[0] if type(parts[0]) is list else None
    if any(type(part) is not list for part in parts):
        return None
    return list(chain.from_iterable(parts))


def at_time(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """Returns a batch with every timestamp replaced by one."""
    times = pa.array(np.full(batch.num_rows, now_ms, dtype=np.int64)).cast(TIMESTAMP)
    index = batch.schema.get_field_index("timestamp")
    return batch.set_column(index, batch.schema.field(index), times)


def _timestamps(column: pa.Array) -> NDArray[np.int64]:
    """Views timestamps, which are never null in an input schema."""
    start_bytes = column.offset * 8
    return np.frombuffer(column.buffers()[1], np.int64, len(column), start_bytes)


def cut(
    positions: NDArray[np.int64], size: int, *, room: int, capacity: int, is_empty: bool
) -> list[tuple[slice, slice]]:
    """Cuts encoded records into (rows, bytes) for the current segment and those that follow it.

    The current one takes what fits its room (nothing is legal, unless it is empty); each further
    one takes what fits its capacity, and at least one record however large.
    """
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
