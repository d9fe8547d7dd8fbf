"""Derived files are caches: deleted, emptied, cut or changed, wal topics give the same answers.

A snapshot is one of two; any one file may be lost. The directory was closed cleanly, so the WAL
holds nothing of it any more: deletes and evictions are known from the snapshots alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.api import StoreApi
from lamina.config import WalSettings
from lamina.errors import NewerFormat
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.support.contract import plain
from tests.support.directories import START_MS, Clock, opened, rows
from tests.wal.stores import crash

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
TIMES = [5, 1, 9, 3, 9, 2, 14, 11, 12, 30, 18, 20, 4, 29, 31, 27]
LOOKED_UP = (-1, 5, 6, 9, 10, 14, 15, 30, 31, 32)
TAGS = (b"a", None, b"ab")
VERSION_BYTES = range(8, 12)
"""Where a snapshot says its version and flags, which no checksum covers: 2 is a newer format."""


def settings(path: Path) -> WalSettings:
    return WalSettings(
        shards=2, segment_events=4, cold_directory=str(path / "cold"), hot_segments=1
    )


def open_at(path: Path, clock: Clock | None = None) -> Store:
    return opened(path, clock, wal=settings(path))


def look_at(path: Path) -> ReadOnlyStore:
    return ReadOnlyStore(str(path), wal=settings(path))


def answers(store: StoreApi) -> dict[str, Any]:
    """Everything that a small directory can be asked."""
    found = {}
    for topic in store.topics():
        first, end = store.earliest_offset(topic), store.latest_offset(topic)
        diff = store.diff(topic, 0, 1, exclude_node=b"n")
        found[topic] = (
            rows(store, topic),
            [plain(store.diff(topic, 0, at, limit=1).records) for at in range(first, end)],
            (first, end, store.describe_topic(topic).epoch),
            [store.offset_for_time(topic, 0, START_MS + ahead) for ahead in LOOKED_UP],
            [(gap.first, gap.end, gap.reason) for gap in store.gaps(topic)],
            (diff.records.column("offset").to_pylist(), diff.next_offset, diff.caught_up),
            [(gap.first, gap.end, gap.reason) for gap in diff.gaps],
        )
    return found


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Sealed segments, cold and hot, an active one, deleted and evicted records, a dead topic."""
    root = Path(tempfile.mkdtemp(prefix="lamina-derived-", dir=MEMORY))
    path = root / "data"
    with open_at(path) as store:
        store.create_topic("gone", format="wal")
        store.append("gone", [b"never again"])
        for topic in ("t", "u"):
            store.create_topic(topic, format="wal")
            batch = [
                {
                    "value": b"%d" % number,
                    "timestamp": START_MS + time,
                    "tag": TAGS[number % 3],
                    "node": b"n" if number % 2 else None,
                }
                for number, time in enumerate(TIMES)
            ]
            store.append(topic, batch)
        store.maintain()
        store.delete("t", tag=b"ab")
        store.delete("t", offsets=[2, 13])
        store.delete_topic("gone")
        store.alter_topic("u", {"retention.records": 12})
        store.maintain()
        store.alter_topic("u", {"retention.records": -1})
        store.delete("u", before=8)
        store.append("u", [b"last"])
    yield path
    shutil.rmtree(root)


@pytest.fixture
def copy_of(made: Path) -> Iterator[Callable[[], Path]]:
    """Makes a fresh copy, in place of the one before, so that paths stay the same."""
    root = Path(tempfile.mkdtemp(prefix="lamina-derived-", dir=MEMORY))

    def copy() -> Path:
        shutil.rmtree(root / "data", ignore_errors=True)
        shutil.copytree(made, root / "data")
        return root / "data"

    yield copy
    shutil.rmtree(root)


def derived_files(path: Path) -> list[str]:
    kinds = ("*.idx", "snapshot-*.bin", "CURRENT")
    return sorted(str(file.relative_to(path)) for kind in kinds for file in path.rglob(kind))


def test_there_is_something_to_get_wrong(made: Path) -> None:
    names = derived_files(made)
    assert sum(name.startswith("cold/") for name in names) >= 2
    assert sum(name.startswith("segments/") for name in names) >= 3
    assert sum(name.startswith("meta/") for name in names) == 2
    assert any(name.endswith("CURRENT") for name in names)
    with look_at(made) as store:
        found = answers(store)
    assert len(found["t"][0]) == 16 - 5 - 2, "deleted by tag, and by offset"
    assert found["u"][4] == [(1, 5, "retention"), (5, 8, "trim")]
    assert found["u"][6] == [(1, 5, "retention")]


