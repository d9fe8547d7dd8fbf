"""The members of one consumer group: Kafka's classic protocol as a state machine without I/O.

                 first join                  all joined, or time is up
        Empty ───────────────▶ Preparing ───────────────────────────────▶ Completing
          ▲                     ▲   ▲                                         │ the leader syncs
          │ everybody has left  │   │ a member joins, leaves or expires       ▼
          └─────────────────────┘   └────────────────────────────────────── Stable

A rebalance has two meetings. At the first, everybody joins; the answers leave together and name a
new generation and its leader. At the second, everybody syncs; the leader brings the assignment of
each member, which this module never looks into.

Rules.
1. Nothing here waits, reads a clock or locks: times are arguments, `next_deadline_ms` returns when
   `advance` has something to do, and answers are put into `outbox` for the caller to deliver.
2. A request that has to wait keeps its `reply`. Every reply is called exactly once: with the
   meeting's result, or with a refusal when the meeting is over for that member.
3. A member is alive while it waits for an answer, or until its session timeout has passed since
   it was last heard of. A static member (one with an instance id) keeps its place while it is away.
4. An assignment belongs to one generation: requests that name another are refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from lamina.api.memberships import (
    Assigned,
    Identity,
    Joined,
    JoinRequest,
    Membership,
    MembershipState,
    Refusal,
)
from lamina.groups.member_list import MEMBER_BYTES, JoinReply, Member, MemberList, SyncReply

Answer = TypeVar("Answer", Joined, Assigned)
NEW_MEMBER_MS = 300_000
"""How long a member may wait for its first meeting: its client may have vanished."""


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """What a group allows; names and defaults are Kafka's, but for the shorter first delay."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_delay_ms: int = 100
    members_max: int = 1_000


def _new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4()}"


class Headcount(NamedTuple):
    """A group that somebody has joined: its state, and how many members it has."""

    group: str
    state: MembershipState
    members: int


