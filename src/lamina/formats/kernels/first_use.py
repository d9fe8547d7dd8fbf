"""Answers the first calls of a kernel at once: interpreted, while the compiler works behind them.

On a machine that has never compiled them, five kernels stand between a program and its first
durable record, and a compiler takes a second or more for each. So a kernel that says which calls
are small does not wait for it:

    call ─ machine code in memory or in the cache? ─ yes ─▶ run it, and never ask again
                     │ no
                     ├─ a large call ─▶ compile now: interpreting would take longer
                     └─ a small one ──▶ interpret it; after `DELAY_S` a thread compiles in the
                                        background, and later calls find machine code

Rules.
1. Once there is machine code a call costs what it always did: the dispatcher becomes one of Numba's
   own class again.
2. What fails in the background is not hidden: the next call compiles for itself, and raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from numba.core.registry import CPUDispatcher

from lamina.formats.kernels.call_size import SMALL_CALL_ROWS
from lamina.formats.kernels.compile_notice import unnoticed
from lamina.formats.kernels.declare import COMPILER, load
from lamina.formats.kernels.interpret import interpreted


class Pending(CPUDispatcher):  # type: ignore[misc]  # numba has no type information
    """A kernel without machine code so far."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        """Answers by machine code where there is some, or where waiting for it pays."""
        kinds = tuple(self.typeof_pyval(each) for each in arguments)
        if self._cache.has(kinds, self.targetctx):
            settle(self, kinds)
        elif _patience.is_asked or self._rows(*arguments) > SMALL_CALL_ROWS:
            self._cache.announce()  # before the wait: another kernel may be on its way
            settle(self, kinds)
        else:
            COMPILER.want((id(self), kinds), partial(_settle_later, self, kinds))
            return interpreted(self)(*arguments)
        return self(*arguments)


class _Patience:
    """Whether everybody waits for the compiler, as `lamina warm` does."""

    is_asked = False


_patience = _Patience()


@contextlib.contextmanager
def compiled_first() -> Iterator[None]:
    """Within this, every call waits for machine code: for those that want kernels to be there."""
    load()
    before, _patience.is_asked = _patience.is_asked, True
    try:
        yield
    finally:
        _patience.is_asked = before


def answer_at_once(dispatcher: Any, rows: Callable[..., int]) -> None:
    """Has small calls of a kernel answered before it is compiled."""
    dispatcher._rows = rows
    dispatcher.__class__ = Pending


def settle(dispatcher: Any, kinds: tuple[Any, ...]) -> None:
    """Loads or compiles machine code, and makes the kernel one of Numba's again."""
    with COMPILER.lock:
        dispatcher.compile(kinds)
    dispatcher.__class__ = CPUDispatcher


def _settle_later(dispatcher: Any, kinds: tuple[Any, ...]) -> None:
    try:
        with unnoticed():
            settle(dispatcher, kinds)
    except Exception:  # the next call compiles for itself, and raises it
        dispatcher.__class__ = CPUDispatcher
