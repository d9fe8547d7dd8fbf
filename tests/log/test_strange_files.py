"""Files that are not what their names say: foreign, newer, overlapping, or sealed half-way."""

from __future__ import annotations

import gzip
import os
import shutil
import zlib
from pathlib import Path

import pytest

from lamina.errors import NewerFormat
from lamina.formats.kernels.crc import crc32c_of
from lamina.formats.log_format import CODECS
from lamina_torture.scribe import open_store
from lamina_torture.simulated import SimulatedFiles
from tests.support.directories import (
    FORMATS,
    copied,
    files_of,
    flip,
    offsets,
    opened,
    positions,
    read_only,
    segments,
    tree,
    values,
)

BOTH = pytest.mark.parametrize("format_name", FORMATS)
RECORDS = [b"record %d" % number for number in range(12)]
FOREIGN = {
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(range(256)) * 20,
    "text": b"the quick brown fox\n" * 50,
    "short text": b"hello\n",
    "gzip": gzip.compress(os.urandom(900)),
}


def made(root: Path, format_name: str, *, rolls: tuple[int, ...] = (4, 8)) -> Path:
    """A closed directory with twelve records, in segments that begin at 0, 4 and 8."""
    path = root / f"made-{format_name}"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for number, record in enumerate(RECORDS):
            if number in rolls:
                store.roll("t")
            store.append("t", [record])
    return path


def log_of(path: Path, number: int) -> Path:
    return files_of(path, "log")[number]


def quiet(path: Path) -> None:
    """Opens a directory once more: nothing is left to do, or to say."""
    with opened(path) as store:
        assert store.recovery_report.events == []


def kept_whole(path: Path, data: bytes) -> bool:
    quarantine = path / "quarantine"
    return any(each.is_file() and each.read_bytes() == data for each in quarantine.rglob("*"))


# ---------------------------------------------------------------- a roll that did not finish


