"""A cold directory is one store's: another one neither reads it, nor writes or removes there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.errors import CorruptData, LaminaError
from lamina.log.data_directory import DataDirectory
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina.wal import ownership
from lamina.wal.ground import Ground
from lamina_torture.simulated import SimulatedFiles

FIRST = "0000000000000001"


def settings(root: Path) -> WalSettings:
    return WalSettings(
        shards=1, segment_events=10, cold_directory=str(root / "cold"), hot_segments=1
    )


def opened(root: Path, name: str) -> Store:
    return Store(str(root / name), wal=settings(root), tick_ms=1 << 30)


def filled(store: Store, name: bytes, count: int = 35) -> None:
    store.create_topic("t", format="wal")
    store.append("t", [b"%s %d" % (name, number) for number in range(count)])
    store.maintain()


def values(store: Store | ReadOnlyStore) -> list[bytes]:
    return [value for batch in store.scan("t") for value in batch.column("value").to_pylist()]


def cold_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / "cold").rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A root where a store has moved segments to the cold directory."""
    with opened(tmp_path, "a") as store:
        filled(store, b"a")
    assert list((tmp_path / "cold" / FIRST).glob("*.data"))
    return tmp_path


def test_its_own_store_opens_and_reads_it(first: Path) -> None:
    wanted = [b"a %d" % number for number in range(35)]
    with opened(first, "a") as store:
        assert values(store) == wanted
    with ReadOnlyStore(str(first / "a"), wal=settings(first)) as store:
        assert values(store) == wanted


def test_another_store_is_refused_and_nothing_changes(first: Path) -> None:
    before = cold_files(first)
    with Store(str(first / "b"), wal=WalSettings(shards=1), tick_ms=1 << 30) as store:
        filled(store, b"b")
    with pytest.raises(CorruptData, match="another store's: name one of its own") as refused:
        opened(first, "b")
    assert refused.value.path == str(first / "cold" / "broker.id")
    with (
        ReadOnlyStore(str(first / "b"), wal=settings(first)) as reader,
        pytest.raises(CorruptData, match="another store's"),
    ):
        values(reader)
    assert cold_files(first) == before


def test_the_first_wal_topic_of_another_store_is_refused(first: Path) -> None:
    before = cold_files(first)
    with opened(first, "b") as store:
        with pytest.raises(CorruptData, match="another store's"):
            store.create_topic("t", format="wal")
        store.create_topic("plain", format="frame")
        store.append("plain", b"goes on")
    assert cold_files(first) == before


def test_of_two_that_were_open_before_one_gets_it(tmp_path: Path) -> None:
    with opened(tmp_path, "a") as one, opened(tmp_path, "b") as other:
        other.create_topic("gone", format="wal")
        filled(one, b"a")
        before = cold_files(tmp_path)
        filled(other, b"b")
        other.delete_topic("gone")
        assert cold_files(tmp_path) == before
        assert values(other) == [b"b %d" % number for number in range(35)]
        assert values(one) == [b"a %d" % number for number in range(35)]


def test_a_reader_that_was_there_before_the_owner_is_refused(tmp_path: Path) -> None:
    with Store(str(tmp_path / "b"), wal=WalSettings(shards=1), tick_ms=1 << 30) as store:
        filled(store, b"b")
    with ReadOnlyStore(str(tmp_path / "b"), wal=settings(tmp_path)) as reader:
        assert values(reader) == [b"b %d" % number for number in range(35)]
        with opened(tmp_path, "a") as store:
            filled(store, b"a")
        with pytest.raises(CorruptData, match="another store's"):
            values(reader)


def test_one_of_an_older_release_is_adopted(first: Path) -> None:
    (first / "cold" / "broker.id").unlink()
    with opened(first, "a") as store:
        assert len(values(store)) == 35
    marker = (first / "cold" / "broker.id").read_bytes()
    assert marker == (first / "a" / "meta" / "broker.id").read_bytes()


def test_one_with_topics_that_were_never_ours_is_not_adopted(first: Path) -> None:
    (first / "cold" / "broker.id").unlink()
    shutil.copytree(first / "cold" / FIRST, first / "cold" / "0000000000000009")
    before = cold_files(first)
    with pytest.raises(CorruptData, match="has never had"):
        opened(first, "a")
    assert cold_files(first) == before


def test_a_damaged_mark_is_refused_by_its_name(first: Path) -> None:
    (first / "cold" / "broker.id").write_bytes(b"Dear reader")
    with pytest.raises(LaminaError, match=r"cold/broker\.id"):
        opened(first, "a")


def test_no_cold_directory_is_nobodys() -> None:
    home = DataDirectory(SimulatedFiles(), "/d", lambda: 0)
    assert not ownership.check(Ground.of(home, WalSettings(shards=1)))
