"""What a group has done with one partition: a value, and the one function that changes it.

    free ──mark──▶ inflight ──ack──▶ acked
      ▲               │
      └── deadline or clear: deliverable again, with epoch + 1

An offset is *acked* below the frontier `acked_until` or inside one of the ranges ahead of it. It
has a *lease* (deadline, epoch) from its first delivery until it is acked: the lease runs while its
deadline lies ahead, then the record is deliverable again. The epoch counts deliveries.

Live traffic and recovery change a state by `State.apply` and by nothing else:

| event              | what it does                                                              |
|--------------------|---------------------------------------------------------------------------|
| mark inflight      | sets the lease; ignored for what is acked, and for an epoch below the known |
| ack                | acks an offset and ends its lease; the frontier moves over what it touches |
| clear inflight     | ends the running lease, the epoch stays; ignored without a lease          |
| bump acked until   | acks everything below; never moves the frontier back                      |
| reset              | forgets everything                                                        |

Rules.
1. A state never changes: `apply` returns another one. Readers take one and are never confused, and
   a change that could not be journaled is simply not kept.
2. Replaying a journal over a state that already holds its effects ends in the same state.
3. Memory is proportional to leases and to ranges of acks ahead of the frontier; nothing here is a
   Python object for each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina.formats.keratin.delta import Event, Events
from lamina.groups import kernels

Numbers: TypeAlias = NDArray[np.int64]
Ranges: TypeAlias = tuple[Numbers, Numbers]
"""Starts and ends (exclusive) of ranges of offsets: sorted, apart from each other."""

NONE: Numbers = np.empty(0, dtype=np.int64)
NO_RANGES: Ranges = (NONE, NONE)
_ACK, _MARK = int(Event.ACK), int(Event.MARK_INFLIGHT)
_BUMP = int(Event.BUMP_ACKED_UNTIL)
FREE_RANGES_MAX = 4096
"""How many separate free ranges one search returns."""


def _none() -> Numbers:
    return NONE


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A group's state of one partition; see the module for what the columns mean.

    Columns may be those of the events that led here: neither is ever changed.
    """

    acked_until: int = 0
    starts: Numbers = field(default_factory=_none)
    ends: Numbers = field(default_factory=_none)
    offsets: Numbers = field(default_factory=_none)
    deadlines_ms: Numbers = field(default_factory=_none)
    epochs: Numbers = field(default_factory=_none)

    def apply(self, events: Events) -> State:
        """Returns the state after some events, in their order."""
        if not len(self.starts):
            if len(events.types) == 1 and events.types[0] == _BUMP:
                return self._bumped(int(events.offsets[0]))
            if not len(self.offsets) and self._are_fresh_marks(events):
                return State(self.acked_until, NONE, NONE, *events[1:])
        more_ranges = int(np.count_nonzero(events.types == _ACK))
        more_leases = int(np.count_nonzero(events.types == _MARK))
        ranges = _with_room((self.starts, self.ends), more_ranges)
        leases = _with_room((self.offsets, self.deadlines_ms, self.epochs), more_leases)
        spare = tuple(
            tuple(np.empty(len(columns[0]), dtype=np.int64) for _ in columns)
            for columns in (ranges, leases)
        )
        frontier, range_count, lease_count = kernels.apply(
            tuple(events),
            self.acked_until,
            (ranges, len(self.starts)),
            (leases, len(self.offsets)),
            spare,
        )
        return State(
            int(frontier),
            *(_fitted(column, range_count) for column in ranges),
            *(_fitted(column, lease_count) for column in leases),
        )

    def _are_fresh_marks(self, events: Events) -> bool:
        """Whether events only mark what is not acked, ascending: the usual poll of a consumer."""
        offsets = events.offsets
        return (
            len(offsets) > 0
            and int(offsets[0]) >= self.acked_until
            and bool((events.types == _MARK).all())
            and bool((offsets[1:] > offsets[:-1]).all())
        )

    def _bumped(self, until: int) -> State:
        """What a bump leads to when nothing is acked ahead: the usual end of a poll."""
        if until <= self.acked_until:
            return self
        done = int(np.searchsorted(self.offsets, until))
        leases = (self.offsets, self.deadlines_ms, self.epochs)
        return State(until, NONE, NONE, *(_fitted_from(column, done) for column in leases))

    @property
    def acked_ahead(self) -> int:
        """How many offsets above the frontier are acked."""
        return int((self.ends - self.starts).sum())

    def ahead(self) -> Numbers:
        """Returns the offsets above the frontier that are acked, one by one."""
        return expand(self.starts, self.ends)

    def ahead_in_pieces(self, count: int) -> Iterator[Numbers]:
        """Yields the acked offsets above the frontier, ascending, up to `count` at a time."""
        lengths = np.cumsum(self.ends - self.starts)
        for first in range(0, int(lengths[-1]) if len(lengths) else 0, count):
            low = int(np.searchsorted(lengths, first, side="right"))
            high = int(np.searchsorted(lengths, first + count, side="left")) + 1
            before = int(lengths[low - 1]) if low else 0
            starts, ends = self.starts[low:high].copy(), self.ends[low:high].copy()
            starts[0] += first - before
            ends[-1] -= max(0, int((ends - starts).sum()) - count)
            yield expand(starts, ends)

    def are_acked(self, offsets: Numbers) -> NDArray[np.bool_]:
        """Returns per offset whether it is acked."""
        out = np.empty(len(offsets), dtype=np.bool_)
        kernels.are_acked(offsets, self.acked_until, self.starts, self.ends, out)
        return out

    def count_open(self, offsets: Numbers) -> int:
        """How many of some sorted offsets are not acked."""
        if not len(self.starts):
            return len(offsets) - int(np.searchsorted(offsets, self.acked_until))
        return len(offsets) - int(np.count_nonzero(self.are_acked(offsets)))

    def lease_rows(self, offsets: Numbers) -> Numbers:
        """Returns the row of each offset's lease, -1 where it has none."""
        if len(self.offsets) == 0:
            return np.full(len(offsets), -1, dtype=np.int64)
        rows = np.minimum(np.searchsorted(self.offsets, offsets), len(self.offsets) - 1)
        return np.where(self.offsets[rows] == offsets, rows, -1)

    def holds(self, offsets: Numbers, epochs: Numbers) -> NDArray[np.bool_]:
        """Returns per offset (ascending) whether it has a lease of this epoch."""
        out = np.empty(len(offsets), dtype=np.bool_)
        kernels.are_held(offsets, epochs, self.offsets, self.epochs, out)
        return out

    def running(self, now_ms: int) -> int:
        """How many leases are running."""
        return int(np.count_nonzero(self.deadlines_ms > now_ms))

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When the next running lease ends; None if none is running."""
        running = self.deadlines_ms[self.deadlines_ms > now_ms]
        return int(running.min()) if len(running) else None

    def frontier_after(self, acks: Numbers, others: Ranges = NO_RANGES) -> int:
        """Returns where the frontier moves when sorted offsets, and `others`, count as acked."""
        if not len(self.starts) and not len(others[0]) and len(acks):
            first, last = int(acks[0]), int(acks[-1])
            if first > self.acked_until:
                return self.acked_until
            if last - first + 1 == len(acks):  # no two are the same, so none is left out
                return max(self.acked_until, last + 1)
        starts, ends = self.starts, self.ends
        if len(others[0]):
            starts, ends = merged((starts, ends), others)
        return int(kernels.frontier_after(acks, self.acked_until, starts, ends))

    def free(self, end: int, wanted: int, set_apart: Ranges = NO_RANGES) -> Ranges:
        """Finds up to `wanted` offsets below `end` that were never delivered or acked."""
        room = min(wanted, FREE_RANGES_MAX)
        out = (np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64))
        taken = ((self.starts, self.ends), self.offsets, set_apart)
        count = kernels.find_free(self.acked_until, end, taken, wanted, out)
        return out[0][:count], out[1][:count]

    def clamped(self, end: int) -> State:
        """Returns the state without anything at or above an offset: the log ends there."""
        kept = int(np.searchsorted(self.starts, end))
        leases = int(np.searchsorted(self.offsets, end))
        return State(
            min(self.acked_until, end),
            self.starts[:kept],
            np.minimum(self.ends[:kept], end),
            self.offsets[:leases],
            self.deadlines_ms[:leases],
            self.epochs[:leases],
        )

    @property
    def top(self) -> int:
        """One past the last offset that is acked or leased in the state."""
        tops = (self.acked_until, *self.ends[-1:], *(self.offsets[-1:] + 1))
        return max(int(top) for top in tops)

    def is_beyond(self, end: int) -> bool:
        """Returns whether anything of the state is at or above an offset, where the log ends."""
        return self.top > end

    def united(self, other: State) -> State:
        """Returns the state in which everything is acked that is acked in either; later epochs win.

        Where both have a lease of the same epoch this one's deadline stays.
        """
        return other.apply(self._events())

    def _events(self) -> Events:
        """The events that lead from nothing to this state."""
        return joined(
            [
                events_of(Event.BUMP_ACKED_UNTIL, self.acked_until),
                events_of(Event.ACK, self.ahead()),
                events_of(Event.MARK_INFLIGHT, self.offsets, self.deadlines_ms, self.epochs),
            ]
        )

    def with_deadlines_until(self, latest_ms: int) -> State:
        """Returns the state with no deadline after a time: a clock may have been set back."""
        if not len(self.offsets) or int(self.deadlines_ms.max()) <= latest_ms:
            return self
        return replace(self, deadlines_ms=np.minimum(self.deadlines_ms, latest_ms))

    def equals(self, other: State) -> bool:
        """Returns whether two states are the same."""
        names = ("starts", "ends", "offsets", "deadlines_ms", "epochs")
        same = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)
        return self.acked_until == other.acked_until and same


def events_of(
    kind: Event,
    offsets: Numbers | int = 0,
    deadlines_ms: Numbers | int = 0,
    epochs: Numbers | int = 0,
) -> Events:
    """Makes events of one type; a single number stands for a column of it."""
    count = 1 if isinstance(offsets, int) else len(offsets)
    return Events(*(_column(each, count) for each in (int(kind), offsets, deadlines_ms, epochs)))


def _column(values: Numbers | int, count: int) -> Numbers:
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, dtype=np.int64)
    column = np.empty(count, dtype=np.int64)
    column.fill(values)
    return column


def joined(parts: list[Events]) -> Events:
    """Puts events behind each other."""
    if len(parts) == 1:
        return parts[0]
    return Events(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def expand(starts: Numbers, ends: Numbers) -> Numbers:
    """Returns every offset of some ranges."""
    if len(starts) == 1:
        return np.arange(starts[0], ends[0], dtype=np.int64)
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def spans(offsets: Numbers, apart: int = 1) -> Ranges:
    """Returns the ranges that sorted offsets form; those up to `apart` apart are joined."""
    if not len(offsets):
        return NO_RANGES
    if int(offsets[-1]) - int(offsets[0]) < len(offsets):
        return offsets[:1], offsets[-1:] + 1
    breaks = np.flatnonzero(np.diff(offsets) > apart)
    starts = offsets[np.concatenate(([0], breaks + 1))]
    ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return starts, ends


def merged(first: Ranges, second: Ranges) -> Ranges:
    """Returns the union of two sets of ranges."""
    starts = np.concatenate((first[0], second[0]))
    ends = np.concatenate((first[1], second[1]))
    if len(starts) < 2:
        return starts, ends
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    begins = np.concatenate(([True], starts[1:] > reach[:-1]))
    lasts = np.concatenate((begins[1:], [True]))
    return starts[begins], reach[lasts]


def _with_room(columns: tuple[Numbers, ...], more: int) -> tuple[Numbers, ...]:
    grown = []
    for column in columns:
        copy = np.empty(len(column) + more, dtype=np.int64)
        copy[: len(column)] = column
        grown.append(copy)
    return tuple(grown)


def _fitted_from(column: Numbers, first: int) -> Numbers:
    """The rows from one on; copied when that frees most of the column."""
    return column[first:].copy() if first * 2 > len(column) else column[first:]


def _fitted(column: Numbers, count: int) -> Numbers:
    """The used rows; copied when that frees most of the column."""
    return column[:count].copy() if count * 2 < len(column) else column[:count]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Offsets that were set apart for one poll, ascending, with their deliveries so far."""

    offsets: Numbers
    epochs: Numbers

    def only(self, rows: NDArray[Any]) -> Chosen:
        """Returns some of them."""
        return Chosen(self.offsets[rows], self.epochs[rows])


NOTHING = Chosen(NONE, NONE)


def deliverable(
    state: State, now_ms: int, apart: Ranges, wanted: int, delivery_limit: int
) -> tuple[Chosen, Chosen]:
    """Finds up to `wanted` records whose leases are over: to deliver again, and spent ones."""
    over = np.flatnonzero(state.deadlines_ms <= now_ms)
    if len(over) and len(apart[0]):
        over = over[~_inside(state.offsets[over], apart)]
    over = over[:wanted]
    found = Chosen(state.offsets[over], state.epochs[over])
    is_spent = found.epochs >= delivery_limit
    return found.only(~is_spent), found.only(is_spent)


def _inside(offsets: Numbers, ranges: Ranges) -> NDArray[np.bool_]:
    """Returns per offset whether it is in one of the ranges."""
    starts, ends = ranges
    rows = np.searchsorted(ends, offsets, side="right")
    held = rows < len(ends)
    held[held] = starts[rows[held]] <= offsets[held]
    return held
