"""CRC-32 and CRC-32C, for kernels (`crc32`, `crc32c`) and for Python code (`crc32c_of`).

Each CRC exists twice: with the processor's instruction (carry-less multiply, SSE 4.2) and with
tables. The choice is made once, when Numba is loaded, by the processor that it compiles for: an
instruction that the target lacks would abort the whole process. Both ways return the same value;
tests compare them.

CRC-32 folding: four lanes of 128 bits are folded forward by multiplying with x^(512±32) mod P (then
one lane, x^(128±32)), and reduced to 64, then to 32 bits by Barrett's method. A tail of under 16
bytes is shifted into the last lane. All constants are bit-reflected.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import address_of, as_bytes, peek_u8, peek_u32, peek_u64
from lamina.formats.kernels.call_size import rows_within
from lamina.formats.kernels.declare import chosen, inlined, instruction, kernel_at_once, late
from lamina.formats.kernels.interpret import in_python

if TYPE_CHECKING:
    from typing_extensions import Buffer

ir, types = late("llvmlite.ir"), late("numba.types")
compiler = late("lamina.formats.kernels.compile")
CRC32_POLYNOMIAL = 0xEDB88320
CRC32C_POLYNOMIAL = 0x82F63B78
_ALL_ONES = np.uint32(0xFFFFFFFF)


def has_carryless_multiply() -> bool:
    """Whether kernels may multiply without carries."""
    return bool(compiler.target_has("pclmul") and compiler.target_has("ssse3"))


def has_crc32c_instruction() -> bool:
    """Whether the processor has an instruction for CRC-32C."""
    return bool(compiler.target_has("sse4.2"))


def _slicing_tables(polynomial: int) -> NDArray[np.uint32]:
    """Row k holds the CRC of a byte followed by k zero bytes."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else 0)
        tables[0, byte] = crc
    for row in range(1, 8):
        previous = tables[row - 1]
        tables[row] = (previous >> np.uint32(8)) ^ tables[0][previous & np.uint32(0xFF)]
    return tables


_CRC32_TABLES = _slicing_tables(CRC32_POLYNOMIAL)
_CRC32C_TABLES = _slicing_tables(CRC32C_POLYNOMIAL)


@inlined
def _looked_up(tables: int, row: int, byte: Any) -> Any:
    index: Any = np.int64(byte & np.uint32(0xFF))
    return np.uint32(peek_u32(tables + 1024 * row + 4 * index))


@inlined
def _four_bytes(tables: int, row: int, word: Any) -> Any:
    """The CRC of four bytes followed by `row` more: one look-up each."""
    return (
        _looked_up(tables, row + 3, word)
        ^ _looked_up(tables, row + 2, word >> np.uint32(8))
        ^ _looked_up(tables, row + 1, word >> np.uint32(16))
        ^ _looked_up(tables, row, word >> np.uint32(24))
    )


@inlined
def _through_tables(tables: int, address: int, length: int) -> Any:
    """CRC by slicing eight bytes at a time."""
    crc = _ALL_ONES
    while length >= 8:
        low = np.uint32(crc ^ np.uint32(peek_u32(address)))
        high = np.uint32(peek_u32(address + 4))
        crc = np.uint32(_four_bytes(tables, 4, low) ^ _four_bytes(tables, 0, high))
        address += 8
        length -= 8
    while length > 0:
        byte = np.uint32(crc ^ np.uint32(peek_u8(address)))
        crc = np.uint32(_looked_up(tables, 0, byte) ^ (crc >> np.uint32(8)))
        address += 1
        length -= 1
    return np.int64(np.uint32(crc ^ _ALL_ONES))


@inlined
def crc32_portable(address: int, length: int) -> Any:
    """CRC-32 by tables."""
    return _through_tables(address_of(_CRC32_TABLES), address, length)


@inlined
def crc32c_portable(address: int, length: int) -> Any:
    """CRC-32C by tables."""
    return _through_tables(address_of(_CRC32C_TABLES), address, length)


# ---------------------------------------------------------------- CRC-32C by instruction


