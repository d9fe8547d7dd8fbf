"""Wal topics killed, or without power, at every step of upload, list, handing over and deleting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lamina.engine.store import Store
from lamina.engine.tier.orphans import clean, orphans
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import Objects
from lamina.torture.disk import Choice, Disk
from lamina.torture.simulated import SimulatedFiles
from tests.support.failing_objects import FailingObjects, When
from tests.tier.rig import NOW_MS, SETTINGS, TOPIC, memory
from tests.tier.test_wal import grow, held, live, opened, settle, tags

ARCHIVE = "/srv/archive"
CHOICES: tuple[Choice, ...] = ("dropped", "kept", 1)


@dataclass(slots=True)
class Promise:
    """What must be there and what must not, as far as it was answered; the rest may be either."""

    kept: frozenset[int] = frozenset()
    gone: frozenset[int] = frozenset()
    appended: int = 0
    log: list[tuple[frozenset[int], frozenset[int]]] = field(default_factory=list)

    def append(self, store: Store, count: int) -> None:
        first = self.appended + 1
        self.appended += count
        grow(store, count)
        self.kept |= frozenset(range(first, first + count))

    def remove(self, meant: set[int], action: Callable[[], object]) -> None:
        self.kept -= meant
        action()
        self.gone |= meant

    def now(self) -> tuple[frozenset[int], frozenset[int]]:
        return self.kept, self.gone


def fill(store: Store, promise: Promise) -> None:
    """Appends, deletes, archives and hands over, in every order that matters."""
    store.create_topic(TOPIC, format="wal", config=SETTINGS)
    promise.append(store, 14)
    promise.remove({3, 4}, lambda: store.delete(TOPIC, offsets=[3, 4]))
    store.maintain()
    store.archive()
    promise.append(store, 10)
    red = set(tags(b"red", 1, 25))
    promise.remove(red, lambda: store.delete(TOPIC, tag=b"red"))
    store.roll(TOPIC)
    store.archive()
    promise.remove({1, 6, 20}, lambda: store.delete(TOPIC, offsets=[1, 6, 20]))
    store.maintain()
    promise.remove(set(range(1, 14)), lambda: store.trim(TOPIC, 0, 14))
    store.archive()
    promise.append(store, 3)
    store.maintain()
    store.archive()


def hold(store: Store, objects: Objects, kept: frozenset[int], gone: frozenset[int]) -> None:
    """Demands what was promised, before and after the rest is archived, and once more opened."""
    for _ in range(2):
        found = live(store, 1)
        assert len(found) == len(set(found))
        assert kept <= set(found)
        assert not gone & set(found)
        assert {gap.reason for gap in store.gaps(TOPIC)} <= {"trim"}
        settle(store, roll=True)
        assert not gone & set(held(objects))
    clean(objects, orphans(objects, NOW_MS, 0))
    assert held(objects) == live(store, 1) == found
    assert len(store._partitions[TOPIC, 0].layers.segments) <= 1


def test_power_is_lost_at_every_step_of_disk_and_archive() -> None:
    """The archive is a directory on the same simulated disk: it loses unsynced bytes too."""
    files, promise = SimulatedFiles(), Promise()
    moments: list[tuple[Disk, tuple[frozenset[int], frozenset[int]]]] = []
    with opened(files, DirectoryObjects(files, ARCHIVE)) as store:
        files.before = lambda kind, path: moments.append((files.snapshot(), promise.now()))
        fill(store, promise)
        files.before = None
    assert len(moments) > 200
    for step, (disk, (kept, gone)) in enumerate(moments):
        choice = CHOICES[step % len(CHOICES)]
        after = disk.crash(choice)
        objects = DirectoryObjects(after, ARCHIVE)
        try:
            with opened(after, objects) as store:
                if TOPIC not in store.topics():
                    assert not kept, "the topic is gone"
                    continue
                hold(store, objects, kept, gone)
        except BaseException as error:
            error.add_note(f"step {step}, {choice}")
            raise


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_the_object_store(when: When) -> None:
    counting = FailingObjects(memory())
    with opened(SimulatedFiles(), counting) as store:
        fill(store, Promise())
    kinds = {kind for kind, _ in counting.calls}
    assert {"create", "read_range", "size", "replace", "delete"} <= kinds
    for step in range(len(counting.calls)):
        files, objects, promise = SimulatedFiles(), FailingObjects(memory()), Promise()
        objects.fail_at, objects.when, objects.error = step, when, Killed
        store = opened(files, objects)
        with contextlib.suppress(Killed):
            fill(store, promise)
        with opened(files.snapshot().restart(), objects.inner) as again:
            try:
                hold(again, objects.inner, *promise.now())
            except BaseException as error:
                error.add_note(f"call {step} {objects.calls[step]}, {when}")
                raise
        store._closed = True


@pytest.mark.parametrize("when", ["before", "after"])
def test_any_call_may_fail_once_and_the_next_round_does_the_rest(when: When) -> None:
    counting = FailingObjects(memory())
    with opened(SimulatedFiles(), counting) as store:
        fill(store, Promise())
    for step in range(0, len(counting.calls), 2):
        files, objects, promise = SimulatedFiles(), FailingObjects(memory()), Promise()
        objects.fail_at, objects.when = step, when
        with opened(files, objects) as store:
            try:
                fill(store, promise)
            except Exception as error:  # a delete by tag that could not look into the archive
                error.add_note(f"call {step}")
                promise.append(store, 1)
            store.archive()
            objects.fail_at = None
            hold(store, objects, *promise.now())
