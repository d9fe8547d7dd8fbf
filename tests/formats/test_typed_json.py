"""JSON documents and columns: hostile ones between good ones, and every type there and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import SchemaError
from lamina.formats.typed import avro_text, json_decode, json_encode
from lamina.formats.typed.arrow_types import arrow_schema, from_schema
from lamina.formats.typed.row_faults import (
    BAD_DOCUMENT,
    BAD_SYMBOL,
    BAD_TEXT,
    FINE,
    MISSING_FIELD,
    NO_VALUE,
    Decoded,
    Values,
)
from lamina.formats.typed.schema_model import Type
from lamina.formats.typed.schema_source import schema_of
from tests.formats.typed_strategies import typed_rows


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def model(schema: Any) -> Type:
    return avro_text.parse(json.dumps(schema))


def decode(values: list[bytes | None], schema: Any) -> Decoded:
    decoded = json_decode.decode(model(schema), Values.of(pa.array(values, pa.binary())))
    for column in decoded.columns:
        column.validate(full=True)
    return decoded


def rows_of(decoded: Decoded, schema: Any) -> list[dict[str, Any]]:
    names = [field["name"] for field in schema["fields"]]
    return pa.RecordBatch.from_arrays(decoded.columns, names).to_pylist(maps_as_pydicts="strict")


FLAT = record(field("a", "long"), field("b", ["null", "string"]))


def test_documents_become_columns_whatever_their_layout() -> None:
    values = [
        b'{"a": 1, "b": "x"}',
        b'\n{\r\n\t"b" : "\\u00e7 \\n \\" }{" ,\n "other": [{"a": [1, "]"]}], "a":2 }\n',
        b'{"a":3}',
        None,
    ]
    decoded = decode(values, FLAT)
    assert decoded.codes.tolist() == [FINE, FINE, FINE, NO_VALUE]
    assert rows_of(decoded, FLAT) == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": 'ç \n " }{'},
        {"a": 3, "b": None},
        {"a": None, "b": None},
    ]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", BAD_DOCUMENT),
        (b"   ", BAD_DOCUMENT),
        (b"null", BAD_DOCUMENT),
        (b"[1]", BAD_DOCUMENT),
        (b'"a"', BAD_DOCUMENT),
        (b'{"a":1}{"a":2}', BAD_DOCUMENT),
        (b'{"a":1}\n{"a":2}', BAD_DOCUMENT),
        (b'{"a":1} x', BAD_DOCUMENT),
        (b'{"a":1', BAD_DOCUMENT),
        (b'{"a":1}}', BAD_DOCUMENT),
        (b'{"a":1]', BAD_DOCUMENT),
        (b'{"a":1,}', BAD_DOCUMENT),
        (b'{"a":"1"}', BAD_DOCUMENT),
        (b'{"a":1.5}', BAD_DOCUMENT),
        (b'{"a":9223372036854775808}', BAD_DOCUMENT),
        (b'{"a":1,"a":2}', BAD_DOCUMENT),
        (b'{"a":1,"b":"x\ny"}', BAD_DOCUMENT),
        (b'{"a":1,"b":"\\ud800"}', BAD_DOCUMENT),
        (b'{"a":1,"b":"\xff"}', BAD_TEXT),
        (b'{"a":1,"b":"x', BAD_DOCUMENT),
        (b'{"a":1,"b":"x\\', BAD_DOCUMENT),
        (b'{"a":null}', MISSING_FIELD),
        (b'{"b":"x"}', MISSING_FIELD),
        (b"{}", MISSING_FIELD),
        (b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}", BAD_DOCUMENT),
        (b'{"z":' * 70 + b"1" + b"}" * 70, BAD_DOCUMENT),
    ],
)
def test_a_bad_document_is_null_between_good_ones(value: bytes, code: int) -> None:
    good = b'{"a":7,"b":"y"}'
    decoded = decode([good, value, good, value, value, good], FLAT)
    assert decoded.codes.tolist() == [FINE, code, FINE, code, code, FINE]
    assert decoded.columns[0].to_pylist() == [7, None, 7, None, None, 7]
    assert decoded.columns[1].to_pylist() == ["y", None, "y", None, None, "y"]


def test_a_fault_names_its_field() -> None:
    decoded = decode([b'{"a":"x"}', b"{}"], FLAT)
    assert decoded.fault(0) == "a: a value that does not fit; expected long"
    assert decoded.fault(1) == "a: no value for a field that must have one; expected long"


def test_every_prefix_of_a_document_is_bad() -> None:
    whole = b'{"a": 12, "b": "x\\"y", "c": [1, {"d": null}]}'
    decoded = decode([whole[:length] for length in range(len(whole))] + [whole], FLAT)
    assert (decoded.codes[:-1] > 0).all()
    assert decoded.codes[-1] == FINE


def test_every_changed_byte_is_read_as_python_reads_it_or_is_bad() -> None:
    whole = b'{"a": 12, "b": "xy", "c": [1, {"d": null}]}'
    values = []
    for position in range(len(whole)):
        for change in (0x01, 0x80, 0x20, 0x7F):
            changed = bytearray(whole)
            changed[position] ^= change
            values.append(bytes(changed))
    decoded = decode(values, FLAT)
    for value, code, row in zip(values, decoded.codes, rows_of(decoded, FLAT), strict=True):
        if code == FINE:
            theirs = json.loads(value)
            assert row == {"a": theirs["a"], "b": theirs.get("b")}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=20) | st.sampled_from([b'{"a":1}', b'{"a":1,"b":"x"}'])))
def test_garbage_never_moves_a_row(values: list[bytes]) -> None:
    decoded = decode(list(values), FLAT)
    for value, code, found in zip(values, decoded.codes, rows_of(decoded, FLAT), strict=True):
        if value in (b'{"a":1}', b'{"a":1,"b":"x"}'):
            assert (code, found["a"]) == (FINE, 1)
        elif code != FINE:
            assert found == {"a": None, "b": None}


def test_defaults_aliases_and_nested_fields_that_must_be_there() -> None:
    schema = record(
        field("n", "int", default=5),
        field("name", "string", aliases=["former", "older"]),
        field("deep", record(field("x", "long"), field("y", "string", default="why"))
              | {"name": "D"}),
        field("many", {"type": "array", "items": "long"}, default=[]),
        field("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}, default="B"),
    )  # fmt: skip
    good = b'{"former":"f","deep":{"x":1},"kind":"A"}'
    values = [
        good,
        b'{"older":"o","name":"n","n":1,"deep":{"x":2,"y":"z"},"many":[1,2]}',
        b'{"name":"n","deep":{"y":"z"}}',
        b'{"name":"n","deep":{"x":1},"many":[1,null]}',
        b'{"name":"n","deep":{"x":1},"kind":"C"}',
        good,
    ]
    decoded = decode(list(values), schema)
    bad = MISSING_FIELD
    assert decoded.codes.tolist() == [FINE, FINE, bad, bad, BAD_SYMBOL, FINE]
    assert [decoded.fault(row).partition(":")[0] for row in (2, 3, 4)] == [
        *("deep.x", "many[]", "kind")
    ]
    first = {"n": 5, "name": "f", "deep": {"x": 1, "y": "why"}, "many": [], "kind": "A"}
    assert rows_of(decoded, schema)[0] == first
    assert rows_of(decoded, schema)[1] == {
        **{"n": 1, "name": "n", "deep": {"x": 2, "y": "z"}, "many": [1, 2], "kind": "B"},
    }


def test_maps_go_the_slow_way_and_are_as_strict() -> None:
    schema = record(field("m", {"type": "map", "values": ["null", "long"]}), field("a", "long"))
    values = [
        b'{"m":{"x":1,"y":null},"a":1}',
        b'{"m":{},"a":2}',
        b'{"m":[1],"a":3}',
        b'{"m":{"x":"1"},"a":4}',
        b'{"m":{"x":1,"x":2},"a":5}',
        b'{"a":6}',
    ]
    decoded = decode(list(values), schema)
    assert decoded.codes.tolist() == [
        *[FINE, FINE, BAD_DOCUMENT, BAD_DOCUMENT, BAD_DOCUMENT, MISSING_FIELD]
    ]
    assert rows_of(decoded, schema)[:2] == [
        *[{"m": {"x": 1, "y": None}, "a": 1}, {"m": {}, "a": 2}]
    ]


def test_a_decimal_keeps_its_digits_and_has_no_more_than_it_may() -> None:
    number = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}
    plain = record(field("d", number))
    mapped = record(field("d", number), field("m", {"type": "map", "values": number}, default={}))
    values = [b'{"d":26213023705161785.536}', b'{"d":"1.5"}', b'{"d":100000000000000000.000}']
    for schema in (plain, mapped):
        decoded = decode(list(values), schema)
        assert decoded.codes.tolist() == [FINE, FINE, BAD_DOCUMENT]
        assert [str(each) for each in decoded.columns[0]][:2] == ["26213023705161785.536", "1.500"]
    (found,) = decode([b'{"d":1,"m":{"x":26213023705161785.536}}'], mapped).columns[1].to_pylist()
    assert str(found[0][1]) == "26213023705161785.536"


def test_times_are_text_and_a_bad_one_is_named() -> None:
    schema = record(
        field("at", ["null", {"type": "long", "logicalType": "time-micros"}]),
        field("ms", {"type": "int", "logicalType": "time-millis"}, default=0),
        field("day", ["null", {"type": "int", "logicalType": "date"}]),
        field("then", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    )
    texts = ["00:00:00", "23:59:59.999999", "10:00", "10:00:00Z", "01:30:00.5+02:00"]
    bad = ["24:00:00", "10", "10:60:00", "23:59:60", "10:00:00.1234567", "", "x"]
    values = [json.dumps({"at": text}).encode() for text in (*texts, *bad)]
    decoded = decode([b"{}", b'{"ms":"00:00:01.5"}', *values, b'{"ms":"00:00:00.0001"}'], schema)
    assert decoded.codes.tolist() == [FINE] * 7 + [BAD_DOCUMENT] * 8
    found = decoded.columns[0].cast(pa.int64()).to_pylist()[:7]
    hour = 3_600_000_000
    assert found == [
        None,
        None,
        0,
        24 * hour - 1,
        *[10 * hour] * 2,
        23 * hour + hour // 2 + 500_000,
    ]
    assert decoded.columns[1].cast(pa.int32()).to_pylist()[:3] == [0, 1500, 0]
    assert {decoded.fault(row) for row in range(7, 14)} == {
        "at: a value that does not fit; expected time-micros or null"
    }
    assert decoded.fault(14) == "ms: a value that does not fit; expected time-millis"
    wrong = [b'{"day":"2020-02-30"}', b'{"then":"2020-02-30T00:00:00Z","day":"2020-01-01"}']
    assert [decode([each], schema).fault(0).partition(":")[0] for each in wrong] == ["day", "then"]


# ---------------------------------------------------------------- writing


@settings(max_examples=120, deadline=None)
@given(typed_rows(in_json=True))
def test_every_row_comes_back_from_its_document(drawn: Any) -> None:
    schema, rows = drawn
    kind = model(schema)
    table = pa.Table.from_pylist(rows, schema=arrow_schema(kind))
    doubled = pa.concat_tables([table, table]).slice(1 if rows else 0, len(rows))
    for given_table in (table, doubled):
        values = json_encode.encode(json_encode.template(kind), given_table).to_pylist()
        assert all(isinstance(json.loads(value), dict) for value in values)
        decoded = decode(values, schema)
        assert decoded.codes.tolist() == [FINE] * len(values)
        expected = given_table.to_pylist(maps_as_pydicts="strict")
        assert rows_of(decoded, schema) == expected


def test_documents_are_what_everybody_else_would_write() -> None:
    schema = record(
        field("id", "long"),
        field("t", "string"),
        field("at", {"type": "long", "logicalType": "timestamp-millis"}),
        field("l", {"type": "array", "items": ["null", "double"]}),
        field("m", {"type": "map", "values": "boolean"}),
        field("o", ["null", record(field("d", {"type": "int", "logicalType": "date"}))
                    | {"name": "O"}]),
    )  # fmt: skip
    table = pa.Table.from_pylist(
        [
            {"id": 1, "t": 'a"\\\n\x01é', "at": 1, "l": [1.5, None], "m": {"k": True}, "o": None},
            {"id": -1, "t": "", "at": 0, "l": [], "m": {}, "o": {"d": 0}},
        ],
        schema=arrow_schema(model(schema)),
    )
    values = json_encode.encode(json_encode.template(model(schema)), table, b"\0").to_pylist()
    assert [json.loads(value[1:]) for value in values] == [
        {
            **{"id": 1, "t": 'a"\\\n\x01é', "at": "1970-01-01T00:00:00.001Z", "l": [1.5, None]},
            **{"m": {"k": True}, "o": None},
        },
        {
            **{"id": -1, "t": "", "at": "1970-01-01T00:00:00.000Z", "l": [], "m": {}},
            "o": {"d": "1970-01-01"},
        },
    ]


DAY_US = 86_400_000_000
DAYS = -719_528, 2_932_896


@pytest.mark.parametrize(
    ("kind", "fine", "wrong"),
    [
        (pa.date32(), DAYS, [DAYS[0] - 1, DAYS[1] + 1, -(1 << 31)]),
        (pa.time64("us"), [0, DAY_US - 1], [-1, DAY_US]),
        (pa.time32("ms"), [0, DAY_US // 1000 - 1], [-1, DAY_US // 1000]),
        (
            pa.timestamp("us", "UTC"),
            [DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1],
            [DAYS[0] * DAY_US - 1, (DAYS[1] + 1) * DAY_US, 1 << 62],
        ),
        (pa.timestamp("ms"), [DAYS[0] * DAY_US // 1000], [(DAYS[1] + 1) * DAY_US // 1000]),
        (pa.timestamp("ns"), [-106_751 * DAY_US * 1000, (1 << 63) - 2], [-(1 << 63) + 1]),
    ],
)
def test_a_time_that_no_reader_would_know_is_not_written(
    kind: pa.DataType, fine: Sequence[int], wrong: Sequence[int]
) -> None:
    schema = from_schema(pa.schema([("x", kind)]))
    program = json_encode.template(schema)
    written = pa.table({"x": pa.array([None, *fine], kind)})
    values = Values.of(json_encode.encode(program, written))
    decoded = json_decode.decode(schema, values)
    assert decoded.codes.tolist() == [FINE] * (1 + len(fine))
    assert decoded.columns[0].equals(written["x"].combine_chunks())
    for number in wrong:
        with pytest.raises(SchemaError, match="x: JSON has no such time"):
            json_encode.encode(program, pa.table({"x": pa.array([number], kind)}))


def test_what_json_cannot_say_is_refused_by_name() -> None:
    schema = model(record(field("x", "double"), field("y", "long", default=0)))
    with pytest.raises(SchemaError, match="x: JSON has no infinite"):
        json_encode.encode(json_encode.template(schema), pa.table({"x": [float("nan")]}))
    with pytest.raises(SchemaError, match="x: row 1 is null"):
        json_encode.encode(json_encode.template(schema), pa.table({"x": [1.0, None]}))
    with pytest.raises(SchemaError, match="x: JSON has no bytes"):
        schema_of(pa.schema([("x", pa.binary())]), "json")
