"""Which JSON Schemas follow which: keyword by keyword, as Confluent's registry judges."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.errors import SchemaError
from lamina.subjects.json_changes import Document, unreadable


def problems(reader: Any, writer: Any) -> list[str]:
    return unreadable(Document(reader, {}), Document(writer, {}))


def closed(*, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return open_(required=required, **properties) | {"additionalProperties": False}


def open_(*, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return made | ({"required": list(required)} if required else {})


NUMBER, WHOLE, TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string"}
SELF = {"type": "object", "properties": {"next": {"$ref": "#"}}}
FINE = [
    (WHOLE, WHOLE),
    (NUMBER, WHOLE),
    ({"type": ["integer", "string"]}, WHOLE),
    ({}, WHOLE),
    (True, WHOLE),
    (TEXT, False),
    ({"title": "anything", "$schema": "x"}, TEXT),
    (TEXT, {"type": "string", "maxLength": 5}),
    ({"type": "string", "maxLength": 6}, {"type": "string", "maxLength": 5}),
    ({"type": "string", "minLength": 1}, {"type": "string", "minLength": 2}),
    (TEXT, {"type": "string", "pattern": "a*"}),
    ({"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 4}),
    ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    ({"enum": ["a", "b"]}, {"const": "a"}),
    (closed(a=WHOLE, b=TEXT), closed(a=WHOLE)),
    (open_(a=WHOLE), open_(a=WHOLE, b=TEXT)),
    (open_(a=WHOLE), closed(a=WHOLE)),
    (open_(a=WHOLE, b={}), open_(a=WHOLE)),
    (open_(a=WHOLE), open_(a=WHOLE, required=("a",))),
    (closed(a=WHOLE | {"default": 1}, required=("a",)), closed(a=WHOLE)),
    ({"type": "array", "items": NUMBER}, {"type": "array", "items": WHOLE}),
    ({"type": "array"}, {"type": "array", "items": WHOLE, "maxItems": 3}),
    ({"oneOf": [WHOLE, TEXT]}, WHOLE),
    ({"oneOf": [WHOLE, TEXT]}, {"oneOf": [TEXT]}),
    ({"anyOf": [NUMBER, TEXT]}, {"oneOf": [TEXT, WHOLE]}),
    ({"allOf": [NUMBER]}, {"allOf": [WHOLE, {"minimum": 3}]}),
    (WHOLE, {"allOf": [WHOLE, {"minimum": 3}]}),
    (SELF, SELF),
    (SELF, {"$ref": "#/$defs/s", "$defs": {"s": {**SELF, "properties": {"next": {"$ref": "#"}}}}}),
    ({"not": TEXT}, {"not": TEXT}),
]
BROKEN = [
    (WHOLE, NUMBER),
    (WHOLE, TEXT),
    (WHOLE, {}),
    (False, WHOLE),
    (WHOLE, {"type": ["integer", "null"]}),
    ({"type": "string", "maxLength": 4}, {"type": "string", "maxLength": 5}),
    ({"type": "string", "maxLength": 4}, TEXT),
    ({"type": "string", "minLength": 3}, {"type": "string", "minLength": 2}),
    ({"type": "string", "pattern": "b*"}, {"type": "string", "pattern": "a*"}),
    ({"type": "number", "multipleOf": 3}, {"type": "number", "multipleOf": 4}),
    ({"type": "number", "maximum": "x"}, {"type": "number", "maximum": 4}),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    ({"enum": ["a"]}, TEXT),
    (closed(a=WHOLE), closed(a=WHOLE, b=TEXT)),
    (closed(a=WHOLE), open_(a=WHOLE)),
    (open_(a=WHOLE, b=TEXT), open_(a=WHOLE)),
    (open_(a=WHOLE, required=("a",)), open_(a=WHOLE)),
    (open_(a=TEXT), open_(a=WHOLE)),
    ({"type": "object", "additionalProperties": TEXT}, {"type": "object"}),
    ({"type": "array", "items": WHOLE}, {"type": "array"}),
    ({"type": "array", "items": WHOLE}, {"type": "array", "items": NUMBER}),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}),
    ({"oneOf": [TEXT]}, {"oneOf": [WHOLE, TEXT]}),
    (TEXT, {"anyOf": [WHOLE, TEXT]}),
    ({"allOf": [WHOLE, {"minimum": 3}]}, WHOLE),
    ({"not": TEXT}, {}),
    ({"not": TEXT}, {"not": WHOLE}),
    ({"type": "string", "if": {}}, TEXT),
]


@pytest.mark.parametrize(("reader", "writer"), FINE)
def test_what_accepts_all_that_was_allowed_may_follow(reader: Any, writer: Any) -> None:
    assert problems(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer"), BROKEN)
def test_what_refuses_something_that_was_allowed_may_not(reader: Any, writer: Any) -> None:
    assert problems(reader, writer)


def test_a_problem_names_its_place() -> None:
    (found,) = problems(open_(a=open_(b=TEXT)), open_(a=open_(b=WHOLE)))
    assert found == "a.b: integer was allowed"


def test_comparing_is_bounded() -> None:
    wide: Any = {"anyOf": [{"minimum": at} for at in range(400)]}
    other: Any = {"anyOf": [{"minimum": -1 - at} for at in range(400)]}
    with pytest.raises(SchemaError, match="too large"):
        problems(wide, other)
    deep: Any = True
    deeper: Any = True
    for _ in range(190):
        deep, deeper = {"items": deep, "minItems": 1}, {"items": deeper}
    with pytest.raises(SchemaError, match="too large"):
        problems(deep, deeper)


def test_references_in_a_circle_end() -> None:
    circle = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(SchemaError):
        problems(circle, WHOLE)
