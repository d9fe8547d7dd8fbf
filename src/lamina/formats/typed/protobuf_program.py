"""Protobuf's messages as programs of integers: what a number in a value means, and where it goes.

A program has tables, each of rows of integers:

    messages    a message at one place of the columns: its fields, and what its rows begin with
    fields      sorted by number within a message: wire type, what to do, where the value goes
    steps       how a node becomes what an absent field is: null, a default, an empty list
    checks      fields that must be there, with the message that they must be there for

A message that may be there once shares the rows of the one around it; a repeated one, and the entry
of a map, has rows of its own. Only the reader's schema is compiled: numbers do not move, and
`protobuf_rules` has said whether it reads what was written. Fields without a column are passed
over, but for those that end another one of their oneof.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.errors import SchemaError
from lamina.formats.typed.column_rooms import ColumnPlan, Node, Storage
from lamina.formats.typed.decimal_bytes import decimal_limit
from lamina.formats.typed.protobuf_file import SCALARS
from lamina.formats.typed.protobuf_schema import (
    DURATION,
    TIMESTAMP,
    UNPACKED,
    WRAPPERS,
    numbers_of,
)
from lamina.formats.typed.schema_model import Field, Kind, Type, joined, refuse_columnless

MESSAGE_WIDTH, FIELD_WIDTH, STEP_WIDTH, CHECK_WIDTH = 13, 16, 10, 2
PLAIN, MOMENT, SPAN = range(3)
"""What a message is: columns, or one column of a time stamp or of a duration."""


class Op(enum.IntEnum):
    """What a field's value is; `protobuf_decode` and `protobuf_encode` have the meaning."""

    SKIP = 0
    MESSAGE = 1
    INT_64 = 2
    INT_32 = 3
    UNSIGNED_32 = 4
    ZIGZAG_64 = 5
    ZIGZAG_32 = 6
    BOOLEAN = 7
    EIGHT_BYTES = 8
    FOUR_BYTES = 9
    FOUR_BYTES_WIDE = 10
    ENUM = 11
    TEXT = 12
    FIXED = 13
    DECIMAL = 14
    SECONDS = 15
    FRACTION = 16


class Wire(enum.IntEnum):
    """How a value lies in the bytes."""

    VARINT = 0
    EIGHT = 1
    SIZED = 2
    FOUR = 5


_SCALARS: dict[str, tuple[Op, Wire]] = {
    "int32": (Op.INT_32, Wire.VARINT),
    "int64": (Op.INT_64, Wire.VARINT),
    "uint32": (Op.UNSIGNED_32, Wire.VARINT),
    "uint64": (Op.INT_64, Wire.VARINT),
    "sint32": (Op.ZIGZAG_32, Wire.VARINT),
    "sint64": (Op.ZIGZAG_64, Wire.VARINT),
    "bool": (Op.BOOLEAN, Wire.VARINT),
    "double": (Op.EIGHT_BYTES, Wire.EIGHT),
    "fixed64": (Op.EIGHT_BYTES, Wire.EIGHT),
    "sfixed64": (Op.EIGHT_BYTES, Wire.EIGHT),
    "float": (Op.FOUR_BYTES, Wire.FOUR),
    "sfixed32": (Op.FOUR_BYTES, Wire.FOUR),
    "fixed32": (Op.FOUR_BYTES_WIDE, Wire.FOUR),
    "string": (Op.TEXT, Wire.SIZED),
    "bytes": (Op.TEXT, Wire.SIZED),
}
PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


def scalar_of(kind: Type, word: str, path: str) -> tuple[Op, Wire]:
    """Returns what to do with a scalar or an enum; raises SchemaError where it does not fit."""
    if kind.kind == Kind.ENUM and not word:
        return Op.ENUM, Wire.VARINT
    column = SCALARS.get(word)
    is_raw = column == Kind.BYTES and kind.stored in (Kind.FIXED, Kind.BYTES)
    if column is None or not (column in (kind.kind, kind.stored) or is_raw):
        raise SchemaError(f"{path}: {word or 'no type'} is not a column of {kind.kind}", field=path)
    if kind.kind == Kind.DECIMAL:
        return Op.DECIMAL, Wire.SIZED
    return (Op.FIXED, Wire.SIZED) if kind.stored == Kind.FIXED else _SCALARS[word]


