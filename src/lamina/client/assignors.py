"""Who reads what in a classic group: Kafka's assignors, under Kafka's names.

The leader of a group shares the partitions out among all members, Kafka's own among them. Which
assignor counts is what the members agree on.

    range                neighbouring partitions of each topic; members give up all and begin again
    roundrobin           one partition after the other to the next member; likewise
    cooperative-sticky   members keep what they have as far as shares stay even; what moves is
                         given up in one rebalance and taken in the next (KIP-429)

Rules.
1. The outcome depends on the arguments alone: members are taken in the order of their ids.
2. `cooperative-sticky` gives nobody a partition that another member says it still has. That one
   finds it missing in its share, gives it up and joins again: the next rebalance gives it away.
3. What a member says to have counts by the generation that it is from; the newest is believed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lamina.wire.kafka.consumer_protocol import Subscription

Share: TypeAlias = dict[str, list[int]]
"""Partitions by topic."""
Wanted: TypeAlias = Mapping[str, Subscription]
"""What each member subscribed to, and has."""
Counts: TypeAlias = Mapping[str, int]
"""How many partitions each topic has."""
_Place: TypeAlias = tuple[str, int]
_Audience: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assignor:
    """A way to share partitions out, and whether members keep theirs while they meet."""

    assign: Callable[[Wanted, Counts], dict[str, Share]]
    is_cooperative: bool = False


def assign_ranges(wanted: Wanted, counts: Counts) -> dict[str, Share]:
    """Gives neighbouring partitions to each member, as Kafka's range assignor does.

    Those that come first get one more where the partitions of a topic do not divide evenly.
    """
    shares: dict[str, Share] = {member: {} for member in wanted}
    for topic, members in _audiences(wanted).items():
        least, more = divmod(counts.get(topic, 0), len(members))
        first = 0
        for place, member in enumerate(members):
            end = first + least + (place < more)
            if end > first:
                shares[member][topic] = list(range(first, end))
            first = end
    return shares


def assign_in_turn(wanted: Wanted, counts: Counts) -> dict[str, Share]:
    """Deals all partitions out one by one, as Kafka's round-robin assignor does."""
    shares: dict[str, Share] = {member: {} for member in wanted}
    members, turn = sorted(wanted), 0
    topics = {member: set(wanted[member].topics) for member in members}
    for topic in sorted(_audiences(wanted)):
        for number in range(counts.get(topic, 0)):
            while topic not in topics[members[turn % len(members)]]:
                turn += 1
            shares[members[turn % len(members)]].setdefault(topic, []).append(number)
            turn += 1
    return shares


def assign_sticky(wanted: Wanted, counts: Counts) -> dict[str, Share]:
    """Levels the shares with as few moves as it takes, and holds back what somebody still has."""
    audiences = _audiences(wanted)
    claims = _claims(wanted, audiences, counts)
    balance = _Balance(wanted)
    free: dict[_Audience, list[_Place]] = {}
    for topic, audience in sorted(audiences.items()):
        for number in range(counts.get(topic, 0)):
            place = (topic, number)
            owner = _owner(claims.get(place), audience)
            if owner is None:
                free.setdefault(audience, []).append(place)
            else:
                balance.give(owner, audience, place)
    for audience in sorted(free, key=len):  # those with the least choice first
        balance.fill(audience, free[audience])
    balance.level()
    shares: dict[str, Share] = {member: {} for member in wanted}
    for member, (topic, number) in balance.holdings():
        if all(claimant == member for _, claimant in claims.get((topic, number), ())):
            shares[member].setdefault(topic, []).append(number)
    return shares


def _audiences(wanted: Wanted) -> dict[str, _Audience]:
    """Returns the members that want each topic, in order."""
    found: dict[str, list[str]] = {}
    for member in sorted(wanted):
        for topic in set(wanted[member].topics):
            found.setdefault(topic, []).append(member)
    return {topic: tuple(members) for topic, members in found.items()}


def _claims(
    wanted: Wanted, audiences: Mapping[str, _Audience], counts: Counts
) -> dict[_Place, set[tuple[int, str]]]:
    """Returns who says to have each partition that exists, with the generation it is from."""
    found: dict[_Place, set[tuple[int, str]]] = {}
    for member, said in wanted.items():
        for topic, numbers in said.owned.items():
            for number in numbers if topic in audiences else ():
                if 0 <= number < counts.get(topic, 0):
                    found.setdefault((topic, number), set()).add((said.generation, member))
    return found


def _owner(claims: set[tuple[int, str]] | None, audience: _Audience) -> str | None:
    """Returns whose a partition is: the newest claim counts, unless two are equally new."""
    if not claims:
        return None
    newest = max(generation for generation, _ in claims)
    owners = [member for generation, member in claims if generation == newest]
    return owners[0] if len(owners) == 1 and owners[0] in audience else None


class _Balance:
    """Who is to have which partitions, by their audience: those who may have them instead."""

    def __init__(self, members: Iterable[str]) -> None:
        self._load = dict.fromkeys(sorted(members), 0)
        self._held: dict[str, dict[_Audience, list[_Place]]] = {each: {} for each in self._load}

    def give(self, member: str, audience: _Audience, place: _Place) -> None:
        """Gives a partition to a member."""
        self._held[member].setdefault(audience, []).append(place)
        self._load[member] += 1

    def fill(self, audience: _Audience, places: Iterable[_Place]) -> None:
        """Gives each partition to the one of its audience that has the fewest."""
        heap = [(self._load[member], member) for member in audience]
        heapq.heapify(heap)
        for place in places:
            load, member = heap[0]
            heapq.heapreplace(heap, (load + 1, member))
            self.give(member, audience, place)

    def level(self) -> None:
        """Moves partitions from the fullest member to the emptiest until they are level."""
        while (move := self._next_move()) is not None:
            giver, taker, audience = move
            self._load[giver] -= 1
            self.give(taker, audience, self._held[giver][audience].pop())

    def _next_move(self) -> tuple[str, str, _Audience] | None:
        for giver in sorted(self._load, key=lambda member: -self._load[member]):
            for audience, places in self._held[giver].items():
                taker = min(audience, key=self._load.__getitem__)
                if places and self._load[giver] > self._load[taker] + 1:
                    return giver, taker, audience
        return None

    def holdings(self) -> Iterator[tuple[str, _Place]]:
        """Returns each partition with its member, partitions of a topic in order."""
        for member, by_audience in self._held.items():
            for place in sorted(place for places in by_audience.values() for place in places):
                yield member, place


ASSIGNORS: dict[str, Assignor] = {
    "range": Assignor(assign_ranges),
    "roundrobin": Assignor(assign_in_turn),
    "cooperative-sticky": Assignor(assign_sticky, is_cooperative=True),
}
"""By the names that members agree on."""
