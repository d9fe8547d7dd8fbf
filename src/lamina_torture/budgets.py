"""Budgets of every trial: the threads, descriptors and memory that its cases must give back.

The first cases of a trial warm up what stays with a process: kernels, pools, arenas of allocators.
What the process holds then is the mark; behind the last case it may hold only little more. A case
that leaks one file or thread is told from one that does not after a few dozen cases, so that each
row is a soak of the length that its column gives it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import Counter
from typing import NamedTuple

from lamina_torture.rows import Trial, violated

WARM_CASES = 3
POOLS = "anon_inode"
SETTLED_S = 10.0
"""So long what a case left behind may take to end: threads that are told to, sockets in closing."""


class Held(NamedTuple):
    """What a process holds."""

    threads: int
    descriptors: int
    memory_bytes: int


SPARE = Held(2, 8, 256 << 20)
"""How much more than at the mark a trial may hold at its end."""


def held() -> Held:
    """Counts what this process holds now.

    Left out are the epoll sets and event counters of gRPC's and Arrow's pools, as are their
    threads: how many there are depends on how busy a machine is. A loop of Python's own has sockets
    as well, and is seen by these.
    """
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    kinds = kinds_of_descriptors()
    descriptors = sum(kinds.values()) - kinds[POOLS]
    return Held(own_threads(), descriptors, pages * os.sysconf("SC_PAGE_SIZE"))


def kinds_of_descriptors() -> Counter[str]:
    """Counts the descriptors of this process by what they are: `socket`, `anon_inode`, or a path.

    A budget that is exceeded names them, so that a failure in a thousand cases can be traced.
    """
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            found[target if target.startswith("/") else target.partition("[")[0].rstrip(":")] += 1
    return found


def own_threads() -> int:
    """Counts Python's own threads: those of gRPC's and Arrow's pools stay with the process."""
    return sum(not isinstance(each, threading._DummyThread) for each in threading.enumerate())


def open_below(inside: str) -> list[str]:
    """Lists descriptors and maps of files whose path begins so."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith(inside):
            found.append(path)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found += [line.split()[-1] for line in maps if inside in line]
    return found


class Budget:
    """Watches a trial: takes the mark behind its first cases, and is held against it in the end."""

    def __init__(self, trial: Trial) -> None:
        self.mark: Held | None = None
        self.kinds: Counter[str] = Counter()
        self._left = WARM_CASES
        trial.behind_case = self._count

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            gc.collect()
            self.mark, self.kinds = held(), kinds_of_descriptors()

    def check(self) -> None:
        """Raises a Violation of I12 when more is held than at the mark, and is not let go."""
        if self.mark is None:
            return
        most = Held(*(there + spare for there, spare in zip(self.mark, SPARE, strict=True)))
        deadline = time.monotonic() + SETTLED_S
        while True:
            gc.collect()
            now = held()
            if all(each <= limit for each, limit in zip(now, most, strict=True)):
                return
            if time.monotonic() > deadline:
                more = dict(kinds_of_descriptors() - self.kinds)
                told = f"let go: {now} at the end, {self.mark} behind {WARM_CASES} cases"
                violated("I12", f"{told}; descriptors that are more: {more}")
            time.sleep(0.05)
