"""The members of a consumer group: by id, static ones also by instance, and what they agree on.

Rules.
1. Members keep the order in which they came; a successor of a static member takes its place.
2. A static member's instance belongs to the one member that holds it now: a request with the same
   instance and another id comes from a member that was replaced, and is fenced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from lamina.api.memberships import (
    Assigned,
    Identity,
    Joined,
    Joiner,
    JoinRequest,
    MemberInfo,
    Refusal,
)

MEMBER_BYTES = 1 << 10
"""What a member takes in memory beside what it says of itself, about."""
JoinReply: TypeAlias = Callable[[Joined], None]
SyncReply: TypeAlias = Callable[[Assigned], None]


def weight_of(about: JoinRequest) -> int:
    """Returns about how many bytes a member takes in memory."""
    names = (about.protocol_type, about.member_id, about.instance_id or "", about.client_id)
    protocols = sum(len(name) + len(data) for name, data in about.protocols)
    return MEMBER_BYTES + sum(map(len, names)) + protocols


@dataclass(slots=True)
class Member:
    """A member, and its request that is waiting, if there is one."""

    id: str
    about: JoinRequest
    deadline_ms: int
    is_new: bool = True
    assignment: bytes = b""
    joining: JoinReply | None = None
    syncing: SyncReply | None = None

    @property
    def may_expire(self) -> bool:
        """Whether its deadline counts: one that waits for an answer is alive, unless it is new."""
        return self.is_new or (self.joining is None and self.syncing is None)

    def hear(self, now_ms: int) -> None:
        """Notes that the member is alive."""
        self.deadline_ms = now_ms + self.about.session_timeout_ms

    @property
    def weight_bytes(self) -> int:
        """About how many bytes it takes in memory."""
        return weight_of(self.about) + len(self.assignment)

    def metadata(self, protocol: str) -> bytes:
        """Returns the member's metadata for an assignor."""
        return dict(self.about.protocols).get(protocol, b"")


class MemberList:
    """The members of a group."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def growth_bytes(self, request: JoinRequest) -> int:
        """Returns how many bytes more there are when a request has been let in."""
        old = self._members.get(request.member_id) or self.of_instance(request.instance_id)
        return weight_of(request) - (weight_of(old.about) if old is not None else 0)

    def knows(self, member_id: str, instance_id: str | None) -> bool:
        """Whether one of the two names a member."""
        return member_id in self._members or instance_id in self._instances

    def of_instance(self, instance_id: str | None) -> Member | None:
        """Returns the member that holds an instance."""
        member_id = self._instances.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self._members[member_id]

    def refusal_of(self, who: Identity) -> Refusal | None:
        """Returns why a request is not from a member; None if it is."""
        holder = self.of_instance(who.instance_id)
        if who.instance_id is not None and holder is None:
            return Refusal.UNKNOWN_MEMBER_ID
        if holder is not None and holder.id != who.member_id:
            return Refusal.FENCED_INSTANCE_ID
        return None if who.member_id in self._members else Refusal.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        """Adds a member behind the others."""
        self._members[member.id] = member
        if member.about.instance_id is not None:
            self._instances[member.about.instance_id] = member.id

    def replace(self, old: Member, heir: Member) -> None:
        """Puts another member in a member's place."""
        self._members = {
            heir.id if key == old.id else key: heir if key == old.id else each
            for key, each in self._members.items()
        }
        if heir.about.instance_id is not None:
            self._instances[heir.about.instance_id] = heir.id

    def remove(self, member: Member) -> None:
        """Removes a member."""
        del self._members[member.id]
        if member.about.instance_id is not None:
            del self._instances[member.about.instance_id]

    # ------------------------------------------------------------------ what they agree on

    def agree(self, request: JoinRequest, protocol_type: str) -> bool:
        """Whether a request leaves at least one assignor that every other member knows."""
        replaced = self.of_instance(request.instance_id)
        own = {request.member_id, replaced.id if replaced is not None else ""}
        others = [each for each in self if each.id not in own]
        names = {name for name, _ in request.protocols}
        for each in others:
            names &= {name for name, _ in each.about.protocols}
        is_same_type = not others or request.protocol_type == protocol_type
        return is_same_type and bool(names) and bool(request.protocol_type)

    def chosen_protocol(self) -> str:
        """Returns the assignor that most members prefer among those that all of them know."""
        common = set.intersection(*({name for name, _ in each.about.protocols} for each in self))
        votes = Counter(
            next(name for name, _ in each.about.protocols if name in common) for each in self
        )
        return votes.most_common(1)[0][0]

    def longest_rebalance_ms(self) -> int:
        """Returns how long the slowest member may take to come to a meeting."""
        return max((each.about.rebalance_timeout_ms for each in self), default=0)

    def joiners(self, protocol: str) -> tuple[Joiner, ...]:
        """Returns the members as the leader sees them."""
        return tuple(
            Joiner(each.id, each.about.instance_id, each.metadata(protocol)) for each in self
        )

    def infos(self, protocol: str, *, is_stable: bool) -> tuple[MemberInfo, ...]:
        """Returns the members as administrators see them; shares count in a stable group only."""
        return tuple(
            MemberInfo(
                each.id,
                each.about.instance_id,
                each.about.client_id,
                each.about.client_host,
                each.metadata(protocol),
                each.assignment if is_stable else b"",
            )
            for each in self
        )
