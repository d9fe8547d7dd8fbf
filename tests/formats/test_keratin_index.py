"""Keratin's indexes: both are derived from the log, and damage in them is found."""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, NewerFormat
from lamina.formats import sparse_index
from lamina.formats.keratin import index, log, time_index
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Limit, Run, runs
from lamina.formats.sparse_choice import Stride
from tests.formats.test_keratin_golden import (
    NOW,
    based,
    crc,
    file_header,
    golden,
    joined,
    segment_of_a_thousand,
)
from tests.support.contract import grows_at_most, mutate, plain
from tests.support.strategies import MILLISECONDS, batch_of

BOTH = [(index, "keratin-idx.bin"), (time_index, "keratin-tidx.bin")]


def own(base_offset: int, entry_len: int = 16) -> list[tuple[bytes, str]]:
    return [*based(base_offset), (struct.pack(">HH", entry_len, 0), "")]


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_every_prefix_is_refused_or_read_without_its_last_entry(
    module: ModuleType, name: str
) -> None:
    data = golden(name)
    whole = module.decode(data).entries.tolist()
    for size in range(len(data)):
        if size < 72:
            with pytest.raises(CorruptData):
                module.decode(data[:size])
        else:
            found = module.decode(data[:size])
            assert found.entries.tolist() == whole[: (size - 72) // 16]
            assert found.cut_bytes == (size - 72) % 16


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_every_single_byte_change_of_a_header_is_refused(module: ModuleType, name: str) -> None:
    data = golden(name)
    for position in range(72):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= change
            with pytest.raises(CorruptData) as refused:
                module.decode(damaged)
            assert not isinstance(refused.value, NewerFormat)


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_hostile_indexes_are_refused_or_ascend(module: ModuleType, name: str) -> None:
    data, drawn = golden(name), random.Random(20_240_603)
    refused: list[int] = []
    with grows_at_most(64 << 10):
        for _ in range(2_000):
            hostile = mutate(data[72:], drawn)
            try:
                found = module.decode(data[:72] + hostile)
            except CorruptData as error:
                refused.append(error.position - 72)
                continue
            offsets = found.entries["offset"]
            assert np.all(offsets[1:] > offsets[:-1])
            assert len(offsets) * 16 + found.cut_bytes == len(hostile)
        assert set(refused) <= set(range(0, 400, 16)), "a position is where an entry begins"


def test_one_index_is_not_taken_for_the_other() -> None:
    with pytest.raises(CorruptData):
        index.decode(golden("keratin-tidx.bin"))
    with pytest.raises(CorruptData):
        time_index.decode(golden("keratin-idx.bin"))


def test_headers_that_no_file_can_have_are_refused() -> None:
    with pytest.raises(NewerFormat, match="entry_len"):
        index.decode(joined(file_header(b"KIDX", 72, own(0, 24))))
    with pytest.raises(CorruptData, match="base_offset"):
        index.decode(joined(file_header(b"KIDX", 72, own(1 << 63))))
    huge = joined(file_header(b"KIDX", 72, own((1 << 63) - 2)))
    entries = struct.pack(">IIQ", 0, 0, 68) + struct.pack(">IIQ", 2, 0, 99)
    assert len(index.decode(huge + entries[:16]).entries) == 1
    with pytest.raises(CorruptData, match="out of range"):
        index.decode(huge + entries)


@pytest.mark.parametrize("second", [(0, 0, 200), (5, 0, 68), (5, 0, 67), (5, 0, 1 << 63)], ids=str)
def test_entries_that_do_not_grow_are_refused_at_their_position(second: Any) -> None:
    data = joined(file_header(b"KIDX", 72, own(42)))
    data += struct.pack(">IIQ", 0, 0, 68) + struct.pack(">IIQ", *second)
    with pytest.raises(CorruptData) as caught:
        index.decode(data)
    assert caught.value.position == 72 + 16


def test_times_may_stay_but_not_fall() -> None:
    head = joined(file_header(b"KTIX", 72, own(42)))
    first = struct.pack(">qII", 5, 0, 0)
    assert len(time_index.decode(head + first + struct.pack(">qII", 5, 1, 0)).entries) == 2
    with pytest.raises(CorruptData, match="timestamp_ms"):
        time_index.decode(head + first + struct.pack(">qII", 4, 1, 0))
    lowest = struct.pack(">qII", -(1 << 63), 0, 0)
    assert len(time_index.decode(head + lowest + struct.pack(">qII", 4, 1, 0)).entries) == 2


def test_an_offset_that_needs_more_than_32_bits_is_refused() -> None:
    entries = np.array([(42, 68), (42 + (1 << 32) - 1, 99)], dtype=sparse_index.OFFSET_ENTRY)
    data = index.encode_header(42, NOW) + index.encode(entries, base_offset=42)
    assert index.decode(data).entries.tolist() == entries.tolist()
    with pytest.raises(ValueError, match="2\\^32"):
        index.encode(entries, base_offset=41)
    with pytest.raises(ValueError, match="2\\^32"):
        index.encode(entries, base_offset=43)


def test_every_offset_is_found_from_where_the_index_points() -> None:
    segment = segment_of_a_thousand()
    entries = index.rebuild(segment, stride=Stride(bytes=1_000))
    assert len(entries) == 125
    for offset in (42, 43, 50, 524, 999, 1_041):
        entry = sparse_index.entry_for(entries, offset)
        assert entry is not None
        found = log.scan(segment, entry[1], limit=Limit(max_records=8))
        assert offset in log.decode(segment, found).column("offset").to_pylist()
    assert sparse_index.entry_for(entries, 41) is None
    assert sparse_index.entry_for(entries[:0], 42) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(MILLISECONDS, min_size=1, max_size=60), MILLISECONDS)
