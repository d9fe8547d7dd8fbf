"""Writing a STRM object: varint records, cut into blocks, compressed, indexed.

A record inside a block, before compression:

    | field           | type    | meaning                                                         |
    |-----------------|---------|-----------------------------------------------------------------|
    | offset_delta    | varint  | offset minus the block's base offset                            |
    | timestamp_delta | varint  | the first record: its timestamp; the others: minus that, mod 2⁶⁴ |
    | key_len         | varint  | bytes of key; -1 for no key                                     |
    | key             | bytes   |                                                                 |
    | value_len       | varint  | bytes of value                                                  |
    | value           | bytes   | in an enveloped object: u32 length, envelope, value             |

A varint is zigzag LEB128: ((n << 1) ^ (n >> 63)) in groups of 7 bits, lowest first.

Rules.
1. A block is cut before a record that would pass `BLOCK_BYTES_TARGET`, counting 10 + key_len +
   value_len for each record: cuts do not depend on how records were split into batches, and no
   block comes near `BLOCK_RECORDS_MAX`.
2. A refused batch leaves the writer as it was.
3. Blocks are compressed by one pure function, `seal`, which releases the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import InvalidRequest
from lamina.formats import envelope
from lamina.formats.kernels import arrow
from lamina.formats.kernels.binary import (
    address_of,
    as_bytes,
    copy,
    poke_u32_be,
    wrapping_subtract,
)
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.kernels.fnv import fnv1a_64
from lamina.formats.kernels.varint import put_varint
from lamina.formats.strm.block import crc32_of
from lamina.formats.strm.layout import (
    BLOCK,
    BLOCK_BYTES_MAX,
    FOOTER,
    HEADER,
    UNCOVERED_BYTES,
    Coding,
    Compression,
    Footer,
    Header,
    encode_footer,
    encode_header,
    encode_index,
)
from lamina.records import INPUT_SCHEMAS

BLOCK_BYTES_TARGET = 1 << 20
ZSTD_LEVEL = 3

_ESTIMATED_OVERHEAD = 10
_VARINTS_BYTES_MAX = 4 * 10
_RECORD_COUNT_MAX = 0xFFFFFFFF
_ENVELOPED_COLUMNS = ("headers", "tag", "node")
# The open block, as the kernel keeps it from batch to batch.
_LENGTH, _ESTIMATE, _BASE_OFFSET, _FIRST_TIMESTAMP, _CUTS = 0, 1, 2, 3, 4
# What it saw of all records: the last offset, times; and whether offsets of the batch do not rise.
_LAST_OFFSET, _TIME_MIN, _TIME_MAX, _DISORDER = 5, 6, 7, 8
_NOTHING_YET = (0, 0, 0, 0, 0, -1, (1 << 63) - 1, -(1 << 63), 0)


class RawBlock(NamedTuple):
    """The records of one block, before compression."""

    base_offset: int
    record_count: int
    data: NDArray[np.uint8]


class SealedBlock(NamedTuple):
    """One block as it stands in the object, header included."""

    base_offset: int
    data: NDArray[np.uint8]


Seal: TypeAlias = Callable[[RawBlock], SealedBlock]
MapBlocks: TypeAlias = Callable[[Seal, Iterable[RawBlock]], Iterable[SealedBlock]]


def seal(block: RawBlock, compression: Compression) -> SealedBlock:
    """Compresses a block and puts its header in front."""
    payload, prefix = block.data, b""
    if compression is Compression.LZ4:
        prefix = len(block.data).to_bytes(4, "little")
        payload = as_bytes(pa.Codec("lz4_raw").compress(block.data))
    elif compression is Compression.ZSTD:
        payload = as_bytes(pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(block.data))
    start = BLOCK.size + len(prefix)
    data = arrow.empty_bytes(start + len(payload))
    data[BLOCK.size : start] = as_bytes(prefix) if prefix else 0
    data[start:] = payload
    header = BLOCK.pack(
        uncompressed_size=len(block.data),
        compressed_size=len(data) - BLOCK.size,
        record_count=block.record_count,
        crc32=crc32_of(data[BLOCK.size :]),
    )
    data[: BLOCK.size] = as_bytes(header)
    return SealedBlock(block.base_offset, data)


class Writer:
    """Builds one object from batches in offset order; only compressed blocks stay in memory.

    `map_blocks` runs `seal` over the blocks of one batch: `map` does it here and now, an executor's
    `map` on several cores.
    """

    def __init__(self, coding: Coding = Coding(), map_blocks: MapBlocks = map) -> None:
        self.coding = coding
        self._map_blocks = map_blocks
        self._blocks: list[SealedBlock] = []
        self._sealed_bytes = 0
        self._raw = np.empty(0, dtype=np.uint8)
        self._state = np.array(_NOTHING_YET, dtype=np.int64)
        self._open_count = 0
        self._record_count = 0

    @property
    def size(self) -> int:
        """The bytes of the object so far: sealed blocks, and the open one before compression."""
        return self._sealed_bytes + int(self._state[_LENGTH])

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds records; their offsets must rise above those before, holes are legal.

        Raises InvalidRequest, and adds nothing, for offsets out of order, for a record that needs
        an envelope when the coding has none, for one over `BLOCK_BYTES_MAX`, and for a header's
        name that is not UTF-8.
        """
        if not batch.schema.equals(INPUT_SCHEMAS["strm"]):
            raise InvalidRequest("a batch with the columns of INPUT_SCHEMAS['strm'] is needed")
        if batch.num_rows == 0:
            return
        self._check(batch)
        offsets: NDArray[np.int64] = batch.column("offset").to_numpy()
        state = self._state.copy()
        cut_rows = np.empty(batch.num_rows, dtype=np.int64)
        open_part = self._raw[: state[_LENGTH]]
        raw, cuts = arrow.encode_with(
            *(_encode, batch, INPUT_SCHEMAS["strm"], self._raw),
            *((open_part, state), cut_rows, self.coding.enveloped),
        )
        if state[_DISORDER]:
            raise InvalidRequest(f"offsets must rise, above {self._state[_LAST_OFFSET]}")
        count = int(state[_CUTS])
        base_offsets = [int(self._state[_BASE_OFFSET]), *offsets[cut_rows[:count]].tolist()]
        if self._open_count == 0:
            base_offsets[0] = int(offsets[0])
        rows = [-self._open_count, *cut_rows[:count].tolist()]
        starts = [0, *cuts[:count].tolist()]
        self._seal_all(
            RawBlock(base_offsets[i], rows[i + 1] - rows[i], raw[starts[i] : starts[i + 1]])
            for i in range(count)
        )
        self._keep_open(raw, starts[-1], state, batch.num_rows - rows[-1])
        self._record_count += batch.num_rows

    def finish(self, *, topic: str, partition: int, created_at_ms: int) -> memoryview:
        """Returns the whole object. Raises InvalidRequest if nothing was added."""
        if self._record_count == 0:
            raise InvalidRequest("an empty segment is not written")
        if self._open_count:
            raw = self._raw[: self._state[_LENGTH]]
            self._seal_all([RawBlock(int(self._state[_BASE_OFFSET]), self._open_count, raw)])
            self._open_count = 0
            self._state[_LENGTH] = self._state[_ESTIMATE] = 0
        header = Header(
            coding=self.coding,
            topic_hash=fnv1a_64(topic.encode()),
            partition=partition,
            base_offset=self._blocks[0].base_offset,
            max_offset=int(self._state[_LAST_OFFSET]),
            record_count=self._record_count,
            created_at_ms=created_at_ms,
            min_timestamp_ms=int(self._state[_TIME_MIN]),
            max_timestamp_ms=int(self._state[_TIME_MAX]),
        )
        return _assemble(header, self._blocks)

    def _check(self, batch: pa.RecordBatch) -> None:
        """Refuses what this object cannot hold."""
        if batch.column("offset").null_count or batch.column("timestamp").null_count:
            raise InvalidRequest("offsets and timestamps cannot be null")
        if self._record_count + batch.num_rows > _RECORD_COUNT_MAX:
            raise InvalidRequest("an object holds fewer than 2^32 records")
        if not self.coding.enveloped:
            full = dict.fromkeys(_ENVELOPED_COLUMNS, batch.num_rows) | {"value": 0}
            for name, nulls in full.items():
                if batch.column(name).null_count != nulls:
                    raise InvalidRequest(f"column {name!r} needs an object with enveloped values")

    def _seal_all(self, blocks: Iterable[RawBlock]) -> None:
        sealed = list(self._map_blocks(self._seal, blocks))
        self._blocks += sealed
        self._sealed_bytes += sum(len(block.data) for block in sealed)

    def _seal(self, block: RawBlock) -> SealedBlock:
        return seal(block, self.coding.compression)

    def _keep_open(
        self, raw: NDArray[np.uint8], start: int, state: NDArray[np.int64], record_count: int
    ) -> None:
        """Moves the block that is still open to the front of the buffer, for the next batch."""
        length = len(raw) - start
        # `raw` is a slice of ours or, where that was too small, of a new one: keep all of it.
        self._raw = raw.base if isinstance(raw.base, np.ndarray) else raw
        if start > 0:
            self._raw[:length] = self._raw[start : start + length]
        state[_LENGTH] = length
        self._state = state
        self._open_count = record_count


