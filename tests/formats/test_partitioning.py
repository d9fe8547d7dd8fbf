"""Which partition takes a record: by the hash of its key, or in turn."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import InvalidRequest
from lamina.formats.kernels.xxh3 import xxh3_of
from lamina.formats.partitioning import NO_KEY, partitions_of, split_by_key
from lamina.records import INPUT_SCHEMAS
from tests.support.directories import FORMATS, opened, rows, values
from tests.support.strategies import batch_of

BOTH = pytest.mark.parametrize("format_name", FORMATS)
KEYS = st.lists(
    st.one_of(st.none(), st.binary(max_size=20), st.integers(0, 600).map(lambda size: b"k" * size)),
    max_size=30,
)


def partition_of(key: bytes, count: int) -> int:
    return xxh3_of(key) % count


@settings(max_examples=200, deadline=None)
@given(KEYS, st.integers(1, 10_000))
def test_a_key_goes_where_the_xxhash_package_says(keys: list[bytes | None], count: int) -> None:
    expected = [NO_KEY if key is None else xxhash.xxh3_64(key).intdigest() % count for key in keys]
    assert partitions_of(pa.array(keys, pa.binary()), count).tolist() == expected
    for key, partition in zip(keys, expected, strict=True):
        if key is not None:
            assert partition_of(key, count) == partition


@settings(max_examples=50, deadline=None)
@given(KEYS.filter(lambda keys: len(keys) > 2))
def test_a_slice_of_keys_goes_where_the_same_keys_go(keys: list[bytes | None]) -> None:
    whole = pa.array(keys, pa.binary())
    assert partitions_of(whole.slice(1), 7).tolist() == partitions_of(whole, 7).tolist()[1:]


@settings(max_examples=100, deadline=None)
@given(KEYS, st.integers(1, 9), st.data())
def test_splitting_keeps_every_record_and_the_order_within_a_key(
    keys: list[bytes | None], count: int, data: st.DataObject
) -> None:
    unkeyed = data.draw(st.integers(0, count - 1))
    drawn = [
        {"timestamp": 0, "key": key, "value": b"%d" % number} for number, key in enumerate(keys)
    ]
    batch = batch_of(drawn, "keratin")
    parts = split_by_key(batch, count, unkeyed)
    assert all(part.schema == INPUT_SCHEMAS["keratin"] for _, part in parts)
    placed = []
    for partition, part in parts:
        numbers = [int(value) for value in part.column("value").to_pylist()]
        assert numbers == sorted(numbers)
        for number, key in zip(numbers, part.column("key").to_pylist(), strict=True):
            assert key == keys[number]
            assert partition == (unkeyed if key is None else partition_of(key, count))
        placed += numbers
    assert sorted(placed) == list(range(len(keys)))


@BOTH
def test_a_key_stays_in_its_partition_in_order(tmp_path: Path, format_name: str) -> None:
    keys = [b"key-%d" % (number % 5) for number in range(40)]
    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=3, format=format_name)
        for first in range(0, 40, 4):
            pairs = [(keys[number], b"%d" % number) for number in range(first, first + 4)]
            answer = store.append("t", pairs)
            assert answer.count == 4
            assert sum(part.count for part in answer.parts.values()) == 4
        seen = 0
        for partition in range(3):
            found = rows(store, "t", partition)
            assert all(partition_of(row["key"], 3) == partition for row in found)
            numbers = [int(row["value"]) for row in found]
            for key in set(keys):
                own = [number for number in numbers if keys[number] == key]
                assert own == sorted(own)
            seen += len(found)
        assert seen == 40


@BOTH
def test_records_without_a_key_go_to_the_partitions_in_turn(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=3, format=format_name)
        for number in range(6):
            (partition,) = store.append("t", [b"%d" % number, b"and"]).parts
            assert partition == number % 3
        assert values(store, "t", 0) == [b"0", b"and", b"3", b"and"]


@BOTH
def test_a_given_partition_wins_over_the_key(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=4, format=format_name)
        store.append("t", [(b"k", b"a"), (b"l", b"b")], partition=2)
        assert values(store, "t", 2) == [b"a", b"b"]


def test_an_idempotent_append_names_its_partition(tmp_path: Path) -> None:
    from lamina.api import ProducerStamp

    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        with pytest.raises(InvalidRequest, match="names its partition"):
            store.append("t", [b"a"], producer=ProducerStamp(1, 0, 0))
