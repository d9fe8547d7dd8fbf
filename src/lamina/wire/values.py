"""Values of the public types as JSON and back, led by their annotations.

    to_plain(value)          dataclasses become objects, tuples lists
    from_plain(hint, plain)  the same value again; InvalidRequest for what does not fit
    schema_of(hint)          the JSON Schema of a type, for the OpenAPI page

Rule: a type that is not listed here is refused when the table of operations is read, not when a
client calls.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal

from lamina.errors import InvalidRequest

INT64 = 1 << 63
_PLAIN: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}


def to_plain(value: Any) -> Any:
    """Makes what JSON can hold of a value of a public type."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, int | float | str):
        return value
    raise InvalidRequest(f"{value!r} cannot be sent")


def from_plain(hint: Any, plain: Any, where: str = "the value") -> Any:
    """Makes a value of a type from JSON; raises InvalidRequest naming what does not fit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return plain
    if origin in (typing.Union, types.UnionType):
        return _from_union(arguments, plain, where)
    if origin is Literal:
        if plain not in arguments:
            allowed = " or ".join(map(repr, arguments))
            raise InvalidRequest(f"{where} must be {allowed}, not {plain!r}")
        return plain
    if origin in (list, tuple, Sequence):
        items = [from_plain(arguments[0], item, where) for item in _of(list, plain, where)]
        return tuple(items) if origin is tuple else items
    if origin in (dict, Mapping) or hint is dict:
        return {
            from_plain(arguments[0], _key(arguments[0], key), where): from_plain(
                arguments[1], item, f"{where}[{key!r}]"
            )
            for key, item in _of(dict, plain, where).items()
        }
    if is_dataclass(hint):
        return _from_fields(hint, _of(dict, plain, where), where)
    return _scalar(hint, plain, where)


def _from_union(kinds: tuple[Any, ...], plain: Any, where: str) -> Any:
    if plain is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    return from_plain(others[0], plain, where)


def _key(hint: Any, key: str) -> Any:
    return int(key) if hint is int and key.lstrip("-").isdigit() else key


def _of(kind: type, plain: Any, where: str) -> Any:
    if not isinstance(plain, kind):
        raise InvalidRequest(f"{where} must be {_word(kind)}, not {_shown(plain)}")
    return plain


def _from_fields(kind: Any, plain: dict[str, Any], where: str) -> Any:
    hints = _hints(kind)
    values = {}
    for item in fields(kind):
        if item.name in plain:
            values[item.name] = from_plain(hints[item.name], plain[item.name], item.name)
        elif item.default is MISSING and item.default_factory is MISSING:
            raise InvalidRequest(f"{where} needs {item.name!r}")
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _scalar(hint: Any, plain: Any, where: str) -> Any:
    if hint is type(None):
        return None
    if hint is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    fits = isinstance(plain, hint) and (hint is bool or not isinstance(plain, bool))
    if not fits:
        raise InvalidRequest(f"{where} must be {_word(hint)}, not {_shown(plain)}")
    if hint is int and not -INT64 <= plain < INT64:
        raise InvalidRequest(f"{where} must fit into 64 bits, not {_shown(plain)}")
    return plain


def _word(kind: type) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return words.get(kind, "a list" if kind is list else "an object")


def _shown(plain: Any) -> str:
    text = repr(plain)
    return text if len(text) <= 80 else f"{text[:77]}..."


def schema_of(hint: Any) -> dict[str, Any]:
    """Describes a type as JSON Schema."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [schema_of(kind) for kind in arguments if kind is not type(None)]
        nullable = type(None) in arguments
        return {"anyOf": [*kinds, {"type": "null"}]} if nullable else {"anyOf": kinds}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if is_dataclass(hint):
        hints: dict[str, Any] = _hints(hint)  # type: ignore[arg-type]  # it is a class
        names = [item.name for item in fields(hint)]
        properties = {name: schema_of(hints[name]) for name in names}
        return {"type": "object", "properties": properties, "required": names}
    if hint is type(None):
        return {"type": "null"}
    if hint is Any:
        return {}
    described: dict[str, Any] = {"type": _PLAIN[hint]}
    return described | ({"format": "int64"} if hint is int else {})
