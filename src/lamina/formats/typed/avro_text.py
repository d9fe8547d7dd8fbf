"""Avro's JSON text of a schema, both ways; and the one text by which a schema is known.

Beside what Avro defines, properties that begin with `lamina.` keep what Avro has no word for
(Protobuf's numbers); others may ignore them, as Avro says of properties that it does not know.
Text comes from outside: its size, depth and number of fields are bounded before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lamina.errors import SchemaError
from lamina.formats.typed.schema_model import (
    NAME,
    TEXT_MAX,
    Field,
    Kind,
    Type,
    joined,
    record,
    refuse_unbounded,
)

_PLAIN = {
    kind.value: kind
    for kind in (
        *(Kind.NULL, Kind.BOOLEAN, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE),
        *(Kind.BYTES, Kind.STRING),
    )
}
_LOGICAL = {
    "int": (Kind.DATE, Kind.TIME_MILLIS),
    "long": (
        *(Kind.TIME_MICROS, Kind.TIMESTAMP_MILLIS, Kind.TIMESTAMP_MICROS, Kind.TIMESTAMP_NANOS),
        *(Kind.LOCAL_TIMESTAMP_MILLIS, Kind.LOCAL_TIMESTAMP_MICROS, Kind.LOCAL_TIMESTAMP_NANOS),
        *(Kind.DURATION_MILLIS, Kind.DURATION_MICROS, Kind.DURATION_NANOS, Kind.ULONG),
    ),
    "string": (Kind.UUID,),
}
_LEVELS_MAX = 200
_UNSAYABLE = ("Infinity", "-Infinity", "NaN")
_TEXTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
"""The texts in JSON: a bracket in one of them opens and closes nothing.

