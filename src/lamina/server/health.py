"""What is wrong with a server that serves: told in /health, while calls that can be answered are.

failed write or fsync, read-only disk   the partition and the error    reading, other partitions
  the same of a group's journal         the group and the error        everything but its acks
full disk                   the refused append, until one succeeds    reading, trimming
object store down           the archive's last error, until it works  appending, local reading
clock that jumped           by how much, while it is off              everything
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from lamina.errors import LaminaError
from lamina.store.store import Store

JUMP_S = 60.0


def _since_boot_s() -> float:
    """A clock that nobody sets, and that counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WallClock:
    """Compares the clock that people set with one that nobody sets."""

    def __init__(
        self,
        wall_s: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = _since_boot_s,
    ) -> None:
        self._wall_s = wall_s
        self._steady_s = steady_s
        self._apart_s = wall_s() - steady_s()

    def jump_s(self) -> float:
        """By how much the clock has jumped since the start; slow corrections add up, too."""
        return self._wall_s() - self._steady_s() - self._apart_s


def topic_of(failed: str) -> str:
    """Returns the topic of what failed: `t/0`, or `group 'g' of t/0`."""
    return failed.rpartition(" of ")[2].rpartition("/")[0]


def problems_of(store: Store, clock: WallClock, prefix: str = "") -> Iterator[str]:
    """Yields what is wrong with a store, as it is now; of topics, only those of a prefix."""
    for name, why in sorted(store.failures().items()):
        if topic_of(name).startswith(prefix):
            yield f"{name}: {why}"
    try:
        status = store.tier_status()
    except LaminaError:  # it is being closed
        status = []
    for each in status:
        if each.last_error and each.topic.startswith(prefix):
            yield f"the archive of {each.topic}/{each.partition}: {each.last_error}"
    jump_s = clock.jump_s()
    if abs(jump_s) > JUMP_S:
        yield (
            f"the clock jumped by {jump_s:+.0f} s since the start: new records have times, and"
            " retention by age decides, by the clock as it is now"
        )
