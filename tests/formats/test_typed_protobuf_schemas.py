"""Protobuf's schemas: texts and descriptors, numbers that last, and who reads whom.

`google.protobuf` judges descriptors.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import itertools
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from lamina.errors import SchemaError
from lamina.formats.typed import (
    avro_text,
    protobuf_descriptor,
    protobuf_file,
    protobuf_numbers,
    protobuf_rules,
    protobuf_schema,
)
from lamina.formats.typed.arrow_types import arrow_schema, from_schema
from lamina.formats.typed.declared_classes import from_class
from lamina.formats.typed.schema_model import TEXT_MAX, Type, refuse_columnless
from lamina.formats.typed.schema_source import from_text, language_of

ORDER = """
syntax = "proto3";  // the usual head
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
option java_package = "com.shop";
/* an order */
message Order {
  option deprecated = true;
  int64 id = 1;
  optional string note = 2 [deprecated = true, (custom).rule = { a: 1 }];
  repeated Line lines = 3;
  map<string, sint32> counts = 4;
  map<int64, Line> more = 14;
  oneof kind { string a = 5; Line b = 6; }
  google.protobuf.Timestamp at = 7;
  .google.protobuf.Int64Value big = 8;
  State state = 9;
  repeated sint64 deltas = 10 [packed = false];
  message Line {
    string sku = 1;
    uint32 count = 2;
    Inner.Deep deep = 3;
    message Inner { message Deep { fixed64 x = 0x1; } }
  }
  enum State { NEW = 0; PAID = 5; reserved 2; }
  reserved 11, 12 to 13, 1000 to max;
  reserved "former", "older";
}
service Orders { rpc Get(Order) returns (Order) { option x = 1; } }
"""
OLD = r"""
syntax = "proto2";
message Old {
  required int32 id = 1;
  optional string name = 2 [default = "a\"\101\n"];
  optional bytes raw = 3 [default = "\x00\377"];
  optional double ratio = 4 [default = -1.5e3];
  optional bool on = 5 [default = true];
  optional Level level = 6 [default = HIGH];
  repeated int32 plain = 7;
  repeated int32 packed = 8 [packed = true];
  optional sint64 low = 9 [default = -9223372036854775808];
  optional float huge = 10 [default = inf];
  extensions 100 to 199;
  enum Level { LOW = 1; HIGH = 2; TOP = 2; option allow_alias = true; }
  extend Old { optional int32 more = 100; }
}
"""


def canonical(text: str) -> str:
    file = protobuf_schema.parse_file(text)
    return protobuf_file.text_of(file, protobuf_schema.imported(file, {}))


def descriptor(text: str) -> descriptor_pb2.FileDescriptorProto:
    """A text as Google's library has it, by our descriptor, built in a pool of its own."""
    file = protobuf_schema.parse_file(text)
    others = protobuf_schema.imported(file, {})
    raw = protobuf_descriptor.descriptor_of(file, "given.proto", others)
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(raw))
    made = descriptor_pb2.FileDescriptorProto()
    pool.FindFileByName("given.proto").CopyToProto(made)
    return made


@pytest.mark.parametrize("text", [ORDER, OLD])
def test_a_text_and_its_descriptor_are_one_schema(text: str) -> None:
    told = canonical(text)
    assert canonical(told) == told
    raw = base64.b64encode(descriptor(text).SerializeToString()).decode()
    assert canonical(raw) == told
    assert language_of(raw) == language_of(text) == "protobuf"
    assert from_text(raw, "protobuf") == from_text(text, "protobuf")


@pytest.mark.parametrize("text", [ORDER, OLD])
def test_a_schema_is_kept_as_it_is(text: str) -> None:
    kind = protobuf_schema.parse(text)
    assert avro_text.parse(avro_text.text_of(kind)) == kind
    assert protobuf_numbers.numbered(kind, []) == kind
    file = protobuf_numbers.file_of(kind)
    again = protobuf_file.text_of(file, protobuf_schema.imported(file, {}))
    other = protobuf_schema.parse(again)
    assert protobuf_rules.unreadable(kind, other) == protobuf_rules.unreadable(other, kind) == []
    assert arrow_schema(other) == arrow_schema(kind)


