"""Errors on the wire: class, message and fields as JSON; the same class comes back.

A class that this side does not know (a newer server's) comes back as its family, which is what a
caller acts upon.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from lamina import errors
from lamina.errors import LaminaError

TEXT_MAX = 2048
"""Longer texts are cut: gRPC carries errors in its trailer, which has little room."""

KINDS: dict[str, type[LaminaError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, LaminaError)
}
"""Every error by its name."""


def to_object(error: LaminaError) -> dict[str, Any]:
    """Describes an error; a class of its own (inside the engine) as the public one above it."""
    kind = next(each for each in type(error).__mro__ if each.__name__ in KINDS)
    known = inspect.signature(kind).parameters
    found = {
        name: _cut(value)
        for name, value in vars(error).items()
        if (name in known or name == "path") and isinstance(value, int | float | str)
    }
    family = next(
        each.__name__ for each in kind.__mro__ if each.__mro__[1] in (LaminaError, Exception)
    )
    message = _cut(str(error.args[0]) if error.args else str(error))
    return {"error": kind.__name__, "family": family, "message": message, "fields": found}


def from_object(described: dict[str, Any]) -> LaminaError:
    """Makes the error again."""
    name, family = str(described.get("error")), str(described.get("family"))
    kind = KINDS.get(name) or KINDS.get(family) or LaminaError
    message = str(described.get("message", ""))
    error = kind.__new__(kind, message)
    found = described.get("fields")
    error.__dict__.update(_defaults(kind) | (found if isinstance(found, dict) else {}))
    return error


def encode(error: LaminaError) -> bytes:
    """Encodes an error."""
    return json.dumps(to_object(error)).encode()


def decode(data: bytes) -> LaminaError | None:
    """Decodes an error; None for what is none."""
    try:
        described = json.loads(data)
    except ValueError:
        return None
    return from_object(described) if isinstance(described, dict) else None


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return value[: TEXT_MAX - 1] + "…"
    return value


def _defaults(kind: type[LaminaError]) -> dict[str, Any]:
    """What a class's errors always have, so that a sparse description still makes a whole one."""
    made: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if not issubclass(each, LaminaError) or "__init__" not in vars(each):
            continue
        for name, parameter in inspect.signature(each.__init__).parameters.items():
            if name not in ("self", "args", "kwargs"):
                empty = parameter.default is inspect.Parameter.empty
                made[name] = "" if empty else parameter.default
    return made
