"""The keratin log: records made by hand, and the contract of every log format."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import CorruptData, InvalidRequest, NewerFormat
from lamina.formats.keratin import log
from lamina.formats.scan import Budget, Limit, Scan, Stop
from lamina.records import INPUT_SCHEMAS, prepare
from tests.formats.test_keratin_golden import NOW, based, crc, file_header, joined, record
from tests.support.contract import LogContract, plain

FILE_HEADER = joined(file_header(b"KLOG", 68, based(7)))


def by_hand(offset: int, headers: bytes = b"", payload: bytes = b"v", **other: int) -> bytes:
    return joined(record(offset, NOW, headers, payload, **other))


class TestKeratinLog(LogContract):
    format_name = "keratin"
    header_bytes = 68
    fixed_bytes = 32
    length_bytes = range(8, 16)
    sample = [
        {"timestamp": NOW, "key": None, "value": b"first", "headers": None},
        {"timestamp": -1, "key": b"", "value": None, "headers": []},
        {"timestamp": NOW + 5, "key": b"k", "value": b"", "headers": None},
        {
            "timestamp": 0,
            "key": b"\xff\x00",
            "value": b"\x4b\x52\x00\x01" * 3,
            "headers": [{"key": "é", "value": b"\x00\x01"}, {"key": "", "value": None}],
        },
        {"timestamp": 1, "key": None, "value": None, "headers": None},
        {"timestamp": 2, "key": None, "value": b"x", "headers": [{"key": "a", "value": b""}]},
    ]

    def encode(self, batch: pa.RecordBatch) -> bytes:
        return FILE_HEADER + log.encode(batch, 7)[0].tobytes()

    def scan(self, data: bytes, start: int, limit: Limit) -> Scan:
        return log.scan(data, start, limit=limit)

    def decode(self, data: bytes, found: Scan) -> pa.RecordBatch:
        return log.decode(data, found)

    def resync(
        self, data: bytes, start: int, *, minimum: int = 0, budget: Budget | None = None
    ) -> int | None:
        return log.resync(data, start, minimum_offset=minimum, budget=budget)

    def reseal(self, record: bytes) -> bytes:
        return record[:-4] + crc(record[2:-4])

    def lures(self, count: int) -> bytes:
        out, size = FILE_HEADER, 68 + count * (37 + 32)
        for row in range(count):
            out += by_hand(7 + row)
            lengths = struct.pack(">II", 0, max(0, size - len(out) - 37))
            out += b"KR" + struct.pack(">HHH", 1, 0, 0) + lengths + struct.pack(">qq", 0, row)
        return out

    def expected(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        offsets = pa.array(range(7, 7 + batch.num_rows), pa.int64())
        return plain(batch.add_column(0, "offset", offsets))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 16, 100, 1024, 70_000])
def test_records_made_by_hand_are_what_we_write(size: int) -> None:
    value = bytes(i * 7 & 0xFF for i in range(size))
    key = struct.pack(">2sBBI", b"LE", 1, 1, 2) + b"kk"
    batch = prepare([{"timestamp": NOW, "key": b"kk", "value": value}], "keratin", now_ms=0)
    assert log.encode(batch, 1 << 40)[0].tobytes() == by_hand(1 << 40, key, value)


@pytest.mark.parametrize(
    ("other", "stop"),
    [
        ({"magic": 0x4B53}, Stop.BAD_MAGIC),
        ({"magic": 0}, Stop.TORN),
        ({"version": 2}, Stop.BAD_VERSION),
        ({"version": 0}, Stop.BAD_VERSION),
        ({"flags": 0xFFFF}, Stop.END),
        ({"reserved0": 0xFFFF}, Stop.END),
    ],
)
def test_each_field_has_its_own_stop(other: dict[str, int], stop: Stop) -> None:
    good = by_hand(0)
    found = log.scan(good + by_hand(1, **other), 0)
    assert found.stop is stop
    assert len(found) == (2 if stop is Stop.END else 1)
    assert found.end == len(good) * len(found)


def test_a_length_beyond_the_limit_is_not_a_torn_tail() -> None:
    data = bytearray(by_hand(0))
    data[8:16] = struct.pack(">II", 1 << 30, 0)
    assert log.scan(data, 0).stop is Stop.TORN
    data[8:16] = struct.pack(">II", 1 << 30, 1)
    assert log.scan(data, 0).stop is Stop.BAD_LENGTH
    data[8:16] = struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF)
    assert log.scan(data, 0).stop is Stop.BAD_LENGTH


def test_a_record_that_does_not_continue_the_file_stops_the_scan() -> None:
    data = by_hand(4) + by_hand(6)
    assert log.scan(data, 0).stop is Stop.BAD_OFFSET
    assert log.scan(data, 0, expected_offset=3).end == 0
    assert len(log.scan(data, 0, expected_offset=4)) == 1


def test_an_offset_of_more_than_63_bits_is_damage() -> None:
    assert log.scan(by_hand(1 << 63), 0).stop is Stop.BAD_OFFSET
    assert log.scan(by_hand((1 << 63) - 1), 0).stop is Stop.END


def test_a_leftover_of_an_older_log_is_not_taken_for_the_continuation() -> None:
    data = b"\x00" * 9 + by_hand(3) + by_hand(12)
    assert log.resync(data, 0, minimum_offset=10) == 9 + len(by_hand(3))


def test_encoding_goes_into_the_given_buffer_when_it_has_room() -> None:
    out = log.encode(prepare([b"x" * 200], "keratin", now_ms=1), 0)[0]
    data, positions = log.encode(prepare([b"abc", b"d"], "keratin", now_ms=1), 0, out)
    assert data.base is out or data.base is out.base
    assert positions.tolist() == [0, 39]
    data, _ = log.encode(prepare([b"abc" * 100], "keratin", now_ms=1), 0, out)
    assert len(data) == 336


def test_batches_without_headers_decode_to_null_columns() -> None:
    data, _ = log.encode(prepare([b"a", b""], "keratin", now_ms=1), 0)
    batch = log.decode(data, log.scan(data, 0))
    assert batch.column("headers").null_count == batch.column("key").null_count == 2
    assert batch.column("value").null_count == 0
    empty = log.decode(b"", log.scan(b"", 0))
    assert empty.num_rows == 0


def binary(offsets: list[int], bits: int) -> pa.Array:
    """A binary column with any offsets, and a bit for each row that is not null."""
    buffers = [bytes([bits]), struct.pack("=4i", *offsets), b"v" * max(offsets)]
    return pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(buffer) for buffer in buffers])


def lists(offsets: list[int], items: pa.Array) -> pa.Array:
    buffers = [None, pa.py_buffer(struct.pack("=4i", *offsets))]
    return pa.Array.from_buffers(INPUT_SCHEMAS["keratin"][3].type, 3, buffers, children=[items])


def header_items(values: pa.Array) -> pa.Array:
    item = INPUT_SCHEMAS["keratin"][3].type.value_type
    return pa.StructArray.from_arrays([pa.array([""] * 3), values], fields=list(item))


SMALL = header_items(pa.array([None] * 3, pa.binary()))
LARGE = header_items(pa.array([b"v" * 500] * 3, pa.binary()))
BROKEN: list[tuple[str, pa.Array]] = [
    ("value", binary([0, 500, 0, 500], 0b111)),
    ("value", binary([0, 500, 0, 500], 0b101)),
    ("key", binary([0, 500, 0, 500], 0b111)),
    ("key", binary([0, 500, 0, 500], 0b101)),
    ("headers", lists([0, 1, 0, 1], SMALL)),
    ("headers", lists([0, 3, 0, 3], LARGE)),
    ("headers", lists([3, 0, 3, 3], LARGE)),
    ("headers", lists([0, 3, 3, 3], header_items(binary([0, 500, 0, 500], 0b101)))),
]


@pytest.mark.parametrize(("name", "column"), BROKEN)
def test_a_broken_batch_is_refused_before_it_is_written_out_of_bounds(
    name: str, column: pa.Array
) -> None:
    schema = INPUT_SCHEMAS["keratin"]
    at = schema.get_field_index(name)
    batch = prepare([b"a", b"b", b"c"], "keratin", now_ms=1).set_column(at, schema[at], column)
    with pytest.raises(InvalidRequest, match="broken"):
        log.encode(batch, 0)


def test_a_header_without_a_name_is_refused() -> None:
    schema = INPUT_SCHEMAS["keratin"]
    for item in ({"key": None, "value": b"v"}, None):
        headers = pa.array([[item]], schema[3].type)
        batch = prepare([b"a"], "keratin", now_ms=1).set_column(3, schema[3], headers)
        with pytest.raises(InvalidRequest, match="null in headers"):
            log.encode(batch, 0)


# ---------------------------------------------------------------- the file header


def test_every_prefix_of_the_file_header_is_refused() -> None:
    for size in range(68):
        with pytest.raises(CorruptData):
            log.decode_header(FILE_HEADER[:size])
    assert log.decode_header(FILE_HEADER + b"more").base_offset == 7


def test_a_file_of_another_kind_is_named_as_one() -> None:
    for other in (b"NOPE" + FILE_HEADER[4:], b"NOPE", b""):
        with pytest.raises(CorruptData, match="not this kind of file"):
            log.decode_header(other)


def test_every_single_byte_change_of_the_file_header_is_refused() -> None:
    for position in range(68):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(FILE_HEADER)
            damaged[position] ^= change
            with pytest.raises(CorruptData) as refused:
                log.decode_header(damaged)
            assert not isinstance(refused.value, NewerFormat)


@pytest.mark.parametrize(("version", "length"), [(2, 68), (0, 68), (2, 96), (1, 96), (1, 20)])
def test_another_version_or_length_is_newer_only_under_a_good_checksum(
    version: int, length: int
) -> None:
    head = FILE_HEADER[:8] + version.to_bytes(2, "big") + FILE_HEADER[10:12]
    head = (head + length.to_bytes(4, "big") + FILE_HEADER[16:64]).ljust(length - 4, b"\0")
    sound = head[: length - 4] + crc(head[: length - 4])
    with pytest.raises(NewerFormat):
        log.decode_header(sound.ljust(200, b"\0"))
    with pytest.raises(CorruptData) as refused:
        log.decode_header((sound[:-1] + bytes([sound[-1] ^ 1])).ljust(200, b"\0"))
    assert not isinstance(refused.value, NewerFormat)


def test_flags_of_the_file_header_are_ignored_and_a_huge_base_is_damage() -> None:
    flagged = FILE_HEADER[:10] + b"\x00\x09" + FILE_HEADER[12:64]
    assert log.decode_header(flagged + crc(flagged)) == log.FileHeader(7, NOW)
    with pytest.raises(CorruptData, match="base_offset"):
        log.decode_header(joined(file_header(b"KLOG", 68, based(1 << 63))))


def test_nothing_continues_the_greatest_offset() -> None:
    found = log.scan(by_hand((1 << 63) - 1) + by_hand(3), 0)
    assert (len(found), found.stop) == (1, Stop.BAD_OFFSET)


def test_a_log_that_ends_inside_its_header_is_torn() -> None:
    found = log.scan(FILE_HEADER[:67])
    assert (len(found), found.end, found.stop) == (0, 67, Stop.TORN)
    assert found.column_bytes == (0, 0)
