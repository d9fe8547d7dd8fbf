"""Whether one schema reads what another wrote: Avro's rules, and the words the field has for them.

BACKWARD: the new schema reads old records. FORWARD: the old one reads new records. FULL: both.
With _TRANSITIVE, held against every former version and not only against the last one.

Fields are found by name, then by the reader's aliases. A field that the writer lacks needs a
default; one that the reader lacks is dropped. int widens to long, float and double, long to float
and double, float to double; text and bytes read each other; a decimal may gain digits, not change
its scale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from lamina.errors import InvalidRequest
from lamina.formats.typed.schema_model import Field, Kind, Type, joined, shown_type

LEVELS = (
    *("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE"),
)
_WIDENS = {
    Kind.INT: {Kind.LONG, Kind.FLOAT, Kind.DOUBLE},
    Kind.LONG: {Kind.FLOAT, Kind.DOUBLE},
    Kind.FLOAT: {Kind.DOUBLE},
    Kind.STRING: {Kind.BYTES},
    Kind.BYTES: {Kind.STRING},
}
MADE_UP = re.compile(r"record(_\w*)?")
"""The names that types of an Arrow schema are given (`arrow_types.from_schema`)."""
PROBLEMS_MAX = 20
"""How many problems are told at once."""


def checked_level(level: str) -> str:
    """Returns a compatibility level as it is spelt; raises InvalidRequest for an unknown one."""
    if level.upper() not in LEVELS:
        raise InvalidRequest(f"compatibility is one of {', '.join(LEVELS)}, not {level!r}")
    return level.upper()


def problems(
    new: Type,
    old: Sequence[Type],
    level: str,
    differences: Callable[[Type, Type], list[str]] | None = None,
) -> list[str]:
    """Returns what keeps a schema from following others (oldest first); nothing if it may.

    `differences` says what a reader cannot read of a writer: `unreadable`, unless it is given.
    """
    level, compared = checked_level(level), differences or unreadable
    if level == "NONE":
        return []
    found: list[str] = []
    for other in old if level.endswith("TRANSITIVE") else old[-1:]:
        if level.startswith(("BACKWARD", "FULL")):
            found += compared(new, other)
        if level.startswith(("FORWARD", "FULL")):
            found += [f"{each} (as the former schema reads it)" for each in compared(other, new)]
    return found[:PROBLEMS_MAX]


def unreadable(reader: Type, writer: Type, *, by_names: bool = False) -> list[str]:
    """Returns what a reader's schema cannot read of a writer's, each with the field's path.

    Columns need no names of records, enums and fixed types, but other readers of Avro do: with
    `by_names` these must be the same, without their spaces, or aliases of the reader's. Those of an
    Arrow schema, which has none, were made up and match any.
    """
    return _Comparison(by_names=by_names).differences(reader, writer, "")


def writer_field(field: Field, writer: Type) -> Field | None:
    """Returns the writer's field that a reader's field takes its values from."""
    for name in field.names:
        for each in writer.fields:
            if each.name == name:
                return each
    return None


class _Comparison:
    """One comparison; pairs of named types that are under way are taken as equal."""

    def __init__(self, *, by_names: bool) -> None:
        self._by_names = by_names
        self._open: set[tuple[str, str]] = set()
        self._named: tuple[dict[str, Type], dict[str, Type]] = ({}, {})

    def differences(self, reader: Type, writer: Type, path: str) -> list[str]:
        reader, writer = self._resolved(reader, 0), self._resolved(writer, 1)
        if writer.kind == Kind.UNION or (writer.is_nullable and reader.kind == Kind.UNION):
            branches = _branches(writer)
            return [p for each in branches for p in self.differences(reader, each, path)]
        if reader.kind == Kind.UNION:
            fitting = (self.differences(each, writer, path) for each in reader.branches)
            return [] if not all(fitting) else [f"{path}: no branch reads {shown_type(writer)}"]
        if writer.is_nullable and not reader.is_nullable and reader.kind != Kind.NULL:
            return [f"{path}: null is no longer allowed"]
        if writer.kind == Kind.NULL and reader.is_nullable:
            return []
        return self._same_shape(reader, writer, path)

    def _resolved(self, kind: Type, side: int) -> Type:
        if kind.kind == Kind.NAMED:
            known = self._named[side].get(kind.name, kind)
            return known.or_null(is_nullable=kind.is_nullable)
        if kind.name:
            self._named[side].setdefault(kind.name, kind)
        return kind

    def _same_shape(self, reader: Type, writer: Type, path: str) -> list[str]:
        if (
            self._by_names
            and reader.stored == writer.stored
            and not _is_named_alike(reader, writer, path)
        ):
            return [f"{path or 'schema'}: {writer.name} cannot be read as {reader.name}"]
        if reader.kind == writer.kind == Kind.RECORD:
            return self._records(reader, writer, path)
        if reader.items is not None and writer.items is not None and reader.kind == writer.kind:
            step = "[]" if reader.kind == Kind.ARRAY else "{}"
            return self.differences(reader.items, writer.items, joined(path, step))
        if reader.kind == writer.kind == Kind.ENUM:
            lost = set(writer.symbols) - set(reader.symbols)
            if lost and not reader.default_symbol:
                return [f"{path}: the enum lost {', '.join(sorted(lost))} and has no default"]
            return []
        return [] if fits(reader, writer) else [_unlike(reader, writer, path)]

    def _records(self, reader: Type, writer: Type, path: str) -> list[str]:
        pair = (reader.name, writer.name)
        if pair in self._open:
            return []
        self._open.add(pair)
        found = []
        for field in reader.fields:
            here, other = joined(path, field.name), writer_field(field, writer)
            if other is not None:
                found += self.differences(field.type, other.type, here)
            elif field.default is None:
                found.append(f"{here}: the field is new and has no default")
        self._open.discard(pair)
        return found


def fits(reader: Type, writer: Type) -> bool:
    """Whether a value of one leaf type can be read as another one."""
    if Kind.DECIMAL in (reader.kind, writer.kind):
        same = reader.kind == writer.kind and reader.scale == writer.scale
        return same and reader.precision >= writer.precision
    if Kind.FIXED in (reader.stored, writer.stored):
        return reader.stored == writer.stored and reader.size == writer.size
    if reader.kind == writer.kind:
        return True
    if Kind.ULONG in (reader.kind, writer.kind):
        return False
    is_plain = reader.kind == reader.stored or writer.kind == writer.stored
    if is_plain and reader.stored == writer.stored:
        return True
    return reader.kind in _WIDENS.get(writer.kind, ())


def _is_named_alike(reader: Type, writer: Type, path: str) -> bool:
    """Whether two types of one kind, which both have a name or none, go by the same one.

    A name that was made up matches any: those of Arrow's schemas, and those of a class's fields,
    which end with the field's own name (`declared_classes.from_class`).
    """
    names = {name.rpartition(".")[2] for name in (reader.name, *reader.aliases)}
    written = writer.name.rpartition(".")[2]
    field = next((step for step in reversed(path.split(".")) if step not in ("[]", "{}")), "")
    return written in names or any(
        MADE_UP.fullmatch(name) or (field and name.endswith(f"_{field}"))
        for name in (written, *names)
    )


def _branches(kind: Type) -> list[Type]:
    if kind.kind == Kind.UNION:
        return list(kind.branches)
    return [kind.or_null(is_nullable=False), Type(Kind.NULL)]


def _unlike(reader: Type, writer: Type, path: str) -> str:
    return f"{path or 'schema'}: {shown_type(writer)} cannot be read as {shown_type(reader)}"
