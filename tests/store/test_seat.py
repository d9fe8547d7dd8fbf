"""A store that holds a cluster: when it answers, and what it carries."""

from __future__ import annotations

import pytest

from lamina.api.memberships import Committed
from lamina.cluster.steps import run
from lamina.errors import Fenced, InvalidRequest, NotPrimary
from tests.archive.rig import TOPIC, opened
from tests.store.seat_rig import TTL_MS, Brokers, Time

FORMATS = ["keratin", "frame"]


def test_nothing_is_answered_once_the_lease_is_not_proven(brokers: Brokers, clock: Time) -> None:
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
        group = store.group(TOPIC, "g")
        clock.now_ms += TTL_MS * 4 // 5
        for call in (
            lambda: store.append(TOPIC, b"x", partition=0),
            lambda: store.append(TOPIC, b"x", partition=0, acks=1),
            lambda: group.ack([0], partition=0),
            lambda: store.commit_offsets("c", [Committed(TOPIC, 0, 1)]),
        ):
            with pytest.raises(NotPrimary, match="could not be renewed"):
                call()
        assert store.seat is not None
        run(first.objects, store.seat.holding.renew(clock))
        assert store.append(TOPIC, b"y", partition=0).parts[0].base_offset == 2
        assert store.failures() == {}


def test_a_holder_that_finds_another_stops_for_good(brokers: Brokers, clock: Time) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    with brokers().serve():
        store.append(TOPIC, b"x", partition=0)  # the lease of the first was proven just now
        with pytest.raises(Fenced):
            first.ship()
        for acks in (1, "all", "archived"):
            with pytest.raises(NotPrimary, match="held by b2") as caught:
                store.append(TOPIC, b"x", partition=0, acks=acks)
            assert caught.value.holder == "grpc://b2"
        assert [type(each) for each in first.fenced] == [NotPrimary]
    store.close()


def test_a_directory_of_a_cluster_is_not_written_without_it(brokers: Brokers) -> None:
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
    with pytest.raises(InvalidRequest, match="directory of a cluster's server"):
        opened(first.files, first.objects)


def test_topics_of_a_cluster_are_archived_and_of_a_kind_that_is_carried(brokers: Brokers) -> None:
    with brokers().serve() as store:
        with pytest.raises(InvalidRequest, match="wal over yet"):
            store.create_topic("w", format="wal")
        with pytest.raises(InvalidRequest, match="stays on"):
            store.create_topic("t", config={"remote.storage.enable": False})
        store.create_topic("t")
        with pytest.raises(InvalidRequest, match="stays on"):
            store.alter_topic("t", {"remote.storage.enable": False})
        assert store.describe_topic("t").settings["remote.storage.enable"] == "true"
        with pytest.raises(InvalidRequest, match="no transactions"):
            store.transactions.init("id", 1000)
