"""Moves columns between Arrow and kernels without touching single records.

In: a record batch is exported through Arrow's C data interface; kernels read its buffers in place.
The export goes into a structure that each thread owns and uses again, and is released at once:
making capsules for array and schema instead would cost more than encoding a record.
Values that come alone (`PlainValues`) are laid out as the same structure without Arrow's objects.
Out: kernels fill plain arrays, which become Arrow arrays without a copy.

Rules.
1. Kernels trust what `RecordBatch.validate` checks, which `records.prepare` calls for every batch
   that a user brings: buffers are as long as the rows need, and the last offset of a column lies
   inside its data. They check every other offset themselves: it neither decreases nor passes the
   last one.
2. Null slots may hold any bytes: a kernel asks `is_null` before it looks at a slot.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.errors import InvalidRequest, UnsupportedField
from lamina.formats.kernels.binary import peek_i64, peek_u8, peek_u32
from lamina.formats.kernels.declare import inlined, instruction, kernel_at_once, late
from lamina.formats.kernels.interpret import in_python
from lamina.formats.scan import OFFSET_MAX

ir, types = late("llvmlite.ir"), late("numba.types")
_ABSENT = -1
NO_COLUMN = (_ABSENT, 0, 0, 0, 0)
"""Stands for a column that a batch does not have: every row of it is null."""

Column: TypeAlias = tuple[int, int, int, int, int]
"""A column inside a kernel: (validity, offsets or numbers, data, first row, last offset)."""

# Positions in struct ArrowArray, in bytes.
_LENGTH, _OFFSET, _BUFFERS, _CHILDREN, _RELEASE = 0, 16, 40, 48, 64
_STRUCT_BYTES = 80


class _Exports(threading.local):
    """A struct ArrowArray for each thread."""

    def __init__(self) -> None:
        self.memory = np.zeros(_STRUCT_BYTES, dtype=np.uint8)
        self.address: int = self.memory.ctypes.data


_exports = _Exports()


def with_exported(batch: pa.RecordBatch, use: Callable[[int], Any]) -> Any:
    """Calls a function with the address of an exported batch, which is released afterwards."""
    address = _exports.address
    batch._export_to_c(address)
    try:
        return use(address)
    finally:
        _release(address)


@instruction
def _call_release(typing_context: Any, address: Any) -> Any:
    """Calls the release callback of an exported array, as its consumer must, once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        callback_type = ir.FunctionType(ir.VoidType(), [word]).as_pointer()
        slot_address = builder.add(arguments[0], ir.Constant(word, _RELEASE))
        callback = builder.load(builder.inttoptr(slot_address, callback_type.as_pointer()))
        builder.call(callback, [arguments[0]])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _release_plainly(address: int) -> None:
    callback = _RELEASER(ctypes.c_void_p.from_address(address + _RELEASE).value or 0)
    callback(address)


_RELEASER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
in_python(_call_release, _release_plainly)


@kernel_at_once(lambda address: 1)
def _release(address: int) -> None:
    _call_release(address)


@inlined
def length_of(array: int) -> int:
    """The number of rows of an exported array."""
    return peek_i64(array + _LENGTH)


@inlined
def child_of(array: int, index: int) -> int:
    """The address of a struct's field or of a list's items."""
    return peek_i64(peek_i64(array + _CHILDREN) + 8 * index)


@inlined
def column(parent: int, index: int) -> Column:
    """A binary column; validity 0 means no nulls. The last offset is that of the array itself."""
    array = child_of(parent, index)
    data = peek_i64(peek_i64(array + _BUFFERS) + 16)
    validity, offsets, _, first, last = list_column(parent, index)
    return validity, offsets, data, first, last


@inlined
def list_column(parent: int, index: int) -> Column:
    """A list column, whose offsets count items: a column without data."""
    array = child_of(parent, index)
    buffers = peek_i64(array + _BUFFERS)
    offsets = peek_i64(buffers + 8)
    first, rows = peek_i64(array + _OFFSET), peek_i64(array + _LENGTH)
    last = 0
    if rows > 0:
        last = peek_u32(offsets + 4 * (first + rows))
    return peek_i64(buffers), offsets, 0, first + peek_i64(parent + _OFFSET), last


