"""The frame log: vectors made by hand, and the contract of every log format."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import InvalidRequest, UnsupportedField
from lamina.formats.frame import log
from lamina.formats.scan import Budget, Limit, Scan, Stop
from lamina.records import prepare
from tests.support.contract import LogContract, plain

GOLDEN = bytes.fromhex(
    "015e0bb10100000000000000000000000068e5cf8b0100000000000003000000010203f2d1d4f32b000000"
    "015e0bb10100000001000000000000000168e5cf8b010000010000000200000009040594cd699c2b000000"
)
GOLDEN_ROWS: list[dict[str, Any]] = [
    {"offset": 0, "timestamp": 1_700_000_000_000, "key": None, "value": b"\x01\x02\x03"},
    {"offset": 1, "timestamp": 1_700_000_000_001, "key": b"\x09", "value": b"\x04\x05"},
]


def frame_by_hand(offset: int, timestamp_ms: int, key: bytes, value: bytes, **wrong: int) -> bytes:
    """A frame made from the document's tables only, with `struct` and `zlib`."""
    fields = {"magic": 0xB10B5E01, "version": 1, "flags": 0, "frame_len": 40 + len(key + value)}
    fields |= wrong
    head = struct.pack("<IHH", fields["magic"], fields["version"], fields["flags"])
    head += struct.pack("<qqII", offset, timestamp_ms, len(key), len(value)) + key + value
    return head + struct.pack("<II", zlib.crc32(head), fields["frame_len"])


class TestFrameLog(LogContract):
    format_name = "frame"
    fixed_bytes = 32
    length_bytes = range(24, 32)
    sample = [
        {"timestamp": 1_700_000_000_000, "key": None, "value": b"first"},
        {"timestamp": -1, "key": b"k", "value": b""},
        {"timestamp": 1_700_000_000_005, "key": b"\xff\x00", "value": b"v" * 50},
        {"timestamp": 0, "key": b"long key " * 4, "value": b"\x01\x5e\x0b\xb1" * 3},
    ]

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return log.encode(batch, 7)[0].tobytes()

    def scan(self, data: bytes, start: int, limit: Limit) -> Scan:
        return log.scan(data, start, limit=limit)

    def decode(self, data: bytes, found: Scan) -> pa.RecordBatch:
        return log.decode(data, found)

    def resync(
        self, data: bytes, start: int, *, minimum: int = 0, budget: Budget | None = None
    ) -> int | None:
        return log.resync(data, start, minimum_offset=minimum, budget=budget)

    def reseal(self, record: bytes) -> bytes:
        return record[:-8] + struct.pack("<I", zlib.crc32(record[:-8])) + record[-4:]

    def lures(self, count: int) -> bytes:
        """The trailing lengths that the headers claim stand together at the end."""
        slots = count * (41 + 32)
        out, trailers = b"", b""
        for row in range(count):
            out += frame_by_hand(row, 1, b"", b"v")
            length = slots + 4 * (row + 1) - len(out)
            out += struct.pack("<IHHqqII", 0xB10B5E01, 1, 0, row, 1, 0, length - 40)
            trailers += struct.pack("<I", length)
        return out + trailers

    def expected(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        offsets = pa.array(range(7, 7 + batch.num_rows), pa.int64())
        rows = plain(batch.add_column(0, "offset", offsets))
        return [row | {"key": row["key"] or None} for row in rows]


def test_golden_bytes_are_read() -> None:
    found = log.scan(GOLDEN)
    assert found.positions.tolist() == [0, 43]
    assert plain(log.decode(GOLDEN, found)) == GOLDEN_ROWS


def test_golden_bytes_are_written() -> None:
    columns = [{name: row[name] for name in ("timestamp", "key", "value")} for row in GOLDEN_ROWS]
    batch = prepare(columns, "frame", now_ms=0)
    assert log.encode(batch, 0)[0].tobytes() == GOLDEN


@pytest.mark.parametrize("value_len", [0, 1, 15, 16, 100, 1024, 70_000])
def test_frames_made_by_hand_are_what_we_write(value_len: int) -> None:
    value = bytes(i * 7 & 0xFF for i in range(value_len))
    batch = prepare([{"timestamp": 5, "key": b"kk", "value": value}], "frame", now_ms=0)
    assert log.encode(batch, 1 << 40)[0].tobytes() == frame_by_hand(1 << 40, 5, b"kk", value)


@pytest.mark.parametrize(
    ("wrong", "stop"),
    [
        ({"magic": 0xB10B5E02}, Stop.BAD_MAGIC),
        ({"version": 2}, Stop.BAD_VERSION),
        ({"flags": 1}, Stop.BAD_VERSION),
        ({"frame_len": 42}, Stop.BAD_LENGTH),
    ],
)
def test_each_wrong_field_has_its_own_stop(wrong: dict[str, int], stop: Stop) -> None:
    good = frame_by_hand(0, 1, b"", b"v")
    found = log.scan(good + frame_by_hand(1, 1, b"", b"v", **wrong))
    assert (len(found), found.end, found.stop) == (1, len(good), stop)


def test_a_length_beyond_the_limit_is_not_a_torn_tail() -> None:
    frame = bytearray(frame_by_hand(0, 1, b"", b"v"))
    frame[24:32] = struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)
    assert log.scan(frame).stop is Stop.BAD_LENGTH


