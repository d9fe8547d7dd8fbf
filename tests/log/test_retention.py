"""Retention and trims: whole segments, from the front, each with its reason; readers finish."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina.config import TopicSettings
from lamina.errors import RecordsMissing
from lamina.log.layers import Kind, Known, Layer
from lamina.log.retention import explain
from tests.support.directories import (
    FORMATS,
    START_MS,
    Clock,
    copied,
    files_of,
    offsets,
    opened,
    segments,
    timed,
    values,
)

BOTH = pytest.mark.parametrize("format_name", FORMATS)
DAY_MS = 86_400_000


def pile(newest: list[int | None], *, size_bytes: int = 100) -> list[Layer]:
    """Layers of ten records; the last one is active."""
    kinds = [Kind.SEALED] * (len(newest) - 1) + [Kind.ACTIVE]
    return [
        Layer(kinds[row], 10 * row, 10 * row + 10, size_bytes, Known(newest_ms=time))
        for row, time in enumerate(newest)
    ]


def going(newest: list[int | None], config: dict[str, int], now_ms: int = 1000) -> list[bool]:
    return [each.goes for each in explain(pile(newest), TopicSettings.parse(config), now_ms)]


# ---------------------------------------------------------------- the plan


def test_without_limits_everything_stays_and_the_plan_says_so() -> None:
    decisions = explain(pile([1, 2, 3]), TopicSettings(), 10**15)
    assert [each.why for each in decisions] == [
        "no retention is set",
        "no retention is set",
        "it is the active segment",
    ]


def test_what_is_older_than_the_limit_goes_and_what_is_exactly_as_old_stays() -> None:
    assert going([899, 900, 901, 5], {"retention.ms": 100}) == [True, False, False, False]


def test_only_from_the_front() -> None:
    assert going([950, 1, 1, 1], {"retention.ms": 100}) == [False, False, False, False]
    decisions = explain(pile([950, 1, 1]), TopicSettings.parse({"retention.ms": 100}), 1000)
    assert decisions[1].why.startswith("an older segment stays, though")


def test_a_time_in_the_future_makes_a_segment_young() -> None:
    assert going([10**15, 1, 1], {"retention.ms": 100}) == [False, False, False]


def test_the_oldest_go_while_the_partition_is_too_large() -> None:
    assert going([1, 2, 3, 4], {"retention.bytes": 400}) == [False] * 4
    assert going([1, 2, 3, 4], {"retention.bytes": 300}) == [True, False, False, False]
    assert going([1, 2, 3, 4], {"retention.bytes": 200}) == [True, True, False, False]
    assert going([1, 2, 3, 4], {"retention.bytes": 0}) == [True, True, True, False]


def test_a_segment_that_straddles_a_cap_stays() -> None:
    assert going([1, 2, 3, 4], {"retention.bytes": 399}) == [False] * 4
    assert going([1, 2, 3, 4], {"retention.bytes": 301}) == [False] * 4
    assert going([1, 2, 3, 4], {"retention.bytes": 299}) == [True, False, False, False]
    decided = explain(pile([1, 2]), TopicSettings.parse({"retention.bytes": 150}), 1000)
    assert decided[0].why == "without it less than retention.bytes would be left"


def test_either_limit_is_enough() -> None:
    config = {"retention.bytes": 300, "retention.ms": 990}
    assert going([5, 5, 990, 1], config) == [True, True, False, False]


# ---------------------------------------------------------------- on files


@BOTH
def test_old_segments_go_with_all_their_files_and_a_reason(
    tmp_path: Path, format_name: str
) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        store.create_topic("t", format=format_name, config={"retention.ms": DAY_MS})
        for day in range(4):
            store.append("t", timed([START_MS + day * DAY_MS] * 3))
            store.roll("t")
        clock.now_ms = START_MS + 3 * DAY_MS
        assert [each.goes for each in store.explain_retention("t")][:3] == [True, True, False]
        store.maintain()
        assert store.earliest_offset("t") == 6
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [
            (0, 6, "retention")
        ]
        assert [int(file.stem) for file in files_of(tmp_path / "data", "log")] == [6, 9, 12]
        assert {int(file.stem) for file in segments(tmp_path / "data").iterdir()} == {6, 9, 12}
        with pytest.raises(RecordsMissing) as missing:
            store.fetch("t", 0, 2)
        found = missing.value
        assert (found.first, found.end, found.reason) == (2, 6, "retention")
        assert store.apply_retention("t") == 0
    with opened(tmp_path / "data", clock) as store:
        assert offsets(store) == [6, 7, 8, 9, 10, 11]


@BOTH
def test_a_clock_that_goes_back_removes_nothing(tmp_path: Path, format_name: str) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        store.create_topic("t", format=format_name, config={"retention.ms": 1000})
        store.append("t", timed([START_MS]))
        store.roll("t")
        clock.now_ms = START_MS - DAY_MS
        store.maintain()
        assert offsets(store) == [0]


@BOTH
def test_the_newest_time_of_a_segment_decides_also_after_a_kill(
    tmp_path: Path, format_name: str
) -> None:
    clock = Clock()
    store = opened(tmp_path / "data", clock)
    store.create_topic("t", format=format_name, config={"retention.ms": 1000})
    times = [START_MS] * 150 + [START_MS + 10_000] + [START_MS] * 149
    for first in range(0, 300, 50):
        store.append("t", timed(times[first : first + 50], size=900))
    store.roll("t")
    for path in (copied(tmp_path / "data"), copied(tmp_path / "data")):
        clock.now_ms = START_MS + 5000
        with opened(path, clock) as reopened:
            newest = reopened.explain_retention("t")[0].segment.newest_timestamp_ms
            assert newest == START_MS + 10_000
            assert reopened.earliest_offset("t") == 0
    clock.now_ms = START_MS
    store.close()


@BOTH
def test_a_trim_removes_whole_segments_below_an_offset(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        for _ in range(3):
            store.append("t", [b"a", b"b", b"c"])
            store.roll("t")
        assert store.trim("t", 0, 2) == 0
        assert store.trim("t", 0, 3) == 3
        assert store.trim("t", 0, 8) == 6
        assert store.trim("t", 0, 0) == 6
        assert [(gap.first, gap.end, gap.reason) for gap in store.gaps("t")] == [(0, 6, "trim")]
        assert offsets(store) == [6, 7, 8]


@BOTH
def test_everything_can_be_trimmed_and_no_offset_is_used_again(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b"])
        assert store.trim("t", 0, 10**12) == 2
        assert values(store) == []
        killed = copied(tmp_path / "data")
    for path in (killed, tmp_path / "data"):
        with opened(path) as store:
            assert (store.earliest_offset("t"), store.latest_offset("t")) == (2, 2)
            assert store.append("t", [b"c"]).parts[0].base_offset == 2


@BOTH
def test_different_reasons_are_told_one_after_the_other(tmp_path: Path, format_name: str) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        store.create_topic("t", format=format_name)
        for _ in range(3):
            store.append("t", [b"a", b"b"])
            store.roll("t")
        store.trim("t", 0, 2)
        store.alter_topic("t", {"retention.bytes": 0})
        store.apply_retention("t")
        reasons = []
        at = 1
        while at < 6:
            with pytest.raises(RecordsMissing) as missing:
                store.fetch("t", 0, at)
            reasons.append((at, missing.value.end, missing.value.reason))
            at = missing.value.end
        assert reasons == [(1, 2, "trim"), (2, 6, "retention")]


@BOTH
def test_an_idle_segment_is_sealed_by_age(tmp_path: Path, format_name: str) -> None:
    clock = Clock()
    with opened(tmp_path / "data", clock) as store:
        store.create_topic("t", format=format_name, config={"segment.ms": 1000})
        store.append("t", [b"a"])
        clock.now_ms += 1000
        store.maintain()
        assert len(files_of(tmp_path / "data", "log")) == 1
        clock.now_ms += 1
        store.maintain()
        assert len(files_of(tmp_path / "data", "log")) == 2
        clock.now_ms += 10**6
        store.maintain()
        assert len(files_of(tmp_path / "data", "log")) == 2, "an empty segment is not sealed"


@BOTH
def test_a_reader_that_holds_a_segment_finishes_it(tmp_path: Path, format_name: str) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b", b"c"])
        store.roll("t")
        store.append("t", [b"d", b"e"])
        reader = store.scan("t", max_records=1)
        assert next(reader).column("value").to_pylist() == [b"a"]
        store.trim("t", 0, 5)
        assert next(reader).column("value").to_pylist() == [b"b"]
        assert next(reader).column("value").to_pylist() == [b"c"]
        with pytest.raises(RecordsMissing) as missing:
            next(reader)
        found = missing.value
        assert (found.first, found.end, found.reason) == (3, 5, "trim")


@BOTH
def test_a_segment_removed_before_it_was_opened_is_named_not_a_missing_file(
    tmp_path: Path, format_name: str
) -> None:
    with opened(tmp_path / "data") as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a", b"b"])
        store.roll("t")
    with opened(tmp_path / "data") as store:
        layout = store._partitions["t", 0].layout
        store.trim("t", 0, 2)
        store._partitions["t", 0].layout = layout  # a reader looked just before the trim
        with pytest.raises(RecordsMissing) as missing:
            store.fetch("t", 0, 1)
        assert (missing.value.first, missing.value.end, missing.value.reason) == (1, 2, "trim")
