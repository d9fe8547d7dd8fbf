"""What a wal topic keeps: caps never take more than they name, and what has expired is not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.config import WalSettings
from lamina.errors import RecordsMissing
from lamina.store.store import Store
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

TTL = {"retention.ms": 1000}
DAY_MS = 86_400_000


def missing(store: Any, start: int = 1) -> tuple[int, int, str]:
    """Reads on from an offset and returns the first gap that is told."""
    with pytest.raises(RecordsMissing) as told:
        list(store.scan("t", 0, start))
    return told.value.first, told.value.end, told.value.reason


# ---------------------------------------------------------------- caps


def test_a_record_cap_keeps_the_segment_that_straddles_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal", config={"retention.records": 10})
        fill(store, 1, 12)
        store.maintain()
        assert values(store) == numbered(1, 12)
        why = [each.why for each in store.explain_retention("t")]
        assert why[0] == "without it less than retention.records would be left"
        fill(store, 12, 20)
        store.maintain()
        assert values(store) == numbered(1, 20)
        fill(store, 20, 21)
        store.maintain()
        assert contents(store)[0] == numbered(11, 21)


def test_a_byte_cap_keeps_the_segment_that_straddles_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal")
        fill(store, 1, 31)
        store.maintain()
        sizes = [each.segment.size_bytes for each in store.explain_retention("t")]
        store.alter_topic("t", {"retention.bytes": sum(sizes[1:]) + 1})
        store.maintain()
        assert values(store) == numbered(1, 31)
        store.alter_topic("t", {"retention.bytes": sum(sizes[1:])})
        store.maintain()
        assert contents(store)[0] == numbered(11, 31)


def test_a_byte_cap_counts_nothing_twice_after_a_crash(tmp_path: Path) -> None:
    """Records of segments that the WAL still holds were counted as the tail's own once more."""
    store = opened(tmp_path, replace(SMALL, wal_bytes=1 << 20))
    store.create_topic("t", format="wal")
    fill(store, 1, 61)
    store.maintain()
    fill(store, 61, 63)
    store.flush()
    before = store.describe_topic("t").partitions[0].size_bytes
    crash(store)
    with opened(tmp_path) as again:
        assert abs(again.describe_topic("t").partitions[0].size_bytes - before) < 10


def test_a_record_cap_counts_records_that_can_be_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", format="wal", config={"retention.records": 10})
        fill(store, 1, 41)
        store.delete("t", offsets=range(5, 36))
        store.maintain()
        kept = numbered(1, 5) | numbered(36, 41)
        assert contents(store) == (kept, [])


def test_a_cap_holds_in_the_cold_directory(tmp_path: Path) -> None:
    cold = str(tmp_path / "cold")
    settings = replace(SMALL, cold_directory=cold, hot_segments=1)
    with opened(tmp_path / "data", settings) as store:
        store.create_topic("t", format="wal", config={"retention.records": 40})
        fill(store, 1, 50)
        store.maintain()
        assert values(store) == numbered(1, 50)
        assert len(list((tmp_path / "cold").glob("*/*.data"))) == 3
        fill(store, 50, 51)
        store.maintain()
        assert contents(store)[0] == numbered(11, 51)


# ---------------------------------------------------------------- age


def aged(path: Path, clock: Clock, layer: str) -> Store:
    """Five records that have expired and five that have not, all in one layer."""
    store = opened(path, now_ms=clock)
    store.create_topic("t", format="wal", config=TTL)
    fill(store, 1, 6)
    clock.ms += 600
    fill(store, 6, 9)
    fill(store, 9, 11)
    if layer == "sealed":
        store.roll("t")
    if layer == "checkpointed":
        store.maintain()
    clock.ms += 600
    return store


LAYERS = pytest.mark.parametrize("layer", ["wal", "checkpointed", "sealed"])


@LAYERS
def test_what_has_expired_is_a_gap_at_once_in_every_layer(tmp_path: Path, layer: str) -> None:
    clock = Clock()
    with aged(tmp_path, clock, layer) as store:
        assert missing(store) == (1, 6, "retention")
        assert missing(store, 3) == (3, 6, "retention")
        assert contents(store)[0] == numbered(6, 11)
        assert store.earliest_offset("t") == 6
        assert store.describe_topic("t").partitions[0].earliest_offset == 6
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [
            (1, 6, "retention")
        ]
        with pytest.raises(RecordsMissing):
            store.fetch("t", 0, 2)
        answer = store.diff("t", 0, 1)
        assert answer.records.column("offset").to_pylist() == list(range(6, 11))
        assert [(gap.first, gap.end, gap.reason) for gap in answer.gaps] == [(1, 6, "retention")]
        assert store.offset_for_time("t", 0, 0) == 6
        with looked_at(tmp_path, now_ms=clock) as reader:
            assert missing(reader) == (1, 6, "retention")
            assert contents(reader)[0] == numbered(6, 11)
            assert reader.earliest_offset("t") == 6