def test_columns_have_the_presence_that_generated_code_shows() -> None:
    schema = arrow_schema(protobuf_schema.parse(ORDER))
    assert schema.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert schema.field("note") == pa.field("note", pa.string())
    assert schema.field("at").type == pa.timestamp("ns", tz="UTC")
    assert schema.field("big") == pa.field("big", pa.int64())
    assert schema.field("more").type.key_type == pa.int64()
    assert not schema.field("lines").nullable
    assert schema.field("a").nullable
    assert schema.field("b").nullable
    old = protobuf_schema.parse(OLD)
    defaults = {field.name: field.default for field in old.fields}
    assert defaults["id"] is None
    assert defaults["name"] == '"a\\"A\\n"'
    assert defaults["raw"] == '"\\u0000\\u00ff"'
    assert defaults["level"] == '"HIGH"'
    assert [field.type.is_nullable for field in old.fields] == [False] * 10


def test_messages_know_where_they_are_declared() -> None:
    found = protobuf_schema.messages(protobuf_schema.parse_file(ORDER))
    indexes = {name: kind.indexes for name, kind in found.items()}
    # Entries of maps count: they are declared in front of Line, as protoc does it.
    assert indexes == {
        "shop.Order": (),
        "shop.Order.Line": (0, 2),
        "shop.Order.Line.Inner": (0, 2, 0),
        "shop.Order.Line.Inner.Deep": (0, 2, 0, 0),
    }
    assert protobuf_schema.parse(ORDER, "shop.Order.Line").indexes == (0, 2)
    nested = [each.name for each in descriptor(ORDER).message_type[0].nested_type]
    assert nested.index("Line") == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('import "other.proto"; message A {}', "import 'other.proto' is not known"),
        ("message A { Missing x = 1; }", "A.x: there is no type 'Missing'"),
        ("message A { int32 x = 1; int32 y = 1; }", "A.y: number 1 is that of x"),
        ("message A { reserved 1 to 3; int32 x = 2; }", "A.x: its number or its name is reserved"),
        ("message A { optional group G = 1 { } }", "line 1: groups have no columns"),
        ('edition = "2023"; message A {}', "editions are not understood"),
        (
            'syntax = "proto3";\nmessage A { required int32 x = 1; }',
            "line 2: proto3 has no required",
        ),
        ("message A { int32 x = 19500; }", "19500 is not a field number"),
        ("message A { map<double, int32> x = 1; }", "no keys of double"),
        ("message A { int32 x = 1", "the text ends"),
        ("message A { ? }", "line 1: '[?] }' is not part"),
        ("message A { enum E { } }", "A.E: an enum has symbols"),
        ("message A {} message A {}", "A is defined twice"),
        ("enum E { A = 0; }", "no message"),
        ("message A {" * 40 + "}" * 40, "more than 32 deep"),
        (" " * (TEXT_MAX + 1), "characters"),
        ("AAAA", "FileDescriptorProto"),
        ("EgH/", "not UTF-8"),
        (
            "".join(f"message A{n} {{ optional A{n + 1} x = 1; }} " for n in range(40))
            + "message A40 {}",
            "more than 32 deep",
        ),
        (
            "message A {" + "".join(f"optional int32 f{n} = {n + 1};" for n in range(4097)) + "}",
            "at most 4096",
        ),
    ],
)
def test_what_is_no_schema_is_refused_and_says_where(text: str, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        protobuf_schema.parse(text)


def test_a_message_that_contains_itself_can_be_compared_and_has_no_columns() -> None:
    text = "message A { optional B b = 1; } message B { optional A a = 1; optional int32 n = 2; }"
    kind = protobuf_schema.parse(text)
    with pytest.raises(SchemaError, match=r"b\.a: A contains itself"):
        refuse_columnless(kind)
    other = protobuf_schema.parse(text.replace("optional int32", "optional string"))
    assert protobuf_rules.unreadable(kind, other) == ["b.n: string cannot be read as int32"]
    struct = 'import "google/protobuf/struct.proto";'
    with pytest.raises(SchemaError, match="contains itself"):
        refuse_columnless(
            protobuf_schema.parse(f"{struct} message A {{ optional google.protobuf.Value v = 1; }}")
        )


def test_files_that_are_given_may_be_imported() -> None:
    other = 'syntax = "proto3"; package b; message B { C c = 1; } message C { int32 n = 1; }'
    text = 'syntax = "proto3"; package a; import "b.proto"; message A { b.B b = 1; }'
    kind = protobuf_schema.parse(text, imports={"b.proto": other})
    assert str(arrow_schema(kind).field("b").type) == "struct<c: struct<n: int32 not null>>"


# ---------------------------------------------------------------------- numbers


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass
class Part:
    size: int
    tags: list[str]


@dataclasses.dataclass
class Thing:
    id: int
    name: str
    colour: Colour
    parts: list[Part]
    spare: Part | None
    when: datetime.datetime
    took: datetime.timedelta | None
    weights: dict[int, float]
    count: int = 5


def numbers(kind: Type) -> dict[str, int]:
    return {field.name: field.number for field in kind.fields}


def test_numbers_stay_those_of_their_fields_and_are_never_given_twice() -> None:
    first = protobuf_numbers.numbered(from_class(Thing), [])
    assert list(numbers(first).values()) == list(range(1, 10))
    fewer = pa.schema(
        [pa.field("count", pa.int64()), ("new", pa.string()), ("parts", pa.list_(pa.struct([])))]
    )
    second = protobuf_numbers.numbered(from_schema(fewer), [first])
    assert numbers(second) == {"count": 9, "new": 10, "parts": 4}
    third = protobuf_numbers.numbered(from_schema(pa.schema([("id", pa.int64())])), [first, second])
    assert numbers(third) == {"id": 1}
    more = pa.schema(
        [("id", pa.int64()), ("later", pa.int64()), ("spare", pa.struct([("size", pa.int64())]))]
    )
    fourth = protobuf_numbers.numbered(from_schema(more), [first, second, third])
    assert numbers(fourth) == {"id": 1, "later": 11, "spare": 5}
    assert numbers(fourth.fields[2].type) == {"size": 1}


def test_a_word_stays_while_the_column_is_the_same() -> None:
    text = (
        'syntax = "proto3"; message A { sint32 a = 3; fixed64 b = 5; map<sint64, sfixed32> c = 7; }'
    )
    first = protobuf_schema.parse(text)
    again = protobuf_numbers.numbered(from_schema(arrow_schema(first)), [first])
    assert [(each.number, each.wire) for each in again.fields] == [
        *[(3, "sint32"), (5, "fixed64"), (7, "sint64,sfixed32")]
    ]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.list_(pa.list_(pa.int64())), r"a\[\]: Protobuf has no list in a list"),
        (pa.null(), "a: Protobuf has no field that is always null"),
        (pa.map_(pa.float64(), pa.int64()), "a: a map has no keys of double"),
    ],
)
def test_what_has_no_place_in_a_message_is_refused(column: pa.DataType, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        protobuf_numbers.numbered(from_schema(pa.schema([("a", column)])), [])


# ---------------------------------------------------------------------- who reads whom


def message(body: str, syntax: str = "proto3") -> Type:
    extra = "enum E { X = 0; Y = 1; } enum F { X0 = 0; } message M { int32 m = 1; }"
    if syntax == "proto2":
        extra = ""
    return protobuf_schema.parse(f'syntax = "{syntax}"; message A {{ {body} }} {extra}')


ALIKE = [
    ("int32", "uint32", "int64", "uint64", "bool"),
    ("sint32", "sint64"),
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("string", "bytes"),
    ("float",),
    ("double",),
]


def test_types_change_within_what_is_written_alike() -> None:
    group = {word: number for number, words in enumerate(ALIKE) for word in words}
    for (one, ours), (other, theirs) in itertools.product(group.items(), repeat=2):
        found = protobuf_rules.unreadable(message(f"{one} x = 1;"), message(f"{other} x = 1;"))
        assert (found == []) == (ours == theirs), (one, other)


@pytest.mark.parametrize(
    ("new", "old", "backward", "forward"),
    [
        ("int32 renamed = 1;", "int32 x = 1;", "", ""),
        ("int32 x = 1; int32 y = 2;", "int32 x = 1;", "", ""),
        ("int32 x = 2;", "string x = 1;", "", ""),
        ("E x = 1;", "int32 x = 1;", "", ""),
        ("F x = 1;", "E x = 1;", "x: the enum lost Y", ""),
        ("M x = 1;", "string x = 1;", "x: string cannot be read as M", "x: M cannot be read as"),
        ("repeated string x = 1;", "string x = 1;", "", ""),
        ("repeated M x = 1;", "M x = 1;", "", ""),
        ("repeated int32 x = 1;", "int32 x = 1;", "x: repeated may come", "x: repeated may come"),
        ("repeated int32 x = 1 [packed = false];", "repeated int64 x = 1;", "", ""),
        ("map<string, int32> x = 1;", "map<string, int64> x = 1;", "", ""),
        ("map<string, int32> x = 1;", "map<int32, int32> x = 1;", "x: int32", "x: string"),
        ("oneof o { int32 x = 1; }", "int32 x = 1;", "", ""),
        ("oneof o { int32 x = 1; int32 y = 2; }", "int32 x = 1; int32 y = 2;", "o: x, y moved", ""),
        (
            "oneof o { int32 x = 1; }",
            "oneof o { int32 x = 1; int32 y = 2; }",
            "y: oneof o lost",
            "",
        ),
        (
            "oneof o { int32 x = 1; int32 y = 2; }",
            "oneof o { int32 x = 1; }",
            "",
            "y: oneof o lost",
        ),
    ],
)
def test_changes_are_judged_both_ways(new: str, old: str, backward: str, forward: str) -> None:
    one, other = message(new), message(old)
    for level, told in (("BACKWARD", backward), ("FORWARD", forward)):
        found = protobuf_rules.problems(one, [other], level)
        assert found[0].startswith(told) if told else found == [], (level, found)
    assert bool(protobuf_rules.problems(one, [other], "FULL")) == bool(backward or forward)
    assert protobuf_rules.problems(one, [other], "NONE") == []


def test_a_required_field_cannot_be_added_and_a_former_version_counts_when_asked() -> None:
    new = message("required int32 x = 1; required int32 y = 2;", "proto2")
    old = message("required int32 x = 1;", "proto2")
    assert protobuf_rules.problems(new, [old], "BACKWARD") == ["y: the field is new and required"]
    assert protobuf_rules.problems(old, [new], "BACKWARD") == []
    versions = [message("string x = 1;"), message("int32 y = 2;")]
    assert protobuf_rules.problems(message("int32 x = 1;"), versions, "BACKWARD") == []
    found = protobuf_rules.problems(message("int32 x = 1;"), versions, "BACKWARD_TRANSITIVE")
    assert found == ["x: string cannot be read as int32"]


def test_a_file_keeps_its_messages() -> None:
    def messages(text: str) -> dict[str, Any]:
        return protobuf_schema.messages(protobuf_schema.parse_file(text))

    old = messages('syntax = "proto3"; message A { int32 x = 1; } message B {}')
    new = messages('syntax = "proto3"; message A { string x = 1; }')
    assert protobuf_rules.file_problems(new, [old], "BACKWARD") == [
        "x: int32 cannot be read as string",
        "B: the message is gone",
    ]
    assert protobuf_rules.file_problems(new, [old], "NONE") == []
