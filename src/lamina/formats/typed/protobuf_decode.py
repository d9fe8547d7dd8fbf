"""Protobuf's bytes into columns: one kernel runs a program over a batch of values.

What a value says twice holds as Protobuf has it: the last number, text or symbol wins, messages are
merged, lists are joined, and of a oneof only what came last is there. Lists of numbers are read
packed and unpacked. What the schema does not know is passed over.

Bytes are hostile. Every length is held against what is left of the message around it, a row of a
list takes room only when its bytes are there, and the cells of empty rows are counted
(CELLS_PER_BYTE). A field of another wire type than the schema says is a fault, and so is an enum's
number without a symbol: other readers pass over the first and keep the second as a number, and a
column would silently have neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.kernels.binary import (
    address_of,
    copy,
    peek_u32,
    poke_i64,
    poke_u8,
    poke_u32,
)
from lamina.formats.kernels.declare import inlined, kernel
from lamina.formats.kernels.plain_varint import read_plain_varint
from lamina.formats.typed.column_rooms import TABLE_WIDTH, Rooms, Storage
from lamina.formats.typed.protobuf_maps import last_of_each_key
from lamina.formats.typed.protobuf_program import (
    CHECK_WIDTH,
    FIELD_WIDTH,
    MESSAGE_WIDTH,
    PLAIN,
    STEP_WIDTH,
    Op,
    Program,
    Wire,
)
from lamina.formats.typed.protobuf_values import (
    GROUPS_MAX,
    past_field,
    put_time,
    take_scalar,
    take_text,
    time_parts,
    word,
)
from lamina.formats.typed.row_faults import (
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_WIRE,
    FINE,
    MISSING_FIELD,
    NO_ROOM,
    NO_VALUE,
    TOO_LARGE,
    TOO_MANY,
    Decoded,
    Values,
)

CELLS_FREE, CELLS_PER_BYTE = 1 << 16, 64
"""How many cells the rows of a value's lists may fill, beside what its bytes allow."""
_STACK = 128
_FRAME = 5
_NOW, _CELLS = 0, 16
"""Positions below the frames: seconds and nanoseconds of a time, cells that may still be filled."""
# Kernels know plain integers, no members of an enum.
_SKIP, _MESSAGE = int(Op.SKIP), int(Op.MESSAGE)
_TEXT = int(Op.TEXT)
_SECONDS, _FRACTION = int(Op.SECONDS), int(Op.FRACTION)
_SIZED = int(Wire.SIZED)
_AS_BOOLEAN, _AS_TEXT, _AS_LIST = int(Storage.BOOLEAN), int(Storage.TEXT), int(Storage.LIST)
_AS_STRUCT = int(Storage.STRUCT)


