"""Record batches of Kafka: judged by the code of real clients, whole, broken and hostile."""

from __future__ import annotations

import contextlib
import gzip
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.errors import UnsupportedCodecError as AioUnsupported
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.errors import UnsupportedCodecError as PythonUnsupported
from kafka.record.default_records import DefaultRecordBatch as PythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder

from lamina.errors import Busy, InvalidRequest
from lamina.formats.kafka import batch, compression
from lamina.formats.kafka.compression import Codec
from lamina.formats.kafka.faults import BadBatch, Fault
from lamina.formats.kernels.crc import crc32c_of
from lamina.records import HEADERS, TIMESTAMP

GOLDEN = Path(__file__).parents[1] / "golden"
BYTES_MAX = 1 << 20
Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

rows = st.lists(
    st.tuples(
        st.integers(0, 1 << 42),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=9,
)
QUICK = settings(max_examples=60, deadline=None, database=None)


def built(given: list[Row], codec: int = 0, builder: Any = PythonBuilder) -> bytes:
    """A batch as a client's own code makes it."""
    made = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, (timestamp, key, value, headers) in enumerate(given):
        made.append(offset, timestamp=timestamp, key=key, value=value, headers=headers)
    return bytes(made.build())


def columns(given: list[Row], first: int = 0) -> pa.RecordBatch:
    offsets = range(first, first + len(given))
    times, keys, values, headers = zip(*given, strict=True)
    lists = [[{"key": k, "value": v} for k, v in each] or None for each in headers]
    arrays = [
        pa.array(offsets, pa.int64()),
        pa.array(times, TIMESTAMP),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(lists, HEADERS),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.INPUT_SCHEMA)


def sealed(data: bytes, **changed: int) -> bytes:
    """A batch with other fields in its header, and the checksum to them."""
    head = batch.HEADER.unpack(data) | changed
    body = data[batch.HEADER.size :]
    if "batch_length" not in changed:
        head["batch_length"] = batch.HEADER.size + len(body) - 12
    head["crc32c"] = crc32c_of(batch.HEADER.pack(**head)[21:] + body)
    return batch.HEADER.pack(**head) + body


def refused(data: bytes, bytes_max: int = BYTES_MAX) -> BadBatch:
    with pytest.raises(BadBatch) as caught:
        batch.decode(data, bytes_max)
    return caught.value


def decoded(data: bytes) -> pa.RecordBatch:
    found = batch.decode(data, BYTES_MAX).records
    found.validate(full=True)
    return found


PLAIN: list[Row] = [(1_700_000_000_000 + n, b"k%d" % n, b"v" * n, []) for n in range(5)]
RICH: list[Row] = [
    (1_700_000_000_000, b"key", b"value", [("a", b"1"), ("a", None), ("ü", b"")]),
    (1_699_999_999_000, None, None, []),
    (1_700_000_000_500, b"", b"", [("", b"x")]),
]


# ---------------------------------------------------------------- judged by clients


@QUICK
@given(rows, st.sampled_from([PythonBuilder, AioBuilder]))
def test_what_clients_build_is_read(given: list[Row], builder: Any) -> None:
    assert decoded(built(given, builder=builder)).equals(columns(given).drop_columns(["offset"]))


@QUICK
@given(rows, st.integers(0, 1 << 50))
def test_what_we_build_is_read_by_clients(given: list[Row], first: int) -> None:
    data = bytes(batch.encode(columns(given, first)))
    for kind in (PythonBatch, AioBatch):
        read = kind(data)
        assert read.validate_crc()
        found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in read]
        assert found == [(first + n, *row) for n, row in enumerate(given)]
    assert decoded(sealed(data)).equals(columns(given).drop_columns(["offset"]))


@pytest.mark.parametrize("builder", [PythonBuilder, AioBuilder])
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec != Codec.NONE])
def test_every_codec_of_every_client_is_read(codec: Codec, builder: Any) -> None:
    given: list[Row] = [(5, None, b"a value that repeats " * 9, []) for _ in range(500)]
    try:
        data = built(given, codec, builder)
    except (AioUnsupported, PythonUnsupported) as error:
        pytest.skip(f"the client cannot compress: {error}")
    found = batch.decode(data, BYTES_MAX)
    if found.codec is Codec.NONE:
        pytest.skip("the client did not compress")
    assert found.codec is codec
    assert found.records.equals(columns(given).drop_columns(["offset"]))


def recompressed(data: bytes, codec: Codec, body: bytes) -> bytes:
    return sealed(data[: batch.HEADER.size] + body, attributes=int(codec))


