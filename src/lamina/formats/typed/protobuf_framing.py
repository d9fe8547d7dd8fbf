"""Which message of its file a value is: the indexes that Confluent's serializers write.

They stand behind the id of the schema: how many they are, then each, as zigzag varints; a lone zero
byte stands for the first message of the file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina.formats.typed.row_faults import Values


def index_bytes(indexes: tuple[int, ...]) -> bytes:
    """Returns what stands in front of a message that is declared at these places."""
    if not indexes:
        return b"\0"
    return b"".join(_zigzag(each) for each in (len(indexes), *indexes))


def behind_indexes(values: Values, indexes: tuple[int, ...]) -> tuple[Values, NDArray[np.intp]]:
    """Returns values without the indexes in front, and which rows are of another message.

    Rows of another message are null values in what is returned.
    """
    spelt = [index_bytes(indexes)]
    if not indexes:
        spelt.append(index_bytes((0,)))
    there = values.starts >= 0
    starts = np.full_like(values.starts, -1)
    for each in spelt:
        begun = there & (starts < 0) & _begin_with(values, each)
        starts[begun] = values.starts[begun] + len(each)
    return values._replace(starts=starts), np.flatnonzero(there & (starts < 0))


def _begin_with(values: Values, wanted: bytes) -> NDArray[np.bool_]:
    fits = values.ends - values.starts >= len(wanted)
    if len(values.data) < len(wanted):
        return np.zeros(len(fits), dtype=np.bool_)
    at = np.clip(values.starts, 0, len(values.data) - len(wanted))
    for place, byte in enumerate(wanted):
        fits = fits & (values.data[at + place] == byte)
    return fits


def _zigzag(value: int) -> bytes:
    rest, made = value << 1, bytearray()
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*made, rest])
