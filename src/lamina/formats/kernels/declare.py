"""Declares kernels, and leaves Numba alone until one is called that is worth loading it.

Loading the compiler takes longer than most commands, of which many look at a few records only:

    @kernel ─▶ Declared ─ an early, small call ─▶ interpreted
                   │
                   └─ any other call ─▶ `compile` is imported, which makes everything that is
                                        declared, and puts it where the declarations were

Rules.
1. What is interpreted before that takes no longer, all in all, than loading the compiler would.
   A program that lives on has it loaded in the background, and never waits for it.
2. Once something is made, a call costs what it always did: modules have the kernel by its name.
   A declaration that somebody still holds passes calls on, and means the same inside a kernel.
3. Modules of kernels name what they need of Numba and LLVM by `late`, and use it inside functions.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, TypeVar, cast

from lamina.formats.kernels.call_size import EARLY_ROWS
from lamina.formats.kernels.interpret import Source, interpreted, know
from lamina.storage.background_work import BackgroundWork

Function = TypeVar("Function", bound=Callable[..., Any])
DELAY_S = 1.0
"""Time for a program's first requests, which a compiler beside them would slow down."""
COMPILER = BackgroundWork("lamina-compiler", DELAY_S)


class Role(Enum):
    """What is to be made of a function."""

    KERNEL = auto()
    INLINED = auto()
    INSTRUCTION = auto()
    CHOICE = auto()


class Declared:
    """A kernel, or what kernels use, as long as nobody has needed the compiler."""

    def __init__(
        self, role: Role, function: Callable[..., Any], rows: Callable[..., int] | None = None
    ) -> None:
        self.role = role
        self.function = function
        self.rows = rows
        self.made: Any = None
        has_source = role in (Role.KERNEL, Role.INLINED)
        self.source = Source(function if has_source else None, is_helper=role is not Role.KERNEL)
        know(self, self.source)

    def __call__(self, *arguments: Any) -> Any:
        """Interprets an early, small call; has everything made for any other."""
        if self.made is None:
            if self.rows is not None and _declarations.spend(self.rows(*arguments)):
                COMPILER.want("load", _load_later)
                return interpreted(self)(*arguments)
            load()
        return self.made(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """What a kernel that names it sees."""
        return _declarations.type_of(self)


class _Declarations:
    """Everything that was declared; afterwards, who makes what is."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: list[Declared] = []
        self._make: Callable[[Declared], Any] | None = None
        self._rows_left = EARLY_ROWS
        self.type_of: Callable[[Declared], Any]

    def spend(self, rows: int) -> bool:
        """Takes from what may be interpreted early; False if not enough of it is left."""
        if rows > self._rows_left:
            return False
        self._rows_left -= rows
        return True

    def add(self, declared: Declared) -> Any:
        """Returns what stands for a function: what was made of it, if that is possible."""
        with self._lock:
            if self._make is None:
                self._waiting.append(declared)
                return declared
            return self._made(declared, self._make)

    def settle(self, make: Callable[[Declared], Any], type_of: Callable[[Declared], Any]) -> None:
        """Makes everything, and puts it where the declarations are."""
        with self._lock:
            self.type_of = type_of
            for declared in self._waiting:
                self._made(declared, make)
            self._make = make
            self._waiting.clear()
        for name, module in list(sys.modules.items()):
            if name.startswith("lamina."):
                _put_in_place(vars(module))

    def _made(self, declared: Declared, make: Callable[[Declared], Any]) -> Any:
        if declared.made is None:
            made = make(declared)
            know(made, declared.source)
            declared.made = made
        return declared.made


_declarations = _Declarations()
settle = _declarations.settle


def _put_in_place(names: dict[str, Any]) -> None:
    """Has the names of a module mean what was made of what they name."""
    for name, value in list(names.items()):
        if type(value) is Declared and value.made is not None:
            names[name] = value.made


def load() -> None:
    """Loads the compiler; every kernel is one of Numba's afterwards."""
    importlib.import_module("lamina.formats.kernels.compile")


def _load_later() -> None:
    with contextlib.suppress(Exception):  # the next call loads it for itself, and raises it
        load()


def kernel(function: Function) -> Function:
    """Compiles a function that Python code calls; cached on disk and free of the GIL."""
    return cast("Function", _declarations.add(Declared(Role.KERNEL, function)))


def kernel_at_once(rows: Callable[..., int]) -> Callable[[Function], Function]:
    """As `kernel`; small calls are answered before it is compiled (`first_use`).

    `rows` takes the arguments of a call and returns about how many rows it is to interpret.
    """

    def decorate(function: Function) -> Function:
        return cast("Function", _declarations.add(Declared(Role.KERNEL, function, rows)))

    return decorate


def inlined(function: Function) -> Function:
    """Compiles a helper that only kernels call; it becomes part of each kernel that calls it."""
    return cast("Function", _declarations.add(Declared(Role.INLINED, function)))


def instruction(generator: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function whose machine code is generated by hand; only kernels can call it."""
    made: Callable[..., Any] = _declarations.add(Declared(Role.INSTRUCTION, generator))
    return made


def chosen(choose: Callable[[], Any]) -> Any:
    """Names one of several helpers, chosen when the compiler is there to say what it is for."""
    return _declarations.add(Declared(Role.CHOICE, choose))


class _Late:
    """A module that is imported when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._name), name)
        setattr(self, name, value)
        return value


def late(name: str) -> Any:
    """Returns a module that is imported when it is first used."""
    return _Late(name)
