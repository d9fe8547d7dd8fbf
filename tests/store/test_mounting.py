"""What a successor finds: archived records mounted, windows applied, the rest brought along."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pytest

from lamina.api import ProducerStamp
from lamina.api.memberships import Committed
from lamina.cluster.steps import run
from lamina.cluster.tails import TailLog, collect
from lamina.errors import (
    CorruptData,
    NotPrimary,
)
from lamina.formats.scan import Limit
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store import window_contents
from lamina.store.store import Store
from tests.archive.rig import TOPIC, numbered, read, table, values
from tests.store.seat_rig import SETTINGS, Broker, Brokers, Time, filled
from tests.store.test_schema_registry import ONE, TWO, register
from tests.support.failing_objects import FailingObjects

FORMATS = ["keratin", "frame"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_what_is_acknowledged_as_archived_is_there_after_the_machine_is_lost(
    brokers: Brokers, format_name: str
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC, format=format_name, partitions=2)
    for value in values(0, 20):
        ack = store.append(TOPIC, value, partition=0, acks="archived")
    assert ack.parts[0].durability == "archived"
    before = table(store.scan(TOPIC, 0))
    with brokers().serve() as successor:
        assert table(successor.scan(TOPIC, 0)).equals(before)
        assert (
            successor.append(TOPIC, b"next", partition=0, acks="archived").parts[0].base_offset
            == 20
        )
        assert successor.latest_offset(TOPIC, 1) == 0
    with pytest.raises(NotPrimary, match="b2"):
        store.append(TOPIC, b"fork", partition=0, acks="archived")
    assert len(first.fenced) == 1
    store.close()


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_successor_reads_archived_and_shipped_records_as_one(
    brokers: Brokers, objects: Objects, format_name: str
) -> None:
    first = brokers()
    store = first.serve()
    config = SETTINGS | {"local.retention.bytes": 0}
    store.create_topic(TOPIC, format=format_name, config=config)
    filled(store, 0, 40)
    first.ship()
    store.archive()
    filled(store, 40, 30)
    first.ship()
    assert 0 < store.tier_status()[0].archived_offset < 70
    names = {paths.object_key(info.key) for info in objects.list(paths.ARCHIVE)} - {None}
    assert {key.epoch for key in names if key is not None} == {1}
    with brokers().serve() as successor:
        assert read(successor) == numbered(0, 70)
        assert successor.gaps(TOPIC, 0) == ()
        filled(successor, 70, 10)
        successor.seat.shipper.ship()
        successor.roll(TOPIC, 0)
        successor.archive()
        with brokers().serve() as third:
            assert read(third) == numbered(0, 80)
    store.close()


def test_mounting_reads_no_archived_record(brokers: Brokers, objects: Objects) -> None:
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC, config=SETTINGS | {"local.retention.bytes": 0})
        filled(store, 0, 200)
        store.roll(TOPIC, 0)
        first.ship()
        store.archive()
        assert store.tier_status()[0].objects > 3
    seen = FailingObjects(objects)
    second = brokers()
    second.objects = seen
    with second.serve() as successor:
        assert [kind for kind, _ in seen.calls if kind == "read_range"] == []
        assert len(seen.calls) < 60
        assert read(successor) == numbered(0, 200)


def test_groups_offsets_producers_settings_and_deletions_come_along(brokers: Brokers) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic("gone")
    store.create_topic(TOPIC, config={"retention.ms": 12345}, partitions=2)
    stamp = ProducerStamp(7, 0, 0)
    store.append(TOPIC, [b"a", b"b"], partition=0, producer=stamp)
    filled(store, 2, 8)
    group = store.group(TOPIC, "share")
    group.ack([0, 1, 2, 5], partition=0)
    store.group(TOPIC, "dropped").ack([0], partition=0)
    store.commit_offsets("classic", [Committed(TOPIC, 0, 4, -1, "note")])
    given = store.new_producer_id()
    first.ship()
    store.delete_topic("gone")
    store.delete_group(TOPIC, "dropped")
    first.ship()
    with brokers().serve() as successor:
        assert successor.topics() == [TOPIC]
        assert successor.describe_topic(TOPIC).settings["retention.ms"] == 12345
        assert successor.groups() == store.groups() == [(TOPIC, "classic"), (TOPIC, "share")]
        before, after = (
            store.describe_group(TOPIC, "share"),
            successor.describe_group(TOPIC, "share"),
        )
        assert after.partitions == before.partitions
        (kept,) = successor.committed_offsets("classic")
        assert (kept.offset, kept.metadata) == (4, "note")
        repeated = successor.append(TOPIC, [b"a", b"b"], partition=0, producer=stamp)
        assert repeated.parts[0].base_offset == 0
        assert successor.latest_offset(TOPIC, 0) == 10
        assert successor.new_producer_id() > given + 1000
        successor.create_topic("gone")
        assert successor.describe_topic("gone").epoch == 2
    store.close()


def test_settings_of_share_groups_come_along_and_go(brokers: Brokers) -> None:
    key = "share.auto.offset.reset"
    first, second = brokers(), brokers()
    with first.serve() as store:
        store.coordinator.share_settings.alter("late", {key: "earliest"})
        store.coordinator.share_settings.alter("later", {key: "earliest"})
        first.ship()
    with second.serve() as store:
        settings = store.coordinator.share_settings
        assert [settings.of(each).start for each in ("late", "later")] == ["earliest"] * 2
        settings.alter("late", {key: "latest"})
    with first.serve() as store:  # on the directory that it had
        settings = store.coordinator.share_settings
        assert [settings.of(each).start for each in ("late", "later")] == ["latest", "earliest"]
        settings.alter("later", {key: "latest"})
    with second.serve() as store:
        settings = store.coordinator.share_settings
        assert [settings.of(each).start for each in ("late", "later")] == ["latest"] * 2


def test_what_a_registry_answered_is_there_after_the_machine_is_lost(brokers: Brokers) -> None:
    """Its successor gives no id again that a client was told."""
    first = brokers()
    store = first.serve()
    found = [register(store, "s", text) for text in (ONE, TWO)]
    assert [each.id for each in found] == [1, 2]
    book = store.schema_registry().book()
    store.create_topic("s")
    first.lose_power()  # and the machine with it
    with brokers().serve() as successor:
        assert successor.schema_registry().book() == book
        assert successor.topics() == ["_schemas"]


def test_a_schema_comes_along(brokers: Brokers) -> None:
    first = brokers()
    store = first.serve()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    store.create_topic(TOPIC, schema=schema)
    rows = pa.table({"id": pa.array([1, 2], pa.int64())}).cast(schema)
    store.append(TOPIC, rows, partition=0, acks="archived")
    with brokers().serve() as successor:
        assert successor.read(TOPIC).read_all().column("id").to_pylist() == [1, 2]
        assert successor.schema(TOPIC).version == 1
    store.close()


class Killed(BaseException):
    """The process is gone: no later step of it is carried out."""


def loaded(first: Broker) -> None:
    """A history with everything in it: archived, shipped, groups, producers, two topics."""
    store = first.serve()
    store.create_topic(TOPIC, config=SETTINGS | {"local.retention.bytes": 0})
    store.create_topic("other", format="frame")
    filled(store, 0, 30)
    first.ship()
    store.archive()
    filled(store, 30, 10)
    store.append("other", [b"a", b"b"], partition=0, producer=ProducerStamp(7, 0, 0))
    store.group(TOPIC, "share").ack([0, 1], partition=0)
    store.commit_offsets("classic", [Committed(TOPIC, 0, 4)])
    store.close()


def seen(store: Store) -> Any:
    groups = [store.describe_group(*each) for each in store.groups()]
    repeat = store.append("other", [b"a", b"b"], partition=0, producer=ProducerStamp(7, 0, 0))
    return read(store), table(store.scan("other", 0)), groups, repeat.parts[0].base_offset


def steps_of(broker: Broker) -> int:
    count = 0

    def note(kind: str, path: str) -> None:
        nonlocal count
        count += 1

    broker.files.before = note
    broker.serve().close()
    broker.files.before = None
    return count


def test_a_mount_that_is_killed_at_any_step_begins_again(
    objects: Objects, clock: Time, brokers: Brokers
) -> None:
    loaded(brokers())
    with brokers().serve() as store:
        expected = seen(store)
    total = steps_of(brokers())
    for at in range(0, total, max(1, total // 12)):
        broker = brokers()
        left = at

        def kill(kind: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        broker.files.before = kill
        with contextlib.suppress(Killed):
            broker.serve().close()
        broker.files.before = None
        broker.lose_power()
        with broker.serve() as store:
            assert seen(store) == expected, at


def test_a_hole_between_archive_and_windows_stops_the_takeover(
    brokers: Brokers, objects: Objects
) -> None:
    first = brokers()
    with first.serve() as store:
        store.create_topic(TOPIC)
        for start in (0, 3, 6):
            filled(store, start, 3)
            first.ship()
        seqs = sorted(info.key for info in objects.list(paths.TAILS))
        assert len(seqs) == 4
        run(objects, collect(3, TailLog(1, 3)))  # too early: nothing of it is archived
    with pytest.raises(CorruptData, match=r"neither in the archive|no window describes"):
        brokers().serve()


def test_a_batch_of_a_producer_is_in_one_window(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = brokers()
    store = first.serve()
    store.create_topic(TOPIC)
    monkeypatch.setattr(window_contents, "BATCH", Limit(max_records=100, max_bytes=1 << 20))
    rows = [b"%d" % each * 50 for each in range(1000)]
    for number in range(3):
        stamp = ProducerStamp(7, 0, 1000 * number)
        store.append(TOPIC, rows, partition=0, producer=stamp)
    room_bytes = 1 << 10
    draft = window_contents.Draft(True, room_bytes=room_bytes)
    monkeypatch.setattr(window_contents, "Draft", lambda *_, **__: draft)
    assert first.seat is not None
    assert first.seat.shipper is not None
    assert first.seat.shipper._ship_one()  # the machine is lost behind the first of its windows
    assert store.seat.unshipped_records() == 2000
    monkeypatch.undo()
    with brokers().serve() as successor:
        assert successor.latest_offset(TOPIC, 0) == 1000
        for number in range(3):
            stamp = ProducerStamp(7, 0, 1000 * number)
            again = successor.append(TOPIC, rows, partition=0, producer=stamp)
            assert again.parts[0].base_offset == 1000 * number
        assert successor.latest_offset(TOPIC, 0) == 3000
    store.close()
