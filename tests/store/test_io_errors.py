"""After an error of the disk: what goes on, what is refused, and how a full disk is freed.

That no failing call loses anything is for the rows F11 to F14 of the fault matrix.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest

from lamina.errors import Poisoned, RecordsMissing, StorageFull
from lamina.store.store import Store
from lamina_torture.client import TOPIC, Client, first_offset, read, reopen
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles

FORMATS = ("frame", "keratin", "wal")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("kind", ["write_at", "sync"])
def test_after_a_failed_write_or_sync_only_reads_go_on(format_name: str, kind: str) -> None:
    files, first = SimulatedFiles(), first_offset(format_name)
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name)
        store.append(TOPIC, [b"safe"])
        files.fail(kind, after="kept")
        for _ in range(3):
            with pytest.raises(Poisoned):
                store.append(TOPIC, [b"unsafe"])
        assert read(store) == {first: b"safe"}
        with pytest.raises(Poisoned):
            store.trim(TOPIC, 0, first + 1)
        calls = files.calls["sync"]
        store.maintain()
        assert read(store) == {first: b"safe"}
        touched = [step.path for step in files.history if step.kind == "sync"][calls:]
        assert not [path for path in touched if path.endswith(".log")]
    with open_store(files) as store:
        assert store.append(TOPIC, [b"again"]).base_offset in (first + 1, first + 2)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_full_disk_refuses_appends_and_lets_go_what_frees_it(format_name: str) -> None:
    files = SimulatedFiles()
    client = Client(files, format_name)
    client.open()
    store = client.store
    assert store is not None
    store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 8192})
    store.maintain()
    files.capacity_bytes = files.used_bytes + 120_000
    for _ in range(100):
        client.append([3000, 3000])
        if client.errors:
            break
    assert isinstance(client.errors[0], StorageFull)
    client.check(store)
    client.append([3000] * 9, sequence=0)
    store.maintain()
    client.check(store)
    files.capacity_bytes = files.used_bytes
    client.append([3000])
    assert all(isinstance(error, StorageFull) for error in client.errors)
    end = store.latest_offset(TOPIC)
    client.trim(end // 2)
    assert 0 < store.earliest_offset(TOPIC) <= end // 2, "trimming goes on"
    count = len(client.acknowledged)
    client.append([3000], sequence=0)
    assert len(client.acknowledged) == count + 1, "space came back"
    client.check(store)
    client.close()
    reopen(client, 0)


@pytest.mark.parametrize("format_name", FORMATS)
def test_retention_by_itself_frees_a_full_disk(format_name: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 8192})
        for _ in range(20):
            store.append(TOPIC, [b"x" * 3000])
        store.maintain()
        store.alter_topic(TOPIC, {"retention.bytes": 20_000})
        files.capacity_bytes = files.used_bytes
        store.maintain()
        assert store.earliest_offset(TOPIC) > 5


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_full_disk_can_be_opened_and_read(format_name: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 2048})
        for number in range(20):
            store.append(TOPIC, [b"%d" % number * 200])
        expected = read(store)
        disk = files.snapshot()
    for again in (disk.crash("dropped"), files):
        again.capacity_bytes = again.used_bytes
        with open_store(again) as store:
            assert read(store) == expected
            assert store.trim(TOPIC, 0, 10) > 0


def _filled(files: SimulatedFiles, format_name: str) -> Store:
    """A store on a disk that is full to the last byte, but for what the store keeps in reserve."""
    store = open_store(files)
    store.create_topic(TOPIC, format=format_name, config={"segment.bytes": 8192})
    for _ in range(20):
        store.append(TOPIC, [b"x" * 3000])
    store.maintain()
    files.capacity_bytes = files.used_bytes
    return store


def _append_until_full(store: Store) -> None:
    for size in (3000, 100, 1):
        turns = itertools.count()
        with contextlib.suppress(StorageFull):
            while next(turns) < 1000:
                store.append(TOPIC, [b"y" * size])
        assert next(turns) < 1000, "the disk was to be full"


@pytest.mark.parametrize("format_name", FORMATS)
def test_maintenance_does_not_take_the_reserve_while_a_trim_needs_it(format_name: str) -> None:
    files = SimulatedFiles()
    with _filled(files, format_name) as store:
        _append_until_full(store)
        ticks = 0

        def tick(kind: str, path: str) -> None:
            nonlocal ticks
            if not files.exists(store.path + "/meta/reserve") and kind == "create":
                files.before = None
                ticks += 1
                store._reserve.keep()
                files.before = tick

        files.before = tick
        assert store.trim(TOPIC, 0, 10) > 0
        files.before = None
        assert ticks > 0, "the trim was to need the reserve"
        assert files.exists(store.path + "/meta/reserve"), "and to give back what is left of it"


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_disk_that_fills_again_behind_a_used_reserve_can_be_trimmed(format_name: str) -> None:
    files = SimulatedFiles()
    asked: list[int] = []

    def full_at_first() -> None:
        asked.append(len(asked))
        if len(asked) == 1:
            raise StorageFull("no space left, as opening may find it")

    with _filled(files, format_name) as store:
        store._reserve.use(full_at_first)
        assert len(asked) == 2
        _append_until_full(store)
        assert store.trim(TOPIC, 0, 10) > 0


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_topic_can_be_deleted_on_a_full_disk(format_name: str) -> None:
    files = SimulatedFiles()
    with _filled(files, format_name) as store:
        _append_until_full(store)
        store.delete_topic(TOPIC)
        assert store.topics() == []
        assert not store.failures()
    files.capacity_bytes = None
    with open_store(files) as store:
        assert store.topics() == []


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_topic_that_a_full_disk_does_not_let_go_can_still_be_used(format_name: str) -> None:
    files = SimulatedFiles()
    with _filled(files, format_name) as store:
        expected = read(store)
        files.remove(store.path + "/meta/reserve")
        files.capacity_bytes = files.used_bytes
        with pytest.raises(StorageFull):
            store.delete_topic(TOPIC)
        files.capacity_bytes = None
        store.append(TOPIC, [b"more"])
        assert list(read(store).values()) == [*expected.values(), b"more"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_reads_that_fail_say_where_and_succeed_again(format_name: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name)
        store.append(TOPIC, [b"sealed"])
        store.roll(TOPIC)
        store.append(TOPIC, [b"active"])
        files.fail("read", forever=True)
        with pytest.raises(RecordsMissing, match=r"byte \d+: the device .* \(unreadable\)"):
            read(store)
        files.faults.clear()
        assert list(read(store).values()) == [b"sealed", b"active"]
        assert store.gaps(TOPIC) == (), "a read error is no damage"
