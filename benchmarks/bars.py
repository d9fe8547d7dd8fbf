"""What every benchmark shares: timing in interleaved rounds, tables, and the closing bar lines."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A ratio measured in this run, and what it must reach (at least, or at most)."""

    name: str
    measured: float
    wanted: float
    at_most: bool = False

    @property
    def ok(self) -> bool:
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        verdict = "ok" if self.ok else "short"
        return f"bar {self.name} {self.measured:.2f} {sign}{self.wanted:g} {verdict}"


def finish(bars: list[Bar]) -> None:
    """Prints one line a bar and exits 1 if one is short."""
    for bar in bars:
        print(bar)
    sys.exit(0 if all(bar.ok for bar in bars) else 1)


def best_of(
    calls: dict[str, Callable[[], object]], *, rounds: int, repeat: int
) -> dict[str, float]:
    """Times each call in turn, round after round, and keeps its best round: seconds a call.

    Interleaving gives every candidate the same share of a noisy machine's good and bad moments.
    """
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in calls.items():
                started = time.perf_counter()
                for _ in range(repeat):
                    call()
                best[name] = min(best[name], (time.perf_counter() - started) / repeat)
    finally:
        gc.enable()
    return best
