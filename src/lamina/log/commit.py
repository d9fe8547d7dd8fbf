"""The group commit of document 003: many requests, one write, one fsync, one owner of the tail.

There is no writer thread. A thread that submits a request while nobody leads becomes the leader: it
takes a group from the queue, has the log write it, hands the lead to a waiting request, syncs what
it has written, and answers every request in it. So groups are written while others are being synced
(`flights`), and a lone request is written by its own thread, without a hand-over. Requests from
asyncio have no thread that could lead; a pool thread does it for them.

    submit ──▶ queue (bounded) ──▶ plan: which requests ──▶ log.write ──▶ answer acks 0, 1
                                                             └─▶ departure.sync ──▶ answer acks all

Rules.
1. Only the leader calls the log; deciding (`plan`) and doing (`_commit`) are apart. What it has
   departed with is its own until it lands, whoever leads meanwhile.
2. A group waits only while it has fewer requests than the group before it and more keep coming,
   and never longer than `linger.ms`: producers that appended a moment ago are likely to be back. A
   lone request never waits. Nor does a group that is large already: the others prepare theirs
   while it is on its way to the disk.
3. Once the log raises anything but a clean refusal, the writer is poisoned: every later call raises
   the same error, and nothing is retried.
4. An event loop leads only if it offered to, one small group at a time, without lingering, and only
   while the last fsync was short: a slow disk must not stop a loop that serves other clients.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from time import perf_counter_ns
from typing import TYPE_CHECKING, TypeVar, cast

from lamina.api import NOT_WAITED, Ack
from lamina.config import WriterSettings
from lamina.errors import (
    NO_DESCRIPTORS,
    PASSING,
    LaminaError,
    Poisoned,
    QueueFull,
    Unavailable,
    refusal_of,
)
from lamina.log.flights import IN_FLIGHT, Departure, Flight, Flights
from lamina.log.pool_leaders import Lending
from lamina.log.requests import (
    LOCK,
    Gate,
    LeadSoon,
    Log,
    Request,
    RequestQueue,
    RunningPulse,
    Signal,
    answer_all,
    answer_written,
    answerer,
    unwrap,
    wake,
    write_all,
)

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")


class Writer:
    """The queue in front of a log; its users take turns in leading.

    `_leader` is the owner of the tail: a request (its thread leads), a token (a pool thread leads,
    or an exclusive action runs), or None. Only the owner hands the tail over, in `_pass_on`.

    `_crowd` is how many requests a group waits for, `_taken` the group that the leader is writing,
    `_reserved` counts exclusive actions that wait for the tail. `_sync_ns` is how long the last
    fsync took. A log that can be written to while it is synced says by `depart` what is written.
    """

    def __init__(
        self,
        log: Log,
        settings: WriterSettings,
        executor: Executor,
        gate: Gate,
        *,
        depart: Callable[[], Departure | None] | None = None,
    ) -> None:
        self._log, self._answer = log, answerer(gate)
        self._settings = settings
        self._depart = depart
        self._signal = Signal()
        self._lending = Lending(self._signal, executor, self._lead_for_others)
        self._mutex = self._signal.mutex
        self._sleep, self._tell = self._signal.sleep, self._signal.tell
        self.flights = flights = Flights(self._signal, self._hand_out)
        self._air, self._taken = flights.air, list[Request]()
        self._queue = RequestQueue(settings.queue_requests)
        self._leader: object | None = None
        self._reserved = 0
        self._crowd = 1
        self._sync_ns = 0
        self._loop_leads = False
        self._failure: LaminaError | None = None
        self._closing: LaminaError | None = None
        self.pulse = RunningPulse()

    def append(self, request: Request, timeout_s: float | None) -> Ack | None:
        """Appends and waits for the answer; with acks 0, only until there is room in the queue.

        Raises QueueFull or Unavailable when the timeout is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if request.acks == NOT_WAITED:
            self._submit(request, deadline)
            return None
        try:
            if self._lead_alone(request):
                return unwrap(request)
            waiter = threading.Lock()
            waiter.acquire()
            request.waiter = waiter
            if self._submit(request, deadline):
                self._lead(request)
            else:
                self._await_turn(request, waiter, deadline)
        except BaseException as error:
            self._leave(request, error)
            raise
        return unwrap(request)

    def append_soon(
        self, request: Request, lead_soon: LeadSoon | None = None
    ) -> asyncio.Future[Ack]:
        """Appends from a running event loop; the future gets the answer.

        There is always room: whoever awaits holds its records anyway and sends no more meanwhile,
        so tasks bound the queue by themselves. One that is cancelled must `withdraw` its request.
        A loop that would rather wait for a short fsync than for a thread to wake up passes
        `lead_soon`, which runs the leader of a small group in the loop itself (rule 4).
        """
        import asyncio  # a caller with a running loop has loaded it already

        future = asyncio.get_running_loop().create_future()
        request.waiter = future
        try:
            self._submit(request, AWAITED, lead_soon)
        except BaseException as error:
            self._leave(request, error)
            raise
        return future

    def withdraw(self, request: Request) -> bool:
        """Takes a request back; returns False if it is being written already, or has to lead."""
        with self._mutex:
            if self._leader is request or request not in self._queue:
                return False
            self._queue.drop(request)
            self._tell()
            return True

    def exclusively(self, action: Callable[[], Result]) -> Result:
        """Runs an action as the only owner of the tail, between two groups."""
        token = object()
        begun = False
        try:
            self._take_over(token)
            begun = True
            if self._failure is not None:
                raise copy.copy(self._failure)
            result = action()
        except OSError as error:
            if error.errno in PASSING:
                problem = "no space left on the device; nothing was changed"
                raise refusal_of(error, problem) from error
            raise copy.copy(self.poison(error)) from error
        except LaminaError:
            raise
        except BaseException as error:
            if begun:
                self.poison(error)  # it was cut off in the middle of a change
            self._lending.again()  # it may have been cut off as it appointed somebody
            raise
        finally:
            try:
                self._pass_on(token)
            except BaseException:  # cut off as it began: nobody would ever lead again
                self._pass_on(token)
                self._lending.again()
                raise
        return result

    def close(self, reason: LaminaError) -> None:
        """Refuses all further requests, then waits until the accepted ones are answered."""
        with self._mutex:
            self._closing = self._closing or reason
            self._tell()
            while self._leader is not None or self._queue or self._air:
                self._sleep()
            if self._failure is None:
                self._failure = reason

    def poison(self, error: BaseException) -> LaminaError:
        """Stops the writer for good; returns the error that every call raises from now on."""
        with self._mutex:
            if self._failure is None:
                what = str(error) or type(error).__name__
                self._failure = Poisoned(
                    f"a write or fsync failed ({what}); open the store again to recover"
                )
            self._tell()
            return self._failure

    @property
    def failure(self) -> LaminaError | None:
        """Why the writer refuses requests; None if it does not."""
        return self._failure

    @property
    def depth(self) -> int:
        """How many requests are waiting."""
        return len(self._queue)

    # ------------------------------------------------------------------ taking turns

    def _lead_alone(self, request: Request) -> bool:
        """Commits a request without queueing it, if the writer is idle and expects no others."""
        # The common case of a quiet log: one mutex, no queue, no hand-over. A request that arrives
        # meanwhile finds a leader, queues, and is served after `_pass_on`.
        with self._mutex:
            if self._leader is not None or self._crowd > 1 or self._queue or self._reserved:
                return False
            if self._failure is not None or self._closing is not None:
                return False
            self._leader = request
            self._taken = [request]
        self._commit(self._taken, request, hands_on=bool(self._air))
        self._pass_on(request)
        return True

    def _submit(
        self, request: Request, deadline: float | None, lead_soon: LeadSoon | None = None
    ) -> bool:
        """Queues a request; returns True if the calling thread must lead now."""
        with self._mutex:
            while deadline != AWAITED and self._queue.is_full:
                if self._failure or self._closing:
                    break
                remaining = None if deadline is None else deadline - time.monotonic()
                if (remaining is not None and remaining <= 0) or not self._sleep(remaining):
                    raise QueueFull(f"{len(self._queue)} requests are waiting to be written")
            refusal = self._failure or self._closing
            if refusal is not None:
                raise copy.copy(refusal)
            self._queue.put(request, awaited=deadline == AWAITED)
            if deadline == AWAITED:
                self._loop_leads = lead_soon is not None and self._sync_ns <= LOOP_SYNC_NS
            if self._leader is not None or self._reserved:
                if self._signal.sleepers and not self._expects_more():
                    self._tell()
                return False
            if isinstance(request.waiter, LOCK):
                self._leader = request
                return True
            helper = self._leader = self._lending.appoint()
        if lead_soon is None or not (self._loop_leads and lead_soon(self._lead_once, helper)):
            self._lending.find_thread(helper)
        return False

    def _await_turn(self, request: Request, waiter: threading.Lock, deadline: float | None) -> None:
        remaining = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not waiter.acquire(timeout=remaining):
            if self.withdraw(request):
                raise Unavailable("the append was not written in time; nothing was stored")
            waiter.acquire()
        if self._leader is request:
            self._lead(request)

    def _lead(self, leader: object) -> None:
        """Commits groups until the leader's request is answered; a token, until none is left."""
        while True:
            group = self._next_group()
            if group:
                # A leader whose own request is still queued needs the tail once more.
                is_in_it = leader in group or not isinstance(leader, Request)
                hands_on = is_in_it and self._depart is not None
                self._commit(group, leader, hands_on=hands_on)
            if self._leader is not leader:  # handed on, before the sync
                return
            if isinstance(leader, Request):
                if leader.answered:
                    break
            elif not group or self._reserved:
                break
        self._pass_on(leader)

    def _lead_for_others(self, token: object) -> None:
        if not (self._lending.claims(token) and self._leader is token):
            return
        try:
            self._lead(token)
        except BaseException as error:
            self._leave(token, error)
            raise

    def _lead_once(self, token: object) -> None:
        """Commits what is queued, in an event loop (rule 4); a large group is left to a thread."""
        if self._queue.size_bytes >= GATHER_BYTES:
            self._lending.find_thread(token)
            return
        if not (self._lending.claims(token) and self._leader is token):
            return
        try:
            self._loop_leads = True  # it gathers nothing: a loop that sleeps serves nobody
            if group := self._next_group():
                self._commit(group, token, hands_on=False)
            self._pass_on(token)
        except BaseException as error:
            self._leave(token, error)
            raise

    def _next_group(self) -> list[Request]:
        """Takes the next group out of the queue, after lingering where that pays (rule 2)."""
        with self._mutex:
            if self._expects_more():
                self._gather()
            self._taken = group = self._queue.take_group(self._settings)
            self._crowd = max(1, self._next_crowd(len(group)))
            self._tell()
            return group

    def _next_crowd(self, count: int) -> int:
        """Returns how many requests the next group waits for: those of this one will be back.

        Where groups may fly side by side, half of all that are under way: while one half is being
        synced, the other is written.
        """
        if self._depart is None:
            return count
        return (count + self.flights.requests + 1) // 2

    def _expects_more(self) -> bool:
        """Returns whether to wait for more: the queue is shorter than the last group, and small."""
        if self._loop_leads:  # its next group is what lies ready in its connections
            return False
        return len(self._queue) < self._crowd and self._queue.size_bytes < GATHER_BYTES

    def _gather(self) -> None:
        """Waits while more requests keep coming, up to `linger.ms`. The caller holds the mutex."""
        deadline = time.monotonic() + self._settings.linger_ms / 1000
        while self._expects_more():
            remaining = deadline - time.monotonic()
            before = len(self._queue)
            if remaining <= 0:
                break
            woken = self._sleep(min(remaining, GATHER_SLICE_S))
            if not woken and len(self._queue) == before:
                break

    def _take_over(self, token: object) -> None:
        """Waits until the current leader is done, then owns the tail."""
        with self._mutex:
            self._reserved += 1
            try:
                while self._leader is not None or self._air:
                    self._sleep()
                self._leader = token
            finally:
                self._reserved -= 1
                helper = self._appoint() if self._leader is None else None
        if helper is not None:
            self._lending.find_thread(helper)

    def _pass_on(self, owner: object) -> None:
        """Hands the tail over: to an exclusive action, a waiting request, or nobody. Idempotent."""
        with self._mutex:
            helper = self._appoint() if self._leader is owner else None
        if helper is not None:
            self._lending.find_thread(helper)

    def _appoint(self) -> object | None:
        """Chooses the next owner; returns a token that needs a thread, if any. Needs the mutex."""
        # Exclusive actions go first, or a busy log would starve them: a thread that has reserved
        # the tail sees `_leader` empty and takes it (`_take_over`).
        if not self._reserved:
            # The heir's lock is released for either of two reasons, "you are answered" or "lead":
            # `_await_turn` distinguishes them by `_leader`, which is therefore set first.
            for heir in self._queue:
                waiter = heir.waiter
                if isinstance(waiter, LOCK):
                    self._leader = heir
                    waiter.release()
                    return None
            if self._queue:  # only requests from asyncio are left, and they have no thread
                self._leader = self._lending.appoint()
                return self._leader
        self._leader = None
        self._tell()
        return None

    def _leave(self, who: object, error: BaseException) -> None:
        """Cleans up after an interrupted request, so that no thread waits for it for ever."""
        with self._mutex:
            if who in self._queue:
                self._queue.drop(cast("Request", who))
            leads, flight = self._leader is who, self.flights.of(who)
            self._tell()
        if leads:
            self._abandon_lead(who, error)
        if flight is not None:
            failure = error if flight.is_down else self.poison(error)
            self.flights.abandon(flight, cast("LaminaError", failure))
        self._lending.again()

    def _abandon_lead(self, who: object, error: BaseException) -> None:
        # The leader was interrupted (Ctrl-C, MemoryError) in the middle of a group. How far the log
        # got is unknown: unanswered requests fail for good, and the tail is still passed on.
        abandoned, self._taken = self._taken, []
        if any(not request.answered for request in abandoned):
            answer_all(abandoned, self.poison(error))
        wake(abandoned)  # answering may have been interrupted, too
        self._pass_on(who)

    def _commit(self, group: list[Request], leader: object, *, hands_on: bool) -> None:
        """Writes, syncs and answers one group; a leader may hand the tail on before the sync."""
        try:
            if self._failure is not None:
                raise copy.copy(self._failure)
            outcomes = self._log.write(group) if len(group) == 1 else write_all(self._log, group)
        except LaminaError as refusal:  # nothing of the group was kept
            answer_all(group, refusal)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:  # no file could be opened: nothing was written
                answer_all(group, refusal_of(error, ""))
            else:
                answer_all(group, self.poison(error))
        else:
            # acks 0 and 1 are answered before the fsync, which they do not wait for.
            waiting = answer_written(group, outcomes, self._answer)
            self.pulse.note_group(group)
            if waiting:
                if (hands_on or self._air) and self._flies(waiting, leader, hands_on):
                    return
                self._sync(waiting)
        self._taken = []

    def _flies(self, waiting: list[Request], leader: object, hands_on: bool) -> bool:
        """Syncs what was written in its turn; before that, hands the tail on to who is waiting.

        Returns False, with nothing in the air, if the group has to be synced on the ground.
        """
        departure = self._depart() if self._depart else None
        if departure is None:
            with contextlib.suppress(LaminaError):  # what fell has poisoned
                self.flights.settle()
            return False
        flight, helper = Flight(leader, waiting, departure), None
        with self._mutex:
            self.flights.depart(flight)
            self._taken = []
            if hands_on and len(self._air) < IN_FLIGHT:
                helper = self._appoint()
        is_lent = helper is None or self._lending.is_lent(helper)
        self.flights.fly(flight, self.poison)
        if not is_lent:  # only now: what it leads for lands behind this flight
            self._lead_for_others(helper)
        return True

    def _sync(self, waiting: list[Request]) -> None:
        began_ns = perf_counter_ns()
        try:
            if self._failure is not None:
                raise self._failure
            self._log.sync()  # what `acks=all` waits for: nothing is answered as durable before it
        except (OSError, LaminaError) as error:
            answer_all(waiting, self.poison(error))
            return
        self._sync_ns = took_ns = perf_counter_ns() - began_ns
        self.pulse.note_sync(took_ns)
        self._answer(waiting)

    def _hand_out(self, flight: Flight) -> None:
        """Answers a group that is durable, in its turn."""
        self._sync_ns = flight.took_ns
        self.pulse.note_sync(flight.took_ns)
        self._answer([each for each in flight.waiting if not each.answered])


GATHER_SLICE_S = 0.0005
"""A group stops waiting when no request has come for this long."""
GATHER_BYTES = 256 << 10
"""A group of this size does not wait for more: writing it takes longer than a sync."""
LOOP_SYNC_NS = 2_000_000
"""An event loop waits for an fsync only where the last one took no longer than this."""
AWAITED = -1.0
"""The deadline of a request that a task awaits: it needs no room of its own in the queue."""
