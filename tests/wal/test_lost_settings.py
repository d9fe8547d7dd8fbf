"""A wal topic whose `topic.json` is destroyed: WAL and snapshot know it, for readers too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.errors import InvalidRequest, UnknownTopic
from lamina.spark.logs.directory_log import LogDirectory
from lamina.storage.files import LocalFiles
from lamina.store.opening import Boot
from lamina.store.read_only import ReadOnlyStore
from lamina.store.restore import restore
from lamina.store.store import Store
from tests.archive.rig import NEVER, NOW_MS, SETTINGS, memory
from tests.support.failing_objects import FailingObjects

LOSSES: dict[str, Callable[[Path], Any]] = {
    "removed": os.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\x00\xff" * 200),
}
LOST = pytest.mark.parametrize("loss", LOSSES)
VALUES = [b"a", b"b", b"c"]


def settings_of(data: Path, topic: str) -> Path:
    return data / "topics" / topic / "topic.json"


def values(store: Any, topic: str = "t", partition: int = 1) -> list[bytes]:
    batches = store.scan(topic, partition)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def fill(data: Path, archive: Any = None) -> None:
    with Store(str(data), archive=archive, tick_ms=NEVER) as store:
        config = SETTINGS if archive is not None else {"retention.ms": 10**12}
        store.create_topic("t", format="wal", partitions=2, config=config)
        store.create_topic("gone", format="wal")
        store.append("t", VALUES[:1], partition=1)
        if archive is not None:  # the rest is here alone
            store.archive()
        store.append("t", VALUES[1:], partition=1)
        store.append("gone", VALUES)
        store.delete_topic("gone")


@LOST
@pytest.mark.parametrize("purged", [False, True])
def test_a_reader_finds_what_a_writer_would_bring_back(
    tmp_path: Path, loss: str, purged: bool
) -> None:
    fill(tmp_path)
    if purged:  # only the snapshot knows the topic now
        with Store(str(tmp_path), tick_ms=NEVER) as store:
            store.roll("t")
            store.purge_wal()
    for topic in ("t", "gone"):
        LOSSES[loss](settings_of(tmp_path, topic))
    with lamina.open(str(tmp_path), read_only=True) as beside:
        assert beside.topics() == ["t"], "what was deleted stays so"
        assert values(beside) == VALUES
        about = beside.describe_topic("t")
        assert (about.format, len(about.partitions)) == ("wal", 2)
        assert about.settings["retention.ms"] == 10**12
        with pytest.raises(UnknownTopic):
            values(beside, "gone", 0)
    directory = LogDirectory(str(tmp_path))
    directory.look()
    assert list(directory.topics()) == ["t"]
    assert loss != "removed" or not settings_of(tmp_path, "t").exists(), "nothing was written"
    with Store(str(tmp_path), tick_ms=NEVER) as store:
        assert store.topics() == ["t"]
        assert values(store) == VALUES


def test_beside_a_live_writer(tmp_path: Path) -> None:
    with Store(str(tmp_path), tick_ms=NEVER) as store:
        store.create_topic("t", format="wal", partitions=2)
        store.append("t", VALUES, partition=1)
        settings_of(tmp_path, "t").unlink()
        with lamina.open(str(tmp_path), read_only=True) as beside:
            assert values(beside) == VALUES
            store.append("t", b"d", partition=1)
            assert values(beside) == [*VALUES, b"d"]
            store.delete_topic("t")
            assert beside.topics() == []


@LOST
def test_while_the_archive_is_away(tmp_path: Path, loss: str) -> None:
    objects = FailingObjects(memory())
    fill(tmp_path, objects)
    LOSSES[loss](settings_of(tmp_path, "t"))
    objects.fail_at, objects.forever = 0, True
    with ReadOnlyStore(str(tmp_path), archive=objects) as beside:
        assert beside.topics() == ["t"]
        assert values(beside) == VALUES


@LOST
def test_a_restore_does_not_overwrite_it(tmp_path: Path, loss: str) -> None:
    objects = memory()
    fill(tmp_path, objects)
    LOSSES[loss](settings_of(tmp_path, "t"))
    boot = Boot(LocalFiles(), str(tmp_path), lambda: NOW_MS, lambda: NOW_MS)
    with pytest.raises(InvalidRequest, match="exists"):
        restore(objects, boot, ["t"])
    with Store(str(tmp_path), tick_ms=NEVER) as store:
        assert values(store) == VALUES


def test_a_directory_without_a_wal_has_no_more_to_say(tmp_path: Path) -> None:
    with Store(str(tmp_path), tick_ms=NEVER) as store:
        store.create_topic("k")
    (tmp_path / "topics" / "stray").mkdir()
    with lamina.open(str(tmp_path), read_only=True) as beside:
        assert beside.topics() == ["k"]
    assert not (tmp_path / "wal").exists()
