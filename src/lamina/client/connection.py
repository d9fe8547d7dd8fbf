"""A connection to a server: calls with deadlines, errors made typed again, pauses before retries.

gRPC itself connects and reconnects; this module decides what is worth another try.

Rules.
1. Only what cannot have been done, or is the same done twice, is tried again.
2. Every call ends: at its deadline with Unavailable at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from lamina.client.refusals import cause, is_final
from lamina.errors import Busy, Closed, InvalidRequest, LaminaError, NotAllowed, Unavailable
from lamina.wire import failures, memory

TIMEOUT_S = 30.0
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.02, 1.0
_BROKEN = (flight.FlightError, pa.ArrowException, OSError, StopIteration)
_SCHEMES = ("grpc://", "grpc+tls://", "grpc+unix://")
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]
_Result = TypeVar("_Result")


class Broken(Unavailable):
    """The connection failed in the middle of a call: whether it was done is not known."""


class Refused(Broken):
    """Nothing listens there, or it is not what was expected: as likely later as now."""


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
    """One server, reached by any number of threads."""

    def __init__(
        self, url: str, *, key: str | None, timeout_s: float, tls_root: bytes | None
    ) -> None:
        if not url.startswith(_SCHEMES):
            raise InvalidRequest(f"a server is {' or '.join(_SCHEMES)}host:port, not {url!r}")
        self.url = url
        self.timeout_s = timeout_s
        self._headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._is_closed = False
        memory.keep_freed()
        try:
            self.client = flight.FlightClient(
                url, tls_root_certs=tls_root, generic_options=_CHANNEL
            )
        except (pa.ArrowException, OSError) as error:
            raise InvalidRequest(f"{url!r} is no server's address: {error}") from error

    def options(self, timeout_s: float | None) -> Any:
        """Makes the options of a call; an open stream has no timeout of its own."""
        return flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def waiting_ms(self, waiting: Patience) -> int:
        """How long one call of a long poll may wait: its answer comes well within the timeout."""
        return int(min(waiting.left_s, self.timeout_s / 2) * 1000)

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
        `while_refused=False` an address where nothing listens is not tried again.
        """
        attempt = 0
        while True:
            try:
                return self.attempt(lambda: action(self.options(max(0.001, patience.left_s))))
            except (Broken, Busy) as error:
                if only_refused and not isinstance(error, Busy):
                    raise
                if not while_refused and isinstance(error, Refused):
                    raise
                patience.pause(attempt, error)
            attempt += 1

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
        return (Refused if is_final(text) else Broken)(f"{self.url}: {cause(text)}")

    def close(self) -> None:
        """Ends the connection."""
        self._is_closed = True
        self.client.close()
