"""The sparse indexes of a segment in memory: the same entries however the records arrive."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.formats.log_format import CODECS
from lamina.formats.sparse_choice import START, select
from lamina.log.segment_index import SegmentIndex

BASE = 100
BOTH = pytest.mark.parametrize("name", CODECS)


def records(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions and times of records of about a size; times go up and down."""
    positions = np.arange(count, dtype=np.int64) * size
    times = 1000 + (np.arange(count, dtype=np.int64) * 37) % 11
    return positions, times


def built(name: str, count: int, size: int, pieces: list[int]) -> SegmentIndex:
    index = SegmentIndex(CODECS[name], BASE)
    positions, times = records(count, size)
    edges = sorted({0, count, *(each % (count + 1) for each in pieces)})
    for start, end in pairwise(edges):
        origin = int(positions[start])
        index.extend(
            positions[start:end] - origin,
            times[start:end],
            base_offset=BASE + start,
            origin=origin + 68,
        )
    return index


@BOTH
@given(st.integers(1, 60), st.sampled_from([100, 1500, 5000]), st.lists(st.integers(0, 60)))
def test_any_pieces_make_the_same_entries(
    name: str, count: int, size: int, pieces: list[int]
) -> None:
    index = built(name, count, size, pieces)
    positions, times = records(count, size)
    stride = CODECS[name].stride
    offsets, marks, state = select(positions, times, START, stride, base_offset=BASE, origin=68)
    assert index.offsets().tolist() == offsets.tolist()
    assert index.times().tolist() == marks.tolist()
    assert index.newest_timestamp_ms == state.maximum_ms == int(times.max())
    assert index.mark().state == state


@BOTH
def test_the_entry_at_or_before_an_offset_is_found(name: str) -> None:
    index = SegmentIndex(CODECS[name], BASE)
    assert index.position_for(BASE) is None
    assert index.newest_timestamp_ms is None
    index = built(name, 300, 1000, [])
    entries = index.offsets().tolist()
    assert len(entries) > 2
    assert index.position_for(BASE - 1) is None
    for (offset, position), (after, _) in pairwise(entries):
        assert index.position_for(offset) == (offset, position)
        assert index.position_for(after - 1) == (offset, position)
    assert index.position_for(10**9) == tuple(entries[-1])


@BOTH
def test_the_entry_before_a_time_is_found(name: str) -> None:
    index = SegmentIndex(CODECS[name], BASE)
    step = CODECS[name].stride.bytes
    index.extend(
        np.arange(4, dtype=np.int64) * step,
        np.array([5, 9, 7, 12], dtype=np.int64),
        base_offset=BASE,
        origin=0,
    )
    assert index.times()["timestamp_ms"].tolist() == [5, 9, 9, 12]
    assert [index.row_before_time(time) for time in (5, 6, 9, 10, 12, 13)] == [-1, 0, 0, 2, 2, 3]


@BOTH
def test_what_is_not_saved_is_counted_and_taken_once(name: str) -> None:
    index = built(name, 300, 1000, [])
    count = len(index.offsets())
    assert index.unsaved == count
    whole = index.all_bytes()
    assert index.unsaved == count
    before, offsets, times = index.take_unsaved()
    assert (before, index.unsaved) == (0, 0)
    assert (offsets, times) == whole
    step = CODECS[name].stride.bytes
    index.extend(np.array([0]), np.array([1]), base_offset=BASE + 300, origin=300_000 + step)
    assert index.unsaved == 1
    before, more, _ = index.take_unsaved()
    assert (before, index.unsaved) == (count, 0)
    assert offsets + more == index.all_bytes()[0]
    assert index.saved_bytes() == index.all_bytes()
    assert index.unsaved == 0


@BOTH
def test_an_index_goes_back_to_where_it_was_marked(name: str) -> None:
    index = built(name, 150, 1000, [])
    index.take_unsaved()
    mark, before = index.mark(), index.all_bytes()
    step = CODECS[name].stride.bytes
    for _ in range(2):
        index.extend(
            np.array([0, step]), np.array([10**6] * 2), base_offset=BASE + 150, origin=10**6
        )
        assert index.unsaved == 2
        index.take_unsaved()
        index.rewind(mark)
        assert (index.all_bytes(), index.mark(), index.unsaved) == (before, mark, 0)
        assert index.newest_timestamp_ms == 1010


@BOTH
def test_entries_from_disk_go_on_from_the_last_one(name: str) -> None:
    whole = built(name, 300, 1000, [])
    loaded = SegmentIndex(CODECS[name], BASE)
    assert loaded.trusted
    offsets, times = whole.offsets(), whole.times()
    loaded.load(offsets, times)
    assert not loaded.trusted
    assert loaded.unsaved == 0
    assert len(loaded.offsets()) == len(loaded.times()) == len(offsets) - 1
    assert loaded.newest_timestamp_ms == int(times["timestamp_ms"][-1])
    first = int(offsets["offset"][-1]) - BASE
    positions, stamps = records(300, 1000)
    loaded.extend(positions[first:], stamps[first:], base_offset=BASE + first, origin=68)
    assert loaded.all_bytes() == whole.all_bytes()
    assert loaded.unsaved == 1


@BOTH
def test_nothing_adds_nothing(name: str) -> None:
    index = built(name, 10, 100, [])
    before = index.mark()
    empty = np.empty(0, dtype=np.int64)
    index.extend(empty, empty, base_offset=BASE + 10, origin=5000)
    assert index.mark() == before
