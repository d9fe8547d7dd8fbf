"""A partition's list of archived objects: what it may say, how it grows, and what it covers."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.api import Gap
from lamina.errors import CorruptData, NewerFormat
from lamina.formats.documents import archive_manifest, strict_json
from lamina.formats.documents.archive_manifest import (
    ArchivedObject,
    Manifest,
    covers,
    without_overlap,
)
from lamina.formats.documents.ledger import Ledger


def made(first: int, end: int, **more: Any) -> ArchivedObject:
    fields: dict[str, Any] = {
        "base_offset": first,
        "max_offset": end - 1,
        "record_count": end - first,
        "min_timestamp_ms": 5,
        "max_timestamp_ms": 9,
        "size_bytes": 100,
        "flags": 1,
        "index_offset": 80,
        "index_crc32": 7,
    }
    return ArchivedObject(**fields | more)


FIRST, SECOND, THIRD = made(0, 10), made(10, 20, marks=((0, 3), (1, 4))), made(25, 30, generation=2)
WHOLE = Manifest("orders", 3, 1, 1_700_000, 2, "writer", 31, (FIRST, SECOND, THIRD))


def changed(**fields: Any) -> bytes:
    """The list with other fields, under a seal that fits them."""
    document = json.loads(archive_manifest.encode(WHOLE))
    del document[strict_json.SEAL]
    document |= fields
    return json.dumps(document | {strict_json.SEAL: strict_json.seal(document)}).encode()


def changed_object(**fields: Any) -> bytes:
    objects = json.loads(archive_manifest.encode(WHOLE))["objects"]
    objects[0] |= fields
    return changed(objects=[each for each in objects if each is not None])


# -------------------------------------------------------------------- bytes


def test_what_was_written_is_read() -> None:
    assert archive_manifest.decode(archive_manifest.encode(WHOLE)) == WHOLE
    assert archive_manifest.decode(changed()) == WHOLE
    empty = Manifest("a", 0, 1, 2)
    assert archive_manifest.decode(archive_manifest.encode(empty)) == empty


def test_a_generation_is_written_only_where_there_is_one() -> None:
    objects = json.loads(archive_manifest.encode(WHOLE))["objects"]
    assert ["generation" in each for each in objects] == [False, False, True]


def test_no_changed_byte_goes_unseen() -> None:
    raw = archive_manifest.encode(WHOLE)
    for position in range(len(raw)):
        spoilt = bytearray(raw)
        spoilt[position] ^= 1
        try:
            assert archive_manifest.decode(bytes(spoilt)) == WHOLE
        except CorruptData:
            continue


def test_a_newer_list_is_named_as_one() -> None:
    with pytest.raises(NewerFormat):
        archive_manifest.decode(changed(version=2))
    with pytest.raises(NewerFormat):
        archive_manifest.decode(changed(version=3))


def test_a_list_with_epochs_is_of_the_next_version_and_any_other_is_as_it_was() -> None:
    """A release that knows no epochs would look for objects under other names."""
    with_epoch = replace(WHOLE, objects=(FIRST, replace(SECOND, epoch=5), THIRD))
    raw = archive_manifest.encode(with_epoch)
    assert archive_manifest.decode(raw) == with_epoch
    assert json.loads(raw)["version"] == 2
    assert ["epoch" in each for each in json.loads(raw)["objects"]] == [False, True, False]
    assert json.loads(archive_manifest.encode(WHOLE))["version"] == 1
    assert b"epoch" not in archive_manifest.encode(WHOLE).partition(b"objects")[2]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_timestamp_ms": "5"},
        {"max_timestamp_ms": 1 << 63},
        {"min_timestamp_ms": -(1 << 63) - 1},
        {"max_timestamp_ms": True},
        {"marks": [[1]]},
        {"marks": [[1, 2, 3]]},
        {"marks": [5]},
        {"marks": [["1", 2]]},
        {"marks": [[1, None]]},
        {"record_count": 11},
        {"record_count": 0},
        {"index_offset": 0},
        {"index_offset": 100},
        {"flags": -1},
        {"max_offset": 10, "record_count": 11},
        {"more": 1},
    ],
)
def test_an_object_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CorruptData):
        archive_manifest.decode(changed_object(**fields))


@pytest.mark.parametrize("time", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_times_are_any_64_bits(time: int) -> None:
    objects = archive_manifest.decode(
        changed_object(min_timestamp_ms=time, marks=[[0, time]])
    ).objects
    assert (objects[0].min_timestamp_ms, objects[0].marks) == (time, ((0, time),))


def test_a_list_of_what_is_no_object_is_refused() -> None:
    with pytest.raises(CorruptData, match="object 0 is not a JSON object"):
        archive_manifest.decode(changed(objects=[1]))


# -------------------------------------------------------------------- rules


def test_the_counts_of_an_object_hold_at_their_bounds() -> None:
    assert made(5, 6).next_offset == 6
    assert made(5, 9, record_count=1).record_count == 1
    assert made(5, 9, index_offset=1).index_offset == 1
    assert made(5, 9, index_offset=99).index_offset == 99


def test_an_object_holds_no_more_records_than_it_has_offsets() -> None:
    with pytest.raises(ValueError, match="contradict"):
        made(10, 20, record_count=11)


def test_objects_are_sorted_apart_and_below_the_end() -> None:
    assert Manifest("a", 0, 1, 2, end_offset=20, objects=(FIRST, SECOND)).size_bytes == 200
    for objects, end in [((SECOND, FIRST), 20), ((FIRST, made(9, 12)), 20), ((FIRST, SECOND), 19)]:
        with pytest.raises(ValueError, match=r"overlap|above the end"):
            Manifest("a", 0, 1, 2, end_offset=end, objects=objects)


def test_an_object_is_added_once() -> None:
    grown = WHOLE.with_object(made(31, 40), 42)
    assert (grown.objects[-1], grown.end_offset) == (made(31, 40), 42)
    assert grown.with_object(made(31, 40), 42) is grown
    assert grown.with_object(made(40, 42), 42) is grown, "what lies below the end is there"
    assert grown.with_object(made(42, 43), 43).end_offset == 43


def test_neighbours_are_exchanged_for_what_they_span() -> None:
    joined = made(0, 20, record_count=20)
    assert WHOLE.exchanged((FIRST, SECOND), (joined,)) == replace(WHOLE, objects=(joined, THIRD))
    assert WHOLE.exchanged((SECOND,), ()) == replace(WHOLE, objects=(FIRST, THIRD))
    less = made(12, 18)
    assert WHOLE.exchanged((SECOND,), (less,)) == replace(WHOLE, objects=(FIRST, less, THIRD))
    parts = made(10, 12), made(12, 20)
    assert WHOLE.exchanged((SECOND,), parts) == replace(WHOLE, objects=(FIRST, *parts, THIRD))


def test_an_exchange_that_was_made_changes_nothing() -> None:
    joined = made(0, 20)
    done = WHOLE.exchanged((FIRST, SECOND), (joined,))
    assert done is not None
    assert done.exchanged((FIRST, SECOND), (joined,)) is done
    assert done.exchanged((FIRST, SECOND), ()) is None
    one = made(0, 30)
    whole = WHOLE.exchanged(WHOLE.objects, (one,))
    assert whole == replace(WHOLE, objects=(one,))
    assert whole.exchanged(WHOLE.objects, (one,)) is whole
    assert WHOLE.exchanged((made(40, 50),), (made(40, 50, flags=2),)) is None
    assert WHOLE.exchanged((FIRST, THIRD), (made(0, 30),)) is None, "they are no neighbours"


@pytest.mark.parametrize(
    ("old", "new"), [((), (FIRST,)), ((SECOND,), (made(9, 20),)), ((SECOND,), (made(10, 21),))]
)
def test_an_exchange_for_more_than_there_was_is_refused(old: Any, new: Any) -> None:
    with pytest.raises(ValueError, match="no more than they do"):
        WHOLE.exchanged(old, new)


# -------------------------------------------------------------------- which of overlapping ones

SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=6)


def is_apart(objects: tuple[ArchivedObject, ...]) -> bool:
    return all(a.next_offset <= b.base_offset for a, b in pairwise(objects))


@given(SPANS)
def test_of_overlapping_objects_as_few_as_span_the_most_are_kept(
    spans: list[tuple[int, int]],
) -> None:
    entries = [made(first, first + count) for first, count in spans]
    kept = without_overlap(entries)
    assert is_apart(kept)
    assert all(each in entries for each in kept)

    def worth(objects: tuple[ArchivedObject, ...]) -> tuple[int, int]:
        return sum(each.next_offset - each.base_offset for each in objects), -len(objects)

    ordered = sorted(entries, key=lambda each: each.base_offset)
    choices = [some for size in range(len(ordered) + 1) for some in combinations(ordered, size)]
    assert worth(kept) == max(worth(some) for some in choices if is_apart(some))


def test_the_one_that_was_joined_last_is_kept() -> None:
    old, new = made(0, 10), made(0, 10, generation=1)
    assert without_overlap([new, old]) == (new,)
    assert without_overlap([made(0, 5), made(5, 10), old]) == (old,)
    assert without_overlap([]) == ()


# -------------------------------------------------------------------- what is covered


def test_a_range_is_covered_by_objects_and_reasons() -> None:
    gaps = Ledger((Gap(20, 25, "deleted", 1),))
    assert covers(WHOLE.objects, gaps, 0, 30)
    assert covers(WHOLE.objects, gaps, 3, 3)
    assert covers((), gaps, 21, 25)
    assert not covers(WHOLE.objects, gaps, 0, 31)
    assert not covers(WHOLE.objects, Ledger(()), 0, 30)
    assert not covers((SECOND, THIRD), gaps, 9, 30)
    assert covers((SECOND, THIRD), gaps, 10, 30)
    assert not covers((), Ledger(()), 0, 1)
