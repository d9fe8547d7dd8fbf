"""Sets of sequences as ranges, and what the WAL holds of a topic, against plain Python sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.formats.ranges import EMPTY, Ranges
from lamina.wal.held import bytes_from, holds, is_durable, runs_from
from lamina.wal.replay import Frames

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)
EVERY = np.arange(-2, 35)


def plain(pairs: Any) -> set[int]:
    return {each for first, end in pairs for each in range(first, end)}


def is_merged(ranges: Ranges) -> bool:
    bounds = ranges.bounds.tolist()
    return bounds == sorted(set(bounds)) and len(bounds) % 2 == 0


@given(PAIRS)
def test_a_set_is_the_union_of_its_ranges(pairs: list[tuple[int, int]]) -> None:
    ranges, model = Ranges.of(pairs), plain(pairs)
    assert is_merged(ranges)
    assert plain(ranges.pairs()) == model
    assert ranges.count() == len(model)
    assert len(ranges) == len(ranges.pairs())
    assert ranges.contains(EVERY).tolist() == [each in model for each in EVERY.tolist()]
    assert Ranges.of_sequences(np.array(sorted(model), dtype=np.int64)).pairs() == ranges.pairs()
    for sequence in EVERY.tolist():
        rest = next(each for each in range(sequence, 99) if each not in model)
        assert ranges.end_at(sequence) == rest


@given(PAIRS, PAIRS)
def test_sets_are_joined_cut_and_compared(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    one, other = Ranges.of(first), Ranges.of(second)
    for made, model in (
        (one.union(other), plain(first) | plain(second)),
        (one.common(other), plain(first) & plain(second)),
        (one.minus(other), plain(first) - plain(second)),
    ):
        assert is_merged(made)
        assert plain(made.pairs()) == model


@given(PAIRS, st.integers(-2, 35), st.integers(-2, 35))
def test_a_part_of_a_set_is_counted_and_cut(
    pairs: list[tuple[int, int]], first: int, end: int
) -> None:
    ranges, model = Ranges.of(pairs), plain(pairs)
    assert ranges.count_between(first, end) == len({each for each in model if first <= each < end})
    assert plain(Ranges.between(first, end).pairs()) == set(range(first, end))
    cut = ranges.from_on(first)
    assert is_merged(cut)
    assert plain(cut.pairs()) == {each for each in model if each >= first}


def test_ranges_that_touch_are_one() -> None:
    assert Ranges.of([(5, 9), (1, 3), (3, 5)]).pairs() == ((1, 9),)
    assert Ranges.of([(4, 4), (9, 2)]).pairs() == EMPTY.pairs() == ()


# -------------------------------------------------------------------- what the WAL holds


def frames(*sequences: int, size: int = 100) -> Frames:
    numbers = np.array(sequences, dtype=np.int64)
    return Frames(numbers, numbers * 10, size)


def test_a_record_is_held_or_not() -> None:
    held = frames(3, 4, 7)
    assert [each for each in range(10) if holds(held, each)] == [3, 4, 7]
    assert not holds(frames(), 3)


@pytest.mark.parametrize(
    ("sequences", "marked", "durable"),
    [
        ((), 0, True),
        ((5,), 9, True),
        ((5,), 8, False),
        ((9,), 8, False),
        ((4, 10), 0, True),
    ],
)
def test_a_segment_was_durable_where_it_is_marked_or_the_wal_has_none_of_it(
    sequences: tuple[int, ...], marked: int, durable: bool
) -> None:
    segment: Any = SimpleNamespace(first_sequence=5, end_sequence=10)
    assert is_durable(segment, frames(*sequences), marked) is durable


def test_bytes_are_the_share_of_the_records() -> None:
    held = frames(3, 4, 7, 8, size=90)
    assert [bytes_from(held, start) for start in (0, 3, 4, 7, 9)] == [90, 90, 67, 45, 0]
    assert bytes_from(frames(size=0), 0) == 0


def test_a_hole_begins_a_new_run() -> None:
    held = frames(3, 4, 7, 8, 9, 20)
    found = [(run.first_sequence, list(run.locations)) for run in runs_from(held, 4)]
    assert found == [(4, [40]), (7, [70, 80, 90]), (20, [200])]
    assert runs_from(held, 21) == ()
    assert [run.first_sequence for run in runs_from(held, 5)] == [7, 20]
