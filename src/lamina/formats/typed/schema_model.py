"""A schema as values: one record with fields, each of a type. Everything else is made from it.

A type that may be null says so itself (`is_nullable`): Avro's union with null, proto's `optional`,
a nullable field of Arrow. Other unions and types that contain themselves can be kept and compared,
but have no columns: `refuse_columnless` says so with the path of the field.

Rules.
1. Values here are frozen and never hold an object of another library.
2. A default is JSON text, as Avro writes it: None is "no default", "null" is the default null.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lamina.errors import SchemaError

DEPTH_MAX = 32
"""How deep types may lie in each other: what reads and writes them has a stack of this height."""
FIELDS_MAX = 4096
"""How many fields a schema may have in all."""
TEXT_MAX = 1 << 20
"""How many characters a schema's text may have."""
SYMBOLS_TOLD = 8
"""How many symbols of an enum an error names."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Kind(enum.StrEnum):
    """What a type is; the logical ones stand beside those that they are stored as."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    ULONG = "ulong"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"
    FIXED = "fixed"
    ENUM = "enum"
    ARRAY = "array"
    MAP = "map"
    RECORD = "record"
    UNION = "union"
    NAMED = "named"
    DECIMAL = "decimal"
    UUID = "uuid"
    DATE = "date"
    TIME_MILLIS = "time-millis"
    TIME_MICROS = "time-micros"
    TIMESTAMP_MILLIS = "timestamp-millis"
    TIMESTAMP_MICROS = "timestamp-micros"
    TIMESTAMP_NANOS = "timestamp-nanos"
    LOCAL_TIMESTAMP_MILLIS = "local-timestamp-millis"
    LOCAL_TIMESTAMP_MICROS = "local-timestamp-micros"
    LOCAL_TIMESTAMP_NANOS = "local-timestamp-nanos"
    DURATION_MILLIS = "duration-millis"
    DURATION_MICROS = "duration-micros"
    DURATION_NANOS = "duration-nanos"


STORED_AS: dict[Kind, Kind] = {
    Kind.DATE: Kind.INT,
    Kind.TIME_MILLIS: Kind.INT,
    Kind.TIME_MICROS: Kind.LONG,
    Kind.TIMESTAMP_MILLIS: Kind.LONG,
    Kind.TIMESTAMP_MICROS: Kind.LONG,
    Kind.TIMESTAMP_NANOS: Kind.LONG,
    Kind.LOCAL_TIMESTAMP_MILLIS: Kind.LONG,
    Kind.LOCAL_TIMESTAMP_MICROS: Kind.LONG,
    Kind.LOCAL_TIMESTAMP_NANOS: Kind.LONG,
    Kind.DURATION_MILLIS: Kind.LONG,
    Kind.DURATION_MICROS: Kind.LONG,
    Kind.DURATION_NANOS: Kind.LONG,
    Kind.ULONG: Kind.LONG,
}
"""The plain kind behind each logical one, where there is only one."""


@dataclass(frozen=True)
class Type:
    """One type. Which attributes mean something depends on `kind`."""

    kind: Kind
    is_nullable: bool = False
    null_is_last: bool = False
    """Whether null is the second branch of Avro's union; it is the first one otherwise."""
    name: str = ""
    """The full name of a record, an enum or a fixed, or of the type that a NAMED stands for."""
    aliases: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    items: Type | None = None
    """The items of an array or the values of a map."""
    keys: Type | None = None
    """The keys of a map where they are not text (Protobuf)."""
    branches: tuple[Type, ...] = ()
    """The branches of a union that is more than "or null"."""
    symbols: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    """The number of each symbol, where they do not count up from 0 (Protobuf)."""
    default_symbol: str = ""
    size: int = 0
    """The bytes of a fixed, also below a decimal or a uuid; 0 is "not of fixed size" there."""
    precision: int = 0
    scale: int = 0
    indexes: tuple[int, ...] = ()
    """Where a message is declared in its `.proto` file, outermost first; empty for [0]."""

    @property
    def stored(self) -> Kind:
        """The plain kind that holds its values."""
        if self.kind == Kind.DECIMAL:
            return Kind.FIXED if self.size else Kind.BYTES
        if self.kind == Kind.UUID:
            return Kind.FIXED if self.size else Kind.STRING
        return STORED_AS.get(self.kind, self.kind)

    def or_null(self, *, is_nullable: bool = True) -> Type:
        """Returns the type with null allowed, or not."""
        return replace(self, is_nullable=is_nullable)


@dataclass(frozen=True)
class Field:
    """A named place in a record."""

    name: str
    type: Type
    default: str | None = None
    aliases: tuple[str, ...] = ()
    number: int = 0
    """Protobuf's field number; 0 where the schema has none."""
    wire: str = ""
    """Protobuf's own word for what is written (`sint32`), where the type alone does not say it."""
    oneof: str = ""
    """Protobuf's group of fields of which one at most is there."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the former ones."""
        return (self.name, *self.aliases)


def record(name: str, fields: Iterator[Field] | tuple[Field, ...] | list[Field]) -> Type:
    """Makes a record; raises SchemaError for a name that two fields share."""
    made = Type(Kind.RECORD, name=name, fields=tuple(fields))
    seen: set[str] = set()
    for field in made.fields:
        if field.name in seen:
            raise SchemaError(f"{name}: two fields are named {field.name!r}", field=field.name)
        seen.add(field.name)
    return made


