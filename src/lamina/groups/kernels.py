"""The inner loops of a group's state: merging acks and leases into sorted columns, finding room.

What is acked ahead of the frontier is kept as merged ranges (`starts`, `ends`), what is with a
consumer as columns sorted by offset (`offsets`, `deadlines`, `epochs`). A batch of events is cut
into runs of one type and ascending offsets; a long run is merged in one walk over the columns, a
short one is put in its place by binary search, so that neither a thousand acks nor a journal of
single ones is slow. The code that makes events sorts them.

Rules.
1. `apply` works on copies that its caller made, with room for everything the events could add.
2. The order of events matters only as documented in `state.py`; duplicates are harmless.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.formats.keratin.delta import Event
from lamina.formats.kernels.declare import kernel, kernel_at_once

_MARK = int(Event.MARK_INFLIGHT)
_ACK = int(Event.ACK)
_CLEAR = int(Event.CLEAR_INFLIGHT)
_BUMP = int(Event.BUMP_ACKED_UNTIL)
_SHORT = 8
CLEARED = 0
"""The deadline of a lease that was released: it has passed at any time."""


@kernel
def _first_not_below(values: Any, count: int, wanted: int) -> int:
    """The first row of a sorted column that is at or above a number."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _shift(values: Any, source: int, target: int, count: int) -> None:
    """Moves the rows from `source` to the end to `target`."""
    if source > target:
        for row in range(source, count):
            values[target + row - source] = values[row]
    elif source < target:
        for row in range(count - 1, source - 1, -1):
            values[target + row - source] = values[row]


@kernel
def _drop_leases(leases: Any, count: int, low: int, high: int) -> int:
    """Removes the rows from `low` to `high`; returns how many are left."""
    if low < high:
        for column in leases:
            _shift(column, high, low, count)
    return count - (high - low)


@kernel
def _swallow(ranges: Any, count: int, frontier: int) -> tuple[int, int]:
    """Moves the frontier over the ranges that it touches; returns it and how many are left."""
    starts, ends = ranges
    touched = 0
    while touched < count and starts[touched] <= frontier:
        frontier = max(frontier, ends[touched])
        touched += 1
    if touched > 0:
        _shift(starts, touched, 0, count)
        _shift(ends, touched, 0, count)
    return frontier, count - touched


@kernel
def _add_range(ranges: Any, count: int, start: int, end: int) -> int:
    """Puts one range, which is above the frontier, among the others; returns how many there are."""
    starts, ends = ranges
    low = _first_not_below(ends, count, start)
    high = _first_not_below(starts, count, end + 1)
    if low < high:
        start = min(start, starts[low])
        end = max(end, ends[high - 1])
    _shift(starts, high, low + 1, count)
    _shift(ends, high, low + 1, count)
    starts[low] = start
    ends[low] = end
    return count + 1 - (high - low)


@kernel
def _merge_acks(acks: Any, frontier: int, ranges: Any, count: int, into: Any) -> int:
    """Merges sorted acks with the ranges into other columns; returns how many ranges there are."""
    starts, ends = ranges
    new_starts, new_ends = into
    made = row = ack = 0
    while row < count or ack < len(acks):
        if ack == len(acks) or (row < count and starts[row] <= acks[ack]):
            start, end = starts[row], ends[row]
            row += 1
        else:
            start, end = acks[ack], acks[ack] + 1
            ack += 1
        if end <= frontier:
            continue
        if made > 0 and start <= new_ends[made - 1]:
            new_ends[made - 1] = max(new_ends[made - 1], end)
        else:
            new_starts[made] = start
            new_ends[made] = end
            made += 1
    return made


@kernel
def _keep_unacked(leases: Any, count: int, frontier: int, ranges: Any, range_count: int) -> int:
    """Removes the leases of what is acked; returns how many are left."""
    offsets, deadlines, epochs = leases
    starts, ends = ranges
    kept = at = 0
    for row in range(count):
        offset = offsets[row]
        while at < range_count and ends[at] <= offset:
            at += 1
        if offset < frontier or (at < range_count and starts[at] <= offset):
            continue
        offsets[kept] = offset
        deadlines[kept] = deadlines[row]
        epochs[kept] = epochs[row]
        kept += 1
    return kept


@kernel
def _is_acked(offset: int, frontier: int, ranges: Any, count: int) -> bool:
    starts, ends = ranges
    if offset < frontier:
        return True
    row = _first_not_below(ends, count, offset + 1)
    return row < count and starts[row] <= offset


