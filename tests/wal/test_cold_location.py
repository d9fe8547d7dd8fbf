"""A store remembers its cold directory: what lies there is found, or away, never called lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.errors import CorruptData, InvalidRequest, NewerFormat, Unavailable
from lamina.formats.documents import cold_location
from lamina.formats.documents.cold_location import ColdLocation
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from lamina_torture.simulated import SimulatedFiles

COUNT = 35
NOBODY_SAYS = WalSettings(shards=1, segment_events=10, hot_segments=1)


def settings(cold: Path) -> WalSettings:
    return WalSettings(shards=1, segment_events=10, hot_segments=1, cold_directory=str(cold))


def opened(path: Path, wal: WalSettings = NOBODY_SAYS, **more: Any) -> Store:
    return Store(str(path), wal=wal, tick_ms=1 << 30, **more)


def read(store: Store | ReadOnlyStore) -> list[int]:
    return [offset for batch in store.scan("t") for offset in batch.column("offset").to_pylist()]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store most of whose records lie in the cold directory beside it."""
    with opened(tmp_path / "data", settings(tmp_path / "cold")) as store:
        store.create_topic("t", format="wal")
        store.append("t", [b"%d" % number for number in range(COUNT)])
        store.maintain()
    assert len(list((tmp_path / "cold").rglob("*.data"))) > 1
    return tmp_path / "data"


ALL = list(range(1, COUNT + 1))


def test_every_way_in_finds_it_without_being_told(data: Path) -> None:
    with ReadOnlyStore(str(data), wal=NOBODY_SAYS) as reader:
        assert read(reader) == ALL
    for number in range(2):
        with opened(data) as store:
            assert read(store) == ALL
            assert store.gaps("t") == ()
            assert store.group("t", f"g{number}").poll(100).num_rows == COUNT
    with opened(data) as store:
        store.append("t", [b"more"] * 30)
        store.maintain()
    assert len(list((data.parent / "cold").rglob("*.data"))) > 3, "it goes on moving segments there"


def test_a_reader_that_was_there_before_finds_it(tmp_path: Path) -> None:
    with opened(tmp_path / "data", settings(tmp_path / "cold")) as store:
        store.create_topic("t", format="wal")
        with ReadOnlyStore(str(tmp_path / "data"), wal=NOBODY_SAYS) as reader:
            assert read(reader) == []
            store.append("t", [b"%d" % number for number in range(COUNT)])
            store.maintain()
            assert read(reader) == ALL


def test_without_it_nothing_is_opened_and_nothing_is_called_lost(data: Path) -> None:
    away = data.parent / "unmounted"
    (data.parent / "cold").rename(away)
    for empty in (False, True):
        if empty:
            (data.parent / "cold").mkdir()  # the point where it would be mounted
        with pytest.raises(Unavailable, match="cold is not there: mount it"):
            opened(data)
        with (
            ReadOnlyStore(str(data), wal=NOBODY_SAYS) as reader,
            pytest.raises(Unavailable, match="cold is not there"),
        ):
            read(reader)
    (data.parent / "cold").rmdir()
    away.rename(data.parent / "cold")
    with opened(data) as store:
        assert read(store) == ALL
        assert store.gaps("t") == ()


def test_what_is_given_up_is_lost_and_the_rest_is_served(data: Path) -> None:
    shutil.rmtree(data.parent / "cold")
    (data / "meta/cold.json").unlink()
    with opened(data) as store:
        (gap,) = store.gaps("t")
        assert (gap.first, gap.reason) == (1, "lost")
        start = gap.end
        assert sum(batch.num_rows for batch in store.scan("t", 0, start)) == COUNT + 1 - start


def test_it_moves_with_its_segments_and_not_without_them(data: Path) -> None:
    cold, other = data.parent / "cold", data.parent / "other"
    with pytest.raises(InvalidRequest, match="has not its segments"):
        opened(data, settings(other))
    shutil.copytree(cold, other)
    with opened(data, settings(other)) as store:
        assert read(store) == ALL
    shutil.rmtree(cold)
    with opened(data) as store:
        assert read(store) == ALL
    assert cold_location.decode((data / "meta/cold.json").read_bytes()).path == str(other)


