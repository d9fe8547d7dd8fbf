"""Protobuf's bytes and columns: google.protobuf is the judge, hostile bytes are everywhere."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.errors import SchemaError
from lamina.formats.typed import (
    avro_text,
    protobuf_decode,
    protobuf_encode,
    protobuf_layout,
    protobuf_program,
    protobuf_schema,
)
from lamina.formats.typed.arrow_types import arrow_schema
from lamina.formats.typed.row_faults import (
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_SYMBOL,
    BAD_TEXT,
    BAD_WIRE,
    FINE,
    MISSING_FIELD,
    NO_VALUE,
    TOO_MANY,
    Decoded,
    Values,
)
from lamina.formats.typed.schema_model import Type
from lamina.formats.typed.schema_source import schema_of as checked_schema
from tests.formats.protobuf_strategies import class_of, files, filled, row_of, schema_of

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  repeated Line lines = 3;
  map<string, sint32> counts = 4;
  oneof kind { string a = 5; Line b = 6; Line c = 12; }
  google.protobuf.Timestamp at = 7;
  google.protobuf.Int64Value big = 8;
  State state = 9;
  repeated sint64 deltas = 10 [packed = false];
  repeated uint32 numbers = 11;
  map<int32, Line> more = 13;
  google.protobuf.Duration took = 14;
  Line line = 15;
  message Line { string sku = 1; int32 count = 2; repeated string tags = 3; bytes raw = 4; }
  enum State { NEW = 0; PAID = 5; }
}
"""


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """The same file as google.protobuf has it, from our own descriptor of the text."""
    from lamina.formats.typed import protobuf_descriptor

    raw = protobuf_descriptor.descriptor_of(protobuf_schema.parse_file(ORDER), "order.proto")
    file = descriptor_pb2.FileDescriptorProto.FromString(raw)
    for name in ("duration", "wrappers", "timestamp"):
        path = f"google/protobuf/{name}.proto"
        assert path in file.dependency
    return file


Order: Any = class_of(order_file(), "shop.Order")
SCHEMA = protobuf_schema.parse(ORDER)


def sample() -> Any:
    made = Order(id=7, note="é", state=5, deltas=[1, -1, 300], numbers=[0, 1, 1 << 31])
    made.lines.add(sku="a", count=-2, tags=["x", "yy"], raw=b"\xff")
    made.lines.add()
    made.counts["k"] = -5
    made.counts["l"] = 7
    made.b.sku = "of b"
    made.at.FromNanoseconds(1_234_567_890_123_456_789)
    made.took.FromNanoseconds(-1_500_000_000)
    made.big.SetInParent()
    made.more[3].tags.append("deep")
    made.line.count = 1
    return made


def decode(values: list[bytes | None], schema: Type = SCHEMA, **chosen: Any) -> Decoded:
    program = protobuf_program.compiled(chosen.get("chosen", schema), schema)
    decoded = protobuf_decode.decode(program, Values.of(pa.array(values, pa.binary())))
    for column in decoded.columns:
        column.validate(full=True)
    return decoded


def rows_of(decoded: Decoded, schema: Type = SCHEMA) -> list[dict[str, Any]]:
    names = [field.name for field in schema.fields]
    columns = [_counted(each) for each in decoded.columns]
    return pa.RecordBatch.from_arrays(columns, names).to_pylist(maps_as_pydicts="strict")


def _counted(column: pa.Array) -> pa.Array:
    """Times as numbers of nanoseconds, at any depth: Python's own types have microseconds."""
    return column.view(_plain(column.type)) if _has_time(column.type) else column


def _has_time(kind: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_temporal(kind) or any(_has_time(each) for each in inner)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.int64()
    fields = [
        kind.field(at).with_type(_plain(kind.field(at).type)) for at in range(kind.num_fields)
    ]
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), kind.item_field.with_type(_plain(kind.item_type)))
    return pa.list_(fields[0]) if pa.types.is_list(kind) else kind


