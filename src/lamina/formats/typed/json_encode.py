"""Columns into JSON documents: Arrow makes text of every number, and one kernel writes the rest.

The schema becomes a program: pieces of text that are the same in every document, and between them
the texts of columns, quoted and escaped where they are text.
"""

from __future__ import annotations

import enum
import json
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lamina.errors import SchemaError
from lamina.formats.kernels.arrow import empty_bytes
from lamina.formats.kernels.binary import address_of, copy, peek_u8, peek_u32, poke_u8, poke_u32
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.typed.clock_texts import is_writable
from lamina.formats.typed.column_rooms import ITEMS_MAX, TABLE_WIDTH, ColumnPlan, Node
from lamina.formats.typed.given_columns import TableColumns, exact_columns, refuse_no_symbol
from lamina.formats.typed.row_faults import FINE, NO_ROOM, NULL_FOUND
from lamina.formats.typed.schema_model import Field, Kind, Type, joined

WIDTH = 7
_STACK = 64
_SPARE = 64
_UTC = {Kind.TIMESTAMP_MILLIS, Kind.TIMESTAMP_MICROS, Kind.TIMESTAMP_NANOS}
_LOCAL = {
    *(Kind.LOCAL_TIMESTAMP_MILLIS, Kind.LOCAL_TIMESTAMP_MICROS, Kind.LOCAL_TIMESTAMP_NANOS),
}
_TIMES = {Kind.DATE, Kind.TIME_MILLIS, Kind.TIME_MICROS, *_UTC, *_LOCAL}
_QUOTED = {Kind.STRING, Kind.UUID, Kind.ENUM, *_TIMES}


class Op(enum.IntEnum):
    """What an instruction does."""

    END = 0
    LITERAL = 1
    RAW = 2
    QUOTED = 3
    BRANCH = 4
    LIST = 5
    LIST_END = 6


_END, _LITERAL, _RAW = int(Op.END), int(Op.LITERAL), int(Op.RAW)
_IS_QUOTED, _BRANCH, _LIST = int(Op.QUOTED), int(Op.BRANCH), int(Op.LIST)


class Template(NamedTuple):
    """A schema as a program; made once per schema."""

    schema: Type
    plan: ColumnPlan
    code: NDArray[np.int64]
    constants: NDArray[np.uint8]
    paths: tuple[str, ...]


class _Compiler:
    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.paths: list[str] = []
        self.constants = bytearray(b"null")

    def emit(self, op: Op, path: str, node: Node | None = None, *more: int) -> int:
        """Adds an instruction; returns where it is."""
        place = (node.number, node.domain) if node is not None else (0, 0)
        self.code.append([op, *place, *more, *[0] * (WIDTH - 3 - len(more))])
        self.paths.append(path)
        return len(self.code) - 1

    def literal(self, text: str) -> None:
        """Writes a piece of text as it is."""
        raw = text.encode()
        self.emit(Op.LITERAL, "", None, len(self.constants), len(raw))
        self.constants += raw

    def value(self, node: Node, kind: Type, path: str) -> None:
        """Writes one value."""
        if kind.kind == Kind.NULL:
            self.literal("null")
            return
        may_be_null = int(kind.is_nullable)
        if kind.kind != Kind.RECORD and kind.items is None:
            op = Op.QUOTED if kind.kind in _QUOTED else Op.RAW
            self.emit(op, path, node, may_be_null)
            return
        branch = self.emit(Op.BRANCH, path, node, may_be_null)
        if kind.kind == Kind.RECORD:
            self.record(node, kind, path)
        else:
            self._list(node, kind, path)
        self.code[branch][4] = len(self.code)

    def record(self, node: Node, kind: Type, path: str) -> None:
        """Writes an object."""
        for at, field in enumerate(kind.fields):
            self.literal(("{" if at == 0 else ",") + json.dumps(field.name) + ":")
            self.value(node.children[at], field.type, joined(path, field.name))
        self.literal("}" if kind.fields else "{}")

    def _list(self, node: Node, kind: Type, path: str) -> None:
        assert kind.items is not None
        is_map = int(kind.kind == Kind.MAP)
        begin = self.emit(Op.LIST, path, node, 0, 0, node.inner, is_map)
        if is_map:
            self.emit(Op.QUOTED, path, node.children[0], 0)
            self.literal(":")
        self.value(node.children[-1], kind.items, f"{path}[]")
        end = self.emit(Op.LIST_END, path, node, 0, begin, node.inner, is_map)
        self.code[begin][4] = end


