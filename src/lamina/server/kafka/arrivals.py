"""Waiting for appends without a thread: a bell that the log's writers ring in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from lamina.server.kafka.sessions import Call


class _Rope(threading.Event):
    """What a partition's writer sets; it rings in the loop, once until somebody has heard it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, heard: asyncio.Event) -> None:
        super().__init__()
        self._loop = loop
        self._heard = heard

    def set(self) -> None:
        """Rings, from any thread."""
        if not self.is_set():
            super().set()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and who waited with it
                self._loop.call_soon_threadsafe(self._heard.set)


class Listened(Protocol):
    """A partition, of a log or as a group shares it."""

    def listen(self, event: threading.Event) -> None:
        """Registers an event."""

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""


def logs_of(call: Call, places: Iterable[tuple[str, int]]) -> list[Listened]:
    """Returns the partitions of some places that are there."""
    wanted = set(places)
    topics = {topic for topic, _ in wanted}
    every: list[Any] = [*call.store.segmented(topics), *call.store.wal_partitions(topics)]
    return [each for each in every if (each.place.topic, each.place.partition) in wanted]


class Bell:
    """Listens to some partitions while the context lasts."""

    def __init__(self, call: Call, partitions: Sequence[Listened]) -> None:
        self._heard = asyncio.Event()
        self._rope = _Rope(asyncio.get_running_loop(), self._heard)
        self._stopping = call.door.stopping
        self._partitions = partitions

    def __enter__(self) -> Bell:
        for each in self._partitions:
            each.listen(self._rope)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._partitions:
            each.unlisten(self._rope)

    async def rung(self, timeout_s: float) -> None:
        """Waits for an append, a stop of the server, or until the time is up."""
        waits = [
            asyncio.ensure_future(self._heard.wait()),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        self._rope.clear()
        self._heard.clear()
