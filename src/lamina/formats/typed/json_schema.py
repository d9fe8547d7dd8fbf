"""JSON Schema's text as a schema: an object with properties becomes a record.

Understood: `type` (also a list with "null"), `properties`, `required`, `items`,
`additionalProperties` of one type (a map), `enum` of texts, `format` date, date-time, time and
uuid, `contentEncoding` base64 (bytes), `$ref` to `$defs` or `definitions` of the same text, `anyOf`
and `oneOf` of one type and null, and `default`. What else a text says about values (ranges,
patterns) is not checked. A property that is not required may be missing, and is null then.
"""

from __future__ import annotations

import json
from typing import Any

from lamina.errors import SchemaError
from lamina.formats.typed.avro_text import loads
from lamina.formats.typed.schema_model import (
    DEPTH_MAX,
    FIELDS_MAX,
    Field,
    Kind,
    Type,
    joined,
    record,
    refuse_unbounded,
)

_PLAIN = {
    "null": Kind.NULL,
    "boolean": Kind.BOOLEAN,
    "integer": Kind.LONG,
    "number": Kind.DOUBLE,
    "string": Kind.STRING,
}
_FORMATS = {
    "date": Kind.DATE,
    "date-time": Kind.TIMESTAMP_MICROS,
    "time": Kind.TIME_MICROS,
    "uuid": Kind.UUID,
}


_INSIDE = {"[]": "items", "{}": "values"}
"""What steps of a path are called in the names of records, where they are no names themselves."""
TYPES_MAX = 4 * FIELDS_MAX
"""How many types a text may unfold into: by `$ref` a short text can name each one many times."""


def parse(text: str) -> Type:
    """Reads JSON Schema; raises SchemaError for what has no columns."""
    document = loads(text)
    if not isinstance(document, dict):
        raise SchemaError("a JSON schema of a topic is an object")
    made = _Reader(document).type_of(document, "", 0)
    refuse_unbounded(made)
    return made