@BOTH
def test_zeros_behind_a_sealed_segment_are_cut_once(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    whole = log_of(path, 0).read_bytes()
    log_of(path, 0).write_bytes(whole + bytes(70_000))
    with read_only(path) as reader:
        assert values(reader) == RECORDS
    with opened(path) as store:
        (event,) = store.recovery_report.events
        assert (event.kind, event.first_byte, event.end_byte) == (
            "cut",
            len(whole),
            len(whole) + 70_000,
        )
        assert values(store) == RECORDS
    assert log_of(path, 0).read_bytes() == whole
    assert not (path / "quarantine").exists()
    quiet(path)


@BOTH
def test_other_bytes_behind_a_sealed_segment_are_kept_aside(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path, format_name)
    whole = log_of(path, 0).read_bytes()
    log_of(path, 0).write_bytes(whole + b"not zeros")
    with opened(path) as store:
        assert values(store) == RECORDS
        assert store.recovery_report.of("cut")[0].kept_in
    assert log_of(path, 0).read_bytes() == whole
    assert kept_whole(path, b"not zeros")
    quiet(path)


@BOTH
def test_what_was_cut_behind_a_sealed_segment_is_gone_when_power_is_lost(format_name: str) -> None:
    files = SimulatedFiles()
    with open_store(files) as store:
        store.create_topic("t", format=format_name)
        store.append("t", RECORDS)
        store.roll("t")
    (log, *_) = sorted(path for path in files.contents() if path.endswith(".log"))
    size = files.size(log)
    file = files.open(log)
    file.write_at(size, bytes(9000))
    file.sync()
    open_store(files).close()
    assert files.size(log) == size
    assert files.snapshot().crash("dropped").size(log) == size


# ---------------------------------------------------------------- newer, or one flipped bit


def newer_record(log: Path, format_name: str, *, field: str) -> None:
    """Gives the last record of a log a version or a flag of the future, soundly."""
    data = bytearray(log.read_bytes())
    if format_name == "frame":
        start = data.rindex(b"\x01\x5e\x0b\xb1")
        data[start + (4 if field == "version" else 6)] = 2
        data[-8:-4] = zlib.crc32(data[start:-8]).to_bytes(4, "little")
    else:
        start = data.rindex(b"KR\0\1")
        data[start + 3] = 2
        data[-4:] = crc32c_of(bytes(data[start + 2 : -4])).to_bytes(4, "big")
    log.write_bytes(data)


@pytest.mark.parametrize(
    ("format_name", "field"), [("frame", "version"), ("frame", "flags"), ("keratin", "version")]
)
@pytest.mark.parametrize("segment", [0, 2])
@pytest.mark.parametrize("watermark", ["known", "forgotten"])
def test_a_sound_record_of_a_newer_version_is_refused_and_never_cut(
    tmp_path: Path, format_name: str, field: str, segment: int, watermark: str
) -> None:
    path = made(tmp_path, format_name)
    newer_record(log_of(path, segment), format_name, field=field)
    for index in files_of(path, "idx"):
        index.unlink()
    if watermark == "forgotten":
        (path / "meta/checkpoint.json").unlink()
        (segments(path).parent / "manifest.bin").unlink(missing_ok=True)
    before = log_of(path, segment).read_bytes()
    with pytest.raises(NewerFormat, match=log_of(path, segment).name):
        opened(path)
    assert log_of(path, segment).read_bytes() == before
    with read_only(path) as reader, pytest.raises(NewerFormat):
        values(reader)


@BOTH
@pytest.mark.parametrize("segment", [0, 2])
def test_a_flipped_bit_anywhere_in_a_log_never_looks_like_a_newer_format(
    tmp_path: Path, format_name: str, segment: int
) -> None:
    path = made(tmp_path, format_name)
    whole = log_of(path, segment).read_bytes()
    for byte in [*range(0, 68, 3), 8, 9, 12, 13, 14, 15]:
        place = copied(path)
        hurt = bytearray(whole)
        hurt[byte % len(whole)] ^= 1 << (byte % 8)
        log_of(place, segment).write_bytes(hurt)
        with opened(place) as store:
            assert len(offsets(store)) >= 11
            assert store.latest_offset("t") == 12
        shutil.rmtree(place)


@pytest.mark.parametrize("byte", [0, 8, 9, 13, 15, 20, 40, 66])
@pytest.mark.parametrize("segment", [0, 2])
def test_a_damaged_header_is_written_again_and_costs_no_record(
    tmp_path: Path, byte: int, segment: int
) -> None:
    path = made(tmp_path, "keratin")
    whole = log_of(path, segment).read_bytes()
    hurt = bytearray(whole)
    hurt[byte] ^= 2
    log_of(path, segment).write_bytes(hurt)
    with read_only(path) as reader:
        assert values(reader) == RECORDS
    with opened(path) as store:
        (event,) = store.recovery_report.of("rebuilt")
        assert "header" in event.why
        assert Path(event.kept_in or "").read_bytes() == hurt[:68]
        assert f".log.{event.first_byte}." in (event.kept_in or ""), "where it lay is in its name"
        assert values(store) == RECORDS
    assert log_of(path, segment).read_bytes()[68:] == whole[68:]
    quiet(path)


def test_a_longer_header_under_its_own_checksum_is_a_newer_format(tmp_path: Path) -> None:
    path = made(tmp_path, "keratin")
    data = log_of(path, 0).read_bytes()
    head = data[:8] + b"\0\2\0\0" + (80).to_bytes(4, "big") + data[16:64] + bytes(12)
    newer = head + crc32c_of(head).to_bytes(4, "big") + data[68:]
    log_of(path, 0).write_bytes(newer)
    with pytest.raises(NewerFormat, match=log_of(path, 0).name):
        opened(path)
    with pytest.raises(NewerFormat, match=log_of(path, 0).name), read_only(path) as reader:
        values(reader)
    assert log_of(path, 0).read_bytes() == newer


@pytest.mark.parametrize("name", ["meta/checkpoint.json", "topics/t/topic.json", "manifest"])
def test_a_flipped_bit_in_the_version_of_a_small_file_shuts_nothing(
    tmp_path: Path, name: str
) -> None:
    path = made(tmp_path, "keratin")
    file = segments(path).parent / "manifest.bin" if name == "manifest" else path / name
    data = bytearray(file.read_bytes())
    at = 9 if name == "manifest" else data.index(b'"version": 1') + 11
    data[at] ^= 2  # 1 becomes 3
    file.write_bytes(data)
    with opened(path) as store:
        assert values(store) == RECORDS
        assert store.recovery_report.of("rebuilt")
    quiet(path)


# ---------------------------------------------------------------- foreign files


@BOTH
@pytest.mark.parametrize("what", [*FOREIGN, "other format"])
def test_a_foreign_file_as_the_only_log_is_kept_whole(
    tmp_path: Path, format_name: str, what: str
) -> None:
    path = made(tmp_path, format_name, rolls=())
    other = made(tmp_path, "keratin" if format_name == "frame" else "frame", rolls=())
    data = FOREIGN.get(what) or log_of(other, 0).read_bytes()
    log_of(path, 0).write_bytes(data)
    for forgotten in ("meta/checkpoint.json", "topics/t/0/manifest.bin"):
        (path / forgotten).unlink(missing_ok=True)
    with read_only(path) as reader:
        assert values(reader) == []
    with opened(path) as store:
        (event,) = store.recovery_report.of("quarantined")
        assert Path(event.kept_in or "").read_bytes() == data
        assert values(store) == []
        assert store.append("t", [b"first"]).parts[0].base_offset == 0
    quiet(path)


@BOTH
def test_a_foreign_last_segment_is_a_gap_and_the_end_stays(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path, format_name)
    log_of(path, 2).write_bytes(FOREIGN["jpeg"])
    with opened(path) as store:
        assert offsets(store) == list(range(8))
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(8, 12, "lost")]
        assert store.append("t", [b"more"]).parts[0].base_offset == 12
    assert kept_whole(path, FOREIGN["jpeg"])
    quiet(path)


