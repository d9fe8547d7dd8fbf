"""Waiting for appends without a thread: a bell that the log's writers ring in the event loop.

Rules.
1. The bell says which partitions have rung, so that a fetch of many looks again at those only.
2. A rope is released before its partition is looked at: an append that comes meanwhile rings again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from lamina.server.kafka.sessions import Call


class _Rope(threading.Event):
    """The event that a partition's writer sets: rings once, and again after it was cleared."""

    def __init__(self, bell: Bell, number: int) -> None:
        super().__init__()
        self._bell = bell
        self._number = number

    def set(self) -> None:
        """Rings, from any thread."""
        if not self.is_set():
            super().set()
            self._bell.ring(self._number)


class Listened(Protocol):
    """A partition, of a log or as a group shares it."""

    def listen(self, event: threading.Event) -> None:
        """Registers an event."""

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""


def logs_of(call: Call, places: Iterable[tuple[str, int]]) -> list[Any]:
    """Returns those of some partitions that exist."""
    wanted = set(places)
    topics = {topic for topic, _ in wanted}
    every: list[Any] = [*call.store.segmented(topics), *call.store.wal_partitions(topics)]
    return [each for each in every if (each.place.topic, each.place.partition) in wanted]


class Bell:
    """Listens to some partitions inside a `with` block."""

    def __init__(self, call: Call, partitions: Sequence[Listened]) -> None:
        self._loop = asyncio.get_running_loop()
        self._door = call.door
        self._partitions = partitions
        self._ropes = [_Rope(self, number) for number in range(len(partitions))]
        self._rung: deque[int] = deque()
        self._is_ringing = False
        self._waiter: asyncio.Future[None] | None = None

    def __enter__(self) -> Bell:
        self._door.bells.add(self)
        for each, rope in zip(self._partitions, self._ropes, strict=True):
            each.listen(rope)
        return self

    def __exit__(self, *_: object) -> None:
        self._door.bells.discard(self)
        for each, rope in zip(self._partitions, self._ropes, strict=True):
            each.unlisten(rope)

    def ring(self, number: int) -> None:
        """Announces that a partition has something new; any thread may."""
        self._rung.append(number)
        if not self._is_ringing:
            self._is_ringing = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and who waited with it
                self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Ends the waiting, in the loop."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def rung(self, timeout_s: float) -> set[int]:
        """Waits for an append, a stop of the server, or until the time is up.

        Returns the numbers of the partitions that have rung since the last time.
        """
        if not self._rung and not self._door.stopping.is_set():
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_s, self.wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        self._is_ringing = False  # first: whoever rings from here on wakes the next waiting
        found = set()
        while self._rung:
            found.add(self._rung.popleft())
        for number in found:
            self._ropes[number].clear()
        return found
