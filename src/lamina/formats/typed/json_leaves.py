"""The leaves of plain JSON documents: text, numbers, booleans, and nothing at all.

What is taken must be what Arrow's reader makes of it, to the bit; in doubt, NOT_PLAIN. Therefore a
number is taken only if a double holds its digits, and scaling them by a power of ten rounds once.
Text has no escapes, and is UTF-8: `json_scan` has looked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.kernels.binary import (
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
from lamina.formats.kernels.declare import inlined
from lamina.formats.kernels.floats import float_of_double, product, quotient
from lamina.formats.typed.column_rooms import TABLE_WIDTH, Storage
from lamina.formats.typed.json_program import ZERO_WIDTH, Op
from lamina.formats.typed.row_faults import FINE, NO_ROOM

NOT_PLAIN = 1 << 16
"""The code of a row that Arrow's reader must look at; no reader of records ever sees it."""
POWERS = np.array([10**each for each in range(19)], dtype=np.int64)
_POWER_MAX, _FLOAT_POWER_MAX = 18, 10
_TENTH_MAX = ((1 << 63) - 1) // 10 - 1
"""Ten times this and any digit is within 64 bits."""
_EXACT, _FLOAT_EXACT = 1 << 53, 1 << 24
_QUOTE, _BACKSLASH, _SPACE, _TAB, _NEWLINE, _RETURN = 0x22, 0x5C, 0x20, 0x09, 0x0A, 0x0D
_MINUS, _PLUS, _POINT, _NOUGHT, _NINE, _E = 0x2D, 0x2B, 0x2E, 0x30, 0x39, 0x65
_NULL, _TRUE, _FALS = 0x6C6C756E, 0x65757274, 0x736C6166  # as four little-endian bytes
_TEXT, _RECORD, _BOOLEAN = int(Op.TEXT), int(Op.RECORD), int(Op.BOOLEAN)
_INT, _LONG, _FLOAT = int(Op.INT), int(Op.LONG), int(Op.FLOAT)
_AS_TEXT, _AS_LIST, _AS_BOOLEAN = int(Storage.TEXT), int(Storage.LIST), int(Storage.BOOLEAN)
_ONES, _HIGH = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)


@inlined
def word(address: int, index: int) -> int:
    """The integer at a place of an array of int64."""
    return peek_i64(address + 8 * index)


@inlined
def put_nothing(zeros: int, first: int, end: int, places: Any) -> None:
    """Makes nodes hold nothing: null, or bytes that are known in any case."""
    table, _, counts, domains = places
    for each in range(first, end):
        base = each * ZERO_WIDTH
        node, storage, size = (
            word(zeros, base),
            word(zeros, base + 2),
            word(zeros, base + 3),
        )
        index = word(counts, word(zeros, base + 1))
        cell = node * TABLE_WIDTH
        if word(zeros, base + 4) == 1:
            poke_u8(word(table, cell + 1) + index, 0)
        if storage == _AS_TEXT:
            poke_u32(word(table, cell) + 4 * index + 4, word(counts, domains + node))
        elif storage == _AS_LIST:
            poke_u32(word(table, cell) + 4 * index + 4, word(counts, size))
        elif storage <= _AS_BOOLEAN:
            for byte in range(size):
                poke_u8(word(table, cell) + index * size + byte, 0)


@inlined
def note_presence(fields: int, base: int, places: Any) -> None:
    """Notes that a value which may be null is there."""
    table, _, counts, _ = places
    index = word(counts, word(fields, base + 4))
    poke_u8(word(table, word(fields, base + 3) * TABLE_WIDTH + 1) + index, 1)


@inlined
def past_space(at: int, end: int) -> int:
    """Where something else than white space comes."""
    while at < end:
        byte = peek_u8(at)
        if byte > _SPACE or byte not in (_SPACE, _NEWLINE, _RETURN, _TAB):
            break
        at += 1
    return at


@inlined
def text_end(at: int, end: int, readable: int) -> int:
    """Where the quote behind some text is; -1 for text with an escape, a control code, no end."""
    while at < end:
        if at + 8 <= readable:
            eight = np.uint64(peek_i64(at))
            quotes, slashes = eight ^ _QUOTES, eight ^ _BACKSLASHES
            found = (
                ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)
                | ((eight - _SPACES) & ~eight)
            ) & _HIGH  # fmt: skip
            if found == np.uint64(0):
                at += 8
                continue
        stop = min(at + 8, end)
        while at < stop:
            byte = peek_u8(at)
            if byte == _QUOTE:
                return at
            if byte == _BACKSLASH or byte < _SPACE:
                return -1
            at += 1
    return -1


@inlined
def past_scalar(at: int, end: int, readable: int) -> int:
    """Where a value ends that nobody asked for; -1 if it is no plain scalar."""
    if at >= end:
        return -1
    byte = peek_u8(at)
    if byte == _QUOTE:
        stop = text_end(at + 1, end, readable)
        return stop + 1 if stop >= 0 else -1
    if at + 4 <= end:
        four = peek_u32(at)
        if four in (_NULL, _TRUE):
            return at + 4
        if four == _FALS and at + 5 <= end and peek_u8(at + 4) == _E:
            return at + 5
    at, _, _, _, is_sound = _number(at, end)
    return at if is_sound else -1


