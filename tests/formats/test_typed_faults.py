"""What a reader of typed columns is told of a bad value: field, offset, fault and expected type."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.errors import SchemaError

AVRO = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "s", "type": "string"},
            {"name": "c", "type": {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}},
            {"name": "m", "type": ["null", "double"], "default": None},
            {"name": "l", "type": {"type": "array", "items": "long"}},
            {
                "name": "in",
                "type": {
                    "type": "record",
                    "name": "In",
                    "fields": [{"name": "f", "type": {"type": "fixed", "name": "F", "size": 4}}],
                },
            },
        ],
    }
)
DOCUMENTS = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "s", "type": ["null", "string"]},
            {"name": "c", "type": {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}},
            {"name": "l", "type": {"type": "array", "items": "long"}, "default": []},
            {
                "name": "in",
                "type": [
                    "null",
                    {"type": "record", "name": "In", "fields": [{"name": "d", "type": "double"}]},
                ],
            },
        ],
    }
)
PLAIN_DOCUMENTS = DOCUMENTS.replace(
    json.dumps({"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}), '"string"'
)
MESSAGES = """
syntax = "proto3";
message R {
    enum C { RED = 0; BLUE = 1; }
    message In { double d = 1; }
    int32 n = 1;
    optional string s = 2;
    C c = 3;
    repeated int64 l = 4;
    In in = 5;
}
"""


def zigzag(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def avro(
    *, n: bytes = zigzag(1), s: bytes = b"\2x", c: int = 0, m: bytes = b"\0", rest: bytes = b""
) -> bytes:
    return n + s + zigzag(c) + m + (rest or b"\0" + b"fixd")


GOOD = {
    "avro": avro(),
    "json": b'{"n": 1, "s": "x", "c": "RED", "l": [1], "in": {"d": 1.5}}',
    "protobuf": b"\x08\x01\x12\x01x\x18\x01",
}
CASES: dict[str, list[tuple[bytes, str, str]]] = {
    "avro": [
        (avro(n=zigzag(1 << 40)), "n", "out of range; expected int"),
        (b"\xff" * 11, "n", "a number that does not end, or is out of range; expected int"),
        (b"", "n", "expected int"),
        (avro(s=b"\x40x"), "s", "a length that reaches past the value; expected string"),
        (avro(s=b"\2\xff"), "s", "text that is not UTF-8; expected string"),
        (avro(c=2), "c", "a symbol that the enum does not have; expected one of RED, BLUE"),
        (avro(m=zigzag(2)), "m", "a branch that the union does not have; expected double or null"),
        (avro(m=b"\2" + bytes(3), rest=b" "), "m", "past the value; expected double or null"),
        (avro(rest=zigzag(100) + b"\2"), "l", "more items than the value can hold"),
        (avro(rest=b"\2" + b"\xff" * 10), "l[]", "expected long"),
        (avro(rest=b"\0ab"), "in.f", "a length that reaches past the value; expected fixed of 4"),
        (avro() + b"more", "", "bytes after the last field"),
    ],
    "json": [
        (b'{"n": "1", "c": "RED"}', "n", "a value that does not fit; expected int"),
        (b'{"n": 3000000000, "c": "RED"}', "n", "a value that does not fit; expected int"),
        (b'{"n": 1.5, "c": "RED"}', "n", "a value that does not fit; expected int"),
        (b'{"n": 1, "s": 7, "c": "RED"}', "s", "does not fit; expected string or null"),
        (b'{"n": 1}', "c", "no value for a field that must have one; expected one of RED, BLUE"),
        (b'{"n": null, "c": "RED"}', "n", "no value for a field that must have one; expected int"),
        (b'{"n": 1, "c": "PINK"}', "c", "the enum does not have; expected one of RED, BLUE"),
        (b'{"n": 1, "c": "RED", "l": 3}', "l", "does not fit; expected array of long"),
        (b'{"n": 1, "c": "RED", "l": [1, "x"]}', "l[]", "does not fit; expected long"),
        (b'{"n": 1, "c": "RED", "l": [null]}', "l[]", "must have one; expected long"),
        (b'{"n": 1, "c": "RED", "in": {"d": true}}', "in.d", "does not fit; expected double"),
        (b'{"n": 1, "c": "RED", "in": {}}', "in.d", "no value for a field that must have one"),
        (b'{"n": 1, "c": "RE', "", "not a JSON object that fits the schema"),
        (b'{"n": 1, "c": "RED"} x', "", "not a JSON object that fits the schema"),
        (b"[1]", "", "not a JSON object that fits the schema"),
        (b'{"n": 1, "s": "\xff"}', "", "text that is not UTF-8"),
    ],
    "protobuf": [
        (b"\x08" + b"\xff" * 11, "n", "a number that does not end, or is out of range; expected"),
        (b"\x08", "n", "expected int"),
        (b"\x12\x05x", "s", "a length that reaches past the value; expected string or null"),
        (b"\x12\x01\xff", "s", "text that is not UTF-8; expected string or null"),
        (b"\x0a\x01x", "n", "a field of another wire type than the schema says; expected int"),
        (b"\x18\x09", "c", "a symbol that the enum does not have; expected one of RED, BLUE"),
        (b"\x22\x02\x01\xff", "l", "expected array of long"),
        (b"\x2a\x03\x09ab", "in.d", "a length that reaches past the value; expected double"),
    ],
}


def told_of(store: Any, topic: str, value: bytes) -> tuple[str, str]:
    """Reads a bad value between good ones: what `raise` says, and what `null` does."""
    rows = store.read(topic, errors="null").read_all()
    assert [each is None for each in rows["_error"].to_pylist()] == [True, False, True]
    assert rows["n"].is_null().to_pylist() == [False, True, False]
    with pytest.raises(SchemaError) as caught:
        store.read(topic).read_all()
    return str(caught.value), rows["_error"][1].as_py()


@pytest.mark.parametrize(
    ("encoding", "schema", "case"),
    [
        (encoding, schema, case)
        for encoding, schema in (("avro", AVRO), ("json", DOCUMENTS), ("protobuf", MESSAGES))
        for case in CASES[encoding]
    ]
    + [("json", PLAIN_DOCUMENTS, case) for case in CASES["json"] if b"PINK" not in case[0]],
)
def test_an_error_names_field_offset_fault_and_type(
    tmp_path: Path, encoding: str, schema: str, case: tuple[bytes, str, str]
) -> None:
    value, path, fault = case
    if schema == PLAIN_DOCUMENTS:
        fault = fault.replace("one of RED, BLUE", "string")
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        store.append("t", [GOOD[encoding], value, GOOD[encoding]])
        store.set_schema("t", schema, encoding=encoding, framing="plain")
        raised, noted = told_of(store, "t", value)
    assert noted.startswith(f"{path}: " if path else fault), noted
    assert fault in noted
    assert f"t/0, offset 1: {noted}; the record stays as it is: read on from 2" in raised


def test_an_error_of_a_schema_that_is_unknown_names_the_offset(tmp_path: Path) -> None:
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t", schema=pa.schema([("n", pa.int64())]))
        store.append("t", pa.table({"value": [struct.pack(">bI", 0, 99) + b"\0"]}))
        with pytest.raises(SchemaError, match="t/0, offset 0: a schema id that nobody knows"):
            store.read("t").read_all()
