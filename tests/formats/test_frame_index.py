"""The sparse indexes of frame: the policy, the bytes, the look-ups, and rebuilding."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina.errors import CorruptData
from lamina.formats import sparse_index
from lamina.formats.frame import index, log, time_index
from lamina.formats.offset_log import OffsetLog
from lamina.formats.scan import Limit, Run, Scan, runs
from lamina.formats.sparse_choice import START, Entries, Sparse, Stride, select

GOLDEN = Path(__file__).parents[1] / "golden"
TIME = 1_700_000_000_000
EXTREMES = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 9))


def frame_by_hand(offset: int, timestamp_ms: int, value: bytes) -> bytes:
    """A frame without a key, made from the document's tables only."""
    head = struct.pack("<IHHqqII", 0xB10B5E01, 1, 0, offset, timestamp_ms, 0, len(value)) + value
    return head + struct.pack("<II", zlib.crc32(head), 40 + len(value))


def log_by_hand(sizes: list[int], timestamps: list[int], base_offset: int = 0) -> bytes:
    return b"".join(
        frame_by_hand(base_offset + row, time, b"v" * size)
        for row, (size, time) in enumerate(zip(sizes, timestamps, strict=True))
    )


def golden_log() -> bytes:
    times = [TIME + row if row < 100 else TIME for row in range(201)]
    return log_by_hand([3] * 201, times)


def chosen_plainly(positions: list[int], stride: Stride) -> list[int]:
    """The policy as its sentence says it, over all records at once."""
    rows: list[int] = []
    for row, position in enumerate(positions):
        far = bool(rows) and position - positions[rows[-1]] >= stride.bytes
        many = bool(rows) and stride.records is not None and row - rows[-1] >= stride.records
        if not rows or far or many:
            rows.append(row)
    return rows


def numbers(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


# ---------------------------------------------------------------- the policy


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 100), st.integers(1, 9000)), max_size=400),
    st.lists(st.integers(0, 400), max_size=6),
    st.sampled_from([Stride(4096, 100), Stride(65_536), Stride(100, 3), Stride(1, 1)]),
    st.integers(0, 1 << 40),
)
def test_any_cut_into_batches_selects_what_the_sentence_says(
    sizes: list[int], cuts: list[int], stride: Stride, header: int
) -> None:
    positions = (header + np.concatenate([[0], np.cumsum(sizes)])).astype(np.int64)
    edges = [0, *sorted(min(cut, len(positions)) for cut in cuts), len(positions)]
    found: list[tuple[int, int]] = []
    state = START
    for start, end in pairwise(edges):
        batch = positions[start:end]
        origin = int(batch[0]) if len(batch) else 0
        offsets, _, state = select(
            batch - origin, batch, state, stride, base_offset=7 + start, origin=origin
        )
        found += offsets.tolist()
    rows = chosen_plainly(positions.tolist(), stride)
    assert found == [(7 + row, int(positions[row])) for row in rows]
    last = int(positions[rows[-1]])
    assert state == Sparse(last, len(positions) - rows[-1], int(positions[-1]))


def selected(positions: NDArray[np.int64], stride: Stride) -> tuple[list[int], Sparse]:
    """The rows that are chosen of a file's records, and the state after them."""
    offsets, _, state = select(positions, positions, START, stride, base_offset=0, origin=0)
    return offsets["offset"].tolist(), state


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([0, 4095, 4096, 8191, 8192], [0, 2, 4]),
        ([0, 4097, 8192, 8193], [0, 1, 3]),
        (list(range(0, 40 * 205, 40)), [0, 100, 200]),
        ([], []),
    ],
)
def test_the_strides_of_frame(positions: list[int], expected: list[int]) -> None:
    assert selected(numbers(positions), index.STRIDE)[0] == expected


def test_a_state_is_found_again_from_the_last_indexed_record() -> None:
    positions = np.arange(0, 30_000, 43, dtype=np.int64)
    rows, state = selected(positions, index.STRIDE)
    assert selected(positions[rows[-1] :], index.STRIDE) == ([0], state)


