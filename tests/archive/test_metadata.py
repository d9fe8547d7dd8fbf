"""A damaged small file of an archived topic costs no record: there are copies elsewhere."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.config import WalSettings
from lamina.errors import ArchiveUnavailable
from lamina.store.store import Store
from tests.archive.rig import NEVER, SETTINGS, TOPIC, values
from tests.archive.rig import read as rows

FORMATS = ["keratin", "frame", "wal"]
COUNT = 65


def _made(folder: Path, format: str) -> tuple[Path, int]:
    """A directory of which all but the last records are in the archive alone."""
    data = folder / "data"
    settings = SETTINGS | {"retention.ms": 1 << 40}
    with Store(str(data), archive=str(folder / "archive"), tick_ms=NEVER) as store:
        store.create_topic(TOPIC, format=format, config=settings)
        for first in range(0, 60, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
        store.append(TOPIC, values(60, 5))
        store.archive()
    return data, 1 if format == "wal" else 0


def _values(store: Any, first: int) -> list[bytes]:
    return [value for _, value in rows(store, first)]


def _delivered(store: Store, name: str) -> list[bytes]:
    """What a new group is given; it must skip nothing."""
    group = store.group(TOPIC, name)
    taken: list[bytes] = []
    while (batch := group.poll(50)).num_rows:
        taken += batch.column("value").to_pylist()
        group.ack(batch)
    assert list(group.skipped) == []
    return taken


def _damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "bit":
        bit = random.Random(5).randrange(8 * len(raw))
        raw[bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
    elif how == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif how == "garbage":
        path.write_bytes(random.Random(6).randbytes(len(raw)))
    else:
        path.unlink()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["topic.json", "0/ledger.json"])
@pytest.mark.parametrize("how", ["bit", "cut", "garbage", "gone"])
def test_what_is_archived_stays_readable(tmp_path: Path, format: str, name: str, how: str) -> None:
    data, first = _made(tmp_path, format)
    with lamina.open(str(data), read_only=True) as store:
        before = store.describe_topic(TOPIC)
        gaps = store.gaps(TOPIC)
    _damage(data / "topics" / TOPIC / name, how)
    with lamina.open(str(data), read_only=True) as store:
        assert _values(store, first) == values(0, COUNT)
        assert store.earliest_offset(TOPIC) == first
    for opening in range(2):
        with Store(str(data), tick_ms=NEVER) as writer:
            assert _values(writer, first) == values(0, COUNT)
            assert writer.earliest_offset(TOPIC) == first
            assert not [gap for gap in writer.gaps(TOPIC) if gap.reason == "lost"]
            found = writer.describe_topic(TOPIC)
            assert (found.settings, found.epoch, found.created_ms) == (
                before.settings,
                before.epoch,
                before.created_ms,
            )
            writer.archive()  # it is the same topic to its archive
            assert _delivered(writer, f"g{opening}") == values(0, COUNT)
    with lamina.open(str(data), read_only=True) as store:
        assert store.gaps(TOPIC) == gaps


@pytest.mark.parametrize("format", ["keratin", "frame"])
def test_a_ledger_that_is_gone_comes_back_as_its_copy_has_it(tmp_path: Path, format: str) -> None:
    data, _ = _made(tmp_path, format)
    with Store(str(data), tick_ms=NEVER) as store:
        store.delete_records(TOPIC, 0, 7)
        store.archive()
        gaps = store.gaps(TOPIC)
        assert (gaps[0].first, gaps[0].end, gaps[0].reason) == (0, 7, "trim")
    (data / "topics" / TOPIC / "0/ledger.json").unlink()
    with Store(str(data), tick_ms=NEVER) as store:
        assert "a copy was found" in str(store.recovery_report.of("rebuilt"))
        assert store.gaps(TOPIC) == gaps


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["topic.json", "0/ledger.json"])
def test_without_the_archive_nothing_is_called_lost_and_all_comes_back(
    tmp_path: Path, format: str, name: str
) -> None:
    data, first = _made(tmp_path, format)
    _damage(data / "topics" / TOPIC / name, "garbage")
    (tmp_path / "archive").rename(tmp_path / "away")
    is_hidden = format == "wal" and name == "topic.json"  # only its writer replays the WAL
    for read_only in (True, False) if not is_hidden else (False,):
        with lamina.open(str(data), read_only=read_only) as store:
            with pytest.raises(ArchiveUnavailable):
                _values(store, first)
            assert not [gap for gap in store.gaps(TOPIC) if gap.reason == "lost"]
            assert _values(store, 60 + first) == values(60, 5)
    (tmp_path / "away").rename(tmp_path / "archive")
    for read_only in (True, False):
        with lamina.open(str(data), read_only=read_only) as store:
            assert _values(store, first) == values(0, COUNT)
            if not read_only:
                store.archive()


def test_every_flipped_bit_of_both_files_is_turned_back(tmp_path: Path) -> None:
    data, first = _made(tmp_path, "keratin")
    for name in ("topic.json", "0/ledger.json"):
        path = data / "topics" / TOPIC / name
        good = path.read_bytes()
        for bit in random.Random(9).sample(range(8 * len(good)), 12):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            path.write_bytes(bad)
            with lamina.open(str(data), read_only=True, archive=str(tmp_path / "archive")) as store:
                assert _values(store, first) == values(0, COUNT)
                assert store.describe_topic(TOPIC).settings["retention.ms"] == 1 << 40
        path.write_bytes(good)


@pytest.mark.parametrize("where", ["hot", "cold"])
def test_a_damaged_local_record_of_a_wal_topic_is_taken_from_the_archive(
    tmp_path: Path, where: str
) -> None:
    data, archive, cold = str(tmp_path / "data"), str(tmp_path / "archive"), tmp_path / "cold"
    wal = WalSettings(shards=1)
    if where == "cold":
        wal = WalSettings(shards=1, cold_directory=str(cold), hot_segments=1)
    with Store(data, archive=archive, tick_ms=NEVER, wal=wal) as store:
        store.create_topic(TOPIC, format="wal", config=SETTINGS | {"local.retention.bytes": -1})
        for first in range(0, 40, 10):
            store.append(TOPIC, values(first, 10))
            store.roll(TOPIC)
            store.maintain()
        store.archive()
    damaged = []
    for path in [*tmp_path.rglob("seg-*.data"), *tmp_path.rglob("wal-*.log")]:
        raw = bytearray(path.read_bytes())
        at = raw.find(values(15, 1)[0])
        if at >= 0:
            raw[at + 5] ^= 1
            path.write_bytes(raw)
            damaged.append(path)
    assert any(path.suffix == ".data" for path in damaged)
    assert any(path.is_relative_to(cold) for path in damaged) == (where == "cold")
    with lamina.ReadOnlyStore(data, wal=wal) as reader:
        assert _values(reader, 1) == values(0, 40)
    with Store(data, tick_ms=NEVER, wal=wal) as store:
        assert _values(store, 1) == values(0, 40)
        assert store.offset_for_time(TOPIC, 0, 0) == 1
    (tmp_path / "archive").rename(tmp_path / "away")
    with Store(data, tick_ms=NEVER, wal=wal) as store:
        assert _values(store, 17) == values(16, 24)
        with pytest.raises(ArchiveUnavailable):  # it may be there: nothing is skipped as lost
            _values(store, 1)
    (tmp_path / "away").rename(tmp_path / "archive")
    with Store(data, tick_ms=NEVER, wal=wal) as store:
        assert _values(store, 1) == values(0, 40)
