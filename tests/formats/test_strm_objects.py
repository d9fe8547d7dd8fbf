"""STRM objects: round trips, how blocks are cut, what is refused, and every kind of damage."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.errors import CorruptData, InvalidRequest
from lamina.formats.scan import Stop
from lamina.formats.strm import segment, write
from lamina.formats.strm.layout import (
    BLOCK_BYTES_MAX,
    Coding,
    Compression,
    Segment,
    decode_footer,
    decode_header,
    decode_index,
)
from tests.formats.test_strm_by_hand import (
    CODECS,
    FULL,
    PLAIN,
    TIME,
    Row,
    encoded,
    object_by_hand,
    read,
    read_by_hand,
    row,
)
from tests.support.contract import plain
from tests.support.strategies import batch_of, rows


def read_by_ranges(data: bytes) -> Iterator[list[Row] | None]:
    """What a reader gets of each block that never sees the whole object; None for a bad block."""
    footer = decode_footer(data[-32:], len(data))
    index = data[footer.index_offset : footer.index_offset + footer.index_size]
    found = decode_index(index, decode_header(data[:64]), footer)
    for number in range(len(found)):
        start, end = found.block_range(number)
        try:
            yield plain(segment.read_block(found, number, data[start:end]))
        except CorruptData:
            yield None


def with_offsets(drawn: list[Row], first: int, steps: list[int]) -> list[Row]:
    offset = first
    for row_, step in zip(drawn, steps, strict=False):
        row_["offset"] = offset
        offset += step
    return drawn


# ---------------------------------------------------------------- round trips


def test_any_records_come_back_as_they_went_in() -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        rows("strm"),
        st.integers(0, 1 << 62),
        st.lists(st.one_of(st.just(1), st.integers(1, 1 << 56)), min_size=12, max_size=12),
        st.sampled_from(CODECS),
    )
    def check(drawn: list[Row], first: int, steps: list[int], codec: Compression) -> None:
        drawn = with_offsets(drawn, first, steps)
        data = encoded(drawn, Coding(codec, enveloped=True))
        assert read(data) == drawn
        assert read_by_hand(data.tobytes()) == drawn
        for batch in segment.read_from(data):
            batch.validate(full=True)
        simple = [row(r["offset"], r["timestamp"], r["key"], r["value"] or b"") for r in drawn]
        data = encoded(simple, Coding(codec))
        assert read(data) == simple
        for batch in segment.read_from(data):
            batch.validate(full=True)

    check()


def test_a_slice_of_a_batch_is_encoded_like_the_same_rows_alone() -> None:
    coding = Coding(Compression.NONE, enveloped=True)
    writer = write.Writer(coding)
    writer.add(batch_of(FULL, "strm").slice(2, 3))
    data = writer.finish(topic="orders", partition=0, created_at_ms=TIME + 9)
    assert data.tobytes() == encoded(FULL[2:5], coding).tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_block_boundaries_do_not_depend_on_batches(codec: Compression) -> None:
    sizes = [300_000, 10, 0, 1_048_566, 1_048_567, 5_000_000, 7, 524_273, 524_273, 524_273, 90_000]
    made = [row(5 * i, TIME + i * i, b"k", b"v" * size) for i, size in enumerate(sizes * 2)]
    batch = batch_of(made, "strm")
    whole = encoded(made, Coding(codec)).tobytes()
    assert read(whole) == made
    for step in (1, 2, 5):
        writer = write.Writer(Coding(codec))
        for start in range(0, batch.num_rows, step):
            writer.add(batch.slice(start, step))
        writer.add(batch.slice(0, 0))
        data = writer.finish(topic="orders", partition=0, created_at_ms=TIME + 9)
        assert data.tobytes() == whole


def test_a_block_ends_before_the_record_that_would_pass_one_mebibyte() -> None:
    def base_offsets(*sizes: int) -> list[int]:
        made = [row(i, TIME, None, b"v" * size) for i, size in enumerate(sizes)]
        found = segment.open_segment(encoded(made, Coding(Compression.NONE)))
        return [int(offset) for offset in found.offsets]

    half = (1 << 19) - 10
    assert base_offsets(half, half, 0) == [0, 2]
    assert base_offsets(half, half + 1) == [0, 1]
    assert base_offsets(0, 5 << 20, 0) == [0, 1, 2]
    assert base_offsets(5 << 20) == [0]


def test_blocks_can_be_compressed_by_an_executor() -> None:
    made = [row(i, TIME, None, b"%d" % i * 40_000) for i in range(100)]
    with ThreadPoolExecutor(2) as executor:
        writer = write.Writer(Coding(), executor.map)
        writer.add(batch_of(made, "strm"))
        data = writer.finish(topic="orders", partition=0, created_at_ms=TIME + 9)
    assert len(segment.open_segment(data)) > 5
    assert data.tobytes() == encoded(made, Coding()).tobytes()


def test_reading_starts_at_any_offset() -> None:
    data = object_by_hand(PLAIN, 0, rows_a_block=2)
    for start in range(15):
        found = [r for batch in segment.read_from(data, start) for r in plain(batch)]
        assert found == [r for r in PLAIN if r["offset"] >= start]
    holes = object_by_hand(FULL, 0x8000, rows_a_block=2)
    for start in (0, 7, 8, 9, 11, 30, 32, 1 << 62, (1 << 62) + 1):
        found = [r for batch in segment.read_from(holes, start) for r in plain(batch)]
        assert found == [r for r in FULL if r["offset"] >= start]


# ---------------------------------------------------------------- what is refused


def test_an_empty_segment_is_not_written() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        encoded([], Coding())


@pytest.mark.parametrize(
    ("column", "value"),
    [("value", None), ("headers", []), ("tag", b""), ("node", b"n")],
)
def test_what_needs_an_envelope_is_refused_by_a_plain_object(column: str, value: Any) -> None:
    made = [PLAIN[0], PLAIN[1] | {column: value}]
    with pytest.raises(InvalidRequest, match=column):
        encoded(made, Coding())
    assert read(encoded(made, Coding(enveloped=True))) == made


def test_a_refused_batch_leaves_the_writer_as_it_was() -> None:
    writer = write.Writer(Coding(Compression.NONE))
    big = row(3, TIME, None, b"v" * (BLOCK_BYTES_MAX + 1))
    writer.add(batch_of([PLAIN[0]], "strm"))
    middle = [row(8 + i, TIME, None, b"v" * 700_000) for i in range(3)]
    with pytest.raises(InvalidRequest, match="row 3"):
        writer.add(batch_of([*middle, big | {"offset": 50}], "strm"))
    with pytest.raises(InvalidRequest, match="rise, above 7"):
        writer.add(batch_of([PLAIN[0]], "strm"))
    with pytest.raises(InvalidRequest, match="rise"):
        writer.add(batch_of([PLAIN[2], PLAIN[1]], "strm"))
    with pytest.raises(InvalidRequest, match="rise, above -1"):
        write.Writer().add(batch_of([row(-1, TIME, None, b"")], "strm"))
    with pytest.raises(InvalidRequest, match="columns"):
        writer.add(batch_of([PLAIN[1]], "frame"))
    with pytest.raises(InvalidRequest, match="null"):
        writer.add(batch_of([PLAIN[1] | {"timestamp": None}], "strm"))
    writer.add(batch_of(PLAIN[1:], "strm"))
    data = writer.finish(topic="orders", partition=0, created_at_ms=TIME + 9)
    assert data.tobytes() == encoded(PLAIN, Coding(Compression.NONE)).tobytes()


def test_the_largest_record_fits_and_one_byte_more_does_not() -> None:
    # 1 byte offset delta, 6 timestamp, 1 key length, 4 value length
    fits = row(0, TIME, None, b"v" * (BLOCK_BYTES_MAX - 12))
    assert read(encoded([fits], Coding())) == [fits]
    with pytest.raises(InvalidRequest, match="larger"):
        encoded([row(0, TIME, None, b"v" * (BLOCK_BYTES_MAX - 11))], Coding())


def test_a_broken_arrow_batch_is_refused_before_anything_is_written() -> None:
    good = batch_of([row(0, TIME, None, b"ab"), row(1, TIME, None, b"cd")], "strm")
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\x04\x00\x00\x00\x02\x00\x00\x00")
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abcd")])
    batch = good.set_column(3, good.schema.field(3), broken)
    with pytest.raises(InvalidRequest, match="row 0"):
        write.Writer().add(batch)


# ---------------------------------------------------------------- damage

SMALL = {
    f"{codec.name}{'-enveloped' if flag else ''}": object_by_hand(sample, int(codec) | flag)
    for codec in CODECS
    for flag, sample in ((0, PLAIN), (0x8000, FULL))
}


@pytest.mark.parametrize("name", SMALL)
def test_no_prefix_passes_for_the_object(name: str) -> None:
    data = SMALL[name]
    blocks = segment.open_segment(data).positions.tolist()
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            segment.open_segment(data[:size])
        found = segment.scan(data[:size])
        assert found.stop.is_damage
        assert found.positions.tolist() == blocks[: len(found)]


@pytest.mark.parametrize("name", SMALL)
def test_every_single_byte_change_is_found_with_the_whole_object(name: str) -> None:
    data = SMALL[name]
    for _, damaged in changes(data):
        with pytest.raises(CorruptData):
            segment.verify(damaged)


def changes(data: bytes) -> Iterator[tuple[int, bytes]]:
    for position in range(len(data)):
        for change in (0x01, 0x03, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[position] ^= change
            yield position, bytes(damaged)


@pytest.mark.parametrize("name", [name for name in SMALL if "enveloped" not in name])
def test_a_range_reader_sees_every_single_byte_change_that_would_harm_it(name: str) -> None:
    data = SMALL[name]
    right = list(read_by_ranges(data))
    found = 0
    for position, damaged in changes(data):
        try:
            read_ = list(read_by_ranges(damaged))
        except CorruptData:
            found += 1
            continue
        pairs = zip(read_, right, strict=True)
        assert all(part in (None, whole) for part, whole in pairs), f"byte {position}"
        found += None in read_
    # Harmless: topic hash, partition, record count, creation time, looser bounds, the file CRC.
    assert found > 4 * len(data) - 4 * 44


@pytest.mark.parametrize("name", [name for name in SMALL if "enveloped" in name])
def test_what_a_range_reader_cannot_see_is_the_envelope_flag_and_holes(name: str) -> None:
    data = SMALL[name]
    right = list(read_by_ranges(data))
    unseen = set()
    for position, damaged in changes(data):
        try:
            pairs = zip(read_by_ranges(damaged), right, strict=True)
            if not all(part in (None, whole) for part, whole in pairs):
                unseen.add(position)
        except CorruptData:
            continue
    second_base = segment.open_segment(data).footer.index_offset + 4 + 16
    assert unseen <= {6, *range(second_base, second_base + 8)}
    assert 6 in unseen


@pytest.mark.parametrize("name", SMALL)
def test_a_scan_finds_the_blocks_and_stops_before_the_damaged_one(name: str) -> None:
    data = SMALL[name]
    opened = segment.open_segment(data)
    blocks = opened.positions.tolist()
    whole = segment.scan(data)
    assert (whole.positions.tolist(), whole.stop) == (blocks, Stop.END)
    assert whole.end == opened.footer.index_offset
    assert segment.scan(data, blocks[1]).positions.tolist() == blocks[1:]
    for number, start in enumerate(blocks):
        damaged = bytearray(data)
        damaged[start + 16] ^= 1
        found = segment.scan(damaged)
        expected = Stop.BAD_LENGTH if name.startswith("LZ4") else Stop.BAD_CHECKSUM
        assert (len(found), found.end, found.stop) == (number, start, expected)
    assert segment.scan(data[: opened.footer.index_offset]).stop is Stop.TORN
    assert segment.scan(data[: blocks[1] + 17]).end == blocks[1]


def test_each_bad_header_has_its_own_stop() -> None:
    data = SMALL["NONE"]
    assert segment.scan(b"").stop is Stop.TORN
    assert segment.scan(b"X" + data[1:]).stop is Stop.BAD_MAGIC
    assert segment.scan(data[:5] + b"\x02" + data[6:]).stop is Stop.BAD_CHECKSUM
    cleared = bytearray(data)
    cleared[64:80] = bytes(16)
    assert segment.scan(cleared).stop is Stop.BAD_LENGTH


def test_an_object_whose_writer_knew_no_timestamps_is_read() -> None:
    """The document's own writer leaves both at 0."""
    data = bytearray(object_by_hand(PLAIN, 0))
    data[48:64] = bytes(16)
    opened: Segment = segment.open_segment(data)
    assert (opened.header.min_timestamp_ms, opened.header.max_timestamp_ms) == (0, 0)
    assert [r for part in read_by_ranges(bytes(data)) for r in part or []] == PLAIN
