"""Avro's schemas as programs of integers: the writer's order, into the reader's columns.

An instruction is WIDTH integers: operation, node, domain, nullness, three arguments, and how the
node lies in memory (its storage and its width). Fields of
the writer that the reader lacks have no node: their bytes are checked and passed over. Fields that
the writer lacks are read from constants, the reader's defaults in Avro's own bytes.

    nullness    -1 never null, and nothing to note    -2 never null, noted as present
                0, 1  a union in which this branch is null
                2, 3  the same, but the reader has no place for null
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.errors import SchemaError, SchemaIncompatible
from lamina.formats.typed.avro_value import encode_default
from lamina.formats.typed.column_rooms import ColumnPlan, Node, Storage
from lamina.formats.typed.decimal_bytes import decimal_limit
from lamina.formats.typed.evolution import unreadable, writer_field
from lamina.formats.typed.schema_model import Kind, Type, refuse_columnless

WIDTH = 9
NEVER, NOTED = -1, -2


class Op(enum.IntEnum):
    """What an instruction does; `avro_decode` and `avro_encode` have the meaning."""

    END = 0
    INT = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    BOOLEAN = 5
    TEXT = 6
    FIXED = 7
    DECIMAL = 8
    ENUM = 9
    NULL = 10
    BRANCH = 11
    JUMP = 12
    ZERO = 13
    LIST = 14
    LIST_END = 15
    CONSTANT = 16
    CONSTANT_END = 17


# What INT and LONG are stored as, FLOAT too.
AS_INT, AS_LONG, AS_FLOAT, AS_DOUBLE = range(4)
_TARGETS = {
    Kind.INT: AS_INT,
    Kind.LONG: AS_LONG,
    Kind.FLOAT: AS_FLOAT,
    Kind.DOUBLE: AS_DOUBLE,
}


@dataclass(frozen=True)
class Program:
    """What the decoding kernel runs, and the columns that it fills."""

    plan: ColumnPlan
    code: NDArray[np.int64]
    constants: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    zero_at: int
    """Where the code begins that makes a row of nothing, for a record that is bad or null."""
    paths: tuple[str, ...]
    """The field of each instruction, for errors."""
    kinds: tuple[Type | None, ...]
    """What was written there, as its writer's schema says."""


def compiled(reader: Type, writer: Type) -> Program:
    """Compiles reading: raises SchemaIncompatible where the reader cannot read what was written."""
    for kind in (reader, writer):
        refuse_columnless(kind)
    found = unreadable(reader, writer)
    if found:
        raise SchemaIncompatible(found[0], field=found[0].partition(":")[0])
    plan = ColumnPlan.of(reader)
    made = _Compiler()
    made.record(plan.root, writer, "")
    made.emit(Op.END)
    zero_at = len(made.code)
    made.zeros(plan.root)
    made.emit(Op.END)
    return Program(
        *(plan, np.array(made.code, dtype=np.int64).reshape(-1)),
        np.frombuffer(bytes(made.constants) or b"\0", dtype=np.uint8),
        np.array(made.numbers or [0], dtype=np.int64),
        zero_at,
        tuple(made.paths),
        tuple(made.kinds),
    )