def template(schema: Type) -> Template:
    """Compiles writing."""
    plan = ColumnPlan.of(_textual(schema))
    made = _Compiler()
    made.record(plan.root, schema, "")
    made.emit(Op.END, "")
    code = np.array(made.code, dtype=np.int64).reshape(-1)
    constants = np.frombuffer(bytes(made.constants), dtype=np.uint8)
    return Template(schema, plan, code, constants, tuple(made.paths))


def _textual(kind: Type) -> Type:
    """The same shape with text in every leaf."""
    if kind.kind == Kind.RECORD:
        fields = tuple(Field(each.name, _textual(each.type)) for each in kind.fields)
        return Type(Kind.RECORD, is_nullable=kind.is_nullable, fields=fields)
    if kind.items is not None:
        return Type(kind.kind, is_nullable=kind.is_nullable, items=_textual(kind.items))
    if kind.kind == Kind.NULL:
        return kind
    return Type(Kind.STRING, is_nullable=kind.is_nullable)


def encode(made: Template, table: pa.Table | pa.RecordBatch, prefix: bytes = b"") -> pa.Array:
    """Encodes the rows of a table, each behind a prefix; raises SchemaError where one is none."""
    texts = [
        _texts(field.type, column, field.name)
        for field, column in zip(made.schema.fields, exact_columns(made.schema, table), strict=True)
    ]
    columns = TableColumns(made.plan, texts, table.num_rows)
    rows = columns.rows
    offsets = np.zeros(rows + 1, dtype=np.int32)
    out = empty_bytes(
        min(columns.size_bytes + rows * (len(prefix) + len(made.constants)) + 4096, ITEMS_MAX)
    )
    head = np.frombuffer(prefix or b"\0", dtype=np.uint8)
    places = np.zeros(made.plan.domains, dtype=np.int64)
    row, used, fault, place = 0, 0, NO_ROOM, 0
    while True:
        row, used, fault, place = _run(
            (made.code, columns.addresses, places, made.constants),
            (head, len(prefix)),
            (out, offsets),
            (row, rows),
        )
        if fault != NO_ROOM:
            break
        if len(out) >= ITEMS_MAX:
            raise SchemaError("the rows take more than 2 GiB; append them in several tables")
        fresh = empty_bytes(min(2 * len(out), ITEMS_MAX))
        fresh[:used] = out[:used]
        out = fresh
    if fault == NULL_FOUND:
        path = made.paths[place]
        raise SchemaError(f"{path}: row {row} is null, and the schema has none", field=path)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[:used])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _texts(kind: Type, array: pa.Array, path: str) -> pa.Array:
    """Every leaf as text, as JSON writes it."""
    if kind.kind == Kind.RECORD:
        inner = [
            _texts(field.type, array.field(at), joined(path, field.name))
            for at, field in enumerate(kind.fields)
        ]
        names = [field.name for field in kind.fields]
        return pa.StructArray.from_arrays(inner, names, mask=array.is_null())
    if kind.items is not None:
        if array.offset:
            array = array.take(pa.array(np.arange(len(array))))
        keys = [array.keys] if kind.kind == Kind.MAP else []
        values = array.items if keys else array.values
        inner = [*keys, _texts(kind.items, values, f"{path}[]")]
        target = pa.list_(inner[0].type)
        if keys:
            target = pa.map_(pa.string(), inner[1].type)
            inner = [pa.StructArray.from_arrays(inner, fields=[target.key_field,
                                                               target.item_field])]  # fmt: skip
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=inner)
    if kind.kind in _TIMES and not is_writable(array):
        told = "a time of day lies within a day, and a year is one of 0 to 9999"
        raise SchemaError(f"{path}: JSON has no such time: {told}", field=path)
    if kind.kind in _UTC:
        return pc.strftime(array, format="%Y-%m-%dT%H:%M:%SZ")
    if kind.kind in _LOCAL:
        return pc.strftime(array, format="%Y-%m-%dT%H:%M:%S")
    is_float = kind.kind in (Kind.FLOAT, Kind.DOUBLE)
    if is_float and pc.any(pc.invert(pc.is_finite(array))).as_py():
        raise SchemaError(f"{path}: JSON has no infinite numbers and no NaN", field=path)
    if kind.kind == Kind.ENUM:
        refuse_no_symbol(array, kind, path)
    return array if kind.kind == Kind.NULL else array.cast(pa.string())