def compressed(data: bytes, codec: Codec) -> bytes:
    """A batch whose records are compressed by what Python and Arrow have."""
    body = data[batch.HEADER.size :]
    if codec is Codec.GZIP:
        half = len(body) // 2  # two members
        return recompressed(data, codec, gzip.compress(body[:half]) + gzip.compress(body[half:]))
    if codec is Codec.SNAPPY:
        return recompressed(data, codec, pa.compress(body, codec="snappy", asbytes=True))
    name = {Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}[codec]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        stream.write(body)
    return recompressed(data, codec, sink.getvalue().to_pybytes())


def xerial(data: bytes) -> bytes:
    body = data[batch.HEADER.size :]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(body), 100):
        block = pa.compress(body[start : start + 100], codec="snappy", asbytes=True)
        framed += struct.pack(">i", len(block)) + block
    return recompressed(data, Codec.SNAPPY, framed)


PACKED = {codec.name: compressed(built(RICH * 40), codec) for codec in list(Codec)[1:]}
PACKED["XERIAL"] = xerial(built(RICH * 40))


@pytest.mark.parametrize("name", PACKED)
def test_every_codec_is_read(name: str) -> None:
    assert decoded(PACKED[name]).equals(columns(RICH * 40).drop_columns(["offset"]))


@pytest.mark.parametrize("name", PACKED)
def test_decompression_ends_at_its_bound(name: str) -> None:
    raw = len(built(RICH * 40)) - batch.HEADER.size
    assert batch.decode(PACKED[name], raw).records.num_rows == 120
    error = refused(PACKED[name], raw - 1)
    assert error.fault is Fault.TOO_LARGE


@pytest.mark.parametrize("name", PACKED)
def test_whoever_keeps_the_room_is_told_of_all_that_is_unpacked_and_may_refuse(name: str) -> None:
    raw = len(built(RICH * 40)) - batch.HEADER.size
    told: list[int] = []
    batch.decode(PACKED[name], BYTES_MAX, told.append)
    assert sum(told) == raw

    def refuse(size_bytes: int) -> None:
        raise Busy("no room")

    with pytest.raises(Busy):
        batch.decode(PACKED[name], BYTES_MAX, refuse)


@pytest.mark.parametrize("name", PACKED)
def test_every_prefix_of_compressed_records_is_refused(name: str) -> None:
    data = PACKED[name]
    for size in range(batch.HEADER.size, len(data) - 1, 7):
        error = refused(sealed(data[:size]))
        assert error.fault in (Fault.CORRUPT, Fault.INVALID)


def test_a_snappy_block_that_claims_too_much_is_refused_before_memory_is_taken() -> None:
    data = recompressed(built(PLAIN), Codec.SNAPPY, b"\xff\xff\xff\x7f" + b"\0" * 20)
    assert refused(data, 1 << 40).fault is Fault.CORRUPT
    assert refused(data).fault is Fault.TOO_LARGE
    assert refused(recompressed(built(PLAIN), Codec.SNAPPY, b"\xff" * 9)).fault is Fault.CORRUPT
    framed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 1 << 30)
    assert refused(recompressed(built(PLAIN), Codec.SNAPPY, framed)).fault is Fault.CORRUPT


def test_many_blocks_of_next_to_nothing_are_refused_before_they_are_read() -> None:
    """Five bytes call themselves a block, and each is a step of Python: a minute for 16 MiB."""
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + (struct.pack(">i", 1) + b"\0") * 10_000
    error = refused(recompressed(built(PLAIN), Codec.SNAPPY, framed))
    assert error.fault is Fault.CORRUPT
    assert "257 blocks" in str(error)


# ---------------------------------------------------------------- golden bytes


def test_the_golden_batch_is_that_of_a_client_and_reads_back() -> None:
    data = (GOLDEN / "kafka-batch.bin").read_bytes()
    assert data == built(RICH)
    assert decoded(data).equals(columns(RICH).drop_columns(["offset"]))
    assert bytes(batch.encode(columns(RICH))) == sealed(data)


# ---------------------------------------------------------------- broken


def test_every_prefix_is_refused() -> None:
    data = built(RICH)
    for size in range(len(data)):
        assert refused(data[:size]).fault in (Fault.CORRUPT, Fault.INVALID)


def test_every_changed_byte_is_noticed_or_harmless() -> None:
    data = built(RICH)
    whole = decoded(data)
    harmless = {*range(8), *range(12, 16)}  # the offset and the leader epoch are the broker's
    for position in range(len(data)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= flip
            try:
                found = batch.decode(bytes(changed), BYTES_MAX).records
            except BadBatch:
                assert position not in harmless
                continue
            assert position in harmless
            assert found.equals(whole)


@settings(max_examples=300, deadline=None, database=None)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(1, 9))
def test_changed_records_with_a_good_checksum_never_break_the_kernel(
    at: int, byte: int, count: int
) -> None:
    body = bytearray(built(RICH)[batch.HEADER.size :])
    body[at % len(body)] = byte
    data = sealed(
        built(RICH)[: batch.HEADER.size] + bytes(body), count=count, last_offset_delta=count - 1
    )
    with contextlib.suppress(BadBatch):
        decoded(data)


