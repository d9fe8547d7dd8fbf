"""How much the server takes on: bytes at work, calls at work, calls a second.

Whoever comes beyond a limit is answered at once with Busy and a hint when to come back; nobody
waits inside the server for room.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from lamina.config import NO_LIMIT
from lamina.errors import Busy, InvalidRequest

RETRY_AFTER_S = 0.2
SPARE_PART = 4
"""What can be done without is done up to this part of a limit."""


class Allowance:
    """So much of something at once, for all clients together."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._lock = threading.RLock()  # a scan that is given up gives back in whatever thread
        self._settled = threading.Condition(self._lock)
        self.used = 0

    def take(self, amount: int = 1) -> None:
        """Takes an amount, to be given back; raises Busy where there is no room.

        What could never fit is let in alone.
        """
        with self._lock:
            if self.used and self.used + amount > self._limit:
                raise Busy(
                    f"the server is at its limit of {self._limit} {self._what}", RETRY_AFTER_S
                )
            self.used += amount

    def take_spare(self, amount: int) -> bool:
        """Takes an amount if most is unused even then: what can be done without is never Busy."""
        with self._lock:
            spare = self.used + amount <= self._limit // SPARE_PART
            self.used += amount if spare else 0
        return spare

    def give_back(self, amount: int = 1) -> None:
        """Gives back what was taken."""
        with self._lock:
            self.used -= amount
            if self.used == 0:
                self._settled.notify_all()

    @contextlib.contextmanager
    def taking(self, amount: int = 1) -> Iterator[None]:
        """Takes an amount for as long as the context lasts."""
        self.take(amount)
        try:
            yield
        finally:
            self.give_back(amount)

    def wait_until_unused(self, timeout_s: float) -> bool:
        """Waits until nothing is taken any more; False when the time is up."""
        with self._lock:
            return self._settled.wait_for(lambda: self.used == 0, timeout_s)


class Rate:
    """So many calls a second for each key, with bursts of as many as one second allows."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: dict[str, tuple[float, float]] = {}

    def spend(self, who: str) -> None:
        """Counts a call; raises Busy when it comes too early."""
        if self._per_second == NO_LIMIT:
            return
        now = self._clock()
        with self._lock:
            level, at = self._levels.get(who, (float(self._per_second), now))
            level = min(float(self._per_second), level + (now - at) * self._per_second)
            if level < 1:
                self._levels[who] = level, now
                pause_s = (1 - level) / self._per_second
                raise Busy(f"more than {self._per_second} calls a second", pause_s)
            self._levels[who] = level - 1, now


def check_size(size_bytes: int, limit: int) -> None:
    """Refuses a request that is larger than the server takes."""
    if size_bytes > limit:
        raise InvalidRequest(
            f"a request of {size_bytes} bytes is over max.request.bytes {limit}; send it in parts"
        )
