"""A serialized FileDescriptorProto, both ways: what Confluent's serializers register in base64.

Descriptors are messages of Protobuf themselves. They are small and rare, so plain Python reads
them: fields as a list of numbers and values, bounded by the size and depth of what was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lamina.errors import SchemaError
from lamina.formats.typed.protobuf_file import (
    NUMBER_MAX,
    PROTO2,
    PROTO3,
    RESERVED_BY_PROTOBUF,
    SCALARS,
    Names,
    ProtoEnum,
    ProtoField,
    ProtoFile,
    ProtoMessage,
    escaped,
)
from lamina.formats.typed.protobuf_text import default_text, unescaped
from lamina.formats.typed.schema_model import DEPTH_MAX, TEXT_MAX

_TYPES = {
    **{1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32"},
    **{8: "bool", 9: "string", 12: "bytes", 13: "uint32", 15: "sfixed32", 16: "sfixed64"},
    **{17: "sint32", 18: "sint64"},
}
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
_NUMBERS = {word: number for number, word in _TYPES.items()}
_LABELS = {1: "optional", 2: "required", 3: "repeated"}


def parse(raw: bytes) -> ProtoFile:
    """Reads a FileDescriptorProto; raises SchemaError where the bytes are not one."""
    if len(raw) > TEXT_MAX:
        raise SchemaError(f"a descriptor has at most {TEXT_MAX} bytes, not {len(raw)}")
    file = _Fields.of(raw)
    if file.number(14) or file.text(12) == "editions":
        raise SchemaError("editions are not understood; use syntax proto2 or proto3")
    syntax = file.text(12) or PROTO2
    messages = tuple(_message(each, syntax, 0) for each in file.parts(4))
    enums = tuple(_enum(each) for each in file.parts(5))
    imports = tuple(_decoded(each) for each in file.raw(3))
    return ProtoFile(syntax, file.text(2), imports, messages, enums)


class _Fields(NamedTuple):
    """The fields of one message, in their order: number and value."""

    found: list[tuple[int, int | bytes]]

    @classmethod
    def of(cls, raw: bytes) -> _Fields:
        return cls(list(_split(raw)))

    def raw(self, number: int) -> list[bytes]:
        return [value for at, value in self.found if at == number and isinstance(value, bytes)]

    def parts(self, number: int) -> list[_Fields]:
        return [_Fields.of(each) for each in self.raw(number)]

    def text(self, number: int) -> str:
        return _decoded((self.raw(number) or [b""])[-1])

    def has(self, number: int) -> bool:
        return any(at == number for at, _ in self.found)

    def number(self, number: int) -> int:
        numbers = [value for at, value in self.found if at == number and isinstance(value, int)]
        return numbers[-1] if numbers else 0


def _split(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        length = {1: 8, 5: 4}.get(wire, -1)
        if wire == 2:
            length, at = _varint(raw, at)
        if not 0 <= length <= len(raw) - at or number == 0:
            raise SchemaError("the bytes are not a FileDescriptorProto")
        yield number, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(raw):
            break
        byte = raw[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & (1 << 64) - 1, at + place + 1
    raise SchemaError("the bytes are not a FileDescriptorProto: a number does not end")


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise SchemaError("the bytes are not a FileDescriptorProto: text is not UTF-8") from error


def _signed(number: int) -> int:
    number &= (1 << 32) - 1
    return number - (1 << 32) if number >= 1 << 31 else number


def _message(given: _Fields, syntax: str, depth: int) -> ProtoMessage:
    if depth > DEPTH_MAX:
        raise SchemaError(f"messages lie more than {DEPTH_MAX} deep in each other")
    oneofs = [each.text(1) for each in given.parts(8)]
    options = given.parts(7)
    return ProtoMessage(
        given.text(1),
        tuple(_field(each, oneofs, syntax) for each in given.parts(2)),
        tuple(_message(each, syntax, depth + 1) for each in given.parts(3)),
        tuple(_enum(each) for each in given.parts(4)),
        tuple((_signed(each.number(1)), _signed(each.number(2)) - 1) for each in given.parts(9)),
        tuple(_decoded(each) for each in given.raw(10)),
        is_entry=bool(options and options[-1].number(7)),
    )


def _field(given: _Fields, oneofs: list[str], syntax: str) -> ProtoField:
    name, number, code = given.text(1), _signed(given.number(3)), given.number(5)
    if code == _GROUP:
        raise SchemaError(f"{name}: groups have no columns; use a message", field=name)
    if not 1 <= number <= NUMBER_MAX or number in RESERVED_BY_PROTOBUF:
        raise SchemaError(f"{name}: {number} is not a field number", field=name)
    kind = _TYPES.get(code, given.text(6))
    label = _LABELS.get(given.number(4), "")
    is_optional = bool(given.number(17))
    oneof = ""
    if given.has(9) and not is_optional:
        place = given.number(9)
        if place >= len(oneofs):
            raise SchemaError(f"{name}: there is no oneof {place}", field=name)
        oneof = oneofs[place]
    if label == "optional" and (oneof or (syntax == PROTO3 and not is_optional)):
        label = ""
    options = given.parts(8)
    packed = bool(options[-1].number(2)) if options and options[-1].has(2) else None
    default = _default(given, kind, name) if given.has(7) else None
    return ProtoField(name, number, kind, label, oneof, default, packed)


def _default(given: _Fields, kind: str, name: str) -> str:
    raw = given.raw(7)[-1]
    if kind == "bytes":
        return default_text(unescaped(raw), kind, name)
    return default_text(raw if kind == "string" else _decoded(raw), kind, name)


def _enum(given: _Fields) -> ProtoEnum:
    values = given.parts(2)
    return ProtoEnum(given.text(1), tuple((v.text(1), _signed(v.number(2))) for v in values))


# ---------------------------------------------------------------------- writing


def descriptor_of(file: ProtoFile, name: str, others: Iterable[ProtoFile] = ()) -> bytes:
    """Returns a file as a serialized FileDescriptorProto, under a path like `shop.proto`."""
    names = Names.of((file, *others))
    made = _sized(1, name.encode())
    made += _sized(2, file.package.encode()) if file.package else b""
    made += b"".join(_sized(3, each.encode()) for each in file.imports)
    for message in file.messages:
        made += _sized(4, _message_bytes(message, file.syntax, names))
    made += b"".join(_sized(5, _enum_bytes(each)) for each in file.enums)
    return made + (_sized(12, file.syntax.encode()) if file.syntax != PROTO2 else b"")


def _message_bytes(message: ProtoMessage, syntax: str, names: Names) -> bytes:
    made = _sized(1, message.name.encode())
    oneofs = list(dict.fromkeys(each.oneof for each in message.fields if each.oneof))
    lone = [
        f"_{each.name}" for each in message.fields if syntax == PROTO3 and each.label == "optional"
    ]
    for field in message.fields:
        made += _sized(2, _field_bytes(field, [*oneofs, *lone], syntax, names))
    made += b"".join(_sized(3, _message_bytes(each, syntax, names)) for each in message.messages)
    made += b"".join(_sized(4, _enum_bytes(each)) for each in message.enums)
    made += _sized(7, _number(7, 1)) if message.is_entry else b""
    made += b"".join(_sized(8, _sized(1, each.encode())) for each in [*oneofs, *lone])
    for first, last in message.reserved:
        made += _sized(9, _number(1, first) + _number(2, last + 1))
    return made + b"".join(_sized(10, each.encode()) for each in message.reserved_names)


def _field_bytes(field: ProtoField, oneofs: list[str], syntax: str, names: Names) -> bytes:
    label = {"required": 2, "repeated": 3}.get(field.label, 1)
    made = _sized(1, field.name.encode()) + _number(3, field.number) + _number(4, label)
    target = names.known.get(field.type, (None, ""))[0]
    if field.type in SCALARS:
        made += _number(5, _NUMBERS[field.type])
    else:
        made += _number(5, _ENUM if isinstance(target, ProtoEnum) else _MESSAGE)
        made += _sized(6, field.type.encode())
    if field.default is not None:
        made += _sized(7, _default_bytes(field))
    made += _sized(8, _number(2, int(field.packed))) if field.packed is not None else b""
    is_lone = syntax == PROTO3 and field.label == "optional"
    if field.oneof or is_lone:
        made += _number(9, oneofs.index(field.oneof or f"_{field.name}"))
    return made + (_number(17, 1) if is_lone else b"")


def _default_bytes(field: ProtoField) -> bytes:
    value = json.loads(field.default or '""')
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if isinstance(value, str) and field.type == "bytes":
        return escaped(value.encode("latin-1")).encode()
    return str(value).encode()


def _enum_bytes(enum: ProtoEnum) -> bytes:
    made = _sized(1, enum.name.encode())
    for name, number in enum.symbols:
        made += _sized(2, _sized(1, name.encode()) + _number(2, number))
    is_aliased = len({number for _, number in enum.symbols}) < len(enum.symbols)
    return made + (_sized(3, _number(2, 1)) if is_aliased else b"")


def _number(number: int, value: int) -> bytes:
    return _packed(number << 3) + _packed(value & (1 << 64) - 1)


def _sized(number: int, raw: bytes) -> bytes:
    return _packed(number << 3 | 2) + _packed(len(raw)) + raw


def _packed(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