def table_of(decoded: Decoded, schema: Type = SCHEMA) -> pa.Table:
    return pa.Table.from_arrays(decoded.columns, schema=arrow_schema(schema))


def encoded(table: pa.Table, schema: Type = SCHEMA, prefix: bytes = b"") -> list[bytes]:
    made: list[bytes] = protobuf_encode.encode(
        protobuf_layout.compiled(schema), table, prefix
    ).to_pylist()
    return made


def test_a_message_comes_back_as_google_wrote_it_and_is_written_alike() -> None:
    values = [sample().SerializeToString(deterministic=True), b"", Order(a="x").SerializeToString()]
    decoded = decode(values)
    assert decoded.codes.tolist() == [FINE] * 3
    assert rows_of(decoded) == [row_of(sample()), row_of(Order()), row_of(Order(a="x"))]
    table = table_of(decoded)
    assert encoded(table) == values
    # A slice, and one of several chunks, has the same bytes: offsets of all levels are respected.
    doubled = pa.concat_tables([table, table]).slice(1, 4)
    assert encoded(doubled, prefix=b"\0id") == [b"\0id" + values[at] for at in (1, 2, 0, 1)]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_message_reads_and_writes_what_google_does(data: Any) -> None:
    file = data.draw(files())
    made, schema = class_of(file), schema_of(file)
    schema = avro_text.parse(avro_text.text_of(schema))  # as a topic keeps it
    messages = data.draw(st.lists(filled(made), max_size=5))
    values = [each.SerializeToString() for each in messages]
    decoded = decode(values, schema)
    assert not decoded.codes.any(), [decoded.fault(at) for at in range(len(values))]
    expected = [row_of(made.FromString(value)) for value in values]
    assert rows_of(decoded, schema) == expected
    again = encoded(table_of(decoded, schema), schema)
    assert [row_of(made.FromString(each)) for each in again] == expected
    # Two messages side by side are one that was merged.
    if len(values) > 1:
        both = values[0] + values[1]
        assert rows_of(decode([both], schema), schema) == [row_of(made.FromString(both))]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parts_of_messages_in_any_order_are_merged_as_google_merges_them(data: Any) -> None:
    parts = data.draw(st.lists(filled(Order), min_size=2, max_size=4))
    value = b"".join(each.SerializeToString() for each in parts)
    judged([value], decode([value]))  # a duration may come out of two of other signs


# ---------------------------------------------------------------- hostile bytes


def judged(values: list[bytes], decoded: Decoded) -> int:
    """Compares each value with what google makes of it; returns how many both read."""
    read = 0
    rows = rows_of(decoded)
    for value, code, row in zip(values, decoded.codes.tolist(), rows, strict=True):
        try:
            theirs = Order.FromString(value)
        except DecodeError:
            assert code > FINE, value
            continue
        if code == FINE:
            assert _but_strange_entries(row, row_of(theirs)) == row_of(theirs), value
            read += 1
        else:  # stricter in these, as the module says
            assert code in (BAD_WIRE, BAD_SYMBOL, BAD_NUMBER), (value, decoded.codes)
            assert set(map(repr, row.values())) == {"None"}
    return read


