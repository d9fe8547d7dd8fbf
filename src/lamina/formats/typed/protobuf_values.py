"""One value of Protobuf into a cell, and the way past one: the leaves of `protobuf_decode`.

The caller has found the field in the program's table and made room for a row of its list. Whatever
is read is held against the end of what surrounds it first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.envelope import is_utf8
from lamina.formats.kernels.binary import (
    copy,
    copy_16,
    copy_32,
    peek_i64,
    peek_u32,
    poke_i64,
    poke_u8,
    poke_u32,
)
from lamina.formats.kernels.declare import inlined
from lamina.formats.kernels.plain_varint import read_plain_varint
from lamina.formats.typed.column_rooms import TABLE_WIDTH
from lamina.formats.typed.decimal_bytes import take_decimal
from lamina.formats.typed.protobuf_program import MOMENT, Op, Wire
from lamina.formats.typed.row_faults import (
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_SYMBOL,
    BAD_TEXT,
    FINE,
    NO_ROOM,
)

GROUPS_MAX = 64
"""How deep unknown groups may lie in each other: nobody writes them any more."""
# Kernels know plain integers, no members of an enum.
_INT_64, _INT_32 = int(Op.INT_64), int(Op.INT_32)
_UNSIGNED_32 = int(Op.UNSIGNED_32)
_ZIGZAG_64, _ZIGZAG_32 = int(Op.ZIGZAG_64), int(Op.ZIGZAG_32)
_BOOLEAN = int(Op.BOOLEAN)
_EIGHT_BYTES, _FOUR_BYTES = int(Op.EIGHT_BYTES), int(Op.FOUR_BYTES)
_FOUR_BYTES_WIDE = int(Op.FOUR_BYTES_WIDE)
_ENUM, _FIXED = int(Op.ENUM), int(Op.FIXED)
_VARINT, _EIGHT = int(Wire.VARINT), int(Wire.EIGHT)
_SIZED, _FOUR = int(Wire.SIZED), int(Wire.FOUR)
_GROUP, _GROUP_END = 3, 4
_ALL = 1_000_000_000


@inlined
def word(address: int, index: int) -> int:
    """The integer at a place of an array of int64."""
    return peek_i64(address + 8 * index)


@inlined
def past_field(  # noqa: PLR0912  # a branch for each wire type
    number: int, wire: int, at: int, end: int, groups: int
) -> int:
    """The address after a field that nobody knows, groups with all that is in them; 0 if bad."""
    depth = 0
    while True:
        if wire == _VARINT:
            _, at = read_plain_varint(at, end)
            if at == 0:
                return 0
        elif wire == _SIZED:
            size, at = read_plain_varint(at, end)
            if at == 0 or size < 0 or size > end - at:
                return 0
            at += size
        elif wire in (_EIGHT, _FOUR):
            size = 8 if wire == _EIGHT else 4
            if size > end - at:
                return 0
            at += size
        elif wire == _GROUP:
            if depth == GROUPS_MAX:
                return 0
            poke_i64(groups + 8 * depth, number)
            depth += 1
        elif wire == _GROUP_END:
            depth -= 1
            if depth < 0 or word(groups, depth) != number:
                return 0
        else:
            return 0
        if depth == 0:
            return at
        tag, at = read_plain_varint(at, end)
        if at == 0 or tag < 8 or tag >= 1 << 32:
            return 0
        number, wire = tag >> 3, tag & 7


@inlined
def take_text(field: int, at: int, stop: int, readable: int, places: Any) -> int:
    """Takes text or bytes of a known length, in place of what the row had before."""
    table, _, counts, domains = places
    length = stop - at
    if word(field, 7) == 1 and not is_utf8(at, length):
        return BAD_TEXT
    node = word(field, 3)
    cell = node * TABLE_WIDTH
    index = word(counts, word(field, 4))
    used = peek_u32(word(table, cell) + 4 * index)
    room = word(table, cell + 3)
    if length > room - used:
        return NO_ROOM
    target = word(table, cell + 2) + used
    if length <= 16 and readable - at >= 16 and room - used >= 16:
        copy_16(target, at)
    elif length <= 32 and readable - at >= 32 and room - used >= 32:
        copy_32(target, at)
    else:
        copy(target, at, length)
    poke_i64(counts + 8 * (domains + node), used + length)
    poke_u32(word(table, cell) + 4 * index + 4, used + length)
    if word(field, 5) == 1:
        poke_u8(word(table, cell + 1) + index, 1)
    return FINE


@inlined
def take_scalar(  # noqa: PLR0912  # a branch for each type
    field: int, at: int, end: int, places: Any, numbers: int
) -> Any:
    """Takes a value that is no message and no text: (the address after it, fault)."""
    table, _, counts, _ = places
    op, cell = word(field, 1), word(field, 3) * TABLE_WIDTH
    index = word(counts, word(field, 4))
    target = word(table, cell) + index * max(word(field, 6), 1)
    if word(field, 5) == 1:
        poke_u8(word(table, cell + 1) + index, 1)
    wire = word(field, 2)
    if wire == _VARINT:
        bits, at = read_plain_varint(at, end)
        if at == 0:
            return at, BAD_NUMBER
        if op == _INT_64:
            poke_i64(target, bits)
        elif op == _INT_32:
            poke_u32(target, bits)
        elif op == _UNSIGNED_32:
            poke_i64(target, bits & 0xFFFFFFFF)
        elif op == _BOOLEAN:
            poke_u8(target, 1 if bits != 0 else 0)
        elif op == _ENUM:
            narrow: Any = np.int64(np.int32(bits))
            symbol = _symbol(field, numbers, narrow)
            if symbol < 0:
                return at, BAD_SYMBOL
            poke_u32(target, symbol)
        else:
            if op == _ZIGZAG_32:
                bits &= 0xFFFFFFFF
            half: Any = np.int64(np.uint64(bits) >> np.uint64(1))
            number = half ^ -(bits & 1)
            if op == _ZIGZAG_64:
                poke_i64(target, number)
            else:
                poke_u32(target, number)
        return at, FINE
    if wire == _SIZED:
        size = end - at
        if op == _FIXED:
            if size != word(field, 7):
                return at, BAD_LENGTH
            copy(target, at, size)
            return end, FINE
        return end, take_decimal(at, size, target, (word(field, 7), word(field, 8)))
    size = 8 if wire == _EIGHT else 4
    if size > end - at:
        return at, BAD_LENGTH
    if op == _EIGHT_BYTES:
        poke_i64(target, peek_i64(at))
    elif op == _FOUR_BYTES:
        poke_u32(target, peek_u32(at))
    else:
        poke_i64(target, peek_u32(at))
    return at + size, FINE


@inlined
def _symbol(field: int, numbers: int, number: int) -> int:
    """The symbol of an enum's number, or -1; most count up from 0."""
    first, count = word(field, 7), word(field, 8)
    pairs = numbers + 8 * first
    if 0 <= number < count and word(pairs, 2 * number) == number:
        return word(pairs, 2 * number + 1)
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if word(pairs, 2 * middle) < number:
            low = middle + 1
        else:
            high = middle
    if low < count and word(pairs, 2 * low) == number:
        return word(pairs, 2 * low + 1)
    return -1