def encode(
    batch: pa.RecordBatch,
    coding: Coding = Coding(),
    *,
    topic: str,
    partition: int,
    created_at_ms: int,
) -> memoryview:
    """Encodes one batch as a whole object, as `Writer` does."""
    writer = Writer(coding)
    writer.add(batch)
    return writer.finish(topic=topic, partition=partition, created_at_ms=created_at_ms)


def _assemble(header: Header, blocks: list[SealedBlock]) -> memoryview:
    ends = HEADER.size + np.cumsum([len(block.data) for block in blocks], dtype=np.int64)
    positions = np.concatenate([[HEADER.size], ends[:-1]])
    offsets = np.array([block.base_offset for block in blocks], dtype=np.int64)
    index = encode_index(offsets, positions)
    index_offset = int(ends[-1])
    footer_start = index_offset + len(index)
    data = arrow.empty_bytes(footer_start + FOOTER.size)
    data[: HEADER.size] = as_bytes(encode_header(header))
    for position, block in zip(positions.tolist(), blocks, strict=True):
        data[position : position + len(block.data)] = block.data
    data[index_offset:footer_start] = as_bytes(index)
    footer = Footer(index_offset, len(index), file_crc=0)
    data[footer_start:] = as_bytes(encode_footer(footer))
    footer = replace(footer, file_crc=crc32_of(data[:-UNCOVERED_BYTES]))
    data[footer_start:] = as_bytes(encode_footer(footer))
    return data.data


