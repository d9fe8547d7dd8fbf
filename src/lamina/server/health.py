"""What is wrong with a server that serves: told in /health, while calls that can be answered are.

failed write or fsync, read-only disk   the partition and the error    reading, other partitions
  the same of a group's journal         the group and the error        everything but its acks
full disk                   the refused append, until one succeeds    reading, trimming
little free space           how much there is; a warning first        everything, for now
object store down           the archive's last error, until it works  appending, local reading
clock that jumped           by how much, while it is off              everything
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from lamina.errors import LaminaError
from lamina.server.auth import Caller
from lamina.server.disk_watch import OK, SHORT, DiskWatch
from lamina.server.log_lines import told
from lamina.server.setting_table import ServerSettings
from lamina.storage.files import boot_clock_ms
from lamina.store.store import Store

_log = logging.getLogger("lamina.server")

JUMP_S = 60.0


def _since_boot_s() -> float:
    return boot_clock_ms() / 1000


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


def progress_of(
    store: Store | None, recovered: tuple[int, int], compiled: tuple[int, int]
) -> dict[str, Any]:
    """Returns how far kernels and recovery are, each told as (done, of how many)."""
    report = store.recovery_report if store is not None else None
    return {
        "compiled_percent": 100 * compiled[0] // compiled[1] if compiled[1] else 100,
        "recovered_partitions": recovered[1] if report else recovered[0],
        "partitions": recovered[1],
        "recovery_ms": report.milliseconds if report else None,
    }


class Condition:
    """How a server is: its disk, its clock, and whether the last append found room."""

    def __init__(self, disk: DiskWatch) -> None:
        self.disk = disk
        self.clock = WallClock()
        self._full: str | None = None

    def note_full(self, why: str) -> None:
        """Notes an append that found no room; the first of them is logged."""
        if self._full is None:
            _log.error("the disk is full: %s", why, extra=told("disk", level="full"))
        self._full = why

    def note_room(self) -> None:
        """Notes an append that was stored."""
        if self._full is not None:
            _log.info("appends find room again", extra=told("disk", level="ok"))
            self._full = None

    def readiness(
        self, settings: ServerSettings, is_there: bool, is_stopping: bool
    ) -> dict[str, Any]:
        """Returns whether calls are answered: there is what answers them, and there is room."""
        has_room = self.disk.is_ready(settings)
        told = {"ready": is_there and not is_stopping and has_room, "stopping": is_stopping}
        return told | ({} if has_room else {"short_of_space": True})

    def told(
        self, store: Store | None, settings: ServerSettings, caller: Caller | None
    ) -> dict[str, Any]:
        """Returns what is wrong, and what will be; a caller without a key learns only whether."""
        prefix = caller.prefix if caller is not None else ""
        problems: list[str] = []
        warnings: list[str] = []
        if store is not None:
            problems += problems_of(store, self.clock, prefix)
        level = self.disk.level(settings)
        if self._full is not None:
            problems.append("the disk is full" if prefix else self._full)
        elif level != OK:
            text = "the disk is getting full"
            text = text if prefix else f"{text}: {self.disk.described(settings)}"
            (problems if level == SHORT else warnings).append(text)
        found: dict[str, Any] = {
            "status": "degraded" if problems else "ok",
            "problems": [],
            "warnings": [],
        }
        return found if caller is None else found | {"problems": problems, "warnings": warnings}
