"""Commits of plain Parquet, stopped before every single step: all of a commit or nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lamina.errors import CorruptData, InvalidRequest, Locked
from lamina.spark.jobs.export import Export, schema_of
from lamina.spark.jobs.lakes.parquet_files import by_day, write_by_day
from lamina.spark.jobs.lakes.parquet_table import ParquetLake, committed
from lamina.spark.jobs.topic_rows import Topic
from lamina.storage.files import LocalFiles
from tests.spark.stepping import Steps, files_with

TOPIC = Topic("k", "frame", 1, 7, {0: (0, 30)}, {})
DAY_US = 86_400_000_000


class Stopped(Exception):
    pass


def stop() -> None:
    raise Stopped


def rows(first: int, end: int) -> pa.RecordBatch:
    schema = schema_of(TOPIC)
    return pa.RecordBatch.from_pylist(
        [
            {
                "partition": 0,
                "offset": offset,
                "timestamp": offset % 3 * DAY_US,
                "key": None,
                "value": b"v%d" % offset,
            }
            for offset in range(first, end)
        ],
        schema=schema,
    )


def run(path: Path, end: int, files: LocalFiles | None = None) -> None:
    """What `export` does, without Spark."""
    lake = ParquetLake(str(path), files)
    with lake.alone():
        done = lake.done(TOPIC)
        first = done.get(0, 0)
        if first < end:
            written = write_by_day(LocalFiles(), lake.directory(), [rows(first, end)])
            lake.commit(Export(TOPIC, {0: (first, end)}, written, schema_of(TOPIC), {0: end}))


def offsets(path: Path) -> list[int]:
    return sorted(
        offset
        for file in committed(str(path))
        for offset in pq.read_table(file, partitioning=None)["offset"].to_pylist()
    )


def test_every_stop_leaves_all_of_a_commit_or_nothing(tmp_path: Path) -> None:
    step, outcomes = 0, set()
    while True:
        path = tmp_path / str(step)
        run(path, 10)
        try:
            run(path, 20, files_with(Steps(step, stop)))
        except Stopped:
            seen = offsets(path)
            assert seen in (list(range(10)), list(range(20)))
            outcomes.add(len(seen))
            run(path, 30)
            assert offsets(path) == list(range(30))
            assert sorted(pq.read_table(path)["offset"].to_pylist()) == list(range(30))
            assert not list((path / "_lamina" / "staging").iterdir())
            step += 1
        else:
            break
    assert outcomes == {10, 20}
    assert step > 12


def test_a_lake_is_one_topics_and_one_runs(tmp_path: Path) -> None:
    run(tmp_path, 10)
    other = Topic("k", "frame", 2, 8, {0: (0, 30)}, {})
    with pytest.raises(InvalidRequest, match="holds an export"):
        ParquetLake(str(tmp_path)).done(other)
    with ParquetLake(str(tmp_path)).alone(), pytest.raises(Locked):
        run(tmp_path, 20)


def test_a_damaged_commit_is_named(tmp_path: Path) -> None:
    run(tmp_path, 10)
    [path] = (tmp_path / "_lamina" / "commits").iterdir()
    path.write_bytes(path.read_bytes().replace(b'"rows": 4', b'"rows": 5'))
    with pytest.raises(CorruptData, match=path.name):
        committed(str(tmp_path))


def test_days_part_rows_and_keep_their_order() -> None:
    parts = dict(by_day(rows(0, 8)))
    assert {day: part["offset"].to_pylist() for day, part in parts.items()} == {
        "1970-01-01": [0, 3, 6],
        "1970-01-02": [1, 4, 7],
        "1970-01-03": [2, 5],
    }
