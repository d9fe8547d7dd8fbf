"""Threads of a pool that lead for requests which have none: of tasks, or of those who do not wait.

    appoint ──▶ unclaimed ──find_thread──▶ lent ──claims──▶ led: by the first thread that asks

Rules.
1. A token is led for once: a pool that could start no further thread may still run what it was
   given, on one that it has, after the caller has taken over.
2. Whoever appoints finds a thread. If it is cut off before that, whoever cleans up does (`again`):
   a leader without a thread would keep the tail for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor

from lamina.log.requests import Signal


class Lending:
    """The leaders of one writer that have no thread of their own: at most one at a time."""

    def __init__(self, signal: Signal, executor: Executor, lead: Callable[[object], None]) -> None:
        self._mutex, self._executor, self._lead = signal.mutex, executor, lead
        self._unclaimed: object | None = None

    def appoint(self) -> object:
        """Returns a new leader, for which a thread is to be found. The caller holds the mutex."""
        self._unclaimed = token = object()
        return token

    def claims(self, token: object) -> bool:
        """Returns whether the calling thread is the one that leads."""
        with self._mutex:
            if self._unclaimed is not token:
                return False
            self._unclaimed = None
            return True

    def find_thread(self, token: object) -> None:
        """Has a thread of the pool lead, or the caller's if the pool is shut down."""
        if not self.is_lent(token):
            self._lead(token)

    def is_lent(self, token: object) -> bool:
        """Has a thread of the pool lead; returns False if there is none."""
        with contextlib.suppress(RuntimeError, MemoryError):  # shut down; no thread can be started
            self._executor.submit(self._lead, token)
            return True
        return False

    def again(self) -> None:
        """Finds a thread for a leader that may have none. Once more does no harm."""
        token = self._unclaimed  # read once: a thread may claim it meanwhile
        if token is not None:
            self.find_thread(token)