# ---------------------------------------------------------------- kernels


@inlined
def _room_for(rows: int, fields: Any, enveloped: bool) -> int:
    """The most that the records of a batch can take, unless the batch is broken."""
    room = rows * _VARINTS_BYTES_MAX + arrow.spread(fields[0], rows) + arrow.spread(fields[1], rows)
    if enveloped:
        room += 4 * rows + envelope.spread(fields, rows)
    return room


@inlined
def _measure(fields: Any, row: int, enveloped: bool) -> tuple[int, int, int, int]:
    """What a row stores: (key bytes, flags, envelope bytes, value bytes).

    -1 key bytes are no key, -1 envelope bytes no envelope; value bytes below 0 are a broken batch,
    or `envelope.NOT_UTF8`.
    """
    keys, values = fields[0], fields[1]
    key_len = arrow.slot(keys, row)[1]
    value_len = arrow.slot(values, row)[1]
    if arrow.is_null(keys, row):
        key_len = -1
    elif key_len < 0:
        return -1, 0, -1, -1
    if not enveloped:
        return key_len, 0, -1, value_len
    flags = envelope.flags_of(fields, row) & ~envelope.KEY
    envelope_len = envelope.size_of(fields, row, flags)
    if envelope_len < 0:
        return -1, 0, -1, envelope_len
    if flags & envelope.NULL_VALUE:
        value_len = 0
    return key_len, flags, envelope_len, value_len