@BOTH
def test_a_foreign_middle_segment_is_a_gap(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    log_of(path, 1).write_bytes(FOREIGN["text"])
    with opened(path) as store:
        assert offsets(store) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(4, 8, "lost")]
    assert kept_whole(path, FOREIGN["text"])
    quiet(path)


@BOTH
def test_a_foreign_file_beyond_the_end_moves_no_offset(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    stray = segments(path) / f"{9999:020}.log"
    stray.write_bytes(FOREIGN["text"])
    with opened(path) as store:
        assert values(store) == RECORDS
        assert not store.gaps("t")
        assert store.append("t", [b"more"]).parts[0].base_offset == 12
    assert kept_whole(path, FOREIGN["text"])
    quiet(path)


@BOTH
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("base", [13, 9999])
def test_a_copy_of_a_segment_beyond_the_end_moves_no_offset(
    tmp_path: Path, format_name: str, number: int, base: int
) -> None:
    path = made(tmp_path, format_name)
    data = log_of(path, number).read_bytes()
    (segments(path) / f"{base:020}.log").write_bytes(data)
    with read_only(path) as store:
        assert (store.latest_offset("t"), store.gaps("t")) == (12, ())
    with opened(path) as store:
        assert values(store) == RECORDS
        assert not store.gaps("t")
        assert store.append("t", [b"more"]).parts[0].base_offset == 12
    assert kept_whole(path, data)
    quiet(path)


@BOTH
def test_a_torn_first_record_is_no_foreign_file(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name, rolls=())
    (path / "meta/checkpoint.json").unlink()
    (segments(path).parent / "manifest.bin").unlink(missing_ok=True)
    log = log_of(path, 0)
    log.write_bytes(log.read_bytes()[:80] if format_name == "keratin" else log.read_bytes()[:20])
    with opened(path) as store:
        assert store.recovery_report.of("quarantined") == []
        assert values(store) == []
    assert not (path / "quarantine").exists()


# ---------------------------------------------------------------- missing and overlapping


@BOTH
def test_a_missing_middle_segment_is_a_gap_once(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    log_of(path, 1).unlink()
    with opened(path) as store:
        assert offsets(store) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(4, 8, "lost")]
        assert store.recovery_report.of("gap")
    quiet(path)


def overlapping(tmp_path: Path, format_name: str, *, first: int, count: int) -> tuple[Path, Path]:
    """Another history of the same topic, rolled so that a segment begins at `first`."""
    path = tmp_path / f"other-{format_name}"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        for number in range(first + count):
            if number == first:
                store.roll("t")
            store.append("t", [b"other %d" % number])
    return path, log_of(path, 1)


@BOTH
@pytest.mark.parametrize(("first", "count"), [(2, 1), (2, 4), (6, 2), (6, 20), (9, 2), (9, 20)])
@pytest.mark.parametrize("watermark", ["known", "forgotten"])
def test_overlapping_segments_serve_each_offset_once_and_never_move_the_end_back(
    tmp_path: Path, format_name: str, first: int, count: int, watermark: str
) -> None:
    path = made(tmp_path, format_name)
    if watermark == "forgotten":
        (path / "meta/checkpoint.json").unlink()
        (segments(path).parent / "manifest.bin").unlink(missing_ok=True)
    _, other = overlapping(tmp_path, format_name, first=first, count=count)
    shutil.copy(other, segments(path) / other.name)
    told = [*RECORDS, *(b"other %d" % number for number in range(first, first + count))]
    with read_only(path) as reader:
        seen = values(reader)
        assert [*range(len(seen))] == offsets(reader)
        assert len(seen) >= 12
    with opened(path) as store:
        assert store.latest_offset("t") >= 12
        assert offsets(store) == list(range(store.latest_offset("t")))
        if watermark == "known":
            assert values(store)[:12] == RECORDS
        notable = [event for event in store.recovery_report.events if event.kept_in]
        assert notable, "nobody is told"
    held = b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())
    assert all(record in held for record in told), "something is gone"
    quiet(path)