def _crc32c_instruction(bits: int) -> Any:
    @instruction
    def step(typing_context: Any, crc: Any, value: Any) -> Any:
        state = types.uint64 if bits == 64 else types.uint32

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            width = ir.IntType(state.bitwidth)
            name = f"llvm.x86.sse42.crc32.{state.bitwidth}.{bits}"
            function = builder.module.declare_intrinsic(
                name, fnty=ir.FunctionType(width, [width, ir.IntType(bits)])
            )
            data = arguments[1]
            if bits < 64:
                data = builder.trunc(data, ir.IntType(bits))
            return builder.call(function, [arguments[0], data])

        return state(state, types.uint64), generate

    return step


_crc32c_u64 = _crc32c_instruction(64)
_crc32c_u32 = _crc32c_instruction(32)
_crc32c_u8 = _crc32c_instruction(8)


@inlined
def crc32c_instruction(address: int, length: int) -> Any:
    """CRC-32C by the processor's instruction, eight bytes a step."""
    wide = np.uint64(0xFFFFFFFF)
    while length >= 8:
        wide = _crc32c_u64(wide, peek_u64(address))
        address += 8
        length -= 8
    crc = np.uint32(wide)
    if length >= 4:
        crc = _crc32c_u32(crc, np.uint64(peek_u32(address)))
        address += 4
        length -= 4
    while length > 0:
        crc = _crc32c_u8(crc, np.uint64(peek_u8(address)))
        address += 1
        length -= 1
    return np.int64(np.uint32(crc ^ _ALL_ONES))


# ---------------------------------------------------------------- CRC-32 by carry-less multiply


def _two_words() -> Any:
    return ir.VectorType(ir.IntType(64), 2)


def _sixteen_bytes() -> Any:
    return ir.VectorType(ir.IntType(8), 16)


@functools.cache
def _lane() -> Any:
    """128 bits in one vector register; lives only inside a kernel."""
    return compiler.held_in_registers("lamina.Lane128", _two_words())


@instruction
def _load_lane(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _two_words().as_pointer()), align=1)

    return _lane()(types.int64), generate