@kernel
def _add_lease(leases: Any, count: int, offset: int, deadline: int, epoch: int) -> int:
    """Adds a lease or replaces that of an epoch not above; returns how many there are."""
    offsets, deadlines, epochs = leases
    row = _first_not_below(offsets, count, offset)
    if row < count and offsets[row] == offset:
        if epoch >= epochs[row]:
            deadlines[row] = deadline
            epochs[row] = epoch
        return count
    for column in leases:
        _shift(column, row, row + 1, count)
    offsets[row] = offset
    deadlines[row] = deadline
    epochs[row] = epoch
    return count + 1


@kernel
def _merge_leases(marks: Any, leases: Any, count: int, into: Any) -> int:
    """Merges marks, sorted by offset, with the leases into other columns; returns how many."""
    offsets, deadlines, epochs = leases
    new_offsets, new_deadlines, new_epochs = into
    mark_offsets, mark_deadlines, mark_epochs = marks
    made = row = mark = 0
    while row < count or mark < len(mark_offsets):
        if mark == len(mark_offsets) or (row < count and offsets[row] <= mark_offsets[mark]):
            offset, deadline, epoch = offsets[row], deadlines[row], epochs[row]
            row += 1
        else:
            offset, deadline, epoch = mark_offsets[mark], mark_deadlines[mark], mark_epochs[mark]
            mark += 1
        if made > 0 and new_offsets[made - 1] == offset:
            if epoch >= new_epochs[made - 1]:
                new_deadlines[made - 1] = deadline
                new_epochs[made - 1] = epoch
            continue
        new_offsets[made] = offset
        new_deadlines[made] = deadline
        new_epochs[made] = epoch
        made += 1
    return made


@kernel
def _copy(source: Any, target: Any, count: int) -> None:
    for column in range(len(source)):
        target[column][:count] = source[column][:count]


@kernel
def _ack_one(offset: int, frontier: int, ranges: Any, leases: Any, counts: Any) -> int:
    """Acks one offset; returns the frontier."""
    if offset < frontier:
        return frontier
    if offset == frontier:
        frontier, counts[0] = _swallow(ranges, counts[0], offset + 1)
        low = 0
        high = _first_not_below(leases[0], counts[1], frontier)
    else:
        counts[0] = _add_range(ranges, counts[0], offset, offset + 1)
        low = _first_not_below(leases[0], counts[1], offset)
        high = low + 1 if low < counts[1] and leases[0][low] == offset else low
    counts[1] = _drop_leases(leases, counts[1], low, high)
    return frontier


@kernel
def _bump(until: int, frontier: int, ranges: Any, leases: Any, counts: Any) -> int:
    """Acks everything below an offset; returns the frontier."""
    frontier, counts[0] = _swallow(ranges, counts[0], max(frontier, until))
    high = _first_not_below(leases[0], counts[1], frontier)
    counts[1] = _drop_leases(leases, counts[1], 0, high)
    return frontier


@kernel
def _unacked(marks: Any, frontier: int, ranges: Any, count: int) -> tuple[Any, Any, Any]:
    """The marks of what is not acked."""
    offsets, deadlines, epochs = marks
    kept = np.empty((3, len(offsets)), dtype=np.int64)
    made = 0
    for row in range(len(offsets)):
        if not _is_acked(offsets[row], frontier, ranges, count):
            kept[0, made] = offsets[row]
            kept[1, made] = deadlines[row]
            kept[2, made] = epochs[row]
            made += 1
    return kept[0, :made], kept[1, :made], kept[2, :made]


@kernel
def _ack(offsets: Any, frontier: int, state: Any, counts: Any) -> int:
    """Acks a run of offsets; returns the frontier."""
    ranges, leases, spare = state
    if len(offsets) <= _SHORT:
        for offset in offsets:
            frontier = _ack_one(offset, frontier, ranges, leases, counts)
        return frontier
    made = _merge_acks(offsets, frontier, ranges, counts[0], spare[0])
    _copy(spare[0], ranges, made)
    frontier, counts[0] = _swallow(ranges, made, frontier)
    counts[1] = _keep_unacked(leases, counts[1], frontier, ranges, counts[0])
    return frontier


@kernel
def _mark(marks: Any, frontier: int, state: Any, counts: Any) -> None:
    """Sets the leases of a run of marks."""
    ranges, leases, spare = state
    offsets, deadlines, epochs = marks
    if len(offsets) <= _SHORT:
        for row in range(len(offsets)):
            if not _is_acked(offsets[row], frontier, ranges, counts[0]):
                lease = offsets[row], deadlines[row], epochs[row]
                counts[1] = _add_lease(leases, counts[1], *lease)
        return
    unacked = _unacked(marks, frontier, ranges, counts[0])
    counts[1] = _merge_leases(unacked, leases, counts[1], spare[1])
    _copy(spare[1], leases, counts[1])


