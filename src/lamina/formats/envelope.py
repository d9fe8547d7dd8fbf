"""The record envelope: the fields of a record for which a format has no room of its own.

A keratin record has opaque `headers` bytes and no key; a STRM record has no headers and no null
value. Both carry the rest of the record in one envelope: in front of nothing else (keratin's
headers), or in front of the value (STRM, behind a length). All integers big-endian.

    | at | size | field   | type | meaning                                                       |
    |----|------|---------|------|---------------------------------------------------------------|
    |  0 |    2 | magic   | u16  | 0x4C45 ("LE")                                                 |
    |  2 |    1 | version | u8   | 1                                                             |
    |  3 |    1 | flags   | u8   | 1 key, 2 null value, 4 headers, 8 tag, 16 node                |

    followed, each only if its flag is set, in this order, by:
    key: length u32, bytes · tag: length u32, bytes · node: length u32, bytes ·
    headers: count u32, then for each: name length u32, name (UTF-8), value length u32, value
    (length 0xFFFFFFFF: null, no bytes)

A record that needs none of this has no envelope (0 bytes). Bytes that are not exactly an envelope,
to the last byte, were written by somebody else: they surface as one header, `FOREIGN_NAME`, whose
value they are.

Rules.
1. A header's name is UTF-8: the writer refuses another, since its reader would take it for foreign.
2. Null and empty stay apart for key, tag, node, header values and the headers as a whole.
3. Header order and repeated names are kept.
4. Everything here but the last section runs inside other kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.formats.kernels import arrow
from lamina.formats.kernels.binary import (
    Layout,
    address_of,
    copy,
    peek_i64,
    peek_u8,
    peek_u16_be,
    peek_u32_be,
    poke_u8,
    poke_u16_be,
    poke_u32_be,
)
from lamina.formats.kernels.declare import inlined
from lamina.records import HEADER, HEADERS

ENVELOPE = Layout(
    ">",
    magic="u16",
    version="u8",
    flags="u8",
)
MAGIC = 0x4C45
VERSION = 1
KEY, NULL_VALUE, HAS_HEADERS, TAG, NODE = 1, 2, 4, 8, 16
FOREIGN = -1
NOT_UTF8 = -2
FOREIGN_NAME = "keratin.headers"
NULL_LENGTH = 0xFFFFFFFF

ENVELOPE_BYTES = ENVELOPE.size
_KNOWN_FLAGS = KEY | NULL_VALUE | HAS_HEADERS | TAG | NODE
_FOREIGN_NAME = np.frombuffer(FOREIGN_NAME.encode(), dtype=np.uint8)
_FOREIGN_NAME_BYTES = len(_FOREIGN_NAME)
_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)

# ---------------------------------------------------------------- writing, inside kernels


@inlined
def header_columns(batch: int, index: int) -> Any:
    """The columns behind a headers column: (lists, names, values, the items themselves)."""
    items = arrow.child_of(arrow.child_of(batch, index), 0)
    validity = peek_i64(peek_i64(items + arrow._BUFFERS))
    return (
        arrow.list_column(batch, index),
        arrow.column(items, 0),
        arrow.column(items, 1),
        (validity, 0, 0, peek_i64(items + arrow._OFFSET), 0),
    )


@inlined
def flags_of(fields: Any, row: int) -> int:
    """What the envelope of a row must hold. `fields` is (keys, values, headers, tags, nodes)."""
    keys, values, headers, tags, nodes = fields
    flags = 0
    if not arrow.is_null(keys, row):
        flags |= KEY
    if arrow.is_null(values, row):
        flags |= NULL_VALUE
    if not arrow.is_null(headers[0], row):
        flags |= HAS_HEADERS
    if not arrow.is_null(tags, row):
        flags |= TAG
    if not arrow.is_null(nodes, row):
        flags |= NODE
    return flags


@inlined
def size_of(fields: Any, row: int, flags: int) -> int:
    """The bytes of a row's envelope; below 0 the batch is broken, or a name is `NOT_UTF8`."""
    if flags == 0:
        return 0
    keys, _, headers, tags, nodes = fields
    size = ENVELOPE_BYTES
    for flag, column in ((KEY, keys), (TAG, tags), (NODE, nodes)):
        if flags & flag:
            length = arrow.slot(column, row)[1]
            if length < 0:
                return -1
            size += 4 + length
    if flags & HAS_HEADERS:
        lists, names, values, items = headers
        size += 4
        first, last = arrow.span(lists, row)
        if last < first:
            return -1
        for item in range(first, last):
            name, name_len = arrow.slot(names, item)
            value_len = 0 if arrow.is_null(values, item) else arrow.slot(values, item)[1]
            if name_len < 0 or value_len < 0:
                return -1
            if arrow.is_null(items, item) or arrow.is_null(names, item):
                return -1
            if not is_utf8(name, name_len):
                return NOT_UTF8
            size += 8 + name_len + value_len
    return size