class ClassicGroup:
    """One group: its members, its generation, and which of them waits for what."""

    def __init__(
        self,
        name: str,
        settings: MembershipSettings = MembershipSettings(),
        *,
        new_id: Callable[[str], str] = _new_id,
    ) -> None:
        self.name = name
        self.state: MembershipState = "Empty"
        self.generation = 0
        self.outbox: list[Callable[[], None]] = []
        self._settings = settings
        self._new_id = new_id
        self._members = MemberList()
        self._pending: dict[str, int] = {}
        self._leader = ""
        self._protocol_type = ""
        self._protocol = ""
        self._meeting_ends_ms = 0
        self._first_ends_ms = 0
        self._is_first = False
        self._came_lately = False

    @property
    def is_empty(self) -> bool:
        """Returns whether the group has no member, and none that is about to join."""
        return not self._members and not self._pending

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._members)

    @property
    def weight_bytes(self) -> int:
        """About how many bytes its members take in memory, and those who may become some."""
        members = sum(each.weight_bytes for each in self._members)
        return members + MEMBER_BYTES * (1 + len(self._pending))

    def growth_bytes(self, request: JoinRequest) -> int:
        """Returns how many bytes more there are when a request has been let in."""
        return self._members.growth_bytes(request)

    def member_of(self, instance_id: str) -> str:
        """Returns the id of the member that holds an instance; empty if there is none."""
        holder = self._members.of_instance(instance_id)
        return holder.id if holder is not None else ""

    # ------------------------------------------------------------------ joining

    def join(self, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        """Makes a consumer a member of the next generation; answered when everybody has joined."""
        refusal = self._refuses(request)
        if refusal is not None:
            self._answer(reply, Joined(refusal, member_id=request.member_id))
        elif request.member_id:
            self._join_known(request, reply, now_ms)
        elif (old := self._members.of_instance(request.instance_id)) is not None:
            self._succeed(old, request, reply, now_ms)
        elif request.instance_id is None and request.must_know_id:
            member_id = self._new_id(request.client_id)
            self._pending[member_id] = now_ms + request.session_timeout_ms
            self._answer(reply, Joined(Refusal.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            prefix = request.client_id if request.instance_id is None else request.instance_id
            self._admit(self._new_id(prefix), request, reply, now_ms)

    def _refuses(self, request: JoinRequest) -> Refusal | None:
        allowed = self._settings
        timeout_ms = request.session_timeout_ms
        if not allowed.session_timeout_min_ms <= timeout_ms <= allowed.session_timeout_max_ms:
            return Refusal.INVALID_SESSION_TIMEOUT
        if not self._members.agree(request, self._protocol_type):
            return Refusal.INCONSISTENT_GROUP_PROTOCOL
        is_known = self._members.knows(request.member_id, request.instance_id)
        is_expected = is_known or request.member_id in self._pending
        if not is_expected and len(self._members) + len(self._pending) >= allowed.members_max:
            return Refusal.GROUP_MAX_SIZE_REACHED
        return None

    def _join_known(self, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        if request.instance_id is None and self._pending.pop(request.member_id, None) is not None:
            self._admit(request.member_id, request, reply, now_ms)
            return
        refusal = self._members.refusal_of(Identity(request.member_id, 0, request.instance_id))
        if refusal is not None:
            self._answer(reply, Joined(refusal, member_id=request.member_id))
            return
        member = self._members[request.member_id]
        unchanged = member.about.protocols == request.protocols
        is_settled = self.state == "CompletingRebalance" or (
            self.state == "Stable" and member.id != self._leader
        )
        if unchanged and is_settled:  # its last answer was lost: it gets the same again
            member.hear(now_ms)
            self._answer(reply, self._joined(member))
            return
        self._update(member, request, reply, now_ms)

    def _admit(self, member_id: str, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        self._members.add(Member(member_id, request, now_ms + NEW_MEMBER_MS, joining=reply))
        self._protocol_type = request.protocol_type
        self._came_lately = True
        self._rebalance(now_ms)

    def _update(self, member: Member, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        if member.joining is not None:  # a client that repeats its request has hung up on the first
            self._answer(member.joining, Joined(Refusal.REBALANCE_IN_PROGRESS, member_id=member.id))
        member.about, member.joining = request, reply
        self._protocol_type = request.protocol_type
        self._rebalance(now_ms)

    def _succeed(self, old: Member, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        """Puts a static member's successor in its place, and fences the predecessor.

        A stable group whose assignor stays the same goes on as it is: that a static member
        restarts is no reason to move partitions.
        """
        self._refuse_waiting(old, Refusal.FENCED_INSTANCE_ID)
        leader_before = self._leader
        heir = Member(
            self._new_id(request.instance_id or ""),
            request,
            now_ms + request.session_timeout_ms,
            is_new=old.is_new,
            assignment=old.assignment,
        )
        self._members.replace(old, heir)
        if self._leader == old.id:
            self._leader = heir.id
        if self.state != "Stable" or self._members.chosen_protocol() != self._protocol:
            heir.joining = reply
            self._rebalance(now_ms)
            return
        answer = self._joined(heir)
        if request.may_skip:
            answer = replace(answer, skip_assignment=self._leader == heir.id)
        else:  # as a follower it asks for its share and assigns nothing
            answer = replace(answer, leader=leader_before, members=())
        self._answer(reply, answer)

    def _refuse_waiting(self, member: Member, refusal: Refusal) -> None:
        """Ends what a member waits for."""
        if member.joining is not None:
            self._answer(member.joining, Joined(refusal, member_id=member.id))
        if member.syncing is not None:
            self._answer(member.syncing, Assigned(refusal))
        member.joining = member.syncing = None

    # ------------------------------------------------------------------ the first meeting

    def _rebalance(self, now_ms: int) -> None:
        """Calls everybody to a meeting, or goes on with the one that is being held."""
        if self.state != "PreparingRebalance":
            for member in self._members:
                if member.syncing is not None:
                    self._answer(member.syncing, Assigned(Refusal.REBALANCE_IN_PROGRESS))
                    member.syncing = None
            self._is_first = self.state == "Empty"
            self.state = "PreparingRebalance"
            wait_ms = self._members.longest_rebalance_ms()
            self._first_ends_ms = now_ms + wait_ms
            if self._is_first:  # more members are about to start: one rebalance for all of them
                wait_ms = min(wait_ms, self._settings.initial_delay_ms)
                self._came_lately = False
            self._meeting_ends_ms = now_ms + wait_ms
        self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state != "PreparingRebalance" or self._pending:
            return
        if not self._members or (
            not self._is_first and all(each.joining for each in self._members)
        ):
            self._complete_join(now_ms)

    def _meeting_is_over(self, now_ms: int) -> None:
        """Ends the first meeting; the very first one waits on while members keep arriving."""
        if self._is_first and self._came_lately and now_ms < self._first_ends_ms:
            self._came_lately = False
            delay_ms = self._settings.initial_delay_ms
            self._meeting_ends_ms = min(now_ms + delay_ms, self._first_ends_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begins the next generation with the members that joined; the others lose their place."""
        for member in self._members:
            if member.joining is None and member.about.instance_id is None:
                self._remove(member)
        present = [each for each in self._members if each.joining is not None]
        if self._members and not present:  # all static, all away: their places are kept
            self._meeting_ends_ms = now_ms + max(1, self._members.longest_rebalance_ms())
            return
        self.generation += 1
        if not present:
            self.state, self._protocol, self._leader = "Empty", "", ""
            return
        if not any(each.id == self._leader for each in present):
            self._leader = present[0].id
        self.state, self._protocol = "CompletingRebalance", self._members.chosen_protocol()
        self._meeting_ends_ms = now_ms + self._members.longest_rebalance_ms()
        for member in present:
            assert member.joining is not None
            self._answer(member.joining, self._joined(member))
            member.joining, member.is_new = None, False
            member.hear(now_ms)

    def _joined(self, member: Member) -> Joined:
        is_leader = member.id == self._leader
        return Joined(
            generation=self.generation,
            protocol_type=self._protocol_type,
            protocol=self._protocol,
            leader=self._leader,
            member_id=member.id,
            members=self._members.joiners(self._protocol) if is_leader else (),
        )

    # ------------------------------------------------------------------ the second meeting

    def sync(
        self,
        who: Identity,
        assignments: Mapping[str, bytes],
        reply: SyncReply,
        now_ms: int,
        *,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Answers a member's share, as soon as the leader has brought everybody's."""
        refusal = self._members.refusal_of(who) or self._stale(who)
        known = (self._protocol_type, self._protocol)
        if refusal is None and any(
            asked not in (None, ours) for asked, ours in zip(protocol, known, strict=True)
        ):
            refusal = Refusal.INCONSISTENT_GROUP_PROTOCOL
        if refusal is None and self.state == "PreparingRebalance":
            refusal = Refusal.REBALANCE_IN_PROGRESS
        if refusal is not None:
            self._answer(reply, Assigned(refusal))
            return
        member = self._members[who.member_id]
        member.hear(now_ms)
        if self.state == "Stable":
            self._answer(reply, self._assigned(member))
            return
        if member.syncing is not None:
            self._answer(member.syncing, Assigned(Refusal.REBALANCE_IN_PROGRESS))
        member.syncing = reply
        if member.id == self._leader:
            self._settle(assignments, now_ms)

    def _settle(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        self.state = "Stable"
        for member in self._members:
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                self._answer(member.syncing, self._assigned(member))
                member.syncing = None
                member.hear(now_ms)

    def _assigned(self, member: Member) -> Assigned:
        return Assigned(None, self._protocol_type, self._protocol, member.assignment)

    # ------------------------------------------------------------------ staying and leaving

    def heartbeat(self, who: Identity, now_ms: int) -> Refusal | None:
        """Notes that a member is alive; REBALANCE_IN_PROGRESS calls it to the next meeting."""
        refusal = self._members.refusal_of(who) or self._stale(who)
        if refusal is not None:
            return refusal
        self._members[who.member_id].hear(now_ms)
        return Refusal.REBALANCE_IN_PROGRESS if self.state == "PreparingRebalance" else None

    def may_commit(self, who: Identity, now_ms: int) -> Refusal | None:
        """Decides whether offsets may be committed under a name.

        A group without members takes them from anybody: tools, and consumers that assign
        partitions to themselves.
        """
        if who.generation < 0 and self.state == "Empty":
            return None
        if who.generation < 0 and not who.member_id and who.instance_id is None:
            return Refusal.UNKNOWN_MEMBER_ID
        refusal = self._members.refusal_of(who) or self._stale(who)
        if refusal is not None:
            return refusal
        if self.state == "CompletingRebalance":
            return Refusal.REBALANCE_IN_PROGRESS
        self._members[who.member_id].hear(now_ms)
        return None

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> Refusal | None:
        """Ends a membership at once; a static member may be named by its instance alone."""
        if self._pending.pop(member_id, None) is not None:
            self._complete_if_all_joined(now_ms)
            return None
        if not member_id and instance_id is not None:
            member_id = self.member_of(instance_id)
        refusal = self._members.refusal_of(Identity(member_id, 0, instance_id))
        if refusal is None:
            self._remove(self._members[member_id])
            self._without_member(now_ms)
        return refusal

    def _without_member(self, now_ms: int) -> None:
        if self.state == "PreparingRebalance":
            self._complete_if_all_joined(now_ms)
        else:
            self._rebalance(now_ms)

    def _remove(self, member: Member) -> None:
        self._refuse_waiting(member, Refusal.UNKNOWN_MEMBER_ID)
        self._members.remove(member)
        if member.id == self._leader:
            self._leader = ""

    def _stale(self, who: Identity) -> Refusal | None:
        return None if who.generation == self.generation else Refusal.ILLEGAL_GENERATION

    # ------------------------------------------------------------------ time

    def next_deadline_ms(self) -> int | None:
        """Returns when `advance` has something to do, if no request comes before."""
        deadlines = [each.deadline_ms for each in self._members if each.may_expire]
        deadlines += self._pending.values()
        if self.state in ("PreparingRebalance", "CompletingRebalance"):
            deadlines.append(self._meeting_ends_ms)
        return min(deadlines, default=None)

    def advance(self, now_ms: int) -> None:
        """Does what is due: members that fell silent go, meetings end."""
        for member_id, deadline_ms in list(self._pending.items()):
            if deadline_ms <= now_ms:
                del self._pending[member_id]
        silent = [each for each in self._members if each.deadline_ms <= now_ms and each.may_expire]
        late = self.state == "CompletingRebalance" and self._meeting_ends_ms <= now_ms
        if late:  # members that did not ask for their share are gone, the leader first of all
            silent += [
                each for each in self._members if each.syncing is None and each not in silent
            ]
        for member in silent:
            self._remove(member)
        if silent:
            self._without_member(now_ms)
        self._complete_if_all_joined(now_ms)
        if self.state == "PreparingRebalance" and self._meeting_ends_ms <= now_ms:
            self._meeting_is_over(now_ms)

    def close(self) -> None:
        """Refuses all waiting members: the group, or its coordinator, is gone."""
        for member in self._members:
            self._remove(member)
        self._pending.clear()
        self.state = "Dead"

    # ------------------------------------------------------------------ looking

    def describe(self) -> Membership:
        """Returns the members as administrators see them."""
        is_agreed = self.state in ("Stable", "CompletingRebalance")
        protocol = self._protocol if is_agreed else ""
        members = self._members.infos(protocol, is_stable=self.state == "Stable")
        return Membership(
            self.name, self.state, self._protocol_type, protocol, self.generation, members
        )

    def _answer(self, reply: Callable[[Answer], None], answer: Answer) -> None:
        self.outbox.append(lambda: reply(answer))

    def take_answers(self) -> Iterable[Callable[[], None]]:
        """Returns the answers to deliver, each a call, and forgets them."""
        taken, self.outbox = self.outbox, []
        return taken