def words_of(field: Field) -> tuple[str, str]:
    """Returns the words of a field: of a map's key (empty elsewhere), and of its value."""
    key, comma, value = field.wire.removesuffix(UNPACKED).partition(",")
    return (key, value) if comma else ("", key)


def moment_of(kind: Type, word: str, path: str) -> tuple[int, int]:
    """Returns what a message in one column is, and how many units of the column a second has."""
    if word not in (TIMESTAMP, DURATION):
        return PLAIN, 1
    unit = PER_SECOND.get(kind.kind.value.rpartition("-")[2])
    if unit is None or kind.stored != Kind.LONG:
        raise SchemaError(f"{path}: {word} is not a column of {kind.kind}", field=path)
    return (MOMENT if word == TIMESTAMP else SPAN), unit


@dataclass(frozen=True)
class Program:
    """What the decoding kernel runs, and the columns that it fills."""

    plan: ColumnPlan
    messages: NDArray[np.int64]
    fields: NDArray[np.int64]
    steps: NDArray[np.int64]
    checks: NDArray[np.int64]
    numbers: NDArray[np.int64]
    constants: NDArray[np.uint8]
    oneofs: int
    paths: tuple[str, ...]
    """The path of each field, for errors."""
    kinds: tuple[Type, ...]
    """What is expected there."""


def compiled(chosen: Type, whole: Type | None = None) -> Program:
    """Compiles reading a message into columns; `chosen` has some of the fields of `whole`.

    Raises SchemaError for what has no columns, and for words that do not fit their types.
    """
    refuse_columnless(chosen)
    plan = ColumnPlan.of(chosen)
    made = _Compiler()
    fields = chosen.fields if whole is None else whole.fields
    made.root(plan.root, fields)
    checks = made.checks()
    return Program(
        plan,
        _table(made.messages),
        _table(made.fields),
        _table(made.steps),
        _table(checks),
        np.array(made.numbers or [0], dtype=np.int64),
        np.frombuffer(bytes(made.constants) or b"\0", dtype=np.uint8),
        made.oneofs,
        tuple(made.paths),
        tuple(made.kinds),
    )


def _table(rows: list[list[int]]) -> NDArray[np.int64]:
    return np.array(rows or [[0]], dtype=np.int64).reshape(-1)


@dataclass(frozen=True)
class _Place:
    """Where the message around a field is: its rows, and the field that is the message."""

    domain: int
    parent: int = -1
    path: str = ""


@dataclass(frozen=True)
class _Rows:
    """Rows that a message begins: those of a list's items; the list, and where it lies."""

    domain: int
    listed: int
    outer: int


