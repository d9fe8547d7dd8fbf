"""What checkpoints, snapshots and openings cost, and that the cheap way loses nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.storage.files import LocalFile, LocalFiles
from lamina.store.store import Store
from lamina.wal import segments
from lamina.wal.compactor import UNSETTLED_MAX
from lamina.wal.engine import ROTATE_BYTES, SEGMENTS_PER_SYNC, TOPICS_PER_MARK, WalEngine
from lamina.wal.wal_partition import WalPartition
from tests.wal.stores import Clock, fill, numbered, opened, values


class WatchedFiles(LocalFiles):
    """The local files; every sync is noted, those of the paths in `failing` fail."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.open_files: set[int] = set()
        self.most_open = 0

    def create(self, path: str) -> LocalFile:
        return self._watch(super().create(path), path)

    def open(self, path: str) -> LocalFile:
        return self._watch(super().open(path), path)

    def sync_directory(self, path: str) -> None:
        self.calls.append(("sync_directory", path))
        super().sync_directory(path)

    def _watch(self, file: LocalFile, path: str) -> LocalFile:
        begin, sync, close = file.begin_sync, file.sync, file.close
        watched: Any = file

        def begin_sync() -> None:
            self.calls.append(("begin_sync", path))
            begin()

        def sync_it() -> None:
            self.calls.append(("sync", path))
            if path in self.failing:
                raise OSError(errno.EIO, "the disk is broken", path)
            sync()

        def close_it() -> None:
            self.open_files.discard(id(file))
            close()

        watched.begin_sync, watched.sync, watched.close = begin_sync, sync_it, close_it
        self.open_files.add(id(file))
        self.most_open = max(self.most_open, len(self.open_files))
        return file


def engine_of(store: Store) -> WalEngine:
    assert store._write_ahead.engine is not None
    return store._write_ahead.engine


def segment(path: Path, topic_id: int, suffix: str = "data") -> str:
    return str(path / f"segments/{topic_id:016x}/seg-{1:020}.{suffix}")


def with_topics(path: Path, count: int, files: WatchedFiles) -> Store:
    store = opened(path, files=files)
    for number in range(1, count + 1):
        store.create_topic(f"t{number}", format="wal")
        store.append(f"t{number}", b"of %d" % number)
    return store


def test_a_checkpoint_begins_all_files_of_some_topics_before_it_waits_for_one(
    tmp_path: Path,
) -> None:
    files = WatchedFiles()
    with with_topics(tmp_path, 5, files) as store:
        files.calls.clear()
        store.maintain()
        ours = {
            segment(tmp_path, topic, suffix) for topic in range(1, 6) for suffix in ("data", "idx")
        }
        calls = [(what, path) for what, path in files.calls if path in ours]
        first_sync = next(row for row, (what, _) in enumerate(calls) if what == "sync")
        assert {path for what, path in calls[:first_sync] if what == "begin_sync"} == ours
        assert sorted(path for what, path in calls if what == "sync") == sorted(ours)


def test_a_checkpoint_of_very_many_topics_opens_few_files_at_a_time(tmp_path: Path) -> None:
    files = WatchedFiles()
    count = 2 * TOPICS_PER_MARK + 3
    with with_topics(tmp_path, count, files) as store:
        before = files.most_open = len(files.open_files)
        store.maintain()
        assert files.most_open <= before + 2 * TOPICS_PER_MARK + 2
        assert {store.describe_topic(f"t{n}").partitions[0].segments for n in range(1, count)} == {
            1
        }


@pytest.mark.parametrize("suffix", ["data", "idx"])
def test_a_topic_whose_checkpoint_fails_holds_nobody_up_and_is_tried_again(
    tmp_path: Path, suffix: str
) -> None:
    files = WatchedFiles()
    with with_topics(tmp_path, 3, files) as store:
        files.failing.add(segment(tmp_path, 2, suffix))
        store.maintain()
        segments = [store.describe_topic(f"t{n}").partitions[0].segments for n in (1, 2, 3)]
        assert segments == [1, 0, 1]
        assert values(store, "t2") == {1: b"of 2"}
        assert not os.path.exists(segment(tmp_path, 2))
        files.failing.clear()
        store.append("t2", b"more")
        store.maintain()
        assert store.describe_topic("t2").partitions[0].segments == 1
    with opened(tmp_path) as store:
        assert values(store, "t2") == {1: b"of 2", 2: b"more"}


def test_a_snapshot_leaves_a_large_wal_file_behind_and_the_next_one_frees_it(
    tmp_path: Path,
) -> None:
    wal = WalSettings(shards=1)
    with opened(tmp_path, wal=wal) as store:
        store.create_topic("t", format="wal")
        store.append("t", bytes(ROTATE_BYTES))
        store.maintain()
        assert sorted(os.listdir(tmp_path / "wal")) == ["CURRENT", "wal-1.log", "wal-2.log"]
        store.append("t", b"small")
        store.maintain()
        assert sorted(os.listdir(tmp_path / "wal")) == ["CURRENT", "wal-2.log"]
        store.append("t", b"newest")
        store.maintain()
        assert sorted(os.listdir(tmp_path / "wal")) == ["CURRENT", "wal-2.log"]
    with opened(tmp_path, wal=wal) as store:
        assert list(values(store)) == [1, 2, 3]


