"""Fixed byte layouts for Python code, and unchecked memory access for kernels.

A `Layout` is the one description of a fixed on-disk structure: its fields in order, with the type
names that the format pages use. The tables in the documentation are compared with it by a test.

The `peek_`, `poke_` and `copy` functions exist only inside kernels, compiled or interpreted. They
are as unsafe as C.

Rules.
1. A kernel gets arrays, takes `address_of` them once, and checks every position against their
   length before it peeks or pokes.
2. An address never outlives the call that got the array (or the Arrow capsule) it points into.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.declare import inlined, instruction, late
from lamina.formats.kernels.interpret import in_python, signed

if TYPE_CHECKING:
    from typing_extensions import Buffer

ir, types, cgutils = late("llvmlite.ir"), late("numba.types"), late("numba.core.cgutils")

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("lamina's kernels are written for little-endian processors")

_CODES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i16": "h",
    "i32": "i",
    "i64": "q",
}


class Layout:
    """A fixed run of named fields. Types: u8 … i64, and `bytes[n]` for raw bytes."""

    def __init__(self, byte_order: str, **fields: str) -> None:
        self.fields = fields
        self.is_big_endian = byte_order == ">"
        self._struct = struct.Struct(byte_order + "".join(_code(kind) for kind in fields.values()))
        self.size = self._struct.size
        self._positions: dict[str, int] = {}
        position = 0
        for name, kind in fields.items():
            self._positions[name] = position
            position += struct.calcsize(byte_order + _code(kind))

    def at(self, field: str) -> int:
        """Returns the byte position of a field within the structure."""
        return self._positions[field]

    def pack(self, **values: Any) -> bytes:
        """Encodes one structure; every field must be given."""
        if values.keys() != self.fields.keys():
            raise TypeError(f"fields {sorted(self.fields)} expected, got {sorted(values)}")
        return self._struct.pack(*(values[name] for name in self.fields))

    def unpack(self, buffer: Buffer, position: int = 0) -> dict[str, Any]:
        """Decodes one structure; the caller has checked that the buffer is long enough."""
        return dict(zip(self.fields, self._struct.unpack_from(buffer, position), strict=True))


def _code(kind: str) -> str:
    raw = re.fullmatch(r"bytes\[(\d+)]", kind)
    return f"{raw[1]}s" if raw else _CODES[kind]


def as_bytes(buffer: Buffer) -> NDArray[np.uint8]:
    """Views any buffer as read-only bytes, the type that kernels read from."""
    view: NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)  # type: ignore[call-overload]
    view.setflags(write=False)
    return view


# ---------------------------------------------------------------- inside kernels only


def _as_pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _peek(bits: int, result: str, *, swap: bool) -> Callable[[int], int]:
    @instruction
    def peek(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_as_pointer(builder, arguments[0], bits), align=1)
            if swap:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return getattr(types, result)(types.int64), generate

    order = "big" if swap else "little"

    def plain(address: int) -> Any:
        read = ctypes.string_at(int(address), bits // 8)
        value = int.from_bytes(read, order, signed=bits == 64 and result == "int64")  # type: ignore[arg-type]
        return np.uint64(value) if result == "uint64" else value

    in_python(peek, plain)
    return peek


def _poke(bits: int, *, swap: bool) -> Callable[[int, int], None]:
    @instruction
    def poke(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            stored = arguments[1]
            if bits < 64:
                stored = builder.trunc(stored, ir.IntType(bits))
            if swap:
                stored = builder.bswap(stored)
            builder.store(stored, _as_pointer(builder, arguments[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    order = "big" if swap else "little"

    def plain(address: int, value: int) -> None:
        stored = (int(value) & (1 << bits) - 1).to_bytes(bits // 8, order)  # type: ignore[arg-type]
        ctypes.memmove(int(address), stored, bits // 8)

    in_python(poke, plain)
    return poke


# Widths below 64 bits are widened without sign into an int64, so that sums of lengths cannot wrap.
peek_u8 = _peek(8, "int64", swap=False)
peek_u16 = _peek(16, "int64", swap=False)
peek_u32 = _peek(32, "int64", swap=False)
peek_i64 = _peek(64, "int64", swap=False)
peek_u64: Callable[[int], Any] = _peek(64, "uint64", swap=False)
peek_u16_be = _peek(16, "int64", swap=True)
peek_u32_be = _peek(32, "int64", swap=True)
peek_i64_be = _peek(64, "int64", swap=True)
poke_u8 = _poke(8, swap=False)
poke_u16 = _poke(16, swap=False)
poke_u32 = _poke(32, swap=False)
poke_i64 = _poke(64, swap=False)
poke_u16_be = _poke(16, swap=True)
poke_u32_be = _poke(32, swap=True)
poke_i64_be = _poke(64, swap=True)


@instruction
def address_of(typing_context: Any, array: Any) -> Any:
    """Returns the address of the first element of a contiguous array, for kernels."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


in_python(address_of, lambda array: int(array.ctypes.data))


@instruction
def copy(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """Copies bytes between two addresses that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin, size = arguments
        cgutils.raw_memcpy(
            builder, _as_pointer(builder, to, 8), _as_pointer(builder, origin, 8), size, 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@instruction
def move(typing_context: Any, target: Any, source: Any, length: Any) -> Any:
    """Copies bytes between two addresses that may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin, size = arguments
        cgutils.raw_memmove(
            builder, _as_pointer(builder, to, 8), _as_pointer(builder, origin, 8), size, 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _copy_vector(size: int) -> Callable[[int, int], None]:
    @instruction
    def copy_vector(typing_context: Any, target: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = ir.VectorType(ir.IntType(8), size)
            to, origin = (builder.inttoptr(each, vector.as_pointer()) for each in arguments)
            builder.store(builder.load(origin, align=1), to, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy_vector


def _moved(target: int, source: int, length: int) -> None:
    ctypes.memmove(int(target), int(source), int(length))


in_python(copy, _moved)
in_python(move, _moved)

# All bytes are read before any is written: source and target may overlap.
copy_16 = _copy_vector(16)
copy_32 = _copy_vector(32)
in_python(copy_16, lambda target, source: _moved(target, source, 16))
in_python(copy_32, lambda target, source: _moved(target, source, 32))


@inlined
def wrapping_add(first: int, second: int) -> Any:
    """A sum modulo 2^64, as an int64: signed arithmetic must not be relied on to wrap."""
    total: Any = np.uint64(first) + np.uint64(second)
    return np.int64(total)


@inlined
def wrapping_subtract(first: int, second: int) -> Any:
    """A difference modulo 2^64, as an int64."""
    difference: Any = np.uint64(first) - np.uint64(second)
    return np.int64(difference)


in_python(wrapping_add, lambda first, second: signed(int(first) + int(second)))
in_python(wrapping_subtract, lambda first, second: signed(int(first) - int(second)))
