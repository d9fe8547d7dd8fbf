"""Whose a directory is, and which groups it had: what is told of files that are swapped or lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lamina.errors import CorruptData, InvalidRequest, UnknownGroup
from lamina.spark.logs.local import boot_of
from lamina_torture.promises import read
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles
from tests.support.directories import opened, read_only, values

ALL = ("frame", "keratin", "wal")


def made(path: Path, format_name: str = "keratin", *, partitions: int = 2) -> Path:
    """A closed store whose group has acked three records of each partition."""
    with opened(path) as store:
        store.create_topic("t", format=format_name, partitions=partitions)
        for partition in range(partitions):
            store.append("t", [b"%d" % number for number in range(8)], partition=partition)
        group = store.group("t", "billing")
        for partition in range(partitions):
            first = store.earliest_offset("t", partition)
            group.commit(first + 3, partition)
    return path


def committed(path: Path) -> list[int]:
    with opened(path) as store:
        return [each.committed for each in store.describe_group("t", "billing").partitions]


# ---------------------------------------------------------------- broker.id


@pytest.mark.parametrize("format_name", ALL)
def test_the_identity_of_another_store_is_refused(tmp_path: Path, format_name: str) -> None:
    path, other = made(tmp_path / "data", format_name), made(tmp_path / "other", format_name)
    own = (path / "meta/broker.id").read_bytes()
    shutil.copy(other / "meta/broker.id", path / "meta/broker.id")
    for _ in range(2):
        with pytest.raises(CorruptData, match="another store") as refused:
            opened(path)
        assert refused.value.path.endswith("broker.id")
        assert "put the right broker.id back" in str(refused.value)
    (path / "meta/broker.id").write_bytes(own)
    with opened(path) as store:
        assert len(values(store)) == 8


def test_a_directory_that_is_meant_to_be_anothers_can_be_adopted(tmp_path: Path) -> None:
    path, other = made(tmp_path / "data"), made(tmp_path / "other")
    shutil.copy(other / "meta/broker.id", path / "meta/broker.id")
    (path / "meta/checkpoint.json").unlink()
    with opened(path) as store:
        assert len(values(store)) == 8
    opened(path).close()


def test_a_checkpoint_of_an_older_release_is_adopted(tmp_path: Path) -> None:
    path = made(tmp_path / "data")
    file = path / "meta/checkpoint.json"
    told = json.loads(file.read_bytes())
    assert told.pop("broker_crc32")
    assert told.pop("broker") == json.loads((path / "meta/broker.id").read_bytes())["uuid"]
    file.write_text(json.dumps(told))
    opened(path).close()
    with opened(path) as store:
        store.append("t", [b"more"], partition=0)
    assert "broker" in json.loads(file.read_bytes())


@pytest.mark.parametrize("door", [opened, read_only, lambda path: boot_of(str(path))])
@pytest.mark.parametrize("format_name", ALL)
def test_a_lost_identity_is_named_by_every_door(
    tmp_path: Path, format_name: str, door: Callable[[Path], object]
) -> None:
    """A directory with topics is a data directory, whoever looks: only broker.id is missing."""
    path = made(tmp_path / "data", format_name)
    own = (path / "meta/broker.id").read_bytes()
    (path / "meta/broker.id").unlink()
    with pytest.raises(CorruptData, match="restore the file from a backup") as refused:
        door(path)
    assert refused.value.path == str(path / "meta/broker.id")
    assert not (path / "meta/broker.id").exists()
    (path / "meta/broker.id").write_bytes(own)
    with opened(path) as store:
        assert len(values(store)) == 8


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_what_is_no_data_directory_is_not_called_a_damaged_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"text")
    with pytest.raises(InvalidRequest, match="is not a data directory"):
        read_only(tmp_path / name)


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("format_name", ALL)
def test_a_group_whose_files_are_all_lost_is_reported_and_goes_on(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    before = committed(path)
    shutil.rmtree(path / "groups")
    with read_only(path) as reader:
        assert reader.groups() == [("t", "billing")]
        lags = reader.describe_group("t", "billing").partitions
        assert [each.committed for each in lags] == before
    with opened(path) as store:
        told = [event for event in store.recovery_report.of("rebuilt") if "billing" in event.why]
        assert len(told) == 2
        assert store.groups() == [("t", "billing")]
        lags = store.describe_group("t", "billing").partitions
        assert [each.committed for each in lags] == before
    with opened(path) as store:
        assert store.recovery_report.events == []


@pytest.mark.parametrize("lost", ["snap", "delta"])
def test_one_file_of_two_keeps_what_was_acked(tmp_path: Path, lost: str) -> None:
    path = made(tmp_path / "data")
    before = committed(path)
    for partition in range(2):
        (path / f"groups/t-{partition}_billing.{lost}").unlink()
    with opened(path) as store:
        told = [event.path for event in store.recovery_report.of("rebuilt")]
        assert {str(path / f"groups/t-{number}_billing.{lost}") for number in range(2)} <= set(told)
        lags = store.describe_group("t", "billing").partitions
        assert [each.committed for each in lags] == before


def test_a_lost_partition_of_a_group_is_reported(tmp_path: Path) -> None:
    path = made(tmp_path / "data")
    before = committed(path)
    for suffix in ("snap", "delta"):
        (path / f"groups/t-1_billing.{suffix}").unlink()
    with opened(path) as store:
        (event,) = store.recovery_report.of("rebuilt")
        assert "lost" in event.why
        lags = store.describe_group("t", "billing").partitions
        assert [each.committed for each in lags] == before


def test_a_deleted_group_and_one_of_a_deleted_topic_never_come_back(tmp_path: Path) -> None:
    path = made(tmp_path / "data")
    with opened(path) as store:
        store.delete_group("t", "billing")
        shutil.copytree(path, tmp_path / "killed")
    for each in (path, tmp_path / "killed"):
        with opened(each) as store:
            assert store.groups() == []
            with pytest.raises(UnknownGroup):
                store.describe_group("t", "billing")
    made(tmp_path / "again")
    with opened(tmp_path / "again") as store:
        store.delete_topic("t")
        store.create_topic("t")
    with opened(tmp_path / "again") as store:
        assert store.groups() == []
        assert store.recovery_report.of("rebuilt") == []


@pytest.mark.parametrize("damage", ["gone", "flipped", "foreign"])
def test_a_lost_list_of_groups_costs_nothing(tmp_path: Path, damage: str) -> None:
    path = made(tmp_path / "data")
    before = committed(path)
    file = path / "meta/groups.json"
    if damage == "gone":
        file.unlink()
    elif damage == "foreign":
        file.write_bytes(b"\xff\xd8\xff\xe0 what")
    else:
        data = bytearray(file.read_bytes())
        data[data.index(b"billing")] ^= 1
        file.write_bytes(data)
    assert committed(path) == before
    with opened(path) as store:
        assert store.recovery_report.events == []
    assert file.exists()


def test_an_identity_that_was_put_back_by_hand_is_durable_once_the_store_is_open() -> None:
    """A copy from a backup has its bytes on the disk, and maybe not its name."""
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic("t")
        store.append("t", [b"0"])
    path = next(each for each in files.contents() if each.endswith("broker.id"))
    data = files.read(path)
    files.remove(path)
    files.sync_directory(path.removesuffix("/broker.id"))
    copy = files.create(path)
    copy.write_at(0, data)
    copy.sync()
    store = open_store(files)
    store.append("t", [b"1"])
    lost = files.snapshot().crash("dropped")
    store.close()
    with open_store(lost) as store:
        assert len(read(store, "t")) == 2
