"""Windows of a store that holds a cluster: in order, settled, waited for, measured."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.errors import ArchiveUnavailable, CorruptData, LaminaError, Unavailable
from lamina.formats.documents import seat_file
from lamina.log.partition import Partition
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.window_contents import Contents
from tests.archive.rig import DATA, TOPIC, numbered, read
from tests.store.seat_rig import SETTINGS, Brokers, Time, filled
from tests.support.failing_objects import FailingObjects

FORMATS = ["keratin", "frame"]


def test_nothing_is_archived_that_no_window_holds(brokers: Brokers) -> None:
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC, config=SETTINGS)
        filled(store, 0, 40)
        store.archive()
        assert store.tier_status()[0].archived_offset == 0
        first.ship()
        store.archive()
        assert store.tier_status()[0].archived_offset > 0


def test_what_was_not_shipped_is_what_a_lost_machine_takes(brokers: Brokers, clock: Time) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    filled(store, 0, 5)
    first.ship()
    assert (store.seat.ship_lag_ms(), store.seat.unshipped_records()) == (0, 0)
    filled(store, 5, 3)
    clock.now_ms += 700
    assert (store.seat.ship_lag_ms(), store.seat.unshipped_records()) == (700, 3)
    with brokers().serve() as successor:
        assert read(successor) == numbered(0, 5)
    store.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_window_whose_answer_was_lost_is_settled(
    brokers: Brokers, objects: Objects, when: Any
) -> None:
    first = brokers()
    first.objects = failing = FailingObjects(objects)
    failing.when = when
    with first.serve() as store:
        store.create_topic(TOPIC)
        filled(store, 0, 3)
        failing.fail_at = len(failing.calls)
        with pytest.raises(ArchiveUnavailable):
            first.ship()
        filled(store, 3, 3)
        failing.fail_at = None
        first.ship()
        assert store.seat.unshipped_records() == 0
        assert store.seat.log.next_seq - 1 == 2  # the fence, and two windows
        with brokers().serve() as successor:
            assert read(successor) == numbered(0, 6)


def test_an_append_that_waits_for_its_window_gives_up_in_time(
    brokers: Brokers, objects: Objects
) -> None:
    first = brokers()
    first.objects = failing = FailingObjects(objects)
    with first.serve() as store:
        store.create_topic(TOPIC)
        failing.fail_at, failing.forever = len(failing.calls), True
        with pytest.raises(Unavailable, match="in no window"):
            store.append(TOPIC, b"x", partition=0, acks="archived", timeout_s=0.3)
        failing.fail_at = None
        store.append(TOPIC, b"y", partition=0, acks="archived")


def test_what_is_left_out_of_windows_goes_on_to_age(
    brokers: Brokers, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    store.create_topic("bad")
    store.append("bad", b"b", partition=0)
    monkeypatch.setattr(Contents, "_object", unreadable("bad"))
    for _ in range(3):
        filled(store, 0, 1)
        clock.now_ms += 700
        first.ship()
    assert (store.seat.ship_lag_ms(), store.seat.unshipped_records()) == (2100, 1)
    monkeypatch.undo()
    first.ship()
    assert (store.seat.ship_lag_ms(), store.seat.unshipped_records()) == (0, 0)
    store.close()


def unreadable(topic: str) -> Any:
    """Makes records of windows of every topic but this one."""
    whole = Contents._object

    def made(self: Contents, partition: Partition, *more: Any) -> Any:
        if partition.place.topic == topic:
            raise CorruptData("a sector that cannot be read")
        return whole(self, partition, *more)

    return made


def test_what_was_left_out_of_windows_is_forgotten_with_its_topic(
    brokers: Brokers, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    store.create_topic("bad")
    store.append("bad", b"b", partition=0)
    monkeypatch.setattr(Contents, "_object", unreadable("bad"))
    first.ship()
    store.delete_topic("bad")
    clock.now_ms += 700
    first.ship()
    filled(store, 0, 1)
    clock.now_ms += 100
    assert (store.seat.ship_lag_ms(), store.seat.unshipped_records()) == (100, 1)
    store.close()
    seat = first.files.read(f"{DATA}/{paths.SEAT}")
    assert seat_file.decode(seat).state == seat_file.SHIPPED


@pytest.mark.parametrize("acks", [0, 1])
def test_what_was_only_written_is_shipped_when_the_store_is_closed(
    brokers: Brokers, acks: Any
) -> None:
    with brokers().serve() as store:
        store.create_topic(TOPIC)
        filled(store, 0, 4, acks)
    with brokers().serve() as successor:
        assert read(successor) == numbered(0, 4)


def test_a_directory_whose_records_are_not_durable_in_the_end_is_not_called_shipped(
    brokers: Brokers,
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    filled(store, 0, 4, 1)
    first.files.fail("sync")
    with pytest.raises(LaminaError):
        store.close()
    seat = first.files.read(f"{DATA}/{paths.SEAT}")
    assert seat_file.decode(seat).state == seat_file.SERVING
