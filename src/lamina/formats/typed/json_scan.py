"""Plain JSON documents into columns: one kernel reads what documents mostly are.

It reads objects as programs write them: names and text without escapes, numbers that a double
holds exactly scaled by a power of ten, lists and objects in each other. Of a document that holds
anything else, or that is wrong in any way, it says NOT_PLAIN and nothing more: `json_decode` gives
those to Arrow's reader, which is slow and knows everything. So there is one judge of what is wrong.

    position 0 of the stack: the document    above it: the objects and lists that are open

Rules.
1. What is taken here must be what Arrow's reader makes of it, to the bit; in doubt, NOT_PLAIN.
2. Names mostly come in the same order: the field behind the last one is tried first.
3. Every position is held against the end of the document before it is read; eight bytes at a time
   only where the batch goes on for so long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.envelope import is_utf8
from lamina.formats.kernels.binary import address_of, peek_i64, peek_u8, poke_i64, poke_u32
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.typed.column_rooms import TABLE_WIDTH, Rooms
from lamina.formats.typed.json_leaves import (
    NOT_PLAIN,
    POWERS,
    note_presence,
    past_scalar,
    past_space,
    put_nothing,
    take_leaf,
    text_end,
    word,
)
from lamina.formats.typed.json_program import FIELD_WIDTH, RECORD_WIDTH, Op, Program
from lamina.formats.typed.row_faults import FINE, NO_ROOM, NO_VALUE, TOO_LARGE, Decoded, Values

_LEVEL, _DEPTH_MAX = 3, 78
_BEGIN, _NEXT, _VALUE, _AFTER, _LEAVE = range(5)
_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE, _LEFT, _RIGHT = 0x22, 0x3A, 0x2C, 0x7B, 0x7D, 0x5B, 0x5D
_RECORD, _LIST = int(Op.RECORD), int(Op.LIST)


def decode(program: Program, values: Values) -> Decoded:
    """Decodes a batch of values; the code of those that are not plain is NOT_PLAIN."""
    rows = len(values.starts)
    rooms = Rooms(program.plan, rows, values.size_bytes())
    codes = np.zeros(rows, dtype=np.int32)
    saved = np.zeros_like(rooms.counts)
    row, skipped = 0, -1
    while row < rows:
        row, place = _run(
            (program.records, program.fields, program.zeros, program.names, POWERS),
            values,
            (rooms.table, rooms.capacities, rooms.counts, saved),
            codes,
            (row, skipped, program.rows),
        )
        if row < rows and not rooms.grow(place):
            skipped = row
    good = codes == FINE
    columns = rooms.columns(rows, None if bool(good.all()) else good)
    return Decoded(columns, codes, np.full(rows, -1, dtype=np.int32), ())


@kernel
def _run(program: Any, values: Any, rooms: Any, codes: Any, begin: Any) -> Any:
    """Decodes rows from one on: (how many are done, the room that is full if not all are)."""
    records, fields, zeros, names, powers = program
    data, starts, ends = values
    table, capacities, counts, saved = rooms
    first, skipped, zeros_of_row = begin
    origin = address_of(data)
    stack = np.empty(_LEVEL * (_DEPTH_MAX + 2), dtype=np.int64)
    tables = (
        *(address_of(records), address_of(fields), address_of(zeros), address_of(names)),
        address_of(powers),
    )
    places = (address_of(table), address_of(capacities), address_of(counts), len(capacities))
    for row in range(first, len(starts)):
        counts[0] = row
        for each in range(len(counts)):
            saved[each] = counts[each]
        fault, detail = NO_VALUE, -1
        if row == skipped:
            fault = TOO_LARGE
        elif starts[row] >= 0:
            span = (origin + starts[row], origin + ends[row], origin + len(data))
            fault, detail = _document(tables, span, places, address_of(stack))
        if fault == FINE:
            continue
        for each in range(len(counts)):
            counts[each] = saved[each]
        if fault == NO_ROOM:
            return row, detail
        codes[row] = fault
        put_nothing(tables[2], 0, zeros_of_row, places)
    return len(starts), 0


@inlined
def _document(  # noqa: PLR0912  # a branch for each thing that may come next
    tables: Any, span: Any, places: Any, stack: int
) -> Any:
    """Reads one document: (FINE, -), (NOT_PLAIN, -) or (NO_ROOM, which room)."""
    fields = tables[1]
    at, end, readable = span
    if end < at or not is_utf8(at, end - at):
        return NOT_PLAIN, -1
    at = past_space(at, end)
    if at >= end or peek_u8(at) != _OPEN:
        return NOT_PLAIN, -1
    at += 1
    depth, mode, field = 0, _BEGIN, 0
    _enter(stack, 0)
    while True:
        at = past_space(at, end)
        if at >= end:
            return NOT_PLAIN, -1
        level, fault = stack + 8 * _LEVEL * depth, FINE
        if mode != _VALUE:
            if word(level, 0) < 0:
                at, mode, field, fault = _in_list(fields, level, (at, mode), places)
            else:
                ends = (end, readable)
                at, mode, field, fault = _in_record(tables, level, (at, mode), ends, places)
            if fault != FINE:
                return fault, field
            if mode == _LEAVE:
                if depth == 0:
                    return (FINE if past_space(at, end) == end else NOT_PLAIN), -1
                depth -= 1
                mode = _AFTER
            continue
        base = FIELD_WIDTH * field
        if peek_u8(at) in (_OPEN, _LEFT):
            op = word(fields, base + 2)
            if op != (_RECORD if peek_u8(at) == _OPEN else _LIST) or depth >= _DEPTH_MAX:
                return NOT_PLAIN, -1
            if word(fields, base + 6) == 1:
                note_presence(fields, base, places)
            depth += 1
            _enter(level + 8 * _LEVEL, word(fields, base + 9) if op == _RECORD else -1 - field)
            mode = _BEGIN
            at += 1
            continue
        at, fault = take_leaf(tables, base, (at, end, readable), places)
        if fault != FINE:
            return fault, -1 - word(fields, base + 3)
        mode = _AFTER


@inlined
def _enter(level: int, opened: int) -> None:
    """Opens a record (its number) or a list (-1 - its field)."""
    poke_i64(level, opened)
    poke_i64(level + 8, 0)  # the fields that were there, a bit each
    poke_i64(level + 16, 0)  # the field that is likely to come next


@inlined
def _in_list(fields: int, level: int, state: Any, places: Any) -> Any:
    """Goes on in a list: (address, mode, field or room, fault)."""
    at, mode = state
    table, capacities, counts, _ = places
    base = FIELD_WIDTH * (-1 - word(level, 0))
    inner, byte = word(fields, base + 5), peek_u8(at)
    if mode == _AFTER:
        poke_i64(counts + 8 * inner, word(counts, inner) + 1)
    if byte == _RIGHT and mode != _NEXT:
        node, index = word(fields, base + 3), word(counts, word(fields, base + 4))
        poke_u32(word(table, node * TABLE_WIDTH) + 4 * index + 4, word(counts, inner))
        return at + 1, _LEAVE, 0, FINE
    if mode == _AFTER:
        return at + 1, _NEXT, -1, FINE if byte == _COMMA else NOT_PLAIN
    if word(counts, inner) >= word(capacities, inner) - 1:
        return at, mode, inner, NO_ROOM
    return at, _VALUE, word(fields, base + 9), FINE


@inlined
def _in_record(tables: Any, level: int, state: Any, ends: Any, places: Any) -> Any:
    """Goes on in a record: (address, mode, field, fault)."""
    records, fields, zeros, names, _ = tables
    at, mode = state
    end, readable = ends
    byte, base = peek_u8(at), RECORD_WIDTH * word(level, 0)
    first, count, needed = word(records, base), word(records, base + 1), word(records, base + 2)
    seen = word(level, 1)
    if byte == _CLOSE and mode != _NEXT:
        if needed & ~seen != 0:
            return at, mode, -1, NOT_PLAIN  # it may have a default
        if seen != (1 << count) - 1:
            for each in range(count):
                if seen & (1 << each) == 0:
                    place = FIELD_WIDTH * (first + each)
                    put_nothing(zeros, word(fields, place + 7), word(fields, place + 8), places)
        return at + 1, _LEAVE, 0, FINE
    if mode == _AFTER:
        return at + 1, _NEXT, -1, FINE if byte == _COMMA else NOT_PLAIN
    if byte != _QUOTE:
        return at, mode, -1, NOT_PLAIN
    at, each = _name(fields, names, (first, count, word(level, 2)), (at + 1, end, readable))
    at = past_space(at, end)
    if at >= end or peek_u8(at) != _COLON:
        return at, mode, -1, NOT_PLAIN
    at = past_space(at + 1, end)
    if each < 0:
        at = past_scalar(at, end, readable)
        return at, _AFTER, -1, FINE if at >= 0 else NOT_PLAIN
    if seen & (1 << each) != 0:
        return at, mode, -1, NOT_PLAIN
    poke_i64(level + 8, seen | (1 << each))
    poke_i64(level + 16, each + 1)
    return at, _VALUE, first + each, FINE


@inlined
def _name(fields: int, names: int, record: Any, span: Any) -> Any:
    """Reads a name: (the address behind its quote, or the end; which field it is, or -1)."""
    first, count, likely = record
    at, end, readable = span
    if likely < count:
        base = FIELD_WIDTH * (first + likely)
        length = word(fields, base + 1)
        ends = at + length < end and peek_u8(at + length) == _QUOTE
        if ends and _is_same(names + word(fields, base), at, length, readable):
            return at + length + 1, likely
    stop = text_end(at, end, readable)
    if stop < 0:
        return end, -1
    for each in range(count):
        base = FIELD_WIDTH * (first + each)
        length = word(fields, base + 1)
        if length == stop - at and _is_same(names + word(fields, base), at, length, readable):
            return stop + 1, each
    return stop + 1, -1


@inlined
def _is_same(name: int, at: int, length: int, readable: int) -> bool:
    done = 0
    while done + 8 <= length:
        if peek_i64(name + done) != peek_i64(at + done):
            return False
        done += 8
    left = length - done
    if left > 0 and at + done + 8 <= readable:
        return (peek_i64(name + done) ^ peek_i64(at + done)) & ((1 << (8 * left)) - 1) == 0
    while done < length:
        if peek_u8(name + done) != peek_u8(at + done):
            return False
        done += 1
    return True
