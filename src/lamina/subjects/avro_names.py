"""Avro's JSON with every name in full: texts that differ in layout alone come out the same.

What says something else (documentation, defaults, properties of others) stays, so that two schemas
are one only if nothing of either is lost.
"""

from __future__ import annotations

from typing import Any

_PLAIN = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
)
_NAMED = frozenset(("record", "error", "enum", "fixed"))


def in_full(given: Any, space: str = "") -> Any:
    """Returns a schema's document with full names, and without objects that say one word."""
    if isinstance(given, str):
        return given if given in _PLAIN or "." in given or not space else f"{space}.{given}"
    if isinstance(given, list):
        return [in_full(each, space) for each in given]
    if not isinstance(given, dict):
        return given
    made = dict(given)
    word = made.get("type")
    if isinstance(word, str) and word in _NAMED:
        return _named(made, space)
    if set(made) == {"type"}:
        return in_full(word, space)
    if not isinstance(word, str):
        made["type"] = in_full(word, space)
    for step in ("items", "values"):
        if step in made:
            made[step] = in_full(made[step], space)
    return made


def _named(made: dict[str, Any], space: str) -> dict[str, Any]:
    name, inside = str(made.get("name")), made.pop("namespace", space)
    full = name if "." in name or not inside else f"{inside}.{name}"
    made["name"] = full
    within = full.rpartition(".")[0]
    if isinstance(made.get("fields"), list):
        made["fields"] = [
            each | {"type": in_full(each.get("type"), within)} if isinstance(each, dict) else each
            for each in made["fields"]
        ]
    return made
