"""Power is lost inside what groups do rarely: dead letters, resets, deletions, and acks=1.

Before each step that changes the disk, the disk and what was answered so far are kept. Each moment
becomes several disks, on which the store is opened and held against the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings, WriterSettings
from lamina.groups import journal
from lamina.groups.group import Group
from lamina.storage import files as storage
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.simulated import SimulatedFiles

DATA = "/srv/data"
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
SMALL = WalSettings(shards=1, wal_bytes=1 << 14)
RECORDS = 12
CHOICES: tuple[Choice, ...] = ("dropped", "kept", 1)
FORMATS = pytest.mark.parametrize("format_name", ["keratin", "wal"])

Moments = list[tuple[str, Disk, Any]]


def open_store(files: SimulatedFiles, now_ms: int = NOW_MS) -> Store:
    return Store(DATA, files=files, now_ms=lambda: now_ms, writer=QUIET, wal=SMALL, tick_ms=1 << 31)


def filled(files: SimulatedFiles, format_name: str, partitions: int = 1) -> Store:
    store = open_store(files)
    store.create_topic("t", format=format_name, partitions=partitions)
    for partition in range(partitions):
        values = [b"%d" % each for each in range(RECORDS)]
        store.append("t", values, partition=partition)
    return store


def watched(files: SimulatedFiles, answered: Callable[[], Any]) -> Moments:
    """Keeps the disk and what was answered before each step from now on."""
    moments: Moments = []
    files.before = lambda kind, path: moments.append(
        (f"{kind} {path}", files.snapshot(), answered())
    )
    return moments


def at_every_moment(moments: Moments, check: Callable[[SimulatedFiles, Any], None]) -> None:
    """Checks each disk that a power loss, or a kill, may have left."""
    assert len(moments) > 3
    for number, (step, disk, told) in enumerate(moments):
        for choice in (*CHOICES, None):
            try:
                check(disk.restart() if choice is None else disk.crash(choice), told)
            except BaseException as error:
                error.add_note(f"step {number}: {step}, choice {choice}")
                raise


def left_of(group: Group) -> list[int]:
    found: list[int] = []
    while (batch := group.poll(5)).num_rows:
        found += batch.column("offset").to_pylist()
    return sorted(found)


# ---------------------------------------------------------------- dead letters


@FORMATS
def test_a_dead_letter_is_in_one_place_at_least(format_name: str) -> None:
    files = SimulatedFiles()
    store = filled(files, format_name)
    group = store.group("t", "g")
    first = store.earliest_offset("t")
    batch = group.poll(3)
    told = {"rejected": False}
    moments = watched(files, lambda: dict(told))
    group.reject(batch.slice(0, 2), "bad")
    told["rejected"] = True
    store.flush()
    store.close()
    files.before = None
    both = set()

    def check(disk: SimulatedFiles, told: dict[str, bool]) -> None:
        store = open_store(disk, NOW_MS + 10**8)
        again = set(left_of(store.group("t", "g"))) & {first, first + 1}
        letters = []
        if "t.dlq" in store.topics():
            letters = [row for each in store.scan("t.dlq") for row in each.to_pylist()]
        buried = {first + int(each["value"]) for each in letters}
        assert again | buried == {first, first + 1}, "in neither place"
        for letter in letters:
            headers = {each["key"]: each["value"] for each in letter["headers"]}
            assert int(headers["lamina.dlq.offset"]) == first + int(letter["value"])
        if told["rejected"]:
            assert not again, "rejected, answered, and delivered again"
        both.add(bool(again & buried))
        store.close()

    at_every_moment(moments, check)
    assert both == {True, False}, "a crash between the dead letter and its ack is among them"


# ---------------------------------------------------------------- reset and delete


def states(store: Store) -> list[tuple[int, list[int], list[int], list[int]]]:
    found = [each.durable for each in store._groups._known("t", "g")]
    return [
        (each.acked_until, each.ahead().tolist(), each.offsets.tolist(), each.epochs.tolist())
        for each in found
    ]


def used(store: Store) -> None:
    group = store.group("t", "g")
    for partition in range(2):
        first = store.earliest_offset("t", partition)
        group.commit(first + 2, partition)
        group.ack([first + 4, first + 6], partition=partition)
    group.poll(8)


@FORMATS
@pytest.mark.parametrize("rotates", [False, True])
def test_a_reset_is_done_or_not_done_in_each_partition(
    format_name: str, rotates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SimulatedFiles()
    store = filled(files, format_name, partitions=2)
    used(store)
    if rotates:
        monkeypatch.setattr(journal, "COMPACT_EVENTS", 2)
    before = states(store)
    told = {"reset": False}
    moments = watched(files, lambda: dict(told))
    store.reset_group("t", "g", to="latest", execute=True)
    told["reset"] = True
    after = states(store)
    store.close()
    files.before = None
    assert all(each != other for each, other in zip(before, after, strict=True))
    seen = set()

    def check(disk: SimulatedFiles, told: dict[str, bool]) -> None:
        store = open_store(disk)
        found = states(store)
        for number in range(2):
            assert found[number] in (before[number], after[number])
        seen.add(tuple(found[number] == after[number] for number in range(2)))
        if told["reset"]:
            assert found == after
        store.close()
        store = open_store(disk)
        assert states(store) == found
        assert store.recovery_report.events == []
        store.close()

    at_every_moment(moments, check)
    assert {(False, False), (True, False), (True, True)} <= seen


@FORMATS
def test_a_deletion_that_was_cut_short_is_finished_or_was_not_begun(format_name: str) -> None:
    files = SimulatedFiles()
    store = filled(files, format_name, partitions=2)
    used(store)
    before = states(store)
    told = {"deleted": False}
    moments = watched(files, lambda: dict(told))
    store.delete_group("t", "g")
    told["deleted"] = True
    store.flush()
    store.close()
    files.before = None
    seen = set()

    def check(disk: SimulatedFiles, told: dict[str, bool]) -> None:
        store = open_store(disk)
        is_there = ("t", "g") in store.groups()
        seen.add(is_there)
        assert not (is_there and told["deleted"])
        if is_there:
            assert states(store) == before, "half a state came back"
        else:
            names = [name for name in disk.list(f"{DATA}/groups") if not name.endswith(".tmp")]
            assert names == []
            firsts = [store.earliest_offset("t", number) for number in range(2)]
            group = store.group("t", "g")
            assert [group.committed(number) for number in range(2)] == firsts
            assert len(left_of(group)) == 2 * RECORDS
        store.close()

    at_every_moment(moments, check)
    assert seen == {True, False}


def test_a_finished_deletion_is_reported_and_readers_do_not_see_the_group() -> None:
    files = SimulatedFiles()
    store = filled(files, "keratin", partitions=2)
    used(store)
    moments = watched(files, lambda: None)
    store.delete_group("t", "g")
    files.before = None
    marked = [disk for step, disk, _ in moments if step.startswith("remove ")]
    assert len(marked) == 4, "two files of two partitions"
    for disk in marked:
        left = disk.restart()
        with ReadOnlyStore(DATA, files=left) as beside:
            assert beside.groups() == []
        store = open_store(left)
        events = [each for each in store.recovery_report.events if "/groups/" in each.path]
        assert [event.kind for event in events] == ["deletion finished"]
        store.close()


# ---------------------------------------------------------------- acks=1


@FORMATS
def test_what_was_only_written_may_be_lost_but_is_never_wrong(
    format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "COMPACT_EVENTS", 12)
    files = SimulatedFiles()
    store = filled(files, format_name)
    group = store.group("t", "g")
    asked: set[int] = set()
    safe: set[int] = set()
    deliveries: dict[int, int] = {}
    moments = watched(files, lambda: (set(asked), set(safe), dict(deliveries)))
    for turn in range(4):
        for offset in range(RECORDS + 1):
            deliveries[offset] = deliveries.get(offset, 0) + 1  # a poll may be on its way
        offsets = group.poll(3, acks=1).column("offset").to_pylist()
        asked |= set(offsets[::2])
        group.ack(offsets[::2], acks=1)
        group.release(offsets[1:2], acks=1)
        if turn == 2:
            store.flush()
            safe |= asked
    store.close()
    files.before = None
    outcomes = set()

    def check(disk: SimulatedFiles, told: Any) -> None:
        asked, safe, deliveries = told
        store = open_store(disk, NOW_MS + 10**8)
        first, end = store.earliest_offset("t"), store.latest_offset("t")
        group = store.group("t", "g")
        assert group.committed() <= end
        found: dict[int, int] = {}
        while (batch := group.poll(5)).num_rows:
            columns = (batch.column(name).to_pylist() for name in ("offset", "epoch"))
            found |= dict(zip(*columns, strict=True))
        acked = set(range(first, end)) - found.keys()
        assert safe <= acked <= asked, "acked without being asked, or lost after a flush"
        assert all(epoch <= deliveries.get(each, 0) + 1 for each, epoch in found.items())
        outcomes.add(len(acked))
        group.ack(sorted(found))
        assert group.committed() == end
        store.close()

    at_every_moment(moments, check)
    assert len(outcomes) > 3


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize("jump_ms", [10 * 86_400_000, -10 * 86_400_000])
def test_a_clock_that_jumps_ends_no_lease_and_holds_none_longer(
    tmp_path: Path, jump_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall_ns, steady_ns = storage.time.time_ns(), storage.time.monotonic_ns()
    clock = {"wall": wall_ns, "steady": steady_ns}

    class Times:
        time_ns = staticmethod(lambda: clock["wall"])
        monotonic_ns = staticmethod(lambda: clock["steady"])

    monkeypatch.setattr(storage, "time", Times)
    with Store(str(tmp_path / "data"), tick_ms=1 << 30) as store:
        store.create_topic("t")
        store.append("t", [b"x"])
        group = store.group("t", "g")
        batch = group.poll(1, 1000)
        assert batch.column("deadline")[0].value == wall_ns // 1_000_000 + 1000
        clock["wall"] += jump_ms * 1_000_000
        assert group.poll(1).num_rows == 0, "the lease is running"
        assert group.extend(batch, 2000) == 1
        clock["steady"] += 2000 * 1_000_000
        assert group.poll(1).column("epoch").to_pylist() == [2]
