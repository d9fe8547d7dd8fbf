"""The metadata snapshot: round trips, and damage that is always told."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.wal import snapshot
from lamina.formats.wal.snapshot import CurrentWal, DeletedTopic, Snapshot, TopicMeta
from tests.formats.test_wal_golden import META, PAYLOAD, SNAPSHOT, joined
from tests.support.contract import grows_at_most, mutate

RAW = joined(SNAPSHOT)
U64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
RANGES = st.lists(U64, max_size=8, unique=True).map(
    lambda drawn: tuple(zip(sorted(drawn)[::2], sorted(drawn)[1::2], strict=False))
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    ids = sorted(draw(st.sets(st.integers(0, (1 << 64) - 2), max_size=6)))
    alive = [topic_id for topic_id in ids if draw(st.booleans())]
    names = draw(st.lists(TEXT.filter(bool), min_size=6, max_size=6, unique=True))
    topics = []
    for topic_id, name in zip(alive, names, strict=False):
        floor, earliest = sorted((draw(U64), draw(U64)))
        rest = (draw(U64), draw(RANGES))
        topics.append(TopicMeta(topic_id, name, draw(U64), draw(TEXT), floor, earliest, *rest))
    return Snapshot(
        next_topic_id=draw(st.integers(max(ids, default=-1) + 1, (1 << 64) - 1)),
        last_checkpoint_sequence=draw(U64),
        topics=tuple(topics),
        deleted_topics=tuple(DeletedTopic(i, draw(U64)) for i in ids if i not in alive),
        current_wal=tuple(
            CurrentWal(shard, draw(U64))
            for shard in sorted(draw(st.sets(st.integers(0, (1 << 32) - 1), max_size=4)))
        ),
        routers=tuple(draw(st.lists(st.binary(max_size=300), max_size=3))),
    )


def with_payload(payload: bytes) -> bytes:
    """A file with a good header around any payload."""
    checksum = xxhash.xxh3_64_intdigest(payload)
    return b"LAMSNAP\x00" + struct.pack("<HHIQ", 1, 0, len(payload), checksum) + payload


@settings(max_examples=200, deadline=None)
@given(snapshots())
def test_any_snapshot_comes_back_as_it_went_in(drawn: Snapshot) -> None:
    assert snapshot.decode(snapshot.encode(drawn)) == drawn


def test_every_prefix_and_every_longer_file_is_refused() -> None:
    for size in range(len(RAW)):
        with pytest.raises(CorruptData):
            snapshot.decode(RAW[:size])
    with pytest.raises(CorruptData, match="length"):
        snapshot.decode(RAW + b"\x00")


def test_every_single_byte_change_is_detected() -> None:
    for position in range(len(RAW)):
        for change in range(1, 256):
            damaged = bytearray(RAW)
            damaged[position] ^= change
            with pytest.raises(CorruptData):
                snapshot.decode(bytes(damaged))


def test_every_prefix_of_the_payload_is_refused_even_with_a_good_checksum() -> None:
    for size in range(len(PAYLOAD)):
        with pytest.raises(CorruptData, match="cut short") as caught:
            snapshot.decode(with_payload(PAYLOAD[:size]))
        assert 24 <= caught.value.position <= 24 + size
    with pytest.raises(CorruptData, match="after its end"):
        snapshot.decode(with_payload(PAYLOAD + b"\x00"))


@pytest.mark.parametrize(("position", "value"), [(8, 2), (10, 3)])
def test_another_version_or_flag_is_a_newer_format(position: int, value: int) -> None:
    newer = bytearray(RAW)
    newer[position] = value
    with pytest.raises(NewerFormat):
        snapshot.decode(bytes(newer))
    newer[-1] ^= 1
    with pytest.raises(CorruptData) as refused:
        snapshot.decode(bytes(newer))
    assert not isinstance(refused.value, NewerFormat)


def test_a_flipped_bit_of_the_version_or_flags_is_damage() -> None:
    for bit in range(32):
        hurt = bytearray(RAW)
        hurt[8 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData) as refused:
            snapshot.decode(bytes(hurt))
        assert not isinstance(refused.value, NewerFormat)


def test_hostile_files_are_all_refused() -> None:
    drawn = random.Random(20_240_603)
    for _ in range(2_000):
        hostile = mutate(RAW, drawn)
        if hostile != RAW:
            with pytest.raises(CorruptData):
                snapshot.decode(hostile)


def test_hostile_payloads_raise_a_typed_error_or_give_a_right_value() -> None:
    drawn = random.Random(20_240_604)
    with grows_at_most(64 << 10):
        read = 0
        for _ in range(2_000):
            hostile = with_payload(mutate(PAYLOAD, drawn))
            try:
                value = snapshot.decode(hostile)
            except CorruptData:
                continue
            assert snapshot.encode(value) == hostile
            read += 1
        assert read > 100


ORDERS = META.topics[0]
WRONG = [
    replace(META, next_topic_id=ORDERS.topic_id),
    replace(META, topics=(ORDERS, ORDERS)),
    replace(META, topics=(ORDERS, replace(ORDERS, topic_id=1, name="b"))),
    replace(META, topics=(replace(ORDERS, topic_id=1), ORDERS)),
    replace(META, deleted_topics=(DeletedTopic(ORDERS.topic_id, 1),)),
    replace(META, deleted_topics=(DeletedTopic(1 << 40, 1),)),
    replace(META, deleted_topics=(DeletedTopic(3, 1), DeletedTopic(3, 2))),
    replace(META, current_wal=(CurrentWal(1, 1), CurrentWal(0, 1))),
    replace(META, topics=(replace(ORDERS, name=""),)),
    replace(META, topics=(replace(ORDERS, evict_floor=3),)),
    replace(META, topics=(replace(ORDERS, deleted=((4, 4),)),)),
    replace(META, topics=(replace(ORDERS, deleted=((4, 6), (6, 8))),)),
    replace(META, topics=(replace(ORDERS, deleted=((7, 8), (1, 2))),)),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_contradicts_itself_is_neither_written_nor_read(
    wrong: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest):
        snapshot.encode(wrong)
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "_problem", lambda value: None)
        raw = snapshot.encode(wrong)
    with pytest.raises(CorruptData):
        snapshot.decode(raw)


def test_a_name_that_does_not_fit_is_refused() -> None:
    long_name = replace(META, topics=(replace(ORDERS, name="n" * 65_536),))
    with pytest.raises(InvalidRequest, match="65535"):
        snapshot.encode(long_name)
