"""Work that a program did not ask for and should not wait for: one thread does it, later.

The jobs here are a compiler's (`formats/kernels/first_use.py`). They hold locks of their own for
seconds and cannot be cut off, so two things wait for the job that is running, and for no other:

- the end of the process, for a compiler must not run while its libraries are torn down;
- a fork, for a child that inherits a compiler's lock as taken would wait for it for ever.

Rules.
1. A job is done at most once per key, in the order in which they were asked for.
2. The thread ends when there is nothing to do. In a child process there is neither thread nor work.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable


class BackgroundWork:
    """A thread that starts its first job a little after that was asked for."""

    def __init__(self, name: str, delay_s: float) -> None:
        self._name = name
        self._delay_s = delay_s
        self._begin()
        atexit.register(self.stop)
        os.register_at_fork(
            before=self._hold,
            after_in_parent=self._let_go,
            after_in_child=self._begin,
        )

    def _hold(self) -> None:
        self.lock.acquire()

    def _let_go(self) -> None:
        self.lock.release()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        """Held during each job; whoever does the same work in the foreground takes it, too."""
        self._jobs: deque[Callable[[], None]] = deque()
        self._known: set[Hashable] = set()
        self._has_thread = False
        self._is_over = threading.Event()

    def want(self, key: Hashable, job: Callable[[], None]) -> None:
        """Has a job done, unless one of this key was asked for before. A job raises nothing."""
        if key in self._known or self._is_over.is_set():
            return
        self._known.add(key)
        self._jobs.append(job)
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        over = self._is_over
        over.wait(self._delay_s)
        while self._do_next() and not over.is_set():
            pass

    def _do_next(self) -> bool:
        with self.lock:
            if self._is_over.is_set() or not self._jobs:
                self._has_thread = False  # whoever wants more starts another
                return False
            self._jobs.popleft()()
        return True

    def stop(self) -> None:
        """Waits for the job that is running, if any, and begins no other."""
        self._is_over.set()
        with self.lock:
            pass
