"""Repair takes what any tier still has before it enters a loss; verify is content afterwards."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lamina
from lamina.errors import ArchiveUnavailable, RecordsMissing
from lamina.formats.documents.ledger import ARCHIVED, LOST
from lamina.formats.log_format import CODECS
from lamina.inspect.findings import NOTE
from lamina.spark.jobs import archive, bulk_lane, repair, verify
from lamina.spark.jobs.job import Summary
from tests.spark.bulk import CONFIG, flip
from tests.spark.logs import batch_rows, stored
from tests.spark.tiers import append, by_hand

ALONE: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
FORMATS = pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
COUNT = 1000


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_alone(_: Any, tasks: Any, work: Any, progress: Any) -> list[Any]:
        return [work(each) for task in tasks for each in task]

    monkeypatch.setattr(bulk_lane, "run", run_alone)


def make(path: Path, format_name: str, **config: Any) -> None:
    """A topic with sealed segments and a tail, of which nothing is archived yet."""
    with by_hand(path, archive=str(path / "cold")) as store:
        store.create_topic("t", format=format_name, config={**CONFIG, **config})
        append(store, "t", format_name, 0, COUNT)
        store.roll("t")
        append(store, "t", format_name, COUNT, 250)
        if format_name == "wal":
            store.purge_wal()  # records of the WAL's files would be copies, too


def held(path: Path, **more: Any) -> list[tuple[Any, ...]]:
    """Every record that can be read, over gaps."""
    found: list[tuple[Any, ...]] = []
    with lamina.open(str(path / "data"), read_only=True, **more) as store:
        start = store.earliest_offset("t")
        while True:
            try:
                for batch in store.scan("t", 0, start):
                    rows = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
                    found += rows
                return found
            except RecordsMissing as missing:
                start = missing.end
                found = [row for row in found if row[0] < start]


def lost(path: Path) -> list[tuple[int, int]]:
    with lamina.open(str(path / "data"), read_only=True) as store:
        return [(gap.first, gap.end) for gap in store.gaps("t") if gap.reason == "lost"]


def segments(path: Path, format_name: str) -> list[Path]:
    if format_name == "wal":
        return sorted((path / "data" / "segments").rglob("*.data"), key=_first)
    return sorted((path / "data" / "topics" / "t" / "0" / "segments").glob("*.log"))


def first_record(format_name: str) -> int:
    """Where a segment's first record begins."""
    return CODECS[format_name].header_bytes if format_name in CODECS else 0


def _first(path: Path) -> int:
    return int(path.stem.removeprefix("seg-"))


def objects(path: Path) -> list[Path]:
    return sorted((path / "cold" / "data" / "t" / "0").glob("*.seg"))


def mend(path: Path, archive: str | None = None) -> Summary:
    done = repair.run(ALONE, str(path / "data"), archive)
    assert not done.has_failed, done.rows
    return done


def findings(path: Path, archive: str | None = None) -> list[Any]:
    rows = verify.run(ALONE, str(path / "data"), archive).rows
    return [row for row in rows if row["severity"] != NOTE]


def archive_all(path: Path) -> None:
    done = archive.run(ALONE, str(path / "data"))
    assert int(done.totals["objects"]) > 1
    assert int(done.totals["records"]) >= COUNT


@FORMATS
def test_damaged_records_are_taken_from_the_archive(tmp_path: Path, format_name: str) -> None:
    make(tmp_path, format_name)
    archive_all(tmp_path)
    before = held(tmp_path)
    assert len(before) == COUNT + 250
    victims = segments(tmp_path, format_name)[1:3]
    flip(victims[0], 3000)
    flip(victims[1], os.path.getsize(victims[1]) - 5)
    flip(victims[1], first_record(format_name) + 10)
    assert {str(path) for path in victims} <= {row["path"] for row in findings(tmp_path)}
    done = mend(tmp_path)
    assert all("taken from the archive" in str(row["repair"]) for row in done.rows), done.rows
    assert held(tmp_path, archive="") == before, "they lie here again"
    assert lost(tmp_path) == []
    assert findings(tmp_path) == []
    assert len(list((tmp_path / "data" / "quarantine").rglob("*.*"))) >= 3
    with by_hand(tmp_path) as store:
        assert not store.recovery_report.of("gap")
        append(store, "t", format_name, COUNT + 250, 250)
    assert held(tmp_path)[: len(before)] == before
    assert mend(tmp_path).rows == []


@FORMATS
def test_what_nobody_has_is_entered_as_lost_once_and_found_no_more(
    tmp_path: Path, format_name: str
) -> None:
    make(tmp_path, format_name, **{"remote.storage.enable": False})
    before = held(tmp_path)
    victims = segments(tmp_path, format_name)[1:3]
    flip(victims[0], 3000)
    flip(victims[1], first_record(format_name) + 10)
    mend(tmp_path, "")
    gone = lost(tmp_path)
    assert sum(end - first for first, end in gone) == 2, gone
    stays = [row for row in before if not any(first <= row[0] < end for first, end in gone)]
    assert held(tmp_path) == stays
    assert findings(tmp_path, "") == []
    assert mend(tmp_path, "").rows == []
    with by_hand(tmp_path) as store:
        append(store, "t", format_name, COUNT + 250, 250)
    assert len(held(tmp_path)) == len(stays) + 250


