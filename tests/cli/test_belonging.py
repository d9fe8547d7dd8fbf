"""`verify` on files that do not belong together, which no file can tell by itself."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.formats.log_format import CODECS
from lamina.storage.files import LocalFiles
from tests.support.directories import files_of, flip, opened, positions, segments

FORMATS = ("frame", "keratin", "wal")
FOREIGN = {
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(range(256)) * 20,
    "text": b"the quick brown fox\n" * 50,
    "gzip": gzip.compress(os.urandom(900)),
    "empty": b"",
}


def made(path: Path, format_name: str) -> Path:
    """A closed store with twelve records in three segments, and a group that has read half."""
    with opened(path, wal=WalSettings(shards=1, segment_events=4)) as store:
        store.create_topic("t", format=format_name)
        group = store.group("t", "g")
        for number in range(12):
            if number in (4, 8) and format_name != "wal":
                store.roll("t")
            store.append("t", [b"record %d" % number])
        group.ack(group.poll(6))
    for file in path.glob("wal/wal-*.log"):
        file.unlink()
    return path


def logs(path: Path, format_name: str) -> list[Path]:
    if format_name != "wal":
        return files_of(path, "log")
    return sorted(path.glob("segments/*/*.data"))


def damage(lamina: Any, path: Path) -> list[str]:
    """What verify finds, having checked that its exit code says the same."""
    ran = lamina("verify", "--json", path)
    found = [row["problem"] for row in ran.rows if row["severity"] == "damage"]
    assert ran.code == (1 if found else 0)
    assert "Traceback" not in ran.err
    for command in (("verify", path), ("doctor", "--data", path)):
        assert "Traceback" not in lamina(*command).err
    return found


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_sound_store_has_no_finding_and_no_note(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    assert lamina("verify", "--json", path).rows == []


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_missing_segment_is_found_until_the_ledger_knows_it(
    tmp_path: Path, lamina: Any, format_name: str, which: tuple[int, ...]
) -> None:
    path = made(tmp_path / "data", format_name)
    there = logs(path, format_name)
    for row in which:
        there[row].unlink()
    assert any("missing" in each or "log ends at" in each for each in damage(lamina, path))
    end = 13 if format_name == "wal" else 12
    with opened(path, wal=WalSettings(shards=1, segment_events=4)) as store:
        lost = sum(gap.end - gap.first for gap in store.gaps("t") if gap.reason == "lost")
        assert (lost, store.latest_offset("t")) == (4 * len(which), end)
    with opened(path, wal=WalSettings(shards=1, segment_events=4)):
        pass
    assert damage(lamina, path) == []


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("what", [*FOREIGN, "other format"])
@pytest.mark.parametrize("row", [0, 1])
def test_a_log_that_is_none_is_found(
    tmp_path: Path, lamina: Any, format_name: str, what: str, row: int
) -> None:
    path = made(tmp_path / "data", format_name)
    other = made(tmp_path / "other", "keratin" if format_name == "frame" else "frame")
    data = FOREIGN.get(what)
    log = logs(path, format_name)[row]
    log.write_bytes(files_of(other, "log")[row].read_bytes() if data is None else data)
    assert damage(lamina, path)
    assert lamina("dump", "--json", log).code in (0, 1, 2)


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_log_of_another_format_is_found_though_no_index_contradicts_it(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    other = made(tmp_path / "other", "keratin" if format_name == "frame" else "frame")
    log = logs(path, format_name)[1]
    log.write_bytes(files_of(other, "log")[1].read_bytes())
    for index in log.parent.glob(f"{log.stem}.*idx"):
        index.unlink()
    assert any("in a topic of format" in problem for problem in damage(lamina, path))


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_overlapping_segments_are_found(tmp_path: Path, lamina: Any, format_name: str) -> None:
    path = made(tmp_path / "data", format_name)
    with opened(tmp_path / "other") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"%d" % number for number in range(6)])
        store.roll("t")
        store.append("t", [b"a", b"b", b"c", b"d"])
    shutil.copy(files_of(tmp_path / "other", "log")[1], segments(path) / f"{6:020}.log")
    assert any("as well" in problem for problem in damage(lamina, path))


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_zeros_of_an_unfinished_roll_are_no_damage(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    log = logs(path, format_name)[0]
    log.write_bytes(log.read_bytes() + bytes(5000))
    assert damage(lamina, path) == []


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_damaged_record_is_no_finding_once_the_ledger_knows_it(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    log = logs(path, format_name)[0]
    flip(log, positions(log, CODECS[format_name])[1] + 45)
    assert damage(lamina, path)
    with opened(path) as store, pytest.raises(Exception, match="damaged"):
        list(store.scan("t", 0, 0))
    assert damage(lamina, path) == []
    rows = lamina("verify", "--json", path).rows
    assert any("known as lost" in row["problem"] for row in rows)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("suffix", ["snap", "delta"])
def test_half_of_a_group_is_found(
    tmp_path: Path, lamina: Any, format_name: str, suffix: str
) -> None:
    path = made(tmp_path / "data", format_name)
    (path / f"groups/t-0_g.{suffix}").unlink()
    assert any(f".{suffix} is missing" in problem for problem in damage(lamina, path))


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_group_ahead_of_its_log_and_a_log_that_lost_its_end_are_found(
    tmp_path: Path, lamina: Any, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    for log in logs(path, format_name)[1:]:
        log.unlink()
    found = damage(lamina, path)
    assert any("beyond the log" in problem for problem in found)
    assert any("was durable up to 12" in problem for problem in found)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_that_nobody_reads_is_a_note(tmp_path: Path, lamina: Any, format_name: str) -> None:
    path = made(tmp_path / "data", format_name)
    stray = logs(path, format_name)[0].with_name("7.log")
    stray.write_bytes(b"what is this")
    assert damage(lamina, path) == []
    (row,) = lamina("verify", "--json", path).rows
    assert (row["severity"], row["path"]) == ("note", str(stray))


def archived(tmp_path: Path) -> Path:
    archive = tmp_path / "archive"
    with opened(tmp_path / "data", archive=str(archive)) as store:
        store.create_topic("t", format="keratin", config={"remote.storage.enable": True})
        for number in range(12):
            if number in (4, 8):
                store.roll("t")
            store.append("t", [b"record %d" % number])
            store.archive()
    return archive


@pytest.mark.parametrize("what", [*FOREIGN, "keratin log", "another partition's"])
def test_an_object_that_is_none_is_found(tmp_path: Path, lamina: Any, what: str) -> None:
    archive = archived(tmp_path)
    objects = sorted(archive.rglob("*.seg"))
    assert damage(lamina, archive) == []
    if what == "another partition's":
        target = archive / "data/t/1" / objects[0].name
        LocalFiles().make_directory(str(target.parent))
        shutil.copy(objects[0], target)
    else:
        data = FOREIGN.get(what)
        log = files_of(tmp_path / "data", "log")[0]
        objects[0].write_bytes(log.read_bytes() if data is None else data)
    assert damage(lamina, archive)


def test_an_object_that_the_list_names_and_is_gone_is_found(tmp_path: Path, lamina: Any) -> None:
    archive = archived(tmp_path)
    first, *_ = sorted(archive.rglob("*.seg"))
    kept = first.read_bytes()
    first.unlink()
    assert any("it is not there" in problem for problem in damage(lamina, archive))
    first.write_bytes(kept)
    stray = first.with_name(f"{900:020}.seg")
    stray.write_bytes(kept)
    rows = lamina("verify", "--json", archive).rows
    assert any("no list names" in row["problem"] for row in rows)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_missing_identity_is_found(lamina: Any, tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path / "data", format_name)
    (path / "meta/broker.id").unlink()
    found = damage(lamina, path)
    assert [problem for problem in found if "no identity" in problem] == found
    assert found


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
@pytest.mark.parametrize("left", ["nothing", "a part", "noise"])
def test_a_topic_that_only_the_checkpoint_knows_is_found(
    lamina: Any, tmp_path: Path, left: str, format_name: str
) -> None:
    path = made(tmp_path / "data", format_name)
    about = path / "topics" / "t" / "topic.json"
    raw = about.read_bytes()
    about.unlink()
    if left != "nothing":
        about.write_bytes(raw[:40] if left == "a part" else bytes(each ^ 0x55 for each in raw))
    for log in files_of(path, "log"):
        log.unlink()
    assert any("'t' with 12 records" in problem for problem in damage(lamina, path))
    ran = lamina("doctor", "--data", path, "--json")
    assert ran.code == 1
    told = [row["finding"] for row in ran.rows if row["verdict"] == "problem"]
    assert any("'t' with 12 records" in each for each in told)
    with opened(path) as store:
        assert any("'t' with 12 records" in each.why for each in store.recovery_report.events)
