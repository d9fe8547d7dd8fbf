"""Protobuf's files as schemas, and schemas of elsewhere with what Protobuf needs: field numbers.

A message is a record. What a reader of the generated code sees is in the columns:

    a plain field of proto3              never null; 0, "", false, [] or the first symbol if absent
    optional, a message, a oneof         null if absent
    optional of proto2 with a default    never null; the default if absent
    required                             never null; a value without it is bad
    Timestamp, Duration                  a time stamp and a duration, in nanoseconds
    Int64Value and the other wrappers    the scalar, null if absent

`Field.wire` keeps what the type does not say: the scalar's word, with "unpacked" behind it; the
words of a map's key and value; the full name of a message that became one column.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lamina.errors import SchemaError
from lamina.formats.typed import protobuf_descriptor, protobuf_text
from lamina.formats.typed.protobuf_file import (
    PROTO3,
    SCALARS,
    Names,
    ProtoEnum,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    renamed,
)
from lamina.formats.typed.schema_model import (
    DEPTH_MAX,
    FIELDS_MAX,
    NAME,
    TEXT_MAX,
    Field,
    Kind,
    Type,
    joined,
    record,
    refuse_unbounded,
)

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = {
    f"google.protobuf.{word}Value": scalar
    for word, scalar in (
        *(("Double", "double"), ("Float", "float"), ("Int64", "int64"), ("UInt64", "uint64")),
        *(("Int32", "int32"), ("UInt32", "uint32"), ("Bool", "bool"), ("String", "string")),
        ("Bytes", "bytes"),
    )
}
_WHOLE = {TIMESTAMP: Kind.TIMESTAMP_NANOS, DURATION: Kind.DURATION_NANOS} | {
    name: SCALARS[word] for name, word in WRAPPERS.items()
}
"""Messages that are one column."""
_KNOWN = {
    "timestamp": "message Timestamp { int64 seconds = 1; int32 nanos = 2; }",
    "duration": "message Duration { int64 seconds = 1; int32 nanos = 2; }",
    "wrappers": " ".join(
        f"message {name.rpartition('.')[2]} {{ {word} value = 1; }}"
        for name, word in WRAPPERS.items()
    ),
    "any": "message Any { string type_url = 1; bytes value = 2; }",
    "empty": "message Empty {}",
    "field_mask": "message FieldMask { repeated string paths = 1; }",
    "struct": "message Struct { map<string, Value> fields = 1; } enum NullValue { NULL_VALUE = 0; }"
    " message Value { oneof kind { NullValue null_value = 1; double number_value = 2;"
    " string string_value = 3; bool bool_value = 4; Struct struct_value = 5;"
    " ListValue list_value = 6; } } message ListValue { repeated Value values = 1; }",
    "descriptor": "",
}
"""What may be imported: Protobuf's own files, by the end of their path."""
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}")
_ZEROS = {Kind.BOOLEAN: "false", Kind.STRING: '""', Kind.BYTES: '""', Kind.FLOAT: "0.0"} | {
    Kind.DOUBLE: "0.0",
    **dict.fromkeys((Kind.INT, Kind.LONG, Kind.ULONG), "0"),
}
UNPACKED = " unpacked"


# ---------------------------------------------------------------------- files


def parse_file(text: str, imports: Mapping[str, str] | None = None) -> ProtoFile:
    """Reads a `.proto` text or a FileDescriptorProto in base64; names in it become full ones.

    `imports` are the texts of files that are no known ones, by their path. Raises SchemaError
    that names the line or the field.
    """
    file = _read(text)
    names = Names.of((file, *imported(file, imports or {})))

    def full(kind: str, scope: str, path: str) -> str:
        found = names.find(kind, scope)
        if found is None:
            raise SchemaError(f"{path}: there is no type {kind!r}", field=path)
        return found

    made = renamed(file, full)
    if sum(_check(message) for message in made.messages) > FIELDS_MAX:
        raise SchemaError(f"a schema has at most {FIELDS_MAX} fields and messages")
    for enum in made.enums:
        _check_enum(enum, enum.name)
    return made


def is_descriptor(text: str) -> bool:
    """Returns whether a text is a descriptor in base64, and no `.proto` file."""
    return _BASE64.fullmatch(text.rstrip()) is not None


def _read(text: str) -> ProtoFile:
    if len(text) > TEXT_MAX:
        raise SchemaError(f"a schema's text has at most {TEXT_MAX} characters, not {len(text)}")
    if not is_descriptor(text):
        return protobuf_text.parse(text)
    try:
        raw = base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError) as error:
        raise SchemaError(f"neither a .proto file nor a descriptor in base64: {error}") from error
    return protobuf_descriptor.parse(raw)