@pytest.mark.parametrize(
    ("changed", "fault", "said"),
    [
        ({"magic": 1}, Fault.INVALID, "too old"),
        ({"magic": 3}, Fault.INVALID, "magic 2, not 3"),
        ({"attributes": 32}, Fault.INVALID, "control"),
        ({"attributes": 5}, Fault.CODEC, "no codec 5"),
        ({"count": 6}, Fault.INVALID, "last offset"),
        ({"count": 0, "last_offset_delta": -1}, Fault.INVALID, "last offset"),
        ({"last_offset_delta": 7}, Fault.INVALID, "last offset"),
        ({"count": 4, "last_offset_delta": 3}, Fault.INVALID, "after the last record"),
        ({"count": 6, "last_offset_delta": 5}, Fault.INVALID, "record 5"),
        ({"count": 1 << 30, "last_offset_delta": (1 << 30) - 1}, Fault.INVALID, "hold no"),
    ],
)
def test_a_header_that_lies_is_refused(changed: dict[str, int], fault: Fault, said: str) -> None:
    error = refused(sealed(built(PLAIN), **changed))
    assert error.fault is fault
    assert said in str(error)


def test_two_batches_and_a_cut_one_are_refused() -> None:
    data = built(PLAIN)
    assert refused(data + data).fault is Fault.INVALID
    assert "several" in str(refused(data + data))
    assert refused(sealed(data, batch_length=1 << 30)).fault is Fault.CORRUPT
    assert refused(sealed(data, batch_length=-5)).fault is Fault.CORRUPT


def test_a_header_name_that_is_not_utf8_names_its_record() -> None:
    data = built([PLAIN[0], (7, None, b"x", [("ab", b"1")])])
    at = data.rindex(b"ab")
    error = refused(sealed(data[:at] + b"\xff\xfe" + data[at + 2 :]))
    assert error.record == 1
    assert "UTF-8" in str(error)


def test_offsets_that_do_not_count_up_are_refused() -> None:
    holes = columns(PLAIN).take(pa.array([0, 2, 4]))
    data = sealed(bytes(batch.encode(holes)), last_offset_delta=2)
    assert refused(data).record == 1


def test_a_timestamp_of_minus_one_is_none() -> None:
    data = sealed(built([(0, None, b"x", [])]), base_timestamp=-1)
    assert decoded(data)["timestamp"].null_count == 1


# ---------------------------------------------------------------- written


def test_a_batch_keeps_holes_and_reaches_over_the_one_behind_it() -> None:
    holes = columns(PLAIN, 10).take(pa.array([0, 2, 3]))
    data = bytes(batch.encode(holes, 20))
    read = PythonBatch(data)
    assert read.validate_crc()
    assert [record.offset for record in read] == [10, 12, 13]
    assert read.base_offset + read.last_offset_delta == 20


def test_an_empty_batch_spans_a_hole() -> None:
    read = PythonBatch(batch.empty(5, 9))
    assert read.validate_crc()
    assert (read.base_offset, read.last_offset_delta, list(read)) == (5, 4, [])
    for first, last in ((5, 4), (0, 1 << 31)):
        with pytest.raises(InvalidRequest, match="span"):
            batch.empty(first, last)


def test_large_input_becomes_several_batches_and_far_offsets_are_refused() -> None:
    given: list[Row] = [(n, None, b"x" * 1000, []) for n in range(100)]
    pieces = [bytes(piece) for piece in batch.encode_all(columns(given), 10_000)]
    assert 8 <= len(pieces) <= 20
    assert [r.offset for piece in pieces for r in PythonBatch(piece)] == list(range(100))
    assert list(batch.encode_all(columns(given).slice(0, 0))) == []
    far = pa.concat_tables(
        pa.Table.from_batches([columns(PLAIN, first)]) for first in (0, 1 << 40)
    ).combine_chunks()
    with pytest.raises(InvalidRequest):
        batch.encode(far.to_batches()[0])
    with pytest.raises(InvalidRequest):
        batch.encode(columns(given).slice(0, 0))


def test_unknown_codecs_are_not_decompressed() -> None:
    with pytest.raises(BadBatch, match="zstd"):
        compression.decompress(Codec.ZSTD, memoryview(b"no frame"), 100, lambda _: None)
