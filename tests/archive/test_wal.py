"""Wal topics in the archive: one stream over the seam, deletes that hold on both of its sides."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina.config import WalSettings
from lamina.errors import ArchiveUnavailable, RecordsMissing
from lamina.storage.objects import Objects
from lamina.storage.paths import ObjectKey, archive_ledger, archive_manifest
from lamina.store.archive_store import ArchiveStore
from lamina.store.opening import Boot
from lamina.store.orphans import clean, orphans
from lamina.store.read_only import ReadOnlyStore
from lamina.store.restore import restore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive import rig
from tests.archive.rig import DATA, NOW_MS, SETTINGS, TOPIC, memory, numbered, read, table, values
from tests.support.failing_objects import FailingObjects

END = 25
BACK = "/back/data"
WAL = WalSettings(shards=1, wal_bytes=1 << 12, segment_events=6)
LATER_MS = 1 << 62


def opened(files: Any, objects: Objects | None, data: str = DATA) -> Store:
    return rig.opened(files, objects, data, wal=WAL)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Records that tell their offset, with every mix of tag and node."""
    return [
        {
            "value": value,
            "tag": (None, b"", b"red", b"reddish", b"blue")[number % 5],
            "node": (None, b"", b"here")[number % 3],
            "timestamp": NOW_MS + number % 7,
        }
        for number, value in enumerate(values(first, count), start=first)
    ]


def tags(name: bytes, first: int, end: int) -> list[int]:
    return [each for each in range(first, end) if rows(each, 1)[0]["tag"] == name]


def created(objects: Objects, files: Any = None, **config: object) -> Store:
    store = opened(files or SimulatedFiles(), objects)
    store.create_topic(TOPIC, format="wal", config={**SETTINGS, **config})
    return store


def grow(store: Store, count: int) -> None:
    """Appends records that tell their offset."""
    end = store.latest_offset(TOPIC)
    assert store.append(TOPIC, rows(end, count)).base_offset == end


def settle(store: Store, *, roll: bool = False) -> None:
    """Has everything in segments, archives, and lets local copies go."""
    if roll:
        store.roll(TOPIC)
    store.maintain()
    store.archive()
    (status,) = store.tier_status()
    assert status.last_error == ""


def local(store: Store) -> int:
    start: int = store._partitions[TOPIC, 0].local_start  # type: ignore[attr-defined]
    return start


def live(store: Any, start: int | None = None) -> list[int]:
    """Reads on over gaps: the offsets that are served, each with its own value."""
    found: list[tuple[int, bytes]] = []
    start = store.earliest_offset(TOPIC) if start is None else start
    while True:
        try:
            for batch in store.scan(TOPIC, 0, start, max_records=5):
                offsets = batch.column("offset").to_pylist()
                found += zip(offsets, batch.column("value").to_pylist(), strict=True)
                start = offsets[-1] + 1
            break
        except RecordsMissing as missing:
            start = max(missing.end, start + 1)
    assert found == [(offset, values(offset, 1)[0]) for offset, _ in found]
    return [offset for offset, _ in found]


def held(objects: Objects) -> list[int]:
    """What the archive alone gives; nothing when the topic is not there yet."""
    with ArchiveStore(objects) as store:
        return live(store) if TOPIC in store.topics() else []


# ---------------------------------------------------------------- the seam


def test_the_seam_at_every_offset_is_read_from_every_offset() -> None:
    for seam in range(2, END):
        with created(memory(), **{"segment.bytes": 1 << 20}) as store:
            grow(store, seam - 1)
            store.roll(TOPIC)
            grow(store, END - seam)
            before = table(store.scan(TOPIC))
            settle(store)
            assert local(store) > 1
            assert table(store.scan(TOPIC)).equals(before)
            for start in range(1, END):
                assert read(store, start, max_records=4) == numbered(start, END)
                batch = store.fetch(TOPIC, 0, start, max_bytes=1)
                assert batch.column("offset").to_pylist() == [start]
            assert store.gaps(TOPIC) == ()
            assert store.diff(TOPIC, 0, 1, exclude_node=b"here").records.num_rows == sum(
                row["node"] != b"here" for row in rows(1, END - 1)
            )


