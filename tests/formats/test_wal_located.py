"""Frames at known places: one that is not exactly the expected one is never taken for it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lamina.formats.wal import log
from lamina.formats.wal.located import Expected, time_of_segment_frame
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
