"""Runs a kernel as the Python that it is, while no machine code of it is there yet.

A kernel is Python source that Numba can compile. Interpreting that same source needs only what is
not Python in it: the instructions that `binary`, `crc`, `xxh3` and `arrow` generate by hand. Each
of those brings a plain version of itself (`in_python`), and the rest is read as it stands. So there
is one description of every format, and what serves the first requests on a new machine cannot
drift away from what serves the others.

Rules.
1. Interpreted and compiled kernels fill the same arrays and return the same numbers, for every
   input: `tests/formats/test_interpret.py` compares them.
2. Integers of Python do not wrap; casts and sums of NumPy's fixed-width integers do, as they do in
   machine code. Plain versions therefore take and return plain integers within 64 bits.
3. Interpreting is slow: microseconds for what takes nanoseconds. `first_use` decides when it pays.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np

_WORD = 1 << 64


class Source:
    """What there is to interpret: a function as it is written, and its plain version if any."""

    def __init__(self, function: Callable[..., Any] | None, *, is_helper: bool) -> None:
        self.function = function
        self.is_helper = is_helper
        self.plain: Callable[..., Any] | None = None
        self.interpreted: Callable[..., Any] | None = None
        self.is_whole = False


_KNOWN: dict[int, tuple[Any, Source]] = {}
"""By identity, with the object itself so that the identity stays its own."""


def know(named: Any, source: Source) -> None:
    """Notes what is interpreted where kernels name something."""
    _KNOWN[id(named)] = named, source


def in_python(original: Any, plain: Callable[..., Any]) -> None:
    """Names the plain version of an instruction, or of a helper that is quicker written plainly."""
    _KNOWN[id(original)][1].plain = plain


def interpreted(kernel: Any) -> Callable[..., Any]:
    """Returns a kernel, or a helper of kernels, as a function that runs without being compiled."""
    source = _KNOWN[id(kernel)][1]
    if not source.is_whole:
        with _building:
            _build(source)
    assert source.interpreted is not None
    return source.interpreted


_building = threading.RLock()


def _build(source: Source) -> None:
    """Makes a function whose names mean what they mean to an interpreter; once, in one thread."""
    if source.interpreted is not None:
        return
    function = source.function
    assert function is not None, "an instruction has no source: it needs a plain version"
    scope: dict[str, Any] = {"__builtins__": __builtins__}
    made = types.FunctionType(function.__code__, scope, function.__name__)
    source.interpreted = made if source.is_helper else _wrapping(made)
    # Only now: among its names may be its own, as a helper's or as somebody's attribute.
    for name in function.__code__.co_names:
        if name in function.__globals__:
            scope[name] = _plain(function.__globals__[name])
    source.is_whole = True


def _wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has sums of fixed-width integers wrap in silence, as they do in machine code."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        with np.errstate(over="ignore"):
            return function(*arguments)

    return run


def _plain(value: Any) -> Any:
    """Returns what a name means to an interpreted kernel."""
    if id(value) in _KNOWN:
        return _KNOWN[id(value)][1].plain or interpreted(value)
    if value is np:
        return _WRAPPING
    if isinstance(value, types.ModuleType) and value.__name__.startswith("lamina."):
        return _PlainModule(value)
    return value


class _PlainModule:
    """A module of kernels' helpers, whose names mean what they mean to an interpreted kernel."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = _plain(getattr(self._module, name))
        setattr(self, name, value)
        return value


def signed(value: int) -> int:
    """Returns what 64 bits mean as a signed integer."""
    value = int(value) % _WORD
    return value - _WORD if value >> 63 else value


class _Cast:
    """A type of NumPy's as kernels see it: a cast cuts bits off and never raises."""

    def __init__(self, kind: type[np.integer[Any]]) -> None:
        self.dtype = np.dtype(kind)  # arrays can be made of it
        self._kind = kind
        self._bits = 8 * self.dtype.itemsize

    def __call__(self, value: Any) -> Any:
        cut = int(value) & (1 << self._bits) - 1
        return self._kind(signed(cut) if self._kind is np.int64 else cut)


class _WrappingNumpy:
    """NumPy as kernels see it."""

    int64, uint64 = _Cast(np.int64), _Cast(np.uint64)
    uint32, uint8 = _Cast(np.uint32), _Cast(np.uint8)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


_WRAPPING = _WrappingNumpy()
