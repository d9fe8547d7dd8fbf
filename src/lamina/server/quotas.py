"""Bytes per second and key: what a key may append and what it may fetch.

A key that has spent more than it may is in debt, and pays with time: its next call is `Busy` until
the debt is paid (Flight, HTTP), or its answer says how long and its connection is not read for as
long (Kafka). A single call may cost more than a second's worth: it is let in whole, or a large
batch could never pass, and the debt is what makes the average right.

    level ──spend──▶ below zero: in debt ──time──▶ up to one second's worth

Rules.
1. Only a call in debt is refused; the bytes of a refused call cost nothing.
2. What was not used for a second is not kept for later.
3. As many levels are kept as there are keys; a key that is gone leaves nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from lamina.config import NO_LIMIT
from lamina.errors import Busy
from lamina.server.auth import AS_SETTING, Caller
from lamina.server.setting_table import ServerSettings

PRODUCE, FETCH = "produce", "fetch"


class ByteQuota:
    """So many bytes per second for each key, in one direction."""

    def __init__(
        self, direction: str, per_second: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._direction = direction
        self._attribute = f"{direction}_bytes"
        self.per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: dict[str, tuple[float, float]] = {}
        self.refused = 0
        """How many calls were told to come back."""
        self.delayed_ms = 0
        """For how long Kafka clients were not read."""

    def limit_of(self, caller: Caller) -> int:
        """Returns what a key may move per second, -1 for any."""
        own: int = getattr(caller, self._attribute)
        return self.per_second if own == AS_SETTING else own

    def admit(self, caller: Caller, size_bytes: int = 0) -> None:
        """Lets a call in that moves so many bytes, or raises Busy while its key is in debt."""
        limit = self.limit_of(caller)
        if limit == NO_LIMIT:
            return
        with self._lock:
            level, now = self._level(caller.name, limit)
            if level < 0:
                self._levels[caller.name] = level, now
                self.refused += 1
                raise Busy(
                    f"key {caller.name} may {self._direction} {limit} bytes a second",
                    -level / limit,
                )
            self._levels[caller.name] = level - size_bytes, now

    def charge(self, caller: Caller, size_bytes: int) -> float:
        """Counts what was moved; returns for how many seconds the key is in debt now."""
        limit = self.limit_of(caller)
        if limit == NO_LIMIT:
            return 0.0
        with self._lock:
            level, now = self._level(caller.name, limit)
            self._levels[caller.name] = level - size_bytes, now
            return max(0.0, (size_bytes - level) / limit)

    def is_in_debt(self, caller: Caller) -> bool:
        """Returns whether the next call would be refused."""
        limit = self.limit_of(caller)
        if limit == NO_LIMIT:
            return False
        with self._lock:
            return self._level(caller.name, limit)[0] < 0

    def keep_only(self, names: Collection[str]) -> None:
        """Forgets the levels of keys that are gone."""
        with self._lock:
            self._levels = {name: each for name, each in self._levels.items() if name in names}

    def _level(self, name: str, limit: int) -> tuple[float, float]:
        now = self._clock()
        level, at = self._levels.get(name, (float(limit), now))
        return min(float(limit), level + (now - at) * limit), now


class ByteQuotas:
    """Both directions."""

    def __init__(
        self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.produce = ByteQuota(PRODUCE, settings.quota_produce_bytes, clock)
        self.fetch = ByteQuota(FETCH, settings.quota_fetch_bytes, clock)

    def renew(self, settings: ServerSettings, names: Collection[str]) -> None:
        """Takes on settings that were reloaded, and the keys that there are now."""
        self.produce.per_second = settings.quota_produce_bytes
        self.fetch.per_second = settings.quota_fetch_bytes
        for each in (self.produce, self.fetch):
            each.keep_only(names)
