"""One stream over the WAL, the active segment and sealed ones, whatever moved in between."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lamina.config import WalSettings
from lamina.errors import Closed, InvalidRequest, UnknownTopic
from tests.wal.stores import (
    SMALL,
    Clock,
    contents,
    crash,
    fill,
    looked_at,
    numbered,
    opened,
    values,
)


def test_a_record_is_read_from_the_wal_the_active_segment_and_sealed_ones(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 26)
        assert values(store) == numbered(1, 26)
        assert store.describe_topic("t").partitions[0].segments == 0
        store.maintain()
        assert store.describe_topic("t").partitions[0].segments == 3
        assert values(store) == numbered(1, 26)
        fill(store, 26, 31)
        assert values(store) == numbered(1, 31)


@pytest.mark.parametrize("maintained", [0, 1, 2])
@pytest.mark.parametrize("killed", [False, True])
def test_all_is_there_after_a_reopen(tmp_path: Path, maintained: int, killed: bool) -> None:
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    fill(store, 1, 58)
    for _ in range(maintained):
        store.maintain()
    fill(store, 58, 72)
    crash(store) if killed else store.close()
    with looked_at(tmp_path) as reader:
        assert values(reader) == numbered(1, 72)
    with opened(tmp_path) as again:
        assert again.recovery_report.of("gap") == []
        assert values(again) == numbered(1, 72)
        fill(again, 72, 80)
    with opened(tmp_path) as again:
        assert values(again) == numbered(1, 80)


def test_wal_files_are_freed_once_segments_and_two_snapshots_cover_them(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        for first in range(1, 401, 40):
            fill(store, first, first + 40)
        assert len(list(tmp_path.glob("wal/wal-*.log"))) > 3
        store.maintain()
        fill(store, 401, 402)
        store.maintain()
        store.maintain()
        assert len(list(tmp_path.glob("wal/wal-*.log"))) == 1
        assert values(store) == numbered(1, 402)
    with opened(tmp_path) as store:
        assert values(store) == numbered(1, 402)


def test_the_number_of_shards_may_change(tmp_path: Path) -> None:
    ends = dict.fromkeys("abcdefgh", 1)
    for count in (1, 8, 3, 1, 8):
        settings = WalSettings(shards=count, wal_bytes=1 << 12, segment_events=10)
        store = opened(tmp_path, settings)
        for topic, end in ends.items():
            if end == 1:
                store.create_topic(topic, format="wal")
            fill(store, end, end + 15, topic)
            ends[topic] = end + 15
        if count == 3:
            store.maintain()
        crash(store)
    with opened(tmp_path) as store:
        for topic, end in ends.items():
            assert values(store, topic) == numbered(1, end)
        store.maintain()
        store.maintain()
        for topic, end in ends.items():
            assert values(store, topic) == numbered(1, end)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("maintained", [False, True])
def test_a_recreated_topic_is_empty_and_stays_so(
    tmp_path: Path, killed: bool, maintained: bool
) -> None:
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    fill(store, 1, 30)
    if maintained:
        store.maintain()
    store.delete_topic("t")
    with pytest.raises(UnknownTopic):
        store.append("t", b"late")
    store.create_topic("t", format="wal")
    assert values(store) == {}
    fill(store, 1, 5)
    crash(store) if killed else store.close()
    with opened(tmp_path) as again:
        assert values(again) == numbered(1, 5)
        assert again.describe_topic("t").epoch == 2
        again.maintain()
        assert len(list((tmp_path / "segments").iterdir())) == 1


def test_a_segment_of_no_topic_goes_to_quarantine(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 5)
        store.maintain()
    source = tmp_path / "segments" / "0000000000000001"
    shutil.copytree(source, tmp_path / "segments" / "00000000000000aa")
    with opened(tmp_path) as store:
        assert len(store.recovery_report.of("quarantined")) == 2
        assert len(list((tmp_path / "quarantine" / "wal").iterdir())) == 2
        assert values(store) == numbered(1, 5)


def test_durability_words(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for word in ("memory", "disk", "fsync"):
            store.create_topic(word, format="wal", config={"durability": word})
        assert store.append("memory", b"x").durability == "none"
        assert store.append("disk", b"x").durability == "written"
        assert store.append("disk", b"x", acks="all").durability == "fsynced"
        assert store.append("disk", b"x", acks=0).durability == "written"
        assert store.append("fsync", b"x", acks=0).durability == "fsynced"
        with pytest.raises(InvalidRequest, match="wal"):
            store.create_topic("k", config={"durability": "disk"})


def test_caps_evict_whole_segments_and_readers_are_told(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal", config={"retention.records": 25})
        fill(store, 1, 56)
        store.maintain()
        found, gaps = contents(store)
        assert found == numbered(31, 56)
        assert [(gap.first, gap.end, gap.reason) for gap in gaps] == [(1, 31, "retention")]
        assert store.earliest_offset("t") == 31
    with opened(tmp_path) as store:
        assert contents(store)[0] == numbered(31, 56)
        assert store.gaps("t")[0].reason == "retention"


def test_age_evicts_to_the_record(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        store.create_topic("t", format="wal", config={"retention.ms": 1000})
        fill(store, 1, 26)
        clock.ms += 600
        fill(store, 26, 36)
        store.roll("t")
        clock.ms += 600
        store.maintain()
        found, gaps = contents(store)
        assert found == numbered(26, 36)
        assert gaps[0].end == 26


def test_discard_new_refuses_at_the_cap(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        config = {"retention.records": 10, "discard": "new"}
        store.create_topic("t", format="wal", config=config)
        fill(store, 1, 11)
        with pytest.raises(Exception, match="cap"):
            store.append("t", b"one too many")
        store.maintain()
        assert values(store) == numbered(1, 11)
        store.delete("t", before=6)
        fill(store, 11, 16)
        assert values(store) == numbered(6, 16)


def test_sealed_segments_move_to_the_cold_directory_and_stay_readable(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    settings = WalSettings(
        shards=1, wal_bytes=1 << 12, segment_events=10, cold_directory=str(cold), hot_segments=1
    )
    with opened(tmp_path / "data", settings) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 46)
        store.maintain()
        assert len(list(cold.glob("*/*.data"))) == 3
        assert len(list((tmp_path / "data").glob("segments/*/*.data"))) == 2
        assert values(store) == numbered(1, 46)
        assert store.delete("t", tag=b"tag 0") == 15
        expected = {key: each for key, each in numbered(1, 46).items() if key % 3}
        assert values(store) == expected
    with opened(tmp_path / "data", settings) as store:
        assert values(store) == expected
        assert store.recovery_report.of("gap") == []


def test_an_idle_segment_is_sealed_by_age(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 5)
        store.maintain()
        assert not store.explain_retention("t")[0].segment.sealed
        clock.ms += SMALL.segment_age_ms + 1
        store.maintain()
        assert store.explain_retention("t")[0].segment.sealed
        fill(store, 5, 8)
        store.maintain()
        assert store.describe_topic("t").partitions[0].segments == 2
        assert values(store) == numbered(1, 8)


def test_offset_for_time(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        store.create_topic("t", format="wal")
        for offset in range(1, 31):
            clock.ms += 10
            fill(store, offset, offset + 1)
            if offset == 25:
                store.maintain()
        start = 1_700_000_000_000
        for offset in (1, 9, 10, 11, 20, 25, 26, 30):
            assert store.offset_for_time("t", 0, start + 10 * offset) == offset
            assert store.offset_for_time("t", 0, start + 10 * offset - 5) == offset
        assert store.offset_for_time("t", 0, start + 301) is None


def test_diff_reads_are_bounded_and_leave_out_the_own_node(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        rows = [{"value": b"%d" % n, "node": b"n%d" % (n % 2)} for n in range(1, 21)]
        store.append("t", rows)
        first = store.diff("t", 0, 1, limit=8, exclude_node=b"n0")
        assert first.records.column("offset").to_pylist() == [1, 3, 5, 7]
        assert (first.next_offset, first.caught_up) == (9, False)
        rest = store.diff("t", 0, first.next_offset)
        assert (rest.records.num_rows, rest.caught_up) == (12, True)


def test_a_closed_store_answers_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.create_topic("t", format="wal")
    store.close()
    with pytest.raises(Closed):
        store.append("t", b"x")
