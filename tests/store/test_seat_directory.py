"""What becomes of a directory whose broker takes a cluster over."""

from __future__ import annotations

import json

import pytest

from lamina.cluster.steps import run
from lamina.cluster.tails import boundary_of
from lamina.errors import InvalidRequest
from lamina.storage.objects import Objects
from lamina.store import collecting
from lamina.store.read_only import ReadOnlyStore
from lamina.store.seat_directory import kept_apart
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import DATA, TOPIC, numbered, opened, read
from tests.store.seat_rig import SETTINGS, Brokers, collected, filled

FORMATS = ["keratin", "frame"]


def test_the_same_broker_goes_on_with_what_it_had_not_shipped(brokers: Brokers) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    filled(store, 0, 5)
    first.ship()
    filled(store, 5, 5)
    first.lose_power()
    with first.serve() as again:
        assert read(again) == numbered(0, 10)
        first.ship()
        with brokers().serve() as successor:
            assert read(successor) == numbered(0, 10)


def test_what_was_never_shipped_is_set_aside_when_another_was_there(
    brokers: Brokers, objects: Objects
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    filled(store, 0, 5)
    first.ship()
    filled(store, 5, 5)
    first.lose_power()
    with brokers().serve() as successor:
        successor.append(TOPIC, b"other", partition=0, acks="archived")
    with first.serve() as again:
        assert read(again) == [*numbered(0, 5), (5, b"other")]
        (event,) = [each for each in again.recovery_report.events if each.kind == "quarantined"]
        assert "orders/0 5 to 10" in event.why
        folder = f"{DATA}/quarantine/diverged-1"
        assert event.kept_in == folder
        report = json.loads(first.files.read(f"{folder}/report.json"))
        assert report["ranges"] == [{"topic": TOPIC, "partition": 0, "first": 5, "end": 10}]
    with ReadOnlyStore(folder, files=first.files, archive="") as old:
        assert read(old) == numbered(0, 10)


def test_a_directory_that_was_closed_when_all_was_shipped_is_made_anew(brokers: Brokers) -> None:
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
        filled(store, 0, 5)
    with brokers().serve() as successor:
        assert read(successor) == numbered(0, 5)
        filled(successor, 5, 5)
    with first.serve() as again:
        assert read(again) == numbered(0, 10)
        assert not first.files.exists(f"{DATA}/quarantine/diverged-1")


def test_what_was_shipped_is_not_called_another_history_when_its_windows_are_gone(
    brokers: Brokers, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "WINDOWS_MAX", 2)
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
        filled(store, 0, 5)
    second = brokers()
    with second.serve() as successor:
        for value in range(5, 10):
            filled(successor, value, 1)
            collected(second)
        assert run(objects, boundary_of())[0].first_seq > 2
    with first.serve() as again:
        assert read(again) == numbered(0, 10)
        assert kept_apart(first.files, DATA) == []


def test_a_directory_and_its_archive_are_adopted(brokers: Brokers, objects: Objects) -> None:
    first = brokers()
    config = SETTINGS | {"remote.storage.enable": True, "local.retention.bytes": 0}
    with opened(first.files, objects) as store:
        store.create_topic(TOPIC, config=config)
        filled(store, 0, 60)
        store.archive()
        filled(store, 60, 5)
    with first.serve() as store:
        assert read(store) == numbered(0, 65)
        first.ship()
        with brokers().serve() as successor:
            assert read(successor) == numbered(0, 65)


def test_an_archive_alone_is_adopted(brokers: Brokers, objects: Objects) -> None:
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"remote.storage.enable": True})
        filled(store, 0, 60)
        store.group(TOPIC, "g").ack([0, 1], partition=0)
        store.roll(TOPIC, 0)
        store.archive()
    with brokers().serve() as store:
        assert read(store) == numbered(0, 60)
        assert store.describe_group(TOPIC, "g").partitions[0].records == 58


def test_a_directory_of_another_store_is_refused(brokers: Brokers) -> None:
    first, second = brokers(), brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
    with opened(second.files, None) as stranger:
        stranger.create_topic("mine")
    with pytest.raises(InvalidRequest, match="empty directory"):
        second.serve()
    with opened(second.files, None) as stranger:
        assert stranger.topics() == ["mine"]


def test_a_directory_with_a_topic_that_is_not_archived_is_refused(brokers: Brokers) -> None:
    first = brokers()
    with opened(first.files, None) as store:
        store.create_topic("mine")
    with pytest.raises(InvalidRequest, match=r"remote\.storage\.enable on mine"):
        first.serve()
