"""Schemas from whatever a user has, and which of them may follow which."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
from typing import Any

import pyarrow as pa
import pydantic
import pytest

from lamina.errors import InvalidRequest, SchemaError
from lamina.formats.typed import avro_text, evolution
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.schema_model import FIELDS_MAX, TEXT_MAX
from lamina.formats.typed.schema_source import next_version, schema_of


def avro(*fields: Any, name: str = "R") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Address:
    city: str
    lat: float | None = None


@dataclasses.dataclass
class Order:
    id: int
    at: datetime.datetime
    price: decimal.Decimal
    lines: list[Address]
    extra: dict[str, int | None]
    colour: Colour = Colour.RED
    note: str | None = None
    ok: bool = True


class Model(pydantic.BaseModel):
    id: int
    address: Address
    day: datetime.date
    name: str = "x"
    raw: bytes | None = None


EXPECTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("price", pa.decimal128(38, 9), nullable=False),
        pa.field(
            "lines",
            pa.list_(
                pa.field(
                    "item",
                    pa.struct(
                        [pa.field("city", pa.string(), nullable=False), ("lat", pa.float64())]
                    ),
                    nullable=False,
                )
            ),
            nullable=False,
        ),
        pa.field("extra", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("colour", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("note", pa.string()),
        pa.field("ok", pa.bool_(), nullable=False),
    ]
)


def test_a_dataclass_becomes_the_columns_of_its_annotations() -> None:
    made = schema_of(Order, "avro")
    assert arrow_schema(made) == EXPECTED
    assert {each.name: each.default for each in made.fields}["colour"] == '"RED"'
    assert {each.name: each.default for each in made.fields}["note"] == "null"
    assert avro_text.parse(avro_text.text_of(made)) == made


def test_a_pydantic_model_becomes_the_columns_of_its_annotations() -> None:
    made = schema_of(Model, "avro")
    assert [(each.name, each.nullable) for each in arrow_schema(made)] == [
        *[("id", False), ("address", False), ("day", False), ("name", False), ("raw", True)]
    ]
    assert [each.default for each in made.fields] == [None, None, None, '"x"', "null"]


def test_json_schema_becomes_columns() -> None:
    text = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["id", "at"],
        "properties": {
            "id": {"type": "integer", "minimum": 0},
            "at": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {"$ref": "#/$defs/place"},
            "more": {"type": "object", "additionalProperties": {"type": "number"}},
            "state": {"enum": ["a", "b", None]},
            "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "level": {"type": "integer", "default": 3},
        },
        "$defs": {"place": {"properties": {"city": {"type": ["string", "null"]}}}},
    }
    columns = arrow_schema(schema_of(json.dumps(text), "json"))
    assert columns.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert columns.field("at").type == pa.timestamp("us", tz="UTC")
    assert columns.field("where").type == pa.struct([("city", pa.string())])
    assert columns.field("more").type == pa.map_(
        pa.string(), pa.field("value", pa.float64(), nullable=False)
    )
    assert columns.field("state") == pa.field("state", pa.string())
    assert columns.field("price").nullable
    assert not columns.field("level").nullable


def test_narrow_and_large_types_of_arrow_become_plain_ones() -> None:
    given = pa.schema([("a", pa.int8()), ("b", pa.large_string()), ("c", pa.timestamp("s"))])
    assert arrow_schema(schema_of(given, "avro")).types == [
        *[pa.int32(), pa.string(), pa.timestamp("ms")]
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (avro(field("a", ["string", "int"])), "a: a union of string, int has no column"),
        (avro(field("a", ["null", "R"])), "a: R contains itself"),
        (avro(field("a", "long"), field("a", "int")), "two fields are named 'a'"),
        (avro(field("a", "nothing")), "a: unknown type 'nothing'"),
        (avro(field("a", {"type": "fixed", "name": "F", "size": -1})), "F: a fixed has a size"),
        ('"long"', "a topic's schema is a record"),
        ("{", "not JSON"),
        ("[" * 1000, "deep"),
        ("{" + " " * TEXT_MAX, "characters"),
        (avro(*[field(f"f{n}", "int") for n in range(FIELDS_MAX + 1)]), "at most 4096 fields"),
        (pa.schema([("a b", pa.int64())]), "a b: avro has no such name"),
        (pa.schema([("a", pa.month_day_nano_interval())]), "a: a column of month_day"),
        (pa.schema([("a", pa.uint64())]), "a: avro has no unsigned"),
        (pa.schema([("a", pa.map_(pa.int32(), pa.int32()))]), "keys of text"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "another text"),
        (
            '{"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}',
            "contains itself",
        ),
        (7, "not a int"),
    ],
)
def test_a_schema_without_columns_is_refused_and_says_where(given: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told.replace("[", r"\[")):
        schema_of(given, "avro")


def test_a_class_that_contains_itself_is_refused() -> None:
    @dataclasses.dataclass
    class Tree:
        child: Any

    Tree.__annotations__["child"] = Tree
    with pytest.raises(SchemaError, match="contains itself"):
        schema_of(Tree, "avro")


def test_the_fingerprint_is_that_of_what_a_schema_says() -> None:
    text = avro(field("a", "int"))
    spaced = json.dumps(json.loads(text), indent=3)
    assert avro_text.fingerprint(avro_text.parse(text)) == avro_text.fingerprint(
        avro_text.parse(spaced)
    )
    other = avro_text.parse(avro(field("a", "long")))
    assert avro_text.fingerprint(other) != avro_text.fingerprint(avro_text.parse(text))


def test_a_name_is_looked_for_in_its_own_space_first() -> None:
    """As Avro says; and a name of no space, below one that has a space, stays what it is."""

    def place(name: str, kind: str, **more: str) -> Any:
        return {"type": "record", "name": name, **more, "fields": [field("z", kind)]}

    inner = avro(
        field("own", place("X", "string")),
        field("again", "X"),
        field("none", place("Y", "bytes", namespace="")),
        field("other", place("Y", "double")),
        name="ns.Inner",
    )
    made = avro_text.parse(avro(field("outer", place("X", "int")), field("in", json.loads(inner))))
    outer, inside = (each.type for each in made.fields)
    assert [outer.name, *(each.type.name for each in inside.fields)] == [
        *("X", "ns.X", "ns.X", "Y", "ns.Y")
    ]
    kinds = [each.type.fields[0].type.kind.value for each in inside.fields]
    assert kinds == ["string", "string", "bytes", "double"]
    assert avro_text.parse(avro_text.text_of(made)) == made


# ---------------------------------------------------------------- compatibility

OLD = avro(field("a", "int"), field("b", "string"))
ADDED = avro(field("a", "int"), field("b", "string"), field("c", "int", default=1))
NEEDED = avro(field("a", "int"), field("b", "string"), field("c", "int"))
DROPPED = avro(field("a", "int"))
WIDER = avro(field("a", "long"), field("b", "string"))


@pytest.mark.parametrize(
    ("new", "level", "path"),
    [
        (ADDED, "BACKWARD", None),
        (ADDED, "FORWARD", None),
        (ADDED, "FULL", None),
        (NEEDED, "BACKWARD", "c"),
        (NEEDED, "FORWARD", None),
        (NEEDED, "FULL", "c"),
        (NEEDED, "NONE", None),
        (DROPPED, "BACKWARD", None),
        (DROPPED, "FORWARD", "b"),
        (WIDER, "BACKWARD", None),
        (WIDER, "FORWARD", "a"),
        (avro(field("a", ["null", "int"]), field("b", "string")), "BACKWARD", None),
        (avro(field("x", "int", aliases=["a"]), field("b", "bytes")), "BACKWARD", None),
    ],
)
def test_each_level_asks_its_question(new: str, level: str, path: str | None) -> None:
    found = evolution.problems(avro_text.parse(new), [avro_text.parse(OLD)], level)
    assert [each.partition(":")[0] for each in found] == ([] if path is None else [path])


def test_only_a_transitive_level_looks_at_every_version() -> None:
    former = [avro_text.parse(each) for each in (NEEDED, DROPPED)]
    new = avro_text.parse(avro(field("a", "int"), field("c", "string", default="")))
    assert evolution.problems(new, former, "BACKWARD") == []
    assert evolution.problems(new, former, "BACKWARD_TRANSITIVE") == [
        "c: int cannot be read as string"
    ]


def test_unions_and_recursive_types_can_be_compared_without_columns() -> None:
    def tree(kind: str) -> Any:
        return avro_text.parse(avro(field("v", kind), field("next", ["null", "R"])))

    assert evolution.unreadable(tree("long"), tree("int")) == []
    assert evolution.unreadable(tree("int"), tree("long")) == ["v: long cannot be read as int"]
    union = avro_text.parse(avro(field("v", ["string", "int", "null"])))
    assert evolution.unreadable(union, avro_text.parse(avro(field("v", "int")))) == []
    assert evolution.unreadable(avro_text.parse(avro(field("v", "string"))), union) != []


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="BACKWARD_TRANSITIVE"):
        evolution.checked_level("SIDEWAYS")


class State(enum.Enum):
    OPEN = 1


@dataclasses.dataclass
class Sale:
    state: State
    states: list[State]


def test_names_that_a_class_gave_its_fields_match_those_of_other_producers() -> None:
    def sale(first: str, second: str) -> Any:
        def kind(name: str) -> dict[str, Any]:
            return {"type": "enum", "name": name, "symbols": ["OPEN"]}

        states = {"type": "array", "items": kind(second)}
        return avro_text.parse(
            avro(field("state", kind(first)), field("states", states), name="Sale")
        )

    ours = schema_of(Sale, "avro")
    theirs = sale("State", "Other")
    assert evolution.unreadable(ours, theirs, by_names=True) == []
    assert evolution.unreadable(theirs, ours, by_names=True) == []
    assert evolution.unreadable(theirs, sale("State", "Third"), by_names=True) != []


def test_a_schema_whose_text_would_name_another_type_is_refused() -> None:
    text = """
        syntax = "proto3";
        message Bar {
          .Foo top = 1;
          message Foo { int32 x = 1; }
          Foo inner = 2;
          message Baz { .Foo other = 1; }
          Baz baz = 3;
        }
        message Foo { string s = 1; }
    """
    with pytest.raises(SchemaError, match="go by one name"):
        next_version(schema_of(text, "protobuf"), "protobuf", ())
