"""HTTP connections that have to get on: each whole request within `idle.ms`, or the end.

uvicorn waits for ever for the second half of a request: its own time-out ends with the first byte
after an answer. Here the time runs from the moment that a request is awaited (the connection was
made, or an answer is complete) until its head is whole; bytes that trickle in do not prolong it.
Nor does a peer that takes nothing of its answer for so long hold the connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.h11_impl import H11Protocol


class Hasty(H11Protocol):
    """Closes a connection that does not send a whole request in time."""

    idle_s = 15.0
    connections_max = 1 << 30
    busy: ASGI3Application
    """Answers the requests of connections beyond `connections_max`."""
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self.app = self.busy
        self._see_to_deadline()

    def data_received(self, data: bytes) -> None:
        """Takes bytes; a request that they make whole ends the wait."""
        super().data_received(data)
        self._see_to_deadline()

    def on_response_complete(self) -> None:
        """Begins to wait for the next request, unless it is there already."""
        super().on_response_complete()
        self._see_to_deadline()

    def pause_writing(self) -> None:
        """Begins to wait for the peer to take what lies ready for it."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(self.idle_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Goes on when the peer has taken most of it."""
        self._forget_stall()
        super().resume_writing()

    def _forget_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait with the connection."""
        self._forget_deadline()
        self._forget_stall()
        super().connection_lost(exc)

    def _see_to_deadline(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            self._forget_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.idle_s, self._close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
