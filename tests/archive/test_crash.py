"""Killed, or power lost, at the steps of upload, verification, listing and local removal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from lamina.errors import ArchiveUnavailable
from lamina.formats.documents import archive_manifest as archive
from lamina.storage.objects import Objects
from lamina.storage.paths import ObjectKey, archive_manifest
from lamina.store.orphans import clean, orphans
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive import crashing
from tests.archive.crashing import Steps
from tests.archive.rig import (
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
from tests.support.failing_objects import FailingObjects, When


@dataclass(slots=True)
class Promise:
    """All records below an offset."""

    end: int = 0

    def now(self) -> int:
        return self.end


def fill(store: Store, promise: Promise) -> None:
    """Appends, archives, trims and archives again; says what is promised after each step."""
    store.create_topic(TOPIC, config=SETTINGS)
    end = 0
    for count in (20, 25, 15):
        store.append(TOPIC, values(end, count))
        end += count
        promise.end = end
        attempt(store)
    store.trim(TOPIC, 0, 24)
    attempt(store)
    store.roll(TOPIC)
    attempt(store)


def hold(store: Store, objects: Objects, end: int, appended: int) -> None:
    """Demands every promised record once, before and after the rest is archived."""
    for _ in range(2):
        first, last = store.earliest_offset(TOPIC), store.latest_offset(TOPIC)
        assert first <= 24
        assert end <= last <= appended
        assert read(store) == numbered(first, last)
        assert {gap.reason for gap in store.gaps(TOPIC)} <= {"trim"}
        cold = archived(objects)
        assert cold == numbered(cold[0][0], cold[-1][0] + 1) if cold else True
        store.roll(TOPIC)
        store.archive()
        (status,) = store.tier_status()
        assert status.last_error == ""
        assert status.archived_offset == last
        assert not store._partitions[TOPIC, 0].layout.sealed
    manifest = archive.decode(objects.read(archive_manifest(TOPIC, 0)).data)
    for entry in manifest.objects:
        assert objects.size(ObjectKey(TOPIC, 0, entry.base_offset).name) == entry.size_bytes
    clean(objects, orphans(objects, NOW_MS, 0))
    assert read(store) == archived(objects) == numbered(first, last)


STORY = crashing.Story(
    opened=opened,
    promise=Promise,
    fill=fill,
    hold=lambda store, objects, end: hold(store, objects, end, 60),
    is_empty=lambda end: end == 0,
)


@pytest.mark.parametrize("steps", crashing.STEPS)
def test_power_is_lost_at_steps_of_disk_and_archive(steps: Steps) -> None:
    assert crashing.lose_power(STORY, steps) > 200


@pytest.mark.parametrize("steps", crashing.STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_calls_of_the_object_store(when: When, steps: Steps) -> None:
    assert crashing.kill(STORY, when, steps) > 10


@pytest.mark.parametrize("steps", crashing.STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_any_call_may_fail_once_and_the_next_round_does_the_rest(when: When, steps: Steps) -> None:
    assert crashing.fail(STORY, when, steps) > 10


def test_an_upload_that_was_cut_off_is_listed_for_no_more_than_it_holds() -> None:
    """The next run would have put more into the object than the one that it finds."""

    class CutOff(FailingObjects):
        def create(self, key: str, data: Any) -> None:
            super().create(key, data)
            if not self.forever:
                self.fail_at, self.forever = len(self.calls), True

    objects = CutOff(memory())
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"archive.object.bytes": 1 << 20})
        store.append(TOPIC, values(0, 5))
        store.roll(TOPIC)
        attempt(store)
        assert ("create", ObjectKey(TOPIC, 0, 0).name) in objects.calls
        assert store.tier_status()[0].archived_offset == 0
        store.append(TOPIC, values(5, 5))
        store.roll(TOPIC)
        objects.fail_at = None
        hold(store, objects, 10, 10)
        assert archived(objects) == numbered(0, 10)


def test_a_store_that_is_down_stops_neither_appends_nor_hot_reads() -> None:
    objects = FailingObjects(memory())
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        objects.fail_at, objects.forever = 0, True
        for round_ in range(3):
            store.append(TOPIC, values(20 * round_, 20))
            attempt(store)
        (status,) = store.tier_status()
        assert status.records_behind == 60
        assert status.bytes_behind > 0
        assert "the test says so" in status.last_error
        assert read(store, 0) == numbered(0, 60)
        assert store._partitions[TOPIC, 0].layout.earliest_offset == 0, "nothing may leave the disk"
        objects.fail_at = None
        hold(store, objects, 60, 60)


def test_archived_records_are_unavailable_and_not_missing_while_the_store_is_down() -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    with opened(files, objects) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, 40))
        store.archive()
        hot = store._partitions[TOPIC, 0].layout.earliest_offset
        assert 0 < hot < 40
    objects.fail_at, objects.forever = len(objects.calls), True
    with opened(files, objects) as store:
        assert store.earliest_offset(TOPIC) == 0
        with pytest.raises(ArchiveUnavailable, match="the test says so"):
            read(store, 0)
        assert read(store, hot) == numbered(hot, 40)
        objects.fail_at = None
        assert read(store, 0) == numbered(0, 40)
    with opened(files, None) as store, pytest.raises(ArchiveUnavailable, match="with `archive`"):
        read(store, 0)
