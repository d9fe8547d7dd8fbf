"""Decodes an LZ4 block into exactly the bytes it stands for, or reports that it is not one.

pyarrow's decoder, told a size larger than the truth, fills the front of its buffer and says
nothing: the rest would be whatever the memory held before. This one accepts a block only if it
fills its target to the last byte. (Walking the block first to learn its true size and then decoding
it with pyarrow is safe too, and takes half as long again.)

A block is a run of sequences: a token (high half: number of literals, low half: match length - 4;
15 adds the bytes that follow, up to one below 255), the literals, and the distance back to the
match, u16 little-endian. The last sequence ends after its literals.

Rule: every read lies in the block and every write in the target. Runs are copied in vectors that
may pass the run's end, but only where that much room is left.
"""

from __future__ import annotations

from typing import Any

from lamina.formats.kernels.binary import (
    address_of,
    copy,
    copy_16,
    copy_32,
    peek_i64,
    peek_u8,
    peek_u16,
    poke_i64,
)
from lamina.formats.kernels.declare import inlined, kernel

RATIO_MAX = 255
"""No byte of a block stands for more than so many decoded bytes."""

_ROOM_BYTES = 64
"""What copying in vectors may write after the end of a match."""


@inlined
def _extended(at: int, end: int, length: int) -> tuple[int, int]:
    """Adds a length's further bytes: (the address after them, or 0 past the end; the length)."""
    while at < end:
        more = peek_u8(at)
        at += 1
        length += more
        if more != 255:
            return at, length
    return 0, length


@inlined
def _repeat(target: int, distance: int, length: int, room: int) -> int:
    """Copies a match that fits; returns the address after it."""
    source, done = target - distance, target + length
    if distance >= 32 and room >= length + _ROOM_BYTES:
        copy_32(target, source)
        copy_32(target + 32, source + 32)
        target += 64
        source += 64
        while target < done:
            copy_32(target, source)
            target += 32
            source += 32
        return done
    if distance >= 8 and room >= length + _ROOM_BYTES:
        while target < done:
            poke_i64(target, peek_i64(source))
            target += 8
            source += 8
        return done
    # What was copied repeats too: each turn doubles how much can be copied without overlap.
    while target < done:
        chunk = min(done - target, target - source)
        copy(target, source, chunk)
        target += chunk
    return done


@inlined
def decode_at(at: int, end: int, origin: int, limit: int) -> bool:
    """Decodes the block between two addresses; whether it is sound and fills the target exactly."""
    target = origin
    while at < end:
        token = peek_u8(at)
        at += 1
        literals, match = token >> 4, (token & 15) + 4
        if literals < 15 and end - at >= 16 + 2 and limit - target >= 16:
            copy_16(target, at)
            at += literals
            target += literals
        else:
            if literals == 15:
                at, literals = _extended(at, end, literals)
            if at == 0 or literals > end - at or literals > limit - target:
                return False
            copy(target, at, literals)
            at += literals
            target += literals
            if at == end:
                return target == limit
            if end - at < 2:
                return False
        distance = peek_u16(at)
        at += 2
        if match == 19:
            at, match = _extended(at, end, match)
        if at == 0 or distance == 0 or distance > target - origin or match > limit - target:
            return False
        target = _repeat(target, distance, match, limit - target)
    return False


@kernel
def decode(data: Any, start: int, out: Any) -> Any:
    """Decodes the block in data[start:]; whether it is sound and fills `out` exactly."""
    origin, source = address_of(out), address_of(data)
    return decode_at(source + start, source + len(data), origin, origin + len(out))