@inlined
def _put_record(target: int, fields: Any, row: int, deltas: Any, sizes: Any) -> Any:
    """Writes one record; returns the address after it."""
    key_len, flags, envelope_len, value_len = sizes
    target = put_varint(put_varint(target, deltas[0]), deltas[1])
    target = put_varint(target, key_len)
    if key_len > 0:
        copy(target, arrow.slot(fields[0], row)[0], key_len)
        target += key_len
    if envelope_len < 0:
        target = put_varint(target, value_len)
    else:
        target = put_varint(target, 4 + envelope_len + value_len)
        poke_u32_be(target, envelope_len)
        envelope.write(target + 4, fields, row, flags)
        target += 4 + envelope_len
    copy(target, arrow.slot(fields[1], row)[0], value_len)
    return target + value_len


@kernel
def _encode(
    batch: int, out: Any, cuts: Any, open_block: Any, cut_rows: Any, enveloped: bool
) -> tuple[int, int]:
    """Appends all rows to the open block in `out`, noting where new blocks start.

    `open_block` is (its bytes, which may lie at the start of `out` already; its state).
    """
    opened, state = open_block
    rows = arrow.length_of(batch)
    offsets, timestamps = arrow.fixed_column(batch, 0), arrow.fixed_column(batch, 1)
    fields = (
        *(arrow.column(batch, 2), arrow.column(batch, 3), envelope.header_columns(batch, 4)),
        *(arrow.column(batch, 5), arrow.column(batch, 6)),
    )
    if rows > min(len(cuts), len(cut_rows)):
        return arrow.BROKEN, min(len(cuts), len(cut_rows))
    needed = len(opened) + _room_for(rows, fields, enveloped)
    if needed > len(out):
        return arrow.NO_ROOM, needed + BLOCK_BYTES_TARGET  # for the open block, as it grows
    start = address_of(out)
    if address_of(opened) != start:
        copy(start, address_of(opened), len(opened))
    target, limit = start + len(opened), start + len(out)
    block, estimate = start, state[_ESTIMATE]
    base_offset, first_timestamp = state[_BASE_OFFSET], state[_FIRST_TIMESTAMP]
    last_offset, least, most = state[_LAST_OFFSET], state[_TIME_MIN], state[_TIME_MAX]
    count = 0
    for row in range(rows):
        sizes = _measure(fields, row, enveloped)
        if sizes[3] < 0:
            return (arrow.BAD_NAME if sizes[3] == envelope.NOT_UTF8 else arrow.BROKEN), row
        body = max(sizes[0], 0) + sizes[3]
        if enveloped:
            body += 4 + sizes[2]
        if body + _VARINTS_BYTES_MAX > limit - target:
            return arrow.BROKEN, row
        if target > block and estimate + _ESTIMATED_OVERHEAD + body > BLOCK_BYTES_TARGET:
            cuts[count], cut_rows[count] = target - start, row
            count += 1
            block, estimate = target, 0
        estimate += _ESTIMATED_OVERHEAD + body
        offset, timestamp = arrow.number(offsets, row), arrow.number(timestamps, row)
        if offset <= last_offset:
            state[_DISORDER] = 1
            break
        last_offset, least, most = offset, min(least, timestamp), max(most, timestamp)
        deltas = (offset - base_offset, wrapping_subtract(timestamp, first_timestamp))
        if target == block:
            base_offset, first_timestamp = offset, timestamp
            deltas = (0, timestamp)
        record = target
        target = _put_record(target, fields, row, deltas, sizes)
        if target - record > BLOCK_BYTES_MAX:
            return arrow.TOO_LARGE, row
    state[_ESTIMATE], state[_CUTS] = estimate, count
    state[_BASE_OFFSET], state[_FIRST_TIMESTAMP] = base_offset, first_timestamp
    state[_LAST_OFFSET], state[_TIME_MIN], state[_TIME_MAX] = last_offset, least, most
    return arrow.OK, target - start
