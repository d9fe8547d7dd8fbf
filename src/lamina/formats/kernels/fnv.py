"""FNV-1a with 64 bits: the hash by which files name a topic, a partition or a group.

It is a check against mixed-up files, not against attackers. It runs over short names only, so it
needs no kernel.
"""

from __future__ import annotations

_BASIS = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


def fnv1a_64(data: bytes) -> int:
    """Returns the hash of some bytes, as an unsigned number."""
    digest = _BASIS
    for byte in data:
        digest = (digest ^ byte) * _PRIME & _MASK
    return digest
