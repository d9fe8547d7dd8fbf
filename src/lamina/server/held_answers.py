"""An answer on its way to its caller: what it holds, until the last byte of it was taken.

    room ─▶ reserve bytes ─▶ read no more than that ─▶ hold what was read ─▶ sent ─▶ given back

A caller that asks and never reads costs what was made for it, so that counts for as long as it is
there: the door closes an answer when the call is over, not when its handler returns.

Rules.
1. Bytes are reserved before records are read. Whoever is handed out records of a group is never
   told Busy afterwards: their delivery would have been counted.
2. What was handed out and did not leave is given back: its caller cannot know of it.
3. A call that waits for records that are not there reserves little: as much as lets `max.waiting`
   of them wait in a quarter of `max.inflight.bytes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lamina.server import limits
from lamina.server.limits import Allowance
from lamina.server.setting_table import ServerSettings

SLICE_MS = 500
LEAST_BYTES = 64 << 10
"""An answer is made if there is room for so much."""
_Make = Callable[[int, int], pa.RecordBatch]


class Answer:
    """What one call holds. `weight` is how many bytes a byte of records takes on its way out."""

    def __init__(self, inflight: Allowance, *, weight: int = 1) -> None:
        self._inflight = inflight
        self.weight = weight
        self._held = contextlib.ExitStack()
        self._undo: Callable[[], None] | None = None
        self.is_gone: Callable[[], bool] = lambda: False
        """Returns whether the caller has hung up."""

    def hold(self, room: contextlib.AbstractContextManager[Any]) -> None:
        """Takes room for the call, or raises Busy; it is given back with the answer."""
        self._held.enter_context(room)

    def of(self, make: _Make, max_bytes: int, wait_ms: int) -> pa.RecordBatch:
        """Has records made of at most so many bytes, having waited at most so long."""
        wanted = max(1, max_bytes) * self.weight
        granted = self._inflight.take_up_to(wanted, min(wanted, LEAST_BYTES))
        try:
            batch = make(min(max_bytes, max(1, granted // self.weight)), wait_ms)
        except BaseException:
            self._inflight.give_back(granted)
            raise
        taken = batch.get_total_buffer_size() * self.weight if batch.num_rows else 0
        self._inflight.give_back(granted - taken)  # a single record may take more
        if taken:
            self._held.callback(self._inflight.give_back, taken)
        return batch

    def undo_unless_sent(self, undo: Callable[[], None]) -> None:
        """Has something undone at the end if the caller was gone before it got its answer."""
        self._undo = undo

    @property
    def is_owed(self) -> bool:
        """Whether something is to be undone, which takes a while."""
        return self._undo is not None

    def sent(self) -> None:
        """Marks the answer as completely sent."""
        self._undo = None

    def close(self) -> None:
        """Ends the answer, and gives back what it holds."""
        undo, self._undo = self._undo, None
        with self._held:
            if undo is not None:
                undo()


def waited(
    make: _Make,
    answer: Answer,
    asked: tuple[int, int],
    settings: ServerSettings,
    is_over: Callable[[], bool],
) -> pa.RecordBatch:
    """Makes records: at once, or else as soon as there are any within what is asked for.

    `asked` are the most bytes and the longest wait. A stop ends the wait, or a caller that is gone.
    """
    max_bytes = min(asked[0], settings.request_bytes)
    wait_ms = min(asked[1], settings.wait_ms)
    batch = answer.of(make, max_bytes, 0)
    few = settings.inflight_bytes // limits.SPARE_PART // settings.waiting // answer.weight
    while not batch.num_rows and wait_ms > 0 and not (is_over() or answer.is_gone()):
        batch = answer.of(make, min(max_bytes, max(1, few)), min(wait_ms, SLICE_MS))
        wait_ms -= SLICE_MS
    return batch
