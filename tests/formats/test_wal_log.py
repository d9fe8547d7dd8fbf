"""WAL and segment frames: vectors made by hand, and the contract of every log format, twice."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import InvalidRequest
from lamina.formats.scan import Budget, Limit, Scan, Stop
from lamina.formats.wal import log, search
from lamina.formats.wal.headers import headers, headers_segment, select
from lamina.formats.wal.layout import BODY_BYTES_MAX, FrameType
from lamina.records import prepare
from tests.formats.test_wal_golden import TOPIC, appends_of, frame_by_hand
from tests.support.contract import LogContract, plain

SAMPLE: list[dict[str, Any]] = [
    {"timestamp": 1_700_000_000_000, "value": b"first", "tag": None, "node": None},
    {"timestamp": -1, "value": b"", "tag": b"", "node": b"n"},
    {"timestamp": 0, "value": b"v" * 250, "tag": b"red", "node": None},
    {"timestamp": 5, "value": b"\x01\x2e\x00\x00\x00" * 3, "tag": b"\xff\x00", "node": b""},
]

LARGEST = {"frame_len": 41 + BODY_BYTES_MAX, "data_len": BODY_BYTES_MAX}
TOO_LARGE = {"frame_len": 42 + BODY_BYTES_MAX, "data_len": BODY_BYTES_MAX + 1}


def wal_bytes(batch: pa.RecordBatch, base_sequence: int = 7, topic_id: int = TOPIC) -> bytes:
    encoded = log.encode(batch, topic_id=topic_id, base_sequence=base_sequence, durable=True)
    return encoded[0].tobytes()


def segment_bytes(wal: bytes) -> bytes:
    """What a compactor copies: each frame without its first byte."""
    found = log.scan(wal)
    ends = found.positions + headers(wal, found).lengths
    pairs = zip(found.positions.tolist(), ends.tolist(), strict=True)
    return b"".join(wal[start + 1 : end] for start, end in pairs)


def with_sequences(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    offsets = pa.array(range(7, 7 + batch.num_rows), pa.int64())
    return plain(batch.add_column(0, "offset", offsets))


def resealed(frame: bytes, seed: int) -> bytes:
    checksum: int = xxhash.xxh3_64_intdigest(frame[4:-8], seed)
    return frame[:-8] + struct.pack("<Q", checksum)


def lures(count: int, prefix: bytes) -> bytes:
    unit = 2 * len(prefix) + 46 + 37
    out, size = b"", count * unit
    for row in range(count):
        out += prefix + frame_by_hand(1, 7 + row, b"v")[1:]
        data_len = max(0, size - len(out) - len(prefix) - 46)
        out += prefix + struct.pack("<IBQQq", 41 + data_len, 4, TOPIC, row, 0)
        out += struct.pack("<HHI", 0, 0, data_len)
    return out


class TestWalLog(LogContract):
    format_name = "wal"
    value_column = 0
    sample = SAMPLE
    fixed_bytes = 38
    has_order = False
    hostile_inputs = 5_000

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return wal_bytes(batch)

    def scan(self, data: bytes, start: int, limit: Limit) -> Scan:
        return log.scan(data, start, limit=limit)

    def decode(self, data: bytes, found: Scan) -> pa.RecordBatch:
        return log.decode(data, found)

    def resync(
        self, data: bytes, start: int, *, minimum: int = 0, budget: Budget | None = None
    ) -> int | None:
        return search.resync(data, start, budget=budget)

    def reseal(self, record: bytes) -> bytes:
        return record[:1] + resealed(record[1:], 0 if record[0] == 1 else record[0])

    def lures(self, count: int) -> bytes:
        return lures(count, b"\x01")

    def expected(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return with_sequences(batch)

    def judge_hostile(self, whole: list[dict[str, Any]], read: list[dict[str, Any]]) -> None:
        """A WAL has no order to check: a whole frame that was copied elsewhere is read again."""
        assert all(record in whole for record in read), "a damaged record was returned"


class TestWalSegment(LogContract):
    format_name = "wal"
    value_column = 0
    sample = SAMPLE
    fixed_bytes = 37
    hostile_inputs = 5_000

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return segment_bytes(wal_bytes(batch))

    def scan(self, data: bytes, start: int, limit: Limit) -> Scan:
        return log.scan_segment(data, start, topic_id=TOPIC, minimum_sequence=7, limit=limit)

    def decode(self, data: bytes, found: Scan) -> pa.RecordBatch:
        return log.decode_segment(data, found)

    def resync(
        self, data: bytes, start: int, *, minimum: int = 0, budget: Budget | None = None
    ) -> int | None:
        return search.resync_segment(
            data, start, topic_id=TOPIC, minimum_sequence=minimum, budget=budget
        )

    def reseal(self, record: bytes) -> bytes:
        return resealed(record, 0)

    def lures(self, count: int) -> bytes:
        return lures(count, b"")

    def expected(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        return with_sequences(batch)


@pytest.mark.parametrize("size", [0, 1, 15, 66, 67, 95, 96, 100, 207, 208, 1024, 70_000])
@pytest.mark.parametrize("names", [{}, {"tag": b"t", "node": b"node"}])
def test_frames_made_by_hand_are_what_we_write(size: int, names: dict[str, bytes]) -> None:
    value = bytes(i * 7 & 0xFF for i in range(size))
    batch = prepare([{"timestamp": -2, "value": value} | names], "wal", now_ms=0)
    by_hand = frame_by_hand(1, 1 << 40, value, timestamp_ms=-2, **names)
    assert wal_bytes(batch, 1 << 40) == by_hand


def test_a_topic_id_of_all_bits_and_a_frame_not_durable() -> None:
    top = (1 << 64) - 1
    batch = prepare([{"timestamp": 1, "value": b"v"}], "wal", now_ms=0)
    data, _ = log.encode(batch, topic_id=top, base_sequence=1, durable=False)
    assert data.tobytes() == frame_by_hand(1, 1, b"v", topic_id=top, flags=0)
    found = log.scan(data)
    columns = headers(data, found)
    assert columns.topic_ids.tolist() == [top]
    assert appends_of(columns, top).tolist() == [True]
    assert len(log.scan_segment(data[1:], topic_id=top)) == 1
    assert len(log.scan_segment(data[1:])) == 1
    assert search.resync_segment(data, 0, topic_id=top) == 1


@pytest.mark.parametrize(
    ("kind", "wrong", "stop"),
    [
        (1, {"frame_len": 41}, Stop.BAD_LENGTH),
        (1, {"frame_len": 43}, Stop.BAD_LENGTH),
        (1, {"frame_len": 40}, Stop.BAD_LENGTH),
        (1, {"frame_len": 0}, Stop.TORN),
        (0, {}, Stop.TORN),
        (1, TOO_LARGE, Stop.BAD_LENGTH),
        (1, LARGEST, Stop.TORN),
        (1, {"tag_len": 1, "data_len": 0}, Stop.BAD_LENGTH),
        (1, {"node_len": 1, "data_len": 0}, Stop.BAD_LENGTH),
        (1, {"flags": 16}, Stop.BAD_VERSION),
        (1, {"flags": 16, "seed": 5}, Stop.BAD_CHECKSUM),
        (10, {}, Stop.BAD_VERSION),
        (5, {}, Stop.BAD_VERSION),
        (63, {}, Stop.BAD_VERSION),
        (65, {}, Stop.BAD_VERSION),
        (255, {}, Stop.BAD_VERSION),
        (9, {"seed": 0}, Stop.BAD_CHECKSUM),
        (6, {"seed": 0}, Stop.BAD_CHECKSUM),
        (1, {"seed": 1}, Stop.BAD_CHECKSUM),
    ],
)
def test_each_wrong_field_has_its_own_stop(kind: int, wrong: dict[str, int], stop: Stop) -> None:
    good = frame_by_hand(1, 1, b"v")
    found = log.scan(good + frame_by_hand(kind, 2, b"v", **wrong))
    assert (len(found), found.end, found.stop) == (1, len(good), stop)


def test_one_type_flipped_into_another_is_caught() -> None:
    for kind in FrameType:
        frame = frame_by_hand(int(kind), 3, b"body" * 80)
        for other in set(FrameType) - {kind}:
            assert log.scan(bytes([other]) + frame[1:]).stop is Stop.BAD_CHECKSUM


def test_lengths_that_would_wrap_are_not_a_torn_tail() -> None:
    frame = bytearray(frame_by_hand(1, 1, b"v"))
    frame[30:38] = struct.pack("<HHI", 0xFFFF, 0xFFFF, 0xFFFFFFFF)
    assert log.scan(frame).stop is Stop.BAD_LENGTH
    frame[1:5] = struct.pack("<I", (41 + 2 * 0xFFFF + 0xFFFFFFFF) & 0xFFFFFFFF)
    assert log.scan(frame).stop is Stop.BAD_LENGTH


def test_sequence_zero_is_for_control_frames_only() -> None:
    assert log.scan(frame_by_hand(1, 0, b"v")).stop is Stop.BAD_OFFSET
    assert log.scan(frame_by_hand(2, 0, b"v")).stop is Stop.END
    assert log.scan(frame_by_hand(1, 1 << 63, b"v")).stop is Stop.BAD_OFFSET
    assert log.scan(frame_by_hand(1, (1 << 63) - 1, b"v")).stop is Stop.END


def test_a_wal_may_repeat_and_skip_sequences_but_a_segment_only_skips() -> None:
    sequences = [5, 9, 9, 2]
    wal = b"".join(frame_by_hand(1, sequence, b"v") for sequence in sequences)
    assert headers(wal, log.scan(wal)).sequences.tolist() == sequences
    segment = segment_bytes(wal)
    found = log.scan_segment(segment, topic_id=TOPIC)
    assert (headers_segment(segment, found).sequences.tolist(), found.stop) == (
        [5, 9],
        Stop.BAD_OFFSET,
    )
    assert log.scan_segment(segment, minimum_sequence=6).end == 0


def test_a_segment_holds_one_topic() -> None:
    mine = frame_by_hand(1, 1, b"v")[1:]
    segment = mine + frame_by_hand(1, 2, b"v", topic_id=TOPIC + 1)[1:]
    for topic_id in (TOPIC, None):
        found = log.scan_segment(segment, topic_id=topic_id)
        assert (found.end, found.stop) == (len(mine), Stop.BAD_OFFSET)
    found = log.scan_segment(segment, topic_id=TOPIC + 1)
    assert (found.end, found.stop) == (0, Stop.BAD_OFFSET)


def test_too_few_bytes_for_a_frame_are_a_torn_tail_of_whatever_topic() -> None:
    segment = frame_by_hand(1, 1, b"v")[1:]
    for left in range(1, 5):
        found = log.scan_segment(segment + segment[:left], len(segment), topic_id=None)
        assert (found.end, found.stop, len(found)) == (len(segment), Stop.TORN, 0)


def test_records_of_one_topic_are_chosen_from_a_mixed_wal() -> None:
    parts = [
        frame_by_hand(1, 1, b"mine", tag=b"a"),
        frame_by_hand(2, 1, b"a control body"),
        frame_by_hand(1, 1, b"another's", topic_id=3, node=b"n"),
        frame_by_hand(1, 2, b"mine too", node=b"node"),
    ]
    wal = b"".join(parts)
    found = log.scan(wal)
    columns = headers(wal, found)
    assert columns.lengths.tolist() == [len(part) for part in parts]
    mine = select(found, columns, appends_of(columns, TOPIC))
    assert mine.column_bytes == (12, 1, 4)
    batch = log.decode(wal, mine)
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == [b"mine", b"mine too"]
    assert batch.column("node").to_pylist() == [None, b"node"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=30)), max_size=20), st.data())
def test_any_selection_decodes_to_the_chosen_rows(
    drawn: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    wal = b"".join(
        frame_by_hand(1, row + 1, value, topic_id=topic, tag=value or None)
        for row, (topic, value) in enumerate(drawn)
    )
    found = log.scan(wal)
    chosen = data.draw(st.lists(st.booleans(), min_size=len(drawn), max_size=len(drawn)))
    columns = headers(wal, found)
    batch = log.decode(wal, select(found, columns, np.array(chosen, dtype=bool)))
    batch.validate(full=True)
    kept = [value for (_, value), keep in zip(drawn, chosen, strict=True) if keep]
    assert batch.column("value").to_pylist() == kept
    assert batch.column("tag").to_pylist() == [value or None for value in kept]


def test_resync_skips_other_topics_and_older_sequences() -> None:
    old = frame_by_hand(1, 3, b"old")[1:]
    other = frame_by_hand(1, 20, b"other", topic_id=1)[1:]
    new = frame_by_hand(1, 12, b"new")[1:]
    data = b"\x00" * 9 + old + other + new
    expected = 9 + len(old) + len(other)
    assert search.resync_segment(data, 0, topic_id=TOPIC, minimum_sequence=10) == expected
    assert search.resync_segment(data, 0, minimum_sequence=10) == 9 + len(old)
    assert search.resync_segment(data, 0) == 9
    assert search.resync_segment(data, 0, minimum_sequence=30) is None


def test_resync_finds_a_control_frame() -> None:
    frame = frame_by_hand(8, 3, b"mark")
    assert search.resync(b"\x07" * 13 + frame, 0) == 13


def test_encoding_goes_into_the_given_buffer_when_it_has_room() -> None:
    out = np.zeros(400, dtype=np.uint8)
    small = prepare([b"abc"], "wal", now_ms=1)
    data, _ = log.encode(small, topic_id=1, base_sequence=1, durable=True, out=out)
    assert np.shares_memory(data, out)
    large = prepare([b"abc" * 200], "wal", now_ms=1)
    data, _ = log.encode(large, topic_id=1, base_sequence=1, durable=True, out=out)
    assert len(data) == 646


def test_positions_say_where_each_frame_starts() -> None:
    batch = prepare([b"abc", b"", b"z" * 90], "wal", now_ms=1)
    data, positions = log.encode(batch, topic_id=1, base_sequence=1, durable=True)
    assert positions.tolist() == log.scan(data).positions.tolist() == [0, 49, 95]


@pytest.mark.parametrize("column", ["tag", "node"])
def test_what_does_not_fit_is_refused(column: str) -> None:
    rows = [{"value": b"v"}, {"value": b"v", column: b"x" * 65_536}]
    with pytest.raises(InvalidRequest, match="row 1"):
        wal_bytes(prepare(rows, "wal", now_ms=1))
    fits = [{"value": b"v", column: b"x" * 65_535}]
    assert log.scan(wal_bytes(prepare(fits, "wal", now_ms=1))).stop is Stop.END


@pytest.mark.parametrize("base_sequence", [0, -1, (1 << 63) - 1])
def test_sequences_are_positive_and_fit(base_sequence: int) -> None:
    with pytest.raises(InvalidRequest, match="sequences"):
        wal_bytes(prepare([b"v"], "wal", now_ms=1), base_sequence)


def test_an_append_is_not_a_control_frame() -> None:
    with pytest.raises(InvalidRequest, match="APPEND"):
        log.encode_control(FrameType.APPEND, 1, 1, 1, b"")


def test_nothing_follows_the_greatest_sequence() -> None:
    frames = [frame_by_hand(1, sequence, b"v")[1:] for sequence in ((1 << 63) - 1, 3)]
    found = log.scan_segment(b"".join(frames))
    assert (len(found), found.stop) == (1, Stop.BAD_OFFSET)
    assert log.scan_segment(frames[0], minimum_sequence=1 << 63).stop is Stop.BAD_OFFSET