def _but_strange_entries(row: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """A row without the entries of maps that have an unknown field: upb keeps those as unknown."""
    made = dict(row)
    for name in ("counts", "more"):
        made[name] = {key: each for key, each in row[name].items() if key in theirs[name]}
        assert len(row[name]) - len(made[name]) <= 1
    return made


def test_every_prefix_is_read_as_google_reads_it_or_is_bad() -> None:
    whole = sample().SerializeToString(deterministic=True)
    values = [whole[:length] for length in range(len(whole) + 1)]
    assert judged(values, decode(values)) > 10  # those that end between two fields


def test_every_changed_byte_is_read_as_google_reads_it_or_is_bad() -> None:
    whole = sample().SerializeToString(deterministic=True)
    values = []
    for position in range(len(whole)):
        for change in (0x01, 0x02, 0x04, 0x08, 0x40, 0x80, 0xFF, 0x7F):
            changed = bytearray(whole)
            changed[position] ^= change
            values.append(bytes(changed))
    assert judged(values, decode(values)) > 100


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_any_bytes_are_read_as_google_reads_them_or_are_bad(values: list[bytes]) -> None:
    judged(values, decode(list(values)))


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        (b"\x08", BAD_NUMBER, "id"),
        (b"\x08" + b"\xff" * 10, BAD_NUMBER, "id"),
        (b"\x0d\x01\x02\x03\x04", BAD_WIRE, "id"),
        (b"\x12\x7f", BAD_LENGTH, "note"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", BAD_LENGTH, "note"),
        (b"\x12\x02\xff\xfe", BAD_TEXT, "note"),
        (b"\x1a\x02\x0a\x05", BAD_LENGTH, "lines.sku"),
        (b"\x48\x01", BAD_SYMBOL, "state"),
        (b"\x3a\x06\x10\x80\x94\xeb\xdc\x03", BAD_NUMBER, "at"),  # a second of nanoseconds
        (b"\x3a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00", BAD_NUMBER, "at"),
        (b"\x72\x0d\x08\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", BAD_NUMBER, "took"),
        (b"\x00", BAD_NUMBER, ""),
        (b"\xff\xff\xff\xff\xff\x01", BAD_NUMBER, ""),
        (b"\xfc\x3f", BAD_LENGTH, ""),  # the end of a group that nobody began
        (b"\xfb\x3f" * 70, BAD_LENGTH, ""),  # groups in groups in groups
    ],
)
def test_a_hostile_value_is_refused_with_its_field(value: bytes, code: int, path: str) -> None:
    decoded = decode([b"\x08\x05", value, None])
    assert decoded.codes.tolist() == [FINE, code, NO_VALUE]
    told = decoded.fault(1)
    assert (told.partition(":")[0] if ":" in told else "") == path
    assert decoded.columns[0].to_pylist() == [5, None, None]


def test_what_nobody_knows_is_passed_over_groups_too() -> None:
    group = b"\xfb\x3f" + b"\x08\x01" + b"\x12\x01z" + b"\x1d1234" + b"\x2112345678" + b"\xfc\x3f"
    value = b"\x08\x05" + group + b"\xf8\x7f\x01" + b"\x12\x01n"
    decoded = decode([value])
    assert (decoded.columns[0][0].as_py(), decoded.columns[1][0].as_py()) == (5, "n")


def test_empty_rows_of_wide_messages_are_bounded() -> None:
    inner = " ".join(f"optional int64 f{at} = {at + 1};" for at in range(1000))
    schema = protobuf_schema.parse(
        f'syntax = "proto3"; message W {{ repeated I items = 1; message I {{ {inner} }} }}'
    )
    assert decode([b"\x0a\0" * 20], schema).codes.tolist() == [FINE]
    assert decode([b"\x0a\0" * 5000], schema).codes.tolist() == [TOO_MANY]


def test_rooms_grow_between_records_and_nothing_is_read_twice() -> None:
    messages = []
    for at in range(300):
        one = Order(id=at, a="a" * at, numbers=range(at % 60))
        for each in range(at % 40):
            one.lines.add(sku=f"{each}", tags=["t"] * (each % 5))
        messages.append(one)
    values: list[bytes | None] = [each.SerializeToString() for each in messages]
    values[7:7] = [b"\xff\xff"]
    found = rows_of(decode(values))
    del found[7]
    assert found == [row_of(each) for each in messages]


# ---------------------------------------------------------------- what a schema says


def test_packed_and_unpacked_lists_are_both_read() -> None:
    schema = protobuf_schema.parse(
        'syntax = "proto3"; message M { repeated int32 a = 1; repeated fixed32 b = 2; }'
    )
    value = b"\x08\x01\x0a\x02\x02\x03\x08\x04" + b"\x15\x05\0\0\0\x12\x04\x06\0\0\0" + b"\x0a\0"
    assert rows_of(decode([value], schema), schema) == [{"a": [1, 2, 3, 4], "b": [5, 6]}]
    # A packed list that ends inside a number is bad.
    assert decode([b"\x12\x03\x06\0\0"], schema).codes.tolist() == [BAD_LENGTH]


