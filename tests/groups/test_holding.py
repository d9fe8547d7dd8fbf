"""What a consumer holds: columns against a dictionary, and ranges of any size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lamina.groups.holding import Holding
from lamina.groups.state import Chosen

OFFSETS = st.sets(st.integers(0, 30), min_size=1, max_size=12)


def chosen(offsets: set[int], epoch: int) -> Chosen:
    numbers = np.array(sorted(offsets), dtype=np.int64)
    return Chosen(numbers, np.full(len(numbers), epoch, dtype=np.int64))


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(st.lists(st.tuples(st.sampled_from(["more", "done", "renew"]), OFFSETS), max_size=12))
def test_a_holding_is_a_dictionary_in_columns(steps: list[tuple[str, set[int]]]) -> None:
    holding, known = Holding(), dict[int, tuple[int, int]]()
    for time, (kind, offsets) in enumerate(steps):
        if kind == "more":
            holding = holding.with_more(chosen(offsets, time), time + 5, time)
            known = {offset: each for offset, each in known.items() if each[1] > time}
            known |= dict.fromkeys(offsets, (time, time + 5))
            continue
        mine = {offset for offset in offsets if offset in known}
        epochs = numbers(*(known[offset][0] for offset in sorted(mine)))
        named = Chosen(numbers(*sorted(mine)), epochs)
        if kind == "done":
            holding = holding.without(named)
            known = {offset: each for offset, each in known.items() if offset not in mine}
        else:
            holding = holding.renewed(named, time + 9)
            known |= {offset: (known[offset][0], time + 9) for offset in mine}
        columns = (holding.offsets, holding.epochs, holding.deadlines_ms)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        assert [(row[0], row[1:]) for row in rows] == sorted(known.items())


@given(OFFSETS, st.integers(0, 30), st.integers(0, 1 << 62))
def test_a_range_is_held_as_a_whole_or_not(held: set[int], first: int, more: int) -> None:
    holding = Holding().with_more(chosen(held, 1), 5, 0)
    for last in (first + more % 8, first + more):
        found = holding.rows_of(numbers(first), numbers(last))
        is_whole = last - first < 40 and set(range(first, last + 1)) <= held
        assert (found is not None) == is_whole
        if found is not None:
            assert holding.only(found[0]).offsets.tolist() == list(range(first, last + 1))


def test_what_was_acquired_again_is_not_taken_for_what_was_settled() -> None:
    before = Holding().with_more(chosen({1, 2}, 1), 5, 0)
    again = before.with_more(chosen({2}, 2), 9, 0)
    left = again.without(before.only(np.arange(2)))
    assert (left.offsets.tolist(), left.epochs.tolist()) == ([2], [2])
