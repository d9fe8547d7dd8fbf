"""Schemas from outside: whatever their text says, they are taken or refused by a SchemaError."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lamina.errors import LaminaError, SchemaError
from lamina.formats.typed import avro_program, avro_text, evolution
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.given_columns import default_scalar, plain_type
from lamina.formats.typed.schema_model import FIELDS_MAX, TEXT_MAX
from lamina.formats.typed.schema_source import schema_of
from lamina.subjects import languages
from lamina.subjects.entries import Schema


def avro(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields), **more})


def of_json(properties: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "object", "properties": properties, **more})


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10}
FIXED = {"type": "fixed", "name": "F", "size": 4}
INNER = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int", "default": "x"}]}


@pytest.mark.parametrize(
    ("encoding", "text", "told"),
    [
        ("json", of_json({"a": {"anyOf": 5}}), "lists of schemas"),
        ("json", of_json({"a": {"oneOf": None}}), "lists of schemas"),
        ("json", of_json({"a": {"type": "string"}}, required=5), "list of names"),
        ("json", of_json({"a": {"type": "string"}}, required=None), "list of names"),
        ("json", of_json({"a": {"type": {"x": 1}}}), "no column for type"),
        ("json", of_json({"a": {"type": [["x"], "null"]}}), "no column for type"),
        ("json", of_json({"\ud800": {"type": "string"}}), "half a character"),
        ("json", of_json({"a": {"type": "string", "default": "\ud800"}}), "half a character"),
        (
            "json",
            of_json({"a": {"type": "string", "default": 5}}),
            "^a: the default 5 is not of type",
        ),
        (
            "json",
            of_json({"a": {"type": "boolean", "default": 1}}),
            "^a: the default 1 is not of type",
        ),
        ("json", of_json({"a": {"type": "integer", "default": True}}), "^a: the default true"),
        ("json", of_json({"a": {"type": "integer", "default": 10**400}}), "^a: the default 100"),
        ("json", of_json({"a": {"type": "number", "default": float("inf")}}), "infinite"),
        (
            "json",
            of_json({"a": {"type": "string", "format": "date", "default": "once"}}),
            "^a: the default",
        ),
        ("avro", avro({"name": "a", "type": "long", "default": "x"}), "^a: the default 'x'"),
        ("avro", avro({"name": "a", "type": "double", "default": float("nan")}), "NaN or inf"),
        ("avro", avro({"name": "a", "type": FIXED, "default": "abc"}), "^a: the default"),
        ("avro", avro({"name": "a", "type": FIXED, "default": "\u1234bcd"}), "^a: the default"),
        ("avro", avro({"name": "a", "type": ENUM, "default": "C"}), "^a: the default"),
        ("avro", avro({"name": "a", "type": INNER}), "^a.x: the default 'x'"),
        ("avro", avro({"name": "a", "type": {**ENUM, "default": ["A"]}}), "not a symbol"),
        ("avro", avro({"name": "a", "type": {**ENUM, "default": "C"}}), "not a symbol"),
        ("avro", avro({"name": "a", "type": {**ENUM, "lamina.numbers": 5}}), "lamina.numbers"),
        ("avro", avro({"name": "a", "type": {**ENUM, "symbols": ["\ud800"]}}), "half a char"),
        ("avro", avro({"name": "a", "type": {**DECIMAL, "scale": 10**30}}), "scale is"),
        ("avro", avro({"name": "a", "type": {**DECIMAL, "scale": True}}), "precision and scale"),
        ("avro", avro({"name": "a", "type": {**FIXED, "size": True}}), "size in bytes"),
        ("avro", avro(namespace={"a": 1}), "not a namespace"),
    ],
)
def test_what_no_record_could_ever_be_read_by_is_refused(
    encoding: str, text: str, told: str
) -> None:
    with pytest.raises(SchemaError, match=told):
        schema_of(text, encoding)


def test_a_short_text_that_names_each_type_often_does_not_unfold_without_end() -> None:
    """Two hundred bytes a level, and eight times the types of the level below."""
    definitions: dict[str, Any] = {"d5": {"type": "integer"}}
    for level in range(5):
        below = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"properties": {f"x{at}": below for at in range(8)}}
    with pytest.raises(SchemaError, match="unfolds into more than"):
        schema_of(of_json({"a": {"$ref": "#/$defs/d0"}}, **{"$defs": definitions}), "json")


def test_a_default_of_another_type_is_refused() -> None:
    with pytest.raises(SchemaError, match="default 'x' is not of type long"):
        schema_of(avro({"name": "a", "type": "long", "default": "x"}), "avro")


def test_as_many_fields_as_there_may_be_are_taken() -> None:
    kind = schema_of(of_json({f"f{at}": {"type": "integer"} for at in range(FIELDS_MAX)}), "json")
    assert len(kind.fields) == FIELDS_MAX


def test_a_date_of_json_is_a_default() -> None:
    text = of_json(
        {
            "day": {"type": "string", "format": "date", "default": "2020-02-29"},
            "at": {"type": "string", "format": "date-time", "default": "2020-02-29T12:00:00Z"},
            "time": {"type": "string", "format": "time", "default": "12:00:00"},
        }
    )
    day, at, time = schema_of(text, "json").fields
    assert str(default_scalar(day, plain_type(day.type)).as_py()) == "2020-02-29"
    assert str(default_scalar(time, plain_type(time.type)).as_py()) == "12:00:00"
    assert default_scalar(at, plain_type(at.type)).as_py().isoformat() == (
        "2020-02-29T12:00:00+00:00"
    )


def test_a_class_whose_default_is_infinite_is_refused() -> None:
    @dataclasses.dataclass
    class Limit:
        most: float = float("inf")

    with pytest.raises(SchemaError, match="infinite"):
        schema_of(Limit, "avro")


WHOLE_AVRO = {
    "type": "record",
    "name": "a.R",
    "namespace": "q",
    "aliases": ["Z"],
    "fields": [
        {"name": "a", "type": "long", "default": 1, "aliases": ["b"]},
        {"name": "e", "type": {**ENUM, "default": "A", "lamina.numbers": [1, 2]}, "default": "A"},
        {"name": "f", "type": FIXED, "default": "abcd"},
        {"name": "d", "type": ["null", {**DECIMAL, "scale": 2}], "default": None},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "l", "type": {"type": "array", "items": {**INNER, "fields": []}}, "default": []},
        {"name": "m", "type": {"type": "map", "values": ["null", "double"]}, "default": {"k": 1}},
        {"name": "r", "type": "S", "default": {}, "lamina.number": 5, "lamina.wire": "sint32"},
    ],
}
WHOLE_JSON = {
    "type": "object",
    "required": ["a", "z"],
    "$defs": {"q": {"type": "object", "properties": {"i": {"type": "integer"}}}},
    "properties": {
        "a": {"type": "integer", "default": 3},
        "b": {"type": ["string", "null"], "default": "x"},
        "c": {"type": "string", "format": "date"},
        "d": {"type": "array", "items": {"type": "number"}, "default": [1]},
        "e": {"enum": ["a", "b", None]},
        "h": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "z": {"oneOf": [{"$ref": "#/$defs/q"}, {"type": "null"}]},
    },
}
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 2**63, 10**400, 1.5, float("nan"), float("inf")),
    *("", "x", "\ud800", "a\0b", "null", "int", "R", "S", ".", "x" * 3000),
    *([], {}, [None], ["x"], [1], {"x": 1}, {"type": "int"}, {"type": {}}, [[]], {"$ref": "#"}),
)


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield from places(document[key], (*path, key))


def spoiled(document: Any, luck: random.Random) -> Any:
    """Puts junk in some places of a schema."""
    for _ in range(luck.choice((1, 1, 2, 3))):
        path = luck.choice(list(places(document)))
        junk = luck.choice(JUNK)
        if not path:
            return junk
        document = json.loads(json.dumps(document))
        at = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = junk
    return document


def use(text: str, encoding: str) -> None:
    """Does with a schema what is done with one that a topic gets."""
    kind = schema_of(text, encoding)
    arrow_schema(kind).serialize()
    written = avro_text.text_of(kind)
    written.encode()
    assert avro_text.parse(written) == kind
    assert evolution.problems(kind, [kind], "FULL_TRANSITIVE") == []
    if encoding == "avro":
        avro_program.compiled(kind, kind)


def test_the_schemas_that_are_spoiled_are_whole() -> None:
    use(json.dumps(WHOLE_AVRO), "avro")
    use(json.dumps(WHOLE_JSON), "json")


@pytest.mark.parametrize(("encoding", "whole"), [("avro", WHOLE_AVRO), ("json", WHOLE_JSON)])
def test_junk_in_any_place_ends_in_a_typed_error_or_a_schema(encoding: str, whole: Any) -> None:
    luck = random.Random(18)
    texts = [json.dumps(spoiled(whole, luck)) for _ in range(800)]
    refused = 0
    for text in texts:
        try:
            use(text, encoding)
        except LaminaError:
            refused += 1
        except (AssertionError, Exception) as error:
            pytest.fail(f"{type(error).__name__}: {error}: {text[:2000]}")
    assert refused > 200, "junk was hardly ever noticed"


def test_a_default_that_was_kept_before_they_were_checked_costs_only_rows_that_lack_the_field() -> (
    None
):
    from lamina.formats.typed import json_decode
    from lamina.formats.typed.row_faults import FINE, MISSING_FIELD, Values

    kind = avro_text.parse(avro({"name": "a", "type": "long", "default": 10**400}))
    values = pa.array([b'{"a":1}', b"{}", b'{"a":2}'], pa.binary())
    decoded = json_decode.decode(kind, Values.of(values))
    assert decoded.codes.tolist() == [FINE, MISSING_FIELD, FINE]
    assert decoded.columns[0].to_pylist() == [1, None, 2]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("avro", '"' + '\\"' * (TEXT_MAX // 2 - 1)),
        ("json", '{"type": "' + '\\"' * (TEXT_MAX // 2 - 10)),
        ("protobuf", " " * (TEXT_MAX - 1) + "!"),
        ("protobuf", "A" + " " * (TEXT_MAX - 2) + "!"),
    ],
    ids=["text without an end", "the same in an object", "spaces", "a letter and spaces"],
)
def test_a_text_is_looked_at_once_and_not_again_from_each_of_its_places(
    encoding: str, text: str
) -> None:
    """By the square of its length each of them would take hours."""
    assert len(text) <= TEXT_MAX
    with pytest.raises(LaminaError):
        schema_of(text, encoding)
    with pytest.raises(LaminaError):
        languages.read(Schema(text, encoding.upper()), {})