@inlined
def fixed_column(parent: int, index: int) -> Column:
    """A column of int64 or timestamps: without data and offsets."""
    array = child_of(parent, index)
    buffers = peek_i64(array + _BUFFERS)
    first = peek_i64(array + _OFFSET) + peek_i64(parent + _OFFSET)
    return peek_i64(buffers), peek_i64(buffers + 8), 0, first, 0


@inlined
def is_null(column: Column, row: int) -> bool:
    """Whether a slot holds nothing."""
    if column[0] <= 0:
        return column[0] == _ABSENT
    index = column[3] + row
    return (peek_u8(column[0] + (index >> 3)) >> (index & 7)) & 1 == 0


@inlined
def slot_start(column: Column, row: int) -> int:
    """The offset at which a row of a binary or list column begins; row = length gives the end."""
    return peek_u32(column[1] + 4 * (column[3] + row))


@inlined
def span(column: Column, row: int) -> tuple[int, int]:
    """Where a row begins and ends in data or items; the end is below it if the batch is broken."""
    start, end = slot_start(column, row), slot_start(column, row + 1)
    if end > column[4]:
        return 0, -1
    return start, end


@inlined
def slot(column: Column, row: int) -> tuple[int, int]:
    """The address and length of a row of a binary column; below 0 the batch is broken."""
    start, end = span(column, row)
    return column[2] + start, end - start


@inlined
def number(column: Column, row: int) -> int:
    """A row of an int64 or timestamp column."""
    return peek_i64(column[1] + 8 * (column[3] + row))


@inlined
def spread(column: Column, rows: int) -> int:
    """The bytes (or items) that all rows of a binary (or list) column span together."""
    if rows == 0:
        return 0
    return slot_start(column, rows) - slot_start(column, 0)


Encoded: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""An encoded batch: the bytes, and where in them each record starts."""

# What an encode kernel answers, beside a number: bytes written or needed, or the row at fault.
OK, NO_ROOM, NULL_VALUE, TOO_LARGE, BROKEN, NULL_TIME, BAD_NAME = 0, 1, 2, 3, 4, 5, 6
_NO_BYTES = np.empty(0, dtype=np.uint8)
_BYTE = _NO_BYTES.dtype
_POSITION = np.dtype(np.int64)


def encode_with(
    encoder: Callable[..., tuple[int, int]],
    batch: pa.RecordBatch,
    schema: pa.Schema,
    out: NDArray[np.uint8] | None,
    *arguments: object,
) -> Encoded:
    """Runs an encode kernel over a batch, into `out` where that has room, else into new memory.

    Raises InvalidRequest for what the format cannot hold, ValueError for an `out` that is not
    plain, writeable bytes.
    """
    if not batch.schema.equals(schema):
        raise InvalidRequest(f"a batch of {schema.names} is needed, as records.prepare makes it")
    address = _exports.address
    batch._export_to_c(address)
    try:
        return encode_at(address, batch.num_rows, encoder, out, *arguments)
    finally:
        _release(address)


def encode_at(
    address: int,
    rows: int,
    encoder: Callable[..., tuple[int, int]],
    out: NDArray[np.uint8] | None,
    *arguments: object,
) -> Encoded:
    """Runs an encode kernel over what lies at an address in Arrow's C structure."""
    if out is None:
        data = _NO_BYTES
    elif (out.dtype is _BYTE or out.dtype == _BYTE) and out.ndim == 1 and out.flags.carray:
        data = out
    else:
        raise ValueError("out must be a writeable, contiguous array of uint8")
    positions = np.empty(rows, _POSITION)
    status, detail = encoder(address, data, positions, *arguments)
    if status == NO_ROOM:
        data = empty_bytes(detail)
        status, detail = encoder(address, data, positions, *arguments)
    if status != OK:
        raise _problem(status, detail)
    return data[:detail], positions


def _problem(status: int, row: int) -> InvalidRequest:
    if status == NULL_VALUE:
        return UnsupportedField(
            f"row {row}: this format has no null values; a keratin topic keeps them"
        )
    if status == NULL_TIME:
        return InvalidRequest(f"row {row}: the timestamp is null; records.prepare fills it in")
    if status == BAD_NAME:
        return InvalidRequest(f"row {row}: a header's name is not UTF-8")
    if status == TOO_LARGE:
        return InvalidRequest(f"row {row}: the record is larger than the format allows")
    return InvalidRequest(
        f"row {row}: the Arrow batch is broken: offsets decrease or a null in headers"
    )


