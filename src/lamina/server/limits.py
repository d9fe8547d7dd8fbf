"""How much the server takes on: bytes at work, calls at work, calls a second.

Whoever comes beyond a limit is answered at once with Busy and a hint when to come back; nobody
waits inside the server for room.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from lamina.config import NO_LIMIT
from lamina.errors import Busy, InvalidRequest
from lamina.received import Announced

RETRY_AFTER_S = 0.2
HURRY_S = 0.1
"""How often a wait looks whether it is to be cut short."""
SPARE_PART = 4
"""What can be done without is done up to this part of a limit."""
HEAD_BYTES = 64 << 10
"""What a message may hold beside the bytes of its records: an order, a schema, paddings."""
JSON_FACTOR = 8
"""How many bytes a byte of JSON counts for while it comes: about what its objects take."""
_STEP_BYTES = 1 << 20
_TEXT_COST, _CONTAINER_COST, _PART_COST = 3, 216, 72
"""Bytes: of a dict or list, of a small object and its place; measured with what is made of them."""


class Allowance:
    """So much of something at once, for all clients together."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._lock = threading.RLock()  # a scan that is given up gives back in whatever thread
        self._settled = threading.Condition(self._lock)
        self.used = 0

    @property
    def limit(self) -> int:
        """How much there may be at once."""
        return self._limit

    def resize(self, limit: int) -> None:
        """Changes the limit; what is taken stays taken."""
        with self._lock:
            self._limit = limit

    def take(self, amount: int = 1, held: int = 0) -> None:
        """Takes an amount, to be given back; raises Busy where there is no room.

        What could never fit is let in alone: where nothing is taken but what it has itself `held`.
        """
        with self._lock:
            if amount and self.used > held and self.used + amount > self._limit:
                raise Busy(
                    f"the server is at its limit of {self._limit} {self._what}", RETRY_AFTER_S
                )
            self.used += amount

    def take_up_to(self, wanted: int, least: int) -> int:
        """Takes what there is room for; returns how much. Raises Busy if not even the least is."""
        with self._lock:
            granted = max(least, min(wanted, self._limit - self.used))
            self.take(granted)
        return granted

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

    def wait_until_unused(
        self, timeout_s: float, is_hurried: Callable[[], bool] = lambda: False
    ) -> bool:
        """Waits until nothing is taken any more; False when the time is up or is cut short."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self.used and not is_hurried():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._settled.wait(min(left_s, HURRY_S))
            return self.used == 0


class Rate:
    """So many calls a second for each key, with bursts of as many as one second allows."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: dict[str, tuple[float, float]] = {}

    def change(self, per_second: int) -> None:
        """Changes how many calls a second there may be."""
        with self._lock:
            self._per_second = per_second
            self._levels.clear()

    def spend(self, who: str) -> None:
        """Counts a call; raises Busy when it comes too early."""
        if self._per_second == NO_LIMIT:
            return
        now = self._clock()
        with self._lock:
            if self._per_second == NO_LIMIT:  # changed in the meantime
                return
            level, at = self._levels.get(who, (float(self._per_second), now))
            level = min(float(self._per_second), level + (now - at) * self._per_second)
            if level < 1:
                self._levels[who] = level, now
                pause_s = (1 - level) / self._per_second
                raise Busy(f"more than {self._per_second} calls a second", pause_s)
            self._levels[who] = level - 1, now


def check_json(data: bytes, limit: int) -> int:
    """Returns about how many bytes the objects of a JSON text will take, before any is made.

    Each object and list costs, each part of one, and the text itself a few times over. Raises
    InvalidRequest for a text that is all small parts.
    """
    containers, parts = data.count(b"{") + data.count(b"["), data.count(b",")
    cost = _cost(len(data), containers, parts)
    if cost > limit * JSON_FACTOR:  # much of it may lie in strings, which are cheap
        cost = _cost(len(data), *_outside_strings(data))
    if cost > limit * JSON_FACTOR:
        raise InvalidRequest(
            f"{len(data)} bytes of JSON have so many parts that they would take {cost} bytes of"
            f" memory; at most {limit * JSON_FACTOR} are allowed: send it in parts"
        )
    return cost


def _cost(size: int, containers: int, parts: int) -> int:
    return size * _TEXT_COST + containers * _CONTAINER_COST + (containers + parts) * _PART_COST


def _outside_strings(data: bytes) -> tuple[int, int]:
    """Counts what begins an object or list, and commas, without those of strings."""
    plain = np.frombuffer(data.replace(b"\\\\", b"").replace(b'\\"', b""), dtype=np.uint8)
    containers = parts = 0
    inside = False
    for start in range(0, len(plain), _STEP_BYTES):
        some = plain[start : start + _STEP_BYTES]
        quoted = np.logical_xor.accumulate(some == ord('"')) ^ inside
        inside = bool(quoted[-1])
        left = some[~quoted]
        containers += int(np.count_nonzero((left == ord("{")) | (left == ord("["))))
        parts += int(np.count_nonzero(left == ord(",")))
    return containers, parts


def check_size(size_bytes: int, limit: int) -> None:
    """Refuses a request that is larger than the server takes, with what lies around its records."""
    if size_bytes > limit + HEAD_BYTES:
        raise InvalidRequest(
            f"a request of {size_bytes} bytes is over max.request.bytes {limit}; send it in parts"
        )


def take_unpacked(inflight: Allowance, arrived: Announced, held: int, limit: int) -> int:
    """Takes the room of what is made beside the bytes that came; returns how much."""
    check_size(arrived.size_bytes, limit)
    more = arrived.size_bytes if arrived.is_compressed else 0
    inflight.take(more, held)
    return more
