"""Varints as Protobuf has them, inside kernels: groups of 7 bits, lowest first, without zigzag.

They are written backwards: a message is written from its end, so that its length is known when it
is due. Zigzag ones are in `varint.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.kernels.binary import peek_u8, poke_u8
from lamina.formats.kernels.declare import inlined


@inlined
def read_plain_varint(at: int, end: int) -> Any:
    """A varint of 64 bits: (its bits, the address after it), address 0 if it is none."""
    if at < end:
        byte = peek_u8(at)
        if byte < 0x80:
            return byte, at + 1
    return _long_plain_varint(at, end)


@inlined
def _long_plain_varint(at: int, end: int) -> Any:
    if at >= end:
        return 0, 0
    last = min(end, at + 10) - 1
    byte = peek_u8(at)
    bits = np.uint64(byte & 0x7F)
    shift = np.uint64(0)
    while byte >= 0x80:
        if at == last:
            return 0, 0
        at += 1
        shift += np.uint64(7)
        byte = peek_u8(at)
        bits |= np.uint64(byte & 0x7F) << shift
    if shift == np.uint64(63) and byte > 1:
        return 0, 0
    return np.int64(bits), at + 1


@inlined
def put_plain_varint_before(at: int, value: int) -> Any:
    """Writes a varint that ends at an address, with 10 free bytes below it; returns its first."""
    rest: Any = np.uint64(value)
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    rest = np.uint64(value)
    at -= size
    for each in range(size - 1):
        low: Any = np.int64(rest & np.uint64(0x7F))
        poke_u8(at + each, low | 0x80)
        rest >>= np.uint64(7)
    top: Any = np.int64(rest)
    poke_u8(at + size - 1, top)
    return at
