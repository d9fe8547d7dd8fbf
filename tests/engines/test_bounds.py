from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.engines.bounds import OFFSETS, Bounds, Pruner, bisected
from lamina.engines.table_columns import TIME, schema_of

OFFSET, PARTITION, TIMESTAMP = pc.field("_offset"), pc.field("_partition"), pc.field("_timestamp")


def at(microseconds: int) -> pa.Scalar:
    return pa.scalar(microseconds, TIME)


def bounds(filter: object, partition: int = 0) -> Bounds | None:
    return Pruner(schema_of("keratin"), filter).bounds(partition)


def test_without_a_filter_everything_may_match() -> None:
    assert bounds(None) == Bounds(0, OFFSETS[1], None)


@pytest.mark.parametrize(
    ("filter", "first", "end"),
    [
        (OFFSET == 7, 7, 8),
        (OFFSET > 7, 8, OFFSETS[1]),
        (OFFSET <= 7, 0, 8),
        ((OFFSET >= 3) & (OFFSET < 9), 3, 9),
        (OFFSET.isin([4, 2, 11]), 2, 12),
        ((OFFSET == 5) | (OFFSET == 30), 5, 31),
        (~(OFFSET < 12), 12, OFFSETS[1]),
        ((OFFSET > 1) & (pc.field("value") == b"x"), 2, OFFSETS[1]),
        (pc.field("value") == b"x", 0, OFFSETS[1]),
    ],
)
def test_offsets_are_bounded_by_what_the_filter_allows(
    filter: object, first: int, end: int
) -> None:
    found = bounds(filter)
    assert found is not None
    assert (found.first, found.end, found.first_us) == (first, end, None)


def test_the_first_time_is_exact_to_the_microsecond() -> None:
    for filter, first_us in (
        (at(1_700_000_000_123_456) <= TIMESTAMP, 1_700_000_000_123_456),
        (at(5) < TIMESTAMP, 6),
        (at(-9) == TIMESTAMP, -9),
        (at(5) > TIMESTAMP, None),
        ((at(5) < TIMESTAMP) | (OFFSET == 3), None),
    ):
        found = bounds(filter)
        assert found is not None
        assert found.first_us == first_us


def test_a_partition_that_cannot_match_has_no_bounds() -> None:
    either = (PARTITION == 1) | (PARTITION == 3)
    assert [bounds(either, number) is None for number in range(5)] == [
        *(True, False, True, False, True)
    ]
    assert bounds((PARTITION == 1) & (OFFSET == 4), 1) == Bounds(4, 5, None)
    assert bounds((OFFSET > 4) & (OFFSET < 3)) is None


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50))
def test_bisection_finds_the_least_value_that_is_reached(low: int, size: int, edge: int) -> None:
    high = low + abs(size)
    found = bisected(lambda value: value >= edge, low, high)
    expected = [value for value in range(low, high + 1) if value >= edge]
    assert found == (expected[0] if expected else None)
