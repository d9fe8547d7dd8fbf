"""Files of wal topics that are not what their names say: foreign, newer, or overlapping."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

import pytest
import xxhash

from lamina.config import WalSettings
from lamina.errors import NewerFormat
from lamina.formats.wal import log
from lamina.records import prepare
from lamina.storage import paths
from lamina.store.read_only import ReadOnlyStore
from lamina.store.store import Store
from tests.support.directories import START_MS, offsets, opened, values

SETTINGS = WalSettings(shards=1, segment_events=4)
RECORDS = [b"record %d" % number for number in range(12)]
FOREIGN = {
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(range(256)) * 20,
    "text": b"the quick brown fox\n" * 50,
    "short text": b"hello\n",
    "gzip": gzip.compress(os.urandom(900)),
}


def open_at(path: Path) -> Store:
    return opened(path, wal=SETTINGS)


def look_at(path: Path) -> ReadOnlyStore:
    return ReadOnlyStore(str(path), wal=SETTINGS)


def made(path: Path, values: list[bytes] = RECORDS) -> Path:
    """A closed directory whose twelve records are in three segments, and none in the WAL."""
    with open_at(path) as store:
        store.create_topic("t", format="wal")
        for record in values:
            store.append("t", [record])
    for file in path.glob("wal/wal-*.log"):
        file.unlink()  # its records are in segments, and marked
    return path


def data_of(path: Path) -> list[Path]:
    return sorted(path.glob("segments/*/*.data"), key=lambda each: int(each.stem.split("-")[1]))


def frame(topic_id: int, sequence: int, value: bytes) -> bytes:
    """One frame of a segment: that of the WAL without its type."""
    batch = prepare([value], "wal", now_ms=START_MS)
    made = log.encode(batch, topic_id=topic_id, base_sequence=sequence, durable=True)
    return made[0].tobytes()[1:]


def kept(path: Path) -> list[bytes]:
    return [each.read_bytes() for each in (path / "quarantine").rglob("*") if each.is_file()]


def quiet(path: Path) -> None:
    with open_at(path) as store:
        assert [event.why for event in store.recovery_report.events] == []


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_in_the_wal_is_kept_whole(tmp_path: Path, what: str) -> None:
    path = made(tmp_path / "data")
    for file in path.glob("wal/wal-*.log"):
        file.unlink()
    wal = path / "wal" / "wal-1.log"
    wal.write_bytes(FOREIGN[what])
    with look_at(path) as reader:
        assert values(reader) == RECORDS
    assert wal.read_bytes() == FOREIGN[what]
    with open_at(path) as store:
        assert FOREIGN[what] in kept(path)
        assert store.recovery_report.of("quarantined")
        assert values(store) == RECORDS
        assert store.append("t", [b"more"]).parts[0].base_offset == 13
    quiet(path)
    with open_at(path) as store:
        assert values(store) == [*RECORDS, b"more"]


@pytest.mark.parametrize("tail", [b"garbage that is no frame", b"\x63" * 100])
def test_a_tail_of_the_wal_that_is_no_torn_frame_is_kept(tmp_path: Path, tail: bytes) -> None:
    path = made(tmp_path / "data")
    with open_at(path) as store:
        store.append("t", [b"in the wal"])
        shutil.copytree(path, tmp_path / "killed")
    killed = tmp_path / "killed"
    wal = max(killed.glob("wal/wal-*.log"), key=lambda each: int(each.stem.split("-")[1]))
    wal.write_bytes(wal.read_bytes().rstrip(b"\0") + tail)
    with open_at(killed) as store:
        assert values(store) == [*RECORDS, b"in the wal"]
    assert any(tail in each for each in kept(killed))


@pytest.mark.parametrize("row", [0, 1, 2])
def test_foreign_bytes_as_a_segment_are_kept_whole_and_cost_that_range(
    tmp_path: Path, row: int
) -> None:
    path = made(tmp_path / "data")
    data_of(path)[row].write_bytes(FOREIGN["jpeg"])
    with open_at(path) as store:
        left = [offset for offset in range(1, 13) if (offset - 1) // 4 != row]
        assert offsets(store) == left
        (gap,) = store.gaps("t")
        assert (gap.first, gap.end, gap.reason) == (4 * row + 1, 4 * row + 5, "lost")
        assert store.latest_offset("t") == 13
        assert store.recovery_report.of("quarantined")
    assert FOREIGN["jpeg"] in kept(path)
    quiet(path)


@pytest.mark.parametrize("row", [0, 2])
def test_a_sound_frame_with_an_unknown_flag_is_refused_and_never_cut(
    tmp_path: Path, row: int
) -> None:
    path = made(tmp_path / "data")
    file = data_of(path)[row]
    data = bytearray(file.read_bytes())
    start = data.rindex(b"record") - 37
    data[start + 4] |= 16
    data[-8:] = xxhash.xxh3_64_intdigest(bytes(data[start + 4 : -8])).to_bytes(8, "little")
    file.write_bytes(data)
    with pytest.raises(NewerFormat, match=file.name):
        open_at(path)
    assert file.read_bytes() == data


def test_a_segment_that_cannot_be_read_costs_no_other_topic(tmp_path: Path) -> None:
    path = made(tmp_path / "data")
    with open_at(path) as store:
        store.create_topic("other", format="wal")
        store.append("other", [b"here"])
    hurt = next(each for each in data_of(path) if b"record 5" in each.read_bytes())
    hurt.write_bytes(bytes(500))
    for file in path.glob("wal/wal-*.log"):
        file.unlink()
    with open_at(path) as store:
        assert values(store, "other") == [b"here"]
        assert offsets(store) == [1, 2, 3, 4, 9, 10, 11, 12]


@pytest.mark.parametrize(("first", "count"), [(3, 1), (3, 4), (6, 2), (11, 2), (11, 8)])
def test_overlapping_segments_serve_each_offset_once(
    tmp_path: Path, first: int, count: int
) -> None:
    path = made(tmp_path / "data")
    folder = data_of(path)[0].parent
    strange = b"".join(
        frame(paths.wal_topic_id(folder.name) or 0, first + number, b"other %d" % number)
        for number in range(count)
    )
    (folder / f"seg-{first:020}.data").write_bytes(strange)
    with look_at(path) as reader:
        seen = offsets(reader)
        assert seen == list(range(1, seen[-1] + 1))
        assert len(seen) >= 12
    with open_at(path) as store:
        assert offsets(store) == list(range(1, store.latest_offset("t")))
        assert store.latest_offset("t") >= 13
        assert [event for event in store.recovery_report.events if event.kept_in]
    held = b"".join(each.read_bytes() for each in path.rglob("*") if each.is_file())
    assert all(record in held for record in RECORDS)
    assert all(b"other %d" % number in held for number in range(count))
    quiet(path)