def test_no_record_at_or_after_a_time_is_before_the_place_to_start(
    times: list[int], wanted: int
) -> None:
    batch = batch_of([{"timestamp": time, "value": b"x" * 30} for time in times], "keratin")
    segment = log.encode_header(42, NOW) + log.encode(batch, 42)[0].tobytes()
    entries = time_index.rebuild(segment, stride=Stride(bytes=200))
    row = sparse_index.row_before_time(entries, wanted)
    start = 42 if row < 0 else int(entries["offset"][row]) + 1
    assert all(time < wanted for time in times[: start - 42])
    data = time_index.encode_header(42, NOW) + time_index.encode(entries, base_offset=42)
    assert time_index.decode(data).entries.tolist() == entries.tolist()


def test_a_time_index_agrees_only_with_its_own_index() -> None:
    segment = segment_of_a_thousand()
    entries = index.rebuild(segment)
    assert sparse_index.times_agree(time_index.rebuild(segment), entries)
    shifted = entries.copy()
    shifted["offset"] += 1
    assert not sparse_index.times_agree(time_index.rebuild(segment), shifted)


def test_a_rebuild_goes_on_after_a_damaged_spot() -> None:
    segment = bytearray(segment_of_a_thousand())
    whole = index.rebuild(segment)
    segment[70_000] ^= 1
    entries = index.rebuild(segment)
    assert entries.tolist() == whole.tolist()
    steps = list(runs(OffsetLog(log, segment), log.FILE_HEADER_BYTES))
    rows = sum(len(step.found) for step in steps if isinstance(step, Run))
    assert rows == 999
    assert sparse_index.times_agree(time_index.rebuild(segment), entries)
    firsts = [step.first for step in steps if isinstance(step, Run)]
    assert firsts == [42, 42 + (70_000 - 68) // 136 + 1]


def test_an_empty_log_has_an_empty_index() -> None:
    head = log.encode_header(42, NOW)
    assert len(index.rebuild(head)) == len(time_index.rebuild(head)) == 0
    assert sparse_index.row_before_time(time_index.rebuild(head), 0) == -1
    assert plain(log.decode(head, log.scan(head))) == []
    assert crc(head[:64]) == head[64:]
