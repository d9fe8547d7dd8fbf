"""Values with one time and nothing else, laid out as Arrow's C structure without Arrow's objects.

A request of one record costs more in Arrow objects than in everything else that happens to it in
memory. Plain values therefore go to the same encode kernels by a shorter way: the buffers that a
kernel would find behind an exported batch are kept here and filled anew for each group.

Rule: one owner at a time; what was filled is valid until the next `fill`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import InvalidRequest

# struct ArrowArray in words of 8 bytes: length, null_count, offset, n_buffers, n_children,
# buffers, children, dictionary, release, private_data.
_LENGTH, _N_CHILDREN, _BUFFERS, _CHILDREN, _WORDS = 0, 4, 5, 6, 10
_BUFFER_WORDS = 3
_DATA_BYTES_MAX = (1 << 31) - 1
_Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Names, each with the fields inside."""


class PlainValues:
    """A batch of an input schema in which only `value` and `timestamp` hold anything."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.rows = 0
        """How many values were filled in."""
        self._grow(rows=64, data_bytes=1 << 16)

    def fill(self, values: Sequence[bytes], timestamp_ms: int) -> None:
        """Lays values out, in place of those before.

        Raises InvalidRequest, and leaves those before, for more than Arrow's offsets can address.
        """
        rows = len(values)
        size = len(values[0]) if rows == 1 else sum(map(len, values))
        if size > _DATA_BYTES_MAX:
            raise InvalidRequest(f"one batch holds values of at most 2 GiB, not {size} bytes")
        if rows > self._capacity or size > len(self._data):
            self._grow(rows=2 * rows, data_bytes=2 * size)
        if rows == 1:
            self._data_view[:size] = values[0]
            self._offsets[1] = size
            self._times_view[0] = timestamp_ms
        else:
            self._data_view[:size] = b"".join(values)
            lengths = np.fromiter(map(len, values), dtype=np.int32, count=rows)
            np.add.accumulate(lengths, out=self._offsets[1 : rows + 1])
            self._times[:rows] = timestamp_ms
        self._words_view[_LENGTH] = rows
        self._words_view[self._value + _LENGTH] = rows
        self.rows = rows

    @property
    def address(self) -> int:
        """Where the structure lies."""
        return self._address

    def times(self) -> NDArray[np.int64]:
        """Returns the timestamps that `fill` laid out."""
        return self._times[: self.rows]

    def _grow(self, *, rows: int, data_bytes: int) -> None:
        self.rows = 0
        self._capacity: int = rows
        self._data: NDArray[np.uint8] = np.zeros(data_bytes, dtype=np.uint8)
        self._offsets: NDArray[np.int32] = np.zeros(rows + 1, dtype=np.int32)
        self._times: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._nothing = np.zeros(4 * (rows + 1) + 8, dtype=np.uint8)
        fields = _fields_of(self._schema)
        self._words: NDArray[np.int64] = np.zeros(_size_of(fields), dtype=np.int64)
        # A memoryview takes bytes and single numbers several times faster than an array does.
        self._data_view = self._data.data.cast("B")
        self._times_view = self._times.data.cast("B").cast("q")
        self._words_view = self._words.data.cast("B").cast("q")
        self._address: int = self._words.ctypes.data
        self._used = 0
        self._value: int = 0
        self._lay_out(fields, self._nothing.ctypes.data)

    def _lay_out(self, fields: _Fields, nothing: int) -> int:
        """Writes the structure of an array with these children; returns its address."""
        start = self._used
        self._used += _WORDS + _BUFFER_WORDS + len(fields)
        buffers = start + _WORDS
        children = buffers + _BUFFER_WORDS
        words = self._words_view
        words[start + _N_CHILDREN] = len(fields)
        words[start + _BUFFERS] = self._address + 8 * buffers
        words[start + _CHILDREN] = self._address + 8 * children
        for word in range(buffers, buffers + _BUFFER_WORDS):
            words[word] = nothing
        for number, (name, inner) in enumerate(fields):
            child = self._used
            words[children + number] = self._lay_out(inner, nothing)
            if name == "value" and start == 0:
                self._value = child
                pointers = (0, self._offsets.ctypes.data, self._data.ctypes.data)
                self._words[child + _WORDS : child + _WORDS + _BUFFER_WORDS] = pointers
            elif name == "timestamp" and start == 0:
                pointers = (0, self._times.ctypes.data, 0)
                self._words[child + _WORDS : child + _WORDS + _BUFFER_WORDS] = pointers
        return self._address + 8 * start


@functools.cache
def _fields_of(kind: pa.Schema | pa.DataType) -> _Fields:
    """Returns the names of fields, with the fields inside them: Arrow is slow to ask."""
    count = len(kind) if isinstance(kind, pa.Schema) else kind.num_fields
    fields = [kind.field(number) for number in range(count)]
    return tuple((field.name, _fields_of(field.type)) for field in fields)


def _size_of(fields: _Fields) -> int:
    inner = sum(_size_of(inside) for _, inside in fields)
    return _WORDS + _BUFFER_WORDS + len(fields) + inner
