"""What a profile adds up: the same numbers for any cut, and a known error where keys are many."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.spark.jobs.profile import key_text
from lamina.spark.jobs.profile_measures import Keys, Measure, times_of

RECORD = st.tuples(
    st.none() | st.binary(max_size=5), st.none() | st.binary(max_size=40), st.integers(0, 10**9)
)


def batch_of(records: list[tuple[bytes | None, bytes | None, int]]) -> pa.RecordBatch:
    keys, values, times = zip(*records, strict=True)
    microseconds = pa.array([time * 1000 for time in times], pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            microseconds.cast(pa.timestamp("us", tz="UTC")),
        ],
        ["key", "value", "timestamp"],
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(RECORD, min_size=1, max_size=30), st.data())
def test_any_cut_gives_the_same_measure(
    records: list[tuple[bytes | None, bytes | None, int]], data: st.DataObject
) -> None:
    whole = Measure()
    whole.add(batch_of(records), "key", -1)
    cut = data.draw(st.integers(0, len(records)))
    merged, latest = Measure(), -1
    for part in (records[:cut], records[cut:]):
        if part:
            measure = Measure()
            measure.add(batch_of(part), "key", latest)
            merged.merge(measure)
            latest = max(latest, int(times_of(batch_of(part)).max()))
    for name in Measure.__dataclass_fields__:
        assert np.array_equal(getattr(merged, name), getattr(whole, name)), name
    assert whole.sizes.sum() == whole.late.sum() == whole.records == len(records)
    assert whole.sizes_bytes.sum() == whole.size_bytes


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=30), max_size=6), st.integers(1, 9))
def test_counts_of_keys_are_too_low_by_no_more_than_they_say(
    parts: list[list[str]], limit: int
) -> None:
    merged = Keys(limit)
    for part in parts:
        keys = Keys(limit)
        for key in part:
            keys.add(pa.array([key.encode(), None], pa.binary()))
        merged.merge(keys)
    exact = Counter(key.encode() for part in parts for key in part)
    found = dict(merged.top(100))
    assert merged.distinct <= limit
    assert merged.error * (limit + 1) <= sum(exact.values()), "the bound of Misra and Gries"
    for key, count in exact.items():
        assert count - merged.error <= found.get(key, 0) <= count
    if len(exact) <= limit:
        assert merged.error == 0
        assert found == dict(exact)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"customer 3", "customer 3"),
        (b"", "0x"),
        (b"\x1b[2J", "0x1b5b324a"),
        (b"\xff\x00", "0xff00"),
        ("é".encode(), "é"),
        (b"a" * 61, "a" * 59 + "…"),
    ],
)
def test_a_key_is_shown_as_text_that_steers_nothing(key: bytes, shown: str) -> None:
    assert key_text(key) == shown
