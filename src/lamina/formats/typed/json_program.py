"""A schema as tables of integers, for the kernel that reads plain JSON documents.

    records    first field, how many, which of them must be there (bits)
    fields     name (position and length in `names`), what it is, node, domain, storage, size or
               inner domain, may it be null, where its zeros begin and end, what is below it
    zeros      node, domain, storage, size or inner domain, may it be null

The items of a list are a field without a name. A schema is read this way if its leaves are numbers,
booleans and text, and no field has a former name; the others are Arrow's reader's alone
(`json_decode`), as is every document that the kernel does not understand.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.formats.typed.column_rooms import ColumnPlan, Node, Storage
from lamina.formats.typed.schema_model import Field, Kind, Type

RECORD_WIDTH, FIELD_WIDTH, ZERO_WIDTH = 3, 11, 5
FIELDS_MAX = 62
"""How many fields a record may have: the kernel notes in one integer which of them it has seen."""
NAME_SLACK = 8
"""Bytes behind the names, which are compared eight at a time."""


class Op(enum.IntEnum):
    """What a value is."""

    BOOLEAN = 0
    INT = 1
    LONG = 2
    FLOAT = 3
    DOUBLE = 4
    TEXT = 5
    RECORD = 6
    LIST = 7


_LEAVES = {
    Kind.BOOLEAN: Op.BOOLEAN,
    Kind.INT: Op.INT,
    Kind.LONG: Op.LONG,
    Kind.FLOAT: Op.FLOAT,
    Kind.DOUBLE: Op.DOUBLE,
    Kind.STRING: Op.TEXT,
}


@dataclass(frozen=True)
class Program:
    """What the kernel runs, and the columns that it fills."""

    plan: ColumnPlan
    records: NDArray[np.int64]
    fields: NDArray[np.int64]
    zeros: NDArray[np.int64]
    names: NDArray[np.uint8]
    rows: int
    """How many of `zeros`, from the first on, make a row of nothing."""


def compiled(schema: Type) -> Program | None:
    """Compiles a schema; None for one whose documents the kernel does not read."""
    if not _is_plain(schema):
        return None
    plan = ColumnPlan.of(schema)
    made = _Compiler()
    for child in plan.root.children:
        made.nothing(child)
    rows = len(made.zeros)
    made.record(plan.root)
    return Program(
        *(plan, _flat(made.records), _flat(made.fields), _flat(made.zeros)),
        *(np.frombuffer(bytes(made.names) + bytes(NAME_SLACK), dtype=np.uint8), rows),
    )


def _flat(rows: list[list[int]]) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(-1)


def _is_plain(kind: Type) -> bool:
    if kind.kind == Kind.RECORD:
        return 0 < len(kind.fields) <= FIELDS_MAX and all(map(_is_plain_field, kind.fields))
    if kind.kind == Kind.ARRAY:
        return kind.items is not None and _is_plain(kind.items)
    return kind.kind in _LEAVES


def _is_plain_field(field: Field) -> bool:
    # A name that JSON writes with an escape is not found by comparing bytes.
    is_safe = all(each >= " " and each not in '"\\' for each in field.name)
    return is_safe and len(field.names) == 1 and _is_plain(field.type)


class _Compiler:
    def __init__(self) -> None:
        self.records: list[list[int]] = []
        self.fields: list[list[int]] = []
        self.zeros: list[list[int]] = []
        self.names = bytearray()

    def record(self, node: Node) -> int:
        """Adds a record with all below it; returns its number."""
        number, first = len(self.records), len(self.fields)
        count = len(node.children)
        needed = [not field.type.is_nullable for field in node.type.fields]
        self.records.append([first, count, sum(1 << at for at in range(count) if needed[at])])
        self.fields += [[] for _ in node.children]  # side by side, before those below them
        for at, (field, child) in enumerate(zip(node.type.fields, node.children, strict=True)):
            name, position = field.name.encode(), len(self.names)
            self.names += name
            self.fields[first + at] = [position, len(name), *self._value(child)]
        return number

    def _value(self, node: Node) -> list[int]:
        begin = len(self.zeros)
        self.nothing(node)
        end = len(self.zeros)
        op, below = _LEAVES.get(node.type.kind, Op.RECORD), 0
        if node.storage == Storage.STRUCT:
            below = self.record(node)
        elif node.storage == Storage.LIST:
            op, below = Op.LIST, len(self.fields)
            self.fields.append([])
            self.fields[below] = [0, -1, *self._value(node.children[-1])]
        size = node.inner or node.width
        null = int(node.type.is_nullable)
        return [op, node.number, node.domain, size, null, begin, end, below, node.storage]

    def nothing(self, node: Node) -> None:
        """Adds what makes a node hold nothing, and those below it that have as many rows."""
        size = node.inner or node.width or 1
        null = int(node.type.is_nullable)
        self.zeros.append([node.number, node.domain, node.storage, size, null])
        if node.storage == Storage.STRUCT:
            for child in node.children:
                self.nothing(child)
