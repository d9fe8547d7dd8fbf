"""Values of the public types as JSON and back, led by their annotations.

    to_plain(value)          dataclasses become objects, tuples lists, enums names, bytes base64
    from_plain(hint, plain)  the same value again; InvalidRequest for what does not fit
    schema_of(hint)          the JSON Schema of a type, for the OpenAPI page

Rule: a type that is not listed here is refused when the table of operations is read, not when a
client calls.
"""

from __future__ import annotations

import base64
import binascii
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal

from lamina.errors import InvalidRequest

INT64 = 1 << 63
TEXT_OR_BYTES: dict[str, Any] = {
    "description": "Text, or an object with base64 for bytes that are no text",
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"base64": {"type": "string", "format": "byte"}},
            "required": ["base64"],
            "additionalProperties": False,
        },
    ],
}
"""The JSON Schema of bytes."""
_LISTED = (list, tuple, Sequence, Iterable)
_PLAIN: dict[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}


def to_plain(value: Any) -> Any:
    """Makes what JSON can hold of a value of a public type."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Iterable):
        return [to_plain(item) for item in value]
    if hasattr(value, "__index__"):
        return int(value)
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
    if origin in _LISTED:
        items = _of(list, plain, where)
        kinds = _kinds_of(arguments, items, where)
        made = [from_plain(kind, item, where) for kind, item in zip(kinds, items, strict=True)]
        return tuple(made) if origin is tuple else made
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
    problems = []
    for kind in others:
        try:
            return from_plain(kind, plain, where)
        except InvalidRequest as problem:
            problems.append(str(problem))
    raise InvalidRequest("; or ".join(problems))


def _kinds_of(arguments: tuple[Any, ...], items: list[Any], where: str) -> list[Any]:
    """The type of each item: of a list the same for all, of a tuple one for each place."""
    if len(arguments) == 1 or arguments[1] is Ellipsis:
        return [arguments[0]] * len(items)
    if len(items) != len(arguments):
        raise InvalidRequest(f"{where} must have {len(arguments)} parts, not {len(items)}")
    return list(arguments)


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


def bytes_of(plain: Any, where: str) -> bytes:
    """Makes bytes of text or of an object with base64."""
    if isinstance(plain, str):
        try:
            return plain.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{where} is not Unicode text") from error
    if isinstance(plain, dict) and set(plain) == {"base64"} and isinstance(plain["base64"], str):
        try:
            return base64.b64decode(plain["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"{where} is not base64") from error
    raise InvalidRequest(f'{where} must be text, null or {{"base64": …}}')


def _scalar(hint: Any, plain: Any, where: str) -> Any:
    if hint is type(None):
        return None
    if hint is bytes:
        return bytes_of(plain, where)
    if hint is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if issubclass(hint, Enum):
        if not isinstance(plain, str) or plain not in hint.__members__:
            allowed = " or ".join(hint.__members__)
            raise InvalidRequest(f"{where} must be {allowed}, not {_shown(plain)}")
        return hint[plain]
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
    if origin is tuple and arguments[-1] is not Ellipsis:
        kinds, count = [schema_of(kind) for kind in dict.fromkeys(arguments)], len(arguments)
        return {"type": "array", "items": {"anyOf": kinds}, "minItems": count, "maxItems": count}
    if origin in _LISTED:
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
    if hint is bytes:
        return TEXT_OR_BYTES
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"type": "string", "enum": list(hint.__members__)}
    described: dict[str, Any] = {"type": _PLAIN[hint]}
    return described | ({"format": "int64"} if hint is int else {})
