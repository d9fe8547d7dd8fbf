"""Distinguishes a flipped bit from a newer version, where no checksum covers the version itself.

Some documents put the version outside of what their checksum covers (`manifest.bin`, the metadata
snapshot), or have no checksum at all (`checkpoint.json`). There one flipped bit looks like another
version. What decides is the distance: version 2 differs from version 1 in two bits, in binary as in
digits, so that a file whose other bytes are all as version 1 makes them, and whose version is one
bit off, is damaged and not newer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from lamina.errors import CorruptData

SEARCHED_BYTES_MAX = 2048
"""The largest file that is searched for its flipped bit: each one costs a decoding."""
_Value = TypeVar("_Value")


def is_one_flip(found: bytes, known: bytes) -> bool:
    """Returns whether exactly one bit differs."""
    if len(found) != len(known):
        return False
    return (int.from_bytes(found, "big") ^ int.from_bytes(known, "big")).bit_count() == 1


def one_flip_away(raw: bytes, decode: Callable[[bytes], _Value]) -> _Value | None:
    """Returns what a small damaged file held if exactly one flipped bit explains the damage.

    `decode` must check a checksum: it alone distinguishes the right bit from all others.
    """
    if len(raw) > SEARCHED_BYTES_MAX:
        return None
    found: list[_Value] = []
    mended = bytearray(raw)
    for bit in range(8 * len(raw)):
        mended[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptData):
            found.append(decode(bytes(mended)))
        mended[bit // 8] ^= 1 << bit % 8
    return found[0] if found and all(each == found[0] for each in found) else None