def decode(program: Program, values: Values) -> Decoded:
    """Decodes a batch of values; never raises for what they hold."""
    rows = len(values.starts)
    rooms = Rooms(program.plan, rows, values.size_bytes())
    codes = np.zeros(rows, dtype=np.int32)
    fields = np.full(rows, -1, dtype=np.int32)
    tables = (program.messages, program.fields, program.steps, program.checks)
    work = (
        np.zeros(len(program.fields) // FIELD_WIDTH + 1, dtype=np.int64),
        np.full(program.oneofs + 1, -1, dtype=np.int64),
        np.zeros_like(rooms.counts),
    )
    row, skipped = 0, -1
    while row < rows:
        row, place = _run(
            (*tables, program.numbers, program.constants),
            values,
            (rooms.table, rooms.capacities, rooms.counts),
            work,
            (codes, fields),
            (row, skipped),
        )
        if row < rows and not rooms.grow(place):
            skipped = row
    good = codes == FINE
    columns = rooms.columns(rows, None if bool(good.all()) else good)
    columns = [last_of_each_key(each) for each in columns]
    return Decoded(columns, codes, fields, program.paths, program.kinds)


@kernel
def _run(program: Any, values: Any, rooms: Any, work: Any, findings: Any, begin: Any) -> Any:
    """Decodes rows from one on: (how many are done, the room that is full if not all are)."""
    messages, fields, steps, checks, numbers, constants = program
    data, starts, ends = values
    table, capacities, counts = rooms
    seen, members, saved = work
    codes, faulty = findings
    first, skipped = begin
    origin = address_of(data)
    stack = np.empty((_STACK + 1) * _FRAME, dtype=np.int64)
    groups = np.empty(GROUPS_MAX, dtype=np.int64)
    # Helpers get addresses: an array that is handed over costs two atomic operations each time.
    tables = (address_of(messages), address_of(fields), address_of(steps), address_of(checks))
    kept = (address_of(numbers), address_of(constants), address_of(seen), address_of(members))
    places = (address_of(table), address_of(capacities), address_of(counts), len(capacities))
    stacks = (address_of(stack), address_of(groups))
    root = (messages[5], messages[6])
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
                fault, detail = _apply(tables[2], root, kept, places, True)
                if fault == FINE:
                    fault, detail = _value(tables, kept, span, places, stacks)
        if fault == NO_ROOM:
            for each in range(len(counts)):
                counts[each] = saved[each]
            return row, detail
        if fault != FINE:
            for each in range(len(counts)):
                counts[each] = saved[each]
            codes[row] = fault
            faulty[row] = detail
            _apply(tables[2], root, kept, places, False)
    return len(starts), 0


@inlined
def _apply(  # noqa: PLR0912  # a branch for each storage
    steps: int, run: Any, kept: Any, places: Any, has_text: bool
) -> Any:
    """Makes nodes what they are where a value says nothing: (FINE, -) or (NO_ROOM, the room)."""
    _, constants, seen, _ = kept
    first, count = run
    table, _, counts, domains = places
    for each in range(first, first + count):
        at = steps + 8 * STEP_WIDTH * each
        slot = word(at, 9)
        if slot >= 0:
            poke_i64(seen + 8 * slot, 0)
        kind, node, storage = word(at, 0), word(at, 1), word(at, 3)
        if kind == 2:
            continue
        index = word(counts, word(at, 2))
        cell = node * TABLE_WIDTH
        values = word(table, cell)
        if storage == _AS_LIST:
            begun = peek_u32(values + 4 * index)
            poke_i64(counts + 8 * word(at, 5), begun)
            if kind == 0:
                poke_u32(values + 4 * index + 4, begun)
        elif storage == _AS_TEXT:
            used = peek_u32(values + 4 * index)
            if kind == 0:
                size = word(at, 8) if has_text else 0
                if size > 0:
                    if size > word(table, cell + 3) - used:
                        return NO_ROOM, -1 - node
                    copy(word(table, cell + 2) + used, constants + word(at, 7), size)
                used += size
                poke_u32(values + 4 * index + 4, used)
            poke_i64(counts + 8 * (domains + node), used)
        elif kind == 0 and storage < _AS_TEXT:
            width = max(word(at, 4), 1)
            target = values + index * width
            if word(at, 8) > 0:
                copy(target, constants + word(at, 7), width)
            elif width == 8:
                poke_i64(target, 0)
            elif width == 4:
                poke_u32(target, 0)
            else:
                for byte in range(width):
                    poke_u8(target + byte, 0)
        if kind == 0 and word(at, 6) >= 0:
            poke_u8(word(table, cell + 1) + index, 0)
    return FINE, -1


@inlined
def _value(  # noqa: PLR0912  # a branch for each thing that a value may say
    tables: Any, kept: Any, span: Any, places: Any, stacks: Any
) -> Any:
    """Reads one value: (FINE, -) or (what is wrong, the field or the room)."""
    messages, fields, steps, checks = tables
    at, end, readable = span
    stack, groups = stacks
    poke_i64(stack + _CELLS, CELLS_FREE + CELLS_PER_BYTE * (end - at))
    depth, message, guess, came_by = 0, messages, 0, -1
    while True:
        if at == end:
            fault, detail = _end(message, checks, kept, places, stack)
            if fault != FINE:
                return fault, (came_by if detail < 0 else detail)
            if depth == 0:
                return FINE, -1
            frame = stack + 8 * _FRAME * depth
            end, message = word(frame, 0), word(frame, 1)
            guess, came_by = word(frame, 2), word(frame, 3)
            depth -= 1
            continue
        tag, at = read_plain_varint(at, end)
        if at == 0 or tag < 8 or tag >= 1 << 32:
            return BAD_NUMBER, came_by
        found = _field_of(message, fields, tag >> 3, guess)
        place, op, is_first = word(message, 0) + found, _SKIP, False
        field = fields + 8 * FIELD_WIDTH * place
        if found >= 0:
            guess, op = found, word(field, 1)
            if not _fits(field, tag & 7):
                return BAD_WIRE, place
            is_first = _note(fields, place, steps, kept, places)
        if op == _SKIP:
            at = past_field(tag >> 3, tag & 7, at, end, groups)
            if at == 0:
                return BAD_LENGTH, (place if found >= 0 else came_by)
            continue
        stop = 0
        if tag & 7 == _SIZED:
            size, at = read_plain_varint(at, end)
            if at == 0 or size < 0 or size > end - at:
                return BAD_LENGTH, place
            stop = at + size
        if op == _MESSAGE:
            entered = messages + 8 * MESSAGE_WIDTH * word(field, 15)
            fault, detail = _enter(field, entered, (steps, kept, is_first), places, stack)
            if fault != FINE:
                return fault, (detail if fault == NO_ROOM else place)
            depth += 1
            frame = stack + 8 * _FRAME * depth
            poke_i64(frame, end)
            poke_i64(frame + 8, message)
            poke_i64(frame + 16, guess)
            poke_i64(frame + 24, came_by)
            end, message, guess, came_by = stop, entered, 0, place
            continue
        at, fault, detail = _items(field, (at, end, stop, readable), places, kept, stack)
        if fault != FINE:
            return fault, (detail if fault == NO_ROOM else place)


@inlined
def _fits(field: int, wire: int) -> bool:
    """Whether a wire type is the field's own, or that of a packed list."""
    expected = word(field, 2)
    return bool(wire == expected or (wire == _SIZED and expected != _SIZED and word(field, 9) >= 0))


@inlined
def _note(fields: int, place: int, steps: int, kept: Any, places: Any) -> bool:
    """Notes that a field is there; ends another one of its oneof. Returns whether it is new."""
    _, _, seen, members = kept
    oneof = word(fields + 8 * FIELD_WIDTH * place, 12)
    if oneof >= 0:
        former = word(members, oneof)
        if former >= 0 and former != place and word(seen, former) == 1:
            other = fields + 8 * FIELD_WIDTH * former
            _apply(steps, (word(other, 13), word(other, 14)), kept, places, False)
        poke_i64(members + 8 * oneof, place)
    is_first = word(seen, place) == 0
    poke_i64(seen + 8 * place, 1)
    return bool(is_first)


@inlined
def _enter(field: int, entered: int, given: Any, places: Any, stack: int) -> Any:
    """Begins a message, with a row where it has one: (FINE, -) or (why not, the room)."""
    steps, kept, is_first = given
    table, capacities, counts, _ = places
    inner = word(entered, 2)
    if inner >= 0:
        cells = word(stack + _CELLS, 0) - word(entered, 6)
        if cells < 0:
            return TOO_MANY, -1
        poke_i64(stack + _CELLS, cells)
        if word(counts, inner) >= word(capacities, inner) - 1:
            return NO_ROOM, inner
        fault, room = _apply(steps, (word(entered, 5), word(entered, 6)), kept, places, True)
        if fault != FINE:
            return fault, room
    elif word(field, 5) == 1:
        cell = word(field, 3) * TABLE_WIDTH
        poke_u8(word(table, cell + 1) + word(counts, word(field, 4)), 1)
    if word(entered, 9) != PLAIN:
        seconds, fraction = 0, 0
        if inner < 0 and not is_first:
            seconds, fraction = time_parts(entered, table, word(counts, word(entered, 12)))
        poke_i64(stack + _NOW, seconds)
        poke_i64(stack + _NOW + 8, fraction)
    return FINE, -1


@inlined
def _items(field: int, span: Any, places: Any, kept: Any, stack: int) -> Any:
    """Takes a value that is no message, or a packed run: (the address after it, fault, room)."""
    at, end, stop, readable = span
    _, capacities, counts, _ = places
    op, inner, is_listed = word(field, 1), word(field, 10), word(field, 9) >= 0
    is_packed = is_listed and stop > 0 and word(field, 2) != _SIZED
    if is_packed and at == stop:
        return at, FINE, -1
    limit = stop if stop > 0 else end
    while True:
        if is_listed and word(counts, inner) >= word(capacities, inner) - 1:
            return at, NO_ROOM, inner
        if op == _TEXT:
            fault = take_text(field, at, stop, readable, places)
            at = stop
        elif op >= _SECONDS:
            part, at = read_plain_varint(at, limit)
            fault = BAD_NUMBER if at == 0 else FINE
            if op == _FRACTION:
                part = np.int64(np.int32(part))
            poke_i64(stack + _NOW + 8 * (op - _SECONDS), part)
        else:
            at, fault = take_scalar(field, at, limit, places, kept[0])
        if fault != FINE:
            return at, fault, -1 - word(field, 3)
        if is_listed:
            _count(field, places)
        if not is_packed or at >= stop:
            return at, FINE, -1


@inlined
def _field_of(message: int, fields: int, number: int, guess: int) -> int:
    """The place of a number among the fields of a message, or -1; they mostly come in order."""
    first, count = word(message, 0), word(message, 1)
    rows = fields + 8 * FIELD_WIDTH * first
    if guess < count and word(rows, FIELD_WIDTH * guess) == number:
        return guess
    guess += 1
    if guess < count and word(rows, FIELD_WIDTH * guess) == number:
        return guess
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if word(rows, FIELD_WIDTH * middle) < number:
            low = middle + 1
        else:
            high = middle
    if low < count and word(rows, FIELD_WIDTH * low) == number:
        return low
    return -1


@inlined
def _count(field: int, places: Any) -> None:
    """Ends an item of a list of scalars."""
    table, _, counts, _ = places
    inner = word(field, 10)
    items = word(counts, inner) + 1
    poke_i64(counts + 8 * inner, items)
    offsets = word(table, word(field, 9) * TABLE_WIDTH)
    poke_u32(offsets + 4 * word(counts, word(field, 11)) + 4, items)


@inlined
def _end(message: int, checks: int, kept: Any, places: Any, stack: int) -> Any:
    """Ends a message, and its row if it has one: (FINE, -) or (what is wrong, the field)."""
    table, _, counts, _ = places
    seen = kept[2]
    if word(message, 9) != PLAIN:
        moment = word(stack + _NOW, 0), word(stack + _NOW, 1)
        fault = put_time(message, places, moment)
        if fault != FINE:
            return fault, -1
    domain = word(message, 2)
    if domain < 0:
        return FINE, -1
    first, count = word(message, 7), word(message, 8)
    for each in range(first, first + count):
        parent = word(checks, CHECK_WIDTH * each + 1)
        if parent < 0 or word(seen, parent) == 1:
            wanted = word(checks, CHECK_WIDTH * each)
            if word(seen, wanted) == 0:
                return MISSING_FIELD, wanted
    listed = word(message, 3)
    if listed >= 0:
        items = word(counts, domain) + 1
        poke_i64(counts + 8 * domain, items)
        offsets = word(table, listed * TABLE_WIDTH)
        poke_u32(offsets + 4 * word(counts, word(message, 4)) + 4, items)
    return FINE, -1
