"""Dataclasses and Pydantic models as Arrow schemas, by their annotations.

Neither library is imported here: a dataclass is known by its fields, a Pydantic model by
`model_fields`, which it brings itself. `Optional[X]` is a column that may be null; a default that
JSON can say is kept.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import types
import typing
import uuid
from typing import Any

from lamina.errors import SchemaError
from lamina.formats.typed.schema_model import (
    DEPTH_MAX,
    Field,
    Kind,
    Type,
    joined,
    record,
    refuse_unbounded,
)

_PLAIN: dict[Any, Type] = {
    bool: Type(Kind.BOOLEAN),
    int: Type(Kind.LONG),
    float: Type(Kind.DOUBLE),
    str: Type(Kind.STRING),
    bytes: Type(Kind.BYTES),
    datetime.datetime: Type(Kind.TIMESTAMP_MICROS),
    datetime.date: Type(Kind.DATE),
    datetime.time: Type(Kind.TIME_MICROS),
    datetime.timedelta: Type(Kind.DURATION_MICROS),
    decimal.Decimal: Type(Kind.DECIMAL, precision=38, scale=9),
    uuid.UUID: Type(Kind.UUID),
    type(None): Type(Kind.NULL),
}


def is_declared(given: object) -> bool:
    """Whether a value is a dataclass or a Pydantic model (the class, not an object of it)."""
    return isinstance(given, type) and (dataclasses.is_dataclass(given) or _is_model(given))


def _is_model(given: type) -> bool:
    return isinstance(getattr(given, "model_fields", None), dict)


def from_class(given: type) -> Type:
    """Makes the record of a class; raises SchemaError naming a field that has no column."""
    made = _record(given, given.__name__, "", 0)
    refuse_unbounded(made)
    return made


def _record(given: type, name: str, path: str, depth: int) -> Type:
    if depth > DEPTH_MAX:
        raise SchemaError(f"{path}: {given.__name__} contains itself", field=path)
    hints = _hints(given)
    fields = []
    for field, default in _fields(given):
        here = joined(path, field)
        kind = _type(hints[field], f"{name}_{field}", here, depth + 1)
        text = None if default is _REQUIRED else _default(default, kind)
        if text is None and kind.is_nullable:
            text = "null"
        fields.append(Field(field, kind, text))
    return record(name, fields)


def _hints(given: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(given, include_extras=True)
    except NameError as error:
        raise SchemaError(f"{given.__name__}: an annotation names nothing: {error}") from error


_REQUIRED = object()


def _fields(given: type) -> list[tuple[str, Any]]:
    """The fields of a class, each with its default."""
    if _is_model(given):
        models: dict[str, Any] = given.model_fields  # type: ignore[attr-defined]
        return [
            (name, _REQUIRED if each.is_required() or each.default_factory else each.default)
            for name, each in models.items()
        ]
    return [
        (each.name, _REQUIRED if each.default is dataclasses.MISSING else each.default)
        for each in dataclasses.fields(given)
    ]


def _default(value: Any, kind: Type) -> str | None:
    """A default as JSON has it; None where it has no word for it."""
    if isinstance(value, enum.Enum):
        value = value.name
    is_plain = value is None or isinstance(value, bool | int | float | str)
    if not is_plain or (value is None and not kind.is_nullable):
        return None
    return json.dumps(value)


def _type(hint: Any, name: str, path: str, depth: int) -> Type:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _type(inner[0], name, path, depth)
    if origin in (typing.Union, types.UnionType):
        others = [each for each in inner if each is not type(None)]
        if len(others) != 1:
            raise SchemaError(f"{path}: {hint} is more than one type and None", field=path)
        return _type(others[0], name, path, depth).or_null()
    if origin in (list, tuple, set, frozenset) and inner:
        return Type(Kind.ARRAY, items=_type(inner[0], name, joined(path, "[]"), depth + 1))
    if origin is dict and inner:
        keys = None if inner[0] is str else _type(inner[0], name, path, depth)
        items = _type(inner[1], name, joined(path, "{}"), depth + 1)
        return Type(Kind.MAP, items=items, keys=keys)
    if origin is typing.Literal and all(isinstance(each, str) for each in inner):
        return Type(Kind.STRING)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return Type(Kind.ENUM, name=name, symbols=tuple(each.name for each in hint))
    if is_declared(hint):
        return _record(hint, name, path, depth)
    raise SchemaError(f"{path}: there is no column for {hint}", field=path)
