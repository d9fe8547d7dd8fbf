"""Partitions added to a topic: all at once and for good, found by every door, crash or not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lamina.client import group_member, producer
from lamina.client.consumer import Consumer
from lamina.client.producer import Producer
from lamina.errors import InvalidRequest, LaminaError, UnknownTopic
from lamina.formats.partitioning import partitions_of
from lamina.storage.files import LocalFiles
from lamina.storage.object_directory import DirectoryObjects
from lamina.store.archive_store import ArchiveStore
from lamina.store.opening import Boot
from lamina.store.restore import restore
from lamina_torture.client import TOPIC
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles
from tests.support.directories import Clock, opened, read_only, values

EVERY = pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])


@EVERY
def test_they_are_there_at_once_and_after_every_opening(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name, partitions=2)
        store.append("t", b"old", partition=1)
        group = store.group("t", "g")
        store.add_partitions("t", 4)
        assert store.format_of("t") == (format_name, 4)
        assert len(store.describe_topic("t").partitions) == 4
        store.append("t", b"new", partition=3)
        assert values(store, partition=3) == [b"new"]
        assert values(store, partition=1) == [b"old"]
        assert sorted(group.poll(10).column("value").to_pylist()) == [b"new", b"old"]
        assert len(group.lag()) == 4
        assert len(store.group("t", "later").lag()) == 4
        for number in range(4):
            store.apply_retention("t", number)
            assert store.explain_retention("t", number) is not None
        store.maintain()
        with read_only(path) as reader:
            assert values(reader, partition=3) == [b"new"]
        with pytest.raises(UnknownTopic):
            store.append("t", b"x", partition=4)
    with opened(path) as store:
        assert not [e for e in store.recovery_report.events if e.kind not in ("note", "cut")]
        assert store.format_of("t")[1] == 4
        assert values(store, partition=3) == [b"new"]
        assert [each.partition for each in store.group("t", "g").lag()] == [0, 1, 2, 3]
        store.add_partitions("t", 5)
        store.append("t", b"more", partition=4)
        assert values(store, partition=4) == [b"more"]


@EVERY
@pytest.mark.parametrize("total", [-1, 0, 1, 2, 10_001, 1 << 40])
def test_the_count_only_grows(tmp_path: Path, format_name: str, total: int) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name, partitions=2)
        with pytest.raises(InvalidRequest):
            store.add_partitions("t", total)
        with pytest.raises(UnknownTopic):
            store.add_partitions("not-there", 3)
        assert store.format_of("t")[1] == 2


def test_keys_go_by_the_new_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "SHAPE_S", 0.0)
    keys = [f"k{number}".encode() for number in range(40)]
    chosen = partitions_of(pa.array(keys, pa.binary()), 5).tolist()
    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=2)
        with Producer(store) as made:
            made.produce("t", b"before", key=keys[0])
            made.flush()
            store.add_partitions("t", 5)
            for key in keys:
                made.produce("t", b"producer", key=key)
            made.flush()
        store.append("t", [{"key": key, "value": b"append"} for key in keys])
        rows = [{"key": key, "value": b"async"} for key in keys]
        asyncio.run(_appended(store, rows))
        for number in range(5):
            wanted = {key for key, at in zip(keys, chosen, strict=True) if at == number}
            batches = list(store.scan("t", number))
            for how in (b"producer", b"append", b"async"):
                found = {
                    row["key"]
                    for batch in batches
                    for row in batch.to_pylist()
                    if row["value"] == how
                }
                assert found == wanted


async def _appended(store: Any, rows: list[dict[str, bytes]]) -> None:
    await store.append_async("t", rows)


def test_consumers_with_and_without_a_group_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina.client.consumer.PARTITIONS_CHECKED_S", 0.0)
    monkeypatch.setattr(group_member, "PARTITIONS_CHECKED_S", 0.0)
    with opened(tmp_path / "data") as store:
        store.create_topic("t", partitions=1)
        store.append("t", b"0", partition=0)
        config = {"group.id": "g", "auto.offset.reset": "earliest", "heartbeat.interval.ms": 20}
        with (
            Consumer(store, config) as member,
            Consumer(store, {"auto.offset.reset": "earliest"}) as lone,
        ):
            member.subscribe(["t"])
            lone.subscribe(["t"])
            assert member.consume(1, 20)
            store.add_partitions("t", 3)
            store.append("t", b"2", partition=2)
            for each in (member, lone):
                seen: set[bytes] = set()
                while b"2" not in seen:
                    found = each.consume(10, 20)
                    assert found, "it did not come"
                    seen |= {message.value() for message in found}


@EVERY
def test_the_archive_carries_the_new_count(tmp_path: Path, format_name: str) -> None:
    path, objects = tmp_path / "data", str(tmp_path / "objects")
    config = {"remote.storage.enable": True}
    with opened(path, archive=objects) as store:
        store.create_topic("t", format=format_name, config=config)
        store.append("t", b"a", partition=0)
        store.archive()
        store.add_partitions("t", 3)
        store.append("t", b"c", partition=2)
        store.roll("t", 2)
        store.roll("t", 0)
        store.archive()
    with ArchiveStore(DirectoryObjects(LocalFiles(), objects)) as archived:
        assert archived.format_of("t")[1] == 3
        assert values(archived, partition=2) == [b"c"]
    restore(DirectoryObjects(LocalFiles(), objects), Boot(LocalFiles(), str(path) + "2", Clock()))
    with opened(tmp_path / "data2") as store:
        assert store.format_of("t")[1] == 3
        assert [values(store, partition=number) for number in range(3)] == [[b"a"], [], [b"c"]]


@EVERY
@pytest.mark.parametrize("loss", ["killed", "dropped", "kept"])
def test_a_crash_at_any_step_leaves_all_of_them_or_none(format_name: str, loss: str) -> None:
    files = SimulatedFiles()
    disks: list[Any] = []
    with open_store(files) as store:
        store.create_topic(TOPIC, format=format_name, partitions=2)
        store.append(TOPIC, b"old", partition=1)
        store.group(TOPIC, "g")
        store.flush()
        files.before = lambda kind, path: disks.append(files.snapshot())
        store.add_partitions(TOPIC, 4)
        files.before = None
        disks.append(files.snapshot())
        store.append(TOPIC, b"new", partition=3)
        disks.append(files.snapshot())
    counts = []
    for disk in disks:
        left = disk.restart() if loss == "killed" else disk.crash(loss)
        for _ in range(2):
            with open_store(left) as store:
                count = store.format_of(TOPIC)[1]
                assert count in (2, 4)
                assert len(store.group(TOPIC, "g").lag()) == count
                assert values(store, TOPIC, 1) == [b"old"]
        counts.append(count)
        with open_store(left) as store:
            if count == 2:
                store.add_partitions(TOPIC, 4)
            assert values(store, TOPIC, 3) == ([b"new"] if disk is disks[-1] else [])
            store.append(TOPIC, b"more", partition=2)
            assert values(store, TOPIC, 2) == [b"more"]
            assert len(store.group(TOPIC, "g").lag()) == 4
    assert counts == sorted(counts)
    assert counts[-2:] == [4, 4]


@EVERY
def test_a_call_that_fails_leaves_all_of_them_or_none(format_name: str) -> None:
    for kind in ("write_at", "sync", "rename", "create"):
        for at in range(1, 9):
            files = SimulatedFiles()
            with open_store(files) as store:
                store.create_topic(TOPIC, format=format_name, partitions=2)
                store.group(TOPIC, "g")
                files.fail(kind, at=at)
                try:
                    store.add_partitions(TOPIC, 4)
                except LaminaError:
                    assert store.format_of(TOPIC)[1] in (2, 4)
                files.faults.clear()
                count = store.format_of(TOPIC)[1]
                assert len(store.describe_topic(TOPIC).partitions) == count
            with open_store(files) as store:
                assert store.format_of(TOPIC)[1] in (count, 4)
                if store.format_of(TOPIC)[1] == 2:
                    store.add_partitions(TOPIC, 4)
                store.append(TOPIC, b"x", partition=3)
                assert values(store, TOPIC, 3) == [b"x"]
                assert len(store.group(TOPIC, "g").lag()) == 4


def test_routers_reach_new_partitions(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("s", format="wal", partitions=1)
        store.create_topic("d", format="wal", partitions=1)
        store.create_router("r", "s", "d", tag=b"red")
        store.add_partitions("s", 3)
        store.add_partitions("d", 2)
        for number in range(3):
            row = {"value": str(number).encode(), "tag": b"red"}
            store.append("s", [row], partition=number)
        assert values(store, "d", 0) == [b"0", b"2"]
        assert values(store, "d", 1) == [b"1"]
    with opened(path) as store:
        store.append("s", [{"value": b"4", "tag": b"red"}], partition=1)
        assert values(store, "d", 1) == [b"1", b"4"]
