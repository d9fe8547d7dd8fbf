"""`make bench-formats`: each format beside a naive loop and beside copying the same bytes.

Every figure comes from one run with interleaved rounds. Batches are taken in turn from a set that
is larger than the processor's caches, since a log never encodes the same batch twice; copying the
encoded bytes is measured on the same rotation, into the same output buffer.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import xxhash
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar, best_of, finish
from lamina import records
from lamina.formats.frame import log as frame
from lamina.formats.keratin import log as keratin
from lamina.formats.strm import segment as strm_segment
from lamina.formats.strm import write as strm_write
from lamina.formats.strm.layout import Coding, Compression
from lamina.formats.wal import log as wal

NOW_MS = 1_700_000_000_000
SET_BYTES = 96 << 20
SIZES = (100, 1024)
BATCHES = (1, 100, 10_000)


@dataclass(frozen=True)
class Candidate:
    """One format: its own functions, and the loop that one writes first."""

    name: str
    columns: str
    encode: Callable[[pa.RecordBatch, np.ndarray], Any]
    read: Callable[[Any], pa.RecordBatch]
    naive_encode: Callable[[list[bytes]], bytes]
    naive_read: Callable[[bytes], list[tuple[int, int, bytes]]]


# ---------------------------------------------------------------- the naive loops


def naive_frame_encode(values: list[bytes]) -> bytes:
    out = []
    for offset, value in enumerate(values):
        head = struct.pack("<IHHqqII", 0xB10B5E01, 1, 0, offset, NOW_MS, 0, len(value)) + value
        out.append(head + struct.pack("<II", zlib.crc32(head), len(head) + 8))
    return b"".join(out)


def naive_frame_read(data: bytes) -> list[tuple[int, int, bytes]]:
    out, position = [], 0
    while position < len(data):
        magic, version, _, offset, ts, key_len, value_len = struct.unpack_from(
            "<IHHqqII", data, position
        )
        end = position + 32 + key_len + value_len
        crc, length = struct.unpack_from("<II", data, end)
        body = data[position:end]
        if magic != 0xB10B5E01 or version != 1 or crc != zlib.crc32(body):
            break
        out.append((offset, ts, body[32 + key_len :]))
        position += length
    return out


def naive_keratin_encode(values: list[bytes]) -> bytes:
    out = []
    for offset, value in enumerate(values):
        body = struct.pack(">HHHIIqq", 1, 0, 0, 0, len(value), NOW_MS, offset) + value
        out.append(b"KR" + body + struct.pack(">I", google_crc32c.value(body)))
    return b"".join(out)


def naive_keratin_read(data: bytes) -> list[tuple[int, int, bytes]]:
    out, position = [], 0
    while position < len(data):
        magic, version, _, _, header_len, payload_len, ts, offset = struct.unpack_from(
            ">HHHHIIqq", data, position
        )
        end = position + 32 + header_len + payload_len
        (crc,) = struct.unpack_from(">I", data, end)
        body = data[position + 2 : end]
        if magic != 0x4B52 or version != 1 or crc != google_crc32c.value(body):
            break
        out.append((offset, ts, body[30 + header_len :]))
        position = end + 4
    return out


def naive_wal_encode(values: list[bytes]) -> bytes:
    out = []
    for offset, value in enumerate(values):
        body = struct.pack("<BQQqHHI", 4, 7, offset + 1, NOW_MS, 0, 0, len(value)) + value
        checksum = xxhash.xxh3_64_intdigest(body)
        out.append(struct.pack("<BI", 1, len(body) + 8) + body + struct.pack("<Q", checksum))
    return b"".join(out)


def naive_wal_read(data: bytes) -> list[tuple[int, int, bytes]]:
    out, position = [], 0
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position + 1)
        body = data[position + 5 : position + 5 + length - 8]
        (checksum,) = struct.unpack_from("<Q", data, position + 5 + length - 8)
        if checksum != xxhash.xxh3_64_intdigest(body):
            break
        _, _, offset, ts, node_len, tag_len, _ = struct.unpack_from("<BQQqHHI", body)
        out.append((offset, ts, body[33 + node_len + tag_len :]))
        position += 5 + length
    return out


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def naive_strm_encode(values: list[bytes]) -> bytes:
    out = []
    for offset, value in enumerate(values):
        time = NOW_MS if offset == 0 else 0
        out.append(_varint(offset) + _varint(time) + _varint(-1) + _varint(len(value)) + value)
    return b"".join(out)


def naive_strm_read(data: bytes) -> list[tuple[int, int, bytes]]:
    out, position = [], 0

    def number() -> int:
        nonlocal position
        result = shift = 0
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1)
            shift += 7

    while position < len(data):
        offset, time = number(), number()
        key_length = number()
        position += max(key_length, 0)
        length = number()
        out.append((offset, time, data[position : position + length]))
        position += length
    return out


# ---------------------------------------------------------------- ours


def _strm_encode(batch: pa.RecordBatch, _: np.ndarray) -> Any:
    coding = Coding(Compression.NONE, enveloped=False)
    return (
        strm_write.encode(batch, coding, topic="bench", partition=0, created_at_ms=NOW_MS),
        None,
    )


def _strm_read(data: Any) -> pa.RecordBatch:
    batches = list(strm_segment.read_from(data))
    return pa.Table.from_batches(batches)


CANDIDATES = [
    Candidate(
        "frame",
        "frame",
        lambda batch, out: frame.encode(batch, 0, out),
        lambda data: frame.decode(data, frame.scan(data)),
        naive_frame_encode,
        naive_frame_read,
    ),
    Candidate(
        "keratin",
        "keratin",
        lambda batch, out: keratin.encode(batch, 0, out),
        lambda data: keratin.decode(data, keratin.scan(data, 0)),
        naive_keratin_encode,
        naive_keratin_read,
    ),
    Candidate(
        "wal",
        "wal",
        lambda batch, out: wal.encode(batch, topic_id=7, base_sequence=1, durable=True, out=out),
        lambda data: wal.decode(data, wal.scan(data)),
        naive_wal_encode,
        naive_wal_read,
    ),
    Candidate("strm", "strm", _strm_encode, _strm_read, naive_strm_encode, naive_strm_read),
]


def _nothing(batch: pa.RecordBatch, out: np.ndarray) -> Any:
    """Does nothing with its arguments: what the call itself costs."""


def batch_of(values: list[bytes], format_name: str) -> pa.RecordBatch:
    rows: dict[str, Any] = {"value": pa.array(values, pa.binary())}
    if format_name == "strm":
        rows["offset"] = pa.array(range(len(values)), pa.int64())
    return records.prepare(pa.table(rows), format_name, now_ms=NOW_MS)


def measure(candidate: Candidate, size: int, count: int) -> dict[str, float]:
    """Seconds for one batch, each way."""
    values = [(b"%08d" % number) * (size // 8 + 1) for number in range(count)]
    values = [value[:size] for value in values]
    wanted = max(2, min(64, SET_BYTES // (size * count)))
    batches = [batch_of(values, candidate.columns) for _ in range(wanted)]
    encoded = [np.array(candidate.encode(batch, np.empty(0, np.uint8))[0]) for batch in batches]
    check(candidate, batches[0], encoded[0], values)
    out = np.empty(len(encoded[0]) + 4096, dtype=np.uint8)
    target = out[: len(encoded[0])]
    turn = itertools.cycle(range(wanted))
    naive_bytes = candidate.naive_encode(values)
    fast = max(1, 200 // count) if count < 100 else 1
    ours = best_of(
        {
            "call": lambda: _nothing(batches[next(turn)], out),
            "copy": lambda: np.copyto(target, encoded[next(turn)]),
            "encode": lambda: candidate.encode(batches[next(turn)], out),
            "read": lambda: candidate.read(encoded[next(turn)]),
        },
        rounds=60,
        repeat=max(fast, 20 if count < 1000 else 4),
    )
    naive = best_of(
        {
            "naive encode": lambda: candidate.naive_encode(values),
            "naive read": lambda: candidate.naive_read(naive_bytes),
        },
        rounds=3,
        repeat=max(1, 2000 // count // 2),
    )
    return ours | naive | {"bytes": float(len(encoded[0]))}


def check(candidate: Candidate, batch: pa.RecordBatch, data: Any, values: list[bytes]) -> None:
    """No figure without the right answer."""
    assert candidate.read(data).column("value").to_pylist() == values
    if candidate.name != "strm":
        assert bytes(data) == candidate.naive_encode(values), candidate.name
    assert [row[2] for row in candidate.naive_read(candidate.naive_encode(values))] == values


def main() -> None:
    console = Console(width=140)
    table = Table(title="million records/s (MB/s of encoded bytes); best of interleaved rounds")
    for heading in ("format", "value", "batch", "encode", "scan+decode", "naive", "naive read"):
        table.add_column(heading, justify="right")
    table.add_column("copy", justify="right")
    bars: list[Bar] = []
    for candidate, size, count in itertools.product(CANDIDATES, SIZES, BATCHES):
        figures = measure(candidate, size, count)
        table.add_row(*_row(candidate, size, count, figures))
        if size == SIZES[0]:
            bars += _bars(candidate, count, figures)
    console.print(table)
    finish(bars)


def _row(candidate: Candidate, size: int, count: int, figures: dict[str, float]) -> list[str]:
    def shown(name: str) -> str:
        seconds = figures[name]
        return f"{count / seconds / 1e6:.2f} ({figures['bytes'] / seconds / 1e6:,.0f})"

    columns = ("encode", "read", "naive encode", "naive read", "copy")
    return [candidate.name, f"{size} B", f"{count:,}", *(shown(name) for name in columns)]


def _bars(candidate: Candidate, count: int, figures: dict[str, float]) -> list[Bar]:
    name = candidate.name
    if count == BATCHES[-1]:
        bars = [
            Bar(f"{name}-encode-vs-naive", figures["naive encode"] / figures["encode"], 25),
            Bar(f"{name}-read-vs-naive", figures["naive read"] / figures["read"], 25),
        ]
        if name != "strm":
            ratio = figures["encode"] / figures["copy"]
            bars.append(Bar(f"{name}-encode-vs-copy", ratio, 4, at_most=True))
        return bars
    if count == 1 and name != "strm":
        beyond_call = figures["encode"] - figures["call"]
        return [Bar(f"{name}-one-record-us", beyond_call * 1e6, 5, at_most=True)]
    return []


if __name__ == "__main__":
    main()
