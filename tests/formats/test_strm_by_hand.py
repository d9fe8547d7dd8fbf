"""STRM made and read by hand, from the document's tables only: struct, zlib, lz4 and plain Python.

Nothing here uses Lamina's encoder to make bytes, nor its decoder to read them.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import lz4.block  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from lamina.formats.strm import segment, write
from lamina.formats.strm.layout import Coding, Compression
from tests.support.contract import plain
from tests.support.strategies import batch_of

GOLDEN_FOLDER = Path(__file__).parent.parent / "golden"
TIME = 1_700_000_000_000
ORDERS_HASH = 0x00125D9250BE8B4C
VECTOR = bytes.fromhex(
    "5354524d0001000000125d9250be8b4c0000000000000000000000640000000000000066000000030000018b"
    "cfe568090000018bcfe568000000018bcfe568050000001a0000001a00000003efd5a1ed0080a0abfef962"
    "046b31047631020a010a68656c6c6f0406000000000001000000000000006400000000000000400000000000"
    "00006a000000142bef3a100000000000000000000000004d525453"
)

Row = dict[str, Any]


def row(offset: int, timestamp: int, key: bytes | None, value: bytes | None, **rest: Any) -> Row:
    empty = {"headers": None, "tag": None, "node": None}
    return {"offset": offset, "timestamp": timestamp, "key": key, "value": value} | empty | rest


ORDERS = [
    row(100, TIME, b"k1", b"v1"),
    row(101, TIME + 5, None, b"hello"),
    row(102, TIME + 3, b"", b""),
]

# ---------------------------------------------------------------- writing by hand


def varint(number: int) -> bytes:
    rest = ((number << 1) ^ (number >> 63)) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def prefixed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def enveloped(row: Row) -> bytes:
    """The stored value of a row in an object with envelopes."""
    flags = 2 * (row["value"] is None) | 4 * (row["headers"] is not None)
    flags |= 8 * (row["tag"] is not None) | 16 * (row["node"] is not None)
    if not flags:
        return bytes(4) + bytes(row["value"])
    body = b"LE" + bytes([1, flags])
    body += b"".join(prefixed(row[name]) for name in ("tag", "node") if row[name] is not None)
    if row["headers"] is not None:
        body += struct.pack(">I", len(row["headers"]))
        for header in row["headers"]:
            null = header["value"] is None
            body += prefixed(header["key"].encode())
            body += b"\xff\xff\xff\xff" if null else prefixed(header["value"])
    return prefixed(body) + bytes(row["value"] or b"")


def records(rows: list[Row], *, with_envelopes: bool = False) -> bytes:
    """The records of one block, before compression."""
    out = b""
    first = rows[0]
    for row in rows:
        delta = row["timestamp"] - first["timestamp"]
        delta = (delta + (1 << 63)) % (1 << 64) - (1 << 63)
        out += varint(row["offset"] - first["offset"])
        out += varint(row["timestamp"] if row is first else delta)
        out += varint(-1) if row["key"] is None else varint(len(row["key"])) + row["key"]
        value = enveloped(row) if with_envelopes else row["value"]
        out += varint(len(value)) + value
    return out


def compressed(raw: bytes, codec: int) -> bytes:
    if codec == 1:
        return bytes(lz4.block.compress(raw, store_size=True))
    if codec == 2:
        return bytes(pa.Codec("zstd", compression_level=3).compress(raw, asbytes=True))
    return raw


def block(payload: bytes, raw_size: int, count: int, **wrong: int) -> bytes:
    fields = {"raw": raw_size, "size": len(payload), "count": count, "crc": zlib.crc32(payload)}
    fields |= wrong
    return struct.pack(">IIII", *fields.values()) + payload


def object_of(blocks: list[tuple[int, bytes]], rows: list[Row], flags: int, **wrong: int) -> bytes:
    """A whole object from sealed blocks with their base offsets, and the rows they hold."""
    times = [row["timestamp"] for row in rows]
    fields = {
        "version": 1,
        "flags": flags,
        "hash": ORDERS_HASH,
        "partition": 0,
        "base": rows[0]["offset"],
        "max": rows[-1]["offset"],
        "count": len(rows),
        "created": TIME + 9,
        "least": min(times),
        "most": max(times),
    } | wrong
    out = b"STRM" + struct.pack(">HHQIQQIqqq", *fields.values())
    index = struct.pack(">I", len(blocks))
    for offset, data in blocks:
        index += struct.pack(">QQ", offset, len(out))
        out += data
    out += index + struct.pack(">QI", len(out), len(index))
    return out + struct.pack(">I12s4s", zlib.crc32(out), bytes(12), b"MRTS")


def object_by_hand(rows: list[Row], flags: int, *, rows_a_block: int = 3) -> bytes:
    blocks = []
    for start in range(0, len(rows), rows_a_block):
        part = rows[start : start + rows_a_block]
        raw = records(part, with_envelopes=bool(flags & 0x8000))
        payload = compressed(raw, flags & 3)
        blocks.append((part[0]["offset"], block(payload, len(raw), len(part))))
    return object_of(blocks, rows, flags)


# ---------------------------------------------------------------- reading by hand


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        assert 0 <= size <= len(self.data) - self.at
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)

    def prefixed(self) -> bytes | None:
        (size,) = struct.unpack(">I", self.take(4))
        return None if size == 0xFFFFFFFF else self.take(size)


def open_envelope(stored: bytes) -> Row:
    outer = Cursor(stored)
    inner = Cursor(outer.prefixed() or b"")
    out: Row = {"value": stored[outer.at :], "headers": None, "tag": None, "node": None}
    if not inner.data:
        return out
    assert inner.take(3) == b"LE\x01"
    flags = inner.take(1)[0]
    for flag, name in ((8, "tag"), (16, "node")):
        if flags & flag:
            out[name] = inner.prefixed()
    if flags & 4:
        (count,) = struct.unpack(">I", inner.take(4))
        pairs = [(inner.prefixed() or b"", inner.prefixed()) for _ in range(count)]
        out["headers"] = [{"key": name.decode(), "value": value} for name, value in pairs]
    if flags & 2:
        assert out["value"] == b""
        out["value"] = None
    assert inner.at == len(inner.data)
    return out


def read_by_hand(data: bytes) -> list[Row]:
    """The document's reader, with its header positions put right."""
    assert data[:6] == b"STRM\x00\x01"
    assert data[-4:] == b"MRTS"
    (flags,) = struct.unpack_from(">H", data, 6)
    index_offset, index_size, file_crc = struct.unpack_from(">QII", data, len(data) - 32)
    assert file_crc == zlib.crc32(data[:-20])
    (count,) = struct.unpack_from(">I", data, index_offset)
    assert index_size == 4 + 16 * count
    out: list[Row] = []
    for entry in range(count):
        offset, position = struct.unpack_from(">QQ", data, index_offset + 4 + 16 * entry)
        raw_size, size, rows, crc = struct.unpack_from(">IIII", data, position)
        payload = data[position + 16 : position + 16 + size]
        assert crc == zlib.crc32(payload)
        if flags & 3 == 1:
            payload = lz4.block.decompress(payload)
        elif flags & 3 == 2:
            payload = pa.Codec("zstd").decompress(payload, raw_size, asbytes=True)
        assert len(payload) == raw_size
        out += _read_records(Cursor(payload), rows, offset, flags)
    base, last, total = struct.unpack_from(">QQI", data, 20)
    least, most = struct.unpack_from(">qq", data, 48)
    assert (base, last, total) == (out[0]["offset"], out[-1]["offset"], len(out))
    times = [row["timestamp"] for row in out]
    assert (least, most) == (min(times), max(times))
    return out


