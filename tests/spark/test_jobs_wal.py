"""The bulk jobs on archived wal topics: archived, joined, and erased from every tier."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina
from lamina.config import WalSettings
from lamina.errors import InvalidRequest
from lamina.formats.strm.segment import read_from
from lamina.spark.jobs import archive, bulk_lane, compact, erase, verify
from lamina.storage import paths
from lamina.storage.files import LocalFiles
from lamina.store.store import Store
from tests.spark.bulk import CONFIG, LARGE
from tests.spark.logs import stored
from tests.spark.tiers import append, by_hand

ALONE: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
COUNT, GONE = 1000, b"key 13"


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_alone(_: Any, tasks: Any, work: Any, progress: Any) -> list[Any]:
        return [work(each) for task in tasks for each in task]

    monkeypatch.setattr(bulk_lane, "run", run_alone)


def make(path: Path, *, kept_bytes: int = -1, **more: Any) -> None:
    with by_hand(path, archive=str(path / "cold")) as store:
        config = {**CONFIG, "local.retention.bytes": kept_bytes, **more}
        store.create_topic("w", format="wal", config=config)
        append(store, "w", "wal", 0, COUNT)
        store.roll("w")
        append(store, "w", "wal", COUNT, 250)


def held(where: str, **more: Any) -> list[tuple[Any, ...]]:
    with lamina.open(where, read_only=True, **more) as store:
        return stored(store, "w", 0, "offset", "tag", "value")


def tags_of(path: Path) -> set[Any]:
    return {tag for batch in read_from(path.read_bytes()) for tag in batch["tag"].to_pylist()}


def test_archive_and_compact_take_wal_topics_as_they_take_others(tmp_path: Path) -> None:
    make(tmp_path)
    data, before = str(tmp_path / "data"), held(str(tmp_path / "data"))
    planned = archive.run(ALONE, data, dry_run=True, topics=["w"])
    assert int(planned.totals["objects"]) > 1
    done = archive.run(ALONE, data, topics=["w"])
    assert int(done.totals["records"]) >= COUNT
    assert archive.run(ALONE, data).totals["objects"] == 0, "a second run finds nothing"
    archived = held(f"file://{tmp_path / 'cold'}")
    assert archived == before[: len(archived)]
    with by_hand(tmp_path) as store:
        store.alter_topic("w", LARGE)
    joined = compact.run(ALONE, data, topics=["w"])
    assert int(str(joined.totals["objects_in"])) > int(str(joined.totals["objects_out"])) == 1
    assert held(f"file://{tmp_path / 'cold'}") == archived
    assert held(data) == before
    with pytest.raises(InvalidRequest, match="have no key"):
        compact.run(ALONE, data, keep_last=True)


@pytest.mark.parametrize("kept_bytes", [-1, 0])
@pytest.mark.parametrize("where", ["remembered", "named"])
def test_erase_leaves_no_byte_of_a_tag_in_any_tier(
    tmp_path: Path, kept_bytes: int, where: str
) -> None:
    make(tmp_path, kept_bytes=kept_bytes)
    data, cold = str(tmp_path / "data"), str(tmp_path / "cold")
    archive.run(ALONE, data)
    with by_hand(tmp_path) as store:
        store.archive()  # removes local copies, where none are kept
        assert store.delete("w", 0, tag=b"key 14") > 0, "hidden, and still in every tier"
    before = held(data)
    stays = [row for row in before if row[1] != GONE]
    wanted: dict[str, Any] = {"tags": [GONE, b"key 14"]}
    planned = erase.run(ALONE, data, None, dry_run=True, **wanted)
    by_tier = {str(row["tier"]): row for row in planned.rows}
    assert int(str(by_tier["cold"]["erased"])) > 0
    done = erase.run(ALONE, data, cold if where == "named" else None, **wanted)
    assert not done.has_failed, done.rows
    assert done.totals["remains"] == 0
    assert held(data) == stays
    for path in objects_of(tmp_path):
        assert not {GONE, b"key 14"} & tags_of(path), path
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file() and path.suffix in (".data", ".log"):
            assert b"key 13" not in path.read_bytes(), path
    archived = held(f"file://{cold}")
    assert archived == stays[: len(archived)]
    assert not verify.run(ALONE, data).rows
    again = erase.run(ALONE, data, **wanted)
    assert (again.totals["erased"], again.has_failed) == (0, False)
    with by_hand(tmp_path) as store:
        append(store, "w", "wal", COUNT + 250, 250)
    assert held(data)[: len(stays)] == stays


def test_a_tag_that_is_named_as_a_key_remains_and_says_so(tmp_path: Path) -> None:
    with Store(str(tmp_path / "data")) as store:
        store.create_topic("w", format="wal")
        store.append("w", [{"value": b"login", "tag": b"user-1"}, {"value": b"x", "tag": b"2"}])
        assert store.delete("w", 0, tag=b"user-1") == 1
    failed = erase.run(ALONE, str(tmp_path / "data"), None, keys=[b"user-1"])
    assert failed.has_failed
    assert "--tag" in failed.advice
    done = erase.run(ALONE, str(tmp_path / "data"), None, keys=[b"user-1"], tags=[b"user-1"])
    assert (done.has_failed, done.advice, done.totals["remains"]) == (False, "", 0)


def objects_of(path: Path) -> list[Path]:
    found = sorted((path / "cold" / "data" / "w" / "0").glob("*.seg"))
    assert found
    return found


def test_erase_refuses_to_leave_the_archive_of_a_wal_topic_out(tmp_path: Path) -> None:
    make(tmp_path)
    data = str(tmp_path / "data")
    archive.run(ALONE, data)
    with pytest.raises(InvalidRequest, match="w is archived"):
        erase.run(ALONE, data, "", tags=[GONE])
    with by_hand(tmp_path, archive="") as store:
        store.alter_topic("w", {"remote.storage.enable": False})
    assert objects_of(tmp_path)
    with pytest.raises(InvalidRequest, match="has an archive"):
        erase.run(ALONE, data, "", tags=[GONE])


@pytest.mark.parametrize("kept_bytes", [-1, 0])
def test_erase_reaches_the_objects_of_a_topic_that_is_archived_no_more(
    tmp_path: Path, kept_bytes: int
) -> None:
    make(tmp_path, kept_bytes=kept_bytes)
    data = str(tmp_path / "data")
    archive.run(ALONE, data)
    with by_hand(tmp_path) as store:
        store.archive()
        store.alter_topic("w", {"remote.storage.enable": False})
    stays = [row for row in held(data) if row[1] != GONE]
    assert any(GONE in tags_of(path) for path in objects_of(tmp_path))
    planned = erase.run(ALONE, data, tags=[GONE], dry_run=True)
    assert [int(str(row["erased"])) > 0 for row in planned.rows if row["tier"] == "cold"] == [True]
    done = erase.run(ALONE, data, tags=[GONE])
    assert (done.has_failed, done.totals["remains"]) == (False, 0), done.rows
    assert held(data) == stays
    assert not any(GONE in tags_of(path) for path in objects_of(tmp_path))


def test_erase_reaches_the_cold_directory_and_says_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = str(tmp_path / "away")
    settings = WalSettings.parse(
        {"segment.max.bytes": 8 << 10, "cold.dir": away, "hot.segments": 1}
    )
    data = str(tmp_path / "data")
    with Store(data, wal=settings, tick_ms=1 << 30) as store:
        store.create_topic("w", format="wal")
        append(store, "w", "wal", 0, COUNT)
        store.roll("w")
        store.maintain()
    assert any(b"key 13" in path.read_bytes() for path in Path(away).rglob("*.data"))
    with Store(data, wal=settings, tick_ms=1 << 30) as store:
        done = erase.run(ALONE, store, tags=[GONE])
    assert not done.has_failed, done.rows
    found = list(Path(away).rglob("*.data"))
    assert found
    assert not any(b"key 13" in path.read_bytes() for path in found)
    (row,) = [row for row in done.rows if row["tier"] == "wal"]
    assert int(str(row["files"])) >= len(found)


def test_a_backup_is_erased_without_its_archive_being_taken_from_the_original(
    tmp_path: Path,
) -> None:
    make(tmp_path)
    data, backup = str(tmp_path / "data"), str(tmp_path / "backup")
    archive.run(ALONE, data)
    shutil.copytree(data, backup)
    done = erase.run(ALONE, data, tags=[GONE], backups=[backup])
    assert not done.has_failed, done.rows
    assert {str(row["where"]) for row in done.rows} == {data, backup}
    with by_hand(tmp_path) as store:
        append(store, "w", "wal", COUNT + 250, 250)
        store.roll("w")
        store.archive()
        assert [each.last_error for each in store.tier_status()] == [""]


def test_copies_that_were_set_aside_go_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    aside = tmp_path / "data" / "quarantine" / "w" / "0"
    aside.mkdir(parents=True)
    (aside / "seg-1.data.0.aaaa").write_bytes(b"damaged bytes of key 13")
    synced: list[str] = []
    honest = LocalFiles.sync_directory

    def noting(self: LocalFiles, path: str) -> None:
        if os.path.abspath(path) == str(aside):
            assert not list(aside.iterdir()), "it is synced when the copy is gone"
            synced.append(path)
        honest(self, path)

    monkeypatch.setattr(LocalFiles, "sync_directory", noting)
    done = erase.run(ALONE, str(tmp_path / "data"), tags=[GONE])
    assert not done.has_failed, done.rows
    assert synced


@pytest.mark.parametrize("topic", ["k", "f", "w", "wal"])
def test_erase_of_one_topic_leaves_the_others_alone_and_does_not_fail_for_them(
    tmp_path: Path, topic: str
) -> None:
    formats = {"k": "keratin", "f": "frame", "w": "wal", "v": "wal", "wal": "keratin"}
    folders = {"w": "wal/segments-0000000000000001-", "v": "wal/segments-0000000000000002-"}
    data, aside = tmp_path / "data", tmp_path / "data" / "quarantine"
    with by_hand(tmp_path, archive=str(tmp_path / "cold")) as store:
        for name, format_name in formats.items():
            store.create_topic(name, format=format_name, config=CONFIG)
            append(store, name, format_name, 0, 250)
            store.roll(name)
            append(store, name, format_name, 250, 250)
        store.archive()
    copies = {}
    for name in formats:
        copies[name] = aside / f"{folders.get(name, f'{name}/0/')}seg-1.data.0.aaaa"
        copies[name].parent.mkdir(parents=True, exist_ok=True)
        copies[name].write_bytes(b"damaged bytes of key 13")
    done = erase.run(ALONE, str(data), keys=[GONE], tags=[GONE], topics=[topic])
    assert not done.has_failed, done.rows
    assert {name for name, path in copies.items() if not path.exists()} == {topic}
    with lamina.open(str(data), read_only=True) as store:
        for name, format_name in formats.items():
            column = "tag" if format_name == "wal" else "key"
            found = [row[0] for row in stored(store, name, 0, column)]
            assert (GONE in found) == (name != topic), name


def test_verify_names_what_it_could_not_look_at(tmp_path: Path) -> None:
    make(tmp_path, kept_bytes=0)
    data = str(tmp_path / "data")
    archive.run(ALONE, data)
    with by_hand(tmp_path) as store:
        store.archive()
    assert not verify.run(ALONE, data).rows
    os.unlink(tmp_path / "data" / paths.ARCHIVE_LOCATION)
    (row,) = verify.run(ALONE, data).rows
    assert "archived, and nobody says where" in str(row["problem"])
    assert not verify.run(ALONE, data, "").rows, "whoever says that there is none is believed"
