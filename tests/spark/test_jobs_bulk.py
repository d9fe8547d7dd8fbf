"""Archive, compact, verify, repair and erase: what they do, and what they leave alone."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lamina
from lamina.errors import Busy, InvalidRequest, RecordsMissing
from lamina.spark.jobs import archive, compact, erase, lane, object_rewrite, repair, verify
from lamina.spark.jobs.archive import spans
from lamina.spark.jobs.bulk_lane import Descriptor, pack
from lamina.spark.jobs.credentials import Access
from lamina.spark.jobs.job import Silent
from lamina.storage.objects import open_objects
from tests.spark.bulk import archived_only, cold_rows, flip, make, opened, rows, tree
from tests.spark.logs import fill, stored


class Counting(Silent):
    """Progress that adds up."""

    def __init__(self) -> None:
        self.expected: list[tuple[int, str]] = []
        self.done = 0

    def expect(self, count: int, unit: str) -> None:
        self.expected.append((count, unit))

    def advance(self, count: int) -> None:
        self.done += count


# ---------------------------------------------------------------- the lane


class Range:
    def __init__(self, base_offset: int, next_offset: int, size_bytes: int) -> None:
        self.base_offset, self.next_offset = base_offset, next_offset
        self.size_bytes = size_bytes


def test_spans_join_neighbours_cut_large_ranges_and_leave_nothing_out() -> None:
    ranges = [Range(0, 10, 30), Range(10, 20, 30), Range(20, 120, 1000), Range(125, 130, 10)]
    found = list(spans(ranges, 3, 100))
    assert found[0] == (3, 20, 60)
    assert [first for first, _, _ in found[1:]] == [end for _, end, _ in found[:-1]]
    assert found[-1][1] == 130
    assert len(found) == 1 + 10 + 1
    assert list(spans([], 0, 100)) == []


def test_small_things_share_a_task_and_large_ones_have_their_own() -> None:
    assert packed([10, 10, 500, 10, 90, 10], 100) == [[10, 10], [500], [10], [90, 10]]
    assert packed([500, 0, 0], 100) == [[500], [0, 0]]
    assert packed([0, 0], 100) == [[0, 0]]
    assert packed([], 100) == []


def test_tasks_are_as_many_as_asked_for_and_about_equal() -> None:
    sizes = [64] * 31 + [37]  # segments, of which the last is not full
    for count in (1, 2, 3, 8, 32):
        tasks = packed(sizes, -(-sum(sizes) // count))
        assert [size for task in tasks for size in task] == sizes
        assert len(tasks) == count
        assert max(map(sum, tasks)) - min(map(sum, tasks)) <= 64


def packed(sizes: list[int], task_bytes: int) -> list[list[int]]:
    found = pack([Descriptor("p", "i", n, size, None) for n, size in enumerate(sizes)], task_bytes)
    assert [each.base for task in found for each in task] == list(range(len(sizes)))
    return [[each.size_bytes for each in task] for task in found]


def test_a_worker_does_not_collect_what_its_tasks_have_imported(spark: SparkSession) -> None:
    def work(_: int) -> tuple[int, int, int]:
        import lamina.store.store  # noqa: F401 - many objects, all of which stay

        return os.getpid(), len(gc.get_objects()), gc.get_freeze_count()

    seen: dict[int, list[tuple[int, int]]] = {}
    for process, visible, frozen in lane.over_tasks(spark, list(range(12)), work, Silent()):
        seen.setdefault(process, []).append((visible, frozen))
    often = [each for each in seen.values() if len(each) > 1]
    assert often, "workers do more than one task"
    for each in often:
        visible, frozen = each[-1]
        assert visible < frozen / 10


def test_what_tasks_leave_behind_without_a_module_is_not_collected_either() -> None:
    program = """