def test_of_a_oneof_what_came_last_is_there_and_the_rest_leaves_nothing() -> None:
    line = Order.Line(sku="s", tags=["t", "u"]).SerializeToString()
    first = b"\x32" + bytes([len(line)]) + line
    value = first + b"\x2a\x01a" + first + b"\x62\x03\x0a\x01c" + first
    assert rows_of(decode([value])) == [row_of(Order.FromString(value))]
    ends_in_text = value + b"\x2a\x01z"
    (row,) = rows_of(decode([ends_in_text]))
    assert (row["a"], row["b"], row["c"]) == ("z", None, None)
    # One that is not among the columns ends it, too.
    only = Type(
        SCHEMA.kind, name=SCHEMA.name, fields=tuple(f for f in SCHEMA.fields if f.name == "b")
    )
    decoded = decode([first, ends_in_text], chosen=only)
    assert [each is None for each in decoded.columns[0].to_pylist()] == [False, True]


def test_required_fields_and_defaults_of_proto2() -> None:
    schema = protobuf_schema.parse(
        'message M { required int32 a = 1; optional string b = 2 [default = "bee"];'
        " optional In in = 3; repeated In ins = 4; optional int32 n = 5 [default = -7];"
        ' message In { required bool x = 1; optional bytes y = 2 [default = "\\377"]; } }'
    )
    values = [b"\x08\x01", b"", b"\x08\x01\x1a\0", b"\x08\x01\x1a\x02\x08\x01", b"\x08\x01\x22\0"]
    decoded = decode([*values, b"\x08\0\x12\x01c\x28\x00"], schema)
    assert decoded.codes.tolist() == [FINE, MISSING_FIELD, MISSING_FIELD, FINE, MISSING_FIELD, FINE]
    assert [decoded.fault(at).partition(":")[0] for at in (1, 2, 4)] == ["a", "in.x", "ins.x"]
    rows = rows_of(decoded, schema)
    assert rows[0] == {"a": 1, "b": "bee", "in": None, "ins": [], "n": -7}
    assert rows[3]["in"] == {"x": True, "y": b"\xff"}
    assert (rows[5]["b"], rows[5]["n"]) == ("c", 0)
    again = encoded(table_of(decoded, schema).take(pa.array([0, 3, 5])), schema)
    assert rows_of(decode(list(again), schema), schema) == [rows[0], rows[3], rows[5]]


def test_a_key_that_is_said_twice_has_its_last_value_at_any_depth() -> None:
    schema = protobuf_schema.parse(
        'syntax = "proto3"; message M { map<string, In> m = 1; repeated In l = 2;'
        " message In { map<int32, string> d = 1; } }"
    )
    inner = (
        b"\x0a\x05\x08\x01\x12\x01a" + b"\x0a\x05\x08\x02\x12\x01b" + b"\x0a\x05\x08\x01\x12\x01c"
    )
    entry = b"\x0a\x01k\x12" + bytes([len(inner)]) + inner
    value = b"\x0a\x03\x0a\x01k" + b"\x0a" + bytes([len(entry)]) + entry
    value += b"\x12" + bytes([len(inner)]) + inner
    (first, row) = rows_of(decode([b"", value], schema), schema)
    assert first == {"m": {}, "l": []}
    assert row == {"m": {"k": {"d": {1: "c", 2: "b"}}}, "l": [{"d": {1: "c", 2: "b"}}]}