def test_a_frame_that_does_not_continue_the_file_stops_the_scan() -> None:
    data = frame_by_hand(4, 1, b"", b"v") + frame_by_hand(6, 1, b"", b"v")
    assert log.scan(data).stop is Stop.BAD_OFFSET
    assert log.scan(data, expected_offset=3).end == 0
    assert len(log.scan(data, expected_offset=4)) == 1


def test_encoding_goes_into_the_given_buffer_when_it_has_room() -> None:
    out = log.encode(prepare([b"x" * 200], "frame", now_ms=1), 0)[0]
    data, _ = log.encode(prepare([b"abc"], "frame", now_ms=1), 0, out)
    assert data.base is out or data.base is out.base
    data, _ = log.encode(prepare([b"abc" * 100], "frame", now_ms=1), 0, out)
    assert len(data) == 340


def test_what_the_format_cannot_keep_is_refused() -> None:
    with pytest.raises(UnsupportedField, match="keratin"):
        prepare([{"value": None}], "frame", now_ms=1)
    with pytest.raises(UnsupportedField, match="keratin"):
        prepare([{"value": b"v", "headers": [{"key": "a", "value": b"b"}]}], "frame", now_ms=1)
    too_large = prepare([b"small", b"x" * (log.BODY_BYTES_MAX + 1)], "frame", now_ms=1)
    with pytest.raises(InvalidRequest, match="row 1"):
        log.encode(too_large, 0)


def test_a_leftover_of_an_older_log_is_not_taken_for_the_continuation() -> None:
    data = b"\x00" * 9 + frame_by_hand(3, 1, b"", b"old") + frame_by_hand(12, 1, b"", b"new")
    assert log.resync(data, 0, minimum_offset=10) == 9 + len(frame_by_hand(3, 1, b"", b"old"))


def test_a_batch_whose_offsets_go_back_is_refused_before_anything_is_overrun() -> None:
    offsets = pa.py_buffer(struct.pack("<4i", 0, 4000, 5, 6))
    values = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(bytes(5000))])
    good = prepare([b"a", b"b", b"c"], "frame", now_ms=1)
    broken = good.set_column(2, good.schema.field(2), values)
    with pytest.raises(InvalidRequest, match="broken"):
        log.encode(broken, 0)


def test_nothing_continues_the_greatest_offset() -> None:
    last = frame_by_hand((1 << 63) - 1, 1, b"", b"v")
    found = log.scan(last + frame_by_hand(3, 1, b"", b"v"))
    assert (len(found), found.stop) == (1, Stop.BAD_OFFSET)
    assert log.scan(last, expected_offset=1 << 63).stop is Stop.BAD_OFFSET
    assert log.resync(last, 0, minimum_offset=1 << 63) is None
    assert log.resync(last, 0, minimum_offset=(1 << 63) - 1) == 0


def test_a_large_frame_behind_a_used_up_budget_is_skipped_and_small_ones_are_not() -> None:
    large, small = frame_by_hand(0, 1, b"", b"v" * 9000), frame_by_hand(1, 1, b"", b"v")
    assert log.resync(large + small, 0) == 0
    empty = Budget(0)
    assert log.resync(large + small, 0, budget=empty) == len(large)
    assert empty.spent == len(small)
    assert log.scan(large, limit=Limit(budget=Budget(0))).stop is Stop.BAD_CHECKSUM
