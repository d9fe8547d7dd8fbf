"""Assignors share every partition out once, evenly, as Kafka's do: aiokafka judges."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from lamina.client import assignors
from lamina.client.assignors import ASSIGNORS, Share
from lamina.wire.kafka.consumer_protocol import Subscription

names = st.text("abcdef", min_size=1, max_size=3)
wishes = st.dictionaries(names, st.sets(names, min_size=1, max_size=3), min_size=1, max_size=6)
counts = st.dictionaries(names, st.integers(0, 9), max_size=6)


def wanting(asked: Mapping[str, Any]) -> dict[str, Subscription]:
    return {member: Subscription(tuple(topics)) for member, topics in asked.items()}


def places(share: Share) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in share.items() for number in numbers}


@pytest.mark.parametrize(
    ("asked", "partitions", "expected"),
    [
        ({"b": "t", "a": "t"}, {"t": 3}, {"a": {"t": [0, 1]}, "b": {"t": [2]}}),
        ({"a": "tu", "b": "t"}, {"t": 2, "u": 2}, {"a": {"t": [0], "u": [0, 1]}, "b": {"t": [1]}}),
        ({"a": "t", "b": "t", "c": "t"}, {"t": 2}, {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}),
        ({"a": "t"}, {}, {"a": {}}),
    ],
)
def test_ranges_are_shared_out_as_kafka_does(
    asked: dict[str, str], partitions: dict[str, int], expected: dict[str, Share]
) -> None:
    assert assignors.assign_ranges(wanting(asked), partitions) == expected


class Cluster:
    """What aiokafka's assignors ask of a cluster."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        self._partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic, 0)
        return set(range(count)) if count else None


@given(wishes, counts)
def test_turns_are_those_of_kafka(asked: dict[str, set[str]], partitions: dict[str, int]) -> None:
    theirs = RoundRobinPartitionAssignor.assign(
        Cluster(partitions),
        {
            member: ConsumerProtocolMemberMetadata(0, sorted(topics), b"")
            for member, topics in asked.items()
        },
    )
    found = {member: dict(share.assignment) for member, share in theirs.items()}
    assert assignors.assign_in_turn(wanting(asked), partitions) == found


@given(st.sampled_from(sorted(ASSIGNORS)), wishes, counts)
def test_every_partition_goes_to_exactly_one_member_that_wants_it(
    name: str, asked: dict[str, set[str]], partitions: dict[str, int]
) -> None:
    shares = ASSIGNORS[name].assign(wanting(asked), partitions)
    assert set(shares) == set(asked)
    given_away = sorted(place for share in shares.values() for place in places(share))
    wanted = {topic for topics in asked.values() for topic in topics}
    assert given_away == sorted(
        (topic, number) for topic in wanted for number in range(partitions.get(topic, 0))
    )
    for member, share in shares.items():
        assert set(share) <= asked[member]


def met(
    asked: Mapping[str, Any], partitions: dict[str, int], owned: Mapping[str, Share], meeting: int
) -> dict[str, Share]:
    """The shares after a meeting to which members come with what they have."""
    return assignors.assign_sticky(
        {
            member: Subscription(tuple(topics), owned.get(member, {}), meeting)
            for member, topics in asked.items()
        },
        partitions,
    )


@given(st.lists(wishes, min_size=1, max_size=4), counts)
def test_sticky_shares_move_in_two_steps_and_come_to_rest(
    meetings: list[dict[str, set[str]]], partitions: dict[str, int]
) -> None:
    owned: dict[str, Share] = {}
    for number, asked in enumerate(meetings):
        owned = {member: share for member, share in owned.items() if member in asked}
        first = met(asked, partitions, owned, 2 * number)
        for member, share in first.items():  # what another one has is not given away
            others = [each for name, each in owned.items() if name != member]
            assert not any(places(share) & places(each) for each in others)
        owned = met(asked, partitions, first, 2 * number + 1)
        assert met(asked, partitions, owned, 2 * number + 2) == owned  # at rest
        wanted = {topic for topics in asked.values() for topic in topics}
        assert sorted(place for share in owned.values() for place in places(share)) == sorted(
            (topic, at) for topic in wanted for at in range(partitions.get(topic, 0))
        )
        loads = {member: len(places(share)) for member, share in owned.items()}
        for giver, share in owned.items():
            for taker, topics in asked.items():
                assert not (set(share) & topics) or loads[giver] <= loads[taker] + 1


@pytest.mark.parametrize(("have", "moves"), [((9, 0, 0), 6), ((2, 0, 10), 6), ((10, 8, 0), 6)])
def test_a_new_member_takes_no_more_than_its_part(have: tuple[int, ...], moves: int) -> None:
    numbers = iter(range(sum(have)))
    owned = {
        member: {"t": [next(numbers) for _ in range(count)]}
        for member, count in zip("abc", have, strict=True)
    }
    asked = dict.fromkeys("abc", "t")
    first = met(asked, {"t": sum(have)}, owned, 1)
    second = met(asked, {"t": sum(have)}, first, 2)
    kept = sum(len(places(owned[each]) & places(second[each])) for each in "abc")
    assert sum(have) - kept == moves
    assert {len(places(share)) for share in second.values()} == {sum(have) // 3}


def test_what_two_claim_goes_to_the_newer_and_to_nobody_before_the_other_gave_it_up() -> None:
    wanted = {
        "old": Subscription(("t",), {"t": [0, 1]}, 3),
        "new": Subscription(("t",), {"t": [0]}, 4),
    }
    assert assignors.assign_sticky(wanted, {"t": 2}) == {"old": {"t": [1]}, "new": {}}
    wanted["old"] = Subscription(("t",), {"t": [1]}, 5)
    assert assignors.assign_sticky(wanted, {"t": 2}) == {"old": {"t": [1]}, "new": {"t": [0]}}


def test_claims_of_what_is_not_there_or_not_wanted_count_for_nothing() -> None:
    wanted = {"a": Subscription(("t",), {"t": [7, -1, 0, 0], "u": [0]}, 1)}
    assert assignors.assign_sticky(wanted, {"t": 1, "u": 1}) == {"a": {"t": [0]}}


def test_ten_thousand_partitions_are_shared_out_in_no_time() -> None:
    asked = {f"m{number:03}": "t" for number in range(100)}
    begun = time.perf_counter()
    owned = met(dict(list(asked.items())[:50]), {"t": 10_000}, {}, 1)
    first = met(asked, {"t": 10_000}, owned, 2)
    second = met(asked, {"t": 10_000}, first, 3)
    assert time.perf_counter() - begun < 20
    assert {len(places(share)) for share in second.values()} == {100}
