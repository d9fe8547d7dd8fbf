"""Groups on their way to the disk: written, but not synced yet; several at a time.

A disk can flush several groups at once, and most of what a small durable append costs is waiting
for one flush before the next group is written. So the thread that has written a group first hands
the tail to the next leader, and only then syncs; meanwhile that leader writes the next group.

    written ──depart──▶ in the air: being synced ──▶ down: its sync returned ──▶ landed: answered
                        at most `in_flight` groups                     in the order of departure

Rules.
1. A flight lands only when every earlier one has landed: the durable watermark covers a finished
   prefix, and answers leave in order. Any thread may land a flight, but only one does at a time.
2. A flight whose sync fails takes every later flight down with it: the disk reports an error only
   once, and nobody knows whose bytes it was about. Earlier flights had syncs of their own.
3. Every flight is synced through a descriptor that no other sync uses meanwhile: the kernel reports
   an error once per descriptor, so of two syncs through the same one, one would miss it.
4. A flight always comes down: one whose thread is interrupted fails (`abandon`).
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

from lamina.errors import LaminaError
from lamina.log.requests import Request, Signal, answer_all, wake

IN_FLIGHT = 4
"""How many groups of a partition may be in the air; more gained nothing on any disk we tried."""


class Departure(Protocol):
    """What a log had written when a flight departed."""

    def sync(self) -> None:
        """Makes it durable. Called from any thread, while more is being written behind it."""

    def land(self) -> None:
        """Shows it to readers as durable. Called in the order of departure; may be repeated."""


class Flight:
    """One group in the air; `owner` is whoever wrote it and syncs it."""

    __slots__ = (
        "departure",
        "error",
        "has_landed",
        "is_being_answered",
        "is_down",
        "owner",
        "took_ns",
        "waiting",
    )

    def __init__(self, owner: object, waiting: list[Request], departure: Departure) -> None:
        self.owner = owner
        self.waiting = waiting
        self.departure = departure
        self.is_down = False
        self.is_being_answered = False
        self.has_landed = False
        self.took_ns = 0
        self.error: LaminaError | None = None


class Flights:
    """The flights of one writer: `air` holds them in the order of their departure."""

    def __init__(self, signal: Signal, hand_out: Callable[[Flight], None]) -> None:
        self._signal = signal
        self._hand_out = hand_out
        self.air: deque[Flight] = deque()
        self._lander: Flight | None = None
        self._failing: LaminaError | None = None
        self._fallen: LaminaError | None = None

    @property
    def requests(self) -> int:
        """How many requests are in the air. The caller holds the mutex."""
        return sum(len(flight.waiting) for flight in self.air)

    def depart(self, flight: Flight) -> None:
        """Takes a flight into the air. The caller holds the mutex."""
        self.air.append(flight)

    def of(self, owner: object) -> Flight | None:
        """Returns an owner's flight that has not landed. The caller holds the mutex."""
        return next((flight for flight in self.air if flight.owner is owner), None)

    def settle(self) -> None:
        """Waits until nothing is in the air; raises the error of the first flight that failed."""
        with self._signal.mutex:
            while self.air:
                self._signal.sleep()
        if self._fallen is not None:
            raise copy.copy(self._fallen)

    def fly(self, flight: Flight, failing: Callable[[BaseException], LaminaError]) -> None:
        """Syncs a flight that has departed, and returns when it has landed."""
        began_ns = perf_counter_ns()
        try:
            if self._failing is not None:
                raise self._failing  # nothing is synced again after a failure
            flight.departure.sync()  # what `acks=all` waits for
        except (OSError, LaminaError) as error:
            self._failing = flight.error = failing(error)
        flight.took_ns = perf_counter_ns() - began_ns
        self.land(flight)

    def land(self, flight: Flight) -> None:
        """Notes that a flight's sync has returned; returns when the flight has landed."""
        while first := self._next_to_land(flight):
            self._answer(first)
            first.has_landed = True

    def abandon(self, flight: Flight, error: LaminaError) -> None:
        """Lands the flight of an interrupted thread: as failed, unless its sync had returned."""
        if not flight.is_down:
            flight.error = error
        self.land(flight)

    def _next_to_land(self, flight: Flight) -> Flight | None:
        """Waits for its turn; returns the flight to land next, None when this one has landed."""
        with self._signal.mutex:
            flight.is_down = True
            if self._lander is flight:  # its turn is over, or was cut off
                self._lander = None
            self._drop_landed()
            while not flight.has_landed:
                if self._lander is None and self.air[0].is_down:
                    self._lander = flight
                    return self.air[0]
                self._signal.sleep()
                self._drop_landed()
            return None

    def _drop_landed(self) -> None:
        """Takes what has landed out of the air. The caller holds the mutex; it may be cut off."""
        if self._lander is not None and self._lander.has_landed:
            self._lander = None  # it does nothing more: its own flight was its last
        if self.air and self.air[0].has_landed:
            while self.air and self.air[0].has_landed:
                self.air.popleft()
            self._signal.tell()

    def _answer(self, flight: Flight) -> None:
        """Answers a group. If an earlier try was interrupted, answers whatever it left."""
        was_cut_off, flight.is_being_answered = flight.is_being_answered, True
        self._fallen = self._fallen or flight.error
        if self._fallen is not None:
            answer_all(flight.waiting, self._fallen)
        else:
            flight.departure.land()
            self._hand_out(flight)
        if was_cut_off:
            wake(flight.waiting)
