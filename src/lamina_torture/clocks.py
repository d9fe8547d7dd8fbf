"""A clock that a row sets: the wall clock jumps, the steady one only goes on.

It stands behind `lamina.storage.files`, where a store takes its time from: there is no other clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from lamina.storage import files
from lamina_torture.promises import NOW_MS


@dataclass
class Clocks:
    """Two clocks: what people call the time, and what has passed."""

    wall_ms: int = NOW_MS
    steady_ms: int = 5_000

    def time_ns(self) -> int:
        """Returns the wall clock's time."""
        return self.wall_ms * 1_000_000

    def monotonic_ns(self) -> int:
        """Returns the steady clock's time."""
        return self.steady_ms * 1_000_000

    def sleep(self, seconds: float) -> None:
        """Waits for real: others need the time."""
        time.sleep(seconds)

    def pass_ms(self, elapsed_ms: int) -> None:
        """Lets time pass on both."""
        self.wall_ms += elapsed_ms
        self.steady_ms += elapsed_ms

    def jump_ms(self, distance_ms: int) -> None:
        """Sets the wall clock; no time passes."""
        self.wall_ms = max(1, self.wall_ms + distance_ms)


@contextlib.contextmanager
def clocks() -> Iterator[Clocks]:
    """Has every store that is opened go by these clocks."""
    made = Clocks()
    with mock.patch.object(files, "time", made):
        yield made