class _Compiler:
    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.fields: list[list[int]] = []
        self.steps: list[list[int]] = []
        self._checks: dict[int, list[list[int]]] = {}
        """Fields that must be there, by the rows that they are in."""
        self.paths: list[str] = []
        self.kinds: list[Type] = []
        self.numbers: list[int] = []
        self.constants = bytearray()
        self.oneofs = 0
        self._slots: dict[int, int] = {}
        """The field of each node that is one, by the node's number."""
        self._defaults: dict[int, Field] = {}

    def root(self, node: Node, fields: tuple[Field, ...]) -> None:
        nodes = {
            each.name: child for each, child in zip(node.type.fields, node.children, strict=True)
        }
        self._begin_message()
        self._members(0, fields, nodes, _Place(0))
        self._end_rows(
            0,
            node.children,
            _Rows(0, -1, -1),
            lone=tuple(at for at in range(len(self.fields)) if self.fields[at][1] == Op.SKIP),
        )

    # ------------------------------------------------------------------ messages

    def _begin_message(self, kind: int = PLAIN, node: Node | None = None, unit: int = 1) -> int:
        """Adds a message without rows of its own; returns where it is."""
        number, domain = (-1, -1) if node is None else (node.number, node.domain)
        self.messages.append([0, 0, -1, -1, -1, 0, 0, 0, 0, kind, number, unit, domain])
        return len(self.messages) - 1

    def _members(
        self, message: int, fields: tuple[Field, ...], nodes: dict[str, Node], place: _Place
    ) -> None:
        """Adds the fields of a message side by side, then what is inside of them."""
        oneofs: dict[str, int] = {}
        wanted = [
            each
            for each in sorted(fields, key=lambda field: field.number)
            if each.name in nodes or each.oneof
        ]
        first = len(self.fields)
        self.messages[message][0:2] = first, len(wanted)
        for each in wanted:
            if each.oneof and each.oneof not in oneofs:
                oneofs[each.oneof] = self.oneofs
                self.oneofs += 1
            row = [0] * FIELD_WIDTH
            row[0], row[9], row[12] = each.number, -1, oneofs.get(each.oneof, -1)
            self.fields.append(row)
            self.paths.append(joined(place.path, each.name))
            self.kinds.append(each.type)
        for at, each in enumerate(wanted, start=first):
            if each.name in nodes:
                self._field(at, each, nodes[each.name], place)
            else:
                self._skipped(at, each)
        for at, each in enumerate(wanted, start=first):
            if each.oneof:
                begin = len(self.steps)
                self._emptied(at, nodes.get(each.name))
                self.fields[at][13:15] = begin, len(self.steps) - begin

    def _skipped(self, at: int, field: Field) -> None:
        row, word = self.fields[at], words_of(field)[1]
        is_scalar = field.type.kind == Kind.ENUM or word in SCALARS
        wire = scalar_of(field.type, word, self.paths[at])[1] if is_scalar else Wire.SIZED
        row[1:4] = Op.SKIP, wire, -1

    def _field(self, at: int, field: Field, node: Node, place: _Place) -> None:
        row, path = self.fields[at], self.paths[at]
        key, word = words_of(field)
        if field.type.items is None:
            self._slots[node.number] = at
            self._defaults[node.number] = field
            if field.default is None and not field.type.is_nullable:
                self._checks.setdefault(place.domain, []).append([at, place.parent])
            self._value(at, field.type, word, node, _Place(node.domain, at, path))
            return
        row[9:12] = node.number, node.inner, node.domain
        rows = _Rows(node.inner, node.number, node.domain)
        if field.type.kind == Kind.ARRAY:
            self._value(
                at, field.type.items, word, node.children[0], _Place(node.inner, -1, path), rows
            )
            return
        entry = self._begin_message()
        row[1:5] = Op.MESSAGE, Wire.SIZED, -1, node.inner
        row[15] = entry
        keys = field.type.keys or Type(Kind.STRING)
        parts = (
            Field("key", keys, "null", number=1, wire=key),
            Field("value", field.type.items, "null", number=2, wire=word),
        )
        nodes = dict(zip(("key", "value"), node.children, strict=True))
        self._members(entry, parts, nodes, _Place(node.inner, -1, path))
        self._end_rows(entry, node.children, rows)

    def _value(
        self,
        at: int,
        kind: Type,
        word: str,
        node: Node,
        place: _Place,
        rows: _Rows | None = None,
    ) -> None:
        """Says of a field what its value is; `rows` where it is the item of a list."""
        row = self.fields[at]
        row[3:7] = node.number, node.domain, int(node.type.is_nullable), node.width
        scalar = WRAPPERS.get(word)
        is_moment = word in (TIMESTAMP, DURATION)
        if kind.kind != Kind.RECORD and scalar is None and not is_moment:
            op, wire = scalar_of(kind, word, place.path)
            row[1:3] = op, wire
            self._details(row, kind, op)
            return
        shape, unit = moment_of(kind, word, place.path)
        message = self._begin_message(shape, node, unit)
        row[1:3] = Op.MESSAGE, Wire.SIZED
        row[15] = message
        if kind.kind == Kind.RECORD:
            nodes = {
                each.name: child for each, child in zip(kind.fields, node.children, strict=True)
            }
            self._members(message, kind.fields, nodes, place)
        elif is_moment:
            self._inner(message, (Op.SECONDS, Op.FRACTION), node, kind, place)
        else:
            ops = (scalar_of(kind, scalar or "", place.path)[0],)
            self._inner(message, ops, node, kind, place, scalar or "")
        if rows is not None:
            self._end_rows(message, (node,), rows)

    def _inner(
        self,
        message: int,
        ops: tuple[Op, ...],
        node: Node,
        kind: Type,
        place: _Place,
        word: str = "int64",
    ) -> None:
        """The fields of a message that is one column: they go where the message does."""
        self.messages[message][0:2] = len(self.fields), len(ops)
        for number, op in enumerate(ops, start=1):
            row = [0] * FIELD_WIDTH
            row[0:7] = number, op, _SCALARS[word][1], node.number, node.domain, 0, node.width
            row[9], row[12] = -1, -1
            self._details(row, kind, op)
            self.fields.append(row)
            self.paths.append(place.path)
            self.kinds.append(kind)

    def _details(self, row: list[int], kind: Type, op: Op) -> None:
        if op == Op.ENUM:
            found: dict[int, int] = {}
            for symbol, number in enumerate(numbers_of(kind)):
                found.setdefault(number, symbol)
            row[7], row[8] = len(self.numbers), len(found)
            for number in sorted(found):
                self.numbers += [number, found[number]]
        elif op == Op.TEXT:
            row[7] = int(kind.stored == Kind.STRING)
        elif op == Op.FIXED:
            row[7] = kind.size
        elif op == Op.DECIMAL:
            row[7:9] = decimal_limit(kind.precision)

    # ------------------------------------------------------------------ rows

    def _end_rows(
        self,
        message: int,
        nodes: tuple[Node, ...],
        rows: _Rows,
        *,
        lone: tuple[int, ...] = (),
    ) -> None:
        """Notes what a row begins with, and what it must have."""
        begin = len(self.steps)
        for node in nodes:
            for each in _same_rows(node):
                self._step(each)
        for slot in lone:
            self._emptied(slot, None)
        told = (rows.domain, rows.listed, rows.outer, begin, len(self.steps) - begin)
        self.messages[message][2:7] = told

    def checks(self) -> list[list[int]]:
        """Returns the checks of all rows, and notes with each message which are its own."""
        made: list[list[int]] = []
        for message in self.messages:
            own = self._checks.get(message[2], [])
            message[7:9] = len(made), len(own)
            made += own
        return made

    def _emptied(self, slot: int, node: Node | None) -> None:
        """Adds the steps that take back everything that is in a field."""
        if node is None:
            self.steps.append([2, 0, 0, 0, 0, 0, -1, 0, 0, slot])
            return
        for each in _same_rows(node):
            self._step(each)
        for each in node.walk():
            if each.domain != node.domain:
                self._step(each, is_inner=True)

    def _step(self, node: Node, *, is_inner: bool = False) -> None:
        start, size = 0, 0
        field = self._defaults.get(node.number)
        is_plain = (
            field is not None and not field.type.is_nullable and field.default not in (None, "null")
        )
        if is_plain and field is not None:
            made = default_bytes(field)
            start, size = len(self.constants), len(made)
            self.constants += made
        presence = 0 if node.type.is_nullable else -1
        slot = self._slots.get(node.number, -1)
        row = [int(is_inner), node.number, node.domain, int(node.storage), node.width, node.inner]
        self.steps.append([*row, presence, start, size, slot])


