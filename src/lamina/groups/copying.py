"""Copies of groups' states for the archive, and what becomes of one that is read back.

The tier asks for the copies of a partition at every tick. A state never changes, so one that is
still the same object needs no new copy, and an idle group costs nothing.

Rules.
1. A copy pairs a state with the life that it belongs to: while a reset is under way there is none.
2. Only a group that the list of groups names, durably, has copies. So a copy without an entry in a
   sound list is of a group that was deleted, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lamina.formats.documents import group_copy
from lamina.formats.documents.group_copy import GroupCopy, Owner
from lamina.formats.documents.topic_file import UNKNOWN_MS, TopicFile
from lamina.groups.shared_partition import GroupPartition
from lamina.groups.state import State


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """What the last copy was made of."""

    state: State
    owner: Owner
    archived_until: int
    data: bytes


class Copies:
    """Makes the copies; remembers the last ones."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._made: dict[tuple[str, int, str], _Made] = {}

    def of(
        self,
        about: TopicFile,
        partition: int,
        archived_end: int,
        groups: Mapping[str, Sequence[GroupPartition]],
    ) -> dict[str, bytes]:
        """Returns the copy of every group of a partition, by the group's name."""
        made = {}
        for name, parts in groups.items() if about.created_ms != UNKNOWN_MS else ():
            each = parts[partition]
            life, state = each.life, each.durable
            if life is None or each.life != life or each.is_poisoned:
                continue  # the files of a poisoned one may differ
            owner = Owner(about.name, about.epoch, about.created_ms, partition, name, life)
            made[name] = self._copy(owner, state, min(archived_end, state.top))
        return made

    def _copy(self, owner: Owner, state: State, archived_until: int) -> bytes:
        key = owner.topic, owner.partition, owner.group
        last = self._made.get(key)
        if (
            last is None
            or last.state is not state
            or (last.owner, last.archived_until) != (owner, archived_until)
        ):
            data = group_copy.encode(_copy_of(owner, state, archived_until, self._now_ms()))
            last = self._made[key] = _Made(state, owner, archived_until, data)
        return last.data


def _copy_of(owner: Owner, state: State, archived_until: int, now_ms: int) -> GroupCopy:
    return GroupCopy(
        owner,
        now_ms,
        archived_until,
        state.acked_until,
        np.column_stack((state.starts, state.ends)).tolist(),
        np.column_stack((state.offsets, state.deadlines_ms, state.epochs)).tolist(),
    )


def state_of(copy: GroupCopy) -> State:
    """Returns the state that a copy holds."""
    ranges = np.array(copy.acked, dtype=np.int64).reshape(-1, 2)
    leases = np.array(copy.leases, dtype=np.int64).reshape(-1, 3)
    return State(copy.acked_until, *ranges.T.copy(), *leases.T.copy())


def is_of(copy: GroupCopy, about: TopicFile, partition: int, group: str) -> bool:
    """Returns whether a copy belongs to this very topic (not one of the same name) and group."""
    owner = copy.owner
    theirs = owner.topic, owner.epoch, owner.created_ms, owner.partition, owner.group
    return theirs == (about.name, about.epoch, about.created_ms, partition, group)
