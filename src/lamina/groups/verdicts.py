"""Settling records that one consumer holds: all as it decides, in one change, or none of them.

`ack` and similar calls accept records from any caller. A Kafka share consumer may only settle what
it holds itself, under the epoch of its delivery: a higher epoch shows that the record has been with
another consumer since. Checking and changing are one step in the group's journal, so two consumers
never settle the same delivery.

| verdict     | what becomes of the record            |
|-------------|---------------------------------------|
| GAP, ACCEPT | acked                                 |
| RELEASE     | deliverable again, at once            |
| REJECT      | acked; its dead letter is written     |
| RENEW       | held on, for another lease            |
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lamina.api import DURABLE
from lamina.formats.keratin.delta import Event, Events
from lamina.groups.shared_partition import GroupPartition
from lamina.groups.state import Chosen, State, events_of, joined


class Verdict(IntEnum):
    """What a consumer decides about a record; the numbers are those of Kafka's protocol."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


def are_held(partition: GroupPartition, held: Chosen) -> bool:
    """Returns whether all of some records are still held under their epochs."""
    state = partition.durable
    return len(partition.held_rows(state, held.offsets, held.epochs)) == len(held.offsets)


def settle(
    partition: GroupPartition, held: Chosen, verdicts: NDArray[np.int8], lease_ms: int
) -> int | None:
    """Carries out the verdict on each record, durably; returns when a renewed lease ends.

    Returns None, and does nothing, if one of them is not held under its epoch any more.
    """
    deadline_ms = partition.now_ms() + lease_ms
    is_done = (verdicts != Verdict.RELEASE) & (verdicts != Verdict.RENEW)
    done = held.offsets[is_done]
    released = held.offsets[verdicts == Verdict.RELEASE]
    renewed = held.only(verdicts == Verdict.RENEW)
    is_settled = False

    def plan(state: State) -> Events | None:
        nonlocal is_settled
        rows = partition.held_rows(state, held.offsets, held.epochs)
        is_settled = len(rows) == len(held.offsets)
        if not is_settled:
            return None
        parts = [
            partition.plan_acks(state, done) if len(done) else None,
            events_of(Event.CLEAR_INFLIGHT, released) if len(released) else None,
            events_of(Event.MARK_INFLIGHT, renewed.offsets, deadline_ms, renewed.epochs)
            if len(renewed.offsets)
            else None,
        ]
        found = [each for each in parts if each is not None]
        return joined(found) if found else None

    partition.change(plan, DURABLE)
    return deadline_ms if is_settled else None