@inlined
def spread(fields: Any, rows: int) -> int:
    """The bytes that the envelopes of all rows take at most, unless the batch is broken."""
    keys, _, headers, tags, nodes = fields
    size = rows * ENVELOPE_BYTES
    for column in (keys, tags, nodes):
        if column[0] != arrow.NO_COLUMN[0]:
            size += 4 * rows + arrow.spread(column, rows)
    lists, names, values, _ = headers
    if rows == 0 or lists[0] == arrow.NO_COLUMN[0]:
        return size
    size += 4 * rows
    first, last = arrow.slot_start(lists, 0), arrow.slot_start(lists, rows)
    if first < last:
        size += 8 * (last - first)
        size += arrow.slot_start(names, last) - arrow.slot_start(names, first)
        size += arrow.slot_start(values, last) - arrow.slot_start(values, first)
    return size


@inlined
def _put(target: int, column: Any, row: int) -> int:
    source, length = arrow.slot(column, row)
    poke_u32_be(target, length)
    copy(target + 4, source, length)
    return target + 4 + length


@inlined
def write(target: int, fields: Any, row: int, flags: int) -> None:
    """Writes a row's envelope where `size_of` bytes are free; nothing for flags 0."""
    if flags == 0:
        return
    keys, _, headers, tags, nodes = fields
    poke_u16_be(target, MAGIC)
    poke_u8(target + 2, VERSION)
    poke_u8(target + 3, flags)
    target += ENVELOPE_BYTES
    for flag, column in ((KEY, keys), (TAG, tags), (NODE, nodes)):
        if flags & flag:
            target = _put(target, column, row)
    if flags & HAS_HEADERS:
        lists, names, values, _ = headers
        first, last = arrow.span(lists, row)
        poke_u32_be(target, last - first)
        target += 4
        for item in range(first, last):
            target = _put(target, names, item)
            if arrow.is_null(values, item):
                poke_u32_be(target, NULL_LENGTH)
                target += 4
            else:
                target = _put(target, values, item)


# ---------------------------------------------------------------- reading, inside kernels


@inlined
def is_utf8(address: int, length: int) -> bool:
    """Whether bytes are well-formed UTF-8: no overlong forms, surrogates or beyond U+10FFFF."""
    position = 0
    while position < length:
        if position + 8 <= length and peek_i64(address + position) & _HIGH_BITS == 0:
            position += 8
            continue
        lead = peek_u8(address + position)
        if lead < 0x80:
            position += 1
            continue
        low, high, follow = 0x80, 0xBF, 0
        if 0xC2 <= lead <= 0xDF:
            follow = 1
        elif 0xE0 <= lead <= 0xEF:
            follow = 2
            low = 0xA0 if lead == 0xE0 else 0x80
            high = 0x9F if lead == 0xED else 0xBF
        elif 0xF0 <= lead <= 0xF4:
            follow = 3
            low = 0x90 if lead == 0xF0 else 0x80
            high = 0x8F if lead == 0xF4 else 0xBF
        else:
            return False
        if position + follow >= length:
            return False
        for step in range(1, follow + 1):
            byte = peek_u8(address + position + step)
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
        position += 1 + follow
    return True


@inlined
def _bytes_at(address: int, end: int) -> tuple[int, int]:
    """A length-prefixed run: (address, length), or a length of -1 when it does not fit."""
    if end - address < 4:
        return address, -1
    length = peek_u32_be(address)
    if length > end - address - 4:
        return address, -1
    return address + 4, length


@inlined
def _look_at_headers(address: int, end: int) -> tuple[int, int, int]:
    """Checks the headers part: (count, name bytes, value bytes), count -1 if it is not one."""
    if end - address < 4:
        return -1, 0, 0
    count = peek_u32_be(address)
    if count * 8 > end - address - 4:
        return -1, 0, 0
    address += 4
    name_bytes = 0
    value_bytes = 0
    for _ in range(count):
        name, name_len = _bytes_at(address, end)
        if name_len < 0 or not is_utf8(name, name_len):
            return -1, 0, 0
        name_bytes += name_len
        address = name + name_len
        if end - address >= 4 and peek_u32_be(address) == NULL_LENGTH:
            address += 4
            continue
        value, value_len = _bytes_at(address, end)
        if value_len < 0:
            return -1, 0, 0
        value_bytes += value_len
        address = value + value_len
    if address != end:
        return -1, 0, 0
    return count, name_bytes, value_bytes


@inlined
def foreign(start: int, length: int) -> Any:
    """What `look` answers for bytes that are not an envelope."""
    return (
        *(FOREIGN, start, 0, start, 0, start, 0),
        *(start, 1, _FOREIGN_NAME_BYTES, length),
    )