def _read_records(cursor: Cursor, rows: int, base_offset: int, flags: int) -> list[Row]:
    out: list[Row] = []
    first = 0
    for number in range(rows):
        offset, timestamp = base_offset + cursor.varint(), cursor.varint() + first
        if number == 0:
            first = timestamp
        timestamp = (timestamp + (1 << 63)) % (1 << 64) - (1 << 63)
        key_len = cursor.varint()
        key = None if key_len == -1 else cursor.take(key_len)
        value = cursor.take(cursor.varint())
        rest = open_envelope(value) if flags & 0x8000 else {"value": value}
        out.append(row(offset, timestamp, key, **rest))
    assert cursor.at == len(cursor.data)
    return out


def read(data: Any) -> list[Row]:
    """Our reader, everything checked."""
    segment.verify(data)
    return [row for batch in segment.read_from(data) for row in plain(batch)]


def encoded(rows: list[Row], coding: Coding) -> memoryview:
    batch = batch_of(rows, "strm")
    return write.encode(batch, coding, topic="orders", partition=0, created_at_ms=TIME + 9)


# ---------------------------------------------------------------- samples

PLAIN = [
    row(7, TIME, b"k", b"first"),
    row(8, -1, None, b""),
    row(9, TIME + 70, b"", b"v" * 50),
    row(10, (1 << 63) - 1, b"\xff\x00", b"STRM" * 5),
    row(11, -(1 << 63), b"long key " * 4, b"\x00" * 40),
    row(12, 0, None, b"last"),
    row(13, 5, b"k", b"alone in its block"),
]
FULL = [
    row(7, TIME, b"k", b"plain"),
    row(9, TIME, None, None),
    row(10, TIME, b"", None, headers=[]),
    row(30, 0, None, b"v", headers=[{"key": "a", "value": b"1"}, {"key": "a", "value": None}]),
    row(31, 0, b"k", b"", tag=b"", node=b"n1"),
    row(1 << 62, -5, b"k", b"x" * 30, headers=[{"key": "é", "value": b""}], tag=b"t", node=b""),
]
CODECS = list(Compression)


