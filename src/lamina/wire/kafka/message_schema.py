"""What a message looks like: a table of fields, written as text and parsed once.

One line is one field; lines that are indented below it are the fields inside.

    name  type  versions  [null versions]  [tag number]  [default value]

Types: bool, int8, int16, int32, int64, uuid, string, bytes, records, `[]type` for a list of them,
`[]` for a list of structures and `{}` for one structure. Versions: `3`, `3+` or `3-5`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FIXED = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uuid": "16s"}
"""Types of a fixed size, with their letter in `struct`."""
SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}
_ZEROS: dict[str, Any] = {
    "bool": False,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": None,
}
_NEVER = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a structure, over all versions."""

    name: str
    kind: str
    versions: tuple[int, int]
    null_versions: tuple[int, int] | None = None
    tag: int | None = None
    default: Any = None
    is_list: bool = False
    inside: tuple[Field, ...] = ()

    def is_in(self, version: int) -> bool:
        """Returns whether a version of the message has this field."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Returns whether the field may be null in a version."""
        null = self.null_versions
        return null is not None and null[0] <= version <= null[1]


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A request and its response, in a range of versions.

    `flexible` is the first version with compact lengths and tagged fields. `advertised_first` is
    lower than `first` where clients look for an old version that they never send.
    """

    key: int
    name: str
    first: int
    last: int
    flexible: int
    request: tuple[Field, ...] = field(repr=False)
    response: tuple[Field, ...] = field(repr=False)
    advertised_first: int = 0

    def is_flexible(self, version: int) -> bool:
        """Returns whether a version has compact lengths and tagged fields."""
        return version >= self.flexible


def api(
    key: int,
    name: str,
    versions: tuple[int, int],
    flexible: int | None,
    tables: tuple[str, str],
    *,
    advertised_first: int | None = None,
) -> Api:
    """Makes an API of the texts of its request and its response."""
    first, last = versions
    return Api(
        key,
        name,
        first,
        last,
        _NEVER if flexible is None else flexible,
        fields_of(tables[0]),
        fields_of(tables[1]),
        first if advertised_first is None else advertised_first,
    )


def fields_of(text: str) -> tuple[Field, ...]:
    """Parses a table of fields."""
    lines = [line for line in text.splitlines() if line.strip()]
    found, rest = _parse(lines, _indent(lines[0]) if lines else 0)
    if rest:
        raise ValueError(f"a field that belongs nowhere: {rest[0]!r}")
    return tuple(found)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _parse(lines: list[str], indent: int) -> tuple[list[Field], list[str]]:
    found: list[Field] = []
    while lines and _indent(lines[0]) == indent:
        line, *lines = lines
        inside: list[Field] = []
        if lines and _indent(lines[0]) > indent:
            inside, lines = _parse(lines, _indent(lines[0]))
        found.append(_field(line.split(), tuple(inside)))
    return found, lines


def _field(words: list[str], inside: tuple[Field, ...]) -> Field:
    name, kind, versions, *rest = words
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    if options.keys() - {"null", "tag", "default"}:
        raise ValueError(f"unknown words in {' '.join(words)!r}")
    is_list = kind.startswith("[]")
    kind = kind.removeprefix("[]") or "{}"
    if (kind == "{}") != bool(inside) or not (kind in FIXED or kind in _ZEROS or kind == "{}"):
        raise ValueError(f"no type in {' '.join(words)!r}")
    null = options.get("null")
    return Field(
        name,
        kind,
        _versions(versions),
        None if null is None else _versions(null),
        int(options["tag"]) if "tag" in options else None,
        _default(kind, is_list, inside, options.get("default")),
        is_list,
        inside,
    )


def _versions(text: str) -> tuple[int, int]:
    if text.endswith("+"):
        return int(text[:-1]), _NEVER
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _default(kind: str, is_list: bool, inside: tuple[Field, ...], text: str | None) -> Any:
    if text == "null":
        return None
    if is_list:
        return []
    if kind == "{}":
        return {each.name: each.default for each in inside}
    if text is None:
        return _ZEROS.get(kind, 0)
    return text == "true" if kind == "bool" else int(text, 0)
