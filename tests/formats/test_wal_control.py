"""Control bodies: round trips, and damage that is either told or changes nothing but the value."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.wal import control
from lamina.formats.wal.routing import Match, RoutedMark, Router, Verdict
from tests.formats.test_wal_golden import BODIES
from tests.support.contract import grows_at_most, mutate

U64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
FLOORS = st.tuples(U64, U64).map(sorted)
CHECKPOINTS = st.builds(
    lambda topic_id, rest, floors: control.TopicCheckpoint(
        topic_id, rest[0], floors[0], floors[1], rest[1], rest[2]
    ),
    U64,
    st.tuples(U64, U64, U64),
    FLOORS,
)
CONTROL: st.SearchStrategy[control.Control] = st.one_of(
    st.builds(control.TopicCreate, TEXT.filter(bool), U64, TEXT),
    st.builds(control.TopicDelete, U64),
    st.builds(control.DeleteBefore, U64, U64),
    st.builds(
        Router,
        TEXT.filter(bool),
        U64,
        st.sampled_from(list(Match)[1:]),
        U64,
        U64,
        st.binary(max_size=300),
    ),
    st.tuples(st.sampled_from(Verdict), U64, U64).map(
        lambda drawn: RoutedMark(drawn[0], max(drawn[1:]), min(drawn[1:]))
    ),
    st.builds(control.DeleteTag, U64, st.binary(max_size=300)),
    st.builds(control.DeleteTagPrefix, U64, st.binary(max_size=300)),
    st.sets(st.integers(1, (1 << 64) - 2), max_size=50).map(
        lambda drawn: control.DeleteSequences((1 << 64) - 1, tuple(sorted(drawn)))
    ),
    st.tuples(FLOORS, st.sampled_from(control.EvictReason)).map(
        lambda drawn: control.EvictWatermark(*drawn[0], drawn[1])
    ),
    st.lists(CHECKPOINTS, max_size=5, unique_by=lambda topic: topic.topic_id).map(
        lambda topics: control.CheckpointMark(tuple(sorted(topics, key=lambda t: t.topic_id)))
    ),
)


@settings(max_examples=300, deadline=None)
@given(CONTROL)
def test_any_body_comes_back_as_it_went_in(body: control.Control) -> None:
    assert control.decode(control.type_of(body), control.encode(body)) == body


@pytest.mark.parametrize(("kind", "raw", "body"), BODIES)
def test_every_prefix_and_every_longer_body_is_refused(
    kind: int, raw: bytes, body: control.Control
) -> None:
    for size in range(len(raw)):
        with pytest.raises(CorruptData) as caught:
            control.decode(kind, raw[:size])
        assert 0 <= caught.value.position <= size
    with pytest.raises(CorruptData, match="after its end"):
        control.decode(kind, raw + b"\x00")


@pytest.mark.parametrize(("kind", "raw", "body"), BODIES)
def test_every_single_byte_change_is_refused_or_gives_another_value(
    kind: int, raw: bytes, body: control.Control
) -> None:
    for position in range(len(raw)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(raw)
            damaged[position] ^= change
            try:
                read = control.decode(kind, bytes(damaged))
            except CorruptData:
                continue
            assert read != body
            assert control.encode(read) == damaged


@pytest.mark.parametrize(("kind", "raw", "body"), BODIES)
def test_an_unknown_version_is_a_newer_format(kind: int, raw: bytes, body: control.Control) -> None:
    with pytest.raises(NewerFormat, match="version") as caught:
        control.decode(kind, b"\x02" + raw[1:])
    assert (caught.value.position, caught.value.found) == (0, "2")


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (6, struct.pack("<BBQQ", 1, 5, 4, 2)),
        (6, struct.pack("<BBQQ", 1, 0, 4, 2)),
        (7, struct.pack("<BBQQ", 1, 4, 2, 2)),
        (4, struct.pack("<BBQQQHH", 1, 4, 1, 1, 2, 1, 0) + b"a"),
        (9, struct.pack("<BBQQ", 1, 3, 2, 2)),
        (1, b""),
        (5, b""),
        (10, b""),
    ],
)
def test_an_unknown_kind_reason_or_type_is_a_newer_format(kind: int, raw: bytes) -> None:
    with pytest.raises(NewerFormat):
        control.decode(kind, raw)


WRONG: list[tuple[int, bytes, control.Control]] = [
    (2, struct.pack("<BQHI", 1, 1, 0, 0), control.TopicCreate("", 1, "")),
    (6, struct.pack("<BBQQQQ", 1, 4, 9, 2, 3, 1), control.DeleteSequences(9, (3, 1))),
    (6, struct.pack("<BBQQQQ", 1, 4, 9, 2, 3, 3), control.DeleteSequences(9, (3, 3))),
    (6, struct.pack("<BBQQQQ", 1, 4, 9, 2, 3, 9), control.DeleteSequences(9, (3, 9))),
    (6, struct.pack("<BBQQQ", 1, 4, 9, 1, 0), control.DeleteSequences(9, (0,))),
    (7, struct.pack("<BBQQ", 1, 1, 3, 2), control.EvictWatermark(3, 2, control.EvictReason.AGE)),
    (
        8,
        struct.pack("<BI12Q", 1, 2, 5, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0),
        control.CheckpointMark((control.TopicCheckpoint(5, 0, 0, 0, 0, 0),) * 2),
    ),
    (
        8,
        struct.pack("<BI6Q", 1, 1, 5, 0, 3, 2, 0, 0),
        control.CheckpointMark((control.TopicCheckpoint(5, 0, 3, 2, 0, 0),)),
    ),
]


@pytest.mark.parametrize(("kind", "raw", "body"), WRONG)
def test_what_contradicts_itself_is_neither_written_nor_read(
    kind: int, raw: bytes, body: control.Control
) -> None:
    with pytest.raises(InvalidRequest):
        control.encode(body)
    with pytest.raises(CorruptData):
        control.decode(kind, raw)


def test_text_that_is_not_utf8_is_refused_where_it_is() -> None:
    with pytest.raises(CorruptData, match="UTF-8") as caught:
        control.decode(2, struct.pack("<BQHI", 1, 1, 3, 0) + b"ab\xff")
    assert caught.value.position == 17


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="65535"):
        control.encode(control.TopicCreate("n" * 65_536, 1, "{}"))


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (2, struct.pack("<BQHI", 1, 1, 0xFFFF, 0xFFFFFFFF)),
        (6, struct.pack("<BBQQ", 1, 2, 4, (1 << 64) - 1)),
        (6, struct.pack("<BBQQ", 1, 4, 4, (1 << 61) - 1)),
        (8, struct.pack("<BI", 1, 0xFFFFFFFF)),
    ],
)
def test_a_claimed_count_is_checked_before_memory_is_taken(kind: int, raw: bytes) -> None:
    with grows_at_most(8 << 10), pytest.raises(CorruptData, match="cut short"):
        control.decode(kind, raw)


def test_hostile_bytes_raise_a_typed_error_or_give_a_right_value() -> None:
    drawn = random.Random(20_240_602)
    read = 0
    for _ in range(2_000):
        kind, raw, _ = drawn.choice(BODIES)
        hostile = mutate(raw, drawn)
        try:
            body = control.decode(kind, hostile)
        except CorruptData:
            continue
        assert control.encode(body) == hostile
        read += 1
    assert read > 100
