"""Columns into Avro's bytes: one kernel runs a program over the rows of a table.

The output is made larger between two rows when it is full. A null where the schema has none stops
the encoding with the row and the field: a table is appended as a whole or not at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import SchemaError
from lamina.formats.kernels.arrow import empty_bytes
from lamina.formats.kernels.binary import (
    address_of,
    copy,
    peek_i64,
    peek_u8,
    peek_u32,
    poke_i64,
    poke_u8,
    poke_u32,
)
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.kernels.varint import put_varint
from lamina.formats.typed.avro_program import WIDTH, Op, Program
from lamina.formats.typed.column_rooms import ITEMS_MAX, TABLE_WIDTH
from lamina.formats.typed.decimal_bytes import decimal_size, put_decimal
from lamina.formats.typed.given_columns import TableColumns, exact_columns
from lamina.formats.typed.row_faults import FINE, NO_ROOM, NULL_FOUND

_END = int(Op.END)
_INT = int(Op.INT)
_LONG = int(Op.LONG)
_FLOAT = int(Op.FLOAT)
_DOUBLE = int(Op.DOUBLE)
_BOOLEAN = int(Op.BOOLEAN)
_TEXT = int(Op.TEXT)
_FIXED = int(Op.FIXED)
_DECIMAL = int(Op.DECIMAL)
_ENUM = int(Op.ENUM)
_BRANCH = int(Op.BRANCH)
_JUMP = int(Op.JUMP)
_ZERO = int(Op.ZERO)
_LIST = int(Op.LIST)
_STACK = 64
_SPARE = 64
"""What one instruction may write beside text: a branch, a length, 16 bytes."""


def encode(program: Program, table: pa.Table | pa.RecordBatch, prefix: bytes = b"") -> pa.Array:
    """Encodes the rows of a table, each behind a prefix; `program` reads the schema by itself.

    Raises SchemaError for a column or a row that does not fit.
    """
    given = exact_columns(program.plan.root.type, table)
    columns = TableColumns(program.plan, given, table.num_rows)
    rows = columns.rows
    offsets = np.zeros(rows + 1, dtype=np.int32)
    room = min(columns.size_bytes + rows * (len(prefix) + 4) + 4096, ITEMS_MAX)
    out = empty_bytes(room)
    head = np.frombuffer(prefix or b"\0", dtype=np.uint8)
    places = np.zeros(program.plan.domains, dtype=np.int64)
    row, used = 0, 0
    while True:
        row, used, fault, place = _run(
            (program.code, columns.addresses, places),
            (head, len(prefix)),
            (out, offsets),
            (row, used, rows),
        )
        if fault != NO_ROOM:
            break
        out = _larger(out, used)
    if fault == NULL_FOUND:
        path = program.paths[place]
        raise SchemaError(f"{path}: row {row} is null, and the schema has none", field=path)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out[:used])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _larger(out: NDArray[np.uint8], used: int) -> NDArray[np.uint8]:
    if len(out) >= ITEMS_MAX:
        raise SchemaError("the rows take more than 2 GiB; append them in several tables")
    fresh = empty_bytes(min(2 * len(out), ITEMS_MAX))
    fresh[:used] = out[:used]
    return fresh


@kernel
def _run(program: Any, prefix: Any, target: Any, span: Any) -> Any:
    """Encodes rows from one on: (row, bytes used, FINE or why it stopped, instruction)."""
    code, table, places = program
    head, head_bytes = prefix
    out, offsets = target
    first, _used, rows = span
    start = address_of(out)
    end = start + len(out)
    stack = np.empty(_STACK, dtype=np.int64)
    for row in range(first, rows):
        at = start + offsets[row]
        if end - at < head_bytes + _SPARE:
            return row, offsets[row], NO_ROOM, 0
        copy(at, address_of(head), head_bytes)
        places[0] = row
        at, fault, place = _row(code, (table, places, stack), at + head_bytes, end)
        if fault != FINE:
            return row, offsets[row], fault, place
        offsets[row + 1] = at - start
    return rows, offsets[rows], FINE, 0


@inlined
def _row(  # noqa: PLR0912, PLR0915  # a branch for each instruction
    code: Any, state: Any, at: int, end: int
) -> Any:
    """Runs the program over one row: (the address after it, fault, instruction)."""
    table, places, stack = state
    depth, pc = -1, 0
    while True:
        base = pc * WIDTH
        op = code[base]
        if op == _END:
            return at, FINE, pc
        if end - at < _SPARE:
            return at, NO_ROOM, pc
        cell, index = code[base + 1] * TABLE_WIDTH, places[code[base + 2]]
        if op <= _BRANCH:
            is_absent = table[cell + 1] != 0 and is_null(table, cell, index)
            nullness = code[base + 3]
            if nullness >= 0:
                poke_u8(at, 2 * (nullness if is_absent else 1 - nullness))
                at += 1
            elif is_absent:
                return at, NULL_FOUND, pc
            if is_absent:
                pc = code[base + 4] if op == _BRANCH else pc + 1
                continue
            if op == _TEXT:
                at, fault = _put_text(table, cell, index, at, end)
                if fault != FINE:
                    return at, fault, pc
            elif op != _BRANCH:
                if op == _FIXED and end - at < code[base + 4] + _SPARE:
                    return at, NO_ROOM, pc
                at = _put_leaf(code, base, table[cell], index, at)
            pc += 1
        elif op == _JUMP:
            pc = code[base + 4]
        elif op == _ZERO:
            pc += 1
        elif op == _LIST:
            if table[cell + 1] != 0 and is_null(table, cell, index):
                return at, NULL_FOUND, pc
            first, last = peek_u32(table[cell] + 4 * index), peek_u32(table[cell] + 4 * index + 4)
            if first == last:
                poke_u8(at, 0)
                at, pc = at + 1, code[base + 4] + 1
                continue
            at = put_varint(at, last - first)
            depth += 1
            stack[depth] = last
            places[code[base + 5]] = first
            pc += 1
        else:
            inner = code[base + 5]
            places[inner] += 1
            if places[inner] < stack[depth]:
                pc = code[base + 4] + 1
                continue
            depth -= 1
            poke_u8(at, 0)
            at, pc = at + 1, pc + 1


@inlined
def is_null(table: Any, cell: int, index: int) -> Any:
    """Whether a column that has nulls has one at an index."""
    bit = table[cell + 2] + index
    return (peek_u8(table[cell + 1] + (bit >> 3)) >> (bit & 7)) & 1 == 0


@inlined
def _put_text(table: Any, cell: int, index: int, at: int, end: int) -> Any:
    offsets = table[cell] + 4 * index
    first, last = peek_u32(offsets), peek_u32(offsets + 4)
    length = last - first
    if end - at < length + _SPARE:
        return at, NO_ROOM
    at = put_varint(at, length)
    copy(at, table[cell + 3] + first, length)
    return at + length, FINE


@inlined
def _put_leaf(code: Any, base: int, values: int, index: int, at: int) -> Any:
    op = code[base]
    if op == _LONG:
        return put_varint(at, peek_i64(values + 8 * index))
    if op in (_INT, _ENUM):
        narrow: Any = np.int64(np.int32(peek_u32(values + 4 * index)))
        return put_varint(at, narrow)
    if op == _DOUBLE:
        poke_i64(at, peek_i64(values + 8 * index))
        return at + 8
    if op == _FLOAT:
        poke_u32(at, peek_u32(values + 4 * index))
        return at + 4
    if op == _BOOLEAN:
        poke_u8(at, peek_u8(values + index))
        return at + 1
    size = code[base + 4]
    if op == _FIXED:
        copy(at, values + size * index, size)
        return at + size
    source = values + 16 * index
    if size == 0:
        size = decimal_size(source)
        poke_u8(at, 2 * size)
        at += 1
    return put_decimal(source, size, at)
