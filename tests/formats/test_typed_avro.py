"""Avro's bytes and columns: fastavro is the oracle, hostile bytes are everywhere."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lamina.errors import SchemaError, SchemaIncompatible
from lamina.formats.typed import avro_decode, avro_encode, avro_program, avro_text
from lamina.formats.typed.arrow_types import arrow_schema, from_schema
from lamina.formats.typed.row_faults import (
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_SYMBOL,
    BAD_TEXT,
    FINE,
    LEFTOVER,
    NO_VALUE,
    TOO_MANY,
    Decoded,
    Values,
)
from lamina.formats.typed.schema_model import Type
from tests.formats.typed_strategies import read_back, typed_rows, written

NESTED = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "count", "type": "int"},
                        {"name": "tags", "type": {"type": "array", "items": "string"}},
                    ],
                },
            },
        },
        {"name": "attributes", "type": {"type": "map", "values": ["null", "double"]}},
        {
            "name": "address",
            "type": [
                {
                    "type": "record",
                    "name": "Address",
                    "fields": [
                        {"name": "city", "type": "string"},
                        {"name": "lat", "type": ["null", "float"]},
                    ],
                },
                "null",
            ],
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
    ],
}
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "note": None,
        "lines": [
            {"sku": "a", "count": 2, "tags": ["x", "yy"]},
            {"sku": "béta", "count": -1, "tags": []},
        ],
        "attributes": {"w": 1.5, "none": None},
        "address": {"city": "Bern", "lat": 46.5},
        "state": "PAID",
        "hash": b"abc",
    },
    {
        "id": -(1 << 63),
        "note": "n" * 100,
        "lines": [],
        "attributes": {},
        "address": None,
        "state": "NEW",
        "hash": b"\0\0\0",
    },
]


def model(schema: Any) -> Type:
    return avro_text.parse(json.dumps(schema))


def decode(values: list[bytes | None], writer: Any, reader: Any = None) -> Decoded:
    program = avro_program.compiled(model(reader or writer), model(writer))
    decoded = avro_decode.decode(program, Values.of(pa.array(values, pa.binary())))
    for column in decoded.columns:
        column.validate(full=True)
    return decoded


def rows_of(decoded: Decoded, schema: Any) -> list[dict[str, Any]]:
    names = [field["name"] for field in schema["fields"]]
    return pa.RecordBatch.from_arrays(decoded.columns, names).to_pylist(maps_as_pydicts="strict")


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def test_nested_records_come_back_as_fastavro_wrote_them() -> None:
    decoded = decode([written(NESTED, row) for row in ROWS], NESTED)
    assert rows_of(decoded, NESTED) == ROWS
    assert decoded.codes.tolist() == [FINE, FINE]


def test_nested_rows_are_written_as_fastavro_writes_them() -> None:
    values = [written(NESTED, row) for row in ROWS]
    program = avro_program.compiled(model(NESTED), model(NESTED))
    table = pa.Table.from_arrays(decode(values, NESTED).columns, schema=arrow_schema(model(NESTED)))
    assert avro_encode.encode(program, table).to_pylist() == values
    # A slice, and one of several chunks, has the same bytes: offsets of all levels are respected.
    doubled = pa.concat_tables([table, table, table])
    assert avro_encode.encode(program, doubled.slice(1, 4)).to_pylist() == [
        values[1],
        values[0],
        values[1],
        values[0],
    ]


@settings(max_examples=150, deadline=None)
@given(typed_rows())
def test_any_schema_reads_and_writes_what_fastavro_does(drawn: Any) -> None:
    schema, rows = drawn
    values = [written(schema, row) for row in rows]
    expected = [read_back(schema, value) for value in values]
    decoded = decode(values, schema)
    assert rows_of(decoded, schema) == expected
    program = avro_program.compiled(model(schema), model(schema))
    table = pa.Table.from_arrays(decoded.columns, schema=arrow_schema(model(schema)))
    encoded = avro_encode.encode(program, table, b"\0id__").to_pylist()
    assert [each[:5] for each in encoded] == [b"\0id__"] * len(rows)
    # Maps may be written in another order by others; ours is that of the table.
    assert [read_back(schema, each[5:]) for each in encoded] == expected


@settings(max_examples=60, deadline=None)
@given(typed_rows())
def test_a_schema_survives_its_text_and_arrow(drawn: Any) -> None:
    parsed = model(drawn[0])
    assert avro_text.parse(avro_text.text_of(parsed)) == parsed
    columns = arrow_schema(parsed)
    again = from_schema(columns)
    assert [each.type for each in arrow_schema(again)] == [
        _without_symbols(each.type) for each in columns
    ]


def _without_symbols(kind: pa.DataType) -> pa.DataType:
    """Arrow's schema does not name the symbols of an enum: it comes back as text."""
    if pa.types.is_dictionary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_symbols(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), kind.item_field.with_type(_without_symbols(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_symbols(kind.value_type)))
    return kind


# ---------------------------------------------------------------- hostile bytes


