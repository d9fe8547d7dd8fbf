"""XXH3-64 with a seed, for kernels (`xxh3`) and for Python code (`xxh3_of`).

The algorithm has a branch for each range of lengths (0, 1-3, 4-8, 9-16, 17-128, 129-240, longer);
the constants below are its published secret and primes. The long branch mixes eight 64-bit lanes,
held in vector registers of whatever width the processor has, over stripes of 64 bytes. A seed other
than 0 changes the secret of the long branch, so that is derived on the spot: only control frames
use one, and they are rare.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lamina.formats.kernels.binary import address_of, as_bytes, peek_u8, peek_u32, peek_u64
from lamina.formats.kernels.call_size import rows_within
from lamina.formats.kernels.declare import inlined, instruction, kernel, kernel_at_once, late
from lamina.formats.kernels.interpret import in_python

if TYPE_CHECKING:
    from typing_extensions import Buffer

ir, types = late("llvmlite.ir"), late("numba.types")
compiler = late("lamina.formats.kernels.compile")
_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
        "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    dtype=np.uint8,
)


def _u64(value: int) -> Any:
    return np.uint64(value)


_PRIME32_1 = _u64(0x9E3779B1)
_PRIME32_2 = _u64(0x85EBCA77)
_PRIME32_3 = _u64(0xC2B2AE3D)
_PRIME64_1 = _u64(0x9E3779B185EBCA87)
_PRIME64_2 = _u64(0xC2B2AE3D27D4EB4F)
_PRIME64_3 = _u64(0x165667B19E3779F9)
_PRIME64_4 = _u64(0x85EBCA77C2B2AE63)
_PRIME64_5 = _u64(0x27D4EB2F165667C5)
_MIX_1 = _u64(0x165667919E3779F9)
_MIX_2 = _u64(0x9FB21C651E98DF25)
_FIRST_LANES = (
    _PRIME32_3,
    _PRIME64_1,
    _PRIME64_2,
    _PRIME64_3,
    _PRIME64_4,
    _PRIME32_2,
    _PRIME64_5,
    _PRIME32_1,
)


def _secret_word(position: int) -> Any:
    return _u64(int.from_bytes(_SECRET[position : position + 8].tobytes(), "little"))


def _secret_half(position: int) -> Any:
    return _u64(int.from_bytes(_SECRET[position : position + 4].tobytes(), "little"))


_FLIP_EMPTY = _secret_word(56) ^ _secret_word(64)
_FLIP_1_3 = _secret_half(0) ^ _secret_half(4)
_FLIP_4_8 = _secret_word(8) ^ _secret_word(16)
_FLIP_9_16_LOW = _secret_word(24) ^ _secret_word(32)
_FLIP_9_16_HIGH = _secret_word(40) ^ _secret_word(48)


@instruction
def _multiply_fold(typing_context: Any, first: Any, second: Any) -> Any:
    """The 128-bit product of two words, its halves xored."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return builder.xor(builder.trunc(product, word), high)

    return types.uint64(types.uint64, types.uint64), generate