class _Reader:
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._left = TYPES_MAX

    def type_of(self, given: Any, path: str, depth: int) -> Type:
        self._left -= 1
        if self._left < 0:
            raise SchemaError(f"the schema unfolds into more than {TYPES_MAX} types", field=path)
        if not isinstance(given, dict):
            raise SchemaError(f"{path or 'schema'}: {str(given)[:80]} is not a schema", field=path)
        if depth > DEPTH_MAX:
            raise SchemaError(f"{path}: the schema contains itself, or is too deep", field=path)
        if "$ref" in given:
            return self.type_of(self._target(given["$ref"], path), path, depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in given:
                return self._one_of(given[word], path, depth)
        kinds = given.get("type", "object" if "properties" in given else None)
        if "enum" in given and kinds in (None, "string"):
            return _enum(given["enum"], path)
        if isinstance(kinds, list):
            others = [each for each in kinds if each != "null"]
            if len(others) != 1:
                raise SchemaError(f"{path}: {kinds} is more than one type and null", field=path)
            made = self.type_of({**given, "type": others[0]}, path, depth)
            return made.or_null(is_nullable="null" in kinds)
        return self._of_kind(kinds, given, path, depth)

    def _of_kind(self, kind: Any, given: dict[str, Any], path: str, depth: int) -> Type:
        if kind == "object":
            return self._object(given, path, depth)
        if kind == "array":
            items = self.type_of(given.get("items"), joined(path, "[]"), depth + 1)
            return Type(Kind.ARRAY, items=items)
        if kind == "string" and given.get("contentEncoding") == "base64":
            return Type(Kind.BYTES)
        shape = given.get("format")
        if kind == "string" and isinstance(shape, str) and shape in _FORMATS:
            return Type(_FORMATS[shape])
        if isinstance(kind, str) and kind in _PLAIN:
            return Type(_PLAIN[kind])
        raise SchemaError(f"{path or 'schema'}: no column for type {kind!r}", field=path)

    def _target(self, reference: Any, path: str) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise SchemaError(f"{path}: {reference!r} is in another text", field=path)
        found: Any = self._document
        for step in reference[2:].split("/"):
            if not isinstance(found, dict) or step not in found:
                raise SchemaError(f"{path}: there is no {reference}", field=path)
            found = found[step]
        return found

    def _one_of(self, given: Any, path: str, depth: int) -> Type:
        if not isinstance(given, list):
            raise SchemaError(f"{path}: anyOf and oneOf are lists of schemas", field=path)
        kinds = [self.type_of(each, path, depth + 1) for each in given]
        others = [each for each in kinds if each.kind != Kind.NULL]
        if len(others) != 1:
            raise SchemaError(f"{path}: anyOf is more than one type and null", field=path)
        return others[0].or_null(is_nullable=len(kinds) > 1 or others[0].is_nullable)

    def _object(self, given: dict[str, Any], path: str, depth: int) -> Type:
        properties = given.get("properties", {})
        more = given.get("additionalProperties")
        if not properties and isinstance(more, dict) and more:
            return Type(Kind.MAP, items=self.type_of(more, joined(path, "{}"), depth + 1))
        if not isinstance(properties, dict):
            raise SchemaError(f"{path or 'schema'}: properties are an object", field=path)
        required = given.get("required", [])
        if not isinstance(required, list):
            raise SchemaError(f"{path or 'schema'}: required is a list of names", field=path)
        fields = [
            self._field(name, inner, required, joined(path, name), depth)
            for name, inner in properties.items()
        ]
        steps = [_INSIDE.get(step, step) for step in path.split(".")] if path else []
        return record("_".join(("record", *steps)), fields)

    def _field(self, name: str, given: Any, required: Any, path: str, depth: int) -> Field:
        kind = self.type_of(given, path, depth + 1)
        has_default = isinstance(given, dict) and "default" in given
        is_free = name not in required and not has_default and kind.kind != Kind.NULL
        default = json.dumps(given["default"]) if has_default else ("null" if is_free else None)
        return Field(name, kind.or_null(is_nullable=kind.is_nullable or is_free), default)


def _enum(given: Any, path: str) -> Type:
    symbols = [each for each in given if each is not None] if isinstance(given, list) else []
    if not symbols or not all(isinstance(each, str) for each in symbols):
        raise SchemaError(f"{path}: an enum is a list of texts", field=path)
    # JSON writes symbols as text, which may be anything; a column of text holds them all.
    return Type(Kind.STRING, is_nullable=None in given)


# ---------------------------------------------------------------------- writing


_WORDS = {
    Kind.INT: "integer",
    Kind.LONG: "integer",
    Kind.FLOAT: "number",
    Kind.DOUBLE: "number",
} | {
    Kind.ULONG: "integer",
    Kind.DECIMAL: "number",
    Kind.BOOLEAN: "boolean",
    Kind.NULL: "null",
}
_SHAPES = {kind: word for word, kind in _FORMATS.items()} | {
    Kind.TIMESTAMP_MILLIS: "date-time",
    Kind.TIMESTAMP_NANOS: "date-time",
    Kind.TIME_MILLIS: "time",
}


def text_of(kind: Type) -> str:
    """Returns a record as JSON Schema; of what that has no word for, the nearest that it has."""
    return json.dumps(_document(kind), separators=(",", ":"))


def _document(kind: Type) -> dict[str, Any]:
    made = _plain_document(kind)
    word = made.get("type")
    if kind.is_nullable and kind.kind != Kind.NULL:
        made["type"] = [word, "null"]
        if "enum" in made:
            made["enum"] = [*made["enum"], None]
    return made


def _plain_document(kind: Type) -> dict[str, Any]:
    if kind.kind == Kind.RECORD:
        required = [each.name for each in kind.fields if each.default is None]
        inside = {each.name: _field_document(each) for each in kind.fields}
        made: dict[str, Any] = {"type": "object", "properties": inside}
        return made | ({"required": required} if required else {})
    if kind.kind == Kind.ARRAY and kind.items is not None:
        return {"type": "array", "items": _document(kind.items)}
    if kind.kind == Kind.MAP and kind.items is not None:
        return {"type": "object", "additionalProperties": _document(kind.items)}
    if kind.kind == Kind.ENUM:
        return {"type": "string", "enum": list(kind.symbols)}
    if kind.kind in _WORDS:
        return {"type": _WORDS[kind.kind]}
    shape = _SHAPES.get(kind.kind)
    return {"type": "string"} | ({"format": shape} if shape else {})


def _field_document(field: Field) -> dict[str, Any]:
    made = _document(field.type)
    if field.default in (None, "null"):
        return made
    return made | {"default": json.loads(str(field.default))}