@inlined
def look(start: int, length: int) -> Any:
    """Judges the bytes where an envelope may be; every length in the answer has been checked.

    Gives (flags or FOREIGN, key, key length, tag, tag length, node, node length, headers address,
    header count, name bytes, header value bytes). No bytes at all are flags 0. FOREIGN bytes count
    as one header.
    """
    if length == 0:
        return 0, start, 0, start, 0, start, 0, start, 0, 0, 0
    if length < ENVELOPE_BYTES or peek_u16_be(start) != MAGIC or peek_u8(start + 2) != VERSION:
        return foreign(start, length)
    flags = peek_u8(start + 3)
    if flags & ~_KNOWN_FLAGS or flags == 0:
        return foreign(start, length)
    end = start + length
    at = start + ENVELOPE_BYTES
    key, key_len = at, 0
    tag, tag_len = at, 0
    node, node_len = at, 0
    if flags & KEY:
        key, key_len = _bytes_at(at, end)
        at = key + key_len
    if flags & TAG and key_len >= 0:
        tag, tag_len = _bytes_at(at, end)
        at = tag + tag_len
    if flags & NODE and key_len >= 0 and tag_len >= 0:
        node, node_len = _bytes_at(at, end)
        at = node + node_len
    if key_len < 0 or tag_len < 0 or node_len < 0:
        return foreign(start, length)
    count, name_bytes, value_bytes = 0, 0, 0
    if flags & HAS_HEADERS:
        count, name_bytes, value_bytes = _look_at_headers(at, end)
        if count < 0:
            return foreign(start, length)
    elif at != end:
        return foreign(start, length)
    return (
        *(flags, key, key_len, tag, tag_len, node, node_len),
        *(at, count, name_bytes, value_bytes),
    )


@inlined
def put_headers(targets: Any, ends: Any, row: int, view: Any, length: int) -> None:
    """Adds a row's headers to the arrays of `HeaderArrays`; `ends` counts (items, names, values).

    `view` is what `look` gave for `length` bytes of envelope.
    """
    lists, list_bits = targets[0], targets[1]
    lists[row] = ends[0]
    flags, address = view[0], view[7]
    if flags == FOREIGN:
        list_bits[row >> 3] |= np.uint8(1 << (row & 7))
        name, value = address_of(_FOREIGN_NAME), address
        put_header(targets, ends, name, _FOREIGN_NAME_BYTES, value, length)
        return
    if not flags & HAS_HEADERS:
        return
    list_bits[row >> 3] |= np.uint8(1 << (row & 7))
    address += 4
    for _ in range(view[8]):
        name_len = peek_u32_be(address)
        name = address + 4
        address = name + name_len
        value_len = peek_u32_be(address)
        address += 4
        if value_len == NULL_LENGTH:
            value_len = -1
        put_header(targets, ends, name, name_len, address, value_len)
        address += max(value_len, 0)


@inlined
def put_header(
    targets: Any, ends: Any, name: int, name_len: int, value: int, value_len: int
) -> None:
    """Adds one header to the arrays of `HeaderArrays`; a value of length -1 is null."""
    _, _, name_offsets, names, value_offsets, values, value_bits = targets
    item = ends[0]
    name_offsets[item] = ends[1]
    value_offsets[item] = ends[2]
    copy(address_of(names) + ends[1], name, name_len)
    if value_len >= 0:
        value_bits[item >> 3] |= np.uint8(1 << (item & 7))
        copy(address_of(values) + ends[2], value, value_len)
        ends[2] += value_len
    ends[0] += 1
    ends[1] += name_len


# ---------------------------------------------------------------- the headers column, in Python


class HeaderArrays(NamedTuple):
    """What kernels fill with `put_headers`, to become one Arrow column."""

    lists: NDArray[np.int32]
    list_bits: NDArray[np.uint8]
    name_offsets: NDArray[np.int32]
    names: NDArray[np.uint8]
    value_offsets: NDArray[np.int32]
    values: NDArray[np.uint8]
    value_bits: NDArray[np.uint8]

    @classmethod
    def with_room(cls, rows: int, items: int, name_bytes: int, value_bytes: int) -> HeaderArrays:
        """Allocates for exactly these totals."""
        return cls(
            np.zeros(rows + 1, dtype=np.int32),
            arrow.bitmap(rows),
            np.zeros(items + 1, dtype=np.int32),
            arrow.empty_bytes(name_bytes),
            np.zeros(items + 1, dtype=np.int32),
            arrow.empty_bytes(value_bytes),
            arrow.bitmap(items),
        )

    def column(self, ends: NDArray[np.int64]) -> pa.Array:
        """Makes the headers column; `ends` are the totals after the last row."""
        items, name_end, value_end = (int(end) for end in ends)
        self.lists[-1] = items
        self.name_offsets[items] = name_end
        self.value_offsets[items] = value_end
        name_buffers = [None, pa.py_buffer(self.name_offsets), pa.py_buffer(self.names)]
        names = pa.Array.from_buffers(pa.string(), items, name_buffers)  # `look` checked UTF-8
        values = arrow.binary_array(self.value_offsets, self.values, self.value_bits)
        structs = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
        buffers = [pa.py_buffer(self.list_bits), pa.py_buffer(self.lists)]
        return pa.Array.from_buffers(HEADERS, len(self.lists) - 1, buffers, children=[structs])