class _Compiler:
    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.paths: list[str] = []
        self.kinds: list[Type | None] = []
        self.constants = bytearray()
        self.numbers: list[int] = []
        self._path = ""
        self._kind: Type | None = None

    def emit(self, op: Op, node: Node | None = None, nullness: int = NEVER, *more: int) -> int:
        """Adds an instruction; returns where it is."""
        place = (node.number, node.domain) if node is not None else (-1, 0)
        memory = (0, 0)
        if node is not None:
            memory = (node.storage, node.inner or node.width)
        self.code.append([op, *place, nullness, *more, *[0] * (3 - len(more)), *memory])
        self.paths.append(self._path)
        self.kinds.append(self._kind)
        return len(self.code) - 1

    def record(self, node: Node | None, writer: Type, path: str) -> None:
        """Reads a record's fields in the writer's order, then the defaults of those it lacks."""
        fields = node.type.fields if node is not None else ()
        taken = {}
        for place, field in enumerate(fields):
            other = writer_field(field, writer)
            if other is not None:
                taken[other.name] = place
        if len(taken) < sum(writer_field(each, writer) is not None for each in fields):
            raise SchemaError(f"{path or 'schema'}: two fields read the same field", field=path)
        for written in writer.fields:
            at = taken.get(written.name)
            target = node.children[at] if node is not None and at is not None else None
            self.value(target, written.type, f"{path}.{written.name}" if path else written.name)
        for place, field in enumerate(fields):
            if node is not None and writer_field(field, writer) is None:
                self._default(node.children[place], field.default or "null", path)

    def _default(self, node: Node, default: str, path: str) -> None:
        start = len(self.constants)
        self.constants += encode_default(json.loads(default), node.type, path)
        self.emit(Op.CONSTANT, None, NEVER, start, len(self.constants))
        # A default of a union is of its first branch; encode_default writes the branch that fits.
        self.value(node, node.type, path)
        self.emit(Op.CONSTANT_END)

    def value(self, node: Node | None, writer: Type, path: str) -> None:
        """Reads one value of the writer's type into a node, or past it."""
        outer = self._path, self._kind
        self._path, self._kind = path, writer
        nullness = _nullness(node, writer)
        if writer.kind == Kind.RECORD or writer.items is not None:
            self._nested(node, writer, path, nullness)
        else:
            self._leaf(node, writer, nullness)
        self._path, self._kind = outer

    def _leaf(self, node: Node | None, writer: Type, nullness: int) -> None:
        stored = writer.stored
        if writer.kind == Kind.DECIMAL:
            limit = decimal_limit(node.type.precision if node is not None else 38)
            self.emit(Op.DECIMAL, node, nullness, writer.size, *limit)
        elif stored == Kind.FIXED:
            self.emit(Op.FIXED, node, nullness, writer.size)
        elif stored in (Kind.STRING, Kind.BYTES):
            is_text = node is not None and node.type.stored == Kind.STRING
            self.emit(Op.TEXT, node, nullness, int(is_text))
        elif stored == Kind.ENUM:
            start = len(self.numbers)
            self.numbers += _symbols(node, writer)
            self.emit(Op.ENUM, node, nullness, start, len(writer.symbols))
        elif stored == Kind.NULL:
            self._absent(node)
        elif stored == Kind.BOOLEAN:
            self.emit(Op.BOOLEAN, node, nullness)
        else:
            target = _TARGETS[node.type.stored if node is not None else stored]
            self.emit(Op[stored.name], node, nullness, target)

    def _absent(self, node: Node | None) -> None:
        """The writer's type is null: it has no bytes, and the reader sees nothing."""
        if node is not None:
            self.zeros_of(node)

    def _nested(self, node: Node | None, writer: Type, path: str, nullness: int) -> None:
        branch = -1
        if nullness != NEVER:
            branch = self.emit(Op.BRANCH, node, nullness)
        if writer.kind == Kind.RECORD:
            self.record(node, writer, path)
        else:
            self._list(node, writer, path)
        if branch >= 0:
            jump = self.emit(Op.JUMP)
            self.code[branch][4] = len(self.code)
            if node is not None:
                self.zeros(node)
            self.code[jump][4] = len(self.code)

    def _list(self, node: Node | None, writer: Type, path: str) -> None:
        assert writer.items is not None
        items = writer.items
        least = least_bytes(items) + (writer.kind == Kind.MAP)
        inner = node.inner if node is not None else -1
        begin = self.emit(Op.LIST, node, NEVER, 0, inner, least)
        if writer.kind == Kind.MAP:
            key = node.children[0] if node is not None else None
            self.value(key, Type(Kind.STRING), path)
        self.value(node.children[-1] if node is not None else None, items, f"{path}[]")
        end = self.emit(Op.LIST_END, node, NEVER, begin, inner, least)
        self.code[begin][4] = end

    def zeros(self, node: Node) -> None:
        """Makes the nodes below one, and a list itself, hold nothing."""
        if node.storage == Storage.STRUCT:
            for child in node.children:
                self.zeros_of(child)
        else:
            self.emit(Op.ZERO, node)

    def zeros_of(self, node: Node) -> None:
        """Makes a node null, or of zeros where it cannot be null."""
        nullness = 0 if node.type.is_nullable else NEVER
        self.emit(Op.ZERO, node, nullness)
        if node.storage == Storage.STRUCT:
            self.zeros(node)


def _nullness(node: Node | None, writer: Type) -> int:
    has_place = node is not None and node.type.is_nullable
    if writer.is_nullable:
        branch = int(writer.null_is_last)
        return branch if has_place or node is None else branch + 2
    return NOTED if has_place else NEVER


def _symbols(node: Node | None, writer: Type) -> list[int]:
    """The reader's number of each of the writer's symbols; -1 where it has none."""
    if node is None:
        return [0] * len(writer.symbols)
    known = {symbol: number for number, symbol in enumerate(node.type.symbols)}
    fallback = known.get(node.type.default_symbol, -1)
    return [known.get(symbol, fallback) for symbol in writer.symbols]


def least_bytes(kind: Type) -> int:
    """Returns how many bytes a value takes at least: what bounds the items of a list."""
    if kind.is_nullable:
        return 1
    if kind.kind == Kind.RECORD:
        return min(sum(least_bytes(field.type) for field in kind.fields), 1 << 20)
    stored = kind.stored
    if stored == Kind.NULL:
        return 0
    return {Kind.FIXED: kind.size, Kind.FLOAT: 4, Kind.DOUBLE: 8}.get(stored, 1)