def refuse_offsets(base_offset: int, rows: int) -> None:
    """Raises InvalidRequest unless that many offsets from `base_offset` on can be given."""
    if not 0 <= base_offset <= OFFSET_MAX - rows:
        raise InvalidRequest(f"{rows} offsets from {base_offset} on are not all from 0 to 2^63 - 2")


_SMALL_BYTES = 64 << 10


def empty_bytes(size: int) -> NDArray[np.uint8]:
    """Allocates bytes to fill; large ones from Arrow's pool, which keeps its pages warm."""
    if size < _SMALL_BYTES:
        return np.empty(size, dtype=np.uint8)
    return np.frombuffer(pa.allocate_buffer(size), dtype=np.uint8)


def binary_array(
    offsets: NDArray[np.int32], data: NDArray[np.uint8], validity: NDArray[np.uint8] | None = None
) -> pa.Array:
    """Wraps what a kernel filled as a binary array; validity is a bitmap, None means no nulls."""
    bits = None if validity is None else pa.py_buffer(validity)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def room_for(
    rows: int, size_bytes: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.uint8]]:
    """Makes what a binary column is gathered into: offsets, bytes, and a bitmap of zeros."""
    return np.empty(rows + 1, dtype=np.int32), empty_bytes(size_bytes), bitmap(rows)


def selected(schema: pa.Schema, columns: Collection[str] | None) -> pa.Schema:
    """Returns the fields of a schema that are asked for, in its own order; None is all of them."""
    if columns is None:
        return schema
    return pa.schema([field for field in schema if field.name in columns])


def number_array(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """Wraps fixed-width values as an Arrow array."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def bitmap(rows: int) -> NDArray[np.uint8]:
    """Allocates a cleared validity bitmap; kernels set the bit of each row that holds something."""
    return np.zeros((rows + 7) >> 3, dtype=np.uint8)


# ---------------------------------------------------------------------- values without Arrow

# struct ArrowArray in words of 8 bytes: length, null_count, offset, n_buffers, n_children,
# buffers, children, dictionary, release, private_data.
_WORD_LENGTH, _WORD_CHILD_COUNT, _WORD_BUFFERS, _WORD_CHILDREN, _WORDS = 0, 4, 5, 6, 10
_BUFFER_WORDS = 3
_PLAIN_BYTES_MAX = (1 << 31) - 1
_Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Names, each with the fields inside."""


class PlainValues:
    """A batch of an input schema in which only `value` and `timestamp` hold anything.

    A request of one record costs more in Arrow objects than in everything else that happens to it
    in memory. Plain values therefore reach the same encode kernels by a shorter way: the buffers
    that a kernel would find behind an exported batch are kept here, and filled for each group.
    One owner at a time: what was filled is valid until the next `fill`. `address` is where the
    structure lies.
    """

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
        if size > _PLAIN_BYTES_MAX:
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
        self._words_view[_WORD_LENGTH] = rows
        self._words_view[self._value + _WORD_LENGTH] = rows
        self.rows = rows

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
        self.address: int = self._words.ctypes.data
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
        words[start + _WORD_CHILD_COUNT] = len(fields)
        words[start + _WORD_BUFFERS] = self.address + 8 * buffers
        words[start + _WORD_CHILDREN] = self.address + 8 * children
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
        return self.address + 8 * start


@functools.cache
def _fields_of(kind: pa.Schema | pa.DataType) -> _Fields:
    """Returns the names of fields, with the fields inside them: Arrow is slow to ask."""
    count = len(kind) if isinstance(kind, pa.Schema) else kind.num_fields
    fields = [kind.field(number) for number in range(count)]
    return tuple((field.name, _fields_of(field.type)) for field in fields)


def _size_of(fields: _Fields) -> int:
    inner = sum(_size_of(inside) for _, inside in fields)
    return _WORDS + _BUFFER_WORDS + len(fields) + inner