def children(kind: Type) -> Iterator[tuple[str, Type]]:
    """Gives the types directly inside one, each with its step in a path."""
    for field in kind.fields:
        yield field.name, field.type
    if kind.items is not None:
        yield ("[]" if kind.kind == Kind.ARRAY else "{}"), kind.items
    for number, branch in enumerate(kind.branches):
        yield f"<{number}>", branch


def joined(path: str, step: str) -> str:
    """Adds a step to a path: `address` and `city` become `address.city`."""
    return f"{path}.{step}" if path else step


def spelled(kind: Type) -> str:
    """Returns a type in words, for errors: `int`, `one of RED, BLUE`, `array of long or null`."""
    told = kind.kind.value
    if kind.kind == Kind.ENUM:
        more = ", …" if len(kind.symbols) > SYMBOLS_TOLD else ""
        told = f"one of {', '.join(kind.symbols[:SYMBOLS_TOLD])}{more}"
    elif kind.kind == Kind.FIXED:
        told = f"fixed of {kind.size} bytes"
    elif kind.kind == Kind.DECIMAL:
        told = f"decimal({kind.precision}, {kind.scale})"
    elif kind.items is not None:
        told = f"{told} of {spelled(kind.items)}"
    return f"{told} or null" if kind.is_nullable else told


def refuse_unbounded(kind: Type, path: str = "", depth: int = 0) -> int:
    """Returns how many fields there are; raises SchemaError for too many, or too deep a type."""
    if depth > DEPTH_MAX:
        raise SchemaError(f"{path}: types lie more than {DEPTH_MAX} deep", field=path)
    total = len(kind.fields)
    for step, inner in children(kind):
        total += refuse_unbounded(inner, joined(path, step), depth + 1)
        if total > FIELDS_MAX:
            raise SchemaError(f"a schema has at most {FIELDS_MAX} fields", field=path)
    return total


def refuse_columnless(kind: Type, path: str = "") -> None:
    """Raises SchemaError for what has no columns: unions of several types, recursive types."""
    if kind.kind == Kind.UNION:
        told = ", ".join(each.kind.value for each in kind.branches)
        raise SchemaError(
            f"{path or kind.name}: a union of {told} has no column; only a union of one type and "
            "null has",
            field=path,
        )
    if kind.kind == Kind.NAMED:
        raise SchemaError(
            f"{path}: {kind.name} contains itself; a recursive type has no columns", field=path
        )
    if kind.kind == Kind.DECIMAL and not 1 <= kind.precision <= 38:
        raise SchemaError(f"{path}: a decimal has 1 to 38 digits, not {kind.precision}", field=path)
    if kind.kind == Kind.DECIMAL and not -38 <= kind.scale <= 38:
        raise SchemaError(f"{path}: a decimal's scale is -38 to 38, not {kind.scale}", field=path)
    for step, inner in children(kind):
        refuse_columnless(inner, joined(path, step))


def require_record(kind: Type, what: str) -> Type:
    """Returns a record that may not be null itself; raises SchemaError for any other type."""
    if kind.kind != Kind.RECORD or kind.is_nullable:
        raise SchemaError(f"{what} describes {kind.kind.value}; a topic's schema is a record")
    return kind


def refuse_names(kind: Type, encoding: str, path: str = "") -> None:
    """Raises SchemaError for field names that Avro or Protobuf cannot write."""
    for step, inner in children(kind):
        here = joined(path, step)
        if kind.kind == Kind.RECORD and not NAME.fullmatch(step):
            raise SchemaError(
                f"{here}: {encoding} has no such name; use letters, digits and _", field=here
            )
        refuse_names(inner, encoding, here)


def shown_type(kind: Type) -> str:
    """Returns a type as a user says it, for errors."""
    told: Any = kind.name if kind.kind in (Kind.RECORD, Kind.NAMED) else kind.kind.value
    if kind.kind == Kind.DECIMAL:
        told = f"decimal({kind.precision}, {kind.scale})"
    if kind.kind == Kind.FIXED:
        told = f"fixed({kind.size})"
    if kind.items is not None:
        told = f"{told} of {shown_type(kind.items)}"
    return f"{told} or null" if kind.is_nullable else str(told)


def named_apart(kind: Type) -> Type:
    """Returns a type whose names are all such as Avro has, each of one type alone.

    Names that are made of a schema's paths may be neither: its text would not be read again, or one
    type would stand for two.
    """
    known: dict[str, Type] = {}

    def walked(given: Type) -> Type:
        made = replace(
            given,
            fields=tuple(replace(each, type=walked(each.type)) for each in given.fields),
            items=walked(given.items) if given.items is not None else None,
            keys=walked(given.keys) if given.keys is not None else None,
        )
        if not made.name:
            return made
        own = replace(made, is_nullable=False, null_is_last=False)
        base = name = ".".join(_as_name(part) for part in made.name.split("."))
        number = 1
        while known.setdefault(name, own) != own:
            number += 1
            name = f"{base}_{number}"
        return replace(made, name=name)

    return walked(kind)


def _as_name(text: str) -> str:
    made = re.sub("[^A-Za-z0-9_]", "_", text)
    return made if NAME.fullmatch(made) else f"_{made}"
