"""Appends on their way through a writer, and how those who wait for them get their answer.

Rules.
1. A request is answered once: its outcome is set before anybody is woken.
2. Futures of one event loop are resolved by one call into that loop, however many they are.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from lamina.api import DURABLE, Ack, ProducerStamp
from lamina.errors import Closed, LaminaError

if TYPE_CHECKING:
    import asyncio

LOCK = type(threading.Lock())
Outcome: TypeAlias = Ack | LaminaError


class Request:
    """One append on its way: what to store, how far, and who waits for the answer."""

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


def answer_written(group: list[Request], outcomes: list[Outcome]) -> list[Request]:
    """Answers what needs no fsync; returns those that do, their answers as after it."""
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
        answer(settled)
    return waiting


def answer_all(requests: Sequence[Request], error: LaminaError) -> None:
    """Gives everybody who has no answer yet the same error."""
    unanswered = [request for request in requests if not request.answered]
    for request in unanswered:
        request.outcome = error
    answer(unanswered)


def answer(requests: Sequence[Request]) -> None:
    """Gives everybody their outcome and wakes them, futures of one event loop all at once."""
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
        with contextlib.suppress(RuntimeError):  # a loop was closed before its answer came
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
    """Returns the answer of an answered request, or raises it."""
    outcome = request.outcome
    if isinstance(outcome, Ack):
        return outcome
    if outcome is None:
        raise Closed("the writer stopped before the append was written")
    raise copy.copy(outcome)  # one error for many threads would gather all of their tracebacks