def imported(file: ProtoFile, texts: Mapping[str, str], depth: int = 0) -> list[ProtoFile]:
    """Returns the files that one imports, and those that they import."""
    found: dict[str, ProtoFile] = {}
    _import(file, texts, found, depth)
    return list(found.values())


def _import(
    file: ProtoFile, texts: Mapping[str, str], found: dict[str, ProtoFile], depth: int
) -> None:
    for path in file.imports:
        if path in found:
            continue
        word = path.removeprefix("google/protobuf/").removesuffix(".proto")
        if path in texts and depth < 32:
            found[path] = _read(texts[path])
            _import(found[path], texts, found, depth + 1)
        elif path == f"google/protobuf/{word}.proto" and word in _KNOWN:
            found[path] = _known_file(word)
        else:
            raise SchemaError(
                f"import {path!r} is not known; only Protobuf's own files are "
                f"({', '.join(sorted(_KNOWN))}). Put its messages into the same text"
            )


@functools.cache
def _known_file(word: str) -> ProtoFile:
    head = 'syntax = "proto3"; package google.protobuf;'
    file = protobuf_text.parse(f"{head} {_KNOWN[word]}")
    names = Names.of((file,))
    return renamed(file, lambda kind, scope, _: names.find(kind, scope) or kind)


def _check(message: ProtoMessage) -> int:
    """Raises SchemaError for what Protobuf refuses; returns how many fields and messages it has."""
    taken: dict[int, str] = {}
    if not NAME.fullmatch(message.name):
        raise SchemaError(f"{message.name[:40]!r} is not the name of a message")
    for field in message.fields:
        here = f"{message.name}.{field.name}"
        if not NAME.fullmatch(field.name):
            raise SchemaError(f"{here[:80]}: no name of a field", field=here)
        if field.number in taken:
            told = f"number {field.number} is that of {taken[field.number]}, too"
            raise SchemaError(f"{here}: {told}", field=here)
        taken[field.number] = field.name
        is_reserved = any(first <= field.number <= last for first, last in message.reserved)
        if is_reserved or field.name in message.reserved_names:
            raise SchemaError(f"{here}: its number or its name is reserved", field=here)
    if message.is_entry and [field.number for field in message.fields] != [1, 2]:
        raise SchemaError(f"{message.name}: the entry of a map has a key and a value")
    for enum in message.enums:
        _check_enum(enum, f"{message.name}.{enum.name}")
    return 1 + len(message.fields) + sum(_check(inner) for inner in message.messages)


def _check_enum(enum: ProtoEnum, path: str) -> None:
    symbols = [name for name, _ in enum.symbols]
    is_fine = bool(symbols) and len(set(symbols)) == len(symbols)
    if not is_fine or not all(NAME.fullmatch(each) for each in (enum.name, *symbols)):
        raise SchemaError(f"{path}: an enum has symbols, each once", field=path)
    if not all(-(1 << 31) <= number < 1 << 31 for _, number in enum.symbols):
        raise SchemaError(f"{path}: a symbol's number has 32 bits", field=path)


# ---------------------------------------------------------------------- messages


def parse(text: str, message: str = "", imports: Mapping[str, str] | None = None) -> Type:
    """Reads the first message of a text or a descriptor, or the one of a full name, as a record."""
    found = messages(parse_file(text, imports), imports)
    if not found:
        raise SchemaError("the .proto file has no message")
    if message not in ("", *found):
        raise SchemaError(f"there is no message {message!r}; there are {', '.join(found)[:200]}")
    return found[message] if message else next(iter(found.values()))


def messages(file: ProtoFile, imports: Mapping[str, str] | None = None) -> dict[str, Type]:
    """Returns every message of a file as a record, by its full name, outer ones first."""
    others = [_full_names(each, imports or {}) for each in imported(file, imports or {})]
    names, found = Names.of((file, *others)), {}
    made = _Records(names)

    def walk(listed: Iterable[ProtoMessage], scope: str, above: tuple[int, ...]) -> None:
        for place, each in enumerate(listed):
            full = f"{scope}.{each.name}"
            if not each.is_entry:
                indexes, kind = (*above, place), made.message(full, full[1:])
                if made.was_cut:  # which depends on where one began
                    kind = _Records(names).message(full, full[1:])
                refuse_unbounded(kind)
                found[full[1:]] = replace(kind, indexes=() if indexes == (0,) else indexes)
            walk(each.messages, full, (*above, place))

    walk(file.messages, file.scope, ())
    return dict(sorted(found.items(), key=lambda item: len(item[1].indexes)))


def _full_names(file: ProtoFile, texts: Mapping[str, str]) -> ProtoFile:
    names = Names.of((file, *imported(file, texts)))
    return renamed(file, lambda kind, scope, _: names.find(kind, scope) or kind)