def test_numbers_of_elsewhere_are_columns_too() -> None:
    columns = pa.schema(
        [
            pa.field("d", pa.decimal128(20, 2)),
            pa.field("f", pa.binary(3), nullable=False),
            pa.field("t", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("took", pa.duration("us")),
            pa.field("u", pa.uint64(), nullable=False),
        ]
    )
    from decimal import Decimal

    from lamina.formats.typed.schema_source import next_version

    schema = next_version(checked_schema(columns, "protobuf"), "protobuf", ())
    rows = [
        {
            "d": Decimal("-12.34"),
            "f": b"abc",
            "t": -1,
            "day": 19000,
            "took": -1,
            "u": (1 << 64) - 1,
        },
        {"d": None, "f": b"\0\0\0", "t": 0, "day": None, "took": None, "u": 0},
        {"d": Decimal(10**18 - 1), "f": b"xyz", "t": 1 << 50, "day": -1, "took": 1, "u": 1},
    ]
    table = pa.Table.from_arrays(
        [
            pa.array([row[f.name] for row in rows], f.type if f.name != "day" else pa.int32()).cast(
                f.type
            )
            for f in columns
        ],
        schema=columns,
    )
    values = encoded(table, schema)
    assert table_of(decode(list(values), schema), schema).equals(table)
    moment = timestamp_pb2.Timestamp(nanos=999_000_000, seconds=-1)
    assert moment.SerializeToString() in values[0]
    bad = decode([b"\x12\x02ab", b"\x12\x03abc", b"\x12\x03abc\x0a\x0b" + b"\x7f" * 11], schema)
    assert [bad.fault(at) for at in (0, 1)] == [
        "f: a length that reaches past the value; expected fixed of 3 bytes",
        "t: no value for a field that must have one; expected timestamp-millis",
    ]


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (("id", [None], pa.int64()), "id: row 0 is null"),
        (("numbers", [[-1]], pa.list_(pa.int64())), "numbers: row 0 is no number of 32 bits"),
        (("state", ["GONE"], pa.string()), "'GONE' in row 0 is none of NEW, PAID"),
        (("deltas", [[1, None]], pa.list_(pa.int64())), "deltas: row 0 is null"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_its_field(column: Any, told: str) -> None:
    name, values, kind = column
    with pytest.raises(SchemaError, match=told.replace("(", r"\(")):
        encoded(pa.table({name: pa.array(values, kind)}))


def test_two_values_of_a_oneof_are_refused_at_any_depth() -> None:
    with pytest.raises(SchemaError, match="c: b has a value in row 1, too; of oneof kind one may"):
        encoded(pa.table({"b": [None, LINE], "c": [None, LINE]}))
    nested = protobuf_schema.parse(
        'syntax = "proto3"; message M { repeated In l = 1; message In { oneof o { int32 a = 1;'
        " string b = 2; } } }"
    )
    rows = [{"l": [{"a": 1, "b": None}]}, {"l": [{"a": None, "b": "x"}, {"a": 2, "b": "y"}]}]
    assert len(encoded(pa.Table.from_pylist(rows[:1], arrow_schema(nested)), nested)) == 1
    with pytest.raises(SchemaError, match="a has a value"):
        encoded(pa.Table.from_pylist(rows, arrow_schema(nested)), nested)


LINE = {"sku": "s", "count": 1, "tags": [], "raw": b""}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("message M { optional M m = 1; }", "contains itself"),
        ("message M { repeated group G = 1 { } }", "groups have no columns"),
        (
            'import "google/protobuf/struct.proto";'
            " message M { optional google.protobuf.Struct s = 1; }",
            "contains itself",
        ),
    ],
)
def test_what_has_no_column_is_refused_when_a_schema_is_set(text: str, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        checked_schema(text, "protobuf")


def test_a_word_of_another_type_is_refused_when_a_schema_is_set() -> None:
    text = (
        '{"type": "record", "name": "M", "fields": [{"name": "x", "type": "int", "default": 0,'
        ' "lamina.number": 1, "lamina.wire": "WORD"}]}'
    )
    assert checked_schema(text.replace("WORD", "sint32"), "protobuf").fields[0].wire == "sint32"
    for word in ("fixed64", "string", "google.protobuf.Timestamp", "nonsense"):
        with pytest.raises(SchemaError, match="x: "):
            checked_schema(text.replace("WORD", word), "protobuf")
