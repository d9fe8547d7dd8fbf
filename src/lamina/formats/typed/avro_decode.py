"""Avro's bytes into columns: one kernel runs a program over a batch of values.

Bytes are hostile. Every length is held against what is left of the value before it is used, a list
has at most as many items as its bytes allow (items without bytes: ITEMS_WITHOUT_BYTES in all), and
the stack is as high as the schema is deep. A value that is bad gets a code, and its row is null;
the batch goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.envelope import is_utf8
from lamina.formats.kernels.binary import (
    address_of,
    copy,
    copy_16,
    copy_32,
    peek_i64,
    peek_u8,
    peek_u32,
    poke_i64,
    poke_u8,
    poke_u32,
)
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.kernels.floats import double_of_float, double_of_int, float_of_int
from lamina.formats.kernels.varint import read_varint
from lamina.formats.typed.avro_program import (
    AS_DOUBLE,
    AS_FLOAT,
    AS_INT,
    AS_LONG,
    NOTED,
    WIDTH,
    Op,
    Program,
)
from lamina.formats.typed.column_rooms import TABLE_WIDTH, Rooms, Storage
from lamina.formats.typed.decimal_bytes import take_decimal
from lamina.formats.typed.row_faults import (
    BAD_BRANCH,
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_SYMBOL,
    BAD_TEXT,
    FINE,
    LEFTOVER,
    NO_ROOM,
    NO_VALUE,
    NULL_FOUND,
    TOO_LARGE,
    TOO_MANY,
    Decoded,
    Values,
)

ITEMS_WITHOUT_BYTES = 1 << 16
_STACK = 64
# Kernels know plain integers, no members of an enum.
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
_LIST_END = int(Op.LIST_END)
_CONSTANT = int(Op.CONSTANT)
_AS_TEXT, _AS_LIST = int(Storage.TEXT), int(Storage.LIST)
_AS_STRUCT, _AS_NOTHING = int(Storage.STRUCT), int(Storage.NOTHING)


def decode(program: Program, values: Values) -> Decoded:
    """Decodes a batch of values; never raises for what they hold."""
    rows = len(values.starts)
    rooms = Rooms(program.plan, rows, values.size_bytes())
    codes = np.zeros(rows, dtype=np.int32)
    fields = np.full(rows, -1, dtype=np.int32)
    saved = np.zeros_like(rooms.counts)
    row, skipped = 0, -1
    while row < rows:
        row, place = _run(
            (program.code, program.constants, program.numbers),
            values,
            (rooms.table, rooms.capacities, rooms.counts, saved),
            (codes, fields),
            (row, skipped, program.zero_at),
        )
        if row < rows and not rooms.grow(place):
            skipped = row
    good = codes == FINE
    columns = rooms.columns(rows, None if bool(good.all()) else good)
    return Decoded(columns, codes, fields, program.paths, program.kinds)


@kernel
def _run(program: Any, values: Any, rooms: Any, findings: Any, begin: Any) -> Any:
    """Decodes rows from one on: (how many are done, the room that is full if not all are)."""
    code, constants, numbers = program
    data, starts, ends = values
    table, capacities, counts, saved = rooms
    codes, fields = findings
    first, skipped, zero_at = begin
    origin = address_of(data)
    stack = np.empty(_STACK, dtype=np.int64)
    # Helpers get addresses: an array that is handed over costs two atomic operations each time.
    addresses = (address_of(code), address_of(constants), address_of(numbers))
    places = (address_of(table), address_of(capacities), address_of(counts), len(capacities))
    for row in range(first, len(starts)):
        counts[0] = row
        for each in range(len(counts)):
            saved[each] = counts[each]
        fault, detail = NO_VALUE, -1
        if row == skipped:
            fault = TOO_LARGE
        elif starts[row] >= 0:
            if starts[row] > ends[row]:
                fault = BAD_LENGTH
            else:
                span = (origin + starts[row], origin + ends[row], origin + len(data))
                fault, detail = _value(addresses, span, places, address_of(stack))
        if fault == NO_ROOM:
            for each in range(len(counts)):
                counts[each] = saved[each]
            return row, detail
        if fault != FINE:
            for each in range(len(counts)):
                counts[each] = saved[each]
            codes[row] = fault
            fields[row] = detail
            _nothing(address_of(code), zero_at, places)
    return len(starts), 0


@inlined
def word(address: int, index: int) -> int:
    """The integer at a place of an array of int64."""
    return peek_i64(address + 8 * index)


@inlined
def _nothing(code: int, at: int, places: Any) -> None:
    """Makes a row of nothing."""
    table, _, counts, domains = places
    base = at * WIDTH
    while word(code, base) == _ZERO:
        _zero(code, base, table, counts, domains)
        base += WIDTH


@inlined
def _zero(code: int, base: int, table: int, counts: int, domains: int) -> None:
    """Puts nothing into a node: null where it can be, and bytes that are known in any case."""
    node, index, storage = (
        word(code, base + 1),
        word(counts, word(code, base + 2)),
        word(code, base + 7),
    )
    cell = node * TABLE_WIDTH
    if word(code, base + 3) >= 0:
        poke_u8(word(table, cell + 1) + index, 0)
    if storage == _AS_TEXT:
        poke_u32(word(table, cell) + 4 * index + 4, word(counts, domains + node))
    elif storage == _AS_LIST:
        poke_u32(word(table, cell) + 4 * index + 4, word(counts, word(code, base + 8)))
    elif storage < _AS_TEXT:
        width = max(word(code, base + 8), 1)
        for each in range(width):
            poke_u8(word(table, cell) + index * width + each, 0)


@inlined
def _value(  # noqa: PLR0912  # a branch for each instruction
    program: Any, span: Any, rooms: Any, stack: int
) -> Any:
    """Runs the program over one value: (FINE, -) or (what is wrong, the instruction or room)."""
    code, constants, numbers = program
    at, end, readable = span
    table, capacities, counts, domains = rooms
    kept_at, kept_end, kept_readable = at, end, readable
    depth, pc, free_items = -1, 0, ITEMS_WITHOUT_BYTES
    while True:
        base = pc * WIDTH
        op = word(code, base)
        if op <= _BRANCH:
            if op == _END:
                return (FINE if at == end else LEFTOVER), -1
            at, is_null, fault = _nullness(code, base, table, counts, at, end)
            if fault != FINE:
                return fault, pc
            if is_null:
                if op == _BRANCH:
                    pc = word(code, base + 4)
                    continue
                if word(code, base + 1) >= 0:
                    _zero_leaf(code, base, table, counts, domains)
            elif op == _TEXT:
                at, fault = _text(code, base, rooms, (at, end, readable))
            elif op != _BRANCH:
                at, fault = _leaf(code, base, (table, counts, numbers), at, end)
            if fault != FINE:
                return fault, (-1 - word(code, base + 1) if fault == NO_ROOM else pc)
            pc += 1
        elif op in (_LIST, _LIST_END):
            depth, pc, at, fault, left = _list(
                code, pc, (counts, capacities, table, stack, depth), (at, end, free_items)
            )
            free_items = left
            if fault != FINE:
                return fault, pc
        elif op == _ZERO:
            _zero(code, base, table, counts, domains)
            pc += 1
        elif op == _JUMP:
            pc = word(code, base + 4)
        elif op == _CONSTANT:
            kept_at, kept_end, kept_readable = at, end, readable
            at, end = constants + word(code, base + 4), constants + word(code, base + 5)
            readable = end
            pc += 1
        else:
            at, end, readable = kept_at, kept_end, kept_readable
            pc += 1


@inlined
def _nullness(code: int, base: int, table: int, counts: int, at: int, end: int) -> Any:
    """Reads which branch of a union follows, where there is one: (address, is it null, fault)."""
    nullness = word(code, base + 3)
    if nullness == -1:
        return at, False, FINE
    node = word(code, base + 1)
    place = word(counts, word(code, base + 2))
    if nullness == NOTED:
        poke_u8(word(table, node * TABLE_WIDTH + 1) + place, 1)
        return at, False, FINE
    branch, at = read_varint(at, end)
    if at == 0 or branch < 0 or branch > 1:
        return at, False, BAD_BRANCH
    is_null = branch == nullness & 1
    if nullness >= 2:
        return at, is_null, (NULL_FOUND if is_null else FINE)
    if node >= 0:
        poke_u8(word(table, node * TABLE_WIDTH + 1) + place, 0 if is_null else 1)
    return at, is_null, FINE


@inlined
def _zero_leaf(code: int, base: int, table: int, counts: int, domains: int) -> None:
    """Puts known bytes below a null."""
    node, index = word(code, base + 1), word(counts, word(code, base + 2))
    cell = node * TABLE_WIDTH
    if word(code, base + 7) == _AS_TEXT:
        poke_u32(word(table, cell) + 4 * index + 4, word(counts, domains + node))
        return
    width = max(word(code, base + 8), 1)
    if width == 8:
        poke_i64(word(table, cell) + index * 8, 0)
    elif width == 4:
        poke_u32(word(table, cell) + index * 4, 0)
    else:
        for each in range(width):
            poke_u8(word(table, cell) + index * width + each, 0)


@inlined
def _text(code: int, base: int, rooms: Any, span: Any) -> Any:
    """Takes text or bytes: (the address after them, fault)."""
    table, _, counts, domains = rooms
    at, end, readable = span
    length, at = read_varint(at, end)
    if at == 0 or length < 0 or length > end - at:
        return at, BAD_LENGTH
    if word(code, base + 4) == 1 and not is_utf8(at, length):
        return at, BAD_TEXT
    node = word(code, base + 1)
    if node < 0:
        return at + length, FINE
    cell = node * TABLE_WIDTH
    used = word(counts, domains + node)
    room = word(table, cell + 3)
    if length > room - used:
        return at, NO_ROOM
    target = word(table, cell + 2) + used
    if length <= 16 and readable - at >= 16 and room - used >= 16:
        copy_16(target, at)
    elif length <= 32 and readable - at >= 32 and room - used >= 32:
        copy_32(target, at)
    else:
        copy(target, at, length)
    poke_i64(counts + 8 * (domains + node), used + length)
    poke_u32(word(table, cell) + 4 * word(counts, word(code, base + 2)) + 4, used + length)
    return at + length, FINE


@inlined
def _leaf(  # noqa: PLR0912  # a branch for each type
    code: int, base: int, rooms: Any, at: int, end: int
) -> Any:
    """Takes a value of fixed width: (the address after it, fault)."""
    table, counts, numbers = rooms
    op, node = word(code, base), word(code, base + 1)
    target = 0
    if node >= 0:
        index = word(counts, word(code, base + 2))
        target = word(table, node * TABLE_WIDTH) + index * max(word(code, base + 8), 1)
    if op in (_INT, _LONG):
        number, at = read_varint(at, end)
        if at == 0 or (op == _INT and (number < -(1 << 31) or number >= 1 << 31)):
            return at, BAD_NUMBER
        if node >= 0:
            _put_number(target, number, word(code, base + 4))
        return at, FINE
    if op in (_DOUBLE, _FLOAT):
        size = 8 if op == _DOUBLE else 4
        if end - at < size:
            return at, BAD_LENGTH
        if node >= 0:
            if op == _DOUBLE:
                poke_i64(target, peek_i64(at))
            elif word(code, base + 4) == AS_FLOAT:
                poke_u32(target, peek_u32(at))
            else:
                poke_i64(target, double_of_float(peek_u32(at)))
        return at + size, FINE
    if op == _BOOLEAN:
        if end - at < 1 or peek_u8(at) > 1:
            return at, BAD_NUMBER
        if node >= 0:
            poke_u8(target, peek_u8(at))
        return at + 1, FINE
    if op == _ENUM:
        number, at = read_varint(at, end)
        if at == 0 or number < 0 or number >= word(code, base + 5):
            return at, BAD_SYMBOL
        symbol = word(numbers, word(code, base + 4) + number)
        if symbol < 0:
            return at, BAD_SYMBOL
        if node >= 0:
            poke_u32(target, symbol)
        return at, FINE
    return _run_of_bytes(code, base, target, at, end)


@inlined
def _put_number(target: int, number: int, kind: int) -> None:
    if kind == AS_LONG:
        poke_i64(target, number)
    elif kind == AS_INT:
        poke_u32(target, number)
    elif kind == AS_DOUBLE:
        poke_i64(target, double_of_int(number))
    else:
        poke_u32(target, float_of_int(number))


@inlined
def _run_of_bytes(code: int, base: int, target: int, at: int, end: int) -> Any:
    """Takes a fixed or a decimal; Avro's numbers have the highest byte first."""
    size = word(code, base + 4)
    if word(code, base) == _DECIMAL and size == 0:
        size, at = read_varint(at, end)
        if at == 0:
            return at, BAD_LENGTH
    if size < 0 or size > end - at:
        return at, BAD_LENGTH
    if word(code, base) == _FIXED:
        if target != 0:
            copy(target, at, size)
        return at + size, FINE
    limits = word(code, base + 5), word(code, base + 6)
    return at + size, take_decimal(at, size, target, limits)


