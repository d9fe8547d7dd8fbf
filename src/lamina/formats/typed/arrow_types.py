"""Schemas as Arrow has them, both ways.

Arrow has more types than a schema has: narrow integers widen (int8 and int16 to int, uint32 to
long), large and view types become plain ones, seconds become milliseconds. What comes back is the
type that a typed read gives, so a table is cast to it before it is encoded.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as kinds

from lamina.errors import SchemaError
from lamina.formats.typed.schema_model import Field, Kind, Type, joined, record, refuse_unbounded

_TO_ARROW: dict[Kind, pa.DataType] = {
    Kind.NULL: pa.null(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.ULONG: pa.uint64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.STRING: pa.string(),
    Kind.ENUM: pa.dictionary(pa.int32(), pa.string()),
    Kind.DATE: pa.date32(),
    Kind.TIME_MILLIS: pa.time32("ms"),
    Kind.TIME_MICROS: pa.time64("us"),
    Kind.TIMESTAMP_MILLIS: pa.timestamp("ms", tz="UTC"),
    Kind.TIMESTAMP_MICROS: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NANOS: pa.timestamp("ns", tz="UTC"),
    Kind.LOCAL_TIMESTAMP_MILLIS: pa.timestamp("ms"),
    Kind.LOCAL_TIMESTAMP_MICROS: pa.timestamp("us"),
    Kind.LOCAL_TIMESTAMP_NANOS: pa.timestamp("ns"),
    Kind.DURATION_MILLIS: pa.duration("ms"),
    Kind.DURATION_MICROS: pa.duration("us"),
    Kind.DURATION_NANOS: pa.duration("ns"),
}
_UNITS = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}
_FROM_ARROW: tuple[tuple[Callable[[pa.DataType], bool], Kind], ...] = (
    (kinds.is_null, Kind.NULL),
    (kinds.is_boolean, Kind.BOOLEAN),
    (kinds.is_uint32, Kind.LONG),
    (kinds.is_uint64, Kind.ULONG),
    (kinds.is_int64, Kind.LONG),
    (kinds.is_integer, Kind.INT),
    (kinds.is_float64, Kind.DOUBLE),
    (kinds.is_floating, Kind.FLOAT),
    (kinds.is_date32, Kind.DATE),
    (kinds.is_date64, Kind.DATE),
    (kinds.is_time32, Kind.TIME_MILLIS),
    (kinds.is_time64, Kind.TIME_MICROS),
    (kinds.is_string, Kind.STRING),
    (kinds.is_large_string, Kind.STRING),
    (kinds.is_string_view, Kind.STRING),
    (kinds.is_binary, Kind.BYTES),
    (kinds.is_large_binary, Kind.BYTES),
    (kinds.is_binary_view, Kind.BYTES),
)
ALIASES = b"lamina.aliases"
"""Metadata of an Arrow field: its former names, with commas between."""


def to_arrow(kind: Type, path: str = "") -> pa.DataType:
    """Returns the Arrow type of a type; the caller has refused what has no columns."""
    if kind.kind == Kind.RECORD:
        return pa.struct(fields_of(kind, path))
    if kind.kind == Kind.DECIMAL:
        return pa.decimal128(kind.precision, kind.scale)
    if kind.stored == Kind.FIXED:
        return pa.binary(kind.size)
    if kind.kind == Kind.UUID:
        return pa.string()
    if kind.items is not None:
        inner = to_arrow(kind.items, path)
        if kind.kind == Kind.MAP:
            keys = pa.string() if kind.keys is None else to_arrow(kind.keys, path)
            return pa.map_(keys, pa.field("value", inner, nullable=_has_null(kind.items)))
        return pa.list_(pa.field("item", inner, nullable=_has_null(kind.items)))
    return _TO_ARROW[kind.kind]


def fields_of(kind: Type, path: str = "") -> list[pa.Field]:
    """Returns the fields of a record as Arrow's."""
    return [
        pa.field(
            field.name,
            to_arrow(field.type, joined(path, field.name)),
            nullable=_has_null(field.type),
        )
        for field in kind.fields
    ]


def _has_null(kind: Type) -> bool:
    return kind.is_nullable or kind.kind == Kind.NULL


def arrow_schema(kind: Type) -> pa.Schema:
    """Returns the columns of a record."""
    return pa.schema(fields_of(kind))


def from_schema(schema: pa.Schema, name: str = "record") -> Type:
    """Makes the record that has the columns of an Arrow schema.

    A field that may be null gets the default null, so that it can be added and dropped later.
    """
    made = record(name, [_field(each, name, each.name) for each in schema])
    refuse_unbounded(made)
    return made


def _field(given: pa.Field, owner: str, path: str) -> Field:
    kind = _type(given.type, f"{owner}_{_plain(given.name)}", path)
    is_nullable = given.nullable and kind.kind != Kind.NULL
    aliases = (given.metadata or {}).get(ALIASES, b"").decode("utf-8", "replace")
    return Field(
        given.name,
        kind.or_null(is_nullable=is_nullable),
        "null" if is_nullable else None,
        tuple(each for each in aliases.split(",") if each),
    )


def _plain(name: str) -> str:
    return "".join(each if each.isascii() and each.isalnum() else "_" for each in name)


def _type(given: pa.DataType, name: str, path: str) -> Type:
    if isinstance(given, pa.ExtensionType):
        return _type(given.storage_type, name, path)
    for fits, kind in _FROM_ARROW:
        if fits(given):
            return Type(kind)
    if kinds.is_timestamp(given):
        word = f"timestamp-{_UNITS[given.unit]}"
        return Type(Kind(word if given.tz else f"local-{word}"))
    if kinds.is_duration(given):
        return Type(Kind(f"duration-{_UNITS[given.unit]}"))
    if kinds.is_fixed_size_binary(given):
        return Type(Kind.FIXED, name=name, size=given.byte_width)
    if kinds.is_decimal(given) and given.precision <= 38:
        return Type(Kind.DECIMAL, precision=given.precision, scale=given.scale)
    if kinds.is_dictionary(given):
        return _type(given.value_type, name, path)
    if kinds.is_struct(given):
        fields = [given.field(number) for number in range(given.num_fields)]
        return record(name, [_field(each, name, joined(path, each.name)) for each in fields])
    if kinds.is_map(given):
        key = _type(given.key_type, name, path)
        keys = None if key.kind == Kind.STRING else key
        return Type(Kind.MAP, items=_inner(given.item_field, name, f"{path}.{{}}"), keys=keys)
    if kinds.is_list(given) or kinds.is_large_list(given) or kinds.is_fixed_size_list(given):
        return Type(Kind.ARRAY, items=_inner(given.value_field, name, f"{path}.[]"))
    raise SchemaError(f"{path}: a column of {given} has no place in a schema", field=path)


def _inner(given: pa.Field, name: str, path: str) -> Type:
    kind = _type(given.type, name, path)
    return kind.or_null(is_nullable=given.nullable and kind.kind != Kind.NULL)
