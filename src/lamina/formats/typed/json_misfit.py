"""Which field of a bad JSON document is at fault, and why: asked only about rows that are bad.

What reads documents in batches knows that a line is wrong, and rarely where. Here one document is
looked through in the order of the schema, and the first value that no column could take is named.

Rules.
1. Nothing here decides whether a row is bad; a document in which nothing is found keeps what the
   reader said of it.
2. What is in doubt fits: the readers alone know every way to write a number.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from lamina.formats.typed.arrow_types import to_arrow
from lamina.formats.typed.clock_texts import is_readable
from lamina.formats.typed.row_faults import BAD_DOCUMENT, BAD_SYMBOL, MISSING_FIELD
from lamina.formats.typed.schema_model import Field, Kind, Type, joined

_WHOLE = {
    Kind.INT: range(-(1 << 31), 1 << 31),
    Kind.LONG: range(-(1 << 63), 1 << 63),
    Kind.ULONG: range(1 << 64),
}
_CLASSES: dict[Kind, type | tuple[type, ...]] = {
    Kind.BOOLEAN: bool,
    Kind.FLOAT: (int, float),
    Kind.DOUBLE: (int, float),
    Kind.STRING: str,
    Kind.ENUM: str,
    Kind.UUID: str,
    Kind.DATE: str,
    Kind.TIME_MILLIS: str,
    Kind.TIME_MICROS: str,
    Kind.RECORD: dict,
    Kind.MAP: dict,
    Kind.ARRAY: list,
}


_TIMES = {
    *(Kind.DATE, Kind.TIME_MILLIS, Kind.TIME_MICROS),
    *(Kind.TIMESTAMP_MILLIS, Kind.TIMESTAMP_MICROS, Kind.TIMESTAMP_NANOS),
    *(Kind.LOCAL_TIMESTAMP_MILLIS, Kind.LOCAL_TIMESTAMP_MICROS, Kind.LOCAL_TIMESTAMP_NANOS),
}


class Misfit(NamedTuple):
    """A value that does not fit: where it is, what was expected there, and what is wrong."""

    path: str
    kind: Type
    code: int


def misfit(schema: Type, text: bytes) -> Misfit | None:
    """Returns the first value of a document that does not fit; None where none is found."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _in_record(schema, document, "") if isinstance(document, dict) else None


def _in_record(kind: Type, value: dict[str, Any], path: str) -> Misfit | None:
    for field in kind.fields:
        found = _in_field(field, value, joined(path, field.name))
        if found is not None:
            return found
    return None


def _in_field(field: Field, record: dict[str, Any], path: str) -> Misfit | None:
    value = next((record[name] for name in field.names if record.get(name) is not None), None)
    if value is not None:
        return _in_value(field.type, value, path)
    needed = not field.type.is_nullable and field.type.kind != Kind.NULL and field.default is None
    return Misfit(path, field.type, MISSING_FIELD) if needed else None


def _in_value(kind: Type, value: Any, path: str) -> Misfit | None:
    if not _fits(kind, value):
        return Misfit(path, kind, BAD_DOCUMENT)
    if kind.kind == Kind.ENUM:
        return None if value in kind.symbols else Misfit(path, kind, BAD_SYMBOL)
    if kind.kind == Kind.RECORD:
        return _in_record(kind, value, path)
    if kind.items is None:
        return None
    items = value.values() if kind.kind == Kind.MAP else value
    return _in_items(kind.items, items, f"{path}[]")


def _in_items(kind: Type, items: Any, path: str) -> Misfit | None:
    for item in items:
        if item is not None:
            found = _in_value(kind, item, path)
        else:
            needed = not kind.is_nullable and kind.kind != Kind.NULL
            found = Misfit(path, kind, MISSING_FIELD) if needed else None
        if found is not None:
            return found
    return None


def _fits(kind: Type, value: Any) -> bool:
    whole = _WHOLE.get(kind.kind)
    if whole is not None:
        return type(value) is int and value in whole
    if kind.kind in _TIMES and isinstance(value, str):
        return is_readable(value, to_arrow(kind))
    wanted = _CLASSES.get(kind.kind)
    if wanted is None:
        return True
    return isinstance(value, wanted) and (kind.kind == Kind.BOOLEAN or type(value) is not bool)