One that is not closed is all of the rest, so that nobody looks for its end from each quote in it.
"""


def parse(text: str, others: Iterable[str] = ()) -> Type:
    """Reads Avro's JSON; raises SchemaError where it is not a schema.

    `others` are texts whose named types it may name, each behind those that it names itself.
    """
    reader = _Reader()
    for each in others:
        refuse_unbounded(reader.type_of(loads(each), "", ""))
    kind = reader.type_of(loads(text), "", "")
    refuse_unbounded(kind)
    return kind


def loads(text: str) -> Any:
    """Reads JSON text of a schema, bounded in size and depth."""
    if len(text) > TEXT_MAX:
        raise SchemaError(f"a schema's text has at most {TEXT_MAX} characters, not {len(text)}")
    depth = 0
    for character in _TEXTS.sub("", text):
        depth += (character in "[{") - (character in "]}")
        if depth > _LEVELS_MAX:
            raise SchemaError(f"the schema's JSON lies more than {_LEVELS_MAX} deep")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word}: a number that is NaN or infinite cannot be said in JSON")


class _Reader:
    """One reading of a schema: the names that it has defined so far."""

    def __init__(self) -> None:
        self._known: dict[str, Type | None] = {}

    def type_of(self, given: Any, space: str, path: str) -> Type:
        """Reads one type; None in `_known` is a name whose definition has not ended."""
        if isinstance(given, str):
            return self._by_name(given, space, path)
        if isinstance(given, list):
            return self._union(given, space, path)
        if not isinstance(given, dict) or "type" not in given:
            raise SchemaError(f"{path or 'schema'}: {_cut(given)} is not an Avro type", field=path)
        word = given["type"]
        if not isinstance(word, str):
            return self.type_of(word, space, path)
        if word in ("record", "error"):
            return self._record(given, space, path)
        if word in ("enum", "fixed"):
            return self._named(given, space, path)
        if word in ("array", "map"):
            inner = given.get("items" if word == "array" else "values")
            step = "[]" if word == "array" else "{}"
            keys = None
            if word == "map" and "lamina.keys" in given:
                keys = self.type_of(given["lamina.keys"], space, path)
            return Type(Kind(word), items=self.type_of(inner, space, joined(path, step)), keys=keys)
        return _logical(self._by_name(word, space, path), given, path)

    def _by_name(self, name: str, space: str, path: str) -> Type:
        if name in _PLAIN:
            return Type(_PLAIN[name])
        for full in (f"{space}.{name}" if space and "." not in name else name, name):
            if full in self._known:
                known = self._known[full]
                return known if known is not None else Type(Kind.NAMED, name=full)
        raise SchemaError(f"{path or 'schema'}: unknown type {name!r}", field=path)

    def _union(self, given: list[Any], space: str, path: str) -> Type:
        branches = [self.type_of(each, space, path) for each in given]
        others = [each for each in branches if each.kind != Kind.NULL]
        if any(each.kind == Kind.UNION or each.is_nullable for each in branches):
            raise SchemaError(f"{path}: a union may not contain a union", field=path)
        if not branches or len(branches) - len(others) > 1:
            raise SchemaError(f"{path}: a union names each type once", field=path)
        if len(others) == 1 and len(branches) == 2:
            is_last = branches[1].kind == Kind.NULL
            return replace(others[0], is_nullable=True, null_is_last=is_last)
        return Type(Kind.UNION, branches=tuple(branches))

    def _begin(self, given: dict[str, Any], space: str, path: str) -> tuple[str, tuple[str, ...]]:
        name = given.get("name")
        if not isinstance(name, str) or not all(NAME.fullmatch(p) for p in name.split(".")):
            raise SchemaError(f"{path or 'schema'}: {_cut(name)} is not a name", field=path)
        inside = given.get("namespace", space)
        if not isinstance(inside, str):
            raise SchemaError(f"{path or name}: {_cut(inside)} is not a namespace", field=path)
        full = name if "." in name or not inside else f"{inside}.{name}"
        if full in self._known:
            raise SchemaError(f"{path}: {full} is defined twice", field=path)
        self._known[full] = None
        return full, _texts(given.get("aliases", []), path)

    def _record(self, given: dict[str, Any], space: str, path: str) -> Type:
        full, aliases = self._begin(given, space, path)
        inside = full.rpartition(".")[0]
        listed = given.get("fields")
        if not isinstance(listed, list):
            raise SchemaError(f"{full}: a record needs a list of fields", field=path)
        made = record(full, [self._field(each, inside, path) for each in listed])
        indexes = given.get("lamina.indexes", [])
        if not isinstance(indexes, list) or not all(isinstance(each, int) for each in indexes):
            raise SchemaError(f"{full}: lamina.indexes is a list of numbers", field=path)
        made = replace(made, aliases=aliases, indexes=tuple(indexes))
        self._known[full] = made
        return made

    def _field(self, given: Any, space: str, path: str) -> Field:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise SchemaError(f"{path or 'schema'}: {_cut(given)} is not a field", field=path)
        here = joined(path, given["name"])
        kind = self.type_of(given.get("type"), space, here)
        number, wire = given.get("lamina.number", 0), given.get("lamina.wire", "")
        oneof = given.get("lamina.oneof", "")
        if not isinstance(number, int) or not isinstance(wire, str) or not isinstance(oneof, str):
            raise SchemaError(
                f"{here}: lamina.number is a number, lamina.wire and lamina.oneof are words",
                field=here,
            )
        aliases = _texts(given.get("aliases", []), here)
        default = _default_read(given["default"], kind, number) if "default" in given else None
        return Field(given["name"], kind, default, aliases, number, wire, oneof)

    def _named(self, given: dict[str, Any], space: str, path: str) -> Type:
        full, aliases = self._begin(given, space, path)
        if given["type"] == "enum":
            symbols = _texts(given.get("symbols"), path)
            if not symbols or len(set(symbols)) < len(symbols):
                raise SchemaError(f"{full}: an enum has symbols, each once", field=path)
            fallback = given.get("default", "")
            if fallback != "" and fallback not in symbols:
                raise SchemaError(f"{full}: {_cut(fallback)} is not a symbol of it", field=path)
            numbers = given.get("lamina.numbers", [])
            is_list = isinstance(numbers, list)
            if not is_list or (numbers and [type(n) for n in numbers] != [int] * len(symbols)):
                raise SchemaError(f"{full}: lamina.numbers has one for each symbol", field=path)
            numbers = tuple(numbers)
            made = Type(Kind.ENUM, name=full, symbols=symbols, default_symbol=fallback)
            made = replace(made, aliases=aliases, numbers=numbers)
        else:
            size = given.get("size")
            if type(size) is not int or not 0 <= size <= 1 << 20:
                raise SchemaError(f"{full}: a fixed has a size in bytes", field=path)
            made = Type(Kind.FIXED, name=full, size=size, aliases=aliases)
            made = _logical(made, given, path)
        self._known[full] = made
        return made


def _logical(plain: Type, given: dict[str, Any], path: str) -> Type:
    """Applies a logical type; one that is unknown or does not fit is ignored, as Avro says."""
    word = given.get("logicalType")
    if word == "decimal" and plain.kind in (Kind.BYTES, Kind.FIXED):
        precision, scale = given.get("precision"), given.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or precision < 1:
            raise SchemaError(f"{path}: a decimal needs precision and scale", field=path)
        return replace(plain, kind=Kind.DECIMAL, precision=precision, scale=scale)
    if word == "uuid" and plain.kind == Kind.FIXED and plain.size == 16:
        return replace(plain, kind=Kind.UUID)
    for kind in _LOGICAL.get(plain.kind.value, ()):
        if word == kind.value:
            return replace(plain, kind=kind)
    return plain


def _texts(given: Any, path: str) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise SchemaError(f"{path}: {_cut(given)} is not a list of names", field=path)
    return tuple(given)


def _cut(given: Any) -> str:
    told = repr(given)
    return told if len(told) <= 80 else f"{told[:77]}..."


# ---------------------------------------------------------------------- writing


def text_of(kind: Type) -> str:
    """Returns the canonical text: the same for schemas that say the same in other layout."""
    return json.dumps(_document(kind, set()), separators=(",", ":"), sort_keys=False)


def fingerprint(kind: Type) -> str:
    """Returns the SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(text_of(kind).encode()).hexdigest()


