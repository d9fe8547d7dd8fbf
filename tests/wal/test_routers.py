"""Routers: a record and its copies are there together or not at all, whatever happens."""

from __future__ import annotations

import errno
import functools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.api import ProducerStamp, RouterInfo, StoreApi
from lamina.config import WalSettings, WriterSettings
from lamina.errors import (
    Closed,
    InvalidRequest,
    Poisoned,
    StorageFull,
    Unavailable,
    UnknownRouter,
    UnknownTopic,
)
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.disk import Choice, Disk
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import Clock, contents, crash, opened

SPREAD = WalSettings(shards=4, wal_bytes=1 << 14, segment_events=10)
RED = [{"value": b"1", "tag": b"red"}, {"value": b"2", "tag": b"blue"}, {"value": b"3"}]


def values(store: StoreApi, topic: str, partition: int = 0) -> list[bytes]:
    return list(contents(store, topic, partition)[0].values())


def routed(path: Any, wal: WalSettings = SPREAD, **more: Any) -> Store:
    """A store whose topic `s` copies red records to `t`, which other shards would have."""
    store = opened(path, wal, **more)
    store.create_topic("s", format="wal")
    for name in ("t", "u", "v"):
        store.create_topic(name, format="wal")
    store.create_router("reds", "s", "t", tag=b"red")
    return store


def test_records_are_copied_by_tag_prefix_and_node_as_they_are(tmp_path: Path) -> None:
    with routed(tmp_path) as store:
        store.create_router("r", "s", "u", tag_prefix=b"re")
        store.create_router("gate", "s", "v", node=b"gate")
        rows = [
            {"value": b"a", "tag": b"red", "node": b"gate", "timestamp": 11},
            {"value": b"b", "tag": b"rest", "timestamp": 12},
            {"value": b"c", "node": b"gates", "timestamp": 13},
            {"value": b"", "tag": b"", "node": b"", "timestamp": 14},
        ]
        store.append("s", rows)
        store.append("s", [b"plain"])
        assert values(store, "t") == [b"a"]
        assert values(store, "u") == [b"a", b"b"]
        assert values(store, "v") == [b"a"]
        (copied,) = store.scan("t")
        source = next(store.scan("s", max_records=1))
        assert copied.equals(source), "time, tag, node and value are those of the record"