def test_a_reader_that_has_begun_goes_on_while_the_seam_passes_it() -> None:
    for passed in range(0, END - 1, 2):
        with created(memory()) as store:
            grow(store, END - 1)
            store.maintain()
            found = []
            for number, batch in enumerate(store.scan(TOPIC, max_records=1)):
                found += batch.column("offset").to_pylist()
                if number == passed:
                    settle(store)
                    assert local(store) > 18
            assert found == list(range(1, END))


def test_time_is_found_on_both_sides_of_the_seam() -> None:
    with created(memory()) as store:
        grow(store, END - 1)
        times = [NOW_MS + each % 7 for each in range(1, END)]
        settle(store)
        store.delete(TOPIC, offsets=[6])
        for wanted in range(NOW_MS, NOW_MS + 9):
            expected = next(
                (o for o, time in enumerate(times, 1) if time >= wanted and o != 6), None
            )
            assert store.offset_for_time(TOPIC, 0, wanted) == expected
        assert store._partitions[TOPIC, 0].time_at(2) is not None
        assert store._partitions[TOPIC, 0].bytes_from(1) > store._partitions[TOPIC, 0].bytes_from(
            local(store)
        )


def test_archived_objects_count_for_retention_and_the_last_segment_stays() -> None:
    objects = memory()
    with created(objects) as store:
        grow(store, END - 1)
        settle(store, roll=True)
        facts = store.segments(TOPIC)
        assert facts[0].base_offset == 1
        assert [each.next_offset for each in facts[:-1]] == [each.base_offset for each in facts[1:]]
        assert len(store._partitions[TOPIC, 0].layout.segments) == 1, "it knows where it ends"
        store.alter_topic(TOPIC, {"retention.records": 10})
        store.apply_retention(TOPIC)
        assert 1 < store.earliest_offset(TOPIC) <= END - 10
        with pytest.raises(RecordsMissing) as caught:
            read(store, 1)
        assert caught.value.reason == "retention"
        store.archive()
        first = store.earliest_offset(TOPIC)
        assert held(objects) == live(store) == list(range(first, END))
        assert not [info for info in objects.list("data") if info.key.endswith(f"{1:020}.seg")]
        with ArchiveStore(objects) as reading:
            assert [(gap.first, gap.end, gap.reason) for gap in reading.gaps(TOPIC)] == [
                (1, first, "retention")
            ]