# ---------------------------------------------------------------- both ways


def test_the_vector_is_read() -> None:
    assert read(VECTOR) == ORDERS
    assert read_by_hand(VECTOR) == ORDERS


def test_the_vector_is_written() -> None:
    assert encoded(ORDERS, Coding(Compression.NONE)).tobytes() == VECTOR
    assert object_by_hand(ORDERS, 0) == VECTOR


@pytest.mark.parametrize("codec", CODECS)
def test_an_independent_reader_reads_our_objects(codec: Compression) -> None:
    assert read_by_hand(encoded(PLAIN, Coding(codec)).tobytes()) == PLAIN
    assert read_by_hand(encoded(FULL, Coding(codec, enveloped=True)).tobytes()) == FULL


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows_a_block", [1, 2, 7])
def test_objects_made_by_hand_are_read(codec: Compression, rows_a_block: int) -> None:
    assert read(object_by_hand(PLAIN, int(codec), rows_a_block=rows_a_block)) == PLAIN
    flags = int(codec) | 0x8000
    assert read(object_by_hand(FULL, flags, rows_a_block=rows_a_block)) == FULL


def test_uncompressed_objects_are_what_the_hand_makes() -> None:
    by_hand = object_by_hand(FULL, 0x8000, rows_a_block=100)
    assert encoded(FULL, Coding(Compression.NONE, enveloped=True)).tobytes() == by_hand


@pytest.mark.parametrize("codec", CODECS)
def test_an_independent_reader_reads_objects_of_many_blocks(codec: Compression) -> None:
    values = [bytes([i & 0xFF]) * (i * 13_131 % 70_000) for i in range(100)]
    rows = [row(3 * i, TIME - i, b"k%d" % i, value) for i, value in enumerate(values)]
    data = encoded(rows, Coding(codec)).tobytes()
    assert len(segment.open_segment(data)) > 2
    assert read_by_hand(data) == rows


# ---------------------------------------------------------------- golden files


def lz4_golden() -> bytes:
    """One record whose LZ4 block is written by hand: literals, a match, the last literals."""
    rows = [row(5, TIME, b"k", b"a" * 20 + b"tail of 12 b")]
    raw = records(rows)
    head = raw[:-31]
    assert head + b"a" * 19 + b"tail of 12 b" == raw
    sequences = bytes([len(head) << 4 | 15]) + head + b"\x01\x00" + bytes([19 - 4 - 15])
    payload = struct.pack("<I", len(raw)) + sequences + b"\xc0tail of 12 b"
    assert lz4.block.decompress(payload) == raw
    return object_of([(5, block(payload, len(raw), 1))], rows, 1)


def enveloped_golden() -> bytes:
    rows = [
        row(7, TIME, b"k", b"v"),
        row(9, TIME + 1, None, None, headers=[{"key": "h", "value": b"1"}], tag=b"t"),
    ]
    return object_by_hand(rows, 0x8000, rows_a_block=1)


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("strm-orders.seg", VECTOR),
        ("strm-lz4.seg", lz4_golden()),
        ("strm-enveloped.seg", enveloped_golden()),
    ],
)
def test_golden_files_are_made_by_hand_and_read(name: str, by_hand: bytes) -> None:
    data = (GOLDEN_FOLDER / name).read_bytes()
    assert data == by_hand
    assert read(data) == read_by_hand(data)
