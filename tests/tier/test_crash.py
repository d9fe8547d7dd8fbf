"""Killed, or power lost, at every step of upload, verification, listing and local removal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from lamina.engine.store import Store
from lamina.engine.tier.orphans import clean, orphans
from lamina.errors import ArchiveUnavailable
from lamina.formats import archive
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import Objects
from lamina.storage.paths import ObjectKey, archive_manifest
from lamina.torture.disk import Choice, Disk
from lamina.torture.simulated import SimulatedFiles
from tests.support.failing_objects import FailingObjects, When
from tests.tier.rig import NOW_MS, SETTINGS, TOPIC, archived, memory, numbered, opened, read, values

ARCHIVE = "/srv/archive"
CHOICES: tuple[Choice, ...] = ("dropped", "kept", 1)


def fill(store: Store, note: Callable[[int, int], None]) -> None:
    """Appends, archives, trims and archives again; says what is promised after each step."""
    store.create_topic(TOPIC, config=SETTINGS)
    end = 0
    for count in (20, 25, 15):
        store.append(TOPIC, values(end, count))
        end += count
        note(end, 0)
        store.archive()
        note(end, 0)
    store.trim(TOPIC, 0, 24)
    note(end, 0)
    store.archive()
    store.roll(TOPIC)
    store.archive()


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


def test_power_is_lost_at_every_step_of_disk_and_archive() -> None:
    """The archive is a directory on the same simulated disk: it loses unsynced bytes too."""
    files = SimulatedFiles()
    moments: list[tuple[Disk, int]] = []
    promised = 0

    def note(end: int, _: int) -> None:
        nonlocal promised
        promised = end

    with opened(files, DirectoryObjects(files, ARCHIVE)) as store:
        files.before = lambda kind, path: moments.append((files.snapshot(), promised))
        fill(store, note)
        files.before = None
    assert len(moments) > 200
    for step, (disk, end) in enumerate(moments):
        choice = CHOICES[step % len(CHOICES)]
        after = disk.crash(choice)
        objects = DirectoryObjects(after, ARCHIVE)
        with opened(after, objects) as store:
            if TOPIC not in store.topics():
                assert end == 0, f"step {step}, {choice}: the topic is gone"
                continue
            try:
                hold(store, objects, end, 60)
            except BaseException as error:
                error.add_note(f"step {step}, {choice}")
                raise


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_the_object_store(when: When) -> None:
    counting = FailingObjects(memory())
    with opened(SimulatedFiles(), counting) as store:
        fill(store, lambda *_: None)
    total = len(counting.calls)
    kinds = {kind for kind, _ in counting.calls}
    assert {"create", "read_range", "size", "replace", "delete"} <= kinds
    for step in range(total):
        files, objects = SimulatedFiles(), FailingObjects(memory())
        objects.fail_at, objects.when, objects.error = step, when, Killed
        promised = 0

        def note(end: int, _: int) -> None:
            nonlocal promised
            promised = end

        store = opened(files, objects)
        with contextlib.suppress(Killed):
            fill(store, note)
        after = files.snapshot().restart()
        with opened(after, objects.inner) as again:
            try:
                hold(again, objects.inner, promised, 60)
            except BaseException as error:
                error.add_note(f"call {step} {objects.calls[step]}, {when}")
                raise
        store._closed = True


@pytest.mark.parametrize("when", ["before", "after"])
def test_any_call_may_fail_once_and_the_next_round_does_the_rest(when: When) -> None:
    counting = FailingObjects(memory())
    with opened(SimulatedFiles(), counting) as store:
        fill(store, lambda *_: None)
    for step in range(len(counting.calls)):
        files, objects = SimulatedFiles(), FailingObjects(memory())
        objects.fail_at, objects.when = step, when
        with opened(files, objects) as store:
            fill(store, lambda *_: None)
            store.archive()
            objects.fail_at = None
            hold(store, objects, 60, 60)


def test_an_upload_that_was_cut_off_is_listed_for_no_more_than_it_holds() -> None:
    """The next run would have put more into the object than the one that it finds."""
    objects = FailingObjects(memory())
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=SETTINGS | {"archive.object.bytes": 1 << 20})
        store.append(TOPIC, values(0, 5))
        store.roll(TOPIC)
        objects.fail_at, objects.forever = 0, True
        store.archive()
        objects.forever = False
        for step in range(1, 40):  # until the call after the upload fails
            objects.fail_at = len(objects.calls) + step
            store.archive()
            if ("create", ObjectKey(TOPIC, 0, 0).name) in objects.calls:
                break
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
            store.archive()
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