def test_opening_syncs_only_segments_that_no_mark_vouches_for(tmp_path: Path) -> None:
    wal = WalSettings(shards=1)
    with opened(tmp_path, wal=wal) as store:
        for name in ("old", "marked", "copied"):
            store.create_topic(name, format="wal")
        store.append("old", bytes(ROTATE_BYTES))
        store.maintain()
        store.append("marked", b"1")
        store.maintain()
        store.append("marked", b"2")
        store.append("copied", b"3")
        engine, copied = engine_of(store), store._partitions["copied", 0]
        assert isinstance(copied, WalPartition)
        assert engine._compactor.copy(copied) is not None
        store._disown()  # as if it were killed here, before the mark
    files = WatchedFiles()
    with opened(tmp_path, wal=wal, files=files) as store:
        old, marked, copied_to = (os.path.dirname(segment(tmp_path, each)) for each in (1, 2, 3))
        assert {("sync_directory", marked), ("sync_directory", copied_to)} <= set(files.calls)
        synced = [path for what, path in files.calls if what == "sync" and "/segments/" in path]
        assert synced == [segment(tmp_path, 3)]
        assert not [path for _, path in files.calls if path.startswith(old)]
        assert values(store, "marked") == {1: b"1", 2: b"2"}
        assert values(store, "copied") == {1: b"3"}


def test_opening_walks_no_segment_that_a_mark_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 25)
        store.maintain()
        fill(store, 25, 27)
        store._disown()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a segment is walked")

    monkeypatch.setattr(segments, "walk", refuse)
    with opened(tmp_path) as store:
        assert values(store) == numbered(1, 27)
        assert store.describe_topic("t").partitions[0].segments == 3


def test_new_segments_of_a_topic_are_all_begun_before_one_is_waited_for(tmp_path: Path) -> None:
    files = WatchedFiles()
    with opened(tmp_path, files=files) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 45)
        files.calls.clear()
        store.maintain()
        mine = [(what, path) for what, path in files.calls if "/segments/" in path]
        data = {path for _, path in mine if path.endswith(".data")}
        assert len(data) == 5
        first_sync = next(row for row, (what, _) in enumerate(mine) if what == "sync")
        assert {path for what, path in mine[:first_sync] if path.endswith(".data")} == data
        synced = [path for what, path in mine if what == "sync" and path.endswith(".data")]
        assert sorted(synced) == sorted(data)
        folder = os.path.dirname(min(data))
        assert mine.count(("sync_directory", folder)) == 1
        assert mine[-1] == ("sync_directory", folder), "names last, when all bytes are there"


def test_a_copy_of_very_many_segments_opens_few_files_at_a_time(tmp_path: Path) -> None:
    files = WatchedFiles()
    wal = WalSettings(shards=1, segment_events=1)
    with opened(tmp_path, wal=wal, files=files) as store:
        for name in ("a", "b", "c", "d"):
            store.create_topic(name, format="wal")
            store.append(name, [b"%d" % number for number in range(UNSETTLED_MAX + 20)])
        before = files.most_open = len(files.open_files)
        store.maintain()
        assert files.most_open <= before + 2 * (UNSETTLED_MAX + SEGMENTS_PER_SYNC)
        assert len(values(store, "d")) == UNSETTLED_MAX + 20


def test_a_few_records_wait_for_a_rotation_or_their_time_and_many_do_not(tmp_path: Path) -> None:
    clock = Clock()
    wal = WalSettings(shards=1, checkpoint_ms=1000, checkpoint_min_bytes=4096, snapshot_ms=60_000)
    with opened(tmp_path, wal=wal, now_ms=clock) as store:
        for name in ("small", "large"):
            store.create_topic(name, format="wal")
        engine = store._write_ahead.engine
        assert engine is not None
        store.append("small", b"few")
        store.append("large", [b"v" * 100] * 50)

        def segments() -> tuple[int, int]:
            small, large = (store.describe_topic(name) for name in ("small", "large"))
            return small.partitions[0].segments, large.partitions[0].segments

        engine.maintain(force=False)
        assert segments() == (0, 0)
        clock.ms += 1000
        engine.maintain(force=False)
        assert segments() == (0, 1)
        clock.ms += 59_000
        engine.maintain(force=False)
        assert segments() == (1, 1)
        store.append("small", b"again")
        assert values(store, "small") == {1: b"few", 2: b"again"}


def taken_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_a_wal_file_has_the_space_of_a_full_one_until_it_is_left(tmp_path: Path) -> None:
    full = 8 << 20
    wal = WalSettings(shards=1, wal_bytes=full)
    first, second = (tmp_path / "wal" / f"wal-{index}.log" for index in (1, 2))
    with opened(tmp_path, wal=wal) as store:
        store.create_topic("t", format="wal")
        store.append("t", b"small")
        assert taken_bytes(first) >= full
        assert first.stat().st_size < 1 << 20
        store._disown()
    with opened(tmp_path, wal=wal) as store:
        store.append("t", bytes(ROTATE_BYTES))
        assert taken_bytes(first) >= full, "also after a kill"
        store.append("t", bytes(full - ROTATE_BYTES // 2))
        assert taken_bytes(first) < 2 * ROTATE_BYTES
        assert taken_bytes(second) >= full
        assert values(store)[1] == b"small"
    left = [each for each in (first, second) if each.exists()]
    assert sum(taken_bytes(each) for each in left) < full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_without_the_space_of_a_full_wal_file_it_grows_as_far_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real, taken = LocalFile.reserve, list[int]()

    def reserve(file: LocalFile, size: int) -> None:
        real(file, size // 2)  # a file system may keep what it had found until then
        taken.append(size)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(LocalFile, "reserve", reserve)
    wal = WalSettings(shards=1, wal_bytes=8 << 20)
    with opened(tmp_path, wal=wal) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 3)
        assert taken == [8 << 20]
        assert taken_bytes(tmp_path / "wal" / "wal-1.log") < 1 << 20
        assert values(store) == numbered(1, 3)
