"""Numbers of 128 bits with the highest byte first, as Avro has them, and Protobuf here: in kernels.

A column has 16 bytes for each, lowest byte first; a value has as few as it needs, or a fixed count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.kernels.binary import peek_u8, poke_i64, poke_u8
from lamina.formats.kernels.declare import inlined
from lamina.formats.typed.row_faults import BAD_NUMBER, FINE


def decimal_limit(precision: int) -> tuple[int, int]:
    """Returns the halves of the number that decimals of so many digits stay below."""
    high, low = divmod(10**precision, 1 << 64)
    return high, low - (1 << 64) if low >= 1 << 63 else low


@inlined
def take_decimal(at: int, size: int, target: int, limits: Any) -> int:
    """Puts a number into 16 bytes, or nowhere for address 0; returns FINE or BAD_NUMBER."""
    sign = 0xFF if size > 0 and peek_u8(at) >= 0x80 else 0
    low = np.uint64(0) - np.uint64(sign & 1)
    high = low
    for each in range(size):
        byte = peek_u8(at + each)
        if each < size - 16 and byte != sign:
            return BAD_NUMBER
        high = high << np.uint64(8) | low >> np.uint64(56)
        low = low << np.uint64(8) | np.uint64(byte)
    if size > 16 and (high >> np.uint64(63)) != np.uint64(sign & 1):
        return BAD_NUMBER
    if not _fits_digits(high, low, limits[0], limits[1]):
        return BAD_NUMBER
    if target != 0:
        halves: Any = (np.int64(low), np.int64(high))
        poke_i64(target, halves[0])
        poke_i64(target + 8, halves[1])
    return FINE


@inlined
def _fits_digits(high: Any, low: Any, limit_high: int, limit_low: int) -> bool:
    """Whether a number of 128 bits is nearer to 0 than a limit."""
    if high >> np.uint64(63) != np.uint64(0):
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
    most = np.uint64(limit_high)
    return bool(high < most or (high == most and low < np.uint64(limit_low)))


@inlined
def decimal_size(source: int) -> int:
    """How many bytes a column's number needs at least."""
    sign = 0xFF if peek_u8(source + 15) >= 0x80 else 0
    needed = 16
    while needed > 1 and peek_u8(source + needed - 1) == sign:
        if (peek_u8(source + needed - 2) ^ sign) >= 0x80:
            break
        needed -= 1
    return needed


@inlined
def put_decimal(source: int, size: int, at: int) -> int:
    """Writes a column's number in so many bytes; returns the address after them."""
    sign = 0xFF if peek_u8(source + 15) >= 0x80 else 0
    for each in range(size):
        low = size - 1 - each
        poke_u8(at + each, peek_u8(source + low) if low < 16 else sign)
    return at + size
