"""Keys that carry an epoch: never used twice, so that no broker meets another one's object."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lamina.archive.archiver import Archiver, PartitionSource
from lamina.archive.object_list import Shelf
from lamina.archive.terms import Terms
from lamina.config import WalSettings
from lamina.errors import CorruptData, Fenced, LaminaError
from lamina.formats.documents import archive_manifest
from lamina.log.layers import key_of
from lamina.storage import paths
from lamina.storage.files import Files
from lamina.storage.objects import Objects
from lamina.storage.paths import ObjectKey
from lamina.store.opening import Boot
from lamina.store.orphans import orphans, rebuild
from lamina.store.restore import restore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import (
    DATA,
    NOW_MS,
    SETTINGS,
    TOPIC,
    archived,
    attempt,
    memory,
    numbered,
    opened,
    read,
    values,
)
from tests.support.failing_objects import FailingObjects

FORMATS = ("frame", "keratin", "wal")


def broker(files: Files, objects: Objects, epoch: int) -> Store:
    """A store whose archive is written under the epoch of a lease."""
    store = opened(files, objects, wal=WalSettings(shards=1, segment_events=2))
    assert store._tier is not None
    store._tier._terms = Terms(epoch)
    store._tier._kept.clear()
    return store


def filled(store: Store, first: int, count: int, **more: Any) -> None:
    if TOPIC not in store.topics():
        store.create_topic(TOPIC, config=SETTINGS | {"archive.object.bytes": 1 << 20}, **more)
    store.append(TOPIC, values(first, count))
    if store.describe_topic(TOPIC).format == "wal":
        store.purge_wal()
    else:
        store.roll(TOPIC)


def listed(objects: Objects) -> archive_manifest.Manifest:
    return archive_manifest.decode(objects.read(paths.archive_manifest(TOPIC, 0)).data)


def segments(objects: Objects) -> set[str]:
    return {info.key for info in objects.list("") if paths.object_key(info.key) is not None}


def test_objects_are_named_by_epoch_and_generation_and_are_read() -> None:
    objects = memory()
    with broker(SimulatedFiles(), objects, 3) as store:
        filled(store, 0, 30)
        store.archive()
        assert read(store, 0) == numbered(0, 30)
    keys = {key_of(TOPIC, 0, each) for each in listed(objects).objects}
    assert keys == segments(objects)
    assert all(".3.0.seg" in key for key in keys)
    assert archived(objects) == numbered(0, 30)


def test_an_archive_without_epochs_is_adopted_as_it_is() -> None:
    files, objects = SimulatedFiles(), memory()
    with opened(files, objects) as store:
        filled(store, 0, 20)
        store.archive()
    before = segments(objects)
    with broker(files, objects, 1) as store:
        filled(store, 20, 20)
        store.archive()
        assert read(store, 0) == numbered(0, 40)
    assert before < segments(objects)
    assert {paths.object_key(key).epoch for key in segments(objects)} == {0, 1}  # type: ignore[union-attr]
    assert archived(objects) == numbered(0, 40)


def test_what_a_broker_left_unlisted_is_not_in_its_successors_way() -> None:
    """The zombie has uploaded other records for the same offset; without epochs nobody goes on."""
    objects = memory()
    with broker(SimulatedFiles(), objects, 1) as zombie:
        filled(zombie, 0, 5)
        shelf = Shelf(objects, zombie._open.topics[TOPIC], 0, "zombie", epoch=1)
        source = PartitionSource(zombie._partitions[TOPIC, 0])
        archiver = Archiver(shelf, source)
        encoded = archiver.encode_next(_policy(), NOW_MS)
        assert encoded is not None
        archiver.store(encoded)
    assert len(segments(objects)) == 1
    files = SimulatedFiles()
    with broker(files, objects, 2) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, [b"other"] * 5)
        store.roll(TOPIC)
        store.archive()
        assert store.tier_status()[0].last_error == ""
        assert [value for _, value in read(store)] == [b"other"] * 5
    assert [key_of(TOPIC, 0, each) for each in listed(objects).objects] == [
        ObjectKey(TOPIC, 0, 0, 0, 2).name
    ]
    old = orphans(objects, NOW_MS * 2, 0)
    assert [info.key for info in old] == [ObjectKey(TOPIC, 0, 0, 0, 1).name]


def test_without_an_epoch_the_same_stops_at_the_zombies_object() -> None:
    """What the keys are for."""
    objects = memory()
    with opened(SimulatedFiles(), objects) as zombie:
        filled(zombie, 0, 5)
        shelf = Shelf(objects, zombie._open.topics[TOPIC], 0, "zombie")
        archiver = Archiver(shelf, PartitionSource(zombie._partitions[TOPIC, 0]))
        encoded = archiver.encode_next(_policy(), NOW_MS)
        assert encoded is not None
        archiver.store(encoded)
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, [b"other"] * 5)
        store.roll(TOPIC)
        attempt(store)
        assert "another object has the key" in store.tier_status()[0].last_error


def test_an_upload_that_is_not_read_back_is_passed_by_and_nothing_is_deleted() -> None:
    """A broker that was paused deletes nothing that its successor may have listed."""
    objects = FailingObjects(memory())
    first = ObjectKey(TOPIC, 0, 0, 0, 4).name
    objects.spoil = lambda key, data: b"?" * len(data) if key == first else data
    with broker(SimulatedFiles(), objects, 4) as store:
        filled(store, 0, 5)
        store.archive()
    assert [key_of(TOPIC, 0, each) for each in listed(objects.inner).objects] == [
        ObjectKey(TOPIC, 0, 0, 1, 4).name
    ]
    assert ("delete", first) not in objects.calls
    assert first in segments(objects.inner)


def test_an_answer_that_was_lost_finds_its_own_object_again() -> None:
    objects = FailingObjects(memory())
    with broker(SimulatedFiles(), objects, 4) as store:
        filled(store, 0, 5)
        lost: list[str] = []

        def create(key: str, data: Any) -> None:
            FailingObjects.create(objects, key, data)
            if not lost:
                lost.append(key)
                raise LaminaError("the answer was lost")

        objects.create = create  # type: ignore[method-assign]
        attempt(store)
        store.archive()
    assert segments(objects.inner) == {*lost}
    assert archived(objects.inner) == numbered(0, 5)


def test_a_store_that_never_returns_what_was_sent_is_told_and_nothing_is_listed() -> None:
    objects = FailingObjects(memory())
    objects.spoil = lambda key, data: b"?" * len(data) if key.endswith(".seg") else data
    with broker(SimulatedFiles(), objects, 4) as store:
        filled(store, 0, 5)
        with pytest.raises(CorruptData, match="does not return what was uploaded"):
            store.archive()
    assert listed(objects.inner).objects == ()


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_format_is_joined_rebuilt_and_restored_under_epochs(
    format_name: str,
) -> None:
    files, objects = SimulatedFiles(), memory()
    first = 1 if format_name == "wal" else 0
    for epoch in (1, 2):
        with broker(files, objects, epoch) as store:
            for number in range(9):
                filled(store, first + 9 * (epoch - 1) + number, 1, format=format_name)
                store.archive()
            whole = numbered(first, first + 9 * epoch)
            assert read(store) == whole
    is_joined = any(each.generation for each in listed(objects).objects)
    assert is_joined or format_name == "wal", "a wal topic seals too few segments for that"
    assert archived(objects) == whole[: len(archived(objects))]
    assert listed(objects).end_offset >= len(whole) - 2
    before = listed(objects)
    rebuild(objects, TOPIC)
    assert [key_of(TOPIC, 0, each) for each in listed(objects).objects] == [
        key_of(TOPIC, 0, each) for each in before.objects
    ]
    elsewhere = SimulatedFiles()
    restore(objects, Boot(elsewhere, DATA, lambda: NOW_MS))
    with opened(elsewhere, None) as store:
        assert read(store) == archived(objects)


def test_a_fenced_broker_lists_nothing_and_what_it_uploaded_is_an_orphan() -> None:
    files, objects = SimulatedFiles(), memory()
    zombie = broker(files, objects, 1)
    filled(zombie, 0, 5)
    zombie.archive()
    shelf = Shelf(objects, zombie._open.topics[TOPIC], 0, "successor", epoch=2)
    shelf.claim(5, archive_manifest.Ledger())
    before = listed(objects)
    filled(zombie, 5, 5)
    with pytest.raises(Fenced):
        zombie.archive()
    zombie.close()
    assert listed(objects) == before
    assert replace(before, objects=()).writer == "successor"


def _policy() -> Any:
    from lamina.archive.join import Policy

    return Policy()
