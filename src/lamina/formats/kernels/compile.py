"""Turns a Python function into a machine-code kernel: the one place that configures Numba.

Every kernel runs without the GIL and is compiled once per machine: the result is cached on disk.
Importing this module makes whatever was declared; `declare` does so when that is needed.

Rules.
1. Kernels here call helpers in other files of this package, so compiled code is kept under a digest
   of the whole package: editing any helper recompiles every kernel that might have inlined it.
2. A kernel never allocates by what its input claims, and never raises: it returns a code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import sys
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import llvmlite.binding
import numba
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps
from numba.extending import intrinsic, models, register_model

from lamina.formats.kernels.compile_notice import compiling
from lamina.formats.kernels.declare import Declared, Role, settle
from lamina.formats.kernels.first_use import answer_at_once
from lamina.storage.kernel_cache import KernelCache


def _sources(folder: Traversable) -> list[Traversable]:
    found: list[Traversable] = []
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            found += _sources(entry)
        elif entry.name.endswith(".py"):
            found.append(entry)
    return found


def source_digest() -> str:
    """Returns a digest of every source file of `lamina.formats`."""
    digest = hashlib.sha256()
    for source in _sources(files("lamina.formats")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


_TOOLS = (sys.version, numba.__version__, llvmlite.__version__)
CACHE = KernelCache(source_digest())
"""Compiled kernels of this version of the source."""


def machine_name() -> str:
    """Returns a name of what kernels are compiled for: the processor and the tools."""
    target = (*cpu_target.target_context.codegen().magic_tuple(), *_TOOLS)
    return hashlib.blake2b(repr(target).encode(), digest_size=16).hexdigest()


@functools.cache
def _source_of(module: str) -> str:
    """Returns the source of a module outside of this package, which the package's digest misses."""
    if module.startswith("lamina.formats."):
        return ""
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        return ""


def target_has(feature: str) -> bool:
    """Returns whether the processor that Numba compiles for has a feature, by LLVM's name."""
    if numba.config.CPU_NAME is not None or numba.config.CPU_FEATURES is not None:
        return f"+{feature}" in (numba.config.CPU_FEATURES or "").split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get(feature, False))


def held_in_registers(name: str, shape: Any) -> Any:
    """Returns a type of Numba's for a value of LLVM's that lives only inside a kernel."""

    class Held(numba.types.Type):  # type: ignore[misc]  # numba has no type information
        def __init__(self) -> None:
            super().__init__(name=name)

    @register_model(Held)
    class _HeldModel(models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, held_type: Any) -> None:
            super().__init__(manager, held_type, shape)

    return Held()


class _Kept(_Cache):  # type: ignore[misc]  # numba has no type information
    """What Numba asks for compiled code of one function; answers come from the kernel cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @property
    def cache_path(self) -> str | None:
        return CACHE.directory()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Loads machine code, without what only compiling needs: that costs a start half a second.

        Numba prepares for compiling here (all that it can type and lower); a compiler does so
        again for itself. Machine code needs the runtime alone.
        """
        rtsys.initialize(target_context)
        name = self._name(signature, target_context.codegen())
        kept = CACHE.load(name)
        if kept is not None:
            try:
                return CompileResult._rebuild(target_context, *pickle.loads(kept))  # noqa: S301
            except Exception:  # whatever it is: made by another Numba, say; compiling mends it
                CACHE.forget(name)
        self.announce()
        return None

    def has(self, signature: Any, target_context: Any) -> bool:
        """Whether there is machine code for a signature that nobody has to compile."""
        return CACHE.load(self._name(signature, target_context.codegen())) is not None

    def announce(self) -> None:
        """Notifies those who want to know that somebody waits for the compiler."""
        compiling(CACHE.announce)

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keeps machine code for the next process."""
        if not any(not each.can_cache for each in result.lifted):
            CACHE.save(self._name(signature, result.codegen), dumps(result._reduce()))

    def enable(self) -> None:
        """Does nothing: it is always on."""

    def disable(self) -> None:
        """Does nothing: it is always on."""

    def flush(self) -> None:
        """Does nothing: kernels of other versions have other names."""

    def _name(self, signature: Any, codegen: Any) -> str:
        code = self._function.__code__
        source = _source_of(self._function.__module__)
        asked = (str(signature), codegen.magic_tuple(), code.co_code, source, _TOOLS)
        digest = hashlib.blake2b(repr(asked).encode(), digest_size=16).hexdigest()
        where = f"{self._function.__module__}.{self._function.__qualname__}"
        return f"{where.removeprefix('lamina.formats.').replace('<', '').replace('>', '')}-{digest}"


def _compiled(declared: Declared) -> Any:
    dispatcher = numba.njit(nogil=True, error_model="numpy")(declared.function)
    dispatcher._cache = _Kept(declared.function)
    if declared.rows is not None:
        answer_at_once(dispatcher, declared.rows)
    return dispatcher


def _inlined(declared: Declared) -> Any:
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(declared.function)


def _chosen(declared: Declared) -> Any:
    choice = declared.function()
    return choice.made if isinstance(choice, Declared) else choice


_MAKERS: dict[Role, Callable[[Declared], Any]] = {
    Role.KERNEL: _compiled,
    Role.INLINED: _inlined,
    Role.INSTRUCTION: lambda declared: intrinsic(declared.function),
    Role.CHOICE: _chosen,
}


def _make(declared: Declared) -> Any:
    return _MAKERS[declared.role](declared)


def _type_of(declared: Declared) -> Any:
    return cpu_target.typing_context.resolve_value_type(declared.made)


settle(_make, _type_of)