def _document(kind: Type, known: set[str], space: str = "") -> Any:
    if kind.kind == Kind.UNION:
        return [_document(each, known, space) for each in kind.branches]
    plain = _plain_document(kind, known, space)
    if not kind.is_nullable:
        return plain
    return [plain, "null"] if kind.null_is_last else ["null", plain]


def _plain_document(kind: Type, known: set[str], space: str) -> Any:
    if kind.name and (kind.kind == Kind.NAMED or kind.name in known):
        return kind.name
    if kind.items is not None:
        word = "items" if kind.kind == Kind.ARRAY else "values"
        keys = {"lamina.keys": _document(kind.keys, known, space)} if kind.keys is not None else {}
        return {"type": kind.kind.value, word: _document(kind.items, known, space), **keys}
    if kind.kind.value in _PLAIN:
        return kind.kind.value
    stored = kind.stored
    made: dict[str, Any] = {"type": stored.value}
    if kind.name:
        known.add(kind.name)
        made["name"] = kind.name
        if space and "." not in kind.name:  # without this it would be a name of the space around it
            made["namespace"] = ""
    if kind.aliases:
        made["aliases"] = list(kind.aliases)
    if stored == Kind.RECORD:
        made |= {"lamina.indexes": list(kind.indexes)} if kind.indexes else {}
        inside = kind.name.rpartition(".")[0]
        made["fields"] = [_field_document(each, known, inside) for each in kind.fields]
    elif stored == Kind.ENUM:
        made["symbols"] = list(kind.symbols)
        made |= {"default": kind.default_symbol} if kind.default_symbol else {}
        made |= {"lamina.numbers": list(kind.numbers)} if kind.numbers else {}
    elif stored == Kind.FIXED:
        made["size"] = kind.size
    if kind.kind not in (Kind.RECORD, Kind.ENUM, Kind.FIXED):
        made["logicalType"] = kind.kind.value
    if kind.kind == Kind.DECIMAL:
        made |= {"precision": kind.precision, "scale": kind.scale}
    return made


def _default_read(given: Any, kind: Type, number: int) -> str:
    if number and given in _UNSAYABLE and kind.kind in (Kind.FLOAT, Kind.DOUBLE):
        return json.dumps(float(given))
    return json.dumps(given)


def _default_written(default: Any, number: int) -> Any:
    """Returns a default as a document has it: JSON has no number for Protobuf's infinite ones."""
    told = json.dumps(default)
    return told if number and told in _UNSAYABLE else default


def _field_document(field: Field, known: set[str], space: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": field.name, "type": _document(field.type, known, space)}
    if field.default is not None:
        made["default"] = _default_written(json.loads(field.default), field.number)
    if field.aliases:
        made["aliases"] = list(field.aliases)
    if field.number:
        made["lamina.number"] = field.number
    if field.wire:
        made["lamina.wire"] = field.wire
    if field.oneof:
        made["lamina.oneof"] = field.oneof
    return made
