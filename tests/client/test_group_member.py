"""Consumers of one group share its partitions, embedded and served, whoever comes and goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import StoreApi
from lamina.client.consumer import Consumer
from lamina.client.message import TopicPartition
from lamina.errors import Fenced, UnknownTopic
from tests.server.rig import served

RECORDS = 24
QUICK = {"heartbeat.interval.ms": 20, "session.timeout.ms": 6_000, "auto.offset.reset": "earliest"}


@pytest.fixture(params=["embedded", "served"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreApi]:
    with contextlib.ExitStack() as ending:
        if request.param == "embedded":
            made: StoreApi = ending.enter_context(lamina.open(str(tmp_path / "data")))
        else:
            service = ending.enter_context(served(tmp_path / "data"))
            made = ending.enter_context(lamina.connect(service.flight_url))
        made.create_topic("t", partitions=4)
        for number in range(4):
            made.append(
                "t", [b"%d-%d" % (number, row) for row in range(RECORDS // 4)], partition=number
            )
        yield made


def consumer(store: StoreApi, **config: Any) -> Consumer:
    return lamina.Consumer(store, {"group.id": "g", **QUICK, **config})


def settle(*members: Consumer) -> None:
    """Polls until every partition is somebody's; nothing is taken that is handed out."""
    for _ in range(500):
        for each in members:
            each.poll(0.02)
        shares = [place for each in members for place in each.assignment()]
        if len(shares) == 4 and all(each.assignment() for each in members):
            return
    pytest.fail("the members never shared the partitions")


def poll_on(each: Consumer) -> None:
    for _ in range(500):
        each.poll(0.02)


def drain(each: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(500):
        found += [m.value() for m in each.consume(100, 0.02)]
        if len(found) >= count:
            return found
    pytest.fail(f"only {len(found)} of {count} records came")


def test_a_lone_member_reads_everything(store: StoreApi) -> None:
    with consumer(store) as only:
        only.subscribe(["t"])
        assert only.assignment() == []  # the share comes with the polls
        assert len(set(drain(only, RECORDS))) == RECORDS
        assert len(only.assignment()) == 4


def test_two_members_share_and_one_takes_over_when_the_other_leaves(store: StoreApi) -> None:
    events: list[tuple[str, int]] = []
    one, two = consumer(store), consumer(store)
    one.subscribe(
        ["t"],
        on_assign=lambda _, places: events.append(("assigned", len(places))),
        on_revoke=lambda _, places: events.append(("revoked", len(places))),
    )
    settle(one)
    two.subscribe(["t"])
    settle(one, two)
    assert sorted(len(each.assignment()) for each in (one, two)) == [2, 2]
    places = [(p.topic, p.partition) for each in (one, two) for p in each.assignment()]
    assert sorted(places) == [("t", number) for number in range(4)]
    two.close()
    settle(one)
    one.close()
    assert events == [
        *(("assigned", 4), ("revoked", 4), ("assigned", 2)),
        *(("revoked", 2), ("assigned", 4), ("revoked", 4)),
    ]


def test_the_next_member_goes_on_from_what_was_committed(store: StoreApi) -> None:
    with consumer(store) as first:
        first.subscribe(["t"])
        read = drain(first, RECORDS // 2)
        first.commit()
    with consumer(store) as second:
        second.subscribe(["t"])
        rest = drain(second, RECORDS - len(read))
    assert sorted(read + rest) == sorted({*read, *rest})
    assert len(read + rest) == RECORDS


def test_a_commit_for_a_share_that_is_gone_is_fenced(store: StoreApi) -> None:
    with consumer(store) as one, consumer(store) as two:
        one.subscribe(["t"])
        drain(one, RECORDS)
        two.subscribe(["t"])
        deadline = time.monotonic() + 30
        while one._member.identity is not None:  # type: ignore[union-attr]
            two.poll(0.02)
            assert time.monotonic() < deadline
        with pytest.raises(Fenced):
            one.commit()


def test_a_consumer_that_assigns_to_itself_commits_while_nobody_shares(store: StoreApi) -> None:
    with consumer(store) as tool:
        tool.assign([TopicPartition("t", 0, 0)])
        tool.consume(3, 5)
        assert tool.commit() == [TopicPartition("t", 0, 3)]
    with consumer(store) as member, consumer(store) as tool:
        member.subscribe(["t"])
        settle(member)
        tool.assign([TopicPartition("t", 0, 0)])
        with pytest.raises(Fenced, match="subscribe"):
            tool.commit()


def test_a_place_may_move_back(store: StoreApi) -> None:
    with consumer(store) as tool:
        tool.commit(offsets=[TopicPartition("t", 0, 5)])
        tool.commit(offsets=[TopicPartition("t", 0, 2)])
        assert tool.committed([TopicPartition("t", 0)]) == [TopicPartition("t", 0, 2)]


def test_a_static_member_that_comes_back_keeps_its_share(store: StoreApi) -> None:
    one = consumer(store, **{"group.instance.id": "i1"})
    two = consumer(store, **{"group.instance.id": "i2"})
    one.subscribe(["t"])
    two.subscribe(["t"])
    settle(one, two)
    before = one.assignment()
    generation = store.describe_members("g").generation
    one.close()
    again = consumer(store, **{"group.instance.id": "i1"})
    again.subscribe(["t"])
    settle(again, two)
    assert again.assignment() == before
    assert store.describe_members("g").generation == generation
    again.close()
    two.close()


def test_of_two_with_one_instance_the_older_is_fenced(store: StoreApi) -> None:
    one = consumer(store, **{"group.instance.id": "i"})
    one.subscribe(["t"])
    settle(one)
    with consumer(store, **{"group.instance.id": "i"}) as two:
        two.subscribe(["t"])
        settle(two)
        with pytest.raises(Fenced, match=r"group\.instance\.id"):
            poll_on(one)
    one.close()


def test_what_an_earlier_release_committed_counts_until_something_newer_is(store: StoreApi) -> None:
    store.group("t", "g").commit(4, 0)
    with consumer(store) as tool:
        assert tool.committed([TopicPartition("t", 0)])[0].offset == 4
        tool.commit(offsets=[TopicPartition("t", 0, 2)])
        assert tool.committed([TopicPartition("t", 0)])[0].offset == 2


def test_a_topic_that_is_not_there_is_told_at_once(store: StoreApi) -> None:
    with consumer(store) as lost, pytest.raises(UnknownTopic):
        lost.subscribe(["nowhere"])


def test_a_program_that_never_polls_again_loses_its_share(store: StoreApi) -> None:
    with consumer(store, **{"max.poll.interval.ms": 200}) as slow, consumer(store) as other:
        slow.subscribe(["t"])
        settle(slow)
        other.subscribe(["t"])
        settle(other)
        assert len(store.describe_members("g").members) == 1
