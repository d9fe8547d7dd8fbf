from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pd
import pytest
from datafusion import SessionContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lamina
from lamina.engines.dataset import LogDataset, Stripe
from lamina.errors import InvalidRequest, RecordsMissing, UnknownTopic
from lamina.records import FARTHEST_MS, TIMESTAMP

FORMATS = ("frame", "keratin", "wal")
RECORDS, PARTITIONS = 400, 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a topic of each format; times go back and forth."""
    path = str(tmp_path_factory.mktemp("engines") / "data")
    random = np.random.default_rng(7)
    with lamina.open(path) as store:
        for name in FORMATS:
            store.create_topic(name, partitions=PARTITIONS, format=name)
            for partition in range(PARTITIONS):
                for _ in range(4):
                    times = random.integers(0, 1000, RECORDS // 4) * 1000
                    values = [str(each).encode() for each in random.integers(0, 9, len(times))]
                    table = {"value": values, "timestamp": pa.array(times).cast(TIMESTAMP)}
                    store.append(name, pa.table(table), partition=partition)
                    if name != "wal":
                        store.roll(name)
    return path


@pytest.fixture(scope="module")
def topics(data: str) -> Iterator[dict[str, LogDataset]]:
    found = {name: lamina.dataset(data, name) for name in FORMATS}
    yield found
    for each in found.values():
        each.close()


def seconds(number: int) -> pa.Scalar:
    return pa.scalar(number * 1_000_000, pa.timestamp("us", tz="UTC"))


def conditions() -> st.SearchStrategy[Any]:
    """Filters over all columns that prune, one that does not, and what SQL makes of them."""
    compare = st.sampled_from(["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
    offsets = st.tuples(st.just("_offset"), compare, st.integers(-5, RECORDS + 5))
    partitions = st.tuples(st.just("_partition"), compare, st.integers(-1, PARTITIONS))
    times = st.tuples(st.just("_timestamp"), compare, st.integers(-1, 1001).map(seconds))
    values = st.tuples(st.just("value"), compare, st.integers(0, 9).map(lambda n: b"%d" % n))
    leaves = st.one_of(offsets, partitions, times, values).map(
        lambda part: getattr(pc.field(part[0]), part[1])(part[2])
    )
    some = st.lists(st.integers(0, RECORDS), min_size=1, max_size=3).map(
        lambda numbers: pc.field("_offset").isin(numbers)
    )
    return st.recursive(
        leaves | some,
        lambda below: st.one_of(
            st.tuples(below, below).map(lambda two: two[0] & two[1]),
            st.tuples(below, below).map(lambda two: two[0] | two[1]),
            below.map(lambda one: ~one),
        ),
        max_leaves=5,
    )


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filter=conditions())
def test_a_pruned_scan_gives_what_filtering_everything_gives(
    topics: dict[str, LogDataset], name: str, filter: Any
) -> None:
    table = topics[name]
    assert table.to_table(filter=filter).equals(table.to_table().filter(filter))


@pytest.mark.parametrize("name", FORMATS)
def test_only_what_can_match_is_read(topics: dict[str, LogDataset], name: str) -> None:
    table = topics[name]
    first = 1 if name == "wal" else 0
    end = first + RECORDS
    assert table.stripes() == [Stripe(number, first, end) for number in range(PARTITIONS)]
    assert table.stripes(pc.field("_offset") == 9) == [
        Stripe(number, 9, 10) for number in range(PARTITIONS)
    ]
    assert table.stripes(pc.field("_partition") == 2) == [Stripe(2, first, end)]
    times = table.to_table(columns=["_timestamp"], filter=pc.field("_partition") == 1)
    newest = pc.max(times.column(0))
    where = pc.index(times.column(0), newest).as_py() + first
    late = (pc.field("_timestamp") >= newest) & (pc.field("_partition") == 1)
    assert table.stripes(late) == [Stripe(1, where, end)]
    assert table.stripes(pc.field("_timestamp") > seconds(10**6)) == []


@pytest.mark.parametrize("name", FORMATS)
def test_every_engine_counts_the_same(topics: dict[str, LogDataset], name: str, data: str) -> None:
    orders = topics[name]
    expected = orders.to_table().filter(
        (pc.field("_timestamp") >= seconds(500)) & (pc.field("_partition") != 1)
    )
    total = expected.num_rows
    assert 0 < total < RECORDS * PARTITIONS
    condition = "_timestamp >= timestamptz '1970-01-01 00:08:20+00' and _partition <> 1"
    query = f"select count(*), sum(_offset) from orders where {condition}"
    assert duckdb.sql(query).fetchall() == [(total, pc.sum(expected.column("_offset")).as_py())]
    since = datetime.datetime.fromtimestamp(500, datetime.UTC)
    lazy = lamina.polars.scan(data, name).filter(
        (polars.col("_timestamp") >= since) & (polars.col("_partition") != 1)
    )
    assert lazy.select(polars.len()).collect().item() == total
    context = SessionContext()
    context.register_dataset("orders", orders)
    (counted,) = context.sql("select count(*) as n from orders where _offset < 10").collect()
    assert counted.column("n").to_pylist() == [orders.count_rows(filter=pc.field("_offset") < 10)]
    assert len(orders.to_table().to_pandas()) == RECORDS * PARTITIONS


def test_a_limit_ends_the_scan(topics: dict[str, LogDataset], monkeypatch: Any) -> None:
    table, read = topics["keratin"], []
    scan = table._store.scan

    def counted(*given: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in scan(*given, **options, max_records=10):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(table._store, "scan", counted, raising=False)
    assert table.head(25).num_rows == 25
    assert sum(read) == 30
    reader = table.scanner().to_reader()
    read.clear()
    reader.read_next_batch()
    reader.close()
    assert read == [10]


def test_columns_and_expressions_are_projected(topics: dict[str, LogDataset]) -> None:
    table = topics["frame"]
    chosen = table.to_table(columns=["value", "_offset"], filter=pc.field("_partition") == 0)
    assert chosen.schema.names == ["value", "_offset"]
    doubled = table.to_table(columns={"twice": pc.field("_offset") + pc.field("_offset")})
    assert doubled.column("twice").to_pylist()[:3] == [0, 2, 4]
    assert table.scanner(columns=[]).count_rows() == RECORDS * PARTITIONS
    narrowed = table.filter(pc.field("_offset") < 2)
    assert narrowed.count_rows(filter=pc.field("_partition") == 1) == 2


def test_extreme_times_fail_no_query(tmp_path: Path) -> None:
    times = [-(1 << 62), -1, 0, FARTHEST_MS, (1 << 62)]
    with lamina.open(str(tmp_path / "data")) as store:
        store.create_topic("t")
        column = pa.array(times, pa.int64()).cast(TIMESTAMP)
        store.append("t", pa.table({"value": [b"x"] * 5, "timestamp": column}))
        orders = lamina.dataset(store, "t")
        late = pc.field("_timestamp") > seconds(1)
        assert orders.to_table(filter=late).column("_offset").to_pylist() == [3, 4]
        assert duckdb.sql("select count(*) from orders where _timestamp < now()").fetchall() == [
            (3,)
        ]


def test_what_is_lost_is_an_error_or_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    with lamina.open(str(path)) as store:
        store.create_topic("t", format="frame")
        store.append("t", [b"a" * 100, b"b" * 100, b"c" * 100])
        store.roll("t")
    (log,) = (each for each in path.rglob("*.log") if each.stat().st_size)
    held = bytearray(log.read_bytes())
    held[held.index(b"b" * 100) + 7] ^= 1
    log.write_bytes(held)
    with lamina.dataset(str(path), "t") as strict:
        with pytest.raises(RecordsMissing) as missing:
            strict.to_table()
        assert (missing.value.first, missing.value.end) == (1, 2)
        assert strict.failure is missing.value
        assert strict.to_table(filter=pc.field("_offset") > 1).num_rows == 1
    with (
        caplog.at_level(logging.WARNING, "lamina.engines"),
        lamina.dataset(str(path), "t", fail_on_data_loss=False) as lax,
    ):
        assert lax.to_table().column("_offset").to_pylist() == [0, 2]
    assert "1 offsets are left out" in caplog.text


@pytest.mark.parametrize("name", ["frame", "keratin"])
def test_a_loss_in_front_of_everything_is_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data"
    with lamina.open(str(path)) as store:
        store.create_topic("t", format=name)
        for _ in range(2):
            store.append("t", [b"a", b"b"])
            store.roll("t")
    for gone in path.rglob(f"{0:020}.*"):
        gone.unlink()
    with lamina.dataset(str(path), "t") as table:
        with pytest.raises(RecordsMissing) as missing:
            table.to_table()
        assert (missing.value.first, missing.value.end, missing.value.reason) == (0, 2, "lost")
        assert table.to_table(filter=pc.field("_offset") >= 2).num_rows == 2


def test_archived_and_served_topics_are_tables_too(tmp_path: Path) -> None:
    data, archive = str(tmp_path / "data"), str(tmp_path / "archive")
    with lamina.open(data, archive=archive) as store:
        store.create_topic("t", config={"remote.storage.enable": "true"})
        store.append("t", [b"%d" % number for number in range(100)])
        store.roll("t")
        store.archive()
    with lamina.dataset(f"file://{archive}", "t") as cold:
        found = cold.to_table(filter=pc.field("_offset") >= 90)
        assert found.column("value").to_pylist() == [b"%d" % number for number in range(90, 100)]


def test_wrong_arguments_are_refused(data: str) -> None:
    with pytest.raises(UnknownTopic):
        lamina.dataset(data, "nothing")
    with pytest.raises(InvalidRequest, match="api_key"):
        lamina.dataset(data, "frame", api_key="k")
    with pytest.raises(InvalidRequest, match="archive"):
        lamina.dataset("grpc://127.0.0.1:1", "frame", archive="a")
    with (
        lamina.open(data, read_only=True) as store,
        pytest.raises(InvalidRequest, match="already"),
    ):
        lamina.dataset(store, "frame", archive="a")
    with pytest.raises(InvalidRequest, match="topic"):
        lamina.dataset(data, 7)  # type: ignore[arg-type]


def _sorted(dataset: LogDataset) -> object:
    return dataset.sort_by("_offset")


def _joined(dataset: LogDataset) -> object:
    return dataset.join(pd.dataset(pa.table({"_offset": [1]})), "_offset")


def _joined_to(dataset: LogDataset) -> object:
    return pd.dataset(pa.table({"_offset": [1]})).join(dataset, "_offset")


def _scanned(dataset: LogDataset) -> object:
    return pd.Scanner.from_dataset(dataset).to_table()


def _united(dataset: LogDataset) -> object:
    return pd.UnionDataset(dataset.schema, [dataset]).to_table()


@pytest.mark.parametrize("use", [_sorted, _joined, _joined_to, _scanned, _united])
def test_what_arrow_does_behind_python_s_back_is_refused_and_ends_no_process(
    topics: dict[str, LogDataset], use: Callable[[LogDataset], object]
) -> None:
    refusals = "a topic is none: use to_table|not supported in join"
    with pytest.raises((TypeError, pa.ArrowInvalid), match=refusals):
        use(topics["keratin"])


def test_a_fragment_gives_batches_too(topics: dict[str, LogDataset]) -> None:
    fragments = list(topics["keratin"].get_fragments())
    counts = [sum(batch.num_rows for batch in each.to_batches()) for each in fragments]
    assert counts == [RECORDS] * PARTITIONS
