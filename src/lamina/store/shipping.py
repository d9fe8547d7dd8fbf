"""Ships what is durable: one window for all partitions, every `tail.ms`, or at once if one waits.

    durable here ──draft──▶ window ──create──▶ committed ──▶ waiting appends are answered

A thread of its own does this. Appends that come while a window is being sent share the next one.

Rules.
1. A window whose outcome is unknown is settled before another one is drafted.
2. A slot that another broker has taken ends the seat; an object store that is away does not.
3. Nothing waits for collecting: it runs after shipping, and its failures do not affect windows.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from lamina.cluster.lease import Clock
from lamina.cluster.steps import run
from lamina.cluster.tails import TailLog
from lamina.errors import Closed, Fenced, LaminaError, Unavailable
from lamina.log.sealed import Archivable
from lamina.storage.objects import Objects
from lamina.store.collecting import Collector
from lamina.store.window_contents import Contents, Draft

RETRY_S = 0.1
_log = logging.getLogger(__name__)


class Seated(Protocol):
    """What shipping needs of the seat."""

    log: TailLog
    failure: LaminaError | None

    def fenced(self, objects: Objects, error: LaminaError) -> None:
        """Ends the seat: another broker has taken a slot."""


class Shipper:
    """Makes windows of what is durable, in order."""

    def __init__(
        self,
        seat: Seated,
        objects: Objects,
        contents: Contents,
        collector: Collector,
        clock: Clock,
    ) -> None:
        self.contents = contents
        self._seat = seat
        self._objects = objects
        self.collector = collector
        self._clock = clock
        self._shipping = threading.Lock()
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._pending: Draft | None = None
        self._waiting = 0
        self._covered_ms = clock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._has_begun = False
        self.windows = 0
        self.problem = ""
        """Why the last window could not be made, or may not have been committed."""

    # ------------------------------------------------------------------ one window

    def ship(self) -> None:
        """Ships everything that is durable now; raises the error that prevents it."""
        with self._shipping:
            while self._ship_one():
                pass

    def _ship_one(self) -> bool:
        """Ships one window; returns whether there is more to ship."""
        if self._seat.failure is not None:
            raise self._seat.failure
        try:
            if self._pending is not None:
                run(self._objects, self._seat.log.settle())
                self._accept(self._pending)
            begun_ms = self._clock()
            draft = self.contents.draft(full=not self._has_begun or self.collector.wants_full)
            if draft.sections:
                self._pending = draft
                run(self._objects, self._seat.log.commit(tuple(draft.sections)))
                self._accept(draft)
        except Fenced as error:
            self._seat.fenced(self._objects, error)
            self.wake()
            raise
        except LaminaError as error:
            self.problem = str(error)
            raise
        if not draft.has_more:
            if not self.contents.problems:  # what was left out has been waiting for longer
                self._covered_ms = begun_ms
            self.problem = "; ".join(self.contents.problems.values())
        return draft.has_more

    def _accept(self, draft: Draft) -> None:
        """Counts what a committed window holds as shipped."""
        self._pending, self._has_begun = None, True
        before = dict(self.contents.ends)
        self.contents.accept(draft)
        self.collector.note(draft, before, self._seat.log.next_seq - 1)
        self.windows += 1
        with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------ waiting and looking

    def wait_archived(
        self, partition: Archivable, end_offset: int, timeout_s: float | None
    ) -> None:
        """Waits until windows hold the records below an offset; raises why they do not."""
        place = partition.place

        def is_shipped() -> bool:
            return self.contents.end_of(place.topic, place.partition) >= end_offset

        with self._changed:
            self._waiting += 1
            try:
                self._wake.set()
                self._changed.wait_for(
                    lambda: is_shipped() or self._seat.failure is not None or self._stopping,
                    timeout=timeout_s,
                )
            finally:
                self._waiting -= 1
        if is_shipped():
            return
        where = f"{place.name}: the records are durable here, and in no window that is known of"
        if self._seat.failure is not None:
            raise self._seat.failure
        if self._stopping:
            raise Closed(f"{where}: the store is closed")
        raise Unavailable(f"{where} in time: {self.problem or 'shipping'}")

    def wake(self) -> None:
        """Wakes all waiting threads, so that they look again."""
        with self._changed:
            self._changed.notify_all()

    def unshipped_records(self) -> int:
        """Returns how many durable records are in no window yet."""
        return self.contents.unshipped()

    def lag_ms(self) -> int:
        """Returns how long the oldest of them may have been waiting; 0 if all are shipped."""
        return max(1, self._clock() - self._covered_ms) if self.unshipped_records() else 0

    # ------------------------------------------------------------------ the thread

    def start(self, tail_ms: int) -> None:
        """Starts the thread."""
        name = "lamina-shipper"
        self._thread = threading.Thread(target=self._run, args=(tail_ms,), name=name, daemon=True)
        self._thread.start()

    def _run(self, tail_ms: int) -> None:
        pause_s = tail_ms / 1000
        while not self._stopping and self._seat.failure is None:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopping:
                return
            pause_s = tail_ms / 1000
            try:
                self.ship()
                self.collector.collect(self._objects)
            except LaminaError as error:
                if not isinstance(error, Fenced):
                    _log.warning("shipping: %s", error)
                if self._waiting:
                    pause_s = min(pause_s, RETRY_S)
            except Exception as error:
                self.problem = str(error)
                _log.exception("shipping failed; it is tried again")

    def halt(self) -> None:
        """Stops the thread, after the window that is being sent."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self.wake()

    def finish(self) -> bool:
        """Ships what is left, once; returns whether all of it is shipped."""
        self.halt()
        if self._seat.failure is not None:
            return False
        try:
            self.ship()
        except LaminaError as error:
            _log.warning("not everything was shipped when the store was closed: %s", error)
            return False
        return not self.contents.problems and not self.contents.unshipped("written")
