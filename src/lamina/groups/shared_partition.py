"""One partition as a group shares it: leases on records, journaled before they are delivered.

A poll sets records apart in memory, reads them, and only then marks them: what turns out to be a
hole or gone is never marked. Marks, acks and all other changes go through the same group commit as
appends (`log.commit`): the changes of many consumers are one write and one fsync.

    choose ──▶ read ──▶ mark ─┐
    ack, release, extend ─────┴▶ queue ──▶ plan on the newest state ──▶ journal ──▶ answer

Rules.
1. Only the writer's leader changes `_written`; it is shown as `durable` after the fsync.
2. The partition is read through `LogReader` alone: no format, no segment is known here.
3. Only durable records are handed out, and nothing at or above the durable end can be acked.
4. Offsets that are not there (trimmed, lost, deleted) count as acked for the frontier. Ranges of
   them are found again by reading, so only the frontier that went past them is journaled.
5. Records that the device does not deliver do not count as acked: the frontier waits for them,
   what follows them is delivered, and they are tried again after a while.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import DURABLE, Ack, PartitionLag, Skipped
from lamina.config import WriterSettings
from lamina.errors import UNREADABLE, LaminaError, OffsetOutOfRange, Poisoned, RecordsMissing
from lamina.formats.keratin.delta import Event, Events
from lamina.formats.scan import Limit
from lamina.groups.journal import Journal
from lamina.groups.lag import lag_of
from lamina.groups.state import (
    NO_RANGES,
    NONE,
    NOTHING,
    Chosen,
    Numbers,
    Ranges,
    State,
    deliverable,
    events_of,
    expand,
    joined,
    merged,
    spans,
)
from lamina.log.commit import Writer
from lamina.log.gap_walk import scan_over
from lamina.log.interfaces import LogReader
from lamina.log.requests import Gate, Outcome, Request

SKIPPED_MAX = 1000
READ_APART = 32
"""Records this close to each other are read in one go."""
READ_BYTES_MIN = 4 << 10
UNREAD_MS = 10_000
"""How long records that the device did not deliver are left alone before they are tried again."""

Plan = Callable[[State], Events | None]


class Change(Request):
    """A change on its way through the writer; `after` is the state that it led to."""

    __slots__ = ("after", "plan")

    def __init__(self, plan: Plan, acks: int) -> None:
        super().__init__([], size_bytes=1, acks=acks)
        self.plan = plan
        self.after = State()


class GroupPartition:
    """A group's share in one partition."""

    def __init__(
        self,
        reader: LogReader,
        journal: Journal,
        state: State,
        *,
        group: str,
        now_ms: Callable[[], int],
        writing: tuple[WriterSettings, Executor, Gate],
    ) -> None:
        self.reader = reader
        self.group = group
        self.now_ms = now_ms
        self.partition = reader.place.partition
        self.durable = self._written = state
        self.life: str | None = None
        """The life that the state belongs to; None while it changes, or is not known."""
        self.skipped: deque[Skipped] = deque(maxlen=SKIPPED_MAX)
        self.journal = journal
        self._mutex = threading.Lock()
        self._set_apart: dict[int, tuple[Numbers, ...]] = {}
        self._tickets = itertools.count()
        self._holes: Ranges = NO_RANGES
        self._unread: Ranges = NO_RANGES
        self._unread_until_ms = 0
        self._record_bytes = 1 << 10
        self._listeners: list[threading.Event] = []
        self._ended: LaminaError | None = None
        self.writer = Writer(self, *writing)

    # ------------------------------------------------------------------ the writer's log

    def write(self, group: Sequence[Request]) -> list[Outcome]:
        """Plans each change on the state before it and journals all of them at once."""
        if self._ended is not None:
            raise copy.copy(self._ended)
        state = self._written
        parts: list[Events] = []
        outcomes: list[Outcome] = []
        if self.journal.is_due:
            self.journal.rotate(state)
        for change in group:
            assert isinstance(change, Change)
            try:
                events = change.plan(state)
            except LaminaError as refusal:
                outcomes.append(refusal)
                continue
            if events is not None and len(events.types):
                state = state.apply(events)
                parts.append(events)
            change.after = state
            outcomes.append(Ack(-1, 0, "written"))
        if parts:
            self.journal.append(joined(parts))
        self._written = state
        return outcomes

    def sync(self) -> None:
        """Makes what was journaled durable and wakes polls that wait for deliverable records."""
        written = self._written
        if written is self.durable:
            return
        self.journal.sync()
        self.durable = written
        for listener in self._listeners:
            listener.set()

    def change(self, plan: Plan, acks: int = DURABLE) -> Change:
        """Plans a change, journals it and makes it as durable as `acks` asks for."""
        change = Change(plan, acks)
        self.writer.append(change, None)
        return change

    def flush(self) -> None:
        """Makes changes durable that were only written."""
        if self._written is not self.durable and self.writer.failure is None:
            self.writer.exclusively(self.sync)

    @property
    def is_poisoned(self) -> bool:
        """Whether a write or fsync failed: the files are left to recovery as they are."""
        return isinstance(self.writer.failure, Poisoned)

    def close(self, reason: LaminaError) -> None:
        """Answers what was accepted and closes the files."""
        self.writer.close(reason)
        for listener in self._listeners:
            listener.set()
        if not self.is_poisoned:
            self.sync()
            self.journal.close()

    def end(self, reason: LaminaError, decide: Callable[[], None] = lambda: None) -> None:
        """Ends the group's share for good, if `decide`, which runs between two changes, succeeds.

        If it raises, nothing has changed. The files are left as they are: nothing is written to
        what may be another's by then.
        """

        def finish() -> None:
            decide()
            self._ended = reason
            self.durable = self._written
            self.journal.abandon()

        if self.writer.failure is None:
            self.writer.exclusively(finish)
        else:  # nothing is written any more
            finish()
        self.close(reason)

    # ------------------------------------------------------------------ waiting

    def listen(self, event: threading.Event) -> None:
        """Registers an event that is set by whatever makes a record deliverable, except time."""
        with self._mutex:  # consumers come and go at any time
            self._listeners = [*self._listeners, event]
        self.reader.listen(event)

    def unlisten(self, event: threading.Event) -> None:
        """Ends listening."""
        self.reader.unlisten(event)
        with self._mutex:
            self._listeners = [each for each in self._listeners if each is not event]

    def next_deadline_ms(self) -> int | None:
        """When the next running lease ends."""
        return self._written.next_deadline_ms(self.now_ms())

    # ------------------------------------------------------------------ choosing and reading

    def choose(
        self, wanted: int, delivery_limit: int, held_max: int | None = None
    ) -> tuple[int, Chosen, Chosen]:
        """Sets records apart: those to deliver, and those that were delivered too often.

        What was delivered before and is deliverable again comes first. The number that is returned
        before them is for `put_back`. With `held_max` no more are held at once, by anybody.
        """
        self._go_past_trimmed()
        with self._mutex:
            state, now_ms = self._written, self.now_ms()
            wanted = wanted if held_max is None else min(wanted, self._left_of(held_max, now_ms))
            apart = self._apart()
            again = spent = NOTHING
            if len(state.offsets):
                again, spent = deliverable(state, now_ms, apart, wanted, delivery_limit)
            end = self.reader.end_offset("durable")
            fresh = NONE
            if len(again.offsets) < wanted and end > state.acked_until:
                fresh = expand(*state.free(end, wanted - len(again.offsets), apart))
            ticket = next(self._tickets)
            self._set_apart[ticket] = (spent.offsets, again.offsets, fresh)
        if not len(again.offsets):
            return ticket, Chosen(fresh, np.zeros(len(fresh), dtype=np.int64)), spent
        offsets = np.concatenate((again.offsets, fresh))
        epochs = np.concatenate((again.epochs, np.zeros(len(fresh), dtype=np.int64)))
        order = np.argsort(offsets, kind="stable")
        return ticket, Chosen(offsets[order], epochs[order]), spent

    def _left_of(self, held_max: int, now_ms: int) -> int:
        """How many more may be held; with the mutex."""
        apart = sum(len(each) for parts in self._set_apart.values() for each in parts)
        return max(0, held_max - self._written.running(now_ms) - apart)

    def has_deliverable(self, held_max: int) -> bool:
        """Returns whether a poll would find records, or dead ones; reads and changes nothing."""
        with self._mutex:
            state, now_ms, apart = self._written, self.now_ms(), self._apart()
            over = deliverable(state, now_ms, apart, 1, 1)
            end = max(state.acked_until, self.reader.end_offset("durable"))
            found = any(len(each.offsets) for each in over) or len(state.free(end, 1, apart)[0])
            return bool(found) and self._left_of(held_max, now_ms) > 0

    def _apart(self) -> Ranges:
        """All that is set apart, and the holes, as ranges; with the mutex."""
        apart = self._holes
        if len(self._unread[0]) and self.now_ms() < self._unread_until_ms:
            apart = merged(apart, self._unread)
        for parts in self._set_apart.values():
            for offsets in parts:
                if len(offsets):
                    apart = merged(apart, spans(offsets))
        return apart

    def put_back(self, ticket: int) -> None:
        """Ends the setting apart of what one `choose` has chosen."""
        with self._mutex:
            del self._set_apart[ticket]

    def read(self, chosen: Chosen, max_bytes: int) -> tuple[pa.RecordBatch | None, Chosen]:
        """Reads chosen records; returns them and which they are. Missing ones become holes.

        Stops behind the record that reaches `max_bytes`.
        """
        parts: list[pa.RecordBatch] = []
        found: list[Numbers] = []
        left = max_bytes
        for start, end in zip(*spans(chosen.offsets, READ_APART), strict=True):
            wanted = chosen.offsets[np.searchsorted(chosen.offsets, start) :]
            wanted = wanted[: np.searchsorted(wanted, end)]
            for whole in self._read_span(int(start), int(end), left):
                batch, offsets = whole, whole.column("offset").to_numpy()
                if len(offsets) != int(offsets[-1] - offsets[0]) + 1 or len(wanted) != end - start:
                    rows = np.flatnonzero(np.isin(offsets, wanted))
                    batch, offsets = whole.take(pa.array(rows)), offsets[rows]
                if batch.num_rows:
                    parts.append(batch)
                    found.append(offsets)
                left -= batch.get_total_buffer_size()
                if left <= 0:
                    break
            if left <= 0:
                break
        if not parts:
            return None, chosen.only(np.zeros(len(chosen.offsets), dtype=np.bool_))
        if len(parts) == 1 and len(found[0]) == len(chosen.offsets):
            return parts[0], chosen
        there = np.concatenate(found)
        joint = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        return joint, chosen.only(np.searchsorted(chosen.offsets, there))

    def _read_span(self, start: int, end: int, max_bytes: int) -> list[pa.RecordBatch]:
        """Reads a range over its gaps, up to about so many bytes; notes the holes."""
        batches: list[pa.RecordBatch] = []
        at, left = start, max_bytes

        def scan(first: int) -> Iterator[pa.RecordBatch]:
            about_bytes = (end - first) * self._record_bytes + READ_BYTES_MIN
            limit = Limit(max_records=end - first, max_bytes=max(1, min(left, about_bytes)))
            return self.reader.scan(first, limit, end=end)

        for step in scan_over(scan, start, end):
            if isinstance(step, RecordsMissing):
                first, following = max(at, step.first), min(end, step.end)
                if step.reason == UNREADABLE:
                    self._leave_for_later(first, following)
                else:
                    self._add_hole(first, following, step.reason)
                at = max(following, at + 1)
                continue
            offsets = step.column("offset").to_numpy()
            self._note_holes(at, offsets)
            batches.append(step)
            at = int(offsets[-1]) + 1
            size_bytes = step.get_total_buffer_size()
            left -= size_bytes
            self._record_bytes = 2 * size_bytes // step.num_rows + 64
            if left <= 0:
                return batches
        self._add_hole(at, end, "deleted")
        return batches

    def _leave_for_later(self, first: int, end: int) -> None:
        """Notes records that the device did not deliver: they are not acked, and tried again."""
        with self._mutex:
            now_ms = self.now_ms()
            if now_ms >= self._unread_until_ms:
                self._unread, self._unread_until_ms = NO_RANGES, now_ms + UNREAD_MS
            self._unread = merged(self._unread, (np.array([first]), np.array([end])))
            self.skipped.append(Skipped(self.partition, first, end, UNREADABLE))

    def _note_holes(self, start: int, offsets: Numbers) -> None:
        """Notes the offsets from `start` to the last one that are not there."""
        if int(offsets[-1]) - start + 1 == len(offsets):
            return
        before = np.concatenate(([start - 1], offsets[:-1]))
        for row in np.flatnonzero(offsets - before > 1):
            self._add_hole(int(before[row]) + 1, int(offsets[row]), "deleted")

    def _add_hole(self, first: int, end: int, reason: str) -> None:
        """Notes a range without records; one that is known already is not reported again."""
        if first >= end:
            return
        with self._mutex:
            above = self._holes[1] > self.durable.acked_until
            starts, ends = self._holes[0][above], self._holes[1][above]
            row = int(np.searchsorted(ends, first, side="right"))
            if row < len(ends) and starts[row] <= first and end <= ends[row]:
                return
            self._holes = merged((starts, ends), (np.array([first]), np.array([end])))
            self.skipped.append(Skipped(self.partition, first, end, reason))

    def _go_past_trimmed(self) -> None:
        """Moves the frontier to the first record that is there, and over holes."""
        state, earliest = self._written, self.reader.earliest_offset()
        if earliest > state.acked_until:
            self._tell_trimmed(state.acked_until, earliest)
            self.change(lambda now: self.plan_acks(now, NONE, earliest))
        elif len(self._holes[0]) and state.frontier_after(NONE, self._holes) > state.acked_until:
            self.change(lambda now: self.plan_acks(now, NONE))

    def _tell_trimmed(self, first: int, end: int) -> None:
        """Returns why a range is gone; what the ledger has no reason for was deleted by a user."""
        for gap in self.reader.ledger_of_gaps.between(first, end):
            if gap.first > first:
                self.skipped.append(Skipped(self.partition, first, gap.first, "deleted"))
            until = min(gap.end, end)
            self.skipped.append(Skipped(self.partition, max(first, gap.first), until, gap.reason))
            first = until
        if first < end:
            self.skipped.append(Skipped(self.partition, first, end, "deleted"))

    def plan_acks(self, state: State, acks: Numbers, at_least: int = 0) -> Events | None:
        """Plans acks: a bump for what moves the frontier, an ack for each of the others."""
        holes = self._holes
        if at_least > state.acked_until:
            holes = merged(holes, (np.array([0]), np.array([at_least])))
        until = state.frontier_after(acks, holes)
        ahead = acks[np.searchsorted(acks, until) :]
        if len(ahead):
            ahead = ahead[~state.are_acked(ahead)]
        parts = []
        if until > state.acked_until:
            parts.append(events_of(Event.BUMP_ACKED_UNTIL, until))
        if len(ahead):
            parts.append(events_of(Event.ACK, ahead))
        return joined(parts) if parts else None

    # ------------------------------------------------------------------ changing

    def mark(self, chosen: Chosen, lease_ms: int, acks: int) -> tuple[NDArray[np.bool_], int]:
        """Sets leases; returns for which records, and their deadline. What was acked gets none."""
        deadline_ms = self.now_ms() + lease_ms
        epochs = chosen.epochs + 1
        marks = events_of(Event.MARK_INFLIGHT, chosen.offsets, deadline_ms, epochs)
        after = self.change(lambda _: marks, acks).after
        return after.holds(chosen.offsets, epochs), deadline_ms

    def ack(self, offsets: Numbers, acks: int) -> int:
        """Acks sorted offsets in any state; returns how many were not acked before."""
        self._refuse_beyond(int(offsets[-1]) + 1)
        new = 0

        def plan(state: State) -> Events | None:
            nonlocal new
            new = state.count_open(offsets)
            return self.plan_acks(state, offsets)

        self.change(plan, acks)
        return new

    def commit(self, until: int, acks: int) -> int:
        """Acks everything below an offset; returns the frontier, which never moves back."""
        self._refuse_beyond(until)

        def plan(state: State) -> Events | None:
            return self.plan_acks(state, NONE, until)

        return self.change(plan, acks).after.acked_until

    def release(self, offsets: Numbers, epochs: Numbers | None, acks: int = DURABLE) -> int:
        """Ends running leases at once; returns how many. Leases of other epochs are left alone."""
        released = 0

        def plan(state: State) -> Events | None:
            nonlocal released
            rows = self.held_rows(state, offsets, epochs)
            released = len(rows)
            return events_of(Event.CLEAR_INFLIGHT, state.offsets[rows]) if len(rows) else None

        self.change(plan, acks)
        return released

    def extend(
        self, offsets: Numbers, epochs: Numbers | None, lease_ms: int, acks: int
    ) -> tuple[int, int]:
        """Moves deadlines; returns of how many records that are still held, and to when."""
        deadline_ms = self.now_ms() + lease_ms
        extended = 0

        def plan(state: State) -> Events | None:
            nonlocal extended
            rows = self.held_rows(state, offsets, epochs)
            extended = len(rows)
            if not extended:
                return None
            held = state.offsets[rows], deadline_ms, state.epochs[rows]
            return events_of(Event.MARK_INFLIGHT, *held)

        self.change(plan, acks)
        return extended, deadline_ms

    def held_rows(self, state: State, offsets: Numbers, epochs: Numbers | None) -> Numbers:
        """Returns the rows of those leases, by offset and epoch, that still run."""
        rows = state.lease_rows(offsets)
        held = rows >= 0
        if epochs is not None and len(state.epochs):
            held &= state.epochs[rows] == epochs
        rows = rows[held]
        return rows[state.deadlines_ms[rows] > self.now_ms()]

    def reset(self, offset: int) -> None:
        """Forgets everything and goes on at an offset; without space nothing is changed."""
        self.writer.exclusively(lambda: self._reset(offset))
        with self._mutex:
            self._holes = NO_RANGES
        for listener in self._listeners:
            listener.set()

    def _reset(self, offset: int) -> None:
        self.durable = self._written = self.journal.reset(self._written, offset)

    def _refuse_beyond(self, until: int) -> None:
        end = self.reader.end_offset("durable")
        if until > end:
            raise OffsetOutOfRange(
                f"{self.reader.place.name}: group {self.group!r} cannot ack up to {until}: the"
                f" durable log ends at {end}"
            )

    # ------------------------------------------------------------------ telling

    def lag(self) -> PartitionLag:
        """Returns how far behind the durable state is."""
        return lag_of(self.reader, self.durable, self.now_ms())
