"""Protobuf's messages as programs that write: from the last field to the first, the end first.

A message stands behind its length. Written from its end, its length is known when it is due, so one
pass over the columns is enough; nothing is measured before it is written.

An instruction is WIDTH integers: operation, node, domain, whether null is left out (or is a fault),
the tag as it lies in the bytes and its size, two arguments, whether zero is left out, and the width
of the node's values.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina.formats.typed.column_rooms import ColumnPlan, Node
from lamina.formats.typed.protobuf_file import SCALARS
from lamina.formats.typed.protobuf_numbers import is_zero
from lamina.formats.typed.protobuf_program import (
    MOMENT,
    PLAIN,
    Op,
    Wire,
    moment_of,
    scalar_of,
    words_of,
)
from lamina.formats.typed.protobuf_schema import UNPACKED, WRAPPERS, numbers_of
from lamina.formats.typed.schema_model import Field, Kind, Type, joined, refuse_columnless

WIDTH = 10


class Step(enum.IntEnum):
    """What an instruction does beside writing a scalar, which is an `Op`."""

    MOMENT = 20
    SPAN = 21
    BEGIN = 22
    CLOSE = 23
    LIST = 24
    LIST_END = 25
    END = 26


@dataclass(frozen=True)
class WritingSteps:
    """What the encoding kernel runs."""

    plan: ColumnPlan
    code: NDArray[np.int64]
    numbers: NDArray[np.int64]
    paths: tuple[str, ...]
    """The field of each instruction, for errors."""


def compiled(schema: Type) -> WritingSteps:
    """Compiles writing a message; raises SchemaError as reading it does."""
    refuse_columnless(schema)
    plan = ColumnPlan.of(schema)
    made = _Compiler()
    made.members(plan.root.type.fields, plan.root.children, "")
    made.emit(Step.END)
    code = np.array(made.code, dtype=np.int64).reshape(-1)
    numbers = np.array(made.numbers or [0], dtype=np.int64)
    return WritingSteps(plan, code, numbers, tuple(made.paths))


class _Compiler:
    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.paths: list[str] = []
        self.numbers: list[int] = []
        self._path = ""

    def emit(
        self,
        op: Op | Step,
        node: Node | None = None,
        tag: tuple[int, int] = (0, 0),
        more: tuple[int, int] = (0, 0),
        *,
        skips_null: bool = False,
        skips_zero: bool = False,
    ) -> int:
        """Adds an instruction; returns where it is."""
        number, domain, width = (
            (-1, 0, 0) if node is None else (node.number, node.domain, node.width)
        )
        row = [op, number, domain, int(skips_null), *tag, *more, int(skips_zero), width]
        self.code.append([int(each) for each in row])
        self.paths.append(self._path)
        return len(self.code) - 1

    def members(self, fields: tuple[Field, ...], nodes: tuple[Node, ...], path: str) -> None:
        """Writes the fields of a message, the highest number first."""
        both = sorted(zip(fields, nodes, strict=True), key=lambda pair: -pair[0].number)
        for field, node in both:
            outer, self._path = self._path, joined(path, field.name)
            self._field(field, node)
            self._path = outer

    def _field(self, field: Field, node: Node) -> None:
        key, word = words_of(field)
        if field.type.items is None:
            skips_zero = not field.type.is_nullable and field.default is not None
            self._value(
                field.type, word, node, field.number, skips_zero=skips_zero and is_zero(field)
            )
            return
        if field.type.kind == Kind.MAP:
            begin = self.emit(Step.LIST, node, more=(0, node.inner))
            self.emit(Step.BEGIN)
            self._value(field.type.items, word, node.children[1], 2)
            self._value(field.type.keys or Type(Kind.STRING), key, node.children[0], 1)
            self.emit(Step.CLOSE, None, tag_of(field.number, Wire.SIZED))
            self._end_list(begin, node, (0, 0))
            return
        items, inner = field.type.items, node.children[0]
        is_enum = items.kind == Kind.ENUM and not word
        is_number = is_enum or (word in SCALARS and word not in ("string", "bytes"))
        is_packed = is_number and not field.wire.endswith(UNPACKED)
        begin = self.emit(Step.LIST, node, more=(0, node.inner), skips_zero=is_packed)
        self._value(items, word, inner, 0 if is_packed else field.number)
        self._end_list(begin, node, tag_of(field.number, Wire.SIZED) if is_packed else (0, 0))

    def _end_list(self, begin: int, node: Node, tag: tuple[int, int]) -> None:
        end = self.emit(Step.LIST_END, node, tag, (begin, node.inner))
        self.code[begin][6] = end

    def _value(
        self, kind: Type, word: str, node: Node, number: int, *, skips_zero: bool = False
    ) -> None:
        """Writes one value; number 0 is one of a packed list, which has no tag."""
        skips_null = node.type.is_nullable
        shape, unit = moment_of(kind, word, self._path)
        scalar = WRAPPERS.get(word)
        if shape != PLAIN:
            step = Step.MOMENT if shape == MOMENT else Step.SPAN
            tag = tag_of(number, Wire.SIZED)
            self.emit(step, node, tag, (unit, 0), skips_null=skips_null)
        elif kind.kind == Kind.RECORD or scalar is not None:
            begin = self.emit(Step.BEGIN, node, skips_null=skips_null)
            if scalar is None:
                self.members(kind.fields, node.children, self._path)
            else:
                self._leaf(kind, scalar, node, 1, skips_zero=True)
            end = self.emit(Step.CLOSE, None, tag_of(number, Wire.SIZED))
            self.code[begin][6] = end
        else:
            self._leaf(kind, word, node, number, skips_null=skips_null, skips_zero=skips_zero)

    def _leaf(
        self,
        kind: Type,
        word: str,
        node: Node,
        number: int,
        *,
        skips_null: bool = False,
        skips_zero: bool = False,
    ) -> None:
        op, wire = scalar_of(kind, word, self._path)
        more = (kind.size, 0)
        if op == Op.ENUM:
            more = (len(self.numbers), 0)
            self.numbers += numbers_of(kind)
        tag = tag_of(number, wire) if number else (0, 0)
        self.emit(op, node, tag, more, skips_null=skips_null, skips_zero=skips_zero)


def tag_of(number: int, wire: Wire) -> tuple[int, int]:
    """Returns the bytes of a tag as one number, the first byte lowest, and how many they are."""
    rest, made, size = number << 3 | wire, 0, 0
    while rest > 0x7F:
        made |= (rest & 0x7F | 0x80) << 8 * size
        rest >>= 7
        size += 1
    return made | rest << 8 * size, size + 1
