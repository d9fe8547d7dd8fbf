"""Errors on the wire: class, message and fields as JSON; the same class comes back.

A class that this side does not know (a newer server's) comes back as its family, which is what a
caller acts upon.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from lamina import errors
from lamina.errors import (
    Busy,
    CorruptData,
    LaminaError,
    NotPrimary,
    RecordsMissing,
    SchemaError,
    TopicExists,
    UnknownTopic,
)

TEXT_MAX = 2048
"""Longer texts are cut: gRPC carries errors in its trailer, which has little room."""

KINDS: dict[str, type[LaminaError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, LaminaError)
}
"""Every error by its name."""

FIELDS: dict[type[LaminaError], dict[str, Any]] = {
    Busy: {"retry_after_s": 1.0},
    CorruptData: {"problem": "", "path": "", "position": 0, "expected": "", "found": ""},
    NotPrimary: {"holder": "", "was_begun": False},
    RecordsMissing: {"first": 0, "end": 0, "reason": ""},
    SchemaError: {"field": ""},
    TopicExists: {"topic": "", "difference": ""},
    UnknownTopic: {"known": ()},
}
"""What errors of a class carry, and what stands for it where the other side does not say."""


def _fields_of(kind: type[LaminaError]) -> dict[str, Any]:
    return {name: value for each in kind.__mro__ for name, value in FIELDS.get(each, {}).items()}


def to_object(error: LaminaError) -> dict[str, Any]:
    """Describes an error; a class of its own (inside the engine) as the public one above it."""
    kind = next(each for each in type(error).__mro__ if each.__name__ in KINDS)
    lineage = kind.__mro__[: kind.__mro__.index(LaminaError) + 1]
    return {
        "error": kind.__name__,
        "family": lineage[-2].__name__ if len(lineage) > 1 else kind.__name__,
        "message": _cut(str(error.args[0]) if error.args else str(error)),
        "fields": {name: _cut(getattr(error, name)) for name in _fields_of(kind)},
    }


def from_object(described: dict[str, Any]) -> LaminaError:
    """Makes the error again."""
    name, family = str(described.get("error")), str(described.get("family"))
    kind = KINDS.get(name) or KINDS.get(family) or LaminaError
    error = kind.__new__(kind, str(described.get("message", "")))
    given = described.get("fields")
    known = _fields_of(kind)
    if isinstance(given, dict):
        known |= {each: value for each, value in given.items() if each in known}
    known = {each: tuple(v) if isinstance(v, list) else v for each, v in known.items()}
    error.__dict__.update(known)
    return error


def encode(error: LaminaError) -> bytes:
    """Encodes an error."""
    return json.dumps(to_object(error)).encode()


def decode(data: bytes) -> LaminaError | None:
    """Decodes an error; None for what is none."""
    try:
        described = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return from_object(described) if isinstance(described, dict) else None


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[: TEXT_MAX - 1] + "…"
    return value