@LAYERS
def test_a_group_is_given_nothing_that_has_expired(tmp_path: Path, layer: str) -> None:
    clock = Clock()
    with aged(tmp_path, clock, layer) as store:
        group = store.group("t", "g")
        found = group.poll(max_records=100)
        assert found.column("offset").to_pylist() == list(range(6, 11))


@LAYERS
@pytest.mark.parametrize("killed", [False, True])
def test_what_has_expired_does_not_come_back(tmp_path: Path, layer: str, killed: bool) -> None:
    clock = Clock()
    store = aged(tmp_path, clock, layer)
    store.maintain()
    store.alter_topic("t", {"retention.ms": DAY_MS})
    assert contents(store)[0] == numbered(6, 11)
    crash(store) if killed else store.close()
    clock.ms -= DAY_MS // 2
    with opened(tmp_path, now_ms=clock) as store:
        assert contents(store)[0] == numbered(6, 11)
        assert missing(store) == (1, 6, "retention")


def test_another_age_that_counts_at_once_brings_nothing_back(tmp_path: Path) -> None:
    clock = Clock()
    with aged(tmp_path, clock, "wal") as store:
        store.alter_topic("t", {"retention.ms": -1})
        assert missing(store) == (1, 6, "retention")
        store.alter_topic("t", {"retention.ms": 100})
        assert contents(store)[0] == {}
        assert store.earliest_offset("t") == 11
        fill(store, 11, 12)
        assert contents(store)[0] == numbered(11, 12)


def test_a_record_that_is_too_old_when_it_comes_is_never_seen(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        store.create_topic("t", format="wal", config=TTL)
        store.append("t", [{"value": b"late", "timestamp": clock.ms - 5000}])
        assert missing(store) == (1, 2, "retention")
        store.append("t", [{"value": b"later", "timestamp": clock.ms - 5000}])
        assert missing(store) == (1, 3, "retention")
        store.append("t", [b"value 3"])
        assert contents(store)[0] == numbered(3, 4)


def test_one_that_is_young_holds_back_what_follows_it(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        store.create_topic("t", format="wal", config=TTL)
        store.append("t", [{"value": b"value 1", "timestamp": clock.ms + 5000}])
        fill(store, 2, 5)
        clock.ms += 2000
        for _ in range(2):
            assert values(store) == numbered(1, 5)
            store.roll("t")


def test_a_clock_that_jumps_ahead_hides_and_evicts_nothing(tmp_path: Path) -> None:
    wall, steady = Clock(), Clock()
    with opened(tmp_path, now_ms=wall) as store:
        for clocks in (store._boot, store.write_ahead_log()._ground):
            object.__setattr__(clocks, "steady_ms", steady)
        store.create_topic("t", format="wal", config={**TTL, "local.retention.ms": 1000})
        fill(store, 1, 26)
        store.maintain()
        wall.ms += 10 * 365 * DAY_MS
        store.maintain()
        assert values(store) == numbered(1, 26)
        steady.ms += 1001
        assert contents(store)[0] == {}


def test_a_clock_that_is_set_back_does_not_stop_checkpoints_and_sealing(tmp_path: Path) -> None:
    wall, steady = Clock(), Clock()
    settings = WalSettings(shards=1, checkpoint_ms=100, snapshot_ms=100, segment_age_ms=100)
    with opened(tmp_path, settings, now_ms=wall) as store:
        for clocks in (store._boot, store.write_ahead_log()._ground):
            object.__setattr__(clocks, "steady_ms", steady)
        store.create_topic("t", format="wal")
        fill(store, 1, 4)
        wall.ms -= DAY_MS
        steady.ms += 200
        store._maintenance.tick()
        assert store.describe_topic("t").partitions[0].segments == 1
        steady.ms += 200
        store._maintenance.tick()
        assert [each.segment.sealed for each in store.explain_retention("t")] == [True]


def test_what_a_group_is_waited_for_is_not_hidden_by_its_age(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, now_ms=clock) as store:
        config = {**TTL, "retention.wait.groups": "g"}
        store.create_topic("t", format="wal", config=config)
        fill(store, 1, 6)
        clock.ms += 5000
        assert values(store) == numbered(1, 6)


def test_an_expired_segment_goes_with_its_files_and_the_floor_is_durable_first(
    tmp_path: Path,
) -> None:
    clock = Clock()
    store = opened(tmp_path, now_ms=clock)
    store.create_topic("t", format="wal", config=TTL)
    fill(store, 1, 26)
    store.maintain()
    clock.ms += 600
    fill(store, 26, 36)
    store.maintain()
    clock.ms += 600
    store.maintain()
    assert len(list(tmp_path.glob("segments/*/*.data"))) == 2
    crash(store)
    clock.ms -= 600
    with opened(tmp_path, now_ms=clock) as store:
        assert contents(store)[0] == numbered(26, 36)
        assert not store.recovery_report.of("gap")
