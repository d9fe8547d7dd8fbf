"""Small neighbours become one object: by rule, in one exchange, with the same records in it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.api import Gap
from lamina.archive.join import JOINED_MIN, Policy, choose, join
from lamina.archive.object_list import Shelf
from lamina.errors import Fenced, ObjectConflict
from lamina.formats.documents import archive_manifest as archive
from lamina.formats.documents.archive_manifest import ArchivedObject, Manifest
from lamina.formats.documents.ledger import Ledger
from lamina.formats.documents.topic_file import TopicFile
from lamina.storage import paths
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.storage.objects import Objects
from lamina.storage.paths import ObjectKey, archive_manifest
from lamina.store.archive_store import ArchiveStore, archived_topics
from lamina.store.orphans import clean, orphans, rebuild
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive.rig import (
    NOW_MS,
    SETTINGS,
    TOPIC,
    archived,
    memory,
    numbered,
    opened,
    read,
    values,
)
from tests.support.failing_objects import FailingObjects, When

LARGE = SETTINGS | {"segment.bytes": 1 << 20, "archive.object.bytes": 1 << 27}
LATER_MS = 1 << 62
MIB = 1 << 20


def entry(base: int, end: int, size: int = 1000, generation: int = 0) -> ArchivedObject:
    count = end - base
    return ArchivedObject(base, end - 1, count, 0, 0, size, 1, 1, 1, generation=generation)


def sized(*sizes: int) -> tuple[ArchivedObject, ...]:
    return tuple(entry(10 * row, 10 * row + 10, size) for row, size in enumerate(sizes))


def grow(store: Store, count: int) -> None:
    """Appends and archives a record at a time: as many small objects."""
    end = store.latest_offset(TOPIC)
    for number in range(end, end + count):
        store.append(TOPIC, values(number, 1))
        store.roll(TOPIC)
        store.archive()


def listed(objects: Objects) -> Manifest:
    return archive.decode(objects.read(archive_manifest(TOPIC, 0)).data)


# ---------------------------------------------------------------- which ones


def test_few_small_objects_are_left_alone_and_many_are_joined() -> None:
    policy = Policy()
    assert choose(sized(*[1000] * (JOINED_MIN - 1)), policy) == ()
    assert len(choose(sized(*[1000] * JOINED_MIN), policy)) == JOINED_MIN
    assert len(choose(sized(*[1000, 90_000] * JOINED_MIN), policy)) == 2 * JOINED_MIN


def test_a_large_one_is_not_written_again_for_the_sake_of_a_few_crumbs() -> None:
    policy = Policy()
    assert choose(sized(10 * MIB, *[1000] * (JOINED_MIN - 1)), policy) == ()
    chosen = choose(sized(10 * MIB, *[1000] * JOINED_MIN), policy)
    assert [each.size_bytes for each in chosen] == [1000] * JOINED_MIN


def test_neighbours_that_fill_an_object_are_joined_up_to_the_target() -> None:
    policy = Policy(target_bytes=128 * MIB)
    assert choose(sized(128 * MIB, 40 * MIB, 20 * MIB), policy) == ()
    assert len(choose(sized(128 * MIB, 40 * MIB, 30 * MIB), policy)) == 2
    assert len(choose(sized(60 * MIB, 60 * MIB, 60 * MIB), policy)) == 2
    assert choose(sized(64 * MIB, 64 * MIB), policy) == ()
    assert choose((), policy) == ()


# ---------------------------------------------------------------- in a store


def test_appends_that_wait_for_the_archive_leave_few_objects() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 3 * JOINED_MIN)
        assert len(listed(objects).objects) < JOINED_MIN
        assert max(each.record_count for each in listed(objects).objects) >= JOINED_MIN
        assert read(store) == archived(objects) == numbered(0, 3 * JOINED_MIN)
        found = orphans(objects, LATER_MS)
        assert len(found) >= JOINED_MIN, "those that were joined belong to nothing"
        clean(objects, found)
        assert read(store) == archived(objects) == numbered(0, 3 * JOINED_MIN)
        store.trim(TOPIC, 0, 3 * JOINED_MIN)
        store.archive()
        assert [info.key for info in objects.list("") if info.key.endswith(".seg")] == []


def test_the_list_is_made_again_while_the_joined_ones_are_still_there() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, JOINED_MIN + 2)
    expected = listed(objects).objects
    rebuild(objects, TOPIC)
    assert list(expected) == list(listed(objects).objects)
    assert archived(objects) == numbered(0, JOINED_MIN + 2)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_of_a_join(when: When) -> None:
    class Killed(BaseException):
        pass

    counting = FailingObjects(memory())
    with opened(SimulatedFiles(), counting) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, JOINED_MIN - 1)
        before = len(counting.calls)
        grow(store, 1)
        total = len(counting.calls)
    for step in range(before, total):
        files, objects = SimulatedFiles(), FailingObjects(memory())
        store = opened(files, objects)
        store.create_topic(TOPIC, config=LARGE)
        grow(store, JOINED_MIN - 1)
        objects.fail_at, objects.when, objects.error = step, when, Killed
        with contextlib.suppress(Killed):
            grow(store, 1)
        assert archived(objects.inner) == numbered(0, len(archived(objects.inner)))
        with opened(files.snapshot().restart(), objects.inner) as again:
            again.roll(TOPIC)
            again.archive()
            assert again.tier_status()[0].last_error == ""
            assert len(listed(objects.inner).objects) == 1, f"call {step}"
            assert read(again) == archived(objects.inner) == numbered(0, JOINED_MIN)
        store._lookup.is_closed = True


# ---------------------------------------------------------------- by a job, beside a store


def job(objects: Objects) -> Shelf:
    shelf = Shelf(objects, archived_topics(objects)[TOPIC], 0)
    shelf.load()
    return shelf


def test_a_job_joins_while_the_store_goes_on_archiving_and_reading() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 4)
        shelf = job(objects)
        join(shelf, shelf.manifest.objects[1:3], Ledger(), Policy(), NOW_MS)
        assert [each.record_count for each in listed(objects).objects] == [1, 2, 1]
        grow(store, 1)
        assert store.tier_status()[0].last_error == ""
        assert [each.record_count for each in listed(objects).objects] == [1, 2, 1, 1]
        clean(objects, orphans(objects, LATER_MS))
        assert read(store) == archived(objects) == numbered(0, 5)


def test_a_reader_with_an_older_list_asks_again_when_an_object_is_gone() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 4)
        shelf = job(objects)
        join(shelf, shelf.manifest.objects, Ledger(), Policy(), NOW_MS)
        clean(objects, orphans(objects, LATER_MS))
        assert read(store) == numbered(0, 4)


def test_an_object_that_was_replaced_is_as_old_as_what_replaced_it(tmp_path: Path) -> None:
    """Readers may have the list that named it: one that was joined just now stays for them."""
    objects = DirectoryObjects(LocalFiles(), str(tmp_path))
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, JOINED_MIN + 1)
    keys = {info.key for info in objects.list("data") if info.key.endswith(".seg")}
    (whole, *_) = listed(objects).objects
    joined = ObjectKey(TOPIC, 0, whole.base_offset, whole.generation).name
    assert whole.record_count >= JOINED_MIN
    old, new = 1_000, 1_000_000
    for key in keys:
        os.utime(tmp_path / key, (new, new) if key == joined else (old, old))
    assert orphans(objects, 1000 * new + 10, 1000) == []
    os.utime(tmp_path / joined, (old, old))
    assert len(orphans(objects, 1000 * new + 10, 1000)) == whole.record_count


def test_whoever_joins_says_whether_there_may_be_more_to_join() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 4)
        kept = store.tier._kept[store._partitions[TOPIC, 0]]  # type: ignore[union-attr]
        assert not kept.archiver.join_small(Policy(), Ledger(), NOW_MS)
        eager = Policy(target_bytes=kept.shelf.manifest.objects[0].size_bytes * 2)
        assert kept.archiver.join_small(eager, Ledger(), NOW_MS)
        assert len(listed(objects).objects) < 4


def test_only_a_sound_object_has_an_entry() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 1)
    shelf = job(objects)
    (info,) = shelf.listed()
    found, known = shelf.entry_from_headers(info), shelf.manifest.objects[0]
    assert found is not None
    assert (found.base_offset, found.record_count) == (known.base_offset, known.record_count)
    raw = bytes(objects.read(info.key).data)
    objects.delete(info.key)
    objects.create(info.key, raw[: len(raw) // 2])
    (info,) = shelf.listed()
    assert shelf.entry_from_headers(info) is None


def test_the_next_generation_is_one_that_no_object_has() -> None:
    objects = memory()
    shelf = Shelf(objects, TopicFile(TOPIC, "keratin", 1, 1, NOW_MS), 0)
    assert shelf.next_generation() == 1
    for generation in (0, 3):
        objects.create(ObjectKey(TOPIC, 0, 7, generation).name, b"listed or not")
    objects.create(f"{paths.archive_partition(TOPIC, 0)}/notes.txt", b"somebody else's")
    assert shelf.next_generation() == 4


def test_what_is_not_listed_any_more_is_not_replaced() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 4)
        first, second = job(objects), job(objects)
        old = first.manifest.objects
        join(first, old[:2], Ledger(), Policy(), NOW_MS)
        with pytest.raises(ObjectConflict, match="names the replaced objects no more"):
            join(second, old[1:3], Ledger(), Policy(), NOW_MS)
        assert archived(objects) == numbered(0, 4)


def test_a_store_that_was_taken_over_joins_nothing() -> None:
    files, objects = SimulatedFiles(), memory()
    store = opened(files, objects)
    store.create_topic(TOPIC, config=LARGE)
    grow(store, 4)
    mine = store.tier._kept[store._partitions[TOPIC, 0]].shelf  # type: ignore[union-attr]
    with opened(files.snapshot().restart(), objects) as second:
        second.archive()
        with pytest.raises(Fenced):
            join(mine, mine.manifest.objects, Ledger(), Policy(), NOW_MS)
        assert len(listed(objects).objects) == 4
    store.close()


def test_joining_erases_what_was_removed_on_purpose() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 4)
    gaps = Ledger((Gap(1, 2, "deleted", 0), Gap(2, 3, "lost", 0)))
    shelf = job(objects)
    (new,) = join(shelf, shelf.manifest.objects, gaps, Policy(), NOW_MS)
    assert (new.record_count, new.base_offset, new.max_offset) == (3, 0, 3)
    key = ObjectKey(TOPIC, 0, 0, new.generation).name
    assert values(1, 1)[0] not in bytes(objects.read(key).data)
    whole = Ledger((Gap(0, 4, "deleted", 0),))
    assert join(shelf, shelf.manifest.objects, whole, Policy(), NOW_MS) == ()
    assert listed(objects).objects == ()
    assert listed(objects).end_offset == 4


def test_an_earlier_try_that_left_other_bytes_is_passed_by() -> None:
    objects = memory()
    with opened(SimulatedFiles(), objects) as store:
        store.create_topic(TOPIC, config=LARGE)
        grow(store, 2)
    objects.create(ObjectKey(TOPIC, 0, 0, 1).name, b"half of something")
    shelf = job(objects)
    (new,) = join(shelf, shelf.manifest.objects, Ledger(), Policy(), NOW_MS)
    assert new.generation == 2
    with ArchiveStore(objects) as reading:
        assert read(reading) == numbered(0, 2)


# ---------------------------------------------------------------- choosing among what is there


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=9)


@given(spans=SPANS)
def test_objects_without_overlap_span_the_most_offsets(spans: list[tuple[int, int]]) -> None:
    found = [
        entry(base, base + length, generation=number) for number, (base, length) in enumerate(spans)
    ]
    chosen = archive.without_overlap(found)
    taken = [offset for each in chosen for offset in range(each.base_offset, each.next_offset)]
    assert len(taken) == len(set(taken))
    assert set(chosen) <= set(found)

    def most(left: list[ArchivedObject], free_from: int) -> tuple[int, int]:
        best = (0, 0)
        for row, each in enumerate(left):
            if each.base_offset >= free_from:
                more, count = most(left[row + 1 :], each.next_offset)
                best = max(best, (more + each.next_offset - each.base_offset, count - 1))
        return best

    ordered = sorted(found, key=lambda each: each.base_offset)
    assert (len(taken), -len(chosen)) == most(ordered, 0)