@inlined
def take_leaf(  # a branch for each type
    tables: Any, base: int, span: Any, places: Any
) -> Any:
    """Takes one value that holds no others: (the address behind it, fault)."""
    _, fields, zeros, _, powers = tables
    at, end, _ = span
    table, _, counts, _ = places
    op, node = word(fields, base + 2), word(fields, base + 3)
    is_null = at + 4 <= end and peek_u32(at) == _NULL
    if word(fields, base + 6) == 1:
        if is_null:
            put_nothing(zeros, word(fields, base + 7), word(fields, base + 8), places)
            return at + 4, FINE
        note_presence(fields, base, places)
    if is_null or op >= _RECORD:
        return at, NOT_PLAIN
    if op == _TEXT:
        return _text(fields, base, span, places)
    index = word(counts, word(fields, base + 4))
    width = max(word(fields, base + 5), 1)
    target = word(table, node * TABLE_WIDTH) + index * width
    if op == _BOOLEAN:
        if at + 4 <= end and peek_u32(at) == _TRUE:
            poke_u8(target, 1)
            return at + 4, FINE
        if at + 5 <= end and peek_u32(at) == _FALS and peek_u8(at + 4) == _E:
            poke_u8(target, 0)
            return at + 5, FINE
        return at, NOT_PLAIN
    at, number, power, is_whole, is_sound = _number(at, end)
    if not is_sound:
        return at, NOT_PLAIN
    if op in (_LONG, _INT):
        if not is_whole or (op == _INT and not -(1 << 31) <= number < 1 << 31):
            return at, NOT_PLAIN
        if op == _LONG:
            poke_i64(target, number)
        else:
            poke_u32(target, number)
        return at, FINE
    return at, _real(op, (number, power), powers, target)


@inlined
def _real(op: int, decimal: Any, powers: int, target: int) -> int:
    """Puts a number with a power of ten, if one rounding gives the nearest double or float."""
    number, power = decimal
    size = abs(number)
    most, far = (_FLOAT_EXACT, _FLOAT_POWER_MAX) if op == _FLOAT else (_EXACT, _POWER_MAX)
    if size >= most or abs(power) > far:
        return NOT_PLAIN
    # Both are exact as doubles, so that the one operation rounds once. A double has more than
    # twice the digits of a float: rounding its result again gives the nearest float, too.
    if power < 0:
        bits = quotient(number, word(powers, -power))
    else:
        bits = product(number, word(powers, power))
    if op == _FLOAT:
        poke_u32(target, float_of_double(bits))
    else:
        poke_i64(target, bits)
    return FINE


@inlined
def _number(at: int, end: int) -> Any:
    """Reads a number: (the address behind it, digits, power of ten, is it whole, is it plain)."""
    is_negative = at < end and peek_u8(at) == _MINUS
    at += is_negative
    begin, number, power, is_whole = at, 0, 0, True
    while at < end and _NOUGHT <= peek_u8(at) <= _NINE:
        if number > _TENTH_MAX:
            return at, 0, 0, False, False
        number = number * 10 + peek_u8(at) - _NOUGHT
        at += 1
    digits = at - begin
    if digits == 0 or (digits > 1 and peek_u8(begin) == _NOUGHT):
        return at, 0, 0, False, False
    if at < end and peek_u8(at) == _POINT:
        at += 1
        begin, is_whole = at, False
        while at < end and _NOUGHT <= peek_u8(at) <= _NINE:
            if number > _TENTH_MAX:
                return at, 0, 0, False, False
            number = number * 10 + peek_u8(at) - _NOUGHT
            at += 1
            power -= 1
        if at == begin:
            return at, 0, 0, False, False
    if at < end and peek_u8(at) | 0x20 == _E:
        is_whole = False
        at, exponent = _exponent(at + 1, end)
        power += exponent
        if at < 0:
            return at, 0, 0, False, False
    is_sound = not (is_negative and number == 0)  # -0 is Arrow's reader's
    return at, -number if is_negative else number, power, is_whole, is_sound


@inlined
def _exponent(at: int, end: int) -> Any:
    """Reads a power of ten of at most two digits: (the address behind it or -1, the power)."""
    is_negative = False
    if at < end and peek_u8(at) in (_MINUS, _PLUS):
        is_negative = peek_u8(at) == _MINUS
        at += 1
    begin, power = at, 0
    while at < end and _NOUGHT <= peek_u8(at) <= _NINE:
        power = power * 10 + peek_u8(at) - _NOUGHT
        at += 1
        if at - begin > 2:
            return -1, 0
    if at == begin:
        return -1, 0
    return at, -power if is_negative else power


@inlined
def _text(fields: int, base: int, span: Any, places: Any) -> Any:
    """Takes text: (the address behind its quote, fault)."""
    table, _, counts, domains = places
    at, end, readable = span
    if at >= end or peek_u8(at) != _QUOTE:
        return at, NOT_PLAIN
    at += 1
    stop = text_end(at, end, readable)
    if stop < 0:
        return at, NOT_PLAIN
    length = stop - at
    node = word(fields, base + 3)
    cell = node * TABLE_WIDTH
    used, room = word(counts, domains + node), word(table, cell + 3)
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
    index = word(counts, word(fields, base + 4))
    poke_u32(word(table, cell) + 4 * index + 4, used + length)
    return stop + 1, FINE