def test_a_damaged_local_record_is_read_from_the_archive() -> None:
    files, objects = SimulatedFiles(), memory()
    with created(objects, files, **{"local.retention.bytes": -1}) as store:
        grow(store, END - 1)
        settle(store)
        segment = store._partitions[TOPIC, 0].layout.segments[0]
        path = segment.path("data")
        files.open(path).write_at(files.size(path) // 2, b"\xff\xff\xff")
        assert live(store) == list(range(1, END))
        assert local(store) == 1


def test_an_archive_that_is_down_hides_nothing_that_is_local() -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    with created(objects, files) as store:
        grow(store, END - 1)
        settle(store)
        hot = local(store)
        assert hot > 1
    objects.fail_at, objects.forever = len(objects.calls), True
    with opened(files, objects) as store:
        assert store.earliest_offset(TOPIC) == 1
        with pytest.raises(ArchiveUnavailable, match="the test says so"):
            read(store, 1)
        assert read(store, hot) == numbered(hot, END)
        with pytest.raises(ArchiveUnavailable):
            store.delete(TOPIC, tag=b"red")
        assert store.delete(TOPIC, offsets=[2]) == 1
        grow(store, 3)
        objects.fail_at = None
        assert live(store) == [each for each in range(1, END + 3) if each != 2]
    with opened(files, None) as store:
        with pytest.raises(ArchiveUnavailable, match="with `archive`"):
            read(store, 1)
        with pytest.raises(ArchiveUnavailable, match="with `archive`"):
            store.delete(TOPIC, tag=b"red")
    with ReadOnlyStore(DATA, files=files, archive=objects.inner, wal=WAL) as reader:
        assert live(reader) == [each for each in range(1, END + 3) if each != 2]


def test_acks_archived_seals_and_uploads() -> None:
    objects = memory()
    with created(objects, **{"archive.window.ms": 1, "durability": "memory"}) as store:
        ack = store.append(TOPIC, rows(1, 3), acks="archived", timeout_s=30)
        assert ack.durability == "archived"
        assert held(objects) == [1, 2, 3]


# ---------------------------------------------------------------- deletes


def lose(files: SimulatedFiles, data: str, *names: str) -> None:
    """Removes every file whose path holds one of some words."""
    for folder in ("meta", "topics/orders/0", "segments/0000000000000001"):
        path = os.path.join(data, folder)
        for name in files.list(path):
            if any(word in name for word in names):
                files.remove(os.path.join(path, name))
        files.sync_directory(path)


LOSSES = {
    "nothing": (),
    "snapshots": ("snapshot",),
    "ledger": ("ledger",),
    "indexes": (".idx",),
}


@pytest.mark.parametrize("lost", LOSSES)
def test_deleted_records_stay_deleted_whatever_is_lost(lost: str) -> None:
    files, objects = SimulatedFiles(), memory()
    gone: set[int] = set()
    with created(objects, files, **{"local.retention.bytes": -1}) as store:
        grow(store, END - 1)
        gone |= set(tags(b"blue", 1, END))
        assert store.delete(TOPIC, tag=b"blue") == len(gone)
        settle(store)  # archived, and still local
        for each in (2, 3, 20):
            gone.add(each)
        store.delete(TOPIC, offsets=[2, 3, 20])
        store.alter_topic(TOPIC, {"local.retention.bytes": 0})
        settle(store)  # handed over
        assert local(store) > 10
        more = set(tags(b"red", 1, END)) - gone
        assert store.delete(TOPIC, tag=b"red") == len(more)
        assert store.delete(TOPIC, offsets=[5]) == 1
        prefixed = set(tags(b"reddish", 1, END)) - gone - more
        assert store.delete(TOPIC, tag_prefix=b"redd") == len(prefixed)
        gone |= more | prefixed | {5}
        expected = [each for each in range(1, END) if each not in gone]
        assert live(store) == expected
        store.archive()
        assert held(objects) == expected
    lose(files, DATA, *LOSSES[lost])
    for _ in range(2):
        with opened(files, objects) as store:
            assert [each for each in live(store) if each < END] == expected
            grow(store, 1)
            assert [each for each in live(store) if each < END] == expected
            settle(store, roll=True)
            assert [each for each in held(objects) if each < END] == expected
    new = SimulatedFiles()
    restore(objects, Boot(new, BACK, lambda: NOW_MS))
    lose(new, BACK, *LOSSES[lost])
    with opened(new, None, BACK) as store:
        assert [each for each in live(store) if each < END] == expected


def test_a_crash_before_the_snapshot_forgets_no_delete_of_archived_records() -> None:
    files, objects = SimulatedFiles(), memory()
    store = created(objects, files)
    grow(store, END - 1)
    settle(store)
    hot = local(store)
    found = tags(b"red", 1, END)
    assert found[0] < hot
    assert store.delete(TOPIC, tag=b"red") == len(found)
    expected = [each for each in range(1, END) if each not in found]
    after = files.snapshot().crash("lost")
    objects_down = FailingObjects(objects)
    objects_down.fail_at, objects_down.forever = 0, True
    with opened(after, objects_down) as again:  # opening asks the archive for nothing
        objects_down.fail_at = None
        assert live(again) == expected
    store._lookup.is_closed = True


def test_what_was_deleted_since_an_upload_that_was_cut_off_is_no_conflict() -> None:
    objects = FailingObjects(memory())
    with created(objects) as store:
        grow(store, END - 1)
        store.maintain()
        store.archive()
        count = len(objects.calls)
    counting = [kind for kind, key in objects.calls[:count]]
    create = counting.index("create")
    objects = FailingObjects(memory())
    with created(objects) as store:
        grow(store, END - 1)
        store.maintain()
        objects.fail_at, objects.when = create, "after"
        rig.attempt(store)
        objects.fail_at = None
        assert objects.size(ObjectKey(TOPIC, 0, 1).name) > 0
        store.delete(TOPIC, offsets=[2])
        settle(store, roll=True)
        assert live(store) == [1, *range(3, END)]
        assert held(objects) == live(store)


def test_whole_objects_that_were_deleted_leave_the_store() -> None:
    objects = memory()
    with created(objects) as store:
        grow(store, END - 1)
        settle(store, roll=True)
        hot = local(store)
        store.delete(TOPIC, offsets=range(1, hot))
        store.archive()
        entries = store._partitions[TOPIC, 0].cold.entries  # type: ignore[attr-defined]
        left = [info.key for info in objects.list("data") if info.key.endswith(".seg")]
        assert left == [ObjectKey(TOPIC, 0, each.base_offset).name for each in entries]
        assert all(each.next_offset > hot for each in entries)
        assert held(objects) == live(store) == list(range(hot, END))
        with ArchiveStore(objects) as reading:
            assert reading.gaps(TOPIC)[0].reason == "deleted"
            assert (reading.gaps(TOPIC)[0].first, reading.gaps(TOPIC)[0].end) == (1, hot)
        assert store.gaps(TOPIC) == ()


def test_an_archive_without_its_ledger_tells_holes() -> None:
    objects = memory()
    with created(objects, **{"segment.bytes": 1 << 20}) as store:
        grow(store, END - 1)
        store.delete(TOPIC, offsets=[3, 4])
        store.roll(TOPIC)
        settle(store)
        with ArchiveStore(objects) as reading:
            assert read(reading) == [pair for pair in numbered(1, END) if pair[0] not in (3, 4)]
    objects.delete(archive_ledger(TOPIC, 0))
    with ArchiveStore(objects) as reading:
        with pytest.raises(RecordsMissing) as caught:
            read(reading)
        assert (caught.value.first, caught.value.end, caught.value.reason) == (3, 5, "deleted")
        assert live(reading) == [each for each in range(1, END) if each not in (3, 4)]
        assert reading.diff(TOPIC, 0, 1).gaps[0].reason == "deleted"


# ---------------------------------------------------------------- restore


def test_a_topic_comes_back_whole_beside_others() -> None:
    files, objects = SimulatedFiles(), memory()
    with created(objects, files, **{"retention.records": 1000}) as store:
        grow(store, END - 1)
        store.maintain()
        store.trim(TOPIC, 0, 4)
        store.delete(TOPIC, offsets=[8, END - 1])
        store.group(TOPIC, "billing").commit(11)
        store.roll(TOPIC)
        settle(store)
        expected, before = table(store.scan(TOPIC)), store.describe_topic(TOPIC)
        gaps = store.gaps(TOPIC)
        assert expected.num_rows == END - 6
    new = SimulatedFiles()
    with opened(new, None, BACK) as store:
        store.create_topic("other", format="wal", partitions=3)
        store.append("other", [b"theirs"], partition=0)
    (done,) = restore(objects, Boot(new, BACK, lambda: NOW_MS))
    assert (done.topic, done.records, done.end_offsets) == (TOPIC, END - 6, (END,))
    for _ in range(2):
        with opened(new, objects, BACK) as store:
            after = store.describe_topic(TOPIC)
            assert (after.settings, after.epoch, after.created_ms) == (
                *(before.settings, before.epoch, before.created_ms),
            )
            assert table(store.scan(TOPIC)).slice(0, END - 6).equals(expected)
            assert [(gap.first, gap.end) for gap in store.gaps(TOPIC)] == [
                (gap.first, gap.end) for gap in gaps
            ]
            assert store.group(TOPIC, "billing").committed(0) == 11
            assert read_other(store) == [b"theirs"]
            grow(store, 2)
            settle(store, roll=True)
            assert held(objects) == live(store)
    assert held(objects)[-4:] == [END, END + 1, END + 2, END + 3], "no offset is given twice"


def read_other(store: Store) -> list[bytes]:
    found: list[bytes] = table(store.scan("other", 0)).column("value").to_pylist()
    return found


def test_a_restore_that_is_cut_off_leaves_no_topic_and_can_be_done_again() -> None:
    objects = memory()
    with created(objects) as store:
        grow(store, END - 1)
        store.delete(TOPIC, offsets=[8])
        store.roll(TOPIC)
        settle(store)
        expected = live(store)
    new = SimulatedFiles()
    disks = []
    new.before = lambda kind, path: disks.append(new.snapshot())
    restore(objects, Boot(new, BACK, lambda: NOW_MS))
    new.before = None
    for number, disk in enumerate(disks[::5]):
        half = disk.crash(("dropped", "kept", 3)[number % 3])
        if half.exists(f"{BACK}/meta/broker.id"):
            with opened(half, None, BACK) as store:
                if TOPIC in store.topics():
                    assert live(store) == expected
                    continue
        restore(objects, Boot(half, BACK, lambda: NOW_MS))
        with opened(half, None, BACK) as store:
            assert live(store) == expected
            assert store.recovery_report.events == []


def test_a_restored_topic_ends_where_it_ended_when_the_wal_has_moved_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = memory()
    with created(objects) as store:
        grow(store, END - 1)
        store.delete(TOPIC, offsets=[END - 2, END - 1])
        settle(store, roll=True)
    new = SimulatedFiles()
    monkeypatch.setenv("TOPICS_WAL_SHARDS", "2")
    restore(objects, Boot(new, BACK, lambda: NOW_MS))
    for shard in new.list(f"{BACK}/wal"):
        for name in new.list(f"{BACK}/wal/{shard}"):
            new.remove(f"{BACK}/wal/{shard}/{name}")
    with opened(new, None, BACK) as store:
        assert live(store) == list(range(1, END - 2))
        assert store.latest_offset(TOPIC) == END


def test_the_list_is_made_again_from_the_objects_alone() -> None:
    objects = memory()
    with created(objects) as store:
        grow(store, END - 1)
        store.maintain()
        store.trim(TOPIC, 0, 9)
        store.delete(TOPIC, offsets=[12])
        settle(store)
        expected = held(objects)
        objects.delete(archive_manifest(TOPIC, 0))
        assert held(objects) == expected
        store.roll(TOPIC)
    with ArchiveStore(objects) as reading:
        clean(objects, orphans(objects, LATER_MS))
        assert live(reading) == expected


# ---------------------------------------------------------------- a model


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.sampled_from(["roll", "maintain", "archive", "reopen"]), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 50)),
        st.tuples(st.just("delete"), st.integers(1, 60)),
        st.tuples(st.just("tag"), st.integers(0, 4)),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_a_wal_topic_with_an_archive_is_a_list(steps: list[tuple[str, int]]) -> None:
    files, objects = SimulatedFiles(), memory()
    store = created(objects, files)
    model: list[int] = []
    end = 1
    for kind, number in steps:
        if kind == "append":
            grow(store, number)
            model += range(end, end + number)
            end += number
        elif kind == "trim":
            store.trim(TOPIC, 0, number)
            model = [each for each in model if each >= number]
        elif kind == "delete":
            found = store.delete(TOPIC, offsets=range(number, number + 4))
            kept = [each for each in model if not number <= each < number + 4]
            assert found == len(model) - len(kept)
            model = kept
        elif kind == "tag":
            tag = (b"", b"red", b"reddish", b"blue", b"green")[number]
            meant = set(tags(tag, 1, end))
            kept = [each for each in model if each not in meant]
            assert store.delete(TOPIC, tag=tag) == len(model) - len(kept)
            model = kept
        elif kind == "reopen":
            store.close()
            store = opened(files, objects)
        else:
            getattr(store, kind)(*([TOPIC] if kind == "roll" else []))
        assert live(store, 1) == model
        assert store.latest_offset(TOPIC) == end
    store.roll(TOPIC)
    settle(store)
    assert held(objects) == model
    store.close()
    new = SimulatedFiles()
    restore(objects, Boot(new, BACK, lambda: NOW_MS))
    with opened(new, None, BACK) as back:
        assert live(back, 1) == model
        assert back.latest_offset(TOPIC) == end


def test_tags_and_nodes_come_back_null_empty_and_set() -> None:
    objects = memory()
    with created(objects, **{"segment.bytes": 1 << 20}) as store:
        grow(store, END - 1)
        before = table(store.scan(TOPIC))
        store.roll(TOPIC)
        settle(store)
        with ArchiveStore(objects) as reading:
            found = table(reading.scan(TOPIC))
    assert found.equals(before)
    assert set(found.column("tag").to_pylist()) == {None, b"", b"red", b"reddish", b"blue"}
    assert set(found.column("node").to_pylist()) == {None, b"", b"here"}
    assert found.schema.field("offset").type == pa.int64()
