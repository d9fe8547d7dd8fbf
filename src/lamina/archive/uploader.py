"""Puts an object into the store and reads it back: what is listed was seen there, byte for byte."""

from __future__ import annotations

import pyarrow as pa

from lamina.errors import CorruptData, ObjectMissing
from lamina.storage.objects import Objects

READ_BACK_BYTES = 8 << 20
READ_BACK_TRIES = 3


def reads_back(objects: Objects, key: str, data: memoryview, tries: int = READ_BACK_TRIES) -> bool:
    """Reads a whole object again, part by part, and compares it with what was sent."""
    try:
        if objects.size(key) != len(data):
            return False
    except ObjectMissing:
        return False
    for start in range(0, len(data), READ_BACK_BYTES):
        end = min(len(data), start + READ_BACK_BYTES)
        if not any(_is_same(objects, key, start, data[start:end]) for _ in range(tries)):
            return False
    return True


def _is_same(objects: Objects, key: str, start: int, sent: memoryview) -> bool:
    try:
        found = objects.read_range(key, start, start + len(sent))
    except (ObjectMissing, CorruptData):
        return False
    return bool(pa.py_buffer(found).equals(pa.py_buffer(sent)))  # views compare byte by byte
