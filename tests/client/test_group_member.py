"""Consumers of one group share its partitions, embedded and served, whoever comes and goes."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import StoreApi
from lamina.api.memberships import Committed
from lamina.client.assignors import ASSIGNORS
from lamina.client.consumer import Consumer
from lamina.client.message import TopicPartition
from lamina.errors import Fenced, InvalidRequest, UnknownTopic
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
    with consumer(store, **{"max.poll.interval.ms": 500}) as one, consumer(store) as two:
        one.subscribe(["t"])
        drain(one, RECORDS)
        two.subscribe(["t"])
        settle(two)
        with pytest.raises(Fenced):
            one.commit()


@pytest.mark.parametrize("assignor", list(ASSIGNORS))
def test_what_was_handed_out_is_committed_before_it_moves(store: StoreApi, assignor: str) -> None:
    config = {
        "partition.assignment.strategy": assignor,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 3_600_000,
        "max.poll.records": 1,
    }
    with consumer(store, **config) as one, consumer(store, **config) as two:
        one.subscribe(["t"])
        found = drain(one, RECORDS // 2)
        two.subscribe(["t"])
        for _ in range(500):
            found += [m.value() for each in (one, two) for m in each.consume(1, 0.02)]
            if len(found) >= RECORDS and len(one.assignment()) == len(two.assignment()) == 2:
                break
        assert len(one.assignment()) == len(two.assignment()) == 2
        assert sorted(found) == sorted(set(found))
        assert len(found) == RECORDS


def test_committing_by_itself_never_fails_for_a_rebalance(store: StoreApi) -> None:
    config = {"enable.auto.commit": True, "auto.commit.interval.ms": 0}
    with consumer(store, **config) as one:
        one.subscribe(["t"])
        for _ in range(5):
            with consumer(store, **config) as two:
                two.subscribe(["t"])
                settle(one, two)


def test_only_what_moves_is_given_up_and_the_rest_is_read_on(store: StoreApi) -> None:
    sticky = {
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": "latest",
    }
    events: list[tuple[str, int]] = []
    one, two, slow = (consumer(store, **sticky) for _ in range(3))
    one.subscribe(
        ["t"],
        on_assign=lambda _, places: events.append(("assigned", len(places))),
        on_revoke=lambda _, places: events.append(("revoked", len(places))),
    )
    slow.subscribe(["t"])
    settle(one, slow)
    before = one.assignment()
    events.clear()
    two.subscribe(["t"])
    two.poll(0)  # all meet, but the slow one comes late
    for place in before:
        store.append("t", b"meanwhile", partition=place.partition)
    assert drain(one, 2) == [b"meanwhile"] * 2
    assert one.assignment() == before
    settle(one, two, slow)
    while one.poll(0.2) is not None:
        pass
    assert all(each in before for each in one.assignment())
    assert [each for each in events if each[1]] in ([], [("revoked", 1)])
    for each in (two, slow, one):
        each.close()


@pytest.mark.parametrize("assignor", list(ASSIGNORS))
def test_no_partition_is_two_members_at_a_time(store: StoreApi, assignor: str) -> None:
    """Members come and go at random: each is told of what it gets and what it gives up."""
    having: dict[int, Consumer] = {}
    lock = threading.Lock()

    def got(member: Consumer, places: list[TopicPartition]) -> None:
        with lock:
            for place in places:
                assert place.partition not in having, f"{place} is two members' share"
                having[place.partition] = member

    def gave(member: Consumer, places: list[TopicPartition]) -> None:
        with lock:
            for place in places:
                assert having.pop(place.partition) is member

    def live(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < deadline:
            with consumer(store, **{"partition.assignment.strategy": assignor}) as member:
                member.subscribe(["t"], on_assign=got, on_revoke=gave)
                for _ in range(chance.randrange(5, 60)):
                    member.poll(0.01)

    deadline = time.monotonic() + 4
    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(live, number) for number in range(4)]:
            ended.result()
    assert not having


def test_who_reads_no_more_frees_its_share_at_once(store: StoreApi) -> None:
    with consumer(store) as one, consumer(store) as two:
        one.subscribe(["t"])
        settle(one)
        one.unsubscribe()
        two.subscribe(["t"])
        settle(two)
        one.subscribe(["t"])
        settle(one, two)


def test_a_program_that_polls_is_there_also_while_it_is_given_what_came_before(
    store: StoreApi,
) -> None:
    with consumer(store, **{"max.poll.interval.ms": 400}) as slow:
        slow.subscribe(["t"])
        settle(slow)
        slow.seek(TopicPartition("t", 0, 0))
        for _ in range(5):  # of one fetch
            assert slow.poll(10) is not None
            time.sleep(0.2)
        assert slow._member is not None
        assert slow._member.identity is not None


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ("sticky", "knows no 'sticky'"),
        ("", "knows no ''"),
        ("range,cooperative-sticky", "cannot have"),
        (7, "partition.assignment.strategy"),
    ],
)
def test_assignors_that_cannot_be_are_refused(asked: object, wrong: str, tmp_path: Path) -> None:
    with lamina.open(str(tmp_path)) as store, pytest.raises(InvalidRequest, match=wrong):
        consumer(store, **{"partition.assignment.strategy": asked})


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


def test_a_committed_number_below_0_is_no_place(store: StoreApi) -> None:
    asked = [Committed("t", number, -number) for number in range(4)]
    assert store.commit_offsets("g", asked) is None
    with consumer(store) as member:
        member.subscribe(["t"])
        assert len(drain(member, RECORDS)) == RECORDS


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
