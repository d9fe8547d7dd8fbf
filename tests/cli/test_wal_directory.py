"""`lamina verify` and `lamina dump` on directories that the write-ahead log itself has made."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.store.store import Store

HOT = "segments/0000000000000001"
COLD = "cold/0000000000000001"
WAL = "wal/wal-1.log"
SEALED = f"{HOT}/seg-00000000000000000011"
ACTIVE = f"{HOT}/seg-00000000000000000021"
SNAPSHOT = "meta/snapshot-1.bin"


def settings(data: Path) -> WalSettings:
    return WalSettings(
        shards=1, segment_events=10, cold_directory=str(data / "cold"), hot_segments=1
    )


def opened(data: Path) -> Store:
    return Store(str(data), wal=settings(data), tick_ms=1 << 30)


def filled(data: Path) -> Store:
    """A store with records in every layer, two of them deleted, and a topic that is gone."""
    store = opened(data)
    store.create_topic("t", format="wal")
    store.create_topic("gone", format="wal")
    for number in range(1, 26):
        tag = b"red" if number in (3, 14) else b"blue"
        store.append("t", [{"value": b"value %d" % number, "tag": tag, "timestamp": number}])
    store.maintain()
    assert store.delete("t", tag=b"red") == 2
    store.delete_topic("gone")
    store.append("t", b"newest")
    return store


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """What a killed process leaves: the files as they are while the store is open."""
    with filled(tmp_path / "live"):
        copied = tmp_path / "killed"
        shutil.copytree(tmp_path / "live", copied)
        yield copied


def dumped(lamina: Any, path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lamina("dump", "--json", path).rows
    return rows


def test_a_killed_store_is_sound_and_every_layer_is_there(killed: Path, lamina: Any) -> None:
    ran = lamina("verify", killed)
    assert (ran.code, "all sound" in ran.out) == (0, True)
    for name in (WAL, "wal/CURRENT", SNAPSHOT, f"{COLD}/seg-00000000000000000001.data",
                 f"{SEALED}.data", f"{SEALED}.idx", f"{ACTIVE}.data", f"{ACTIVE}.idx"):  # fmt: skip
        assert (killed / name).stat().st_size > 0
        assert all(row["checksum"] in ("ok", "none") for row in dumped(lamina, killed / name))


def test_a_closed_and_a_recovered_store_are_sound(killed: Path, lamina: Any) -> None:
    opened(killed).close()
    assert lamina("verify", killed).code == 0
    with opened(killed) as store:
        assert store.latest_offset("t") == 27
        assert lamina("verify", killed).code == 0


def test_the_wal_is_dumped_frame_by_frame(killed: Path, lamina: Any) -> None:
    rows = dumped(lamina, killed / WAL)
    appends = [row for row in rows if row["type"] == "APPEND"]
    assert [row["offset"] for row in appends] == list(range(1, 27))
    assert appends[-1]["value"] == "newest"
    others = [row for row in rows if row["type"] != "APPEND"]
    kinds = {row["type"] for row in others}
    assert kinds == {"TOPIC_CREATE", "CHECKPOINT_MARK", "DELETE", "TOPIC_DELETE"}
    (deleted,) = [row["body"] for row in others if row["type"] == "DELETE"]
    assert (deleted["tag"], deleted["upper_sequence"]) == ("red", 26)
    marks = [row["body"]["topics"] for row in others if row["type"] == "CHECKPOINT_MARK"]
    assert [mark["highest_sequence"] for topics in marks for mark in topics] == [25]


def test_segments_are_dumped_from_an_offset_on(killed: Path, lamina: Any) -> None:
    ran = lamina("dump", "--json", "--from", 24, killed / f"{ACTIVE}.data")
    assert [(row["offset"], row["value"]) for row in ran.rows] == [
        (24, "value 24"),
        (25, "value 25"),
    ]


def test_a_snapshot_tells_of_topics_and_what_was_deleted(killed: Path, lamina: Any) -> None:
    opened(killed).close()
    newest = sorted((killed / "meta").glob("snapshot-*.bin"))[-1]
    (row,) = dumped(lamina, newest)
    (topic,) = row["topics"]
    assert (topic["name"], topic["deleted"]) == ("t/0", [[3, 4], [14, 15]])
    assert [each["topic_id"] for each in row["deleted_topics"]] == [2]


DAMAGED = {
    WAL: 200,
    "wal/CURRENT": 2,
    SNAPSHOT: 40,
    f"{COLD}/seg-00000000000000000001.data": 100,
    f"{SEALED}.data": 60,
    f"{SEALED}.idx": 20,
    f"{ACTIVE}.data": 60,
    f"{ACTIVE}.idx": 20,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_byte_is_found_in_its_own_file_only(killed: Path, lamina: Any, name: str) -> None:
    data = bytearray((killed / name).read_bytes())
    data[DAMAGED[name]] ^= 0x40
    (killed / name).write_bytes(data)
    ran = lamina("verify", killed)
    found = [line for line in ran.out.splitlines() if str(killed) in line]
    assert ran.code == 1
    assert found
    assert all(str(killed / name) in line for line in found)


@pytest.mark.parametrize("name", [WAL, f"{SEALED}.data", f"{ACTIVE}.data"])
def test_a_damaged_record_costs_a_dump_only_itself(killed: Path, lamina: Any, name: str) -> None:
    path = killed / name
    sound = [row["position"] for row in dumped(lamina, path)]
    data = bytearray(path.read_bytes())
    data[sound[2] + 20] ^= 1
    path.write_bytes(data)
    rows = dumped(lamina, path)
    bad = [row for row in rows if row["checksum"] == "bad"]
    assert [(row["position"], row["resumes_at"]) for row in bad] == [(sound[2], sound[3])]
    assert [row["position"] for row in rows] == sound


def test_a_torn_wal_is_told_from_one_that_was_prepared(killed: Path, lamina: Any) -> None:
    path = killed / WAL
    rows = dumped(lamina, path)
    end = rows[-1]["position"] + rows[-1]["size"]
    data = path.read_bytes()
    assert len(data) > end, "space was prepared"
    path.write_bytes(data[:end])
    assert lamina("verify", path).code == 0
    path.write_bytes(data[: end - 3])
    ran = lamina("verify", path)
    assert (ran.code, "ends inside a record" in ran.out) == (1, True)


@pytest.mark.parametrize("name", [f"{SEALED}.idx", f"{ACTIVE}.idx", "wal/CURRENT", SNAPSHOT])
def test_what_is_derived_may_be_missing(killed: Path, lamina: Any, name: str) -> None:
    (killed / name).unlink()
    assert lamina("verify", killed).code == 0


def test_what_recovery_set_aside_is_known_and_not_reported_again(killed: Path, lamina: Any) -> None:
    path = killed / f"{SEALED}.data"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    (path.with_suffix(".idx")).unlink()  # so that opening walks the segment
    with opened(killed) as store:
        (event,) = store.recovery_report.of("quarantined")
    assert event.kept_in is not None
    assert Path(event.kept_in).read_bytes() in bytes(data)
    ran = lamina("verify", killed)
    lines = [line for line in ran.out.splitlines() if str(killed) in line]
    assert lines
    assert all(str(path) in line for line in lines)
