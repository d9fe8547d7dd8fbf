"""Batches that Arrow accepts and no writer may: encoders refuse them and touch nothing outside."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina.errors import InvalidRequest
from lamina.formats.frame import log as frame
from lamina.formats.keratin import log as keratin
from lamina.formats.kernels.arrow import PlainValues
from lamina.formats.strm import segment, write
from lamina.formats.strm.layout import Coding
from lamina.formats.wal import log as wal
from lamina.records import HEADER, HEADERS, INPUT_SCHEMAS, prepare
from tests.support.contract import plain
from tests.support.strategies import ANY_NAMES, BYTES

FORMATS = ("frame", "keratin", "wal", "strm")
LOGS = [("frame", frame), ("keratin", keratin)]
PAGE = 4096
FAR = 1 << 20


def encode(format_name: str, batch: pa.RecordBatch, out: NDArray[np.uint8] | None = None) -> Any:
    """Encodes by any format, into far more room than the batch says it needs."""
    match format_name:
        case "frame":
            return frame.encode(batch, 0, out)
        case "keratin":
            return keratin.encode(batch, 0, out)
        case "wal":
            return wal.encode(batch, topic_id=1, base_sequence=1, durable=True, out=out)
    return write.encode(batch, Coding(enveloped=True), topic="t", partition=0, created_at_ms=1)


def two_rows(format_name: str) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [{"offset": row, "value": b"v"} for row in range(2)]
    if format_name != "strm":
        rows = [{"value": b"v"}] * 2
    return prepare(rows, format_name, now_ms=1)


def replaced(format_name: str, name: str, column: pa.Array) -> pa.RecordBatch:
    schema = INPUT_SCHEMAS[format_name]
    at = schema.get_field_index(name)
    return two_rows(format_name).set_column(at, schema[at], column)


# ---------------------------------------------------------------- offsets, beside a guarded page


def guarded(size: int) -> pa.Buffer:
    """Bytes that end where a page begins that nobody may read."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, 2 * PAGE, 3, 0x22, -1, 0)
    assert libc.mprotect(address + PAGE, PAGE, 0) == 0
    return pa.foreign_buffer(address + PAGE - size, size)


def offsets(*values: int) -> pa.Buffer:
    return pa.py_buffer(struct.pack(f"={len(values)}i", *values))


def wild(kind: pa.DataType, length: int = 2) -> pa.Array:
    """A column whose first row reaches far beyond the data, though its last offset does not."""
    return pa.Array.from_buffers(kind, length, [None, offsets(0, FAR, 10), guarded(10)])


def headers_of(lists: pa.Buffer, names: pa.Array, values: pa.Array) -> pa.Array:
    items = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
    return pa.Array.from_buffers(HEADERS, 2, [None, lists], children=[items])


def wild_columns(format_name: str) -> dict[str, pa.Array]:
    columns = {name: wild(pa.binary()) for name in ("key", "value", "tag", "node")}
    two = pa.array([b"a", b"b"], pa.binary())
    columns["headers"] = headers_of(offsets(0, FAR, 2), pa.array(["a", "b"]), two)
    found = {
        name: array for name, array in columns.items() if name in INPUT_SCHEMAS[format_name].names
    }
    if "headers" in found:
        found["headers "] = headers_of(offsets(0, 2, 2), wild(pa.string()), two)
        found[" headers"] = headers_of(offsets(0, 2, 2), pa.array(["a", "b"]), wild(pa.binary()))
    return found


def main() -> None:
    """Encodes every wild batch; in a process of its own, since a failure ends it."""
    out = np.empty(8 * FAR, dtype=np.uint8)
    for format_name in FORMATS:
        for name, column in wild_columns(format_name).items():
            batch = replaced(format_name, name.strip(), column)
            batch.validate()
            with pytest.raises(InvalidRequest, match="row 0"):
                encode(format_name, batch, out)
            sys.stdout.write(f"{format_name} {name.strip()}\n")


def test_offsets_beyond_the_end_of_their_own_column_are_not_followed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.formats.test_broken_batches"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"it read outside: {done.returncode} {done.stderr}"
    expected = [f"{name} {column.strip()}" for name in FORMATS for column in wild_columns(name)]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_batch_shorter_than_it_says_is_refused_when_it_is_prepared(format_name: str) -> None:
    ends = np.array([0, 5, 10], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"0123456789")]
    batch = replaced(format_name, "value", pa.Array.from_buffers(pa.binary(), 2, buffers))
    ends[2] = FAR  # Arrow looked at it when the array was made, and does not on its own again
    for given_in in (batch, pa.Table.from_batches([batch])):
        with pytest.raises(InvalidRequest, match="broken"):
            prepare(given_in, format_name, now_ms=1)


# ---------------------------------------------------------------- names