class _Records:
    """Messages as records; each is made once. None is one whose fields are not known yet."""

    def __init__(self, names: Names) -> None:
        self.was_cut = False
        """Whether a message contains itself."""
        self._names = names
        self._made: dict[str, Type | None] = {}
        self._depth = 0

    def message(self, full: str, path: str) -> Type:
        if full in self._made:
            known = self._made[full]
            self.was_cut |= known is None
            return known if known is not None else Type(Kind.NAMED, name=full[1:])
        self._made[full] = None
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SchemaError(f"{path}: types lie more than {DEPTH_MAX} deep", field=path)
        target, syntax = self._names.known[full]
        assert isinstance(target, ProtoMessage)
        fields = [self._field(each, syntax, joined(path, each.name)) for each in target.fields]
        self._depth -= 1
        self._made[full] = made = record(full[1:], fields)
        return made

    def _field(self, given: ProtoField, syntax: str, path: str) -> Field:
        kind, wire = self._type(given.type, path)
        target = self._names.known.get(given.type, (None, ""))[0]
        if isinstance(target, ProtoMessage) and target.is_entry:
            return self._map(given, target, path)
        made = Field(given.name, kind, number=given.number, wire=wire, oneof=given.oneof)
        if given.label == "repeated":
            is_scalar = given.type in SCALARS and given.type not in ("string", "bytes")
            is_packed = syntax == PROTO3 if given.packed is None else given.packed
            if (is_scalar or isinstance(target, ProtoEnum)) and not is_packed:
                made = replace(made, wire=wire + UNPACKED)
            return replace(made, type=Type(Kind.ARRAY, items=kind), default="[]")
        if given.label == "required":
            return made
        is_one = given.type in SCALARS or isinstance(target, ProtoEnum)
        if is_one and not given.oneof and given.default is not None:
            return replace(made, default=_checked_default(given, kind, path))
        if syntax == PROTO3 and is_one and not given.oneof and given.label != "optional":
            return replace(made, default=zero_of(kind))
        return replace(made, type=kind.or_null(), default="null")

    def _map(self, given: ProtoField, entry: ProtoMessage, path: str) -> Field:
        (keys, key_wire), (items, wire) = (self._type(each.type, path) for each in entry.fields)
        made = Type(Kind.MAP, items=items, keys=None if keys.kind == Kind.STRING else keys)
        return Field(given.name, made, "{}", number=given.number, wire=f"{key_wire},{wire}")

    def _type(self, name: str, path: str) -> tuple[Type, str]:
        """The column of a type, and its word."""
        if name in SCALARS:
            return Type(SCALARS[name]), name
        if name[1:] in _WHOLE:
            return Type(_WHOLE[name[1:]]), name[1:]
        target, _ = self._names.known[name]
        if isinstance(target, ProtoEnum):
            return enum_type(name[1:], target.symbols), ""
        return self.message(name, path), ""


def enum_type(name: str, symbols: tuple[tuple[str, int], ...]) -> Type:
    """Makes the type of an enum; numbers that count up from 0 say nothing more."""
    numbers = tuple(number for _, number in symbols)
    plain = numbers == tuple(range(len(numbers)))
    words = tuple(word for word, _ in symbols)
    return Type(Kind.ENUM, name=name, symbols=words, numbers=() if plain else numbers)


def numbers_of(kind: Type) -> tuple[int, ...]:
    """Returns the number of each symbol of an enum."""
    return kind.numbers or tuple(range(len(kind.symbols)))


def zero_of(kind: Type) -> str | None:
    """Returns the default of a field that says none, as JSON text; None where there is none."""
    if kind.kind == Kind.ENUM:
        return json.dumps(kind.symbols[0])
    if kind.kind in (Kind.FIXED, Kind.DECIMAL, Kind.UUID):
        return None
    return _ZEROS.get(kind.stored)


def _checked_default(given: ProtoField, kind: Type, path: str) -> str:
    value = json.loads(given.default or "null")
    if kind.kind == Kind.ENUM and value not in kind.symbols:
        raise SchemaError(f"{path}: the default {value!r} is not a symbol", field=path)
    limits = {"int32": (-31, 31), "int64": (-63, 63), "uint32": (0, 32), "uint64": (0, 64)}
    word = given.type.removeprefix("s").replace("fixed", "int" if given.type[0] == "s" else "uint")
    if word in limits:
        low, high = limits[word]
        if not (-(1 << -low) if low else 0) <= value < 1 << high:
            raise SchemaError(
                f"{path}: the default {value} is not of type {given.type}", field=path
            )
    return given.default or "null"