@instruction
def _swap_bytes(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


def _multiplied_and_folded(first: Any, second: Any) -> Any:
    product = int(first) * int(second)
    return np.uint64((product ^ product >> 64) & 0xFFFFFFFFFFFFFFFF)


in_python(_multiply_fold, _multiplied_and_folded)
in_python(_swap_bytes, lambda value: value.byteswap())


@inlined
def _rotate(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _avalanche(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(37))) * _MIX_1
    return value ^ (value >> np.uint64(32))


@inlined
def _avalanche_64(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * _PRIME64_2
    value = (value ^ (value >> np.uint64(29))) * _PRIME64_3
    return value ^ (value >> np.uint64(32))


@inlined
def _mix_16(address: int, secret: int, seed: Any) -> Any:
    low = peek_u64(address) ^ (peek_u64(secret) + seed)
    high = peek_u64(address + 8) ^ (peek_u64(secret + 8) - seed)
    return _multiply_fold(low, high)


@inlined
def _up_to_16(address: int, length: int, seed: Any) -> Any:
    size = np.uint64(length)
    if length > 8:
        low = peek_u64(address) ^ (_FLIP_9_16_LOW + seed)
        high = peek_u64(address + length - 8) ^ (_FLIP_9_16_HIGH - seed)
        return _avalanche(size + _swap_bytes(low) + high + _multiply_fold(low, high))
    if length >= 4:
        seed ^= _swap_bytes(seed & np.uint64(0xFFFFFFFF))
        first = np.uint64(peek_u32(address))
        last = np.uint64(peek_u32(address + length - 4))
        keyed = (last + (first << np.uint64(32))) ^ (_FLIP_4_8 - seed)
        keyed ^= _rotate(keyed, 49) ^ _rotate(keyed, 24)
        keyed *= _MIX_2
        keyed ^= (keyed >> np.uint64(35)) + size
        keyed *= _MIX_2
        return keyed ^ (keyed >> np.uint64(28))
    if length > 0:
        first = np.uint64(peek_u8(address))
        middle = np.uint64(peek_u8(address + (length >> 1)))
        last = np.uint64(peek_u8(address + length - 1))
        combined = (first << np.uint64(16)) | (middle << np.uint64(24)) | last
        combined |= size << np.uint64(8)
        return _avalanche_64(combined ^ (_FLIP_1_3 + seed))
    return _avalanche_64(seed ^ _FLIP_EMPTY)


@inlined
def _up_to_240(address: int, length: int, secret: int, seed: Any) -> Any:
    total = np.uint64(length) * _PRIME64_1
    if length > 128:
        for block in range(8):
            total += _mix_16(address + 16 * block, secret + 16 * block, seed)
        total = _avalanche(total)
        for block in range(8, length // 16):
            total += _mix_16(address + 16 * block, secret + 16 * (block - 8) + 3, seed)
        return _avalanche(total + _mix_16(address + length - 16, secret + 136 - 17, seed))
    for step in range((length - 1) // 32, -1, -1):
        total += _mix_16(address + 16 * step, secret + 32 * step, seed)
        total += _mix_16(address + length - 16 * (step + 1), secret + 32 * step + 16, seed)
    return _avalanche(total)


def _eight_words() -> Any:
    return ir.VectorType(ir.IntType(64), 8)


@functools.cache
def _lanes() -> Any:
    """Eight 64-bit lanes in vector registers; lives only inside a kernel."""
    return compiler.held_in_registers("lamina.Lanes8x64", _eight_words())


def _eight(value: int) -> Any:
    return ir.Constant(_eight_words(), [value] * 8)


def _load_eight(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _eight_words().as_pointer()), align=1)


@instruction
def _first_lanes(typing_context: Any) -> Any:
    """The lanes before the first stripe."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_eight_words(), [int(prime) for prime in _FIRST_LANES])

    return _lanes()(), generate


@instruction
def _accumulate(typing_context: Any, lanes: Any, address: Any, secret: Any) -> Any:
    """Mixes one stripe of 64 bytes into the lanes; each value also goes to its neighbour."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        before, stripe, key = arguments
        value = _load_eight(builder, stripe)
        keyed = builder.xor(value, _load_eight(builder, key))
        order = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])
        swapped = builder.shuffle_vector(value, value, order)
        low = builder.and_(keyed, _eight(0xFFFFFFFF))
        product = builder.mul(low, builder.lshr(keyed, _eight(32)))
        return builder.add(builder.add(before, swapped), product)

    return _lanes()(_lanes(), types.int64, types.int64), generate


@instruction
def _scramble(typing_context: Any, lanes: Any, secret: Any) -> Any:
    """Stirs the lanes after every sixteenth stripe."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        before, key = arguments
        mixed = builder.xor(before, builder.lshr(before, _eight(47)))
        mixed = builder.xor(mixed, _load_eight(builder, key))
        return builder.mul(mixed, _eight(int(_PRIME32_1)))

    return _lanes()(_lanes(), types.int64), generate


def _lane_of(index: int) -> Any:
    @instruction
    def lane(typing_context: Any, lanes: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.extract_element(arguments[0], ir.Constant(ir.IntType(32), index))

        return types.uint64(_lanes()), generate

    return lane


_lane_0, _lane_1, _lane_2, _lane_3, _lane_4, _lane_5, _lane_6, _lane_7 = map(_lane_of, range(8))


# Interpreted, the lanes are an array of eight words.
def _eight_at(address: int) -> Any:
    return np.frombuffer(ctypes.string_at(int(address), 64), dtype=np.uint64)


def _accumulated(lanes: Any, address: int, secret: int) -> Any:
    value = _eight_at(address)
    keyed = value ^ _eight_at(secret)
    product = (keyed & np.uint64(0xFFFFFFFF)) * (keyed >> np.uint64(32))
    return lanes + value[[1, 0, 3, 2, 5, 4, 7, 6]] + product


def _scrambled(lanes: Any, secret: int) -> Any:
    return (lanes ^ (lanes >> np.uint64(47)) ^ _eight_at(secret)) * _PRIME32_1


in_python(_first_lanes, lambda: np.array(_FIRST_LANES, dtype=np.uint64))
in_python(_accumulate, _accumulated)
in_python(_scramble, _scrambled)
for _index, _lane in enumerate(
    (_lane_0, _lane_1, _lane_2, _lane_3, _lane_4, _lane_5, _lane_6, _lane_7)
):
    in_python(_lane, operator.itemgetter(_index))


@inlined
def _merge(first: Any, second: Any, secret: int) -> Any:
    return _multiply_fold(first ^ peek_u64(secret), second ^ peek_u64(secret + 8))


@inlined
def _long(address: int, length: int, secret: int) -> Any:
    lanes = _first_lanes()
    stripes = (length - 1) // 64
    for stripe in range(stripes):
        step = stripe & 15
        lanes = _accumulate(lanes, address + 64 * stripe, secret + 8 * step)
        if step == 15:
            lanes = _scramble(lanes, secret + 128)
    lanes = _accumulate(lanes, address + length - 64, secret + 192 - 64 - 7)
    total = np.uint64(length) * _PRIME64_1
    total += _merge(_lane_0(lanes), _lane_1(lanes), secret + 11)
    total += _merge(_lane_2(lanes), _lane_3(lanes), secret + 27)
    total += _merge(_lane_4(lanes), _lane_5(lanes), secret + 43)
    total += _merge(_lane_6(lanes), _lane_7(lanes), secret + 59)
    return _avalanche(total)


@kernel
def _long_seeded(address: int, length: int, seed: Any) -> Any:
    """Not inlined: rare, and it allocates the secret that belongs to the seed."""
    words = np.empty(24, dtype=np.uint64)
    default = address_of(_SECRET)
    for pair in range(12):
        words[2 * pair] = peek_u64(default + 16 * pair) + seed
        words[2 * pair + 1] = peek_u64(default + 16 * pair + 8) - seed
    total = _long(address, length, address_of(words))
    words[0] = total  # an address keeps nothing alive: without a later use the words are freed
    return total


@inlined
def xxh3(address: int, length: int, seed: Any) -> Any:
    """XXH3-64 of the bytes at an address; the seed is a uint64."""
    if length <= 16:
        return _up_to_16(address, length, seed)
    if length <= 240:
        return _up_to_240(address, length, address_of(_SECRET), seed)
    if seed == np.uint64(0):
        return _long(address, length, address_of(_SECRET))
    return _long_seeded(address, length, seed)


@kernel_at_once(rows_within)
def _xxh3_of(data: NDArray[np.uint8], seed: Any) -> Any:
    return xxh3(address_of(data), len(data), seed)


def xxh3_of(buffer: Buffer, seed: int = 0) -> int:
    """Returns the XXH3-64 of a buffer."""
    return int(_xxh3_of(as_bytes(buffer), np.uint64(seed)))