import gc
from lamina.spark.worker_daemon import LOOSE_MAX, settle
settle()
before, left = gc.get_freeze_count(), [[] for _ in range(4 * LOOSE_MAX)]
settle()
few = gc.get_freeze_count()
left.append([])
settle()
visible, frozen = len(gc.get_objects()), gc.get_freeze_count()
print(few - before >= 4 * LOOSE_MAX, visible <= LOOSE_MAX, frozen == few)
"""
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert said.stdout.split() == [b"True", b"True", b"True"]


def test_credentials_go_with_the_code_and_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    access = Access.of(open_objects("s3://bucket/prefix"))
    assert "the-secret" not in repr(access)
    assert "the-id" not in str(access)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    there = pickle.loads(pickle.dumps(access))
    assert there.options["secret_access_key"] == "the-secret"
    assert there.open().url == "s3://bucket/prefix"


# ---------------------------------------------------------------- archive


def test_archive_moves_what_is_sealed_and_a_second_run_finds_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold, progress = tmp_path / "data", tmp_path / "cold", Counting()
    make(data, cold)
    with opened(data, cold):
        pass  # the first opening at which the archive answers begins the journal of offsets
    before = tree(data, cold)
    planned = archive.run(spark, str(data), str(cold), dry_run=True)
    assert tree(data, cold) == before
    done = archive.run(spark, str(data), str(cold), progress=progress)
    assert done.totals["objects"] == planned.totals["objects"] > 1
    assert progress.expected == [(progress.done, "bytes")]
    found = cold_rows(cold)
    assert len(found) == done.totals["records"] > 500
    assert found == rows(data, cold)[: len(found)]
    assert archive.run(spark, str(data), str(cold)).totals["objects"] == 0


def test_archive_runs_inside_the_process_that_appends(spark: SparkSession, tmp_path: Path) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    make(data, cold)
    stop = threading.Event()
    with opened(data, cold) as store:

        def append() -> None:
            for first in range(1000, 2000, 250):
                fill(store, "k", 250, headers=True, first=first)
                stop.wait(0.2)

        producer = threading.Thread(target=append)
        producer.start()
        try:
            first = archive.run(spark, store)
        finally:
            stop.set()
            producer.join()
        second = archive.run(spark, store)
        everything = stored(store, "k", 0, "offset", "key", "value")
    assert int(first.totals["records"]) > 0
    found = cold_rows(cold)
    assert len(found) == int(first.totals["records"]) + int(second.totals["records"])
    assert found == everything[: len(found)]
    with pytest.raises(Busy, match="stop that process"), opened(data, cold):
        archive.run(spark, str(data), str(cold))


# ---------------------------------------------------------------- compact


def test_compact_joins_small_objects_and_removes_the_old_ones_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    archived_only(data, cold)
    everything, before = rows(data, cold), tree(data, cold)
    old = set((cold / "data" / "k" / "0").glob("*.seg"))
    planned = compact.run(spark, str(data), str(cold), dry_run=True)
    assert tree(data, cold) == before
    done = compact.run(spark, str(data), str(cold))
    assert (done.totals["objects_in"], done.totals["objects_out"]) == (len(old), 1)
    assert planned.totals["objects_in"] == len(old)
    assert rows(data, cold) == cold_rows(cold) == everything
    assert set((cold / "data" / "k" / "0").glob("*.seg")) > old, "readers may have the older list"
    assert compact.run(spark, str(data), str(cold)).totals["objects_in"] == 0
    cleaned = compact.run(spark, str(data), str(cold), clean_age_ms=0)
    assert cleaned.totals["orphans_removed"] == len(old)
    (left,) = (cold / "data" / "k" / "0").glob("*.seg")
    assert left.name == "00000000000000000000.1.seg"
    assert rows(data, cold) == everything


def test_compact_keeps_the_last_of_each_key_at_its_offset(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    archived_only(data, cold)
    everything = rows(data, cold)
    last = {row[1]: row[0] for row in everything if row[1] is not None}
    stays = [row for row in everything if row[1] is None or last[row[1]] == row[0]]
    done = compact.run(spark, str(data), str(cold), keep_last=True)
    assert done.totals["records_removed"] == len(everything) - len(stays) > 500
    assert rows(data, cold) == cold_rows(cold) == stays
    with lamina.open(str(data), archive=str(cold), read_only=True) as store:
        gaps = store.gaps("k")
    assert {gap.reason for gap in gaps} == {"compacted"}
    assert sum(gap.end - gap.first for gap in gaps) == done.totals["records_removed"]
    lists = cold / "data" / "k" / "0" / "manifest.json"
    lists.unlink()  # what was thinned out does not come back, though the old objects are there
    assert cold_rows(cold) == stays


def test_more_holes_than_the_ledger_names_are_read_over(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    archived_only(data, cold)
    with opened(data, cold) as store:
        store.alter_topic("k", {"archive.object.bytes": 1024})  # nothing is joined
    everything = rows(data, cold)
    last = {row[1]: row[0] for row in everything if row[1] is not None}
    stays = [row for row in everything if row[1] is None or last[row[1]] == row[0]]
    monkeypatch.setattr(object_rewrite, "GAPS_MAX", 1)
    done = compact.run(spark, str(data), str(cold), keep_last=True)
    assert done.totals["objects_out"] == done.totals["objects_in"] > 2
    with lamina.open(str(data), archive=str(cold), read_only=True) as store:
        gaps = store.gaps("k")
    assert 1 < len(gaps) <= done.totals["objects_in"] + 2, "those between objects, and the longest"
    assert {gap.reason for gap in gaps} == {"compacted"}
    assert rows(data, cold) == cold_rows(cold) == stays

    keys = sorted({row[1] for row in stays if row[1] is not None})[::2]
    erased = erase.run(spark, str(data), str(cold), keys=keys)
    left = [row for row in stays if row[1] not in keys]
    assert erased.totals["erased"] == len(stays) - len(left) > 10
    assert rows(data, cold) == cold_rows(cold) == left, "holes that are in no span now are known"


def test_compact_leaves_a_damaged_object_alone_and_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    archived_only(data, cold)
    flip(sorted((cold / "data" / "k" / "0").glob("*.seg"))[1], 300)
    before = tree(cold / "data" / "k" / "0")
    done = compact.run(spark, str(data), str(cold))
    assert done.has_failed
    assert "checksum" in str(done.rows[0]["problem"])
    after = tree(cold / "data" / "k" / "0")
    assert {name for name in after if name.endswith(".seg")} == {
        name for name in before if name.endswith(".seg")
    }


# ---------------------------------------------------------------- verify and repair


def test_verify_finds_damage_in_every_tier_and_repair_mends_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold, progress = tmp_path / "data", tmp_path / "cold", Counting()
    make(data, cold)
    archive.run(spark, str(data), str(cold))
    with opened(data, cold) as store:
        store.create_topic("f", format="frame", config={"segment.bytes": 16 << 10})
        fill(store, "f", 1000, headers=False)
        store.create_topic("w", format="wal")
        store.append("w", [b"value %d" % number for number in range(100)])
        store.roll("w")
    sound = verify.run(spark, str(data), str(cold), progress=progress)
    assert not sound.has_failed
    assert not sound.rows
    assert progress.expected == [(progress.done, "bytes")]
    everything = rows(data, cold, "f")
    logs = sorted((data / "topics" / "f" / "0" / "segments").glob("*.log"))
    flip(logs[1], 3000)
    flip(sorted((data / "topics" / "k" / "0" / "segments").glob("*.tidx"))[1], 76)
    flip(next((data / "segments").rglob("*.data")), 60)
    flip(sorted((cold / "data" / "k" / "0").glob("*.seg"))[1], 300)
    (cold / "data" / "k" / "0" / "ledger.json").write_bytes(b"{}")
    before = tree(data, cold)
    found = verify.run(spark, str(data), str(cold))
    assert found.has_failed
    assert {os.path.splitext(row["path"])[1] for row in found.rows} == {
        ".log",
        ".tidx",
        ".data",
        ".seg",
        ".json",
    }
    frame = verify.frame_of(spark, found)
    assert frame.where("path like '%.log' and resumes_at > position").count() == 1
    planned = repair.run(spark, str(data), str(cold), dry_run=True)
    assert len(planned.rows) == len(found.rows)
    assert tree(data, cold) == before
    mended = repair.run(spark, str(data), str(cold))
    assert not mended.has_failed, mended.rows
    assert {os.path.basename(row["path"]) for row in mended.rows} >= {logs[1].name, "ledger.json"}
    with lamina.open(str(data), archive=str(cold), read_only=True) as store:
        (gap,) = store.gaps("f")
        assert gap.reason == "lost"
        assert gap.end - gap.first == 1
        assert len(stored(store, "w", 0, "value")) == 100, "the WAL still had it"
        with pytest.raises(RecordsMissing):
            list(store.scan("f"))
        after = [*store.scan("f", start=gap.end)]
    assert after[-1].column("offset")[-1].as_py() == everything[-1][0]
    assert list((data / "quarantine").rglob("*.log.*"))
    assert not verify.run(spark, str(data), str(cold)).rows, "what was repaired is sound"


def test_verify_beside_a_live_writer_finds_no_torn_tail(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    make(data, cold)
    stop = threading.Event()
    with opened(data, cold) as store:
        store.create_topic("w", format="wal")

        def append() -> None:
            first = 1000
            while not stop.is_set():
                store.append("k", [b"x" * (first % 5000)], acks=1)
                store.append("w", [b"y" * (first % 3000)], acks=1)
                first += 7

        producer = threading.Thread(target=append)
        producer.start()
        try:
            for _ in range(3):
                assert not verify.run(spark, str(data)).rows
        finally:
            stop.set()
            producer.join()
        active = sorted((data / "topics" / "k" / "0" / "segments").glob("*.log"))[-1]
        store.flush()
        flip(active, 200)
        (row,) = verify.run(spark, str(data)).rows
        assert row["path"] == str(active)
        flip(active, 200)


def test_verify_finds_an_object_that_the_list_names_and_nobody_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    archived_only(data, cold)
    gone = sorted((cold / "data" / "k" / "0").glob("*.seg"))[1]
    gone.unlink()
    (row,) = verify.run(spark, None, str(cold)).rows
    assert row["path"].endswith(gone.name)
    assert "not there" in row["problem"]
    with pytest.raises(InvalidRequest, match="say what to verify"):
        verify.run(spark)


# ---------------------------------------------------------------- erase


def test_erase_leaves_no_byte_of_a_key_in_any_tier(spark: SparkSession, tmp_path: Path) -> None:
    data, cold, backup = tmp_path / "data", tmp_path / "cold", tmp_path / "backup"
    make(data, cold)
    archive.run(spark, str(data), str(cold))
    with opened(data, cold) as store:
        store.create_topic("w", format="wal")
        store.append("w", [{"tag": b"tag %d" % (n % 5), "value": b"v"} for n in range(200)])
        store.append("k", [(b"key 999", b"a mention of key 13, by another")])
    (data / "quarantine" / "k").mkdir(parents=True)
    (data / "quarantine" / "k" / "damaged").write_bytes(b"\0\1key 13\0")
    _copy(data, backup)
    everything, before = rows(data, cold), tree(data, cold)
    wanted = {"keys": [b"key 13"], "tags": [b"tag 3"], "backups": [str(backup)]}
    planned = erase.run(spark, str(data), str(cold), dry_run=True, **wanted)
    assert tree(data, cold) == before
    assert int(planned.totals["erased"]) > 0
    done = erase.run(spark, str(data), str(cold), **wanted)
    assert not done.has_failed, done.rows
    assert done.totals["remains"] == 0
    assert b"key 13" not in str(done).encode()
    by_tier = {row["tier"]: row for row in done.rows if row["where"] == str(data)}
    assert by_tier["quarantine"]["erased"] == 1
    assert by_tier["hot"]["mentions"] == 1
    stays = [row for row in everything if row[1] != b"key 13"]
    assert rows(data, cold) == rows(backup, cold) == stays
    assert cold_rows(cold) == [row for row in stays if row[0] <= cold_rows(cold)[-1][0]]
    with lamina.open(str(data), archive=str(cold), read_only=True) as store:
        tags = [row[0] for row in stored(store, "w", 0, "tag")]
        assert {gap.reason for gap in store.gaps("k")} == {"deleted"}
    assert len(tags) == 160
    assert b"tag 3" not in tags
    for name, content in tree(data, cold, backup).items():
        if not name.endswith(".seg"):
            others = content.replace(b"a mention of key 13, by", b"")
            assert b"key 13" not in others, name
            assert b"tag 3" not in others, name
    with opened(data, cold) as store:  # it opens, goes on, and nothing is cut or lost
        assert not store.recovery_report.of("gap")
        assert not store.recovery_report.of("quarantined")
        fill(store, "k", 250, headers=False, first=2000)
    assert not verify.run(spark, str(data), str(cold)).rows
    since = [row for row in rows(data, cold) if row[1] == b"key 13"]
    assert len(since) == 4, "records that came after the first run"
    assert erase.run(spark, str(data), str(cold), **wanted).totals["erased"] == len(since)
    assert not [row for row in rows(data, cold) if row[1] == b"key 13"]


def test_erase_runs_beside_producers_and_readers_of_one_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    make(data, cold)
    with opened(data, cold) as store, lamina.open(str(data), read_only=True) as beside:
        before = stored(beside, "k", 0, "offset", "key")
        scan = store.scan("k", max_records=10)
        next(scan)
        done = erase.run(spark, store, keys=[b"key 13"])
        assert not done.has_failed
        fill(store, "k", 250, headers=False, first=1000)
        list(scan)  # one that had begun ends
        stays = [row for row in before if row[1] != b"key 13"]
        after = stored(store, "k", 0, "offset", "key")
        assert [row for row in after if row[0] < 1000] == stays
        store.flush()
        seen = stored(beside, "k", 0, "offset", "key")
        assert [row for row in seen if row[0] < 1000] == stays, "a reader of another process too"


def test_erase_says_what_it_cannot_reach(spark: SparkSession, tmp_path: Path) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    make(data, cold)
    with pytest.raises(InvalidRequest, match="say where"):
        erase.run(spark, str(data), "", keys=[b"key 13"])
    with pytest.raises(InvalidRequest, match="keys or tags"):
        erase.run(spark, str(data), str(cold), keys=[b""])
    (data / "left.over").write_bytes(b"a copy of key 13")
    done = erase.run(spark, str(data), str(cold), keys=[b"key 13"])
    assert done.has_failed
    (row,) = [row for row in done.rows if row["remains"]]
    assert (row["tier"], row["left_in"]) == ("other", str(data / "left.over"))


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
