"""Conversions between numbers as the bits that lie in memory, inside kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from lamina.formats.kernels.compile import instruction

_WORD, _HALF = ir.IntType(64), ir.IntType(32)


def _converted(convert: Callable[[Any, Any], Any]) -> Callable[[int], int]:
    @instruction
    def conversion(typing_context: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return convert(builder, arguments[0])

        return types.int64(types.int64), generate

    return conversion


def _double_of_float(builder: Any, bits: Any) -> Any:
    single = builder.bitcast(builder.trunc(bits, _HALF), ir.FloatType())
    return builder.bitcast(builder.fpext(single, ir.DoubleType()), _WORD)


def _double_of_int(builder: Any, number: Any) -> Any:
    return builder.bitcast(builder.sitofp(number, ir.DoubleType()), _WORD)


def _float_of_int(builder: Any, number: Any) -> Any:
    bits = builder.bitcast(builder.sitofp(number, ir.FloatType()), _HALF)
    return builder.zext(bits, _WORD)


double_of_float = _converted(_double_of_float)
"""The bits of a double, from those of a float."""
double_of_int = _converted(_double_of_int)
"""The bits of a double, from an integer."""
float_of_int = _converted(_float_of_int)
"""The bits of a float, from an integer."""