def named(names: list[bytes]) -> pa.Array:
    """A headers column of one row with names that may not be UTF-8."""
    raw = pa.array(names, pa.binary())
    items = pa.StructArray.from_arrays(
        [raw.view(pa.string()), pa.array([b"v"] * len(names), pa.binary())], fields=list(HEADER)
    )
    return pa.ListArray.from_arrays(pa.array([0, len(names)], pa.int32()), items).cast(HEADERS)


def is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY_NAMES, max_size=3))
def test_header_names_come_back_or_are_refused(names: list[bytes]) -> None:
    column = named(names)
    for format_name in ("keratin", "strm"):
        rows = [{"key": b"KEY", "value": b"a"} | ({"offset": 0} if format_name == "strm" else {})]
        schema = INPUT_SCHEMAS[format_name]
        at = schema.get_field_index("headers")
        batch = prepare(rows, format_name, now_ms=1).set_column(at, schema[at], column)
        if not all(map(is_utf8, names)):
            with pytest.raises(InvalidRequest, match=r"row 0.*UTF-8"):
                encode(format_name, batch)
            continue
        encoded = encode(format_name, batch)
        if format_name == "keratin":
            read = plain(keratin.decode(encoded[0], keratin.scan(encoded[0], 0)))
        else:
            segment.verify(encoded)
            read = [row for found in segment.read_from(encoded) for row in plain(found)]
        assert [item["key"].encode() for item in read[0]["headers"]] == names
        assert read[0]["key"] == b"KEY"


# ---------------------------------------------------------------- what else a caller can get wrong


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(BYTES, max_size=90), min_size=1, max_size=3), st.integers(0, 1 << 62))
def test_plain_values_are_encoded_as_a_batch_of_them_is(
    groups: list[list[bytes]], base_offset: int
) -> None:
    for name, log in LOGS:
        values = PlainValues(INPUT_SCHEMAS[name])
        for group in groups:
            values.fill(group, 77)
            data, positions = log.encode_values(values, base_offset)
            expected = log.encode(prepare(group, name, now_ms=77), base_offset)
            assert data.tobytes() == expected[0].tobytes()
            assert positions.tolist() == expected[1].tolist()
            assert values.times().tolist() == [77] * len(group)


def test_a_structure_with_more_rows_than_there_is_room_for_is_refused() -> None:
    for name, log in LOGS:
        values = PlainValues(INPUT_SCHEMAS[name])
        values.fill([b"v"] * 50, 1)
        out, positions = np.zeros(1 << 16, dtype=np.uint8), np.zeros(8, dtype=np.int64)
        status, row = log._encode(values.address, out, positions[:1], 0)
        assert (status, row) == (4, 1)
        assert not positions.any()
        assert not out.any()


class Long(bytes):
    """A value that says it is longer than memory allows."""

    def __len__(self) -> int:
        return 1 << 31


def test_more_values_than_arrow_can_address_are_refused() -> None:
    values = PlainValues(INPUT_SCHEMAS["frame"])
    values.fill([b"before"], 1)
    before = frame.encode_values(values, 0)[0].tobytes()
    for group in ([Long()], [b"v", Long()]):
        with pytest.raises(InvalidRequest, match="2 GiB"):
            values.fill(group, 2)
    assert frame.encode_values(values, 0)[0].tobytes() == before


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
def test_an_out_that_is_not_plain_writeable_bytes_is_refused(format_name: str) -> None:
    room = np.full(4096, 7, dtype=np.uint8)
    constant = np.frombuffer(bytes(4096), dtype=np.uint8)
    for out in (constant, room[::-1], room[::2], room.view(np.int64), room.reshape(64, 64)):
        with pytest.raises(ValueError, match="writeable, contiguous"):
            encode(format_name, two_rows(format_name), out)
    assert (room == 7).all()
    assert constant.tobytes() == bytes(4096)


@pytest.mark.parametrize(("name", "log"), LOGS)
def test_offsets_that_cannot_be_given_are_refused(name: str, log: ModuleType) -> None:
    batch = two_rows(name)
    values = PlainValues(INPUT_SCHEMAS[name])
    values.fill([b"v", b"v"], 1)
    for base_offset in (-1, -(1 << 63), (1 << 63) - 2, 1 << 63, 1 << 70):
        with pytest.raises(InvalidRequest, match="offsets from"):
            log.encode(batch, base_offset)
        with pytest.raises(InvalidRequest, match="offsets from"):
            log.encode_values(values, base_offset)
    data, _ = log.encode(batch, (1 << 63) - 3)
    assert len(log.scan(data, 0)) == 2
    uneven = np.uint64((1 << 53) + 1)
    data, _ = log.encode(batch, uneven)
    assert log.decode(data, log.scan(data, 0)).column("offset")[0].as_py() == (1 << 53) + 1


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_null_time_is_refused(format_name: str) -> None:
    kind = INPUT_SCHEMAS[format_name].field("timestamp").type
    batch = replaced(format_name, "timestamp", pa.array([1, None], pa.int64()).cast(kind))
    with pytest.raises(InvalidRequest, match="null"):
        encode(format_name, batch)


if __name__ == "__main__":
    main()
