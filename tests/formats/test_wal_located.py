"""Frames at known places: one that is not exactly the expected one is never taken for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from lamina.formats.scan import Stop
from lamina.formats.wal import log
from lamina.formats.wal.located import (
    Expected,
    gather,
    sound_at,
    tag_matches,
    time_of_segment_frame,
)
from lamina.formats.wal.sharding import shard_of
from lamina.records import prepare

WANTED = Expected(0xA0B, 7)


@pytest.fixture
def frame() -> bytes:
    batch = prepare(pa.table({"value": [b"value"], "tag": [b"red"]}), "wal", now_ms=1)
    return log.encode(batch, topic_id=0xA0B, base_sequence=7, durable=True)[0].tobytes()[1:]


def test_a_sound_frame_is_known(frame: bytes) -> None:
    assert time_of_segment_frame(frame, WANTED) == 1


@pytest.mark.parametrize("other", [Expected(0xA0C, 7), Expected(0xA0B, 6), Expected(0xA0B, 8)])
def test_a_frame_of_another_topic_or_sequence_is_not_it(frame: bytes, other: Expected) -> None:
    assert time_of_segment_frame(frame, other) is None


def test_no_part_of_a_frame_is_one_nor_is_more_than_one(frame: bytes) -> None:
    parts = [frame[:end] for end in range(len(frame))]
    for part in (*parts, frame + b"\0", frame + frame):
        assert time_of_segment_frame(part, WANTED) is None


def test_no_changed_byte_goes_unseen(frame: bytes) -> None:
    for position in range(len(frame)):
        for bit in range(8):
            changed = bytearray(frame)
            changed[position] ^= 1 << bit
            assert time_of_segment_frame(changed, WANTED) is None


# -------------------------------------------------------------------- frames scattered in a WAL

ROWS: dict[str, list[bytes | None]] = {
    "value": [b"one", b"", b"three three"],
    "tag": [b"red", b"reddish", None],
    "node": [b"n1", None, b"node-3"],
}
TOPIC = 0xA0B


def scattered(first_sequence: int = 7) -> tuple[bytes, np.ndarray[Any, Any], list[int]]:
    """A WAL with three records of a topic between those of another: bytes, positions, lengths."""
    wal, positions, lengths = b"", [], []
    for row in range(3):
        batch = prepare(
            pa.table({name: pa.array([column[row]], pa.binary()) for name, column in ROWS.items()}),
            "wal",
            now_ms=100 + row,
        )
        other = log.encode(batch, topic_id=9, base_sequence=50 + row, durable=True)[0].tobytes()
        mine = log.encode(batch, topic_id=TOPIC, base_sequence=first_sequence + row, durable=True)[
            0
        ].tobytes()
        wal += other
        positions.append(len(wal))
        lengths.append(len(mine))
        wal += mine
    return wal, np.array(positions, dtype=np.int64), lengths


def test_scattered_frames_are_read_as_they_were_written() -> None:
    wal, positions, _ = scattered()
    found = sound_at(wal, positions, WANTED, 1 << 20)
    assert (found.stop, len(found), found.end) == (Stop.LIMIT, 3, 0)
    assert found.column_bytes == (len(b"onethree three"), len(b"redreddish"), len(b"n1node-3"))
    batch = log.decode(wal, found)
    assert {name: batch.column(name).to_pylist() for name in ROWS} == ROWS


def test_frames_are_read_up_to_a_number_of_bytes_but_at_least_one() -> None:
    wal, positions, lengths = scattered()
    for most, rows in [(1, 1), (sum(lengths[:2]) - 1, 1), (sum(lengths[:2]), 2)]:
        found = sound_at(wal, positions, WANTED, most)
        assert (found.stop, found.positions.tolist()) == (Stop.LIMIT, positions[:rows].tolist())


def test_what_is_not_the_expected_frame_ends_the_read() -> None:
    wal, positions, _ = scattered()
    assert sound_at(wal, positions, Expected(TOPIC, 8), 1 << 20).stop is Stop.BAD_OFFSET
    assert sound_at(wal, positions, Expected(9, 7), 1 << 20).stop is Stop.BAD_OFFSET
    spoilt = bytearray(wal)
    spoilt[positions[1] + 40] ^= 1
    found = sound_at(spoilt, positions, WANTED, 1 << 20)
    assert (found.stop, len(found)) == (Stop.BAD_CHECKSUM, 1)
    assert found.column_bytes == (3, 3, 2)
    for beyond in (-1, len(wal), len(wal) + 5):
        found = sound_at(wal, np.array([positions[0], beyond]), WANTED, 1 << 20)
        assert (found.stop, len(found)) == (Stop.TORN, 1)


def test_frames_are_gathered_without_what_lies_between() -> None:
    wal, positions, lengths = scattered()
    out = np.zeros(sum(lengths) - 3, dtype=np.uint8)
    made = gather(wal, positions, WANTED, out)
    assert (made.is_sound, made.needed_bytes, made.scan.end) == (True, 0, len(out))
    assert made.scan.positions.tolist() == [0, lengths[0] - 1, lengths[0] + lengths[1] - 2]
    found = log.scan_segment(out)
    assert (found.stop, len(found)) == (Stop.END, 3)
    assert log.decode_segment(out, found).column("value").to_pylist() == ROWS["value"]


def test_a_frame_without_room_says_how_much_it_needs() -> None:
    wal, positions, lengths = scattered()
    out = np.zeros(lengths[0] - 1 + lengths[1] - 2, dtype=np.uint8)
    made = gather(wal, positions, WANTED, out)
    assert (len(made.scan), made.is_sound, made.needed_bytes) == (1, True, lengths[1] - 1)
    spoilt = bytearray(wal)
    spoilt[positions[1]] ^= 0xFF
    made = gather(spoilt, positions, WANTED, np.zeros(1000, dtype=np.uint8))
    assert (len(made.scan), made.is_sound, made.needed_bytes) == (1, False, 0)


@pytest.mark.parametrize("prefix", [0, 1])
def test_tags_are_matched_whole_or_by_how_they_begin(prefix: int) -> None:
    wal, positions, _ = scattered()
    at = positions + 1 - prefix

    def matches(tag: bytes, *, exact: bool) -> list[bool]:
        return tag_matches(wal, at, tag, prefix_bytes=prefix, exact=exact).tolist()

    assert matches(b"red", exact=True) == [True, False, False]
    assert matches(b"red", exact=False) == [True, True, False]
    assert matches(b"redd", exact=False) == [False, True, False]
    assert matches(b"rea", exact=False) == [False, False, False]
    assert matches(b"", exact=False) == [True, True, False], "a record without a tag has none"


@pytest.mark.parametrize("topic_id", [0, 1, 0xA0B, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("shards", [1, 3, 16])
def test_a_topic_goes_to_the_shard_that_the_xxhash_package_says(topic_id: int, shards: int) -> None:
    digest = xxhash.xxh3_64(topic_id.to_bytes(8, "little")).intdigest()
    assert shard_of(topic_id, shards) == digest % shards