@pytest.mark.parametrize("maintained", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_rules_and_copies_outlive_the_store(tmp_path: Path, killed: bool, maintained: bool) -> None:
    store = routed(tmp_path)
    store.append("s", RED)
    store.create_router("gone", "s", "u", tag=b"red")
    store.create_router("other", "s", "u", node=b"n")
    store.delete_router("gone")
    store.alter_router("other", target="v", tag_prefix=b"bl")
    expected = [
        RouterInfo("other", "s", "v", tag_prefix=b"bl"),
        RouterInfo("reds", "s", "t", tag=b"red"),
    ]
    if maintained:
        store.maintain()
        store.maintain()
    assert store.routers() == expected
    with ReadOnlyStore(str(tmp_path), wal=SPREAD) as reader:
        assert reader.routers() == expected
        with pytest.raises(InvalidRequest):
            reader.create_router("x", "s", "t", tag=b"x")
    crash(store) if killed else store.close()
    for shards in (1, 3):
        with opened(tmp_path, WalSettings(shards=shards)) as again:
            assert again.routers() == expected
            again.append("s", RED)
    with opened(tmp_path, SPREAD) as again:
        assert values(again, "t") == [b"1"] * 3
        assert values(again, "v") == [b"2"] * 2
        assert values(again, "s") == [b"1", b"2", b"3"] * 3


def test_a_rule_that_was_deleted_does_not_come_back_with_an_old_snapshot(tmp_path: Path) -> None:
    store = routed(tmp_path)
    store.delete_router("reds")
    store.maintain()
    assert store.routers() == []
    crash(store)
    with opened(tmp_path, SPREAD) as again:
        assert again.routers() == []
        again.create_router("reds", "s", "u", tag=b"red")
    with opened(tmp_path, SPREAD) as again:
        assert [each.target for each in again.routers()] == ["u"]


def test_copies_are_not_copied_again_and_there_is_one_for_each_target(tmp_path: Path) -> None:
    with routed(tmp_path) as store:
        store.create_router("back", "t", "s", tag=b"red")
        store.create_router("reds too", "s", "t", tag_prefix=b"r")
        store.append("s", RED)
        assert values(store, "t") == [b"1"]
        store.append("t", RED)
        assert values(store, "s") == [b"1", b"2", b"3", b"1"]


def test_partitions_copy_to_those_of_the_same_number(tmp_path: Path) -> None:
    with opened(tmp_path, SPREAD) as store:
        store.create_topic("s", format="wal", partitions=3)
        store.create_topic("t", format="wal", partitions=2)
        store.create_router("r", "s", "t", tag=b"red")
        for partition in range(3):
            store.append("s", [{"value": b"%d" % partition, "tag": b"red"}], partition=partition)
        assert [values(store, "t", each) for each in range(2)] == [[b"0", b"2"], [b"1"]]


def test_appends_to_source_and_target_at_once_keep_every_sequence_apart(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with routed(tmp_path) as store, ThreadPoolExecutor(6) as pool:

        def one(number: int) -> None:
            topic = ("s", "t", "u")[number % 3]
            while True:
                try:
                    store.append(topic, [{"value": b"%d" % number, "tag": b"red"}] * 3)
                    return
                except Unavailable:
                    continue

        started = [pool.submit(one, number) for number in range(60)]
        store.create_router("more", "u", "t", tag=b"red")
        started += [pool.submit(one, number) for number in range(60, 120)]
        for each in started:
            each.result()
        assert len(values(store, "s")) == len(values(store, "u")) == 120
        own = {b"%d" % number for number in range(1, 120, 3)}
        found = values(store, "t")
        assert 120 + 120 + 60 <= len(found) <= 360
        assert own <= set(found)


def test_a_repeated_batch_is_copied_once(tmp_path: Path) -> None:
    with routed(tmp_path) as store:
        stamp = ProducerStamp(7, 0, 0)
        first = store.append("s", RED, partition=0, producer=stamp)
        again = store.append("s", RED, partition=0, producer=stamp)
        assert first.base_offset == again.base_offset
        assert values(store, "t") == [b"1"]


def test_caps_and_ages_of_the_target_hold_for_copies(tmp_path: Path) -> None:
    clock = Clock()
    with routed(tmp_path, now_ms=clock) as store:
        store.alter_topic("t", {"retention.ms": 1000})
        store.append("s", RED)
        clock.ms += 2000
        store.append("s", RED)
        assert values(store, "t") == [b"1"]
        assert len(values(store, "s")) == 6


def test_what_a_target_refuses_is_not_appended_at_all(tmp_path: Path) -> None:
    with routed(tmp_path) as store:
        store.alter_topic("t", {"retention.records": 2, "discard": "new"})
        store.append("s", RED)
        store.append("s", RED)
        with pytest.raises(Unavailable, match=r"router .reds.*cap"):
            store.append("s", RED)
        store.append("s", [{"value": b"4", "tag": b"blue"}])
        assert values(store, "s") == [b"1", b"2", b"3"] * 2 + [b"4"]
        store.alter_topic("t", {"discard": "old", "max.message.bytes": 10})
        with pytest.raises(InvalidRequest, match=r"max\.message\.bytes"):
            store.append("s", [{"value": b"x" * 11, "tag": b"red"}])
        store.append("s", [{"value": b"x" * 11, "tag": b"blue"}])


def test_a_rule_ends_with_its_source_or_its_target(tmp_path: Path) -> None:
    store = routed(tmp_path)
    store.create_router("others", "u", "s", tag=b"red")
    store.delete_topic("t")
    assert [each.name for each in store.routers()] == ["others"]
    store.append("s", RED)
    store.create_topic("t", format="wal")
    store.append("s", RED)
    assert values(store, "t") == []
    store.delete_topic("u")
    assert store.routers() == []
    store.create_router("others", "s", "t", tag=b"red")
    crash(store)
    with opened(tmp_path, SPREAD) as again:
        assert [each.name for each in again.routers()] == ["others"]
        again.append("s", RED)
        assert values(again, "t") == [b"1"]


def test_what_is_no_rule_is_refused(tmp_path: Path) -> None:
    with routed(tmp_path) as store:
        store.create_topic("k")
        wrong: list[tuple[tuple[str, str, str], dict[str, Any]]] = [
            (("x", "s", "t"), {}),
            (("x", "s", "t"), {"tag": b"a", "node": b"b"}),
            (("x", "s", "s"), {"tag": b"a"}),
            (("x", "s", "k"), {"tag": b"a"}),
            (("x", "k", "s"), {"tag": b"a"}),
            (("reds", "s", "u"), {"tag": b"a"}),
            (("", "s", "t"), {"tag": b"a"}),
            (("x", "s", "t"), {"tag": "text"}),
            (("x", "s", "t"), {"tag": b"a" * 65_536}),
        ]
        for names, rule in wrong:
            with pytest.raises(InvalidRequest):
                store.create_router(*names, **rule)
        with pytest.raises(UnknownTopic):
            store.create_router("x", "s", "nowhere", tag=b"a")
        for act in (store.delete_router, store.alter_router):
            with pytest.raises(UnknownRouter):
                act("x")
        assert [each.name for each in store.routers()] == ["reds"]
    with pytest.raises(Closed):
        store.routers()
    with opened(tmp_path / "new") as store:
        assert store.routers() == []
        with pytest.raises(UnknownRouter):
            store.delete_router("x")


def test_log_append_time_is_that_of_the_source(tmp_path: Path) -> None:
    clock = Clock()
    with routed(tmp_path, now_ms=clock) as store:
        store.alter_topic("t", {"message.timestamp.type": "LogAppendTime"})
        store.append("s", [{"value": b"1", "tag": b"red", "timestamp": 5}])
        (batch,) = store.scan("t")
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [5]
        store.alter_topic("s", {"message.timestamp.type": "LogAppendTime"})
        store.append("s", [{"value": b"1", "tag": b"red", "timestamp": 5}])
        (batch,) = store.scan("t", start=2)
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [clock.ms]


# ---------------------------------------------------------------- power and disks

DATA = "/srv/data"
NOW_MS = 1_700_000_000_000
QUIET = WriterSettings(flush_ms=1 << 31)
SIMULATED = WalSettings(shards=2, wal_bytes=1 << 15, segment_events=8)


def open_simulated(files: SimulatedFiles) -> Store:
    return Store(
        DATA, files=files, now_ms=lambda: NOW_MS, writer=QUIET, wal=SIMULATED, tick_ms=1 << 31
    )


def large(number: int, count: int = 3) -> list[dict[str, bytes]]:
    """Records that need sectors of their own, every second one red."""
    return [
        {"value": b"%d/%d" % (number, row) + bytes(700), "tag": b"red" if row % 2 == 0 else b"b"}
        for row in range(count)
    ]


@functools.cache
def moments() -> list[tuple[Disk, int]]:
    """The disk before every step of some routed appends, and how many of them were acknowledged."""
    files = SimulatedFiles()
    found: list[tuple[Disk, int]] = []
    store = open_simulated(files)
    for name in ("s", "t", "u"):
        store.create_topic(name, format="wal", config={"durability": "disk"})
    store.create_router("reds", "s", "t", tag=b"red")
    store.create_router("reds to u", "s", "u", tag=b"red")
    acknowledged = 0
    files.before = lambda kind, path: found.append((files.snapshot(), acknowledged))
    for number in range(5):
        acks = 1 if number in (1, 2) else "all"
        store.append("s", large(number), acks=acks)
        store.append("t", [b"own %d" % number], acks=acks)
        acknowledged = number + 1 if acks == "all" else acknowledged
        if number == 3:
            store.maintain()
    store.close()
    return found


def demand_both_or_none(store: StoreApi, acknowledged: int) -> list[list[bytes]]:
    """Demands that every red record has its copies, and every copy its record."""
    served = [values(store, topic) for topic in "stu"]
    reds = [each for each in served[0] if int(each[2:3]) % 2 == 0]
    assert [each for each in served[1] if not each.startswith(b"own")] == reds
    assert served[2] == reds
    whole = {int(each[:1]) for each in served[0]}
    assert set(range(acknowledged)) <= whole, "an acknowledged append is gone"
    assert len(served[0]) == 3 * len(whole), "a part of an append"
    return served


@pytest.mark.parametrize("choice", ["dropped", "kept", 1, 2, 3, "killed"])
def test_power_loss_keeps_a_record_and_its_copies_or_neither(choice: Choice) -> None:
    for step, (disk, acknowledged) in enumerate(moments()):
        files = disk.restart() if choice == "killed" else disk.crash(choice)
        try:
            with ReadOnlyStore(DATA, files=files, wal=SIMULATED) as reader:
                demand_both_or_none(reader, acknowledged)
            store = open_simulated(files)
            before = demand_both_or_none(store, acknowledged)
            store.append("s", large(9), acks="all")
            again = files.snapshot().crash("dropped")
            store.close()
            for reopened in (again, files):
                with open_simulated(reopened) as other:
                    after = demand_both_or_none(other, acknowledged)
                    assert after[0][:-3] == before[0], "what was left out is back, or gone"
                    assert [each[:1] for each in after[0][-3:]] == [b"9"] * 3
        except BaseException as error:
            error.add_note(f"step {step}, {choice}")
            raise


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_on_a_full_disk_neither_is_stored(error: int) -> None:
    files = SimulatedFiles()
    store = open_simulated(files)
    for name in ("s", "t"):
        store.create_topic(name, format="wal")
    store.create_router("reds", "s", "t", tag=b"red")
    store.append("s", large(0))

    def fail(kind: str, path: str) -> None:
        if kind == "write_at" and "wal-" in path:
            raise OSError(error, "no space")

    files.before = fail
    with pytest.raises(StorageFull):
        store.append("s", large(1))
    files.before = None
    assert [each[:1] for each in values(store, "s")] == [b"0"] * 3
    assert [each[:1] for each in values(store, "t")] == [b"0"] * 2
    store.append("s", large(2))
    assert [each[:1] for each in values(store, "t")] == [b"0", b"0", b"2", b"2"]
    store.close()


def test_the_copies_are_in_one_write_and_one_fsync() -> None:
    files = SimulatedFiles()
    store = open_simulated(files)
    for name in ("s", "t", "u"):
        store.create_topic(name, format="wal")
    store.create_router("a", "s", "t", tag=b"red")
    store.create_router("b", "s", "u", tag=b"red")
    store.append("s", large(0))
    calls: list[str] = []
    files.before = lambda kind, path: calls.append(kind)
    store.append("s", large(1))
    assert [kind for kind in calls if kind in ("write_at", "sync")] == ["write_at", "sync"]
    files.before = None
    store.close()


# ---------------------------------------------------------------- shards that cannot be left


def failing_shard(store: Store, files: SimulatedFiles, topic: str) -> None:
    """Leaves unsynced records of a topic in its shard, and no sync of that shard succeeds."""
    store.append(topic, [b"unsynced"], acks=1)
    folder = store._partitions[topic, 0].log.shard.directory  # type: ignore[attr-defined]

    def fail(kind: str, path: str) -> None:
        if kind == "sync" and path.startswith(folder):
            raise OSError(errno.EIO, "it cannot be synced")

    files.before = fail


def spread_out(files: SimulatedFiles) -> tuple[Store, list[str]]:
    """A store of two shards, with topics of both: the first two and the last are apart."""
    store = open_simulated(files)
    names = [f"n{number}" for number in range(8)]
    for name in names:
        store.create_topic(name, format="wal", config={"durability": "disk"})
    logs = {name: store._partitions[name, 0].log for name in names}  # type: ignore[attr-defined]
    first = [name for name in names if logs[name] is logs[names[0]]][:2]
    return store, [*first, *(name for name in names if logs[name] is not logs[names[0]])][:4]


def test_a_rule_whose_target_cannot_be_moved_is_refused_and_not_listed() -> None:
    files = SimulatedFiles()
    store, (source, _, target, _) = spread_out(files)
    failing_shard(store, files, target)
    with pytest.raises(Poisoned):
        store.create_router("reds", source, target, tag=b"red")
    assert store.routers() == []
    with pytest.raises(Poisoned):  # at once, now that it is known
        store.create_router("reds", source, target, tag=b"red")
    store.append(source, RED)
    files.before = None
    store.close()
    with open_simulated(files) as again:
        assert again.routers() == []
        again.create_router("reds", source, target, tag=b"red")
        again.append(source, RED, acks="all")
        assert values(again, target)[-1] == b"1"


def test_a_rule_that_would_tear_others_apart_leaves_them_as_they_are() -> None:
    """Connected with a topic of the other shard, all that are connected already must be moved."""
    files = SimulatedFiles()
    store, (lowest, _, source, target) = spread_out(files)
    store.create_router("old", source, target, tag=b"red")
    failing_shard(store, files, source)
    with pytest.raises(Poisoned):
        store.create_router("new", lowest, source, tag=b"red")
    assert [each.name for each in store.routers()] == ["old"]
    store.append(lowest, RED)  # of another shard, and no source
    with pytest.raises(Poisoned):
        store.append(source, RED)


def test_a_topic_of_a_shard_that_failed_can_be_deleted_and_its_rules_end() -> None:
    files = SimulatedFiles()
    store, (lowest, _, source, target) = spread_out(files)
    store.create_router("first", lowest, source, tag=b"red")
    store.create_router("second", source, target, tag=b"red")
    failing_shard(store, files, source)
    with pytest.raises(Poisoned):
        store.append(source, RED, acks="all")
    store.delete_topic(lowest)
    assert [each.name for each in store.routers()] == ["second"]
    with pytest.raises(UnknownTopic):
        store.append(lowest, RED)