@FORMATS
@pytest.mark.parametrize("is_called_lost", [False, True])
def test_what_was_damaged_without_its_archive_is_found_again(
    tmp_path: Path, format_name: str, is_called_lost: bool
) -> None:
    """Ledgers of earlier releases call it lost."""
    make(tmp_path, format_name)
    archive_all(tmp_path)
    before = held(tmp_path)
    flip(segments(tmp_path, format_name)[1], 3000)
    with by_hand(tmp_path, archive="") as store:
        with pytest.raises(ArchiveUnavailable):
            stored(store, "t", 0, "value")
        (each,) = [*store.segmented(), *store.wal_partitions()]
        if is_called_lost:
            each.turn(ARCHIVED, [replace(gap, reason=LOST) for gap in each.ledger.archived()])
    assert bool(lost(tmp_path)) == is_called_lost
    mend(tmp_path)
    assert lost(tmp_path) == []
    assert held(tmp_path, archive="") == before
    assert findings(tmp_path) == []


@FORMATS
def test_a_segment_that_is_gone_is_read_from_the_archive_again(
    tmp_path: Path, format_name: str
) -> None:
    make(tmp_path, format_name)
    archive_all(tmp_path)
    before = held(tmp_path)
    victim = segments(tmp_path, format_name)[2]
    for path in victim.parent.glob(f"{victim.stem}.*"):
        path.unlink()
    assert findings(tmp_path)
    mend(tmp_path)
    assert held(tmp_path) == before
    found = sorted(row[4] for row in batch_rows(tmp_path / "data", subscribe="t"))
    assert found == [row[0] for row in before]
    assert lost(tmp_path) == []
    assert findings(tmp_path) == []


@FORMATS
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "foreign"])
def test_a_damaged_object_is_made_again_from_local_records(
    tmp_path: Path, format_name: str, damage: str
) -> None:
    make(tmp_path, format_name)
    archive_all(tmp_path)
    before = held(tmp_path)
    spoil(objects(tmp_path)[1], damage)
    assert findings(tmp_path)
    mend(tmp_path)
    assert findings(tmp_path) == []
    assert lost(tmp_path) == []
    for path in segments(tmp_path, format_name)[:-1]:
        path.unlink()
    with lamina.open(f"file://{tmp_path / 'cold'}", read_only=True) as store:
        found = stored(store, "t", 0, "offset", "value")
    assert found == before[: len(found)]
    assert len(found) >= COUNT


@FORMATS
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_object_that_is_alone_costs_only_what_is_damaged(
    tmp_path: Path, format_name: str, damage: str
) -> None:
    make(tmp_path, format_name, **{"local.retention.bytes": 0})
    archive_all(tmp_path)
    with by_hand(tmp_path) as store:
        store.archive()
    before = held(tmp_path)
    victim = objects(tmp_path)[1]
    spoil(victim, damage)
    mend(tmp_path)
    (gone,) = lost(tmp_path)
    assert gone[0] >= int(victim.stem[:20])
    stays = [row for row in before if not gone[0] <= row[0] < gone[1]]
    assert held(tmp_path) == stays
    assert len(stays) < len(before)
    assert findings(tmp_path) == []
    with by_hand(tmp_path) as store:
        append(store, "t", format_name, COUNT + 250, 250)
        store.roll("t")
        store.archive()
    assert held(tmp_path)[: len(stays)] == stays


def spoil(path: Path, damage: str) -> None:
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, os.path.getsize(path) // 2)
    elif damage == "foreign":
        path.write_bytes(b"something else altogether" * 20)
    else:
        flip(path, 300)


def test_records_of_a_damaged_wal_file_are_lost_alone_and_the_file_is_freed(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    with by_hand(tmp_path) as store:
        store.create_topic("t", format="wal")
        append(store, "t", "wal", 0, 250)
        store.flush()
        shutil.copytree(tmp_path / "data", killed / "data")
    before = held(tmp_path)
    (victim,) = [p for p in (killed / "data" / "wal").rglob("wal-*.log") if _holds(p)]
    flip(victim, 3000)
    mend(killed)
    assert findings(killed) == []
    with lamina.open(str(killed / "data"), read_only=True) as store:
        (gap,) = store.gaps("t")
    assert gap.end - gap.first == 1
    assert held(killed) == [row for row in before if not gap.first <= row[0] < gap.end]


def _holds(path: Path) -> bool:
    return b"value" in path.read_bytes()
