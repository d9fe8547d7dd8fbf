"""Whether one message reads what another wrote: Protobuf's rules. Fields are found by number.

Names may change. A field may come and go, unless it is required. Types change within a group that
is written alike: int32, uint32, int64, uint64, bool and enums; sint32 and sint64; fixed32 and
sfixed32; fixed64 and sfixed64; string and bytes. Of the label, "repeated" may come and go for
text, bytes and messages only. A field may not leave a oneof by being dropped, and of fields that
were apart only one may move into the same oneof. An enum may gain symbols; one that is lost is
a value that the reader has no word for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.formats.typed import evolution
from lamina.formats.typed.protobuf_schema import UNPACKED, numbers_of
from lamina.formats.typed.schema_model import Field, Kind, Type, joined, shown_type

_VARINT, _TEXT = "varint", "text"
_GROUPS = {
    **dict.fromkeys(("int32", "uint32", "int64", "uint64", "bool"), _VARINT),
    **dict.fromkeys(("sint32", "sint64"), "zigzag"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
    **dict.fromkeys(("string", "bytes"), _TEXT),
}
_APART = (Kind.DECIMAL, Kind.FIXED)
"""Kinds whose bytes are of a shape that other bytes do not have."""


def problems(new: Type, old: Sequence[Type], level: str) -> list[str]:
    """Returns what keeps a message from following others (oldest first); nothing if it may."""
    return evolution.problems(new, old, level, unreadable)


def file_problems(
    new: Mapping[str, Type], old: Sequence[Mapping[str, Type]], level: str
) -> list[str]:
    """The same for files with several messages, by full name, as `messages` gives them.

    A message that is gone is a problem: values may name it.
    """
    found: list[str] = []
    level = evolution.checked_level(level)
    checked = () if level == "NONE" else old if level.endswith("TRANSITIVE") else old[-1:]
    for former in checked:
        for name, kind in former.items():
            if name not in new:
                found.append(f"{name}: the message is gone")
            else:
                found += problems(new[name], [kind], level)
    return found[: evolution.PROBLEMS_MAX]


def unreadable(reader: Type, writer: Type) -> list[str]:
    """Returns what a reader's message cannot read of a writer's, each with the field's path."""
    return _Comparison().records(reader, writer, "")


def writer_field(field: Field, writer: Type) -> Field | None:
    """Returns the writer's field of the same number."""
    return next((each for each in writer.fields if each.number == field.number), None)


class _Comparison:
    """One comparison; pairs of messages that are under way are taken as equal."""

    def __init__(self) -> None:
        self._open: set[tuple[str, str]] = set()
        self._known: tuple[dict[str, Type], dict[str, Type]] = ({}, {})

    def records(self, reader: Type, writer: Type, path: str) -> list[str]:
        self._known[0].setdefault(reader.name, reader)
        self._known[1].setdefault(writer.name, writer)
        if (reader.name, writer.name) in self._open:
            return []
        self._open.add((reader.name, writer.name))
        found = []
        for field in reader.fields:
            here, other = joined(path, field.name), writer_field(field, writer)
            if other is not None:
                found += self._fields(field, other, here)
            elif field.default is None:
                found.append(f"{here}: the field is new and required")
        found += _oneofs(reader, writer, path)
        self._open.discard((reader.name, writer.name))
        return found

    def _fields(self, reader: Field, writer: Field, path: str) -> list[str]:
        kinds = (reader.type, writer.type)
        if Kind.MAP in (kinds[0].kind, kinds[1].kind):
            return self._maps(reader, writer, path)
        lists = [kind.kind == Kind.ARRAY for kind in kinds]
        one, other = (kind.items or kind for kind in kinds)
        if lists[0] != lists[1] and not _keeps_label(one, reader.wire, writer.wire):
            return [f"{path}: repeated may come and go only for text, bytes and messages"]
        if reader.default is None and writer.default == "null" and not lists[1]:
            return [f"{path}: the field may be absent, and is required now"]
        words = [each.wire.removesuffix(UNPACKED) for each in (reader, writer)]
        return self._values((one, words[0]), (other, words[1]), path)

    def _maps(self, reader: Field, writer: Field, path: str) -> list[str]:
        one, other = reader.type, writer.type
        if one.kind != other.kind or one.items is None or other.items is None:
            return [f"{path}: {shown_type(other)} cannot be read as {shown_type(one)}"]
        ours, theirs = reader.wire.partition(","), writer.wire.partition(",")
        plain = Type(Kind.STRING)
        keys = self._values((one.keys or plain, ours[0]), (other.keys or plain, theirs[0]), path)
        return keys + self._values((one.items, ours[2]), (other.items, theirs[2]), f"{path}{{}}")

    def _values(self, reader: tuple[Type, str], writer: tuple[Type, str], path: str) -> list[str]:
        (one, word), (other, written) = reader, writer
        one, other = self._resolved(one, 0), self._resolved(other, 1)
        if one.kind == other.kind == Kind.RECORD:
            return self.records(one, other, path)
        if one.kind == other.kind == Kind.ENUM:
            lost = set(numbers_of(other)) - set(numbers_of(one))
            if lost:
                gone = [
                    s for s, n in zip(other.symbols, numbers_of(other), strict=True) if n in lost
                ]
                return [f"{path}: the enum lost {', '.join(gone)}"]
            return []
        if group_of(one, word) == group_of(other, written) and _same_shape(one, other):
            return []
        told = [
            each or shown_type(kind.or_null(is_nullable=False))
            for each, kind in ((written, other), (word, one))
        ]
        return [f"{path}: {told[0]} cannot be read as {told[1]}"]

    def _resolved(self, kind: Type, side: int) -> Type:
        if kind.kind == Kind.NAMED:
            return self._known[side].get(kind.name, kind)
        return kind


def group_of(kind: Type, word: str) -> str:
    """Returns the group of types that are written alike: a word for it."""
    if kind.kind == Kind.ENUM:
        return _VARINT
    return _GROUPS.get(word, word)


def _same_shape(reader: Type, writer: Type) -> bool:
    if not {reader.kind, writer.kind}.intersection(_APART):
        return Kind.RECORD not in (reader.kind, writer.kind)
    return evolution.fits(reader, writer)


def _keeps_label(kind: Type, word: str, written: str) -> bool:
    words = {word.removesuffix(UNPACKED), written.removesuffix(UNPACKED)}
    return kind.kind in (Kind.RECORD, Kind.NAMED) or words <= {"string", "bytes"}


def _oneofs(reader: Type, writer: Type, path: str) -> list[str]:
    found = []
    ours = {field.number: field for field in reader.fields}
    for field in writer.fields:
        if field.oneof and field.number not in ours:
            here = joined(path, field.name)
            found.append(f"{here}: oneof {field.oneof} lost the field")
    for oneof in dict.fromkeys(field.oneof for field in reader.fields if field.oneof):
        members = [field for field in reader.fields if field.oneof == oneof]
        known = [each for each in (writer_field(m, writer) for m in members) if each is not None]
        if len(known) > 1 and (len({each.oneof for each in known}) > 1 or not known[0].oneof):
            told = ", ".join(each.name for each in known)
            found.append(f"{joined(path, oneof)}: {told} moved into one oneof")
    return found