@BOTH
def test_records_of_the_next_segment_behind_damage_do_not_count(
    tmp_path: Path, format_name: str
) -> None:
    """The next segment has them itself: only what lies between the two is lost."""
    path = made(tmp_path, format_name)
    first, second, codec = log_of(path, 0), log_of(path, 1), CODECS[format_name]
    stray = second.read_bytes()[codec.header_bytes :]
    flip(first, positions(first, codec)[3] + 20)
    first.write_bytes(first.read_bytes() + stray)
    for index in first.parent.glob(f"{first.stem}.*idx"):
        index.unlink()
    for _ in range(2):
        with opened(path) as store:
            assert offsets(store) == [0, 1, 2, *range(4, 12)]
            assert [(gap.first, gap.end) for gap in store.gaps("t")] == [(3, 4)]
            assert store.latest_offset("t") == 12
    assert any(stray in each.read_bytes() for each in (path / "quarantine").rglob("*.*"))


@BOTH
def test_a_copy_of_a_segment_under_another_name_is_set_aside(
    tmp_path: Path, format_name: str
) -> None:
    path = made(tmp_path, format_name)
    copy = segments(path) / f"{6:020}.log"
    shutil.copy(log_of(path, 1), copy)
    with opened(path) as store:
        assert values(store) == RECORDS
        assert store.recovery_report.of("quarantined")
    assert not copy.exists()
    quiet(path)


@BOTH
def test_recovery_of_strange_files_is_idempotent(tmp_path: Path, format_name: str) -> None:
    path = made(tmp_path, format_name)
    log_of(path, 1).write_bytes(FOREIGN["gzip"])
    with opened(path):
        pass
    once = tree(path)
    quiet(path)
    changed = {name for name, data in tree(path).items() if once.get(name) != data}
    assert changed <= {
        "meta/recovery.json",
        "meta/checkpoint.json",
        "topics/t/0/manifest.bin",
        "meta/lock",
    }
