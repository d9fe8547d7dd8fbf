"""One value in Avro's bytes, in plain Python: for a schema's defaults, never for records."""

from __future__ import annotations

import json
import struct
from typing import Any

from lamina.errors import SchemaError
from lamina.formats.typed.schema_model import Kind, Type, joined

_UNFIT = (TypeError, ValueError, KeyError, AttributeError, struct.error, OverflowError)


class Room:
    """How much the defaults of a schema may unfold into: one in another counts as often as used.

    Lists of records whose fields have defaults that are lists of records grow by powers.
    """

    def __init__(self, steps: int = 1 << 20) -> None:
        self._steps = steps

    def take(self, steps: int, path: str) -> None:
        """Counts what is done for a place; raises SchemaError when there is no room left."""
        self._steps -= steps
        if self.is_full:
            raise SchemaError(f"{path}: the schema's defaults unfold into too much", field=path)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        return self._steps < 0


def encode_default(value: Any, kind: Type, path: str = "", room: Room | None = None) -> bytes:
    """Encodes a field's default, given as JSON has it; raises SchemaError where it does not fit."""
    try:
        return _encode(value, kind, path, room or Room())
    except _UNFIT as error:
        told = f"the default {repr(value)[:80]} is not of type {kind.kind.value}"
        raise SchemaError(f"{path}: {told}: {error}", field=path) from error


def _encode(value: Any, kind: Type, path: str, room: Room) -> bytes:
    room.take(1, path)
    if kind.is_nullable:
        is_null = value is None
        branch = int(is_null) if kind.null_is_last else int(not is_null)
        body = b"" if is_null else _encode(value, kind.or_null(is_nullable=False), path, room)
        return _varint(branch) + body
    stored = kind.stored
    if stored == Kind.UNION:
        return _encode_branch(value, kind, path, room)
    if stored == Kind.NULL:
        _require(value is None)
        return b""
    if stored == Kind.BOOLEAN:
        _require(isinstance(value, bool))
        return bytes([value])
    if stored in (Kind.INT, Kind.LONG):
        bits = 31 if stored == Kind.INT else 63
        is_number = isinstance(value, int) and not isinstance(value, bool)
        _require(is_number and -(1 << bits) <= value < 1 << bits)
        return _varint(value)
    if stored in (Kind.FLOAT, Kind.DOUBLE):
        _require(isinstance(value, int | float) and not isinstance(value, bool))
        return struct.pack("<f" if stored == Kind.FLOAT else "<d", value)
    if stored == Kind.STRING:
        return _sized(value.encode())
    if stored == Kind.BYTES:
        return _sized(value.encode("latin-1"))
    if stored == Kind.FIXED:
        raw: bytes = value.encode("latin-1")
        _require(len(raw) == kind.size)
        return raw
    if stored == Kind.ENUM:
        return _varint(kind.symbols.index(value))
    return _encode_nested(value, kind, path, room)


def _encode_branch(value: Any, kind: Type, path: str, room: Room) -> bytes:
    """Takes the first branch that the value fits; the types of a union have no columns."""
    for number, branch in enumerate(kind.branches):
        try:
            return _varint(number) + _encode(value, branch, path, room)
        except (SchemaError, *_UNFIT):
            if room.is_full:
                raise
    raise ValueError("no branch of the union has such values")


def _encode_nested(value: Any, kind: Type, path: str, room: Room) -> bytes:
    if kind.kind == Kind.RECORD:
        made = b""
        for field in kind.fields:
            here = joined(path, field.name)
            if field.name not in value and field.default is None:
                raise SchemaError(f"{here}: the default names no value", field=here)
            if field.name in value:
                inner = value[field.name]
            else:
                room.take(len(field.default or "") // 8, here)  # reading it takes time, too
                inner = _loaded(field.default)
            made += _encode(inner, field.type, here, room)
        return made
    if kind.items is None:
        raise ValueError("a type that contains itself")
    items = kind.items
    if kind.kind == Kind.MAP:
        _require(isinstance(value, dict))
        parts = [_sized(key.encode()) + _encode(value[key], items, path, room) for key in value]
    else:
        _require(isinstance(value, list))
        parts = [_encode(each, items, path, room) for each in value]
    return (_varint(len(parts)) + b"".join(parts) if parts else b"") + b"\0"


def _loaded(default: str | None) -> Any:
    return json.loads(default or "null")


def _require(is_fine: bool) -> None:
    if not is_fine:
        raise ValueError("another type, or out of range")


def _sized(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    made = bytearray()
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    made.append(rest)
    return bytes(made)
