"""The row jobs on local Spark: what they store, what a dry run and a second run leave alone."""

from __future__ import annotations

import datetime
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import lamina
import lamina.spark
from lamina.errors import InvalidRequest, Locked, RecordsMissing, UnsupportedField
from lamina.spark.jobs import copy, profile_page
from lamina.spark.jobs import export as exporting
from lamina.spark.jobs import ingest as ingesting
from lamina.spark.jobs import profile as profiling
from lamina.spark.jobs.job import Silent, Summary
from lamina.spark.jobs.lakes.delta_table import DeltaLake
from lamina.spark.jobs.lakes.iceberg_table import IcebergLake
from lamina.spark.jobs.lakes.parquet_table import ParquetLake, committed
from lamina.spark.jobs.lakes.table_lock import alone_in
from lamina.spark.jobs.whereabouts import Place
from lamina.storage.files import LocalFiles
from lamina.store.store import Store
from tests.server.rig import served
from tests.spark.logs import START_MS, fill, stored, values

DAY_MS = 86_400_000
PLAIN = {"headers": "drop", "value": "empty"}
SMALL = {"segment.bytes": 16 << 10}


class Told(Silent):
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.expected: list[tuple[int, str]] = []

    def expect(self, count: int, unit: str) -> None:
        self.expected.append((count, unit))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Topic `k` has two partitions, headers, a tombstone, late records and two days."""
    path = tmp_path / "data"
    with Store(str(path)) as store:
        store.create_topic("k", partitions=2, config=SMALL)
        store.create_topic("other", partitions=3)
        fill(store, "k", 1000, headers=True)
        store.append("k", [{"key": b"key 1", "value": None, "timestamp": START_MS + DAY_MS}])
        store.append("k", [{"key": b"key 1", "value": b"late", "timestamp": START_MS}])
    return path


def place(log: Path) -> Place:
    return Place.of(str(log), None)


def tree(path: Path) -> dict[str, tuple[int, int]]:
    return {
        str(each): (each.stat().st_size, each.stat().st_mtime_ns)
        for each in path.rglob("*")
        if each.is_file()
    }


def append(log: Path, *records: Any) -> None:
    with Store(str(log)) as store:
        store.append("k", list(records))


def held(log: Path, topic: str) -> Counter[bytes]:
    with lamina.open(str(log), read_only=True) as store:
        return values(store, topic)


# ---------------------------------------------------------------- convert


def convert(spark: SparkSession, log: Path, *, dry_run: bool = False, **asked: Any) -> Summary:
    given: dict[str, Any] = {"format": "frame", "rules": PLAIN} | asked
    conversion = copy.Conversion("k", "plain", **given)
    return copy.convert(spark, place(log), conversion, dry_run=dry_run, progress=Silent())


def test_convert_keeps_order_and_adds_only_what_is_new(spark: SparkSession, log: Path) -> None:
    before = tree(log)
    planned = convert(spark, log, dry_run=True)
    assert planned.totals["offsets"] == 1002
    assert tree(log) == before
    assert convert(spark, log).totals["records"] == 1002
    with lamina.open(str(log), read_only=True) as store:
        assert store.describe_topic("plain").format == "frame"
        for partition in (0, 1):
            names = ("key", "value", "timestamp")
            expected = [(k, v or b"", t) for k, v, t in stored(store, "k", partition, *names)]
            assert stored(store, "plain", partition, *names) == expected
    assert convert(spark, log).totals["records"] == 0
    append(log, b"one more")
    again = convert(spark, log, rules=PLAIN | {"value": "none"})
    assert again.totals["records"] == 1, "other rules do not convert everything again"
    assert held(log, "plain")[b"one more"] == 1
    assert sum(held(log, "plain").values()) == 1003


def test_convert_refuses_what_a_format_cannot_keep(spark: SparkSession, log: Path) -> None:
    before = tree(log)
    with pytest.raises(UnsupportedField, match=r"headers and null values.*--map headers=drop"):
        convert(spark, log, rules={})
    with pytest.raises(InvalidRequest, match="nothing to map"):
        convert(spark, log, rules=PLAIN | {"key": "drop"})
    with pytest.raises(InvalidRequest, match="not a rule here"):
        convert(spark, log, rules=PLAIN | {"headers": "key"})
    assert tree(log) == before, "nothing, not even the target, was made"
    with pytest.raises(UnsupportedField, match="headers"):
        convert(spark, log, rules=PLAIN | {"headers": "none"})
    assert held(log, "plain") == Counter()
    assert convert(spark, log).totals["records"] == 1002


def test_one_run_of_a_job_at_a_time(spark: SparkSession, log: Path) -> None:
    convert(spark, log)
    append(log, b"one more")
    [folder] = (log / "sink").glob("of-convert-*")
    with alone_in(LocalFiles(), str(folder)), pytest.raises(Locked, match="already"):
        convert(spark, log)
    assert convert(spark, log).totals["records"] == 1


# ---------------------------------------------------------------- replay


def test_replay_stores_a_range_once_for_each_name(spark: SparkSession, log: Path) -> None:
    def replay(name: str, **how: Any) -> int:
        asked = copy.Replay("k", "other", name, lambda _, partition: (100 + partition, 200))
        done = copy.replay(spark, place(log), asked, progress=Silent(), **how)
        return int(done.totals["offsets" if done.dry_run else "records"])

    before = tree(log)
    assert replay("first", dry_run=True) == 199
    assert tree(log) == before
    assert replay("first", dry_run=False) == 199
    assert replay("first", dry_run=False) == 0
    with lamina.open(str(log), read_only=True) as store:
        wanted = Counter(
            row[0]
            for partition in (0, 1)
            for row in stored(store, "k", partition, "value")[100 + partition : 200]
        )
        assert values(store, "other") == wanted
    assert replay("second", dry_run=False) == 199
    assert held(log, "other") == wanted + wanted


# ---------------------------------------------------------------- ingest


def ingest(spark: SparkSession, log: Path, source: object, **how: Any) -> Summary:
    dry_run = how.pop("dry_run", False)
    asked = ingesting.Ingestion(str(source), "other", **how)
    return ingesting.ingest(spark, place(log), asked, dry_run=dry_run, progress=Silent())


def test_ingest_takes_each_file_once(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("key,value\nk1,v1\nk2,v2\n")
    before = tree(log)
    assert ingest(spark, log, folder, format="csv", dry_run=True).totals["files"] == 1
    assert tree(log) == before
    assert ingest(spark, log, folder, format="csv").totals["records"] == 2
    assert ingest(spark, log, folder, format="csv").totals["records"] == 0
    (folder / "b.csv").write_text("key,value\nk3,v3\n")
    more = ingest(spark, log, folder, format="csv").totals
    assert (more["records"], more["files"]) == (1, 1)
    assert held(log, "other") == Counter([b"v1", b"v2", b"v3"])
    (folder / "c.csv").write_text('key,value\nk4,v4\nk5,"v5",more\n')
    with pytest.raises(InvalidRequest, match=r"c\.csv"):
        ingest(spark, log, folder, format="csv")
    assert held(log, "other") == Counter([b"v1", b"v2", b"v3"])
    (folder / "c.csv").unlink()
    assert ingest(spark, log, folder, format="csv").totals["records"] == 0, "it does not get stuck"


def test_ingest_maps_columns_and_loses_none(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"user": "u1", "at": 1700000000123, "n": null}\n')
    with pytest.raises(InvalidRequest, match="no column 'value'"):
        ingest(spark, log, path, format="json")
    with pytest.raises(InvalidRequest, match="have no place in a record"):
        ingest(spark, log, path, format="json", fields={"value": "user"})
    fields = {"value": "json", "key": "user", "timestamp": "at"}
    assert ingest(spark, log, path, format="json", fields=fields).totals["records"] == 1
    spark.createDataFrame([("t1",)], "value string").createOrReplaceTempView("rows_of_a_table")
    assert ingest(spark, log, "rows_of_a_table", format="table").totals["records"] == 1
    assert ingest(spark, log, "rows_of_a_table", format="table").totals["records"] == 0
    with lamina.open(str(log), read_only=True) as store:
        rows = [
            row
            for partition in range(3)
            for row in stored(store, "other", partition, "key", "value", "timestamp")
        ]
    [made] = [row for row in rows if row[0] == b"u1"]
    assert json.loads(made[1]) == {"user": "u1", "at": 1700000000123, "n": None}
    assert made[2] == datetime.datetime.fromtimestamp(1700000000.123, datetime.UTC)
    assert [row[1] for row in rows if row[0] is None] == [b"t1"]


# ---------------------------------------------------------------- export


def export(spark: SparkSession, log: Path, lake: Any, *, dry_run: bool = False) -> Summary:
    return exporting.export(spark, place(log), "k", lake, dry_run=dry_run, progress=Silent())


def everything(log: Path) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    with lamina.open(str(log), read_only=True) as store:
        for partition in (0, 1):
            rows = stored(store, "k", partition, "offset", "timestamp", "key", "value", "headers")
            found.update((partition, *row) for row in rows)
    return found


def rows_of(table: Any) -> Counter[tuple[Any, ...]]:
    names = ("partition", "offset", "timestamp", "key", "value", "headers")
    columns = [table[name].to_pylist() for name in names]
    columns[-1] = [
        tuple((each["key"], each["value"]) for each in row) if row else None  # pyiceberg gives []
        for row in columns[-1]
    ]
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_export_adds_only_what_is_new(
    spark: SparkSession, log: Path, tmp_path: Path, kind: str
) -> None:
    table = str(tmp_path / "table")
    (tmp_path / "lake").mkdir()
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/lake",
    }

    def lake() -> Any:
        if kind == "iceberg":
            return IcebergLake("shop.orders", "default", catalog)
        return ParquetLake(table) if kind == "parquet" else DeltaLake(table)

    def read() -> Any:
        if kind == "parquet":
            plain = pq.read_table(table)
            assert Counter(plain["offset"].to_pylist()) == Counter(
                offset
                for path in committed(table)
                for offset in pq.read_table(path, partitioning=None)["offset"].to_pylist()
            )
            return plain
        if kind == "delta":
            return DeltaTable(table).to_pyarrow_table()
        return load_catalog("default", **catalog).load_table("shop.orders").scan().to_arrow()

    assert export(spark, log, lake(), dry_run=True).totals["offsets"] == 1002
    assert not Path(table).exists()
    done = export(spark, log, lake())
    assert done.totals["records"] == 1002
    assert [row["date"] for row in done.rows] == ["2023-11-14", "2023-11-15"]
    assert rows_of(read()) == everything(log)
    assert export(spark, log, lake()).totals["records"] == 0
    append(log, b"one more")
    assert export(spark, log, lake()).totals["records"] == 1
    assert rows_of(read()) == everything(log)
    with Store(str(log)) as store:
        store.delete_topic("k")
        store.create_topic("k")
        store.append("k", [b"another topic of the same name"])
    with pytest.raises(InvalidRequest, match="holds"):
        export(spark, log, lake())


def test_export_stops_at_a_loss_or_goes_on_without_it(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    lake = ParquetLake(str(tmp_path / "table"))
    export(spark, log, lake)
    with Store(str(log)) as store:
        fill(store, "k", 1000, headers=True, first=5000)
        for partition in (0, 1):
            store.roll("k", partition)
            store.trim("k", partition, store.latest_offset("k", partition))
        store.append("k", [b"after the loss"])
    with pytest.raises(RecordsMissing):
        export(spark, log, ParquetLake(str(tmp_path / "table")))
    done = exporting.export(
        spark,
        place(log),
        "k",
        ParquetLake(str(tmp_path / "table")),
        skip_lost=True,
        dry_run=False,
        progress=Silent(),
    )
    assert done.totals["records"] == 1


# ---------------------------------------------------------------- beside producers


def test_jobs_run_while_producers_append(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    with Store(str(log)) as store, lamina.spark.publishing(store):
        store.create_topic("plain", partitions=2, format="frame")

        def produce() -> None:
            number = 0
            while not stop.wait(0.005):
                store.append("k", [b"live %d" % number])
                number += 1

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for _ in range(2):
                convert(spark, log)
                export(spark, log, ParquetLake(str(tmp_path / "table")))
        finally:
            stop.set()
            producer.join()
    convert(spark, log)
    export(spark, log, ParquetLake(str(tmp_path / "table")))
    expected = Counter({value or b"": count for value, count in held(log, "k").items()})
    assert any(value.startswith(b"live ") for value in expected)
    assert held(log, "plain") == expected
    assert rows_of(pq.read_table(tmp_path / "table")) == everything(log)


# ---------------------------------------------------------------- profile


def test_jobs_reach_topics_through_a_server(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    lake = ParquetLake(str(tmp_path / "table"))
    state = str(tmp_path / "state")
    conversion = copy.Conversion("k", "plain", format="frame", rules=PLAIN, state=state)
    with served(log) as service:
        there = Place.of(None, service.flight_url)
        for count in (1002, 0):
            done = exporting.export(spark, there, "k", lake, dry_run=False, progress=Silent())
            assert done.totals["records"] == count
        for count in (1002, 0):
            made = copy.convert(spark, there, conversion, dry_run=False, progress=Silent())
            assert made.totals["records"] == count
    assert rows_of(pq.read_table(tmp_path / "table")) == everything(log)
    assert sum(held(log, "plain").values()) == 1002


def test_profile_measures_and_draws_a_harmless_page(spark: SparkSession, log: Path) -> None:
    hostile = b"<script>alert(1)</script>\"'&"
    with Store(str(log)) as store:
        store.append("k", [(hostile, b"x" * 10_000)] * 600)
    told = Told()
    summary, found = profiling.profile(spark, place(log), "k", dry_run=False, progress=told)
    assert found is not None
    with lamina.open(str(log), read_only=True) as store:
        rows = [
            row
            for partition in (0, 1)
            for row in stored(store, "k", partition, "key", "value", "timestamp")
        ]
        late = sum(_late(stored(store, "k", partition, "timestamp")) for partition in (0, 1))
    sizes = Counter((len(k or b"") + len(v or b"")).bit_length() for k, v, _ in rows)
    assert summary.totals["records"] == len(rows) == 1602
    assert summary.totals["bytes"] == sum(len(k or b"") + len(v or b"") for k, v, _ in rows)
    assert summary.totals["no_key"] == sum(key is None for key, _, _ in rows)
    assert summary.totals["tombstones"] == 1
    assert {at: n for at, n in enumerate(found.whole.sizes) if n} == dict(sizes)
    assert int(found.whole.late[1:].sum()) == late > 0
    assert found.keys.top(1) == [(hostile, 600)]
    assert summary.totals["keys"] == len({key for key, _, _ in rows if key is not None})
    assert {row["what"] for row in summary.rows} == {"partition", "size", "late", "key"}
    page = profile_page.page(found)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") == 4


def _late(times: list[tuple[Any, ...]]) -> int:
    latest, count = times[0][0], 0
    for (time,) in times:
        count += time < latest
        latest = max(latest, time)
    return count
