"""What opening does to a directory that was hurt: cut, kept aside, named, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lamina.api import Gap
from lamina.errors import CorruptData, NewerFormat, RecordsMissing
from lamina.formats.documents import checkpoint, ledger, tombstone
from lamina.formats.keratin import manifest
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.log_format import CODECS
from lamina.storage.files import LocalFile
from lamina.store.store import Store
from tests.support.directories import (
    FORMATS,
    copied,
    files_of,
    flip,
    offsets,
    opened,
    positions,
    read_only,
    report_of,
    rows,
    segments,
    tree,
    values,
)

BOTH = pytest.mark.parametrize("format_name", FORMATS)
RECORDS = [bytes([65 + number]) * 9 for number in range(8)]


def made(root: Path, format_name: str, *, rolled_after: int | None = None) -> Path:
    """A closed directory with eight records, all of them durable."""
    path = root / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for number, record in enumerate(RECORDS):
            store.append("t", [record])
            if number + 1 == rolled_after:
                store.roll("t")
    return path


def forget_watermark(path: Path) -> None:
    """Removes what says how far data was durable, as if it had only just been written."""
    (path / "meta/checkpoint.json").unlink()
    (segments(path).parent / "manifest.bin").unlink(missing_ok=True)


def log_of(path: Path, number: int = -1) -> Path:
    return files_of(path, "log")[number]


def served_and_growing(store: Store, expected: list[bytes], end: int) -> None:
    """The end of every accident: what is left is served, more can be appended, it all reopens."""
    assert values(store) == expected
    assert store.latest_offset("t") == end
    assert store.append("t", [b"more"]).parts[0].base_offset == end
    assert values(store) == [*expected, b"more"]


# ---------------------------------------------------------------- the torn tail


@BOTH
def test_a_tail_torn_at_every_byte_of_the_last_record_is_cut(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path, format_name)
    forget_watermark(path)
    whole = log_of(path).read_bytes()
    *_, start, end = positions(log_of(path), CODECS[format_name])
    assert end == len(whole)
    for size in range(start, end):
        log_of(path).write_bytes(whole[:size])
        forget_watermark(path) if (path / "meta/checkpoint.json").exists() else None
        with opened(path) as store:
            assert values(store) == RECORDS[:-1]
            assert store.latest_offset("t") == 7
            assert not store.gaps("t")
            cut = [(event.first_byte, event.end_byte) for event in store.recovery_report.of("cut")]
            assert cut == ([(start, size)] if size > start else [])
        assert log_of(path).read_bytes() == whole[:start]
    with opened(path) as store:
        served_and_growing(store, RECORDS[:-1], 7)


@BOTH
@pytest.mark.parametrize("tail", [b"\xff" * 50, bytes(5000), b"K", b"\x01\x5e\x0b\xb1" * 20])
def test_a_tail_of_garbage_or_zeros_is_cut_and_kept_unless_it_is_torn(
    tmp_path: Path, format_name: str, tail: bytes
) -> None:
    path = made(tmp_path, format_name)
    whole = log_of(path).read_bytes()
    log_of(path).write_bytes(whole + tail)
    with opened(path) as store:
        (cut,) = store.recovery_report.of("cut")
        assert (cut.first_byte, cut.end_byte) == (len(whole), len(whole) + len(tail))
        is_torn = not tail.strip(b"\0") or (format_name, tail) == ("keratin", b"K")
        assert is_torn == (cut.kept_in is None)
        assert cut.kept_in is None or Path(cut.kept_in).read_bytes() == tail
        assert log_of(path).read_bytes()[: len(whole)] == whole
        served_and_growing(store, RECORDS, 8)
    assert is_torn == (not (path / "quarantine").exists())


@BOTH
def test_a_sound_record_after_the_cut_is_kept_aside(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    forget_watermark(path)
    starts = positions(log_of(path), CODECS[format_name])
    whole = log_of(path).read_bytes()
    flip(log_of(path), starts[5] - 1)
    damaged = log_of(path).read_bytes()
    with read_only(path) as alone:
        assert values(alone) == RECORDS[:4], "what would be cut is not served before"
    with opened(path) as store:
        (cut,) = store.recovery_report.of("cut")
        assert cut.kept_in is not None
        assert Path(cut.kept_in).read_bytes() == damaged[starts[4] :]
        assert (path / "quarantine") in Path(cut.kept_in).parents
        assert len(damaged) == len(whole)
        served_and_growing(store, RECORDS[:4], 4)


# ---------------------------------------------------------------- damage below the watermark


@BOTH
@pytest.mark.parametrize("segment", ["active", "sealed"])
@pytest.mark.parametrize("record", [0, 2, 3])
def test_damage_below_the_watermark_costs_one_record(
    tmp_path: Path, format_name: str, segment: str, record: int
) -> None:
    path = made(tmp_path, format_name, rolled_after=4)
    log = log_of(path, 0 if segment == "sealed" else 1)
    offset = record if segment == "sealed" else record + 4
    starts = positions(log, CODECS[format_name])
    flip(log, starts[record + 1] - 1)
    damaged = log.read_bytes()[starts[record] : starts[record + 1]]
    expected = RECORDS[:offset] + RECORDS[offset + 1 :]
    with opened(path) as store:
        before = store.scan("t", start=0, end=offset)
        assert [row for batch in before for row in batch.column("value").to_pylist()] == RECORDS[
            :offset
        ]
        with pytest.raises(RecordsMissing) as missing:
            list(store.scan("t", start=0))
        found = missing.value
        assert (found.first, found.end, found.reason) == (offset, offset + 1, "lost")
        rest = [row["value"] for row in rows(store, start=found.end)]
        assert rest == RECORDS[offset + 1 :]
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [
            (offset, offset + 1, "lost")
        ]
        kept = [file for file in (path / "quarantine").rglob("*") if file.is_file()]
        assert [file.read_bytes() for file in kept] == [damaged]
        served_and_growing(store, expected, 8)
    with opened(path) as store:
        assert values(store) == [*expected, b"more"]
        assert len(store.gaps("t")) == 1
    with read_only(path) as alone:
        assert values(alone) == [*expected, b"more"]


@BOTH
def test_every_damaged_record_alone_leaves_all_others(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name, rolled_after=4)
    for log in files_of(path, "log"):
        whole = log.read_bytes()
        starts = positions(log, CODECS[format_name])
        for record, start in enumerate(starts[:-1]):
            for position in (start, start + 12, starts[record + 1] - 1):
                copy = copied(path)
                flip(copy / log.relative_to(path), position)
                offset = int(log.stem) + record
                with opened(copy) as store:
                    expected = RECORDS[:offset] + RECORDS[offset + 1 :]
                    assert values(store) == expected, f"{log.name} byte {position}"
                    assert store.latest_offset("t") == 8
                    for each in range(8):
                        if each != offset:
                            batch = store.fetch("t", 0, each, max_records=1)
                            assert batch.column("value").to_pylist() == [RECORDS[each]]
        assert log.read_bytes() == whole


@BOTH
def test_times_are_found_over_a_lost_record(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    starts = positions(log_of(path), CODECS[format_name])
    flip(log_of(path), starts[1] - 1)
    with opened(path) as store:
        assert store.offset_for_time("t", 0, 0) == 1


# ---------------------------------------------------------------- manifest and checkpoint


@pytest.mark.parametrize("suffix", ["log", "idx", "tidx"])
def test_a_sealed_file_shorter_than_the_manifest_says_is_found_at_once(
    tmp_path: Path, suffix: str
) -> None:
    path = made(tmp_path, "keratin", rolled_after=4)
    file = files_of(path, suffix)[0]
    whole = file.read_bytes()
    file.write_bytes(whole[:-16])
    with opened(path) as store:
        if suffix == "log":
            assert [(gap.first, gap.end) for gap in store.gaps("t")] == [(3, 4)]
            served_and_growing(store, RECORDS[:3] + RECORDS[4:], 8)
        else:
            assert [event.path for event in store.recovery_report.of("rebuilt")] == [str(file)]
            assert file.read_bytes() == whole
            served_and_growing(store, RECORDS, 8)


def test_a_manifest_ahead_of_the_log_leaves_a_gap(tmp_path: Path) -> None:
    path = made(tmp_path, "keratin")
    starts = positions(log_of(path), CODECS["keratin"])
    log_of(path).write_bytes(log_of(path).read_bytes()[: starts[6]])
    (path / "meta/checkpoint.json").unlink()
    with opened(path) as store:
        assert [file.name for file in files_of(path, "log")] == [f"{0:020}.log", f"{8:020}.log"]
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(6, 8, "lost")]
        assert store.recovery_report.of("gap")
        with pytest.raises(RecordsMissing) as missing:
            list(store.scan("t", start=6))
        assert (missing.value.first, missing.value.end) == (6, 8)
        served_and_growing(store, RECORDS[:6], 8)
    with opened(path) as store:
        assert offsets(store) == [0, 1, 2, 3, 4, 5, 8]


@BOTH
def test_a_checkpoint_ahead_of_the_log_leaves_a_gap(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    entry = checkpoint.PartitionCheckpoint("t", 0, 11, 0, 0, 11)
    write_checkpoint(path, entry)
    with opened(path) as store:
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(8, 11, "lost")]
        served_and_growing(store, RECORDS, 11)


@BOTH
def test_a_checkpoint_behind_or_for_unknown_topics_changes_nothing(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path, format_name)
    behind = checkpoint.PartitionCheckpoint("t", 0, 3, 0, 100, 3)
    stranger = checkpoint.PartitionCheckpoint("gone", 0, 99, 0, 100, 99)
    write_checkpoint(path, behind, stranger)
    with opened(path) as store:
        assert not store.gaps("t")
        assert store.topics() == ["t"]
        served_and_growing(store, RECORDS, 8)


def write_checkpoint(path: Path, *entries: checkpoint.PartitionCheckpoint) -> None:
    data = checkpoint.encode(checkpoint.checkpoint_of(entries))
    (path / "meta/checkpoint.json").write_bytes(data)


@BOTH
def test_a_checkpoint_of_a_newer_version_is_refused(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    file = path / "meta/checkpoint.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
    before = tree(path)
    with pytest.raises(NewerFormat, match=r"checkpoint\.json"):
        opened(path)
    assert tree(path) == before
    file.unlink()
    with opened(path) as store:
        served_and_growing(store, RECORDS, 8)


@BOTH
def test_a_recreated_topic_is_not_held_to_the_old_ones_checkpoint(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path, format_name)
    store = opened(path)
    store.delete_topic("t")
    with opened(copied(path)) as reopened:
        reopened.create_topic("t", format=format_name)
        reopened.append("t", [b"new"])
        with opened(copied(Path(reopened._boot.data))) as killed:
            assert (offsets(killed), values(killed)) == ([0], [b"new"])
            assert not killed.gaps("t")
    store.create_topic("t", format=format_name)
    store.append("t", [b"new"])
    with opened(copied(path)) as killed:
        assert (offsets(killed), values(killed)) == ([0], [b"new"])
        assert not killed.gaps("t")
    store.close()


# ---------------------------------------------------------------- file headers


@pytest.mark.parametrize("segment", [0, 1])
def test_a_log_of_a_newer_version_is_refused_and_never_cut(tmp_path: Path, segment: int) -> None:
    path = made(tmp_path, "keratin", rolled_after=4)
    log = log_of(path, segment)
    data = bytearray(log.read_bytes())
    data[9] = 2
    data[64:68] = crc32c_of(bytes(data[:64])).to_bytes(4, "big")
    log.write_bytes(data)
    before = tree(path)
    with pytest.raises(NewerFormat, match=log.name):
        opened(path)
    assert tree(path) == before
    with read_only(path) as alone, pytest.raises(NewerFormat, match=log.name):
        values(alone)


@pytest.mark.parametrize("segment", [0, 1])
def test_a_damaged_file_header_is_reported_and_the_records_are_served(
    tmp_path: Path, segment: int
) -> None:
    path = made(tmp_path, "keratin", rolled_after=4)
    flip(log_of(path, segment), 30)
    with opened(path) as store:
        (event,) = store.recovery_report.of("rebuilt")
        assert "header" in event.why
        assert event.kept_in
        served_and_growing(store, RECORDS, 8)


# ---------------------------------------------------------------- deletions cut short

STEPS = ["tombstone", "reason", "idx", "time index", "log"]


@BOTH
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("contents", ["whole", "empty", "torn", "delete"])
def test_a_deletion_is_finished_from_every_step(
    tmp_path: Path, format_name: str, step: str, contents: str
) -> None:
    path = made(tmp_path, format_name, rolled_after=4)
    base = segments(path) / f"{0:020}"
    reason: tombstone.Reason = "delete" if contents == "delete" else "trim"
    marker = tombstone.encode(tombstone.Tomb(0, reason, 1))
    marker = {"empty": b"", "torn": marker[:9]}.get(contents, marker)
    base.with_suffix(".tomb").write_bytes(marker)
    done = STEPS[: STEPS.index(step) + 1]
    if "reason" in done:
        known = ledger.Ledger((Gap(0, 4, "trim", 1),))
        (segments(path).parent / "ledger.json").write_bytes(ledger.encode(known))
    suffixes = {"idx": ".idx", "time index": f".{CODECS[format_name].time_suffix}", "log": ".log"}
    for name, suffix in suffixes.items():
        if name in done:
            base.with_suffix(suffix).unlink()
    with read_only(path) as alone:
        assert values(alone) == RECORDS[4:], "what was deleted does not come back"
    with opened(path) as store:
        assert store.earliest_offset("t") == 4
        (gap,) = store.gaps("t")
        expected = {"whole": "trim", "delete": "deleted"}.get(contents, "retention")
        assert (gap.first, gap.end) == (0, 4)
        assert gap.reason == ("trim" if "reason" in done else expected)
        assert store.recovery_report.of("deletion finished")
        assert not [file for file in segments(path).iterdir() if file.stem == f"{0:020}"]
        served_and_growing(store, RECORDS[4:], 8)
    with opened(path) as store:
        assert not store.recovery_report.of("deletion finished")


@BOTH
@pytest.mark.parametrize("is_log_there", [True, False])
def test_a_deletion_of_the_only_segment_is_finished(
    tmp_path: Path, format_name: str, is_log_there: bool
) -> None:
    path = made(tmp_path, format_name)
    base = segments(path) / f"{0:020}"
    base.with_suffix(".tomb").write_bytes(tombstone.encode(tombstone.Tomb(0, "trim", 1)))
    if not is_log_there:  # the ledger is written before the log goes
        known = ledger.Ledger((Gap(0, 8, "trim", 1),))
        (segments(path).parent / "ledger.json").write_bytes(ledger.encode(known))
        base.with_suffix(".log").unlink()
    with opened(path) as store:
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(0, 8, "trim")]
        served_and_growing(store, [], 8)


# ---------------------------------------------------------------- missing and stray files


@BOTH
def test_a_log_missing_in_the_middle_is_named_lost(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for record in RECORDS[:3]:
            store.append("t", [record] * 2)
            store.roll("t")
    for file in segments(path).glob(f"{2:020}.*"):
        file.unlink()
    with opened(path) as store:
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(2, 4, "lost")]
        with pytest.raises(RecordsMissing) as missing:
            list(store.scan("t", start=1))
        assert (missing.value.first, missing.value.end, missing.value.reason) == (2, 4, "lost")
        assert offsets(store) == [0, 1, 4, 5]
        assert store.latest_offset("t") == 6
    with read_only(path) as alone:
        assert offsets(alone) == [0, 1, 4, 5]


@BOTH
def test_stray_files_are_left_alone(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    folders = [path, path / "meta", path / "topics", path / "topics/t", segments(path)]
    strays = [folder / "notes.txt" for folder in folders]
    strays += [segments(path) / "12.log", segments(path) / f"{10**19:020}.log"]
    strays += [path / "topics/empty" / "readme"]
    (path / "topics/empty").mkdir()
    for stray in strays:
        stray.write_bytes(b"mine")
    with opened(path) as store:
        assert store.topics() == ["t"]
        served_and_growing(store, RECORDS, 8)
    assert all(stray.read_bytes() == b"mine" for stray in strays)


def test_a_lost_identity_is_an_error_where_there_are_topics(tmp_path: Path) -> None:
    path = made(tmp_path, "keratin")
    (path / "meta/broker.id").unlink()
    with pytest.raises(CorruptData, match=r"broker\.id"):
        opened(path)
    with pytest.raises(CorruptData, match=r"broker\.id"):
        read_only(path)


def test_the_first_boot_makes_identity_checkpoint_and_lock(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        assert store.topics() == []
        first = store.identity
        for name in ("broker.id", "checkpoint.json", "lock"):
            assert (tmp_path / "data/meta" / name).exists(), name
    with opened(tmp_path / "data") as store:
        assert store.identity == first


@BOTH
@pytest.mark.parametrize("accident", ["deleted", "damaged", "emptied"])
def test_a_lost_topic_file_is_made_again_from_the_directories(
    tmp_path: Path, format_name: str, accident: str
) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", partitions=3, format=format_name)
        store.append("t", RECORDS, partition=1)
    file = path / "topics/t/topic.json"
    if accident == "deleted":
        file.unlink()
    else:
        file.write_bytes(b"" if accident == "emptied" else file.read_bytes()[:-9])
    with read_only(path) as alone:
        assert values(alone, "t", 1) == RECORDS
    with opened(path) as store:
        about = store.describe_topic("t")
        assert (about.format, len(about.partitions)) == (format_name, 3)
        assert values(store, "t", 1) == RECORDS
        assert any(event.path == str(file) for event in store.recovery_report.of("rebuilt"))
    assert file.exists()


def test_a_keratin_topic_is_known_without_its_topic_file_and_log_header(tmp_path: Path) -> None:
    path = made(tmp_path, "keratin")
    flip(log_of(path), 0)
    (path / "topics/t/topic.json").unlink()
    with opened(path) as store:
        assert store.describe_topic("t").format == "keratin"
        assert values(store) == RECORDS


@BOTH
@pytest.mark.parametrize("accident", ["deleted", "damaged"])
def test_a_lost_ledger_leaves_ranges_that_are_named_lost(
    tmp_path: Path, format_name: str, accident: str
) -> None:
    path = made(tmp_path, format_name, rolled_after=4)
    with opened(path) as store:
        store.trim("t", 0, 4)
    file = segments(path).parent / "ledger.json"
    file.unlink() if accident == "deleted" else flip(file, 30)
    with opened(path) as store:
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(0, 4, "lost")]
        assert len(store.recovery_report.of("quarantined")) == (accident == "damaged")
        served_and_growing(store, RECORDS[4:], 8)


# ---------------------------------------------------------------- again


@BOTH
@pytest.mark.parametrize(
    "accident", ["torn tail", "damage", "sealed damage", "manifest ahead", "tomb", "none"]
)
def test_recovering_twice_changes_nothing_more(
    tmp_path: Path, format_name: str, accident: str
) -> None:
    path = made(tmp_path, format_name, rolled_after=4)
    log = log_of(path, 0 if accident == "sealed damage" else 1)
    starts = positions(log, CODECS[format_name])
    if accident == "torn tail":
        log.write_bytes(log.read_bytes() + b"\x01\x5e torn")
    elif accident in ("damage", "sealed damage"):
        flip(log, starts[2] - 1)
    elif accident == "manifest ahead":
        write_checkpoint(path, checkpoint.PartitionCheckpoint("t", 0, 20, 4, 0, 20))
    elif accident == "tomb":
        (segments(path) / f"{0:020}.tomb").write_bytes(b"")
    opened(path).close()
    first = tree(path)
    for _ in range(2):
        with opened(path) as store:
            killed = copied(path)
            gaps = store.gaps("t")
        assert tree(path) == first
        with opened(killed) as store:
            assert store.gaps("t") == gaps
        assert tree(killed) == first


@BOTH
def test_the_report_is_kept_as_a_file(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    log_of(path).write_bytes(log_of(path).read_bytes() + b"torn")
    with opened(path) as store:
        store.maintain()
        (event,) = report_of(path)
        assert event["kind"] == "cut"
        assert event["path"].endswith(".log")
        assert event["end_byte"] - event["first_byte"] == 4
        report = json.loads((path / "meta/recovery.json").read_text())
        assert report["milliseconds"] == store.recovery_report.milliseconds > 0
    opened(path).close()
    assert report_of(path) == [], "closing writes it, if no tick came before"


def test_opening_again_replaces_no_file(tmp_path: Path) -> None:
    path = made(tmp_path, "keratin", rolled_after=4)
    before = {file: file.stat().st_ino for file in path.rglob("*") if file.is_file()}
    store = opened(path)
    after = {file: file.stat().st_ino for file in path.rglob("*") if file.is_file()}
    store.close()
    assert after == before


def test_a_manifest_says_what_is_durable(tmp_path: Path) -> None:
    path = made(tmp_path, "keratin", rolled_after=4)
    found = manifest.decode((segments(path).parent / "manifest.bin").read_bytes())
    assert (found.active_base_offset, found.next_offset) == (4, 8)
    assert [(each.base_offset, each.next_offset) for each in found.segments] == [(0, 4)]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("above", [0, 1, 5])
def test_exactly_what_lies_above_the_checkpoint_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str, above: int
) -> None:
    """An fsync that failed may have left it in the cache, marked as clean."""
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"known"] * 5)
        store.maintain()
        for number in range(above):
            store.append("t", b"new %d" % number)
        killed = copied(path)
    (log,) = files_of(killed, "log")
    starts = positions(log, CODECS[format_name])
    written: list[tuple[int, int]] = []
    write = LocalFile.write_at

    def noted(file: LocalFile, position: int, data: Any) -> None:
        if os.path.samestat(os.fstat(file._descriptor), log.stat()):
            written.append((position, position + len(data)))
        write(file, position, data)

    monkeypatch.setattr(LocalFile, "write_at", noted)
    with opened(killed):
        assert written == ([(starts[5], starts[-1])] if above else [])


@BOTH
def test_opening_reads_of_a_log_what_is_not_known_to_be_durable(
    tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However full the last segment is: after a kill as much is read as when it had just begun."""
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        for _ in range(30):
            store.append("t", [b"x" * 1000] * 100)
        store.flush()
        store.append("t", [b"later" * 200] * 100)  # so large that no space is prepared behind it
        killed = copied(tmp_path / "data")
    read: list[int] = []
    read_at, load = LocalFile.read_at, LocalFile.load

    def counted(file: LocalFile, position: int, length: int) -> bytes:
        data = read_at(file, position, length)
        read.append(len(data) * file._path.endswith(".log"))
        return data

    def loaded(file: LocalFile) -> Any:
        read.append(file.size())
        return load(file)

    monkeypatch.setattr(LocalFile, "read_at", counted)
    monkeypatch.setattr(LocalFile, "load", loaded)
    size = log_of(killed).stat().st_size
    with opened(killed) as store:
        monkeypatch.undo()
        assert values(store)[-1] == b"later" * 200
        assert store.latest_offset("t") == 3100
    assert sum(read) < size / 3
