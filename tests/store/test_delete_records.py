"""Records deleted up to an offset, inside of a segment too: read again by nobody, after nothing."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from lamina.api import StoreApi
from lamina.errors import LaminaError, OffsetOutOfRange, RecordsMissing
from lamina.formats.documents.ledger import TRIM
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.archive_store import ArchiveStore
from lamina.store.opening import Boot
from lamina.store.restore import restore
from lamina.store.store import Store
from lamina_torture.client import TOPIC, first_offset, read
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles
from tests.support.directories import (
    Clock,
    copied,
    files_of,
    offsets,
    opened,
    read_only,
    rows,
    segments,
    timed,
)

EVERY = pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
SEGMENTED = pytest.mark.parametrize("format_name", ["frame", "keratin"])
COUNT = 40
SMALL = {"segment.bytes": 4096}
VALUE_BYTES = 300


def filled(path: Path, format_name: str, clock: Clock | None = None, **more: Any) -> Store:
    """A store with one topic of several segments; the time of each record is its number."""
    store = opened(path, clock, **more)
    config = SMALL | ({"remote.storage.enable": True} if "archive" in more else {})
    store.create_topic("t", format=format_name, config=config)
    for number in range(0, COUNT, 4):
        store.append("t", timed(list(range(number + 1, number + 5)), size=VALUE_BYTES))
    return store


def inside(store: StoreApi) -> int:
    """An offset in the middle of a sealed segment that is not the first."""
    facts = [each for each in store.segments("t") if each.sealed]
    if len(facts) > 1:
        return (facts[1].base_offset + facts[1].next_offset) // 2
    return store.earliest_offset("t") + COUNT // 2


def check_begins(store: StoreApi, before: int, end: int) -> None:
    """Nothing below an offset is read in any way, and all of the rest is."""
    assert store.earliest_offset("t") == before
    assert store.latest_offset("t") == end
    assert offsets(store) == list(range(before, end))
    for start in (before - 1, before // 2):
        if store.format_of("t")[0] != "wal":  # which goes on behind all that was deleted
            with pytest.raises(RecordsMissing) as missing:
                list(store.scan("t", 0, start))
            assert (missing.value.reason, missing.value.end) == (TRIM, before)
            with pytest.raises(RecordsMissing):
                store.fetch("t", 0, start, max_records=1)
        assert [row["offset"] for row in rows(store, start=start)] == list(range(before, end))
    first = end - COUNT
    assert store.offset_for_time("t", 0, 0) == before
    assert store.offset_for_time("t", 0, before - first) == before
    assert store.offset_for_time("t", 0, before - first + 2) == before + 1
    diff = store.diff("t", 0, before - 3)
    assert diff.records.column("offset").to_pylist()[:1] == [before]
    assert {gap.reason for gap in store.gaps("t")} == {TRIM}
    facts = store.segments("t")
    assert sum(each.records for each in facts) == end - before


@EVERY
def test_what_lies_below_is_read_by_nobody_and_the_rest_by_all(
    tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        before, end = inside(store), store.latest_offset("t")
        group = store.group("t", "late")
        assert store.delete_records("t", 0, before) == before
        check_begins(store, before, end)
        store.flush()
        check_begins(read_only(path), before, end)
        assert store.delete_records("t", 0, before - 5) == before, "it only moves up"
        polled = group.poll(1000).to_pylist()
        assert [row["offset"] for row in polled] == list(range(before, end))
        assert {each.reason for each in group.skipped} == {TRIM}
        (lag,) = store.group("t", "new").lag()
        assert lag.records == end - before
        assert store.describe_topic("t").partitions[0].earliest_offset == before
        (gone, *rest) = store.layers("t")
        assert (gone.state, gone.where) == ("gone", TRIM)
        assert gone.next_offset == rest[0].base_offset <= before
        assert store.raw_record("t", 0, before - 1) is None
    with opened(copied(path)) as again:
        check_begins(again, before, end)
        assert again.append("t", b"more").base_offset == end


@SEGMENTED
def test_a_segment_stays_until_it_lies_below_and_then_goes(
    tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        second, third = [each.base_offset for each in store.segments("t")][1:3]
        store.delete_records("t", 0, third - 1)
        assert next(int(file.stem) for file in files_of(path, "log")) == second
        store.delete_records("t", 0, third)
        assert next(int(file.stem) for file in files_of(path, "log")) == third
        (gap,) = store.gaps("t")
        assert (gap.first, gap.end, gap.reason) == (0, third, TRIM)
        end = store.latest_offset("t")
        assert store.delete_records("t", 0, end) == end
        assert offsets(store) == []
        assert len(files_of(path, "log")) == 1
        store.append("t", b"next")
        assert offsets(store) == [end]


@EVERY
@pytest.mark.parametrize("beyond", [1, 1 << 62])
def test_what_is_not_there_yet_cannot_be_deleted(
    tmp_path: Path, format_name: str, beyond: int
) -> None:
    with filled(tmp_path / "data", format_name) as store:
        end = store.latest_offset("t")
        with pytest.raises(OffsetOutOfRange, match=str(end)):
            store.delete_records("t", 0, end + beyond)
        with pytest.raises(OffsetOutOfRange):
            store.delete_records("t", 0, -1)
        assert len(offsets(store)) == COUNT


@EVERY
def test_a_scan_under_way_finishes_the_segment_that_it_holds_and_no_more(
    tmp_path: Path, format_name: str
) -> None:
    with filled(tmp_path / "data", format_name) as store:
        first = store.earliest_offset("t")
        end_of_first = store.segments("t")[0].next_offset
        scan = store.scan("t", 0, first, max_records=2)
        assert next(scan).num_rows == 2
        store.delete_records("t", 0, first + 30)
        found: list[int] = []
        with contextlib.suppress(RecordsMissing):
            for batch in scan:
                found += batch.column("offset").to_pylist()
        below = [offset for offset in found if offset < first + 30]
        assert not [offset for offset in below if offset >= end_of_first]
        assert offsets(store)[0] == first + 30


@EVERY
def test_it_holds_after_retention_and_in_the_active_segment(
    tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        end = store.latest_offset("t")
        assert store.delete_records("t", 0, end - 1) == end - 1
        store.maintain()
        store.apply_retention("t")
        assert offsets(store) == [end - 1]
        store.roll("t")
        store.maintain()
        assert offsets(store) == [end - 1]
    with opened(path) as store:
        assert offsets(store) == [end - 1]
        store.alter_topic("t", {"retention.ms": 1})
        store.apply_retention("t")
        assert offsets(store) == []


# ---------------------------------------------------------------- the archive


@EVERY
@pytest.mark.parametrize("local", [True, False], ids=["local copies", "archive alone"])
def test_the_archive_and_what_is_restored_of_it_begin_there_too(
    tmp_path: Path, format_name: str, local: bool
) -> None:
    path, objects = tmp_path / "data", str(tmp_path / "objects")
    with filled(path, format_name, archive=objects) as store:
        store.roll("t")
        before, end = inside(store), store.latest_offset("t")
        if not local:
            store.alter_topic("t", {"local.retention.bytes": 1})
        store.archive()
        store.delete_records("t", 0, before)
        check_begins(store, before, end)
        store.archive()
        check_begins(store, before, end)
    with ArchiveStore(DirectoryObjects(LocalFiles(), objects)) as archived:
        check_begins(archived, before, end)
    back = tmp_path / "back"
    restore(DirectoryObjects(LocalFiles(), objects), Boot(LocalFiles(), str(back), Clock()))
    with opened(back, archive=objects) as restored:
        check_begins(restored, before, end)
    with opened(path, archive=objects) as again:
        check_begins(again, before, end)


@EVERY
def test_objects_that_lie_below_leave_the_archive(tmp_path: Path, format_name: str) -> None:
    path, objects = tmp_path / "data", tmp_path / "objects"
    with filled(path, format_name, archive=str(objects)) as store:
        store.roll("t")
        store.archive()
        assert list(objects.rglob("*.seg"))
        end = store.latest_offset("t")
        store.append("t", timed([COUNT + 1]))
        store.delete_records("t", 0, end)
        store.archive()
        assert not list(objects.rglob("*.seg"))
        assert offsets(store) == [end]


# ---------------------------------------------------------------- faults


@EVERY
def test_an_archive_of_which_all_was_deleted_ends_where_it_begins(
    tmp_path: Path, format_name: str
) -> None:
    objects = str(tmp_path / "cold")
    settings = {"remote.storage.enable": True}
    with Store(str(tmp_path / "data"), archive=DirectoryObjects(LocalFiles(), objects)) as store:
        store.create_topic("t", format=format_name, config=settings)
        store.append("t", [b"value"] * 5)
        store.delete_records("t", 0, store.latest_offset("t"))
        store.archive()
    with ArchiveStore(DirectoryObjects(LocalFiles(), objects)) as archived:
        assert archived.earliest_offset("t") == archived.latest_offset("t")
        assert list(archived.scan("t")) == []


def stored(files: SimulatedFiles, format_name: str) -> tuple[int, int]:
    """Makes a topic of small segments; returns where it begins and ends."""
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 2048})
        for number in range(12):
            store.append(TOPIC, [bytes([number]) * 400])
        return first_offset(format_name), store.latest_offset(TOPIC)


@EVERY
@pytest.mark.parametrize("loss", ["killed", "dropped", "kept"])
def test_a_crash_at_any_step_leaves_all_or_nothing_of_it(format_name: str, loss: str) -> None:
    files = SimulatedFiles()
    first, end = stored(files, format_name)
    before = first + 7
    disks: list[Any] = []
    with open_store(files) as store:
        files.before = lambda kind, path: disks.append(files.snapshot())
        store.delete_records(TOPIC, 0, before)
        files.before = None
        disks.append(files.snapshot())
    assert len(disks) > 3
    begins = []
    for disk in disks:
        left = disk.restart() if loss == "killed" else disk.crash(loss)
        for _ in range(2):
            with open_store(left) as store:
                found = sorted(read(store))
                assert found in (list(range(first, end)), list(range(before, end)))
                assert store.earliest_offset(TOPIC) == found[0]
                facts = store.segments(TOPIC)
                whole = [each for each in facts if each.sealed and each.records <= 0]
                assert not whole or format_name == "wal", "what lies below is finished"
        begins.append(found[0])
    assert begins == sorted(begins), "once it counted, it counts"
    assert begins[-1] == before


@EVERY
def test_a_full_disk_refuses_it_whole_or_lets_it_free_space(format_name: str) -> None:
    files = SimulatedFiles()
    first, end = stored(files, format_name)
    before = first + 7
    with open_store(files) as store:
        store.maintain()
        files.capacity_bytes = files.used_bytes
        assert store.delete_records(TOPIC, 0, before) == before
        assert sorted(read(store)) == list(range(before, end))
    files.capacity_bytes = None
    with open_store(files) as store:
        assert sorted(read(store)) == list(range(before, end))


@SEGMENTED
def test_every_call_that_fails_once_leaves_all_or_nothing(format_name: str) -> None:
    for kind, at in itertools.product(("write_at", "sync", "rename", "create"), range(1, 5)):
        files = SimulatedFiles()
        first, end = stored(files, format_name)
        before = first + 7
        with open_store(files) as store:
            files.fail(kind, at=at)
            done = True
            try:
                store.delete_records(TOPIC, 0, before)
            except LaminaError:
                done = False
            files.faults.clear()
            found = sorted(read(store))
            assert found in ([*range(first, end)], [*range(before, end)]), (kind, at)
            assert not done or found[0] == before
        with open_store(files) as store:
            again = sorted(read(store))
            assert again in ([*range(first, end)], [*range(before, end)]), (kind, at)
            assert found[0] <= again[0], "what was deleted does not come back"


@SEGMENTED
def test_a_flipped_bit_of_the_ledger_brings_nothing_back(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        before, end = inside(store), store.latest_offset("t")
        store.delete_records("t", 0, before)
    ledger = segments(path).parent / "ledger.json"
    sound = ledger.read_bytes()
    for position in range(0, len(sound), 7):
        data = bytearray(sound)
        data[position] ^= 4
        ledger.write_bytes(data)
        check_begins(read_only(path), before, end)
    with opened(path) as store:
        check_begins(store, before, end)


def without_ledger(path: Path) -> None:
    ledger = segments(path).parent / "ledger.json"
    ledger.write_bytes(b"{}" + ledger.read_bytes()[2:])


@SEGMENTED
def test_a_damaged_ledger_is_found_again_in_the_archive(tmp_path: Path, format_name: str) -> None:
    path, objects = tmp_path / "data", str(tmp_path / "objects")
    with filled(path, format_name, archive=objects) as store:
        before, end = inside(store), store.latest_offset("t")
        store.delete_records("t", 0, before)
        store.archive()
    without_ledger(path)
    with opened(path, archive=objects) as store:
        check_begins(store, before, end)


def lose(path: Path, how: str) -> None:
    ledger = segments(path).parent / "ledger.json"
    if how == "damaged":
        without_ledger(path)
    else:
        ledger.unlink()


HOW = pytest.mark.parametrize("how", ["gone", "damaged"])


@HOW
@SEGMENTED
@pytest.mark.parametrize("place", ["first", "later"])
def test_without_its_ledger_a_partition_still_begins_at_its_floor(
    tmp_path: Path, format_name: str, how: str, place: str
) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        before, end = inside(store) if place == "later" else 3, store.latest_offset("t")
        store.delete_records("t", 0, before)
    lose(path, how)
    with read_only(path) as store:
        check_begins(store, before, end)
    with opened(path) as store:
        check_begins(store, before, end)
        ledger = str(segments(path).parent / "ledger.json")
        assert ("rebuilt", ledger) in [(e.kind, e.path) for e in store.recovery_report.events]
    with opened(path) as store:
        check_begins(store, before, end)
        assert store.recovery_report.events == []


@HOW
@SEGMENTED
def test_a_ledger_that_is_lost_for_good_is_reported(
    tmp_path: Path, format_name: str, how: str
) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        before, end = inside(store), store.latest_offset("t")
        store.delete_records("t", 0, before)
        kept = store.segments("t")[0].base_offset
    lose(path, how)
    (path / "meta" / "checkpoint.json").unlink(missing_ok=True)
    (path / "checkpoint.json").unlink(missing_ok=True)
    with opened(path) as store:
        told = {event.kind for event in store.recovery_report.events}
        assert told & {"quarantined", "gap"}
        assert offsets(store) == list(range(kept, end)), "the segment is all that is known"


@SEGMENTED
def test_the_floor_of_a_deleted_topic_is_not_that_of_the_next(
    tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "data"
    with filled(path, format_name) as store:
        store.delete_records("t", 0, inside(store))
    with opened(path) as store:
        store.delete_topic("t")
        store.create_topic("t", format=format_name)
        store.append("t", timed([1, 2], size=VALUE_BYTES))
    with opened(path) as store:
        assert offsets(store) == [0, 1]
