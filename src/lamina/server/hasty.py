"""HTTP connections that have to get on: each whole request within `idle.ms`, or the end.

uvicorn waits for ever for the second half of a request: its own time-out ends with the first byte
after an answer. Here the time runs from the moment that a request is awaited (the connection was
made, or an answer is complete) until its head is whole; bytes that trickle in do not prolong it.
Nor does a peer that takes nothing of its answer for so long hold the connection.

While a request is answered, the connection goes on being read: what comes early of the next one is
kept aside, so that a peer that hangs up is noticed although it had more to say.

What uvicorn would warn of with a line each, bytes that are no HTTP say, is counted as refusals are.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.h11_impl import H11Protocol

from lamina.server.broker import Broker
from lamina.server.log_lines import Refusals

EARLY_BYTES = 64 << 10
REFUSED_MAX = 64
"""So many connections beyond the limit are told so; further ones are closed without a word."""


class CountedLog(logging.Logger):
    """uvicorn's log; any stranger can cause its warnings, as often as he likes."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__("uvicorn.error")
        self.parent = logging.getLogger("uvicorn.error")
        self._refusals = refusals

    def warning(self, msg: object, *args: Any, **_: Any) -> None:
        """Logs a warning a few times a minute, and counts the rest."""
        self._refusals.note(f"HTTP: {msg}", str(msg), *args, door="http")


def protocol_of(broker: Broker, connections: int, busy: ASGI3Application) -> type[Hasty]:
    """Makes the protocol of a server; `busy` answers connections beyond so many."""
    own = {"connections_max": connections, "busy": staticmethod(busy)}
    own |= {"idle_s": broker.settings.idle_ms / 1000, "log": CountedLog(broker.refusals)}
    return type("Hasty", (Hasty,), own)


class Hasty(H11Protocol):
    """Closes a connection that does not send a whole request in time."""

    idle_s = 15.0
    connections_max = 1 << 30
    busy: ASGI3Application
    """Answers the requests of connections beyond `connections_max`."""
    log: CountedLog
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _early = b""

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        self.logger = self.log
        super().connection_made(transport)
        beyond = len(self.connections) - self.connections_max
        if beyond > 0:
            self.app = self.busy
        if beyond > REFUSED_MAX:
            self.transport.abort()
        self._see_to_deadline()

    def data_received(self, data: bytes) -> None:
        """Takes bytes; a request that they make whole ends the wait."""
        if self._is_answering:
            self._early += data
        else:
            super().data_received(data)
        if self._is_answering and len(self._early) < EARLY_BYTES:
            self.flow.resume_reading()  # or nobody would notice the end of the connection
        elif self._is_answering:
            self.flow.pause_reading()
        self._see_to_deadline()

    def on_response_complete(self) -> None:
        """Begins to wait for the next request, unless it is there already."""
        super().on_response_complete()
        early, self._early = self._early, b""
        if early and not self.transport.is_closing():
            self.data_received(early)
        self._see_to_deadline()

    @property
    def _is_answering(self) -> bool:
        """Whether a whole request is there, and its answer is not."""
        cycle = self.cycle
        return cycle is not None and not (cycle.response_complete or cycle.more_body)

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
