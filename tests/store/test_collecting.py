"""Windows that are let go: only when what they hold is elsewhere, and no takeover misses it."""

from __future__ import annotations

import random

import pytest

from lamina.api import ProducerStamp
from lamina.cluster.steps import run
from lamina.cluster.tails import boundary_of
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store import collecting
from tests.archive.rig import TOPIC, numbered, read
from tests.store.seat_rig import Brokers, collected, filled


def first_seq(objects: Objects) -> int:
    return run(objects, boundary_of())[0].first_seq


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "WINDOWS_MAX", 5)


def test_windows_go_when_their_records_are_archived_and_a_full_one_follows(
    brokers: Brokers, objects: Objects
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic("quiet")
    store.append("quiet", b"q", partition=0, producer=ProducerStamp(9, 0, 0))
    store.create_topic(TOPIC)
    store.group(TOPIC, "g")
    store.create_topic("gone")
    for start in range(0, 40, 4):
        filled(store, start, 4)
        first.ship()
    store.delete_topic("gone")
    collected(first)
    boundary = first_seq(objects)
    assert boundary > 5
    left = [paths.tail_seq(info.key) for info in objects.list(paths.TAILS)]
    assert min(seq for seq in left if seq) == boundary  # but for the fence in slot 0
    assert len(left) <= 8  # the fence, the full one, what came since, and the boundary
    filled(store, 40, 4)
    first.ship()
    with brokers().serve() as successor:
        assert read(successor) == numbered(0, 44)
        assert successor.topics() == ["orders", "quiet"]
        assert successor.describe_group(TOPIC, "g").partitions[0].records == 44
        again = successor.append("quiet", b"q", partition=0, producer=ProducerStamp(9, 0, 0))
        assert again.parts[0].base_offset == 0
        assert successor.latest_offset("quiet", 0) == 1
        successor.create_topic("gone")
        assert successor.describe_topic("gone").epoch == 2
    store.close()


def test_a_window_stays_while_a_record_in_it_is_not_archived(
    brokers: Brokers, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    for start in range(0, 40, 4):
        filled(store, start, 4)
        first.ship()
    assert store.tier is not None
    monkeypatch.setattr(store.tier, "tick", lambda **_: [])  # the archive takes nothing now
    collected(first)
    assert first_seq(objects) == 1  # below the first full one there is the fence alone
    monkeypatch.undo()
    monkeypatch.setattr(collecting, "WINDOWS_MAX", 5)
    collected(first)
    assert first_seq(objects) > 5
    store.close()


def test_a_topic_that_is_made_again_keeps_no_windows(brokers: Brokers, objects: Objects) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic("quiet")
    store.create_topic(TOPIC)
    first.ship()
    filled(store, 0, 40)
    first.ship()
    first.lose_power()
    successor = brokers()
    store = successor.serve()
    successor.ship()  # the full window, above 40 records
    store.delete_topic(TOPIC)
    store.create_topic(TOPIC)
    filled(store, 0, 3)
    for _ in range(6):
        store.append("quiet", b"q", partition=0)
        successor.ship()
    collected(successor)
    assert first_seq(objects) > 1
    with brokers().serve() as third:
        assert read(third) == numbered(0, 3)
        assert third.latest_offset("quiet", 0) == 6
    store.close()


def test_windows_that_earlier_epochs_left_count_too(
    brokers: Brokers, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "WINDOWS_MAX", 300)
    monkeypatch.setattr(collecting, "BYTES_MAX", 20_000)
    first, second = brokers(), brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
        for number in range(8):
            store.append(TOPIC, random.Random(number).randbytes(4096), partition=0)
            first.ship()
    with second.serve() as store:
        collected(second)
        assert first_seq(objects) > 8
        store.append(TOPIC, b"last", partition=0)
    with first.serve() as store:
        assert store.latest_offset(TOPIC, 0) == 9


def test_windows_behind_the_full_one_go_on_to_count(
    brokers: Brokers, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "WINDOWS_MAX", 300)
    monkeypatch.setattr(collecting, "BYTES_MAX", 20_000)
    first = brokers()
    with first.serve() as store:
        assert first.seat is not None
        assert first.seat.shipper is not None
        collector = first.seat.shipper.collector
        store.create_topic(TOPIC)
        first.ship()  # the full one
        for number in range(8):
            store.append(TOPIC, random.Random(number).randbytes(4096), partition=0)
            first.ship()
        collector.collect(objects)
        assert first_seq(objects) == 1
        assert not collector.wants_full
        collector.collect(objects)
        assert collector.wants_full, "eight windows are there"