@instruction
def _make_lane(typing_context: Any, low: Any, high: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lane = ir.Constant(_two_words(), ir.Undefined)
        for index, word in enumerate(arguments):
            lane = builder.insert_element(lane, word, ir.Constant(ir.IntType(32), index))
        return lane

    return _lane()(types.uint64, types.uint64), generate


def _word_of_lane(index: int) -> Any:
    @instruction
    def word(typing_context: Any, lane: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.extract_element(arguments[0], ir.Constant(ir.IntType(32), index))

        return types.uint64(_lane()), generate

    return word


_low_word = _word_of_lane(0)
_high_word = _word_of_lane(1)


@instruction
def _xor(typing_context: Any, first: Any, second: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.xor(arguments[0], arguments[1])

    return _lane()(_lane(), _lane()), generate


def _carryless_multiply(selector: int) -> Any:
    @instruction
    def multiply(typing_context: Any, first: Any, second: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            function = builder.module.declare_intrinsic(
                "llvm.x86.pclmulqdq",
                fnty=ir.FunctionType(_two_words(), [_two_words(), _two_words(), ir.IntType(8)]),
            )
            return builder.call(function, [*arguments, ir.Constant(ir.IntType(8), selector)])

        return _lane()(_lane(), _lane()), generate

    return multiply


_multiply_low_low = _carryless_multiply(0x00)
_multiply_high_high = _carryless_multiply(0x11)
_multiply_low_high = _carryless_multiply(0x10)

_MASK32 = np.uint64(0xFFFFFFFF)

# A shuffle by the 16 bytes from position n moves a lane's first n bytes to its end; from position
# 16 + n it drops them. 0x80 clears a byte.
_SHUFFLES = np.array([*[0x80] * 16, *range(16), *[0x80] * 16], dtype=np.uint8)


@instruction
def _shuffle(typing_context: Any, lane: Any, mask: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic(
            "llvm.x86.ssse3.pshuf.b.128",
            fnty=ir.FunctionType(_sixteen_bytes(), [_sixteen_bytes(), _sixteen_bytes()]),
        )
        operands = [builder.bitcast(argument, _sixteen_bytes()) for argument in arguments]
        return builder.bitcast(builder.call(function, operands), _two_words())

    return _lane()(_lane(), _lane()), generate


@instruction
def _last_bytes(typing_context: Any, lane: Any, mask: Any) -> Any:
    """Keeps the bytes of a lane where the mask is not 0x80, clears the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, mask_bytes = (builder.bitcast(argument, _sixteen_bytes()) for argument in arguments)
        zeros = ir.Constant(_sixteen_bytes(), [0] * 16)
        kept = builder.select(builder.icmp_signed(">=", mask_bytes, zeros), data, zeros)
        return builder.bitcast(kept, _two_words())

    return _lane()(_lane(), _lane()), generate


@inlined
def _fold(lane: Any, constants: Any, data: Any) -> Any:
    return _xor(
        _xor(_multiply_low_low(lane, constants), _multiply_high_high(lane, constants)), data
    )


@inlined
def _reduce(lane: Any) -> Any:
    """Reduces 128 bits to the 32-bit remainder: fold to 96, to 64, then Barrett."""
    fold_128 = _make_lane(np.uint64(0x1751997D0), np.uint64(0x0CCAA009E))
    folded = _xor(_multiply_low_high(lane, fold_128), _make_lane(_high_word(lane), np.uint64(0)))
    fold_64 = _make_lane(np.uint64(0x163CD6124), np.uint64(0))
    low = _low_word(folded)
    shifted = (low >> np.uint64(32)) | (_high_word(folded) << np.uint64(32))
    product = _multiply_low_low(_make_lane(low & _MASK32, np.uint64(0)), fold_64)
    value = shifted ^ _low_word(product)
    barrett = _make_lane(np.uint64(0x1DB710641), np.uint64(0x1F7011641))
    quotient = _multiply_low_high(_make_lane(value & _MASK32, np.uint64(0)), barrett)
    back = _multiply_low_low(_make_lane(_low_word(quotient) & _MASK32, np.uint64(0)), barrett)
    return np.uint32((value ^ _low_word(back)) >> np.uint64(32))


@inlined
def crc32_instruction(address: int, length: int) -> Any:
    """CRC-32 by folding with the carry-less multiply instruction."""
    if length < 16:
        return crc32_portable(address, length)
    lane = _xor(_load_lane(address), _make_lane(_MASK32, np.uint64(0)))
    address += 16
    length -= 16
    one = _make_lane(np.uint64(0x1751997D0), np.uint64(0x0CCAA009E))
    if length >= 112:
        four = _make_lane(np.uint64(0x154442BD4), np.uint64(0x1C6E41596))
        second = _load_lane(address)
        third = _load_lane(address + 16)
        fourth = _load_lane(address + 32)
        address += 48
        length -= 48
        while length >= 64:
            lane = _fold(lane, four, _load_lane(address))
            second = _fold(second, four, _load_lane(address + 16))
            third = _fold(third, four, _load_lane(address + 32))
            fourth = _fold(fourth, four, _load_lane(address + 48))
            address += 64
            length -= 64
        lane = _fold(_fold(_fold(lane, one, second), one, third), one, fourth)
    while length >= 16:
        lane = _fold(lane, one, _load_lane(address))
        address += 16
        length -= 16
    if length > 0:
        masks = address_of(_SHUFFLES) + length
        last = _last_bytes(_load_lane(address + length - 16), _load_lane(masks))
        front = _shuffle(lane, _load_lane(masks))
        lane = _fold(front, one, _xor(_shuffle(lane, _load_lane(masks + 16)), last))
    return np.int64(np.uint32(_reduce(lane) ^ _ALL_ONES))


crc32 = chosen(lambda: crc32_instruction if has_carryless_multiply() else crc32_portable)
crc32c = chosen(lambda: crc32c_instruction if has_crc32c_instruction() else crc32c_portable)


def _crc32c_plainly(address: int, length: int) -> int:
    crc = 0xFFFFFFFF
    for byte in ctypes.string_at(int(address), int(length)):
        crc = _CRC32C_BYTES[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


_CRC32C_BYTES = [int(each) for each in _CRC32C_TABLES[0]]
in_python(crc32, lambda address, length: zlib.crc32(ctypes.string_at(int(address), int(length))))
in_python(crc32c, _crc32c_plainly)


@kernel_at_once(rows_within)
def _crc32c_of(data: Any) -> Any:
    return crc32c(address_of(data), len(data))


def crc32c_of(buffer: Buffer) -> int:
    """Returns the CRC-32C of a buffer. (For CRC-32, Python has `zlib.crc32`.)"""
    return int(_crc32c_of(as_bytes(buffer)))