@inlined
def time_parts(message: int, table: int, index: int) -> Any:
    """A column's time as seconds and nanoseconds, which another message is merged into."""
    value = peek_i64(word(table, word(message, 10) * TABLE_WIDTH) + 8 * index)
    unit = word(message, 11)
    seconds = value // unit
    rest = value - seconds * unit
    if word(message, 9) != MOMENT and seconds < 0 and rest > 0:
        seconds += 1
        rest -= unit
    return seconds, rest * (_ALL // unit)


@inlined
def put_time(message: int, places: Any, moment: Any) -> int:
    """Puts seconds and nanoseconds into a column; BAD_NUMBER for what it cannot hold."""
    table, _, counts, _ = places
    seconds, fraction = moment
    unit, node = word(message, 11), word(message, 10)
    if word(message, 9) == MOMENT:
        if fraction < 0 or fraction >= _ALL:
            return BAD_NUMBER
    elif (
        fraction <= -_ALL
        or fraction >= _ALL
        or (seconds > 0 and fraction < 0)
        or (seconds < 0 and fraction > 0)
    ):
        return BAD_NUMBER
    most = ((1 << 63) - 1) // unit
    if seconds > most or seconds < -most - 1:
        return BAD_NUMBER
    step = _ALL // unit
    rest = fraction // step if fraction >= 0 else -(-fraction // step)
    if seconds < 0 and rest > 0:  # nearer to 0 first, so that no step leaves 64 bits
        seconds += 1
        rest -= unit
    value = seconds * unit
    if (rest > 0 and value > (1 << 63) - 1 - rest) or (rest < 0 and value < -(1 << 63) - rest):
        return BAD_NUMBER
    index = word(counts, word(message, 12))
    poke_i64(word(table, node * TABLE_WIDTH) + 8 * index, value + rest)
    return FINE
