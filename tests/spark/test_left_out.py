"""Archived records that a reader was not told of: found all the same, or named and counted."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import ArchiveUnavailable, RecordsMissing
from lamina.spark.gaps import LOGGER
from lamina.spark.logs import archived_log
from lamina.storage import paths
from lamina.store.store import Store
from tests.spark.logs import START_MS, batch_rows, reader, rows_of, stream
from tests.spark.tiers import CONFIG, NONE_KEPT, append, by_hand, numbers

FORMATS = ("frame", "keratin", "wal")
COUNT = 2000


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_log, "LOOK_S", 0.0)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    with caplog.at_level(logging.WARNING, LOGGER.name):
        yield lambda: [each.getMessage() for each in caplog.records if "left out" in each.message]


def make(path: Path, format_name: str, *, archive: Any = None) -> int:
    """A topic of which most is archived only; returns where its local records begin."""
    with by_hand(path, archive=archive or str(path / "cold")) as store:
        config = CONFIG | {"local.retention.bytes": NONE_KEPT}
        store.create_topic("t", format=format_name, config=config)
        append(store, "t", format_name, 0, COUNT - 250)
        store.roll("t")
        store.archive()
        append(store, "t", format_name, COUNT - 250, 250)
        store.maintain()
        return local_start(store)


def local_start(store: Store) -> int:
    for each in store.segmented(["t"]):
        return each.layout.earliest_offset
    return store.wal_partitions(["t"])[0].local_start


def spans_of(store: Store) -> list[tuple[int, int]]:
    """Where the archived objects begin and end."""
    archived = [*store.segmented(["t"]), *store.wal_partitions(["t"])][0].cold
    assert archived is not None
    archived.load()
    return [(each.base_offset, each.next_offset) for each in archived.entries]


def first_of(format_name: str) -> int:
    return 1 if format_name == "wal" else 0


def times(rows: list[tuple[Any, ...]]) -> list[int]:
    return sorted(round(row[5].timestamp() * 1000) for row in rows)


def offsets(rows: list[tuple[Any, ...]]) -> list[int]:
    return sorted(row[4] for row in rows)


@pytest.mark.parametrize("format_name", FORMATS)
def test_times_are_found_in_the_archived_part(tmp_path: Path, format_name: str) -> None:
    assert make(tmp_path, format_name) > 1000
    later = batch_rows(tmp_path / "data", subscribe="t", startingTimestamp=START_MS + 300)
    assert times(later) == numbers(300, COUNT)
    before = batch_rows(tmp_path / "data", subscribe="t", endingTimestamp=START_MS + 500)
    assert times(before) == numbers(0, 500)


def test_archived_records_that_are_too_old_are_no_rows(tmp_path: Path) -> None:
    """Of a wal topic: `retention.ms` is exact for whoever reads."""
    now_ms = time.time_ns() // 1_000_000
    config = CONFIG | {"local.retention.bytes": NONE_KEPT}
    with by_hand(tmp_path, archive=str(tmp_path / "cold")) as store:
        store.create_topic("t", format="wal", config=config)
        for number in range(1, 1001):
            age_ms = 3_600_000 if number <= 500 else 0
            store.append("t", [{"value": b"x" * 99, "timestamp": now_ms - age_ms}], acks=0)
        store.roll("t")
        store.archive()
        assert local_start(store) > 600
        store.alter_topic("t", {"retention.ms": 1_800_000})
    assert offsets(batch_rows(tmp_path / "data", subscribe="t")) == list(range(501, 1001))
    assert offsets(
        batch_rows(tmp_path / "data", subscribe="t", startingTimestamp=START_MS)
    ) == list(range(501, 1001))


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_directory_remembers_its_archive(tmp_path: Path, format_name: str) -> None:
    assert make(tmp_path, format_name) > 1000
    rows = batch_rows(tmp_path / "data", subscribe="t")
    assert times(rows) == numbers(0, COUNT)
    reading = stream(tmp_path / "data", subscribe="t", startingOffsets="earliest")
    start = reading.initialOffset()
    end = reading.latestOffset(start, reading.getDefaultReadLimit())
    assert times(rows_of(reading, list(reading.partitions(start, end)))) == numbers(0, COUNT)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("how", ["forgotten", "away", "refused"])
def test_an_archive_that_nobody_can_reach_stops_a_query_or_is_counted(
    tmp_path: Path, format_name: str, how: str, told: Any
) -> None:
    local, given = make(tmp_path, format_name), {"subscribe": "t"}
    if how == "forgotten":
        os.unlink(tmp_path / "data" / paths.ARCHIVE_LOCATION)
    elif how == "away":
        os.rename(tmp_path / "cold", tmp_path / "elsewhere")
    else:
        given["archive"] = ""
    with pytest.raises(ArchiveUnavailable, match=f"{first_of(format_name)} to"):
        batch_rows(tmp_path / "data", **given)
    rows = batch_rows(tmp_path / "data", **given, failOnDataLoss="false")
    assert offsets(rows) == list(range(local, COUNT + first_of(format_name)))
    (message,) = told()
    assert message.startswith(f"{local - first_of(format_name)} offsets are left out: t/0: ")
    assert "(archived)" in message


@pytest.mark.parametrize("format_name", FORMATS)
def test_deleted_and_dropped_records_are_no_loss_wherever_they_lie(
    tmp_path: Path, format_name: str, told: Any
) -> None:
    make(tmp_path, format_name)
    gone = 0
    with by_hand(tmp_path) as store:
        if format_name == "wal":
            gone = store.delete("t", 0, tag=b"key 3") if hasattr(store, "delete") else 0
        store.trim("t", 0, 300)
        wanted = [
            time
            for batch in store.scan("t", 0, store.earliest_offset("t"))
            for time in batch.column("timestamp").cast("int64").to_pylist()
        ]
    rows = batch_rows(tmp_path / "data", subscribe="t")
    assert times(rows) == sorted(wanted)
    assert told() == []
    assert (gone > 0) == (format_name == "wal")


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_damaged_object_costs_its_own_records_and_is_named(
    tmp_path: Path, format_name: str, damage: str, told: Any
) -> None:
    make(tmp_path, format_name)
    keys = sorted((tmp_path / "cold" / "data" / "t" / "0").glob("*.seg"))
    assert len(keys) > 2
    with by_hand(tmp_path) as store:
        spans = spans_of(store)
    victim, span = keys[1], spans[1]
    if damage == "gone":
        victim.unlink()
    else:
        raw = bytearray(victim.read_bytes())
        raw[300] ^= 1
        victim.write_bytes(raw)
    with pytest.raises(RecordsMissing, match=victim.name) as caught:
        batch_rows(tmp_path / "data", subscribe="t")
    gone = caught.value.first, caught.value.end
    assert span[0] <= gone[0] < gone[1] <= span[1]
    assert damage == "flipped" or gone == span
    rows = batch_rows(tmp_path / "data", subscribe="t", failOnDataLoss="false")
    first = first_of(format_name)
    kept = [n for n in range(first, COUNT + first) if not gone[0] <= n < gone[1]]
    assert offsets(rows) == kept
    assert any(victim.name in message for message in told())
    assert any(f"{gone[1] - gone[0]} offsets" in message for message in told())


def test_a_plan_says_what_it_leaves_out(tmp_path: Path) -> None:
    local = make(tmp_path, "frame")
    reading = reader(tmp_path / "data", subscribe="t", archive="", failOnDataLoss="false")
    plan = reading.plan()  # type: ignore[attr-defined]
    assert [tuple(each) for each in plan.left_out] == [("t/0", 0, local, "archived")]
    assert str(plan).endswith(f"{local} offsets left out")


@pytest.mark.parametrize("format_name", ["frame", "keratin"])
def test_a_loss_in_front_of_everything_is_told(tmp_path: Path, format_name: str) -> None:
    with Store(str(tmp_path / "data")) as store:
        store.create_topic("t", format=format_name)
        for _ in range(2):
            store.append("t", [b"a", b"b"])
            store.roll("t")
    for gone in (tmp_path / "data").rglob(f"{0:020}.*"):
        gone.unlink()
    with pytest.raises(RecordsMissing, match="offsets 0 to 2"):
        batch_rows(tmp_path / "data", subscribe="t")
    rows = batch_rows(tmp_path / "data", subscribe="t", failOnDataLoss="false", columns="offset")
    assert rows == [(2,), (3,)]
