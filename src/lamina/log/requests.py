"""Requests on their way through the group commit: how they wait, are answered, and are counted.

Rules.
1. A request is answered once, and its outcome is set before its waiter is woken.
2. All futures of one event loop are resolved by one call into that loop.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from lamina.api import DURABLE, Ack, ProducerStamp
from lamina.api.writer_counts import BOUNDS, Pulse
from lamina.config import WriterSettings
from lamina.errors import Closed, InvalidRequest, LaminaError, Unavailable

if TYPE_CHECKING:
    import asyncio

LOCK = type(threading.Lock())
Outcome: TypeAlias = Ack | LaminaError
Gate: TypeAlias = Callable[[], LaminaError | None] | None
"""Returns why nothing may be answered as stored now, None if it may; nobody has to ask without."""
LeadSoon: TypeAlias = Callable[[Callable[[object], None], object], bool]
"""Has an event loop call a leader with its token soon; returns False if it will not."""


class Request:
    """One append in flight: what to store, how durably, and who waits for the answer."""

    __slots__ = (
        "acks",
        "answered",
        "count",
        "outcome",
        "records",
        "size_bytes",
        "stamp",
        "target",
        "waiter",
    )

    def __init__(
        self,
        records: pa.RecordBatch | list[bytes],
        *,
        size_bytes: int,
        acks: int,
        stamp: ProducerStamp | None = None,
    ) -> None:
        self.target: Any = None
        self.records = records
        self.count = len(records)
        self.size_bytes = size_bytes
        self.acks = acks
        self.stamp = stamp
        self.outcome: Outcome | None = None
        self.answered = False
        self.waiter: threading.Lock | asyncio.Future[Ack] | None = None


class Log(Protocol):
    """What the writer drives: the tail of a partition."""

    def write(self, group: Sequence[Request]) -> list[Outcome]:
        """Writes a group; returns one outcome per request, in order.

        Raises StorageFull, or InvalidRequest if a request cannot be stored as it is: then nothing
        of the group was kept.
        """

    def sync(self) -> None:
        """Makes everything written so far durable."""


def write_all(log: Log, group: list[Request]) -> list[Outcome]:
    """Has a log write a group; one request at a time if it refuses what one of them holds."""
    try:
        return log.write(group)
    except InvalidRequest:
        return [_write_alone(log, request) for request in group]


def _write_alone(log: Log, request: Request) -> Outcome:
    try:
        return log.write([request])[0]
    except (InvalidRequest, Unavailable) as refusal:  # the others may still be stored
        return refusal


def plan(queue: Collection[Request], settings: WriterSettings) -> int:
    """Decides how many requests from the front of the queue form the next group: at least one."""
    if bytes_of(queue) <= settings.batch_bytes and records_of(queue) <= settings.batch_records:
        return len(queue)
    size_bytes = records = count = 0
    for request in queue:
        size_bytes += request.size_bytes
        records += request.count
        if count and (size_bytes > settings.batch_bytes or records > settings.batch_records):
            break
        count += 1
    return count


# What is counted of every request of a group runs in C: each of them is a call of some producer.


def bytes_of(requests: Iterable[Request]) -> int:
    """Returns the bytes of all of them."""
    return sum(map(_SIZE, requests))


def records_of(requests: Iterable[Request]) -> int:
    """Returns the records of all of them."""
    return sum(map(_COUNT, requests))


def count_awaited(requests: Collection[Request]) -> int:
    """Returns how many of them tasks wait for."""
    kinds = list(map(type, map(_WAITER, requests)))
    return len(kinds) - kinds.count(LOCK) - kinds.count(type(None))


_SIZE, _COUNT, _WAITER = attrgetter("size_bytes"), attrgetter("count"), attrgetter("waiter")


def is_awaited(request: Request) -> bool:
    """Returns whether a task waits for the answer, and not a thread."""
    return request.waiter is not None and not isinstance(request.waiter, LOCK)


class Signal:
    """A mutex with a condition that costs nothing while nobody waits for it, as is usual."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self._changed = threading.Condition(self.mutex)
        self.sleepers = 0

    def sleep(self, timeout_s: float | None = None) -> bool:
        """Waits for a change; returns False after the timeout. The caller holds the mutex."""
        self.sleepers += 1
        try:
            return self._changed.wait(timeout_s)
        finally:
            self.sleepers -= 1

    def tell(self) -> None:
        """Wakes those who sleep. The caller holds the mutex."""
        if self.sleepers:
            self._changed.notify_all()