@pytest.mark.parametrize(("size", "records"), [(0, 1), (-1, 1), (1, 0), (1, -5)])
def test_a_stride_is_positive(size: int, records: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        Stride(size, records)


@settings(max_examples=100, deadline=None)
@given(st.lists(EXTREMES, max_size=30), st.integers(0, 30), st.integers(1, 5))
def test_a_running_maximum_does_not_depend_on_the_cut(
    times: list[int], cut: int, records: int
) -> None:
    stride = Stride(1 << 40, records)
    rows = numbers(list(range(len(times))))
    state, found = START, []
    for part in (slice(0, cut), slice(cut, None)):
        moments = numbers(times[part])
        origin = base_offset = min(part.start, len(times))
        _, entries, state = select(
            rows[: len(moments)], moments, state, stride, base_offset=base_offset, origin=origin
        )
        found += entries.tolist()
    chosen = range(0, len(times), records)
    assert found == [(max(times[: row + 1]), row) for row in chosen]
    assert state.maximum_ms == max(times, default=None)


# ---------------------------------------------------------------- the bytes


def test_golden_indexes_are_what_a_log_made_by_hand_gives() -> None:
    idx = struct.pack("<6q", 0, 0, 96, 96 * 43, 192, 192 * 43)
    timeidx = struct.pack("<6q", TIME, 0, TIME + 96, 96, TIME + 99, 192)
    assert (GOLDEN / "frame-idx.bin").read_bytes() == idx
    assert (GOLDEN / "frame-timeidx.bin").read_bytes() == timeidx
    assert index.encode(index.rebuild(golden_log())) == idx
    assert time_index.encode(time_index.rebuild(golden_log())) == timeidx
    assert index.decode(idx).tolist() == [(0, 0), (96, 4128), (192, 8256)]
    assert time_index.decode(timeidx).tolist() == [(TIME, 0), (TIME + 96, 96), (TIME + 99, 192)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 3, 900, 5000]), EXTREMES), min_size=1, max_size=250),
    st.lists(st.integers(0, 250), max_size=5),
    st.integers(0, 1 << 62),
)
def test_live_indexes_and_rebuilt_ones_are_the_same_bytes(
    records: list[tuple[int, int]], cuts: list[int], base_offset: int
) -> None:
    whole = log_by_hand([size for size, _ in records], [time for _, time in records], base_offset)
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    live_index, live_times, origin = b"", b"", 0
    state = START
    for start, end in pairwise(edges):
        sizes, times = ([record[field] for record in records[start:end]] for field in (0, 1))
        positions = numbers([0, *np.cumsum([40 + size for size in sizes]).tolist()][:-1])
        first = base_offset + start
        offsets, maxima, state = select(
            positions, numbers(times), state, index.STRIDE, base_offset=first, origin=origin
        )
        live_index += index.encode(offsets)
        live_times += time_index.encode(maxima)
        origin += sum(sizes) + 40 * len(sizes)
    assert live_index == index.encode(index.rebuild(whole))
    assert live_times == time_index.encode(time_index.rebuild(whole))
    assert sparse_index.times_agree(time_index.decode(live_times), index.decode(live_index))


def pairs(*values: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<qq", *pair) for pair in values)


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (bytes(15), 0),
        (pairs((0, 0)) + b"\x01", 16),
        (pairs((5, 0), (5, 40)), 16),
        (pairs((5, 0), (9, 80), (8, 120)), 32),
        (pairs((5, 0), (6, 0)), 16),
        (pairs((5, 80), (6, 40)), 16),
        (pairs((-1, 0)), 0),
        (pairs((0, -1)), 0),
        (pairs((7, 0), (8, 50), (0, 0)), 32),
        (pairs((1, 0), (-(1 << 63), 50)), 16),
    ],
)
def test_an_index_that_does_not_grow_is_corrupt(data: bytes, position: int) -> None:
    with pytest.raises(CorruptData) as caught:
        index.decode(data)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (bytes(17), 16),
        (pairs((5, 0), (4, 1)), 16),
        (pairs((5, 0), (5, 0)), 16),
        (pairs((5, 3), (6, 2)), 16),
        (pairs((5, -3)), 0),
        (pairs(((1 << 63) - 1, 0), (-(1 << 63), 1)), 16),
    ],
)
def test_a_time_index_that_goes_back_is_corrupt(data: bytes, position: int) -> None:
    with pytest.raises(CorruptData) as caught:
        time_index.decode(data)
    assert caught.value.position == position


def test_time_may_stand_still_and_be_before_1970() -> None:
    data = pairs((-(1 << 63), 0), (-5, 1), (-5, 2), ((1 << 63) - 1, 3))
    assert time_index.encode(time_index.decode(data)) == data


def test_empty_files_are_empty_indexes() -> None:
    assert len(index.decode(b"")) == len(time_index.decode(b"")) == len(index.rebuild(b"")) == 0


# ---------------------------------------------------------------- look-ups


def test_the_entry_for_an_offset_is_the_greatest_entry_not_above() -> None:
    entries = index.decode(pairs((10, 0), (106, 4128), (202, 8256)))
    looked_up = [sparse_index.entry_for(entries, offset) for offset in (9, 10, 105, 106, 107, 9999)]
    assert looked_up == [None, (10, 0), (10, 0), (106, 4128), (106, 4128), (202, 8256)]
    assert sparse_index.entry_for(index.decode(b""), 0) is None


