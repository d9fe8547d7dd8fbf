"""A group whose files are lost is rebuilt from all that is known of it, and nothing is skipped.

An oracle goes along: which offsets are acked now. Whatever is lost, a rebuilt group delivers every
record that is not acked; that it delivers some acked ones again is allowed, and reported.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lamina
from lamina.cli.main import app
from lamina.config import WalSettings
from lamina.errors import StorageFull, UnknownGroup
from lamina.formats.documents import group_copy
from lamina.formats.documents.position_file import Position, TopicPosition
from lamina.groups import positions
from lamina.storage import paths
from lamina.storage.objects import Objects
from lamina.store.opening import Boot
from lamina.store.read_only import ReadOnlyStore
from lamina.store.restore import restore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.archive import rig
from tests.archive.rig import DATA, NOW_MS, TOPIC, attempt, memory, values
from tests.support.failing_objects import FailingObjects

ALL = ("frame", "keratin", "wal")
RECORDS = 30
SETTINGS = {name: value for name, value in rig.SETTINGS.items() if "local" not in name}
WAL = WalSettings(shards=1, wal_bytes=1 << 12, segment_events=6)
SNAP, DELTA = (f"{DATA}/groups/{TOPIC}-0_billing.{suffix}" for suffix in ("snap", "delta"))
ROSTER = f"{DATA}/{paths.ROSTER}"
KEY = paths.archive_group(TOPIC, 0, "billing")
MOMENT = "2023-11-14T22:13:20.000+00:00"
BACK = "/back/data"


def opened(files: Any, objects: Objects | None, data: str = DATA) -> Store:
    return rig.opened(files, objects, data, wal=WAL)


def looked_at(files: Any, objects: Objects | None) -> ReadOnlyStore:
    return ReadOnlyStore(DATA, files=files, archive=objects, wal=WAL, now_ms=lambda: NOW_MS)


def used(
    files: SimulatedFiles, objects: Objects | None, format_name: str = "keratin"
) -> tuple[int, set[int]]:
    """A closed store with a group that was archived; returns the first offset, and what is acked.

    The group holds a record that was delivered once, under a lease that is over.
    """
    with opened(files, objects) as store:
        store.create_topic(TOPIC, format=format_name, config=SETTINGS if objects else None)
        first = store.append(TOPIC, values(0, RECORDS)).base_offset
        store.roll(TOPIC)
        group = store.group(TOPIC, "billing")
        group.ack(group.poll(6).slice(1, 5))
        group.release(group.poll(1, partitions=[0]))
        group.ack([first, first + 9, first + 12])
        if objects is not None:
            store.archive()
    return first, {*range(first, first + 6), first + 9, first + 12}


def lose(files: SimulatedFiles, *names: str) -> None:
    for name in names:
        files.remove(name)


def delivered(store: Store) -> dict[int, int]:
    """Every record that the group still delivers, with its delivery count, until there is none."""
    group = store.group(TOPIC, "billing", start="none")
    found: dict[int, int] = {}
    while (batch := group.poll(500)).num_rows:
        found |= zip(
            batch.column("offset").to_pylist(), batch.column("epoch").to_pylist(), strict=True
        )
    return found


def rebuilt(store: Store) -> str:
    (event,) = [each for each in store.recovery_report.of("rebuilt") if "goes on" in each.why]
    assert event.path == SNAP
    return event.why


# ---------------------------------------------------------------- what is left decides


@pytest.mark.parametrize("format_name", ALL)
@pytest.mark.parametrize("archived", [True, False], ids=["archived", "local"])
@pytest.mark.parametrize("lost", [(SNAP,), (DELTA,), (SNAP, DELTA)], ids=["snap", "delta", "both"])
def test_nothing_is_skipped_whatever_file_is_lost(
    format_name: str, archived: bool, lost: tuple[str, ...]
) -> None:
    files, objects = SimulatedFiles(), memory() if archived else None
    first, acked = used(files, objects, format_name)
    opened(files, objects).close()
    lose(files, *lost)
    with looked_at(files, objects) as reader:
        expected = reader.describe_group(TOPIC, "billing").partitions
    with opened(files, objects) as store:
        assert store.recovery_report.of("rebuilt")
        assert store.describe_group(TOPIC, "billing").partitions == expected, "as readers saw it"
        found = delivered(store)
    everything = set(range(first, first + RECORDS))
    assert set(found) >= everything - acked, "no record that is not acked is skipped"
    assert not set(found) & set(range(first, first + 6)), "the list of groups knows the frontier"
    if archived or lost == (SNAP,):
        assert set(found) == everything - acked, "acks ahead are known, too"
    with opened(files, objects) as store:
        assert store.recovery_report.events == []


def test_the_report_names_the_moment_of_the_copy_and_delivery_counts_go_on() -> None:
    files, objects = SimulatedFiles(), memory()
    first, _ = used(files, objects)
    lose(files, SNAP, DELTA)
    with opened(files, objects) as store:
        assert f"both files of group 'billing' are lost; it goes on at {first + 6}" in rebuilt(
            store
        )
        assert f"the archive's copy of {MOMENT}" in rebuilt(store)
        assert delivered(store)[first + 6] == 2, "it was delivered once before"


@pytest.mark.parametrize("format_name", ALL)
def test_what_was_acked_after_the_copy_comes_again(format_name: str) -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    first, acked = used(files, objects, format_name)
    objects.fail_at, objects.forever = 0, True
    with opened(files, objects) as store:
        assert store.group(TOPIC, "billing").ack(range(first + 6, first + 25)) == 17
        attempt(store)
        roster = files.read(ROSTER)
    files.replace(ROSTER, roster)  # as it was before the store was closed
    lose(files, SNAP, DELTA)
    objects.fail_at = None
    with opened(files, objects) as store:
        assert set(delivered(store)) == set(range(first, first + RECORDS)) - acked
        assert store.group(TOPIC, "billing").committed() == first + 6


@pytest.mark.parametrize("format_name", ALL)
def test_with_the_list_lost_as_well_the_archive_knows_the_group(format_name: str) -> None:
    files, objects = SimulatedFiles(), memory()
    first, acked = used(files, objects, format_name)
    with opened(files, objects) as store:
        tail = store.append(TOPIC, values(RECORDS, 4)).base_offset
        store.group(TOPIC, "billing").ack([tail + 1])
        attempt(store)
    copied = json.loads(objects.read(KEY).data)
    assert copied["archived_until"] == tail, "the tail is not sealed, so it is not archived"
    lose(files, SNAP, DELTA, ROSTER)
    with looked_at(files, objects) as reader:
        assert reader.groups() == [(TOPIC, "billing")]
        expected = reader.describe_group(TOPIC, "billing").partitions
    with opened(files, objects) as store:
        assert f"as far as it was archived then, to {tail}" in rebuilt(store)
        assert store.describe_group(TOPIC, "billing").partitions == expected
        found = set(delivered(store))
        assert found == set(range(first, tail + 4)) - acked, "the ack of the tail is not believed"
    with opened(files, objects) as store:
        assert store.recovery_report.events == []


def test_a_lost_partition_of_a_group_without_list_and_copy_starts_at_the_earliest() -> None:
    files = SimulatedFiles()
    with opened(files, None) as store:
        store.create_topic(TOPIC, partitions=2)
        for partition in range(2):
            store.append(TOPIC, values(0, 5), partition=partition)
            store.group(TOPIC, "billing").commit(3, partition)
    lose(files, SNAP, DELTA, ROSTER)
    with opened(files, None) as store:
        assert "nothing else is known of it" in rebuilt(store)
        lags = store.describe_group(TOPIC, "billing").partitions
        assert [each.committed for each in lags] == [0, 3]


# ---------------------------------------------------------------- copies that are of no use


def spoiled(data: bytes, how: str) -> bytes:
    if how == "cut":
        return data[: len(data) // 2]
    if how == "flipped":
        at = data.index(b'"acked_until": 6') + len('"acked_until": ')
        return data[:at] + b"7" + data[at + 1 :]
    if how == "newer":
        return data.replace(b'"version": 1', b'"version": 2').replace(b'"crc32"', b'"sum"')
    return b"\xff\xd8\xff\xe0 what"


@pytest.mark.parametrize("how", ["cut", "flipped", "newer", "foreign", "away"])
def test_a_copy_that_cannot_be_used_is_named_and_nothing_is_skipped(how: str) -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    first, _ = used(files, objects)
    if how == "away":
        objects.fail_at, objects.forever = len(objects.calls), True
    else:
        stored = objects.read(KEY)
        objects.inner.replace(KEY, spoiled(stored.data, how), stored.etag)
    lose(files, SNAP, DELTA)
    with opened(files, objects) as store:
        why = rebuilt(store)
        assert ("cannot be read now" if how == "away" else "the archive's copy") in why
        found = set(delivered(store))
    assert found == set(range(first, first + RECORDS)) - set(range(first, first + 6))
    objects.fail_at = None
    with opened(files, objects) as store:
        attempt(store)
    newest = objects.read(KEY).data
    if how == "newer":
        assert b'"version": 2' in newest, "what a newer version has written stays"
    else:
        assert group_copy.decode(newest).acked_until == first + 6, "it is written again"


def test_without_list_and_archive_a_group_is_kept_until_the_archive_answers() -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    first, acked = used(files, objects)
    lose(files, SNAP, DELTA, ROSTER)
    objects.fail_at, objects.forever = len(objects.calls), True
    with opened(files, objects) as store:
        (event,) = [each for each in store.recovery_report.of("note") if "groups" in each.why]
        assert event.path == ROSTER
        assert store.groups() == []
        objects.fail_at = None
        attempt(store)
    assert group_copy.decode(objects.read(KEY).data).acked_until == first + 6
    with opened(files, objects) as store:
        assert set(delivered(store)) == set(range(first, first + RECORDS)) - acked


# ---------------------------------------------------------------- another life


@pytest.mark.parametrize("format_name", ALL)
@pytest.mark.parametrize("lost", [(SNAP,), (DELTA,), (SNAP, DELTA)], ids=["snap", "delta", "both"])
def test_a_copy_from_before_a_reset_takes_nothing_back(
    format_name: str, lost: tuple[str, ...]
) -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    first, _ = used(files, objects, format_name)
    objects.fail_at, objects.forever = 0, True
    with opened(files, objects) as store:
        store.reset_group(TOPIC, "billing", to=first + 2, execute=True)
        attempt(store)
    objects.fail_at = None
    lose(files, *lost)
    with opened(files, objects) as store:
        assert set(delivered(store)) == set(range(first + 2, first + RECORDS))
        if lost == (SNAP, DELTA):
            assert f"the archive's copy of {MOMENT} is not of this life" in rebuilt(store)


@pytest.mark.parametrize("suffix", ["snap", "delta"])
def test_a_damaged_reset_takes_nothing_back(suffix: str) -> None:
    """Whichever byte is damaged: nothing from before a reset counts any more."""
    files = SimulatedFiles()
    used(files, None)
    with opened(files, None) as store:
        store.reset_group(TOPIC, "billing", to=2, execute=True)
    path = SNAP if suffix == "snap" else DELTA
    sound = files.snapshot()
    for position in range(0, len(files.read(path)), 3):
        damaged = sound.restart()
        data = bytearray(damaged.read(path))
        data[position] ^= 0x5A
        damaged.replace(path, bytes(data))
        try:
            store = opened(damaged, None)
        except lamina.errors.NewerFormat:
            continue
        with store:
            assert set(delivered(store)) >= set(range(2, RECORDS))


def test_power_lost_at_every_step_of_a_reset_leaves_it_done_or_not_done() -> None:
    files = SimulatedFiles()
    first, acked = used(files, None)
    store = opened(files, None)
    disks: list[Any] = []
    files.before = lambda kind, path: disks.append(files.snapshot())
    store.reset_group(TOPIC, "billing", to=first + 2, execute=True)
    files.before = None
    everything = set(range(first, first + RECORDS))
    assert len(disks) > 8
    outcomes = set()
    for number, disk in enumerate(disks):
        for lost in ((), (SNAP,), (DELTA,), (SNAP, DELTA)):
            half = disk.crash(("dropped", "kept", 3)[number % 3])
            if any(not half.exists(name) for name in lost):
                continue
            lose(half, *lost)
            with opened(half, None) as again:
                found = set(delivered(again))
                assert found >= everything - acked
                if not lost:
                    outcomes.add(frozenset(found))
    assert outcomes == {frozenset(everything - acked), frozenset(range(first + 2, first + 30))}


def test_a_finished_reset_is_in_the_list_even_if_that_cannot_be_written_again() -> None:
    files = SimulatedFiles()
    first, _ = used(files, None)
    store = opened(files, None)
    files.fail("rename", at=4, error=errno.ENOSPC)  # behind list, snapshot and delta
    store.reset_group(TOPIC, "billing", to=first + 2, execute=True)
    killed = files.snapshot().restart()
    lose(killed, SNAP, DELTA)
    with opened(killed, None) as again:
        assert set(delivered(again)) == set(range(first + 2, first + RECORDS))


def test_a_reset_without_space_changes_nothing() -> None:
    files, objects = SimulatedFiles(), memory()
    first, acked = used(files, objects)
    with opened(files, objects) as store:
        for call in range(1, 4):
            files.fail("write_at", at=call, error=errno.ENOSPC)
            files.fail("write_at", at=call + 1, error=errno.ENOSPC)  # with the reserve as well
            with pytest.raises(StorageFull):
                store.reset_group(TOPIC, "billing", to=first, execute=True)
        assert store.group(TOPIC, "billing").committed() == first + 6
        store.archive()
    lose(files, SNAP, DELTA)
    with opened(files, objects) as store:
        assert set(delivered(store)) == set(range(first, first + RECORDS)) - acked


@pytest.mark.parametrize("lost", [(), (SNAP, DELTA)], ids=["whole", "lost"])
def test_a_group_that_was_cut_back_to_its_log_is_in_another_life(lost: tuple[str, ...]) -> None:
    """The log loses its end and grows again: what the copy calls acked are other records now."""
    files, objects = SimulatedFiles(), FailingObjects(memory())
    used(files, objects)
    with opened(files, objects) as store:
        store.append(TOPIC, values(RECORDS, 6))
        before = files.snapshot()
        store.append(TOPIC, values(RECORDS + 6, 6))
        store.group(TOPIC, "billing").commit(RECORDS + 12)
        attempt(store)
        groups = {path: files.read(path) for path in (SNAP, DELTA, ROSTER)}
    older = before.crash("dropped")
    for path, data in groups.items():
        older.replace(path, data)
    lose(older, *lost)
    objects.fail_at, objects.forever = (None if lost else 0), True
    with opened(older, objects) as store:
        assert store.recovery_report.of("clamped")
        objects.fail_at = 0
        store.append(TOPIC, values(RECORDS + 6, 9))
        roster = older.read(ROSTER)
    objects.fail_at = None
    assert group_copy.decode(objects.read(KEY).data).acked_until == RECORDS + 12
    older.replace(ROSTER, roster)
    lose(older, SNAP, DELTA)
    with opened(older, objects) as store:
        assert set(delivered(store)) == set(range(RECORDS + 6, RECORDS + 15))


@pytest.mark.parametrize("others", [0, 1])
def test_a_deleted_group_does_not_come_back_from_the_archive(others: int) -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    used(files, objects)
    objects.fail_at, objects.forever = len(objects.calls), True
    with opened(files, objects) as store:
        for number in range(others):
            store.group(TOPIC, f"other-{number}")
        store.delete_group(TOPIC, "billing")
        attempt(store)
    objects.fail_at = None
    with opened(files, objects) as store:
        assert len(store.groups()) == others
        assert KEY in [info.key for info in objects.list("data")]
        attempt(store)
    assert KEY not in [info.key for info in objects.list("data")]
    lose(files, ROSTER)
    with opened(files, objects) as store:
        assert len(store.groups()) == others


def test_a_group_of_a_deleted_topic_does_not_come_back_to_the_next_of_its_name() -> None:
    files, objects = SimulatedFiles(), FailingObjects(memory())
    used(files, objects)
    objects.fail_at, objects.forever = len(objects.calls), True
    with opened(files, objects) as store:
        store.delete_topic(TOPIC)
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, RECORDS))
    objects.fail_at = None
    lose(files, ROSTER)
    with opened(files, objects) as store:
        assert store.groups() == []


# ---------------------------------------------------------------- dead letters and positions


@pytest.mark.parametrize("letters", ["keratin", "frame", "wal"])
@pytest.mark.parametrize("format_name", ALL)
def test_what_was_buried_in_this_life_is_done(format_name: str, letters: str) -> None:
    files = SimulatedFiles()
    first, _ = used(files, None, format_name)
    with opened(files, None) as store:
        store.create_topic(f"{TOPIC}.dlq", format=letters)
        group = store.group(TOPIC, "billing")
        assert group.reject([first + 20], "before the reset") == 1
        store.reset_group(TOPIC, "billing", to=first + 4, execute=True)
        assert group.reject([first + 8, first + 10], "bad") == 2
        store.group(TOPIC, "other").reject([first + 15], "of another group")
        store.append(f"{TOPIC}.dlq", [b"what is this"])
        roster = files.read(ROSTER)
    files.replace(ROSTER, roster)
    lose(files, SNAP, DELTA)
    with opened(files, None) as store:
        assert "2 dead letters" in rebuilt(store)
        found = set(delivered(store))
    assert found == set(range(first + 4, first + RECORDS)) - {first + 8, first + 10}


@pytest.mark.parametrize("format_name", ALL)
def test_a_position_that_a_reader_left_is_taken_over_by_the_rebuilt_group(
    format_name: str,
) -> None:
    files = SimulatedFiles()
    first, _ = used(files, None, format_name)
    position = TopicPosition(TOPIC, 1, {0: first + 20})
    positions.leave(files, DATA, Position("billing", (position,)))
    lose(files, SNAP, DELTA, ROSTER)
    with opened(files, None) as store:
        assert set(delivered(store)) == set(range(first + 20, first + RECORDS))


# ---------------------------------------------------------------- on another machine


@pytest.mark.parametrize("format_name", ALL)
def test_a_restore_gives_groups_back_as_far_as_their_records_were_archived(
    format_name: str,
) -> None:
    files, objects = SimulatedFiles(), memory()
    first, acked = used(files, objects, format_name)
    with opened(files, objects) as store:
        tail = store.append(TOPIC, values(RECORDS, 4)).base_offset
        store.group(TOPIC, "billing").ack([tail, tail + 1])
        attempt(store)
    new = SimulatedFiles()
    (done,) = restore(objects, Boot(new, BACK, lambda: NOW_MS))
    assert done.lost_groups == ()
    with opened(new, None, BACK) as store:
        assert store.append(TOPIC, values(RECORDS, 4)).base_offset == tail, "other records"
        assert set(delivered(store)) == set(range(first, tail + 4)) - acked


def test_a_store_that_was_taken_over_says_nothing_about_records_it_did_not_archive() -> None:
    """Its copy may be the last one that was put; the records behind it are the other store's."""
    files, objects = SimulatedFiles(), memory()
    first, acked = used(files, objects)
    old = opened(files, objects)
    new = SimulatedFiles()
    restore(objects, Boot(new, BACK, lambda: NOW_MS))
    with opened(new, objects, BACK) as store:
        tail = store.append(TOPIC, values(RECORDS, 6)).base_offset
        store.roll(TOPIC)
        store.archive()
    old.append(TOPIC, values(100, 6))
    old.group(TOPIC, "billing").ack([tail, tail + 1])
    stale = old._groups.copies(old._open.topics[TOPIC], 0, tail)["billing"]
    objects.replace(KEY, stale, objects.read(KEY).etag)
    old.close()
    third = SimulatedFiles()
    restore(objects, Boot(third, BACK, lambda: NOW_MS))
    with opened(third, None, BACK) as store:
        assert set(delivered(store)) == set(range(first, tail + 6)) - acked