def test_every_prefix_of_a_value_is_bad_and_stops_nobody() -> None:
    whole = written(NESTED, ROWS[0])
    values = [whole[:length] for length in range(len(whole))] + [whole]
    decoded = decode(values, NESTED)
    assert (decoded.codes[:-1] > 0).all()
    assert decoded.codes[-1] == FINE
    names = rows_of(decoded, NESTED)
    assert names[-1] == ROWS[0]
    assert all(set(row.values()) == {None} for row in names[:-1])


def test_every_changed_byte_is_read_as_fastavro_reads_it_or_is_bad() -> None:
    whole = written(NESTED, ROWS[0])
    values = []
    for position in range(len(whole)):
        for change in (0x01, 0x80, 0xFF, 0x7F):
            changed = bytearray(whole)
            changed[position] ^= change
            values.append(bytes(changed))
    decoded = decode([*values, whole], NESTED)
    rows = rows_of(decoded, NESTED)
    assert rows[-1] == ROWS[0]
    for value, code, row in zip(values, decoded.codes, rows, strict=False):
        if code == FINE and "nan" not in str(row):
            assert read_back(NESTED, value) == row


def test_a_bad_value_is_null_between_good_ones_and_names_its_field() -> None:
    schema = record(field("a", "long"), field("b", "string"))
    good = [written(schema, {"a": n, "b": f"b{n}"}) for n in range(3)]
    decoded = decode([good[0], b"\x02\x04\xff\xfe", None, good[1], good[2] + b"!"], schema)
    assert decoded.codes.tolist() == [FINE, BAD_TEXT, NO_VALUE, FINE, LEFTOVER]
    assert decoded.columns[0].to_pylist() == [0, None, None, 1, None]
    assert decoded.columns[1].to_pylist() == ["b0", None, None, "b1", None]
    assert decoded.fault(1) == "b: text that is not UTF-8; expected string"


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [
        ("int", b"\x80\x80\x80\x80\x10", BAD_NUMBER),  # 2^31
        ("long", b"\xff" * 10, BAD_NUMBER),
        ("long", b"\xff" * 30, BAD_NUMBER),
        ("string", b"\x01", BAD_LENGTH),  # -1
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", BAD_LENGTH),  # 2^63 - 1
        ("boolean", b"\x02", BAD_NUMBER),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x7f\x00", TOO_MANY),
        ({"type": "array", "items": "long"}, b"\xfe\xff\xff\xff\x7f\x00", TOO_MANY),
        ({"type": "array", "items": "long"}, b"\xff" * 9 + b"\x01\x02", TOO_MANY),  # -2^63
        ({"type": "array", "items": "long"}, b"\x01\x01\x00\x00", BAD_LENGTH),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", BAD_SYMBOL),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x02\x64",  # 100
            BAD_NUMBER,
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
            b"\x22" + b"\x01" + b"\0" * 16,
            BAD_NUMBER,
        ),
    ],
)
def test_a_hostile_number_or_length_is_refused(kind: Any, value: bytes, code: int) -> None:
    assert decode([value], record(field("x", kind))).codes.tolist() == [code]


def test_items_without_bytes_are_bounded_over_all_blocks_of_a_value() -> None:
    block = b"\x80\x80\x08"  # 65536 items of nothing
    schema = record(field("x", {"type": "array", "items": "null"}))
    assert decode([block + b"\0"], schema).codes.tolist() == [FINE]
    assert decode([block + b"\x02\0"], schema).codes.tolist() == [TOO_MANY]


def test_rooms_grow_between_records_and_nothing_is_read_twice() -> None:
    schema = record(field("x", {"type": "array", "items": "string"}), field("y", "string"))
    rows = [{"x": [f"{n}" * (n % 7)] * (n % 50), "y": "y" * n} for n in range(300)]
    values = [written(schema, row) for row in rows]
    values[7:7] = [b"\xff\xff"]
    decoded = decode(values, schema)
    found = rows_of(decoded, schema)
    del found[7]
    assert found == rows


def test_long_numbers_of_decimals_keep_their_sign() -> None:
    kind = {"type": "fixed", "name": "D", "size": 20, "logicalType": "decimal", "precision": 38}
    value = (-5).to_bytes(20, "big", signed=True)
    assert str(decode([value], record(field("x", kind))).columns[0][0]) == "-5"


# ---------------------------------------------------------------- one schema reads another


