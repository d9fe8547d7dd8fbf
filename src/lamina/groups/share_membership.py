"""The members of one share group: Kafka's protocol (KIP-932) as a state machine without I/O.

                 heartbeat of epoch 0                 heartbeat -1, or silence
      (nobody) ───────────────────────▶ member ───────────────────────────────▶ (nobody)
                                         │  ▲
                   the group's epoch rises: │  │ the next heartbeat takes it over,
                   somebody came or went,   ▼  │ with the member's new share
                   or a topic grew         stale

There is no leader, and nobody waits: the group assigns partitions itself, and each member learns
its share by its own heartbeat. A share is only where a member looks for records: no two members
ever hold the same record, and what a member holds stays with it when its share changes.

Rules.
1. Nothing here waits, reads a clock or locks: times are arguments, and `next_deadline_ms` returns
   when `advance` has something to do.
2. A member may repeat the epoch before its present one, once: its answer may have been lost.
3. Every partition of a topic that a member subscribes to is in somebody's share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lamina.api.memberships import Refusal

JOINS, LEAVES = 0, -1
"""The epochs by which a member comes and goes."""
MEMBERS_MAX = 200
"""Of one group, as Kafka has it."""
Share: TypeAlias = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""
Counts: TypeAlias = Callable[[str], int]
"""How many partitions a topic has; 0 if it does not exist."""


@dataclass(frozen=True, slots=True)
class ShareBeat:
    """What a member sends with each heartbeat. Without `topics` its subscription is unchanged."""

    member_id: str
    epoch: int
    topics: tuple[str, ...] | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """The answer to a heartbeat. Without `share` the member's share is as before."""

    refusal: Refusal | None = None
    epoch: int = 0
    share: Share | None = None


@dataclass(slots=True)
class ShareMember:
    """A member: what it subscribed to, and the share that it was last sent."""

    about: ShareBeat
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    epoch_before: int = 0
    deadline_ms: int = 0
    share: Share = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareMembers:
    """The members of a group at one moment, as administrators see them."""

    group: str
    state: Literal["Empty", "Stable"]
    epoch: int
    members: tuple[ShareMember, ...]


class ShareGroup:
    """One group: its members and their shares."""

    def __init__(self, name: str, *, members_max: int = MEMBERS_MAX) -> None:
        self.name = name
        self.epoch = 0
        self._members_max = members_max
        self._members: dict[str, ShareMember] = {}
        self._counts: dict[str, int] = {}
        self._shares: dict[str, Share] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the group has no member."""
        return not self._members

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self._members)

    # ------------------------------------------------------------------ coming and staying

    def heartbeat(
        self, beat: ShareBeat, counts: Counts, *, now_ms: int, session_ms: int
    ) -> ShareAnswer:
        """Notes that a member is there, new or not, and returns its share if that has changed."""
        refusal = self._refuses(beat)
        if refusal is not None:
            return ShareAnswer(refusal)
        member = self._members.get(beat.member_id)
        if member is None:
            member = self._members[beat.member_id] = ShareMember(beat)
        is_news = beat.topics is not None and frozenset(beat.topics) != member.topics
        if beat.topics is not None:
            member.topics = frozenset(beat.topics)
        if beat.epoch == JOINS:
            member.about = beat
        member.deadline_ms = now_ms + session_ms
        self._assign(counts, is_news=is_news or beat.member_id not in self._shares)
        share = self._shares[beat.member_id]
        if member.epoch != self.epoch:
            member.epoch_before, member.epoch = member.epoch, self.epoch
        member.share = share
        return ShareAnswer(None, member.epoch, share if beat.epoch != member.epoch else None)

    def _refuses(self, beat: ShareBeat) -> Refusal | None:
        member = self._members.get(beat.member_id)
        if beat.epoch == JOINS:
            is_full = member is None and len(self._members) >= self._members_max
            return Refusal.GROUP_MAX_SIZE_REACHED if is_full else None
        if member is None:
            return Refusal.UNKNOWN_MEMBER_ID
        is_known = beat.epoch in (member.epoch, member.epoch_before)
        return None if is_known else Refusal.FENCED_MEMBER_EPOCH

    def _assign(self, counts: Counts, *, is_news: bool) -> None:
        """Begins the next epoch with new shares, if anything that they depend on has changed."""
        subscribed = sorted({topic for each in self._members.values() for topic in each.topics})
        found = {topic: counts(topic) for topic in subscribed}
        if is_news or found != self._counts:
            self._counts = found
            self.epoch += 1
            self._shares = fair_shares(
                {name: each.topics for name, each in self._members.items()}, found
            )

    # ------------------------------------------------------------------ leaving

    def leave(self, member_id: str) -> Refusal | None:
        """Ends a membership."""
        if self._members.pop(member_id, None) is None:
            return Refusal.UNKNOWN_MEMBER_ID
        self._without([member_id])
        return None

    def advance(self, now_ms: int) -> list[str]:
        """Ends the memberships of those that fell silent; returns whose."""
        silent = [name for name, each in self._members.items() if each.deadline_ms <= now_ms]
        for name in silent:
            del self._members[name]
        if silent:
            self._without(silent)
        return silent

    def _without(self, gone: Iterable[str]) -> None:
        """Divides what others had among those that stay: they learn it by their next heartbeats."""
        for name in gone:
            self._shares.pop(name, None)
        counts = dict(self._counts)
        self._assign(lambda topic: counts.get(topic, 0), is_news=True)

    def next_deadline_ms(self) -> int | None:
        """Returns when the next member falls silent, if no heartbeat comes before."""
        return min((each.deadline_ms for each in self._members.values()), default=None)

    # ------------------------------------------------------------------ looking

    def describe(self) -> ShareMembers:
        """Returns the members as administrators see them."""
        state: Literal["Empty", "Stable"] = "Empty" if self.is_empty else "Stable"
        return ShareMembers(self.name, state, self.epoch, tuple(self._members.values()))


def fair_shares(
    subscriptions: Mapping[str, frozenset[str]], counts: Mapping[str, int]
) -> dict[str, Share]:
    """Shares partitions among members.

    With at least as many members as partitions everybody may take from all of them: a share group
    needs no owner of a partition. With fewer, each partition is one member's, and everybody has
    as many as the others, or one more.
    """
    shares: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in subscriptions}
    turn = 0
    for topic in sorted(counts):
        readers = sorted(name for name, topics in subscriptions.items() if topic in topics)
        count = counts[topic]
        if not readers or not count:
            continue
        if count <= len(readers):
            for name in readers:
                shares[name][topic] = tuple(range(count))
            continue
        for number in range(len(readers)):
            name = readers[(turn + number) % len(readers)]
            shares[name][topic] = tuple(range(number, count, len(readers)))
        turn += count % len(readers)  # a member that has one more here gets none of the next ones
    return dict(shares)
