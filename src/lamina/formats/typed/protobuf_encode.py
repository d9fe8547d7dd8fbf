"""Columns into Protobuf's bytes: one kernel runs a program over the rows, the last one first.

Everything is written backwards into memory that is made larger at its beginning when it is full. A
null where the schema has none stops the encoding with the row and the field, and so does a number
that its type cannot hold: a table is appended as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from lamina.formats.kernels.plain_varint import put_plain_varint_before
from lamina.formats.typed.avro_encode import is_null
from lamina.formats.typed.column_rooms import ITEMS_MAX, TABLE_WIDTH
from lamina.formats.typed.decimal_bytes import decimal_size, put_decimal
from lamina.formats.typed.given_columns import TableColumns, exact_columns
from lamina.formats.typed.protobuf_layout import WIDTH, Step, WritingSteps
from lamina.formats.typed.protobuf_program import Op
from lamina.formats.typed.row_faults import BAD_NUMBER, FINE, NO_ROOM, NULL_FOUND
from lamina.formats.typed.schema_model import Kind, Type, joined

_INT_64, _INT_32 = int(Op.INT_64), int(Op.INT_32)
_UNSIGNED_32 = int(Op.UNSIGNED_32)
_ZIGZAG_64, _ZIGZAG_32 = int(Op.ZIGZAG_64), int(Op.ZIGZAG_32)
_BOOLEAN = int(Op.BOOLEAN)
_EIGHT_BYTES, _FOUR_BYTES = int(Op.EIGHT_BYTES), int(Op.FOUR_BYTES)
_FOUR_BYTES_WIDE = int(Op.FOUR_BYTES_WIDE)
_ENUM, _TEXT, _FIXED, _DECIMAL = int(Op.ENUM), int(Op.TEXT), int(Op.FIXED), int(Op.DECIMAL)
_MOMENT, _SPAN = int(Step.MOMENT), int(Step.SPAN)
_BEGIN, _CLOSE = int(Step.BEGIN), int(Step.CLOSE)
_LIST, _LIST_END, _END = int(Step.LIST), int(Step.LIST_END), int(Step.END)
_STACK = 128
_SPARE = 96
"""What one instruction may write beside text: a tag, a length, a time."""
_ALL = 1_000_000_000


def encode(steps: WritingSteps, table: pa.Table | pa.RecordBatch, prefix: bytes = b"") -> pa.Array:
    """Encodes the rows of a table, each behind a prefix.

    Raises SchemaError for a column or a row that does not fit.
    """
    schema = steps.plan.root.type
    given = exact_columns(schema, table)
    for problem in _two_of_one(schema, given, np.ones(table.num_rows, dtype=np.bool_), ""):
        raise SchemaError(problem, field=problem.partition(":")[0])
    columns = TableColumns(steps.plan, given, table.num_rows)
    rows = columns.rows
    behind = np.zeros(rows + 1, dtype=np.int32)
    room = min(columns.size_bytes + rows * (len(prefix) + 4) + 4096, ITEMS_MAX)
    out = empty_bytes(room)
    head = np.frombuffer(prefix or b"\0", dtype=np.uint8)
    places = np.zeros(steps.plan.domains, dtype=np.int64)
    row = rows
    while True:
        row, fault, place = _run(
            (steps.code, steps.numbers, columns.addresses, places),
            (head, len(prefix)),
            (out, behind),
            row,
        )
        if fault != NO_ROOM:
            break
        out = _larger(out, int(behind[row]))
    if fault != FINE:
        path = steps.paths[place]
        told = "is null, and the schema has none"
        if fault == BAD_NUMBER:
            told = "is no number of 32 bits without sign, or longer than the schema has it"
        raise SchemaError(f"{path}: row {row - 1} {told}", field=path)
    used = int(behind[0])
    offsets = pa.py_buffer(used - behind)
    buffers = [None, offsets, pa.py_buffer(out[len(out) - used :])]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _larger(out: NDArray[np.uint8], used: int) -> NDArray[np.uint8]:
    if len(out) >= ITEMS_MAX:
        raise SchemaError("the rows take more than 2 GiB; append them in several tables")
    fresh = empty_bytes(min(2 * len(out), ITEMS_MAX))
    fresh[len(fresh) - used :] = out[len(out) - used :]
    return fresh


def _two_of_one(
    kind: Type, arrays: list[pa.Array], there: NDArray[np.bool_], path: str
) -> Iterator[str]:
    """Says where two fields of a oneof have a value: only one of them could be written."""
    taken: dict[str, tuple[str, NDArray[np.bool_]]] = {}
    for field, array in zip(kind.fields, arrays, strict=True):
        here = joined(path, field.name)
        valid = there & np.asarray(array.is_valid())
        if field.oneof:
            name, others = taken.get(field.oneof, (field.name, np.zeros_like(valid)))
            both = valid & others
            if both.any():
                row = int(np.flatnonzero(both)[0])
                told = f"{name} has a value in row {row}, too; of oneof {field.oneof} one may"
                yield f"{here}: {told}"
            taken[field.oneof] = (field.name, valid | others)
        yield from _inside(field.type, array, valid, here)


def _inside(kind: Type, array: pa.Array, there: NDArray[np.bool_], path: str) -> Iterator[str]:
    if not _has_oneof(kind):
        return
    if kind.kind == Kind.RECORD:
        inner = [array.field(at) for at in range(len(kind.fields))]
        yield from _two_of_one(kind, inner, there, path)
    elif kind.items is not None:
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        values = array.items if kind.kind == Kind.MAP else array.values
        items = values.slice(first, last - first)
        yield from _inside(kind.items, items, np.asarray(items.is_valid()), f"{path}[]")


def _has_oneof(kind: Type) -> bool:
    if kind.items is not None:
        return _has_oneof(kind.items)
    return any(field.oneof or _has_oneof(field.type) for field in kind.fields)


@kernel
def _run(program: Any, prefix: Any, target: Any, last: int) -> Any:
    """Encodes rows from one back to the first: (rows that are left, why it stopped, where)."""
    code, numbers, table, places = program
    head, head_bytes = prefix
    out, behind = target
    low = address_of(out)
    high = low + len(out)
    stack = np.empty(2 * _STACK, dtype=np.int64)
    for left in range(last):
        row = last - 1 - left
        at = high - behind[row + 1]
        places[0] = row
        at, fault, place = _row(code, (numbers, table, places, stack), at, low + head_bytes)
        if fault != FINE:
            return row + 1, fault, place
        at -= head_bytes
        copy(at, address_of(head), head_bytes)
        behind[row] = high - at
    return 0, FINE, 0


@inlined
def _row(  # noqa: PLR0912  # a branch for each instruction
    code: Any, state: Any, at: int, low: int
) -> Any:
    """Runs the program over one row: (the address of its first byte, fault, instruction)."""
    numbers, table, places, stack = state
    depth, pc = -1, 0
    while True:
        base = pc * WIDTH
        op = code[base]
        if at - low < _SPARE:
            return at, NO_ROOM, pc
        if op == _END:
            return at, FINE, pc
        node = code[base + 1]
        cell, index = max(node, 0) * TABLE_WIDTH, places[code[base + 2]]
        if node >= 0 and op != _LIST_END and table[cell + 1] != 0 and is_null(table, cell, index):
            if code[base + 3] == 0:
                return at, NULL_FOUND, pc
            pc = code[base + 6] + 1 if op == _BEGIN else pc + 1
        elif op <= _SPAN:
            at, fault = _leaf(code, base, (table[cell], table[cell + 3], numbers, index), at, low)
            if fault != FINE:
                return at, fault, pc
            pc += 1
        elif op == _BEGIN:
            depth += 1
            stack[2 * depth] = at
            pc += 1
        elif op == _CLOSE:
            at = _put_head(code, base, at, stack[2 * depth] - at)
            depth -= 1
            pc += 1
        elif op == _LIST:
            first, last = peek_u32(table[cell] + 4 * index), peek_u32(table[cell] + 4 * index + 4)
            if first == last:
                pc = code[base + 6] + 1
                continue
            depth += 1
            stack[2 * depth] = at
            stack[2 * depth + 1] = first
            places[code[base + 7]] = last - 1
            pc += 1
        else:
            inner = code[base + 7]
            places[inner] -= 1
            if places[inner] >= stack[2 * depth + 1]:
                pc = code[base + 6] + 1
                continue
            if code[base + 5] > 0:
                at = _put_head(code, base, at, stack[2 * depth] - at)
            depth -= 1
            pc += 1


@inlined
def _put_head(code: Any, base: int, at: int, length: int) -> Any:
    """Writes a length and a tag in front of what is there."""
    return _put_tag(code, base, put_plain_varint_before(at, length))


@inlined
def _put_tag(code: Any, base: int, at: int) -> Any:
    tag, size = code[base + 4], code[base + 5]
    for each in range(size):
        poke_u8(at - size + each, (tag >> (8 * each)) & 0xFF)
    return at - size


@inlined
def _leaf(  # noqa: PLR0912  # a branch for each type
    code: Any, base: int, given: Any, at: int, low: int
) -> Any:
    """Writes a value in front of what is there, unless it is zero and left out."""
    values, text, numbers, index = given
    op, skips_zero = code[base], code[base + 8] == 1
    number: Any
    if op == _TEXT:
        first, last = peek_u32(values + 4 * index), peek_u32(values + 4 * index + 4)
        return _put_sized(code, base, (text + first, last - first), at, low)
    if op == _FIXED:
        return _put_sized(code, base, (values + code[base + 6] * index, code[base + 6]), at, low)
    if op == _DECIMAL:
        size = decimal_size(values + 16 * index)
        put_decimal(values + 16 * index, size, at - size)
        return _put_head(code, base, at - size, size), FINE
    if op >= _MOMENT:
        return _put_time(code, base, peek_i64(values + 8 * index), at), FINE
    if op in (_EIGHT_BYTES, _INT_64, _ZIGZAG_64, _UNSIGNED_32, _FOUR_BYTES_WIDE):
        number = peek_i64(values + 8 * index)
    elif op == _BOOLEAN:
        number = peek_u8(values + index)
    else:
        number = np.int64(np.int32(peek_u32(values + 4 * index)))
    if op == _ENUM:
        number = numbers[code[base + 6] + number]
    if skips_zero and number == 0:
        return at, FINE
    if op in (_UNSIGNED_32, _FOUR_BYTES_WIDE) and (number < 0 or number >= 1 << 32):
        return at, BAD_NUMBER
    if op == _EIGHT_BYTES:
        at -= 8
        poke_i64(at, number)
    elif op in (_FOUR_BYTES, _FOUR_BYTES_WIDE):
        at -= 4
        poke_u32(at, number)
    else:
        if op in (_ZIGZAG_64, _ZIGZAG_32):
            doubled: Any = np.int64(np.uint64(number) << np.uint64(1))
            number = doubled ^ (number >> 63)
        at = put_plain_varint_before(at, number)
    return _put_tag(code, base, at), FINE


@inlined
def _put_sized(code: Any, base: int, span: Any, at: int, low: int) -> Any:
    source, length = span
    if length == 0 and code[base + 8] == 1:
        return at, FINE
    if at - low < length + _SPARE:
        return at, NO_ROOM
    copy(at - length, source, length)
    return _put_head(code, base, at - length, length), FINE


@inlined
def _put_time(code: Any, base: int, value: int, at: int) -> Any:
    """Writes a time stamp or a duration: seconds, and nanoseconds of the same sign or positive."""
    unit, end = code[base + 6], at
    seconds = value // unit
    rest = value - seconds * unit
    if code[base] == _SPAN and seconds < 0 and rest > 0:
        seconds += 1
        rest -= unit
    if rest != 0:
        at = put_plain_varint_before(at, rest * (_ALL // unit)) - 1
        poke_u8(at, 0x10)
    if seconds != 0:
        at = put_plain_varint_before(at, seconds) - 1
        poke_u8(at, 0x08)
    return _put_head(code, base, at, end - at)