def test_every_rule_of_evolution_is_applied() -> None:
    old = record(
        field("a", "int"),
        field("b", "int"),
        field("c", "long"),
        field("d", "float"),
        field("gone", {"type": "array", "items": {"type": "map", "values": ["null", "string"]}}),
        field("text", "string"),
        field("raw", "bytes"),
        field("former", "string"),
        field("kind", {"type": "enum", "name": "K", "symbols": ["X", "Y", "Z"]}),
        field("sure", "long"),
        field("maybe", ["null", "long"]),
    )
    new = record(
        field("kind", {"type": "enum", "name": "K", "symbols": ["Z", "U"], "default": "U"}),
        field("a", "long"),
        field("b", "double"),
        field("c", "float"),
        field("d", "double"),
        field("text", "bytes"),
        field("raw", "string"),
        field("name", "string", aliases=["former"]),
        field("sure", ["null", "long"]),
        field("added", {"type": "array", "items": "string"}, default=["p", "q"]),
        field("maybe", ["null", "long"]),
        field("deep", record(field("z", "int", default=7)) | {"name": "Deep"}, default={}),
        field("no", ["null", "string"], default=None),
    )
    row = {
        **{"a": -3, "b": 4, "c": 5, "d": 1.5, "gone": [{"k": None, "l": "m"}], "text": "t"},
        **{"raw": b"r", "former": "F", "kind": "Z", "sure": 9, "maybe": None},
    }
    values = [written(old, row), written(old, {**row, "kind": "X", "gone": []})]
    decoded = decode([*values, values[0][:-1]], old, new)
    assert decoded.codes.tolist() == [FINE, FINE, decoded.codes[2]]
    assert decoded.codes[2] > 0
    expected = {
        **{"kind": "Z", "a": -3, "b": 4.0, "c": 5.0, "d": 1.5, "text": b"t", "raw": "r"},
        **{"name": "F", "sure": 9, "added": ["p", "q"], "maybe": None, "deep": {"z": 7}},
        "no": None,
    }
    assert rows_of(decoded, new)[:2] == [expected, {**expected, "kind": "U"}]
    # fastavro leaves text and bytes as they were written, and fills no default inside a default.
    theirs = read_back(old, values[0], new)
    assert {**theirs, "text": b"t", "raw": "r", "deep": {"z": 7}} == expected


def test_bytes_read_as_text_must_be_text() -> None:
    old, new = record(field("x", "bytes")), record(field("x", "string"))
    assert decode([b"\x02\xff", b"\x02a"], old, new).codes.tolist() == [BAD_TEXT, FINE]


def test_a_null_that_the_reader_has_no_place_for_is_refused_before_it_is_read() -> None:
    old, new = record(field("x", ["null", "long"])), record(field("x", "long"))
    with pytest.raises(SchemaIncompatible, match="x: null is no longer allowed"):
        decode([b"\0"], old, new)


def test_a_symbol_that_the_reader_lacks_is_a_bad_record() -> None:
    old = record(field("x", {"type": "enum", "name": "K", "symbols": ["A", "B"]}))
    with pytest.raises(SchemaIncompatible, match="x: the enum lost B"):
        decode([b"\0"], old, record(field("x", {"type": "enum", "name": "K", "symbols": ["A"]})))


# ---------------------------------------------------------------- tables that do not fit


def encode(schema: Any, columns: dict[str, Any]) -> list[bytes]:
    program = avro_program.compiled(model(schema), model(schema))
    made: list[bytes] = avro_encode.encode(program, pa.table(columns)).to_pylist()
    return made


def test_a_null_where_there_is_none_names_field_and_row() -> None:
    with pytest.raises(SchemaError, match=r"x: row 1 is null") as caught:
        encode(record(field("x", "long")), {"x": [1, None]})
    assert caught.value.field == "x"


def test_a_null_list_and_a_null_item_are_refused() -> None:
    lists = {"type": "array", "items": "long"}
    with pytest.raises(SchemaError, match=r"x: row 1 is null"):
        encode(record(field("x", lists)), {"x": [[1], None]})
    with pytest.raises(SchemaError, match=r"x\[\]: row 0 is null"):
        encode(record(field("x", lists)), {"x": [[1, None]]})


def test_a_column_that_is_unknown_missing_or_of_another_type_is_named() -> None:
    schema = record(field("x", "int"), field("y", "string", default="why"))
    assert encode(schema, {"x": pa.array([1], pa.int64())}) == [b"\x02\x06why"]
    with pytest.raises(SchemaError, match="no column 'z'"):
        encode(schema, {"x": [1], "z": [1]})
    with pytest.raises(SchemaError, match="'x' is missing"):
        encode(schema, {"y": ["a"]})
    with pytest.raises(SchemaError, match="'x' must be int32"):
        encode(schema, {"x": [1 << 40]})


def test_a_value_that_is_no_symbol_is_named() -> None:
    schema = record(field("x", {"type": "enum", "name": "K", "symbols": ["A", "B"]}))
    assert encode(schema, {"x": ["B", "A"]}) == [b"\x02", b"\x00"]
    with pytest.raises(SchemaError, match="x: 'C' in row 1 is none of A, B"):
        encode(schema, {"x": ["B", "C"]})


def test_output_grows_for_rows_that_are_longer_than_their_columns() -> None:
    lists = {"type": "array", "items": "null"}
    schema = record(field("x", lists), field("y", {"type": "fixed", "name": "F", "size": 5000}))
    values = pa.array([[None] * 3] * 5, pa.list_(pa.null()))
    made = encode(schema, {"x": values, "y": pa.array([b"z" * 5000] * 5, pa.binary(5000))})
    assert made == [b"\x06\x00" + b"z" * 5000] * 5


def test_single_floats_keep_their_bits() -> None:
    schema = record(field("x", "float"), field("y", "double"))
    bits = struct.pack("<fd", float("nan"), -0.0)
    columns = decode([bits], schema).columns
    assert np.asarray(columns[0]).tobytes() + np.asarray(columns[1]).tobytes() == bits
