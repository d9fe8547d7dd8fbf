"""Conversions between numbers as the bits that lie in memory, inside kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lamina.formats.kernels.declare import instruction, late

ir, types = late("llvmlite.ir"), late("numba.types")


def _converted(convert: Callable[[Any, Any], Any]) -> Callable[[int], int]:
    @instruction
    def conversion(typing_context: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return convert(builder, arguments[0])

        return types.int64(types.int64), generate

    return conversion


def _double_of_float(builder: Any, bits: Any) -> Any:
    single = builder.bitcast(builder.trunc(bits, ir.IntType(32)), ir.FloatType())
    return builder.bitcast(builder.fpext(single, ir.DoubleType()), ir.IntType(64))


def _double_of_int(builder: Any, number: Any) -> Any:
    return builder.bitcast(builder.sitofp(number, ir.DoubleType()), ir.IntType(64))


def _float_of_int(builder: Any, number: Any) -> Any:
    bits = builder.bitcast(builder.sitofp(number, ir.FloatType()), ir.IntType(32))
    return builder.zext(bits, ir.IntType(64))


def _scaled(scale: Callable[[Any, Any, Any], Any]) -> Callable[[int, int], int]:
    @instruction
    def scaling(typing_context: Any, number: Any, factor: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            both = (builder.sitofp(each, ir.DoubleType()) for each in arguments)
            return builder.bitcast(scale(builder, *both), ir.IntType(64))

        return types.int64(types.int64, types.int64), generate

    return scaling


def _float_of_double(builder: Any, bits: Any) -> Any:
    single = builder.fptrunc(builder.bitcast(bits, ir.DoubleType()), ir.FloatType())
    return builder.zext(builder.bitcast(single, ir.IntType(32)), ir.IntType(64))


double_of_float = _converted(_double_of_float)
"""The bits of a double, from those of a float."""
double_of_int = _converted(_double_of_int)
"""The bits of a double, from an integer."""
float_of_int = _converted(_float_of_int)
"""The bits of a float, from an integer."""
float_of_double = _converted(_float_of_double)
"""The bits of a float, from those of a double: the nearest one."""
quotient = _scaled(lambda builder, number, divisor: builder.fdiv(number, divisor))
"""The bits of the double that is nearest to the quotient of two integers that doubles hold."""
product = _scaled(lambda builder, number, factor: builder.fmul(number, factor))
"""The bits of the double that is nearest to the product of two integers that doubles hold."""
