"""Times of records as Spark has them: one that it cannot hold costs no query anything."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest
from lamina.records import FARTHEST_MS, TIMESTAMP, clipped_microseconds
from lamina.spark.commit.staging import _milliseconds
from lamina.spark.jobs.lakes.iceberg_table import IcebergLake
from lamina.spark.jobs.lakes.parquet_files import by_day
from tests.spark.logs import reader

SPARKS = pa.timestamp("us", tz="UTC")
EARLIEST_MS, LATEST_MS = -(1 << 63), (1 << 63) - 1


def microseconds(*times_ms: int) -> list[int]:
    column = pa.array(times_ms, pa.int64()).cast(TIMESTAMP)
    found: list[int] = clipped_microseconds(column).cast(SPARKS).cast(pa.int64()).to_pylist()
    return found


def test_times_are_exact_as_far_as_microseconds_go_and_the_nearest_beyond() -> None:
    exact = [0, -1, 1_700_000_000_123, FARTHEST_MS, -FARTHEST_MS]
    assert microseconds(*exact) == [1000 * each for each in exact]
    last = 1000 * FARTHEST_MS
    assert microseconds(FARTHEST_MS + 1, LATEST_MS, 7) == [last, last, 7000]
    assert microseconds(-FARTHEST_MS - 1, EARLIEST_MS, 7) == [-last, -last, 7000]
    assert microseconds(EARLIEST_MS) == [-last]
    assert microseconds() == []


@pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])
def test_a_query_goes_on_over_any_time(tmp_path: Path, format_name: str) -> None:
    with lamina.open(str(tmp_path)) as store:
        store.create_topic("t", format=format_name)
        for time_ms in (5, EARLIEST_MS, LATEST_MS, 6):
            store.append("t", [{"value": b"v", "timestamp": time_ms}])
    reading = reader(tmp_path, subscribe="t", columns="timestamp")
    found = [
        each
        for task in reading.partitions()
        for batch in reading.read(task)
        for each in batch.column("timestamp").cast(pa.int64()).to_pylist()
    ]
    assert found == [5000, -1000 * FARTHEST_MS, 1000 * FARTHEST_MS, 6000]


def test_the_sink_rounds_to_the_end_of_what_there_is() -> None:
    given = pa.array([1499, 1500, -1500, -1501, LATEST_MS, EARLIEST_MS], pa.int64()).cast(SPARKS)
    found = _milliseconds(given).cast(pa.int64()).to_pylist()
    assert found == [1, 2, -1, -2, FARTHEST_MS + 1, -FARTHEST_MS - 1]


def test_exported_times_stay_within_the_years_of_tables() -> None:
    far = pa.array([-1000 * FARTHEST_MS, 0, 1000 * FARTHEST_MS], pa.int64()).cast(SPARKS)
    parted = dict(by_day(pa.record_batch([far], ["timestamp"])))
    assert list(parted) == ["0001-01-01", "1970-01-01", "9999-12-31"]
    last = parted["9999-12-31"].column("timestamp")[0].as_py()
    assert last.isoformat() == "9999-12-31T23:59:59.999999+00:00"
    within = pa.record_batch([pa.array([0, 1], SPARKS)], ["timestamp"])
    assert list(by_day(within)) == [("1970-01-01", within)]


def test_a_catalog_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(InvalidRequest, match="catalog 'nowhere' cannot be opened"):
        IcebergLake("a.b", "nowhere", {})
