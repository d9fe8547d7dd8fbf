"""Schemas of elsewhere (Arrow, a class, Avro) as messages: numbers that last, and a `.proto` text.

Rules.
1. A field keeps the number and the word that it had in the version before, found by its name and
   its former names. A new one gets a number above all that were ever given, so that the number of
   a field that is gone is never another field's. Symbols of enums the same.
2. What Protobuf has no word for is refused with the path: null alone, lists directly in lists.
   Lists, maps and their items are never null there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from lamina.errors import SchemaError
from lamina.formats.typed.protobuf_file import (
    NUMBER_MAX,
    PROTO2,
    PROTO3,
    RESERVED_BY_PROTOBUF,
    SCALARS,
    ProtoEnum,
    ProtoField,
    ProtoFile,
    ProtoMessage,
)
from lamina.formats.typed.protobuf_rules import group_of
from lamina.formats.typed.protobuf_schema import (
    DURATION,
    TIMESTAMP,
    UNPACKED,
    WRAPPERS,
    numbers_of,
    zero_of,
)
from lamina.formats.typed.protobuf_text import entry_name
from lamina.formats.typed.schema_model import Field, Kind, Type, joined

_WORDS = {
    Kind.BOOLEAN: "bool",
    Kind.INT: "int32",
    Kind.LONG: "int64",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.STRING: "string",
    Kind.BYTES: "bytes",
    Kind.FIXED: "bytes",
}
_OWN_WORDS = {
    "ulong": "uint64",
    "record": "",
    "enum": "",
    **{f"duration-{unit}": DURATION for unit in ("millis", "micros", "nanos")},
    **{f"timestamp-{unit}": TIMESTAMP for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": TIMESTAMP for unit in ("millis", "micros", "nanos")},
}
_KEYS = (Kind.STRING, Kind.INT, Kind.LONG, Kind.ULONG, Kind.BOOLEAN)


def numbered(new: Type, former: Sequence[Type], path: str = "") -> Type:
    """Returns a message with a number and a word for every field; `former` is oldest first."""
    given = {field.number for field in new.fields if field.number}
    used = {field.number for each in former for field in each.fields} | given
    highest = max(used, default=0)
    fields = []
    for field in new.fields:
        here = joined(path, field.name)
        before = _former_field(field, former)
        number = field.number
        if not number and before is not None and before.number not in given:
            number = before.number
        elif not number:
            highest = number = _after(highest)
        given.add(number)
        if not 0 < number <= NUMBER_MAX or number in RESERVED_BY_PROTOBUF:
            raise SchemaError(f"{here}: {number} is not a field number", field=here)
        earlier = [found for each in former if (found := _of_number(each, number)) is not None]
        made = _field(replace(field, number=number), earlier, here)
        # One that came with a number says itself that it is required, by having no default.
        made = replace(made, default=field.default) if field.number else made
        fields.append(made)
    if len(given) < len(fields):
        raise SchemaError(f"{path or new.name}: two fields have one number", field=path)
    return replace(new, fields=tuple(fields))


def _after(highest: int) -> int:
    return 20_000 if highest + 1 in RESERVED_BY_PROTOBUF else highest + 1


def _former_field(field: Field, former: Sequence[Type]) -> Field | None:
    for version in reversed(former):
        for name in field.names:
            for each in version.fields:
                if each.name == name:
                    return each
    return None


def _of_number(message: Type, number: int) -> Field | None:
    return next((each for each in message.fields if each.number == number), None)


def _field(field: Field, earlier: list[Field], path: str) -> Field:
    """A field with its word, and with what is inside it."""
    kind, before = field.type, [each.type for each in earlier]
    if kind.items is None:
        made = _value(kind, before, path)
        default = field.default
        if default is None and kind.is_nullable:
            default = "null"
        elif default is None:
            default = None if _word(kind, path) in (TIMESTAMP, DURATION) else zero_of(made)
        word = field.wire or _kept_word(made, _word(made, path), earlier)
        return replace(field, type=made, default=default, wire=word)
    inside = [each.items for each in before if each.items is not None]
    items = _value(kind.items.or_null(is_nullable=False), inside, f"{path}[]")
    made = replace(kind, items=items, is_nullable=False, null_is_last=False)
    if kind.kind == Kind.ARRAY:
        word = field.wire or _kept_word(items, _word(items, path), earlier)
        return replace(field, type=made, default="[]", wire=word)
    keys = kind.keys or Type(Kind.STRING)
    if keys.kind not in _KEYS:
        raise SchemaError(f"{path}: a map has no keys of {keys.kind.value}", field=path)
    ours = _word(keys, path), _word(items, path)
    known = earlier[-1].wire.split(",") if earlier and "," in earlier[-1].wire else ours
    kept = [
        other if group_of(each, other) and SCALARS.get(other) == SCALARS.get(word) else word
        for each, word, other in zip((keys, items), ours, known, strict=True)
    ]
    return replace(field, type=made, default="{}", wire=field.wire or ",".join(kept))


def _kept_word(kind: Type, word: str, earlier: list[Field]) -> str:
    """The word of the version before, where it is one for the same column."""
    if not earlier:
        return word
    before = earlier[-1].wire.removesuffix(UNPACKED)
    scalar = WRAPPERS.get(before, before)
    same = SCALARS.get(scalar) == SCALARS.get(word) and scalar in SCALARS and word in SCALARS
    is_free = before not in WRAPPERS or kind.is_nullable
    return earlier[-1].wire if (same and is_free) or before == word else word


def _value(kind: Type, before: list[Type], path: str) -> Type:
    """A type with what is inside it numbered."""
    if kind.items is not None:
        raise SchemaError(
            f"{path}: Protobuf has no list in a list; put a record between", field=path
        )
    if kind.kind == Kind.NULL:
        raise SchemaError(f"{path}: Protobuf has no field that is always null", field=path)
    if kind.kind == Kind.RECORD:
        return numbered(kind, [each for each in before if each.kind == Kind.RECORD], path)
    if kind.kind == Kind.ENUM and not kind.numbers:
        return _numbered_enum(kind, [each for each in before if each.kind == Kind.ENUM])
    return kind


def _numbered_enum(kind: Type, former: list[Type]) -> Type:
    known = {s: n for each in former for s, n in zip(each.symbols, numbers_of(each), strict=True)}
    highest = max(known.values(), default=-1)
    numbers = []
    for symbol in kind.symbols:
        if symbol not in known:
            highest = known[symbol] = highest + 1
        numbers.append(known[symbol])
    plain = numbers == list(range(len(numbers)))
    return replace(kind, numbers=() if plain else tuple(numbers))


def _word(kind: Type, path: str) -> str:
    word = _OWN_WORDS.get(kind.kind.value, _WORDS.get(kind.stored))
    if word is None:
        raise SchemaError(f"{path}: Protobuf has no {kind.kind.value}", field=path)
    return word


# ---------------------------------------------------------------------- as a file


def file_of(message: Type) -> ProtoFile:
    """Returns the file that declares a numbered message, and what it contains beside it."""
    package, _, name = message.name.rpartition(".")
    made = _File(package)
    made.add_message(message, name)
    listed = list(made.messages.values())
    if not made.is_proto2:
        listed = [made.without_options(each) for each in listed]
    syntax, imports = PROTO2 if made.is_proto2 else PROTO3, tuple(sorted(made.imports))
    return ProtoFile(syntax, package, imports, tuple(listed), tuple(made.enums.values()))


class _File:
    """A file in the making: messages and enums side by side, by their names."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.is_proto2 = False
        self.imports: set[str] = set()
        self.messages: dict[str, ProtoMessage] = {}
        self.enums: dict[str, ProtoEnum] = {}
        self._names: dict[str, str] = {}

    def _named(self, full: str) -> tuple[str, bool]:
        """A plain name for a full one that is free, and whether it is new."""
        if full in self._names:
            return self._names[full], False
        plain = full.removeprefix(f"{self.package}.").replace(".", "_")
        while plain in self.messages or plain in self.enums:
            plain += "_"
        self._names[full] = plain
        return plain, True

    def add_message(self, kind: Type, name: str) -> None:
        self._names[kind.name] = name
        self.messages[name] = ProtoMessage(name)  # in front of what it contains
        entries: list[ProtoMessage] = []
        fields = [self._field(field, entries, name) for field in kind.fields]
        self.messages[name] = ProtoMessage(name, tuple(fields), tuple(entries))

    def _field(self, field: Field, entries: list[ProtoMessage], owner: str) -> ProtoField:
        kind, word = field.type, field.wire.removesuffix(UNPACKED)
        if kind.kind == Kind.MAP and kind.items is not None:
            key, _, value = field.wire.partition(",")
            entry = entry_name(field.name)
            inside = (
                ProtoField("key", 1, key),
                ProtoField("value", 2, self._type(kind.items, value)),
            )
            entries.append(ProtoMessage(entry, inside, is_entry=True))
            full = ".".join(("", *filter(None, (self.package, owner, entry))))
            return ProtoField(field.name, field.number, full, "repeated")
        if kind.kind == Kind.ARRAY and kind.items is not None:
            is_packable = word in SCALARS and word not in ("string", "bytes")
            is_packable |= kind.items.kind == Kind.ENUM
            packed = not field.wire.endswith(UNPACKED) if is_packable else None
            named = self._type(kind.items, word)
            return ProtoField(field.name, field.number, named, "repeated", packed=packed)
        made = ProtoField(field.name, field.number, self._type(kind, word), oneof=field.oneof)
        if field.default is None:
            self.is_proto2 = True
            return replace(made, label="required")
        made = replace(made, label="" if field.oneof else "optional")
        if kind.is_nullable:
            return made
        self.is_proto2 |= not is_zero(field)
        return replace(made, default=field.default)

    def without_options(self, message: ProtoMessage) -> ProtoMessage:
        """The message as proto3 says it, which has other words for the usual things."""
        fields = []
        for each in message.fields:
            is_plain = each.default is not None or each.type.rpartition(".")[2] in self.messages
            is_plain |= each.type.startswith(".google.protobuf.")
            label = "" if each.label == "optional" and is_plain else each.label
            packed = None if each.packed else each.packed
            fields.append(replace(each, default=None, packed=packed, label=label))
        return replace(message, fields=tuple(fields))

    def _type(self, kind: Type, word: str) -> str:
        if word in SCALARS:
            return word
        if word:
            tail = word.rpartition(".")[2]
            file = {"Timestamp": "timestamp", "Duration": "duration"}.get(tail, "wrappers")
            self.imports.add(f"google/protobuf/{file}.proto")
            return f".{word}"
        name, is_new = self._named(kind.name)
        if is_new and kind.kind == Kind.ENUM:
            symbols = tuple(zip(kind.symbols, numbers_of(kind), strict=True))
            self.enums[name] = ProtoEnum(name, symbols)
            self.is_proto2 |= symbols[0][1] != 0
        elif is_new:
            self.add_message(kind, name)
        return f".{self.package}.{name}" if self.package else f".{name}"


def is_zero(field: Field) -> bool:
    """Whether a field's default is what Protobuf takes for one that says none."""
    value = json.loads(field.default or "null")
    if field.type.kind == Kind.ENUM and value in field.type.symbols:
        return numbers_of(field.type)[field.type.symbols.index(value)] == 0
    return value is not None and not value
