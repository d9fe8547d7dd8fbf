"""What a page asks for, read from a query or a body: names and numbers, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lamina.errors import InvalidRequest

_NUMBER_MAX = 1 << 63
TEXT_MAX = 1024


def text(given: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Reads a text; raises InvalidRequest when it is missing and has no default."""
    found = given.get(name, default)
    if not isinstance(found, str) or len(found) > TEXT_MAX:
        raise InvalidRequest(f"{name} must be text of at most {TEXT_MAX} characters")
    return found


def number(given: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Reads a whole number that is not negative."""
    found = optional_number(given, name)
    if found is None:
        found = default
    if found is None:
        raise InvalidRequest(f"{name} is missing")
    return found


def optional_number(given: Mapping[str, Any], name: str) -> int | None:
    """Reads a whole number that is not negative, if there is one."""
    found = given.get(name)
    if found is None or found == "":
        return None
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 20:
        found = int(found)
    if type(found) is not int or not 0 <= found < _NUMBER_MAX:
        raise InvalidRequest(f"{name} must be a whole number from 0 on, not {str(found)[:40]!r}")
    return found


def one_of(given: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    """Reads one of a few words; the first where none is given."""
    found = given.get(name, allowed[0])
    if found not in allowed:
        raise InvalidRequest(f"{name} must be one of {', '.join(allowed)}")
    return str(found)
