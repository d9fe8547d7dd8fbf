"""The record envelope, read through keratin records whose checksums are right.

The oracle is a second reader of the envelope, written here in plain Python from the byte table.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.formats import envelope
from lamina.formats.keratin import log
from lamina.records import prepare
from tests.formats.test_keratin_golden import NOW, joined, record
from tests.support.contract import grows_at_most, mutate, plain

KEY, NULL, HEADERS, TAG, NODE = 1, 2, 4, 8, 16


def run(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def by_hand(flags: int, body: bytes = b"", *, version: int = 1, magic: bytes = b"LE") -> bytes:
    return magic + bytes([version, flags]) + body


def headers_by_hand(*pairs: tuple[bytes, bytes | None]) -> bytes:
    body = struct.pack(">I", len(pairs))
    for name, value in pairs:
        body += run(name) + (b"\xff\xff\xff\xff" if value is None else run(value))
    return body


def read(headers: bytes, payload: bytes = b"") -> dict[str, Any]:
    """What our decoder makes of one record with these headers bytes."""
    data = joined(record(0, NOW, headers, payload))
    batch = log.decode(data, log.scan(data, 0))
    batch.validate(full=True)
    (row,) = plain(batch)
    return {name: row[name] for name in ("key", "value", "headers")}


def foreign(headers: bytes, payload: bytes = b"") -> dict[str, Any]:
    one = [{"key": "keratin.headers", "value": headers}]
    return {"key": None, "value": payload, "headers": one}


class NotOurs(Exception):
    pass


class Reader:
    """Reads like the byte table says, and raises where bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        if size > len(self.data):
            raise NotOurs
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def run(self) -> bytes:
        return self.take(self.number())

    def header(self) -> dict[str, Any]:
        try:
            name = self.run().decode()
        except UnicodeDecodeError:
            raise NotOurs from None
        size = self.number()
        return {"key": name, "value": None if size == 0xFFFFFFFF else self.take(size)}


def oracle(headers: bytes, payload: bytes) -> dict[str, Any]:
    if not headers:
        return {"key": None, "value": payload, "headers": None}
    reader = Reader(headers)
    try:
        magic, version, flags = struct.unpack(">2sBB", reader.take(4))
        if magic != b"LE" or version != 1 or not 0 < flags < TAG or (flags & NULL and payload):
            raise NotOurs
        key = reader.run() if flags & KEY else None
        found = None
        if flags & HEADERS:
            found = [reader.header() for _ in range(reader.number())]
        if reader.data:
            raise NotOurs
    except NotOurs:
        return foreign(headers, payload)
    return {"key": key, "value": None if flags & NULL else payload, "headers": found}


SAMPLE = by_hand(
    KEY | HEADERS,
    run(b"key") + headers_by_hand((b"a", b"1"), ("é€𝄞".encode(), None), (b"a", b"")),
)


def test_the_oracle_and_the_encoder_agree() -> None:
    headers = [
        {"key": "a", "value": b"1"},
        {"key": "é€𝄞", "value": None},
        {"key": "a", "value": b""},
    ]
    batch = prepare([{"key": b"key", "value": b"v", "headers": headers}], "keratin", now_ms=NOW)
    assert log.encode(batch, 0)[0].tobytes() == joined(record(0, NOW, SAMPLE, b"v"))
    assert oracle(SAMPLE, b"v") == {"key": b"key", "value": b"v", "headers": headers}


@pytest.mark.parametrize(
    "headers",
    [
        b"h",
        b"LE",
        b"LE\x01",
        by_hand(0),
        by_hand(32),
        by_hand(KEY, run(b"k"), version=2),
        by_hand(KEY, run(b"k"), magic=b"LF"),
        by_hand(KEY, run(b"k") + b"more"),
        by_hand(KEY, struct.pack(">I", 0xFFFFFFFF)),
        by_hand(KEY, struct.pack(">I", 5) + b"four"),
        by_hand(NULL, b"more"),
        by_hand(TAG, run(b"t")),
        by_hand(NODE, run(b"n")),
        by_hand(KEY | TAG | NODE, run(b"k") + run(b"t") + run(b"n")),
        by_hand(HEADERS),
        by_hand(HEADERS, struct.pack(">I", 0xFFFFFFFF)),
        by_hand(HEADERS, struct.pack(">I", 0xFFFFFFFF) + bytes(64)),
        by_hand(HEADERS, struct.pack(">III", 1, 0xFFFFFFFF, 0)),
        by_hand(HEADERS, struct.pack(">III", 1, 0, 0xFFFFFFFE)),
        by_hand(HEADERS, headers_by_hand((b"\xff", b""))),
        by_hand(HEADERS, headers_by_hand((b"good", b"v"), (b"\xed\xa0\x80", b""))),
    ],
)
def test_bytes_that_are_no_envelope_surface_as_one_header(headers: bytes) -> None:
    assert read(headers, b"payload") == foreign(headers, b"payload")


def test_a_null_value_with_a_payload_is_not_an_envelope_of_ours() -> None:
    assert read(by_hand(NULL), b"") == {"key": None, "value": None, "headers": None}
    assert read(by_hand(NULL), b"kept") == foreign(by_hand(NULL), b"kept")


def test_null_and_empty_stay_apart() -> None:
    assert read(by_hand(KEY, run(b"")))["key"] == b""
    assert read(by_hand(HEADERS, headers_by_hand()))["headers"] == []
    assert read(b"") == {"key": None, "value": b"", "headers": None}


def test_every_prefix_of_an_envelope_is_foreign() -> None:
    for size in range(1, len(SAMPLE)):
        assert read(SAMPLE[:size], b"v") == foreign(SAMPLE[:size], b"v")


def test_hostile_envelopes_are_read_as_the_oracle_reads_them_and_cost_no_memory() -> None:
    drawn = random.Random(20_240_602)
    read(SAMPLE)
    with grows_at_most(64 << 10):
        ours = 0
        for _ in range(2_000):
            hostile = mutate(SAMPLE, drawn)
            payload = drawn.choice([b"", b"v"])
            expected = oracle(hostile, payload)
            assert read(hostile, payload) == expected
            ours += expected != foreign(hostile, payload)
        assert 20 < ours < 1_980, "both outcomes must be exercised"


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=12), st.text(max_size=9).map(lambda text: text.encode())))
def test_names_are_utf8_exactly_when_python_says_so(name: bytes) -> None:
    headers = by_hand(HEADERS, headers_by_hand((name, b"v")))
    assert read(headers) == oracle(headers, b"")


@pytest.mark.parametrize("lead", range(0x80, 0x100))
def test_each_lead_byte_of_utf8_is_judged_as_python_judges_it(lead: int) -> None:
    for second in (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
        for tail in (b"", b"\x80", b"\xbf\xbf", b"\x80\x7f", b"\x80\x80a"):
            name = bytes([lead, second]) + tail
            headers = by_hand(HEADERS, headers_by_hand((name, b"")))
            assert read(headers) == oracle(headers, b"")


def test_foreign_and_own_headers_mix_in_one_batch() -> None:
    parts = [b"h1", by_hand(KEY, run(b"k")), b"", SAMPLE]
    data = b"".join(joined(record(n, NOW, part, b"v")) for n, part in enumerate(parts))
    rows = plain(log.decode(data, log.scan(data, 0)))
    got = [{name: row[name] for name in ("key", "value", "headers")} for row in rows]
    assert got == [oracle(part, b"v") for part in parts]


def test_the_name_of_foreign_headers_is_what_the_page_says() -> None:
    assert envelope.FOREIGN_NAME == "keratin.headers"
    assert envelope.ENVELOPE.size == 4
