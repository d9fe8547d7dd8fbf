"""What consumers of a group say to each other is Kafka's: kafka-python and bytes by hand judge."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from lamina.errors import InvalidRequest
from lamina.wire.kafka import consumer_protocol as protocol
from lamina.wire.kafka.consumer_protocol import Subscription

names = st.text(st.characters(codec="ascii", categories=["L", "Nd"]), min_size=1, max_size=12)


def test_bytes_are_as_documented() -> None:
    plain = b"\0\0\0\2" + b"\0\1a" + b"\0\1b" + b"\xff\xff\xff\xff"
    assert protocol.encode_subscription(Subscription(("b", "a"))) == (
        b"\0\2" + plain + b"\0\0\0\0" + b"\xff\xff\xff\xff"
    )
    assert protocol.encode_subscription(Subscription(("b", "a"), {"b": [5]}, 7)) == (
        b"\0\2" + plain + b"\0\0\0\1" + b"\0\1b" + b"\0\0\0\1\0\0\0\5" + b"\0\0\0\7"
    )
    assert protocol.encode_assignment({"t": [0, 3]}) == (
        b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2\0\0\0\0\0\0\0\3" + b"\xff\xff\xff\xff"
    )


@given(
    st.sets(names, max_size=5),
    st.dictionaries(names, st.lists(st.integers(0, 99), max_size=3), max_size=3),
    st.integers(0, 2**31 - 1),
)
def test_subscriptions_come_back_also_from_other_versions(
    topics: set[str], owned: dict[str, list[int]], generation: int
) -> None:
    ours = protocol.encode_subscription(Subscription(tuple(topics), owned, generation))
    expected = Subscription(tuple(sorted(topics)), owned, generation)
    assert protocol.decode_subscription(ours) == expected
    read = ConsumerProtocolSubscription.decode(ours)
    assert read.topics == sorted(topics)
    assert {each.topic: each.partitions for each in read.owned_partitions} == owned
    for version in range(4):
        theirs = ConsumerProtocolSubscription(
            topics=sorted(topics),
            user_data=b"x",
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=numbers)
                for topic, numbers in owned.items()
            ],
            generation_id=generation,
            rack_id="r",
            version=version,
        )
        assert protocol.decode_subscription(bytes(theirs.encode())) == Subscription(
            tuple(sorted(topics)), owned if version > 0 else {}, generation if version > 1 else -1
        )


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


def test_every_prefix_of_a_subscription_is_refused() -> None:
    whole = protocol.encode_subscription(Subscription(("a",), {"a": [1]}, 3))
    for end in range(len(whole)):
        with pytest.raises(InvalidRequest):
            protocol.decode_subscription(whole[:end])


@pytest.mark.parametrize("count", [-1, 1 << 30, 3])
def test_a_count_that_cannot_be_is_refused_before_anything_is_made(count: int) -> None:
    with pytest.raises(InvalidRequest, match="claims"):
        protocol.decode_subscription(struct.pack(">hi", 0, count) + b"\0\1a")