@kernel
def _clear(offsets: Any, leases: Any, counts: Any) -> None:
    """Ends the leases of a run of offsets."""
    for offset in offsets:
        row = _first_not_below(leases[0], counts[1], offset)
        if row < counts[1] and leases[0][row] == offset:
            leases[1][row] = CLEARED


@kernel_at_once(lambda events, _, ranges, leases, spare: len(events[0]) + ranges[1] + leases[1])
def apply(events: Any, frontier: int, ranges: Any, leases: Any, spare: Any) -> Any:
    """Applies events to columns with room; returns (frontier, ranges, leases).

    `ranges` and `leases` are a tuple of columns and how many rows are used; `spare` holds columns
    of the same sizes to merge into.
    """
    types, offsets, deadlines, epochs = events
    state = ranges[0], leases[0], spare
    counts = np.array([ranges[1], leases[1]])
    row = 0
    while row < len(types):
        kind = types[row]
        end = row + 1
        while end < len(types) and types[end] == kind and offsets[end] >= offsets[end - 1]:
            end += 1
        if kind == _ACK:
            frontier = _ack(offsets[row:end], frontier, state, counts)
        elif kind == _MARK:
            marks = offsets[row:end], deadlines[row:end], epochs[row:end]
            _mark(marks, frontier, state, counts)
        elif kind == _CLEAR:
            _clear(offsets[row:end], leases[0], counts)
        elif kind == _BUMP:
            until = offsets[row:end].max()
            frontier = _bump(until, frontier, ranges[0], leases[0], counts)
        else:
            frontier = 0
            counts[:] = 0
        row = end
    return frontier, counts[0], counts[1]


@kernel_at_once(lambda acks, frontier, starts, ends: len(acks) + len(starts))
def frontier_after(acks: Any, frontier: int, starts: Any, ends: Any) -> int:
    """Returns where the frontier moves to when sorted offsets are acked too."""
    ack = row = 0
    while True:
        before = frontier
        while ack < len(acks) and acks[ack] <= frontier:
            frontier = max(frontier, acks[ack] + 1)
            ack += 1
        while row < len(starts) and starts[row] <= frontier:
            frontier = max(frontier, ends[row])
            row += 1
        if frontier == before:
            return frontier


@kernel_at_once(lambda wanted, *_: len(wanted))
def are_acked(wanted: Any, frontier: int, starts: Any, ends: Any, out: Any) -> None:
    """Returns per offset whether it is acked."""
    for row in range(len(wanted)):
        out[row] = _is_acked(wanted[row], frontier, (starts, ends), len(starts))


@kernel_at_once(lambda wanted, epochs, offsets, *_: len(wanted) + len(offsets))
def are_held(wanted: Any, epochs: Any, offsets: Any, known: Any, out: Any) -> None:
    """Returns per offset (sorted) whether a lease has it under its epoch."""
    row = _first_not_below(offsets, len(offsets), wanted[0]) if len(wanted) > 0 else 0
    for at in range(len(wanted)):
        while row < len(offsets) and offsets[row] < wanted[at]:
            row += 1
        out[at] = row < len(offsets) and offsets[row] == wanted[at] and known[row] == epochs[at]


@kernel_at_once(lambda first, end, taken, *_: len(taken[0][0]) + len(taken[1]) + len(taken[2][0]))
def find_free(first: int, end: int, taken: Any, wanted: int, out: Any) -> int:
    """Finds offsets from `first` on that nothing has taken, as ranges; returns how many ranges.

    `taken` is ((starts, ends), offsets, (starts, ends)), each sorted: what is acked, what has a
    lease, what is set apart. Stops at `wanted` offsets, or when `out` is full.
    """
    (starts, ends), offsets, (other_starts, other_ends) = taken
    found_starts, found_ends = out
    row = lease = other = made = 0
    while first < end and wanted > 0 and made < len(found_starts):
        while row < len(ends) and ends[row] <= first:
            row += 1
        while lease < len(offsets) and offsets[lease] < first:
            lease += 1
        while other < len(other_ends) and other_ends[other] <= first:
            other += 1
        stop = min(end, first + wanted)
        moved = first
        if row < len(starts):
            if starts[row] <= first:
                moved = ends[row]
            stop = min(stop, starts[row])
        if lease < len(offsets):
            if offsets[lease] == first:
                moved = max(moved, first + 1)
            stop = min(stop, offsets[lease])
        if other < len(other_starts):
            if other_starts[other] <= first:
                moved = max(moved, other_ends[other])
            stop = min(stop, other_starts[other])
        if moved > first:
            first = moved
            continue
        found_starts[made] = first
        found_ends[made] = stop
        made += 1
        wanted -= stop - first
        first = stop
    return made