def test_one_that_never_held_anything_is_exchanged_freely(tmp_path: Path) -> None:
    with opened(tmp_path / "data", settings(tmp_path / "cold")) as store:
        store.create_topic("t", format="wal")
        store.append("t", [b"%d" % number for number in range(COUNT)])
        store.maintain()
        store.delete_topic("t")
    assert not [path for path in (tmp_path / "cold").iterdir() if path.is_dir()]
    with opened(tmp_path / "data", settings(tmp_path / "other")) as store:
        store.create_topic("t", format="wal")


def test_a_copy_reads_the_originals_and_writes_there_only_when_told(data: Path) -> None:
    copy = data.parent / "copy"
    shutil.copytree(data, copy)
    with ReadOnlyStore(str(copy), wal=NOBODY_SAYS) as reader:
        assert read(reader) == ALL
    with pytest.raises(InvalidRequest, match="copied or moved from"):
        opened(copy)
    own = data.parent / "own"
    shutil.copytree(data.parent / "cold", own)
    with opened(copy, settings(own)) as store:
        assert read(store) == ALL
    with opened(copy) as store:
        assert read(store) == ALL
    assert cold_location.decode((copy / "meta/cold.json").read_bytes()) == ColdLocation(
        str(own), str(copy)
    )


def test_a_damaged_file_is_named_and_written_again_when_somebody_knows(data: Path) -> None:
    path = data / "meta/cold.json"
    good = path.read_bytes()
    path.write_bytes(b"Dear reader")
    for opening in (opened, lambda path: read(ReadOnlyStore(str(path), wal=NOBODY_SAYS))):
        with pytest.raises(CorruptData, match="name the cold directory") as refused:
            opening(data)
        assert refused.value.path == str(path)
    with opened(data, settings(data.parent / "cold")) as store:
        assert read(store) == ALL
    assert path.read_bytes() == good
    kept = [each.read_bytes() for each in (data / "quarantine").rglob("*") if each.is_file()]
    assert b"Dear reader" in kept


def test_a_flipped_bit_costs_nothing_and_a_newer_file_is_refused(data: Path) -> None:
    path = data / "meta/cold.json"
    good = path.read_bytes()
    for bit in (3, 100, 8 * len(good) - 20):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bad)
        with opened(data) as store:
            assert read(store) == ALL
    newer = b'{"version": 2, "roots": []}\n'
    path.write_bytes(newer)
    for wal in (NOBODY_SAYS, settings(data.parent / "cold")):
        with pytest.raises(NewerFormat, match=r"cold\.json"):
            opened(data, wal)
    assert path.read_bytes() == newer


def test_a_store_of_an_earlier_release_remembers_it_when_it_is_named_once(data: Path) -> None:
    (data / "meta/cold.json").unlink()
    with opened(data, settings(data.parent / "cold")) as store:
        assert read(store) == ALL
    with opened(data) as store:
        assert read(store) == ALL


def test_it_is_remembered_durably_before_the_first_segment_moves() -> None:
    files = SimulatedFiles()
    seen: list[bool] = []

    def look(kind: str, path: str) -> None:
        if kind == "create" and path.startswith("/cold/0000"):
            files.before = None
            left = files.snapshot().crash("dropped")
            seen.append(left.exists("/srv/data/meta/cold.json"))
            files.before = look

    store = opened(Path("/srv/data"), settings(Path("/cold")), files=files)
    store.create_topic("t", format="wal")
    store.append("t", [b"%d" % number for number in range(COUNT)])
    files.before = look
    store.maintain()
    assert seen
    assert all(seen)
    store.close()


def test_the_file_is_decoded_strictly() -> None:
    good = cold_location.encode(ColdLocation("/a", "/b"))
    assert cold_location.decode(good) == ColdLocation("/a", "/b")
    for bad in (b"", b"{}", cold_location.encode(ColdLocation("", "/b")), good[:-5]):
        with pytest.raises(CorruptData):
            cold_location.decode(bad)
