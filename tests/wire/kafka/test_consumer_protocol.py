"""What consumers of a group say to each other is Kafka's: kafka-python and bytes by hand judge."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from lamina.errors import InvalidRequest
from lamina.wire.kafka import consumer_protocol as protocol

names = st.text(st.characters(codec="ascii", categories=["L", "Nd"]), min_size=1, max_size=12)


def test_bytes_are_as_documented() -> None:
    assert protocol.encode_subscription(["b", "a"]) == (
        b"\0\0" + b"\0\0\0\2" + b"\0\1a" + b"\0\1b" + b"\xff\xff\xff\xff"
    )
    assert protocol.encode_assignment({"t": [0, 3]}) == (
        b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2\0\0\0\0\0\0\0\3" + b"\xff\xff\xff\xff"
    )


@given(st.sets(names, max_size=5))
def test_subscriptions_come_back_also_from_later_versions(topics: set[str]) -> None:
    assert protocol.decode_subscription(protocol.encode_subscription(topics)) == sorted(topics)
    for version in range(4):
        theirs = ConsumerProtocolSubscription(
            topics=sorted(topics),
            user_data=b"x",
            owned_partitions=[],
            generation_id=1,
            rack_id="r",
            version=version,
        )
        assert protocol.decode_subscription(bytes(theirs.encode())) == sorted(topics)


@given(st.dictionaries(names, st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=4))
def test_assignments_come_back(share: dict[str, list[int]]) -> None:
    ours = protocol.encode_assignment(share)
    assert protocol.decode_assignment(ours) == share
    theirs = ConsumerProtocolAssignment.decode(ours)
    assert {each.topic: each.partitions for each in theirs.assigned_partitions} == share


def test_no_assignment_at_all_is_an_empty_one() -> None:
    assert protocol.decode_assignment(b"") == {}


def test_a_share_is_told_where_it_can_be_read() -> None:
    share = protocol.encode_assignment({"t": [0, 3]})
    assert protocol.told_share("consumer", share) == {"t": [0, 3]}
    assert protocol.told_share("consumer", b"") == {}
    assert protocol.told_share("consumer", share[:-8]) is None
    assert protocol.told_share("connect", share) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (protocol.decode_subscription, protocol.decode_assignment):
        try:
            decode(data)
        except InvalidRequest:
            continue


@pytest.mark.parametrize("count", [-1, 1 << 30, 3])
def test_a_count_that_cannot_be_is_refused_before_anything_is_made(count: int) -> None:
    with pytest.raises(InvalidRequest, match="claims"):
        protocol.decode_subscription(struct.pack(">hi", 0, count) + b"\0\1a")


@pytest.mark.parametrize(
    ("subscriptions", "partitions", "expected"),
    [
        ({"b": "t", "a": "t"}, {"t": 3}, {"a": {"t": [0, 1]}, "b": {"t": [2]}}),
        ({"a": "tu", "b": "t"}, {"t": 2, "u": 2}, {"a": {"t": [0], "u": [0, 1]}, "b": {"t": [1]}}),
        ({"a": "t", "b": "t", "c": "t"}, {"t": 2}, {"a": {"t": [0]}, "b": {"t": [1]}, "c": {}}),
        ({"a": "t"}, {}, {"a": {}}),
    ],
)
def test_ranges_are_shared_out_as_kafka_does(
    subscriptions: dict[str, str],
    partitions: dict[str, int],
    expected: dict[str, dict[str, list[int]]],
) -> None:
    assert protocol.assign_ranges(subscriptions, partitions) == expected


@given(st.dictionaries(names, st.sets(names, max_size=3), max_size=6), st.integers(0, 9))
def test_every_partition_goes_to_exactly_one_member(
    subscriptions: dict[str, set[str]], count: int
) -> None:
    topics = {topic for each in subscriptions.values() for topic in each}
    shares = protocol.assign_ranges(subscriptions, dict.fromkeys(topics, count))
    for topic in topics:
        given_away = [n for share in shares.values() for n in share.get(topic, [])]
        assert sorted(given_away) == list(range(count))
    for member, share in shares.items():
        assert set(share) <= subscriptions[member]