def test_every_record_is_found_from_the_position_for_it() -> None:
    data = golden_log()
    entries = index.rebuild(data)
    for offset in range(201):
        entry = sparse_index.entry_for(entries, offset)
        assert entry is not None
        found = log.scan(data, entry[1])
        assert entry[0] == entry[1] // 43
        assert offset - entry[0] < 96
        assert offset * 43 in found.positions.tolist()


def first_at_or_after(entries: Entries, timestamp_ms: int) -> int:
    """The offset to scan from for a time: behind the last entry up to which all are older."""
    row = sparse_index.row_before_time(entries, timestamp_ms)
    return int(entries["offset"][0]) if row < 0 else int(entries["offset"][row]) + 1


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=300), st.integers(-1, 42))
def test_no_record_at_or_after_a_time_is_skipped(times: list[int], wanted: int) -> None:
    entries = time_index.rebuild(log_by_hand([3] * len(times), times, base_offset=50))
    start = first_at_or_after(entries, wanted)
    assert all(time < wanted for time in times[: start - 50])
    first = next((row for row, time in enumerate(times) if time >= wanted), None)
    assert first is None or start - 50 <= first < start - 50 + 97


def test_a_time_is_looked_up_behind_the_last_older_entry() -> None:
    entries = time_index.decode(pairs((100, 7), (200, 50), (200, 90), (300, 130)))
    wanted = (99, 100, 101, 200, 201, 300, 301)
    assert [sparse_index.row_before_time(entries, time) for time in wanted] == [
        -1,
        -1,
        0,
        0,
        2,
        2,
        3,
    ]
    assert [first_at_or_after(entries, time) for time in wanted] == [7, 7, 8, 8, 91, 91, 131]
    assert sparse_index.row_before_time(time_index.decode(b""), 5) == -1


# ---------------------------------------------------------------- against the log


def test_a_time_index_for_other_records_does_not_agree() -> None:
    entries = index.decode(pairs((0, 0), (9, 80)))
    assert sparse_index.times_agree(time_index.decode(pairs((5, 0), (6, 9))), entries)
    assert not sparse_index.times_agree(time_index.decode(pairs((5, 0), (6, 8))), entries)
    assert not sparse_index.times_agree(time_index.decode(pairs((5, 0))), entries)


def indexed_offsets(entries: Entries) -> list[int]:
    offsets: list[int] = entries["offset"].tolist()
    return offsets


def sound_runs(data: bytes | bytearray) -> list[tuple[int, int]]:
    """The first offset and the count of each run of sound frames."""
    steps = runs(OffsetLog(log, data), 0)
    return [(step.first, len(step.found)) for step in steps if isinstance(step, Run)]


@pytest.mark.parametrize("damaged", [0, 1, 96, 150, 200])
def test_an_index_is_rebuilt_over_a_damaged_frame(damaged: int) -> None:
    data = bytearray(golden_log())
    data[damaged * 43 + 33] ^= 1
    expected = [(0, damaged), (damaged + 1, 200 - damaged)]
    assert sound_runs(data) == [run for run in expected if run[1]]
    entries = index.rebuild(data)
    assert all(position == offset * 43 for offset, position in entries.tolist())
    assert indexed_offsets(time_index.rebuild(data)) == indexed_offsets(entries)
    kept = [row for row in range(201) if row != damaged]
    rows = chosen_plainly([row * 43 for row in kept], index.STRIDE)
    assert indexed_offsets(entries) == [kept[row] for row in rows]


def test_older_frames_behind_a_log_are_not_indexed() -> None:
    data = log_by_hand([3] * 5, [1] * 5, base_offset=10)
    leftover = frame_by_hand(3, 1, b"old") + frame_by_hand(4, 1, b"old")
    assert sound_runs(data + leftover) == [(10, 5)]
    gap = frame_by_hand(20, 1, b"new")
    assert sound_runs(data + leftover + gap) == [(10, 5), (20, 1)]


def test_a_log_longer_than_one_scan_is_indexed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = index.encode(index.rebuild(golden_log()))
    scan = log.scan
    few = Limit(max_records=7)

    def short_scan(buffer: bytes, start: int, *, expected_offset: int | None, limit: Limit) -> Scan:
        return scan(buffer, start, expected_offset=expected_offset, limit=few)

    monkeypatch.setattr(log, "scan", short_scan)
    assert len(sound_runs(golden_log())) == 29
    assert index.encode(index.rebuild(golden_log())) == whole
