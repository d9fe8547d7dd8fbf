"""A connection to a server: calls with deadlines, errors made typed again, pauses before retries.

gRPC itself connects and reconnects; this module decides what is worth another try.

Rules.
1. Only what cannot have been done, or is the same done twice, is tried again; of several servers
   at the one that holds the cluster (`client.servers`).
2. Every call ends: at its deadline with Unavailable at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from lamina.client.refusals import cause, hung_up, is_final
from lamina.client.servers import Servers
from lamina.errors import Busy, Closed, LaminaError, NotAllowed, NotPrimary, Unavailable
from lamina.wire import failures, memory
from lamina.wire.messages import HOLDER_ONLY

TIMEOUT_S = 30.0
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 1.0
_BROKEN = (flight.FlightError, pa.ArrowException, OSError, StopIteration)
_ATTEMPTS = 3
"""With several servers, no call waits for one of them longer than its part of the time."""
_Result = TypeVar("_Result")


class Broken(Unavailable):
    """The connection failed in the middle of a call: whether it was done is not known."""


class Refused(Broken):
    """Nothing listens there, or it is not what was expected: as likely later as now."""


class HungUp(Broken):
    """Whoever listens there closed the connection: a server that stops, or no Flight port."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call may take in all, from now on."""

    deadline: float

    @classmethod
    def of(cls, timeout_s: float) -> Patience:
        """Makes one that ends after so many seconds."""
        return cls(time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """The seconds that are left; never below zero."""
        return max(0.0, self.deadline - time.monotonic())

    def pause(self, attempt: int, error: LaminaError) -> None:
        """Waits before the next try; raises the error when there is no time for one."""
        pause_s = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2 ** min(attempt, 10))
        if isinstance(error, Busy):
            pause_s = max(pause_s, error.retry_after_s)
        if pause_s >= self.left_s:
            raise error
        time.sleep(pause_s)


class Connection:
    """A server, or the one of several that holds the cluster, reached by any number of threads."""

    def __init__(
        self, url: str, *, key: str | None, timeout_s: float, tls_root: bytes | None
    ) -> None:
        memory.keep_freed()
        self.servers = Servers(url, tls_root)
        self.timeout_s = timeout_s
        self._headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        if self.servers.follows:
            self._headers.append((HOLDER_ONLY.encode(), b"1"))
        self._is_closed = False

    @property
    def url(self) -> str:
        """The server that is asked now."""
        return self.servers.now.url

    @property
    def client(self) -> Any:
        """What speaks to the server that is asked now."""
        return self.servers.now.client

    def options(self, timeout_s: float | None) -> Any:
        """Makes the options of a call; an open stream has no timeout of its own."""
        return flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def attempt_s(self, patience: Patience) -> float:
        """How long one try may take: with several servers only a part, then another is asked."""
        most_s = self.timeout_s / _ATTEMPTS if self.servers.follows else patience.left_s
        return max(0.001, min(patience.left_s, most_s))

    def waiting_ms(self, waiting: Patience) -> int:
        """How long one call of a long poll may wait: its answer comes well within the timeout."""
        whole_s = self.timeout_s / (_ATTEMPTS if self.servers.follows else 1)
        return int(min(waiting.left_s, whole_s / 2) * 1000)

    @property
    def is_closed(self) -> bool:
        """Whether this side has ended the connection."""
        return self._is_closed

    def require_open(self) -> None:
        """Refuses calls on a closed connection."""
        if self._is_closed:
            raise Closed("the connection is closed")

    def attempt(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action once; what it raises comes out typed."""
        self.require_open()
        try:
            return action()
        except _BROKEN as error:
            raise self.typed(error) from error

    def repeat(
        self,
        action: Callable[[Any], _Result],
        patience: Patience,
        *,
        only_refused: bool = False,
        while_refused: bool = True,
    ) -> _Result:
        """Runs an action with the options of a call until it is done or time is up.

        What is not the same done twice is tried again `only_refused`: nothing of it was done. With
        `while_refused=False` an address where nothing listens or that hangs up is tried once,
        unless there are others to turn to.
        """
        attempt = 0
        while True:
            turn = self.servers.now.turn
            try:
                return self.attempt(lambda: action(self.options(self.attempt_s(patience))))
            except (Broken, Busy, NotPrimary) as error:
                if only_refused and not self._was_refused(error):
                    raise
                is_lone = not while_refused and not self.servers.follows
                if is_lone and isinstance(error, Refused | HungUp):
                    raise
                self.look_elsewhere(turn, error)
                patience.pause(attempt, error)
            attempt += 1

    def _was_refused(self, error: LaminaError) -> bool:
        """Whether nothing of a call was done, for certain."""
        if isinstance(error, NotPrimary):
            return not error.was_begun
        return isinstance(error, Busy) or (isinstance(error, Refused) and self.servers.follows)

    def look_elsewhere(self, turn: int, error: LaminaError) -> None:
        """Turns to another server after a failure that only another one can mend.

        Raises NotPrimary where no other is known.
        """
        if isinstance(error, Busy):
            return
        if isinstance(error, NotPrimary) and not self.servers.follows:
            raise error
        self.servers.turn_from(turn, error)

    def typed(self, error: BaseException) -> LaminaError:
        """Makes the server's error again; without one, the connection itself is what failed."""
        described = getattr(error, "extra_info", None)
        told = failures.decode(described) if described else None
        if told is not None:
            return told
        if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
            return NotAllowed(str(error))
        if isinstance(error, flight.FlightTimedOutError):
            return Broken(f"{self.url} did not answer in time")
        text = str(error) or type(error).__name__
        kind = Refused if is_final(text) else HungUp if hung_up(text) else Broken
        return kind(f"{self.url}: {cause(text)}")

    def close(self) -> None:
        """Ends the connection."""
        self._is_closed = True
        self.servers.close()