def test_what_an_earlier_release_has_archived_of_a_group_is_restored_and_replaced() -> None:
    files, objects = SimulatedFiles(), memory()
    first, acked = used(files, objects)
    objects.delete(KEY)
    for path in (SNAP, DELTA):
        key = paths.archive_state(TOPIC, 0, path.rpartition("/")[2])
        objects.replace(key, files.read(path), None)
    new = SimulatedFiles()
    restore(objects, Boot(new, BACK, lambda: NOW_MS))
    with opened(new, objects, BACK) as store:
        assert set(delivered(store)) == set(range(first, first + RECORDS)) - acked
        store.archive()
    kept = [info.key for info in objects.list(paths.archive_partition(TOPIC, 0))]
    assert [key for key in kept if "/state/" in key] == [KEY]


def test_the_command_says_which_group_could_not_be_restored(tmp_path: Path) -> None:
    archive, data = str(tmp_path / "archive"), str(tmp_path / "data")
    with Store(data, archive=archive) as store:
        store.create_topic(TOPIC, config=SETTINGS)
        store.append(TOPIC, values(0, RECORDS))
        store.roll(TOPIC)
        store.group(TOPIC, "billing").commit(5)
        store.archive()
    copy = tmp_path / "archive" / KEY
    copy.write_bytes(copy.read_bytes()[:-9])
    arguments = ["tier", "restore", archive]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "back")])
    assert result.exit_code == 1
    assert "orders/0: group 'billing' could not be restored: the archive's copy" in result.stderr
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "again"), "--json"])
    assert result.exit_code == 1
    (told,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert told["lost_groups"][0]["group"] == "billing"
    with lamina.open(str(tmp_path / "back")) as store:
        assert [number for number, _ in rig.read(store)] == list(range(RECORDS))
        with pytest.raises(UnknownGroup):
            store.describe_group(TOPIC, "billing")
