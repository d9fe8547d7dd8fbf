"""Plain JSON documents by the kernel, and what is not plain by Arrow's reader: the same columns."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lamina.formats.typed import avro_text, json_decode, json_program, json_scan
from lamina.formats.typed.row_faults import FINE, Decoded, Values
from lamina.formats.typed.schema_model import Type

LEAVES = ("boolean", "int", "long", "float", "double", "string")


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def model(schema: Any) -> Type:
    return avro_text.parse(json.dumps(schema))


def values_of(documents: list[bytes | None]) -> Values:
    return Values.of(pa.array(documents, pa.binary()))


def is_same(found: Decoded, wanted: Decoded) -> None:
    """Compares columns to the bit, and what is wrong with rows."""
    assert found.codes.tolist() == wanted.codes.tolist()
    for row in np.flatnonzero(found.codes > FINE):
        assert found.fault(int(row)) == wanted.fault(int(row))
    for mine, theirs in zip(found.columns, wanted.columns, strict=True):
        mine.validate(full=True)
        assert mine.type == theirs.type
        if pa.types.is_floating(mine.type):  # not a number, and zeros of either sign
            assert repr(mine.to_pylist()) == repr(theirs.to_pylist())
        else:
            assert mine.equals(theirs), (mine, theirs)


def compared(schema: Any, documents: list[bytes | None]) -> Decoded:
    kind, values = model(schema), values_of(documents)
    found = json_decode.decode(kind, values)
    is_same(found, json_decode.by_reader(kind, values))
    return found


def plain_rows(schema: Any, documents: list[bytes | None]) -> list[bool]:
    program = json_program.compiled(model(schema))
    assert program is not None
    return (json_scan.decode(program, values_of(documents)).codes == FINE).tolist()


LINE = record(field("sku", "string"), field("n", ["null", "int"]), name="Line")
ORDER = record(
    *(field("id", "long"), field("note", ["null", "string"]), field("ok", "boolean")),
    *(field("price", "double"), field("load", ["null", "float"])),
    field("lines", {"type": "array", "items": LINE}),
    field("tags", ["null", {"type": "array", "items": ["null", "string"]}]),
    field("at", ["null", record(field("x", "int"), field("deep", ["null", "Line"]), name="At")]),
)


def order(number: int) -> dict[str, Any]:
    lines = [{"sku": f"sku {each}" * each, "n": each or None} for each in range(number % 4)]
    tags = None if number % 5 == 0 else [None if each % 2 else "é" * each for each in range(3)]
    at = {"x": -number, "deep": {"sku": "", "n": 1} if number % 3 else None}
    return {
        **{"id": number * 10**14, "note": None if number % 2 else "n" * (number % 40)},
        **{"ok": number % 3 == 0, "price": number / 8, "load": number / 4 if number % 7 else None},
        **{"lines": lines, "tags": tags, "at": at if number % 4 else None},
    }


def test_documents_as_programs_write_them_are_plain() -> None:
    rows = [order(number) for number in range(100)]
    layouts = ({}, {"separators": (",", ":")}, {"indent": 2}, {"sort_keys": True})
    for layout in layouts:
        documents = [json.dumps(row, ensure_ascii=False, **layout).encode() for row in rows]
        assert all(plain_rows(ORDER, documents))
        names = [each["name"] for each in ORDER["fields"]]
        decoded = compared(ORDER, documents)
        assert pa.RecordBatch.from_arrays(decoded.columns, names).to_pylist() == rows


def test_fields_may_lack_come_in_any_order_or_be_nobody_s() -> None:
    chance = random.Random(1)
    documents: list[bytes | None] = []
    for number in range(200):
        row = list(order(number).items())
        row += [("extra", each) for each in (1.5, "text", None, True)][: number % 2]
        chance.shuffle(row)
        kept = {name: value for name, value in row if chance.random() < 0.95}
        documents.append(json.dumps(kept).encode())
    decoded = compared(ORDER, documents)
    assert 20 < np.count_nonzero(decoded.codes == FINE) < 180


ODD = [
    *(b'{"a":1,"a":1}', b'{"a":1,"z":1,"z":2}', b'{"a":1,"z":[1]}', b'{"a":1,"z":{"a":2}}'),
    *(b'{"\\u0061":1}', b'{"a":1,"b":"\\n"}', b'{"a":1,"b":"\x01"}', b'{"a":1,"b":"\x7f"}'),
    *(b'{"a":1,"b":"\xc3\xa9"}', b'{"a":1,"b":"\xc3"}', b'{"a":1,"b":"\xed\xa0\x80"}'),
    *(b'\xef\xbb\xbf{"a":1}', b'{"a":1}\x00', b'{"a":1} \n\t\r', b' \n{"a" : 1 }', b'{"a":1,}'),
    *(b'{,"a":1}', b'{"a" 1}', b'{"a":}', b'{"a":1 "b":"x"}', b'{"a":nul}', b'{"a":1,"b":nulll}'),
    *(b'{"a":true}', b'{"a":"1"}', b'{"a":1,"b":2}', b'{"a":1,"b":{}}', b'{"a":[1]}', b"{}", b""),
    *(b'{"a":1,"ab":2}', b'{"a":1,"":2}', b'{"A":1}', b'{"a":1,"b":"x', b'{"a":1', b'{"a":1}}'),
    *(b'{"a":1,"z":01}', b'{"a":1,"z":1.}', b'{"a":1,"z":tru}', b'{"a":1,"z":"\\q"}', None),
]


def test_odd_documents_are_read_as_the_reader_reads_them() -> None:
    schema = record(field("a", "long"), field("b", ["null", "string"]))
    good = b'{"a":7,"b":"y"}'
    compared(schema, [each for odd in ODD for each in (good, odd)] + [good])


@pytest.mark.parametrize("kind", LEAVES)
def test_numbers_are_the_reader_s_to_the_bit(kind: str) -> None:
    texts = ["0", "-0", "1", "-1", "01", "1.", ".5", "+1", "1e5", "1E5", "1e-5", "1e+5", "1e", "-"]
    texts += ["1e22", "1e23", "1e18", "1e19", "1e308", "1e309", "1e-323", "1e999", "-0.0", "0.0"]
    texts += ["9007199254740991", "9007199254740992", "9007199254740993", "16777215", "16777217"]
    texts += [
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "0.1",
        "0.3",
        "1.10",
        "1e00",
    ]
    texts += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e1e1", "0x1"]
    texts += [
        "1700000000000000000",
        "0.000000000000000000000001",
        "100000000000000000000",
        "Infinity",
    ]
    texts += ["true", "false", "null", '"x"', "[]", "{}", "NaN", "1 2", "1,", "truex", "t", "fals"]
    compared(record(field("v", kind)), [b'{"v":%s}' % text.encode() for text in texts])
    compared(record(field("v", ["null", kind])), [b'{"v": %s }' % text.encode() for text in texts])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_floats_are_the_nearest_ones(numbers: list[float]) -> None:
    texts = [repr(number) for number in numbers]
    texts += [f"{number:.{places}f}"[:25] for number in numbers for places in (0, 3, 9)]
    texts += [f"{number:.{places}e}" for number in numbers for places in (1, 6, 7, 14)]
    for kind in ("double", "float"):
        compared(record(field("v", kind)), [b'{"v":%s}' % each.encode() for each in texts])


def test_numbers_of_many_digits_are_rounded_once() -> None:
    chance = random.Random(7)
    texts = []
    for digits in (7, 8, 9, 10, 15, 16, 17, 18, 19):
        for _ in range(2_000):
            number, power = chance.randrange(10**digits), chance.randrange(-20, 20)
            texts.append(b"%de%d" % (number, power))
            texts.append(b"%d.%d" % (number % 1000, number))
    texts.append(b"16777217.0000000001")  # its nearest double lies between two floats
    for kind in ("double", "float"):
        compared(record(field("v", kind)), [b'{"v":%s}' % each for each in texts])


def test_odd_lists_are_read_as_the_reader_reads_them() -> None:
    schema = record(field("l", ["null", {"type": "array", "items": ["null", "int"]}]))
    odd = [
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[",
        b"[1",
        b"[1,",
        b"[]",
        b"[ ]",
        b"[null]",
        b"[1]]",
        b"[[1]]",
    ]
    odd += [b"{}", b'["1"]', b"[1}", b"null", b"[null,1 , 2]", b"[{}]", b"[1,2,3]", b"1"]
    compared(schema, [b'{"l":' + each + b"}" for each in odd])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 99), st.data())
@example(4, None)
def test_changed_documents_are_the_reader_s(number: int, data: Any) -> None:
    """One that was changed a little is read as before, or as the reader reads it."""
    whole = json.dumps(order(number), ensure_ascii=False).encode()
    changed: list[bytes | None] = [whole[:length] for length in range(0, len(whole), 7)]
    chance = random.Random(number if data is None else data.draw(st.integers(0, 1 << 32)))
    for _ in range(40):
        copy = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2))):
            copy[chance.randrange(len(copy))] = chance.choice(
                (*b' {}[],:"\\-0159.eE+ntf\n\x00\x80', chance.randrange(256))
            )
        changed.append(bytes(copy))
    compared(ORDER, changed)


def test_long_text_and_many_items_make_their_rooms_larger() -> None:
    schema = record(
        field("t", "string"),
        field("l", {"type": "array", "items": {"type": "array", "items": "int"}}),
    )
    rows = [
        {"t": "x" * (number * 37), "l": [[each] * 5 for each in range(number)]}
        for number in range(120)
    ]
    rows += [{"t": "y", "l": [[]] * 5_000}] * 3
    documents = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
    assert all(plain_rows(schema, documents))
    compared(schema, documents)


def test_nothing_is_read_behind_the_last_value() -> None:
    """The value ends with the memory: what is compared eight bytes at a time must stop there."""
    schema = record(field("abcdefghij", "long"), field("b", ["null", "string"]))
    whole = b'{"abcdefghij":1,"b":"0123456"}'
    for length in range(len(whole) + 1):
        compared(schema, [whole[:length]])


def test_schemas_that_are_not_plain_are_left_to_the_reader() -> None:
    for kind in ("bytes", {"type": "map", "values": "int"}, {"type": "int", "logicalType": "date"}):
        assert json_program.compiled(model(record(field("a", kind)))) is None
    assert json_program.compiled(model(record(field("a", "int", aliases=["b"])))) is None
    many = [field(f"f{number}", ["null", "int"]) for number in range(json_program.FIELDS_MAX + 1)]
    assert json_program.compiled(model(record(*many))) is None
    assert json_program.compiled(model(record(*many[1:]))) is not None
    compared(record(*many[1:]), [b"{}", b'{"f62":1,"f1":2}', b'{"f0":1}'])


def test_deep_documents_are_not_plain() -> None:
    kind: Any = "int"
    for _ in range(30):
        kind = {"type": "array", "items": kind}
    schema = record(field("a", kind))
    compared(schema, [b'{"a":' + b"[" * deep + b"]" * deep + b"}" for deep in (1, 29, 30, 31, 90)])