def _same_rows(node: Node) -> Iterator[Node]:
    yield node
    if node.storage == Storage.STRUCT:
        for child in node.children:
            yield from _same_rows(child)


def default_bytes(field: Field) -> bytes:
    """Returns a field's default as a column has it; nothing for one of zeros.

    Raises SchemaError where it does not fit.
    """
    kind, value = field.type, json.loads(field.default or "null")
    try:
        if kind.kind == Kind.ENUM:
            made = struct.pack("<i", kind.symbols.index(value))
        elif kind.stored == Kind.STRING:
            made = value.encode()
        elif kind.kind == Kind.DECIMAL:
            made = int.from_bytes(value.encode("latin-1"), "big", signed=True).to_bytes(
                16, "little", signed=True
            )
        elif kind.stored in (Kind.BYTES, Kind.FIXED):
            made = value.encode("latin-1")
            if kind.stored == Kind.FIXED and len(made) != kind.size:
                raise ValueError(f"{kind.size} bytes")
        elif kind.stored == Kind.BOOLEAN:
            made = bytes([int(value)])
        elif kind.stored in (Kind.FLOAT, Kind.DOUBLE):
            made = struct.pack("<f" if kind.stored == Kind.FLOAT else "<d", value)
        elif kind.items is not None or kind.kind == Kind.RECORD:
            return b""
        else:
            word = "Q" if kind.kind == Kind.ULONG else "i" if kind.stored == Kind.INT else "q"
            made = struct.pack(f"<{word}", value)
    except (ValueError, TypeError, AttributeError, struct.error, OverflowError) as error:
        path = field.name
        raise SchemaError(
            f"{path}: the default {value!r} is not of type {kind.kind}", field=path
        ) from error
    return made if any(made) or kind.stored in (Kind.STRING, Kind.BYTES) else b""
