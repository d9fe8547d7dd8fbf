"""Zigzag varints, inside kernels: ((n << 1) ^ (n >> 63)) in groups of 7 bits, lowest first.

STRM blocks and Kafka's records are made of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.kernels.binary import peek_u8, peek_u16, poke_u8, poke_u16
from lamina.formats.kernels.declare import inlined


@inlined
def read_varint(at: int, end: int) -> Any:
    """A zigzag varint: (value, the address after it), address 0 if it is not one."""
    if end - at >= 2:
        both = peek_u16(at)
        if both & 0x80 == 0:
            return (both & 0x7F) >> 1 ^ -(both & 1), at + 1
        if both & 0x8000 == 0:
            bits = both & 0x7F | (both & 0x7F00) >> 1
            return bits >> 1 ^ -(bits & 1), at + 2
    return _long_varint(at, end)


@inlined
def _long_varint(at: int, end: int) -> Any:
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
    half = np.int64(bits >> np.uint64(1))
    return half ^ -np.int64(bits & np.uint64(1)), at + 1


@inlined
def put_varint(target: int, value: int) -> Any:
    """Writes a zigzag varint where 10 bytes are free; returns the address after it."""
    rest: Any = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    small: Any = np.int64(rest)
    if rest < np.uint64(0x80):
        poke_u8(target, small)
        return target + 1
    if rest < np.uint64(0x4000):
        poke_u16(target, small & 0x7F | 0x80 | (small >> 7) << 8)
        return target + 2
    while rest >= np.uint64(0x80):
        small = np.int64(rest & np.uint64(0x7F))
        poke_u8(target, small | 0x80)
        rest >>= np.uint64(7)
        target += 1
    small = np.int64(rest)
    poke_u8(target, small)
    return target + 1


@inlined
def varint_size(value: int) -> int:
    """How many bytes a zigzag varint takes."""
    rest: Any = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size
