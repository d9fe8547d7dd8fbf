"""Blocks that are read together give what they give one by one, or nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import CorruptData
from lamina.formats.strm import block_group, segment, write
from lamina.formats.strm.layout import Coding, Compression
from lamina.records import INPUT_SCHEMAS

NOW_MS = 1_700_000_000_000


def rows(count: int, *, enveloped: bool) -> list[dict[str, Any]]:
    made = []
    for number in range(count):
        row: dict[str, Any] = {
            "offset": 10 + number + (number > 40),
            "timestamp": NOW_MS - 7 * number,
            "key": None if number % 3 else b"k" * (number % 5),
            "value": bytes([number % 251]) * (40_000 + number),
        }
        if enveloped:
            row |= {"tag": b"t" * (number % 4), "node": None if number % 2 else b"n"}
        made.append(row)
    return made


def object_of(coding: Coding, *, enveloped: bool = False, count: int = 150) -> memoryview:
    batch = pa.RecordBatch.from_pylist(
        rows(count, enveloped=enveloped), schema=INPUT_SCHEMAS["strm"]
    )
    return write.encode(batch, coding, topic="t", partition=0, created_at_ms=NOW_MS)


def one_by_one(found: segment.Segment, data: memoryview, first: int, end: int) -> pa.Table:
    spans = [(number, *found.block_range(number)) for number in range(first, end)]
    return pa.Table.from_batches(
        [segment.read_block(found, number, data[start:stop]) for number, start, stop in spans]
    ).combine_chunks()


def together(
    found: segment.Segment, data: memoryview, first: int, end: int
) -> block_group.Group | None:
    start, stop = found.block_range(first)[0], found.block_range(end - 1)[1]
    return block_group.read_group(found, first, end, data[start:stop])


@pytest.mark.parametrize("enveloped", [False, True])
@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.NONE])
def test_a_group_is_its_blocks(compression: Compression, enveloped: bool) -> None:
    data = object_of(Coding(compression, enveloped), enveloped=enveloped)
    found = segment.open_segment(data)
    assert len(found) >= 5
    for first in range(len(found)):
        for end in range(first + 1, min(len(found), first + block_group.GROUP_BLOCKS) + 1):
            read = together(found, data, first, end)
            assert read is not None
            expected = one_by_one(found, data, first, end)
            assert pa.Table.from_batches([read.batch]).combine_chunks().equals(expected)
            read.batch.validate(full=True)
            counts = [one_by_one(found, data, n, n + 1).num_rows for n in range(first, end)]
            assert read.rows.tolist() == counts
    whole = pa.Table.from_batches(segment.read_from(data)).combine_chunks()
    assert whole.equals(one_by_one(found, data, 0, len(found)))


def test_zstd_and_huge_blocks_are_read_one_by_one() -> None:
    zstd = object_of(Coding(Compression.ZSTD))
    assert together(segment.open_segment(zstd), zstd, 0, 2) is None
    batch = pa.RecordBatch.from_pylist(
        [{"offset": n, "timestamp": 0, "value": bytes(5 << 20)} for n in range(2)],
        schema=INPUT_SCHEMAS["strm"],
    )
    data = write.encode(batch, topic="t", partition=0, created_at_ms=NOW_MS)
    assert together(segment.open_segment(data), data, 0, 2) is None
    assert sum(each.num_rows for each in segment.read_from(data)) == 2


def test_one_bad_byte_makes_no_group_and_names_its_block() -> None:
    data = bytearray(object_of(Coding()))
    found = segment.open_segment(data)
    start, end = found.block_range(2)
    for position in range(start, end, 7):
        data[position] ^= 0x10
        view = memoryview(data)
        assert together(found, view, 1, 4) is None
        assert together(found, view, 0, 2) is not None
        with pytest.raises(CorruptData):
            segment.read_block(found, 2, view[start:end])
        data[position] ^= 0x10
    assert together(found, memoryview(data), 1, 4) is not None


def test_blocks_that_contradict_the_index_are_no_group() -> None:
    data = object_of(Coding())
    found = segment.open_segment(data)
    for row in (1, 2):
        for delta in (-1, 1):
            offsets = found.offsets.copy()
            offsets[row] += delta
            wrong = segment.Segment(found.header, found.footer, offsets, found.positions)
            assert together(wrong, data, 0, 3) is None
            with pytest.raises(CorruptData):
                one_by_one(wrong, data, 0, 3)
