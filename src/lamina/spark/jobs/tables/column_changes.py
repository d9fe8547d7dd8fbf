"""What a new version of a topic's schema does to the columns of its table.

| a column of the new version               | Iceberg             | Delta               | Parquet |
|-------------------------------------------|---------------------|---------------------|---------|
| is as it was                              | stays               | stays               | stays   |
| is new, null in old records               | added               | added               | again   |
| is new, with another default              | again               | again               | again   |
| int became long, float became double, a decimal of more digits | widened | again      | again   |
| has another name, by an alias             | renamed             | again               | again   |
| has changed otherwise                     | again               | again               | again   |
| is gone                                   | dropped             | again               | again   |

*Again*: all rows are written again, as the new version reads them, in the commit that changes the
columns. Delta's and Parquet's columns are found by name, and plain Parquet has no schema but that
of its files.

In Protobuf a field is the one of the same number, whatever its name. What an absent field is read
as belongs to the field there, so a column stays only if nothing of that has changed: a field that
becomes `optional` is written again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as kinds

from lamina.formats.typed import evolution, protobuf_rules
from lamina.formats.typed.schema_model import Field, Kind, Type, children
from lamina.formats.typed.schema_source import PROTOBUF

_WIDER = ("int32", "int64"), ("sint32", "sint64")
"""Words of Protobuf of which the second reads what the first wrote as the same numbers."""


class Change(enum.Enum):
    """What became of a column."""

    SAME = "same"
    ADDED = "added"
    WIDENED = "widened"
    OTHER = "other"
    """Its old values are not those that the new version reads."""
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One column: its name, the one it had before, and what became of it."""

    name: str
    former: str
    """Empty for a column that is new."""
    change: Change

    @property
    def is_renamed(self) -> bool:
        """Returns whether the column had another name."""
        return bool(self.former) and self.former != self.name

    def __str__(self) -> str:
        if self.change in (Change.ADDED, Change.DROPPED):
            return f"{self.name} {self.change.value}"
        if not self.former:
            return f"{self.name} added, with its default in old rows"
        told = [f"renamed from {self.former}"] if self.is_renamed else []
        if self.change != Change.SAME:
            told.append("widened" if self.change == Change.WIDENED else "changed")
        return f"{self.name} {' and '.join(told)}" if told else ""


def changes(
    versions: tuple[Type, Type], columns: pa.Schema, former: pa.Schema, encoding: str
) -> list[ColumnChange]:
    """Compares two versions, the new one first, and the columns that tables have of them."""
    new, old = versions
    by_number = encoding == PROTOBUF
    writer_field = protobuf_rules.writer_field if by_number else evolution.writer_field
    found, taken = [], set()
    for field in new.fields:
        writer = writer_field(field, old)
        if writer is None:
            is_null = field.default in (None, "null")
            found.append(ColumnChange(field.name, "", Change.ADDED if is_null else Change.OTHER))
            continue
        if writer.name in taken:  # two columns of what was one: by writing it again
            found.append(ColumnChange(field.name, "", Change.OTHER))
            continue
        taken.add(writer.name)
        kinds_of_both = columns.field(field.name).type, former.field(writer.name).type
        became = _became(field, writer, *kinds_of_both)
        if by_number and not _reads_alike(field, writer, became):
            became = Change.OTHER
        found.append(ColumnChange(field.name, writer.name, became))
    gone = [each.name for each in old.fields if each.name not in taken]
    found += [ColumnChange(name, name, Change.DROPPED) for name in gone]
    known = {*former.names, *(field.name for field in new.fields)}
    more = [name for name in columns.names if name not in known]
    return found + [ColumnChange(name, "", Change.ADDED) for name in more]


def told(found: Sequence[ColumnChange]) -> list[str]:
    """Says what changed, for people."""
    return [str(each) for each in found if str(each)]


def _became(new: Field, old: Field, kind: pa.DataType, former: pa.DataType) -> Change:
    if _has_enum(old.type) and new.type != old.type:
        return Change.OTHER
    if kind.equals(former):
        return Change.SAME
    return Change.WIDENED if _widens(former, kind) else Change.OTHER


def _reads_alike(new: Field, old: Field, became: Change) -> bool:
    """Returns whether a message's values stay, absent ones too, when their column stays."""
    if new.default != old.default:
        return False
    if became == Change.WIDENED:
        same = new.type.is_nullable == old.type.is_nullable
        return same and (old.wire, new.wire) in _WIDER
    return new.type == old.type and new.wire == old.wire


def _has_enum(kind: Type) -> bool:
    return kind.kind == Kind.ENUM or any(_has_enum(each) for _, each in children(kind))


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Returns whether Iceberg calls it a promotion."""
    if kinds.is_decimal(old) and kinds.is_decimal(new):
        return bool(old.scale == new.scale and old.precision < new.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