@pytest.mark.parametrize("accident", ["deleted", "emptied"])
def test_a_lost_file_changes_no_answer(copy_of: Callable[[], Path], accident: str) -> None:
    with open_at(copy_of()) as store:
        expected = answers(store)
    for name in derived_files(copy_of()):
        path = copy_of()
        right = (path / name).read_bytes()
        (path / name).unlink() if accident == "deleted" else (path / name).write_bytes(b"")
        with look_at(path) as beside:
            assert answers(beside) == expected, name
        for _ in range(2):
            with open_at(path) as store:
                assert answers(store) == expected, name
                store.maintain()
                assert answers(store) == expected, name
            if name.endswith(".idx"):
                assert (path / name).read_bytes() == right, "made again, deleted flags and all"


def check(path: Path, name: str, changed: bytes, expected: dict[str, Any], *, write: bool) -> bool:
    """Puts other bytes into a file and asks again; tells whether the store refuses to open."""
    (path / name).write_bytes(changed)
    try:
        with open_at(path) if write else look_at(path) as store:
            assert answers(store) == expected
    except NewerFormat:
        assert (path / name).read_bytes() == changed, "refused, not touched"
        return True
    return False


def damaged(whole: bytes, *, every: int) -> Iterator[tuple[str, int, bytes]]:
    """Yields a file cut at each length and with each byte changed; of all these every n-th."""
    for size in range(0, len(whole), every):
        yield "cut", size, whole[:size]
    for position in range(0, len(whole), every):
        for change in (0x01, 0xFF) if every == 1 else ((0x01, 0xFF)[position % 2],):
            changed = bytearray(whole)
            changed[position] ^= change
            yield "changed", position, bytes(changed)


def damage_all(copy_of: Callable[[], Path], *, write: bool, every: int) -> None:
    path = copy_of()
    with look_at(path) as store:
        expected = answers(store)
    for name in derived_files(path):
        whole = (path / name).read_bytes()
        for what, where, content in damaged(whole, every=every):
            try:
                refused = check(path, name, content, expected, write=write)
            except Exception as error:
                error.add_note(f"{name} {what} at {where}")
                raise
            if refused:
                is_version = "snapshot" in name and where in VERSION_BYTES and what == "changed"
                assert is_version, f"{name} {what} at {where} is refused"
            if write:
                path = copy_of()
        (path / name).write_bytes(whole)


def test_no_cut_and_no_changed_byte_changes_an_answer(copy_of: Callable[[], Path]) -> None:
    damage_all(copy_of, write=True, every=13)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("write", [False, True])
def test_no_cut_and_no_changed_byte_at_all(copy_of: Callable[[], Path], write: bool) -> None:
    damage_all(copy_of, write=write, every=1)


def test_a_wrong_time_never_lets_eviction_take_what_is_young(
    copy_of: Callable[[], Path],
) -> None:
    clock = Clock(START_MS + 110)
    path = copy_of()
    young = {row["offset"] for row in rows(look_at(path), "t") if row["timestamp"] >= START_MS + 10}
    for name in derived_files(path):
        if not name.endswith(".idx"):
            continue
        whole = (path / name).read_bytes()
        for position in (at for at in range(len(whole)) if at % 20 in (8, 9, 15)):
            path = copy_of()
            changed = bytearray(whole)
            changed[position] ^= 0x81
            (path / name).write_bytes(changed)
            with open_at(path, clock) as store:
                store.alter_topic("t", {"retention.ms": 100})
                store.maintain()
                left = {row["offset"] for row in rows(store, "t")}
                assert young <= left, f"{name} byte {position}"


def test_a_bad_snapshot_is_not_one_of_the_two_that_are_kept(tmp_path: Path) -> None:
    """One after the other may go bad, as long as the store can write a new one in between."""

    def newest() -> Path:
        found = tmp_path.glob("meta/snapshot-*.bin")
        return max(found, key=lambda file: int(file.stem.removeprefix("snapshot-")))

    def keep_busy(store: Store, rounds: int = 3) -> None:
        for _ in range(rounds):
            store.append("busy", [b"x" * 300] * 20)
            store.maintain()

    wal = WalSettings(shards=1, wal_bytes=4096, segment_events=10)
    with opened(tmp_path, wal=wal) as store:
        store.create_topic("busy", format="wal")
        store.create_topic("idle", format="wal")
        store.append("idle", [b"%d" % number for number in range(50)])
        store.delete("idle", before=15)
        store.delete("idle", offsets=[33])
        keep_busy(store)
        store.alter_topic("idle", {"retention.records": 25})
        keep_busy(store)
        store.alter_topic("idle", {"retention.records": -1})
        keep_busy(store)
        expected = rows(store, "idle"), store.gaps("idle")
        assert 10 < len(expected[0]) < 34, "something was evicted"
    for _ in range(3):
        newest().write_bytes(b"bad")
        store = opened(tmp_path, wal=wal)
        assert (rows(store, "idle"), store.gaps("idle")) == expected
        keep_busy(store, rounds=1)
        crash(store)
    kept = [file.read_bytes() for file in tmp_path.glob("quarantine/**/*") if file.is_file()]
    assert kept.count(b"bad") == 3, "what could not be used is set aside, and not removed"
