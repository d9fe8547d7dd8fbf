"""What fails for one wal topic costs the other topics of its shard nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from lamina.api import ProducerStamp
from lamina.config import WalSettings
from lamina.errors import LaminaError, Poisoned, StorageFull, Unavailable, UnknownTopic
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles
from tests.wal.stores import QUIET, contents

DATA = "/srv/data"
ONE = WalSettings(shards=1, wal_bytes=1 << 14, segment_events=5)
ERRORS = pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES])


def opened(files: SimulatedFiles) -> Store:
    return Store(DATA, files=files, writer=QUIET, wal=ONE, tick_ms=1 << 30)


def two_topics() -> tuple[SimulatedFiles, Store]:
    """Topics `t`, with the id 1, and `u`, in one shard, with some sealed segments each."""
    files = SimulatedFiles()
    store = opened(files)
    for name in ("t", "u"):
        store.create_topic(name, format="wal")
        store.append(name, [{"value": b"%d" % each, "tag": b"red"} for each in range(12)])
    store.maintain()
    return files, store


def refusing(kinds: tuple[str, ...], part: str, error: int) -> Callable[[str, str], None]:
    def refuse(kind: str, path: str) -> None:
        if kind in kinds and part in path:
            raise OSError(error, "refused", path)

    return refuse


def told(change: Callable[[], Any]) -> LaminaError | None:
    """Returns how a change was refused, if it was; any other error is a defect."""
    try:
        change()
    except (Poisoned, StorageFull, Unavailable) as refused:
        return refused
    return None


def goes_on(store: Store, topic: str = "u") -> None:
    """Demands that a topic takes appends, checkpoints and deletes as ever."""
    before = len(contents(store, topic)[0])
    store.append(topic, [b"more"])
    assert len(contents(store, topic)[0]) == before + 1
    assert f"{topic}/0" not in store.failures()


@ERRORS
@pytest.mark.parametrize("kind", ["rename", "sync", "sync_directory", "create", "write_at"])
def test_a_failed_deletion_stops_only_its_topic(kind: str, error: int) -> None:
    files, store = two_topics()
    files.before = refusing((kind,), "/topics/t", error)
    refused = told(lambda: store.delete_topic("t"))
    if isinstance(refused, Poisoned):
        with pytest.raises(Poisoned):
            store.append("t", [b"might be deleted"])
        assert list(store.failures()) == ["t/0"]
    goes_on(store)
    files.before = None
    goes_on(store)
    if "t" in store.topics():
        store.delete_topic("t")  # it can be tried again
    assert "t" not in store.topics()
    goes_on(store)
    store.close()
    with opened(files) as again:
        assert again.topics() == ["u"]
        goes_on(again)


def test_a_half_deleted_topic_is_there_or_not_when_the_store_is_opened_again() -> None:
    files, store = two_topics()
    files.before = refusing(("sync_directory",), "/topics/t", errno.EIO)
    with pytest.raises(Poisoned, match="delete it again, or reopen"):
        store.delete_topic("t")
    disk = files.snapshot()
    for choice in ("dropped", "kept", "killed"):
        left = disk.restart() if choice == "killed" else disk.crash(choice)  # type: ignore[arg-type]
        with opened(left) as again:
            assert len(contents(again, "u")[0]) == 12
            if "t" in again.topics():
                assert len(contents(again, "t")[0]) == 12
            goes_on(again)


@ERRORS
def test_files_of_a_deleted_topic_that_cannot_be_removed_go_at_the_next_opening(
    error: int,
) -> None:
    files, store = two_topics()
    files.before = refusing(("remove", "remove_directory"), "/segments/0000000000000001", error)
    store.delete_topic("t")
    with pytest.raises(UnknownTopic):
        store.append("t", [b"x"])
    goes_on(store)
    store.close()
    with opened(files) as again:  # still refused
        assert again.topics() == ["u"]
        goes_on(again)
    files.before = None
    with opened(files) as again:
        assert not [path for path in files.contents() if "/0000000000000001/" in path]
        goes_on(again)


CHANGES: dict[str, Callable[[Store], Any]] = {
    "trim": lambda store: store.trim("t", 0, 11),
    "delete before": lambda store: store.delete("t", before=11),
    "delete by tag": lambda store: store.delete("t", tag=b"red"),
    "retention": lambda store: store.apply_retention("t"),
    "roll": lambda store: store.roll("t"),
    "alter": lambda store: store.alter_topic("t", {"retention.ms": 1 << 40}),
    "maintain": lambda store: store.maintain(),
}


@ERRORS
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_its_own_files_refuse_stops_no_other_topic(change: str, error: int) -> None:
    files, store = two_topics()
    store.alter_topic("t", {"retention.records": 5})
    store.append("t", [{"value": b"new", "tag": b"red"}])
    kinds = ("create", "write_at", "sync", "rename", "remove", "sync_directory", "truncate")

    def refuse(kind: str, path: str) -> None:
        if kind in kinds and ("/segments/0000000000000001" in path or "/topics/t/" in path):
            raise OSError(error, "refused", path)

    files.before = refuse
    told(lambda: CHANGES[change](store))
    goes_on(store)
    store.maintain()
    goes_on(store)
    files.before = None
    CHANGES[change](store)
    store.append("t", [b"as ever"])
    found = contents(store, "t")
    goes_on(store)
    store.close()
    with opened(files) as again:
        assert contents(again, "t") == found
        assert again.recovery_report.of("gap") == []
        goes_on(again)


def test_a_journal_of_producers_that_fails_stops_only_its_topic() -> None:
    files, store = two_topics()
    files.before = refusing(("create", "write_at", "sync"), "/topics/t/", errno.EIO)
    with pytest.raises(Poisoned):
        store.append("t", [b"x"], partition=0, producer=ProducerStamp(1, 0, 0))
    goes_on(store)
    assert list(store.failures()) == ["t/0"]
    files.before = None
    store.append("u", [b"x"], partition=0, producer=ProducerStamp(1, 0, 0))
    store.close()
    with opened(files) as again:
        assert len(contents(again, "t")[0]) == 12
        again.append("t", [b"x"], partition=0, producer=ProducerStamp(1, 0, 0))
        assert len(contents(again, "t")[0]) == 13


def test_a_failed_fsync_of_the_wal_stops_the_whole_shard() -> None:
    files, store = two_topics()
    files.before = refusing(("sync",), "/wal/wal-", errno.EIO)
    with pytest.raises(Poisoned):
        store.append("t", [b"x"])
    files.before = None
    with pytest.raises(Poisoned):
        store.append("u", [b"x"])
    assert sorted(store.failures()) == ["t/0", "u/0"]
    store.close()
