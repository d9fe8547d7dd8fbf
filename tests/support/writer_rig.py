"""A log that is a list, and a rig of threads around a writer on it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lamina.api import DURABLE, Ack
from lamina.config import WriterSettings
from lamina.errors import Closed, LaminaError
from lamina.log.commit import Writer
from lamina.log.requests import Outcome, Request

SOON_S = 20
"""Longer than anything here takes: whoever waits this long hangs."""


class FakeLog:
    """Keeps what it is told to write in a list; says how many syncs made it durable.

    `gate` holds a write back, `sync_gate` a sync; `on_write` and `on_sync` are called in the leader
    and may raise. Two owners at a time are an error that is kept in `overlaps`.
    """

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.durable = 0
        self.syncs = 0
        self.groups: list[int] = []
        self.overlaps = 0
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.sync_entered = threading.Semaphore(0)
        self.sync_gate = threading.Event()
        self.sync_gate.set()
        self.on_write: Callable[[Sequence[Request]], None] = lambda group: None
        self.on_sync: Callable[[], None] = lambda: None
        self._owner = threading.Lock()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        if not self._owner.acquire(blocking=False):
            self.overlaps += 1
            raise AssertionError("two owners of the tail")
        try:
            yield
        finally:
            self._owner.release()

    def write(self, group: Sequence[Request]) -> list[Outcome]:
        with self.alone():
            self.entered.release()
            assert self.gate.wait(SOON_S)
            self.on_write(group)
            outcomes: list[Outcome] = []
            for request in group:
                outcomes.append(Ack(len(self.stored), request.count, "written"))
                self.stored += list(request.records)
            self.groups.append(len(group))
            return outcomes

    def sync(self) -> None:
        with self.alone():
            self.sync_entered.release()
            assert self.sync_gate.wait(SOON_S)
            self.on_sync()
            self.syncs += 1
            self.durable = len(self.stored)


class Rig:
    """A writer on a fake log, and threads that append to it."""

    def __init__(self, **settings: int) -> None:
        self.log = FakeLog()
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="leader")
        self.users = ThreadPoolExecutor(80, thread_name_prefix="user")
        self.refusal: LaminaError | None = None
        self.writer = Writer(self.log, WriterSettings(**settings), self.pool, lambda: self.refusal)

    @property
    def signal(self) -> threading.Condition:
        return self.writer._signal._changed

    def append(self, value: bytes, acks: int = DURABLE, timeout_s: float | None = None) -> Any:
        return self.writer.append(request_of(value, acks), timeout_s)

    def start(self, value: bytes, acks: int = DURABLE, timeout_s: float | None = None) -> Future:
        return self.users.submit(self.append, value, acks, timeout_s)

    def hold(self, value: bytes = b"leader") -> Future:
        """Starts an append whose write is held back until `log.gate` is set."""
        self.log.gate.clear()
        held = self.start(value)
        assert self.log.entered.acquire(timeout=SOON_S)
        return held

    def wait_for_depth(self, depth: int) -> None:
        wait_until(lambda: self.writer.depth == depth)


def request_of(value: bytes, acks: int = DURABLE, count: int = 1) -> Request:
    return Request([value] * count, size_bytes=len(value) * count, acks=acks)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.0005)


def close(made: Rig) -> None:
    made.log.gate.set()
    made.log.sync_gate.set()
    made.writer.close(Closed("the test is over"))
    made.users.shutdown()
    made.pool.shutdown()
    assert made.log.overlaps == 0