@kernel
def _run(program: Any, prefix: Any, target: Any, span: Any) -> Any:
    """Encodes rows from one on: (row, bytes used, FINE or why it stopped, instruction)."""
    code, table, places, constants = program
    head, head_bytes = prefix
    out, offsets = target
    first, rows = span
    start = address_of(out)
    end = start + len(out)
    stack = np.empty(_STACK, dtype=np.int64)
    for row in range(first, rows):
        at = start + offsets[row]
        if end - at < head_bytes + _SPARE:
            return row, offsets[row], NO_ROOM, 0
        copy(at, address_of(head), head_bytes)
        places[0] = row
        at, fault, place = _row(code, (table, places, stack, constants), at + head_bytes, end)
        if fault != FINE:
            return row, offsets[row], fault, place
        offsets[row + 1] = at - start
    return rows, offsets[rows], FINE, 0


@inlined
def _row(  # noqa: PLR0912  # a branch for each instruction
    code: Any, state: Any, at: int, end: int
) -> Any:
    """Runs the program over one row: (the address after it, fault, instruction)."""
    table, places, stack, constants = state
    depth, pc = -1, 0
    while True:
        base = pc * WIDTH
        op = code[base]
        if op == _END:
            return at, FINE, pc
        if end - at < _SPARE:
            return at, NO_ROOM, pc
        if op == _LITERAL:
            length = code[base + 4]
            if end - at < length + _SPARE:
                return at, NO_ROOM, pc
            copy(at, address_of(constants) + code[base + 3], length)
            at, pc = at + length, pc + 1
            continue
        cell, index = code[base + 1] * TABLE_WIDTH, places[code[base + 2]]
        if op <= _BRANCH:
            if table[cell + 1] != 0 and _is_null(table, cell, index):
                if code[base + 3] == 0:
                    return at, NULL_FOUND, pc
                poke_u32(at, 0x6C6C756E)  # null
                at += 4
                pc = code[base + 4] if op == _BRANCH else pc + 1
                continue
            if op != _BRANCH:
                at = _put_text(table, cell, index, (at, end, op == _IS_QUOTED))
                if at == 0:
                    return at, NO_ROOM, pc
            pc += 1
        elif op == _LIST:
            first, last = peek_u32(table[cell] + 4 * index), peek_u32(table[cell] + 4 * index + 4)
            poke_u8(at, 0x7B if code[base + 6] else 0x5B)
            at += 1
            if first == last:
                poke_u8(at, 0x7D if code[base + 6] else 0x5D)
                at, pc = at + 1, code[base + 4] + 1
                continue
            depth += 1
            stack[depth] = last
            places[code[base + 5]] = first
            pc += 1
        else:
            inner = code[base + 5]
            places[inner] += 1
            if places[inner] < stack[depth]:
                poke_u8(at, 0x2C)
                at, pc = at + 1, code[base + 4] + 1
                continue
            depth -= 1
            poke_u8(at, 0x7D if code[base + 6] else 0x5D)
            at, pc = at + 1, pc + 1


@inlined
def _is_null(table: Any, cell: int, index: int) -> Any:
    bit = table[cell + 2] + index
    return (peek_u8(table[cell + 1] + (bit >> 3)) >> (bit & 7)) & 1 == 0


@inlined
def _put_text(table: Any, cell: int, index: int, span: Any) -> Any:
    """Writes text, escaped and in quotes if it is quoted; returns 0 where there is no room."""
    at, end, is_quoted = span
    offsets = table[cell] + 4 * index
    first, last = peek_u32(offsets), peek_u32(offsets + 4)
    source, length = table[cell + 3] + first, last - first
    if not is_quoted:
        if end - at < length + _SPARE:
            return 0
        copy(at, source, length)
        return at + length
    if end - at < 6 * length + _SPARE:
        return 0
    poke_u8(at, 0x22)
    at += 1
    for each in range(length):
        byte = peek_u8(source + each)
        if byte >= 0x20 and byte not in (0x22, 0x5C):
            poke_u8(at, byte)
            at += 1
        elif byte >= 0x20:
            poke_u8(at, 0x5C)
            poke_u8(at + 1, byte)
            at += 2
        else:
            poke_u32(at, 0x3030755C)  # \\u00
            poke_u8(at + 4, 0x30 + (byte >> 4))
            low = byte & 15
            poke_u8(at + 5, 0x30 + low if low < 10 else 0x57 + low)
            at += 6
    poke_u8(at, 0x22)
    return at + 1
