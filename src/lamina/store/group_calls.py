"""The groups of a store, of both kinds, as its users ask for them.

A share group (`lamina.groups.group`) hands out records; a classic group (`coordinator`) shares
partitions, and has committed offsets. Listing, describing, resetting and deleting work for both:
a group of a topic is classic if it has committed an offset in it.

Rules.
1. A refusal by a classic group is a returned value for callers that implement its protocol
   (joining, syncing, committing), and an exception for callers that administer it.
2. Moving or deleting a group may use the space that is reserved for removing: it lets retention
   that waits for the group continue, and must not stop between two partitions for lack of space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TimeIsUp
from dataclasses import replace
from functools import partial
from typing import TypeVar

from lamina.api import GroupInfo, Move, Start
from lamina.api.memberships import (
    Assigned,
    Committed,
    Identity,
    Joined,
    JoinRequest,
    Membership,
    Refusal,
)
from lamina.errors import InvalidRequest, UnknownGroup
from lamina.formats.documents.topic_file import TopicFile
from lamina.groups import reset_targets
from lamina.groups.coordinator import Coordinator
from lamina.groups.lag import lag_of
from lamina.groups.lending import LendingGroup
from lamina.groups.offset_journal import CommittedOffsets
from lamina.groups.registry import Groups
from lamina.groups.state import State
from lamina.log.interfaces import LogReader, LogWriter
from lamina.store.disk_reserve import Reserve
from lamina.store.lookup import Lookup

WAIT_MS_MAX = 10_000
"""How long a call waits for a meeting; a member that waits longer asks again."""
_NOBODY = Identity("", -1)
_Answer = TypeVar("_Answer", Joined, Assigned)


class GroupCalls:
    """What a store that writes can be asked about groups."""

    def __init__(
        self,
        lookup: Lookup[LogWriter],
        groups: Groups,
        coordinator: Coordinator,
        now_ms: Callable[[], int],
        reserve: Reserve,
    ) -> None:
        self._lookup = lookup
        self._groups = groups
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._reserve = reserve

    # ------------------------------------------------------------------ both kinds

    def group(self, topic: str, name: str, *, start: Start = "earliest") -> LendingGroup:
        """Returns a consumer group; one that is not there yet is made."""
        return self._groups.group(self._lookup.topic(topic), name, start)

    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists consumer groups as (topic, group), sorted; of one topic or of all."""
        self._lookup.require_open()
        classic = classic_groups(self._coordinator.offsets, topic)
        return sorted({*self._groups.names(topic), *classic})

    def describe_group(self, topic: str, group: str) -> GroupInfo:
        """Returns for each partition what a group has acked, holds, and how far it is behind."""
        about = self._lookup.topic(topic)
        committed = self._committed(about.name, group)
        if not committed:
            return self._groups.describe(about.name, group)
        return classic_info(self._lookup, about, group, committed, self._now_ms())

    def reset_group(
        self,
        topic: str,
        group: str,
        *,
        to: int | str | None = None,
        timestamp_ms: int | None = None,
        shift: int | None = None,
        partitions: Sequence[int] | None = None,
        execute: bool = False,
    ) -> list[Move]:
        """Plans to move a group; carries it out with `execute`."""
        target = reset_targets.reset_target(to, timestamp_ms, shift)
        about = self._lookup.topic(topic)
        committed = self._committed(about.name, group)
        if not committed:
            moves = self._groups.plan_reset(about.name, group, target, partitions)
            if execute:  # what is planned once: a second try must not shift a group twice
                self._reserve.use(lambda: self._groups.move(about.name, group, moves))
            return moves
        moves = []
        for number in range(about.partitions) if partitions is None else partitions:
            reader = self._lookup.partition(about.name, number)
            before = committed.get(number, reader.earliest_offset())
            moves.append(Move(number, before, target(reader, before)))
        if execute:
            offsets = [Committed(about.name, each.partition, each.after) for each in moves]
            commit = partial(self._coordinator.commit, group, offsets)
            self._refuse_used(group, self._reserve.use(commit))
        return moves

    def delete_group(self, topic: str, group: str) -> None:
        """Deletes a consumer group with all that it has acked or committed in a topic."""
        name = self._lookup.topic(topic).name
        committed = self._committed(name, group)
        if committed:
            places = [(name, number) for number in committed]
            forget = partial(self._coordinator.forget_offsets, group, places)
            self._refuse_used(group, self._reserve.use(forget))
        if not committed or (name, group) in self._groups.names(name):
            self._reserve.use(lambda: self._groups.delete(name, group))

    def progress(self, topic: str, partition: int) -> Mapping[str, int]:
        """Returns below which offset each group has read a partition: retention waits for it."""
        found = dict(self._groups.progress(topic, partition))
        offsets = self._coordinator.offsets
        for name in offsets.groups():
            committed = offsets.of(name).get((topic, partition))
            if committed is not None:
                found[name] = committed.offset
        return found

    def _committed(self, topic: str, group: str) -> dict[int, int]:
        return committed_in(self._coordinator.offsets, topic, group)

    def _refuse_used(self, group: str, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise InvalidRequest(
                f"group {group!r} has members that read for it; stop them first, or its place"
                " would change under their hands"
            )

    # ------------------------------------------------------------------ classic groups

    def join_group(self, group: str, request: JoinRequest, *, wait_ms: int = 0) -> Joined:
        """Joins a classic group; waits until its members have met."""
        waiting = self._coordinator.join(group, request)
        joined = _waited(waiting, wait_ms, Joined(Refusal.REBALANCE_IN_PROGRESS))
        if joined.member_id:
            return joined
        # The time is up. A member that has a place by now must ask for that one, not for another.
        member_id = request.member_id
        if not member_id and request.instance_id is not None:
            member_id = self._coordinator.member_of(group, request.instance_id)
        return replace(joined, member_id=member_id)

    def sync_group(
        self,
        group: str,
        member: Identity,
        assignments: Mapping[str, bytes],
        *,
        wait_ms: int = 0,
    ) -> Assigned:
        """Asks for a member's share; the leader brings everybody's."""
        waiting = self._coordinator.sync(group, member, assignments)
        return _waited(waiting, wait_ms, Assigned(Refusal.REBALANCE_IN_PROGRESS))

    def heartbeat(self, group: str, member: Identity) -> Refusal | None:
        """Notes that a member is alive; returns why it has no share any more, if so."""
        return self._coordinator.heartbeat(group, member)

    def leave_group(self, group: str, member_id: str) -> Refusal | None:
        """Ends a membership at once."""
        return self._coordinator.leave(group, [(member_id, None)])[0]

    def commit_offsets(
        self, group: str, offsets: Sequence[Committed], member: Identity | None = None
    ) -> Refusal | None:
        """Commits offsets of a classic group durably; returns why it refused, if it did."""
        for each in offsets:
            self._lookup.partition(each.topic, each.partition)
        return self._coordinator.commit(group, offsets, member or _NOBODY)

    def committed_offsets(self, group: str) -> list[Committed]:
        """Returns what a classic group has committed."""
        self._lookup.require_open()
        return list(self._coordinator.offsets.of(group).values())

    def describe_members(self, group: str) -> Membership:
        """Describes the members of a classic group; raises UnknownGroup."""
        self._lookup.require_open()
        found = self._coordinator.describe(group)
        if found is None:
            raise UnknownGroup(f"there is no classic group {group!r}")
        return found


def classic_groups(offsets: CommittedOffsets, topic: str | None) -> set[tuple[str, str]]:
    """Returns the classic groups of a topic, or of all, as (topic, group)."""
    return {
        (place[0], name)
        for name in offsets.groups()
        for place in offsets.of(name)
        if topic in (None, place[0])
    }


def committed_in(offsets: CommittedOffsets, topic: str, group: str) -> dict[int, int]:
    """Returns what a classic group has committed in a topic, by partition."""
    found = offsets.of(group).values()
    return {each.partition: each.offset for each in found if each.topic == topic}


def classic_info(
    lookup: Lookup[LogReader],
    about: TopicFile,
    group: str,
    committed: Mapping[int, int],
    now_ms: int,
) -> GroupInfo:
    """Describes a classic group by what it has committed in a topic."""
    lags = []
    for number, offset in committed.items():
        if number < about.partitions:
            reader = lookup.partition(about.name, number)
            state = State(acked_until=max(0, offset)).clamped(reader.end_offset("durable"))
            lags.append(lag_of(reader, state, now_ms))
    return GroupInfo(about.name, group, tuple(lags))


def _waited(waiting: Future[_Answer], wait_ms: int, otherwise: _Answer) -> _Answer:
    try:
        return waiting.result(min(max(wait_ms, 0), WAIT_MS_MAX) / 1000)
    except TimeIsUp:
        waiting.cancel()
        return otherwise