@inlined
def _list(code: int, pc: int, state: Any, span: Any) -> Any:
    """Begins a list or ends an item: (depth, where to go on, address, fault, items left free)."""
    counts, capacities, table, stack, depth = state
    at, end, free_items = span
    base = pc * WIDTH
    node, inner, least = word(code, base + 1), word(code, base + 5), word(code, base + 6)
    begin, last, left = pc, word(code, base + 4), 0
    if word(code, base) == _LIST:
        depth += 1
    else:
        begin, last = last, begin
        left = word(stack, depth) - 1
        if node >= 0:
            poke_i64(counts + 8 * inner, word(counts, inner) + 1)
    if left == 0:
        left, at = read_varint(at, end)
        if at != 0 and left < 0:  # a block that says how long it is, which nobody needs to know
            size, at = read_varint(at, end)
            left = -left
            if size < 0:
                at = 0
        if at == 0:
            return depth, pc, at, BAD_LENGTH, free_items
        if left == 0:
            if node >= 0:
                poke_u32(
                    word(table, node * TABLE_WIDTH) + 4 * word(counts, word(code, base + 2)) + 4,
                    word(counts, inner),
                )
            return depth - 1, last + 1, at, FINE, free_items
        if least == 0:
            free_items -= left
        if left < 0 or free_items < 0 or (least > 0 and left > (end - at) // least):
            return depth, pc, at, TOO_MANY, free_items
        if node >= 0 and left > word(capacities, inner) - 1 - word(counts, inner):
            return depth, inner, at, NO_ROOM, free_items
    poke_i64(stack + 8 * depth, left)
    return depth, begin + 1, at, FINE, free_items
