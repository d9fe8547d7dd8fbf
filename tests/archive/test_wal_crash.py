"""Wal topics killed, or without power, at the steps of upload, list, handing over and deleting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from lamina.errors import ArchiveUnavailable
from lamina.storage.objects import Objects
from lamina.store.orphans import clean, orphans
from lamina.store.store import Store
from tests.archive import crashing
from tests.archive.crashing import Steps
from tests.archive.rig import NOW_MS, SETTINGS, TOPIC
from tests.archive.test_wal import grow, held, live, opened, settle, tags
from tests.support.failing_objects import When


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
    assert len(store._partitions[TOPIC, 0].layout.segments) <= 1


STORY = crashing.Story(
    opened=opened,
    promise=Promise,
    fill=fill,
    hold=lambda store, objects, promised: hold(store, objects, *promised),
    is_empty=lambda promised: not promised[0],
)


def refused(store: Store, promise: Promise, error: Exception) -> None:
    """A delete by tag may fail: it could not look into the archive. Appends go on."""
    assert isinstance(error, ArchiveUnavailable)
    promise.append(store, 1)


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
    assert crashing.fail(STORY, when, steps, refused=refused) > 10