class RequestQueue(deque[Request]):
    """Requests that wait to be written, in the order in which they came.

    It has room for so many of threads; those that tasks await take none of it: a task sends no more
    before it has its answer. Whoever calls holds the writer's mutex.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._awaited = 0
        self.size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether a thread has to wait for room."""
        return len(self) - self._awaited >= self._room

    def put(self, request: Request, *, awaited: bool) -> None:
        """Adds a request at the end."""
        self.append(request)
        self.size_bytes += request.size_bytes
        self._awaited += awaited

    def drop(self, request: Request) -> None:
        """Takes a request out, wherever it is."""
        self.remove(request)
        self.size_bytes -= request.size_bytes
        self._awaited -= is_awaited(request)

    def take_group(self, settings: WriterSettings) -> list[Request]:
        """Takes the next group from the front: as many as `plan` decides."""
        count = plan(self, settings)
        group = list(itertools.islice(self, count))
        self._awaited -= count_awaited(group) if self._awaited else 0
        if count == len(self):  # as mostly
            self.clear()
        for _ in range(len(self) and count):
            self.popleft()
        self.size_bytes -= bytes_of(group)
        return group


def answer_written(
    group: list[Request], outcomes: list[Outcome], hand_out: Callable[[list[Request]], None]
) -> list[Request]:
    """Answers requests that need no fsync; returns the others, whose outcomes are set already."""
    settled: list[Request] = []
    waiting: list[Request] = []
    for request, outcome in zip(group, outcomes, strict=True):
        request.outcome = outcome
        if request.acks == DURABLE and type(outcome) is Ack:
            outcome.durability = "fsynced"
            waiting.append(request)
        else:
            settled.append(request)
    if settled:
        hand_out(settled)
    return waiting


def wake(requests: Iterable[Request]) -> None:
    """Wakes threads whose answers were interrupted, once more where they are awake already."""
    for request in requests:
        if isinstance(request.waiter, LOCK):
            with contextlib.suppress(RuntimeError):
                request.waiter.release()


def answer_all(requests: Sequence[Request], error: LaminaError) -> None:
    """Answers every request that has no answer yet with the same error."""
    unanswered = [request for request in requests if not request.answered]
    for request in unanswered:
        request.outcome = error
    answer(unanswered)


def answerer(gate: Gate) -> Callable[[Sequence[Request]], None]:
    """Returns what hands outcomes out: those that a gate lets through, and else its refusal."""
    if gate is None:
        return answer

    def through(requests: Sequence[Request]) -> None:
        refusal = gate()
        if refusal is None:
            answer(requests)
        else:
            answer_all(requests, refusal)

    return through


def answer(requests: Sequence[Request]) -> None:
    """Hands out the outcomes: wakes waiting threads, and resolves futures loop by loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Request]] = {}
    for request in requests:
        request.answered = True
        waiter = request.waiter
        if waiter is None:
            continue
        if type(waiter) is LOCK:
            waiter.release()
            continue
        loop = waiter.get_loop()  # type: ignore[union-attr]
        if loop in loops:
            loops[loop].append(request)
        else:
            loops[loop] = [request]
    for loop, answers in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed before its answer came
            loop.call_soon_threadsafe(_resolve, answers)


def _resolve(requests: list[Request]) -> None:
    for request in requests:
        future: Any = request.waiter
        outcome = request.outcome
        if future.done():
            continue
        if type(outcome) is Ack:
            future.set_result(outcome)
        elif isinstance(outcome, LaminaError):
            future.set_exception(copy.copy(outcome))


def unwrap(request: Request) -> Ack:
    """Returns the ack of an answered request, or raises its error."""
    outcome = request.outcome
    if isinstance(outcome, Ack):
        return outcome
    if outcome is None:
        raise Closed("the writer stopped before the append was written")
    raise copy.copy(outcome)  # an error shared by threads would collect all tracebacks


class RunningPulse(Pulse):
    """The running counts of a writer; `lamina.api.Pulse` is what others see of them.

    Only the leader counts. A copy may show half of a commit, but never a torn number.
    """

    __slots__ = ()

    def note_group(self, group: Sequence[Request]) -> None:
        """Counts a group that was written."""
        count = len(group)
        if count == 1:
            request = group[0]
            self.records += request.count
            self.size_bytes += request.size_bytes
        else:
            self.records += records_of(group)
            self.size_bytes += bytes_of(group)
        self.groups += 1
        self.requests += count
        # Buckets are looked up in place (see `bucket_of`): this runs once per commit.
        self.group_requests[bisect_right(BOUNDS, count) - 1] += 1

    def note_sync(self, nanoseconds: int) -> None:
        """Counts an fsync that succeeded."""
        self.syncs += 1
        self.sync_microseconds[bisect_right(BOUNDS, nanoseconds // 1000) - 1] += 1
