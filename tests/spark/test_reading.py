"""Planning and reading a directory: any cut gives the same rows, and only what is asked for."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, OffsetOutOfRange, RecordsMissing, UnknownTopic
from lamina.spark.batch import BatchReader, explain
from lamina.store.store import Store
from tests.spark.logs import (
    NEVER_MS,
    START_MS,
    batch_rows,
    fill,
    make_log,
    reader,
    records,
    rows_of,
    stored,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "data"
    make_log(path)
    return path


def expected(log: Path, topic: str, *names: str) -> Counter[tuple[Any, ...]]:
    with lamina.open(str(log), read_only=True) as store:
        partitions = store.describe_topic(topic).partitions
        return Counter(
            (each.partition, *row)
            for each in partitions
            for row in stored(store, topic, each.partition, *names)
        )


@pytest.mark.parametrize("topic", ["k", "f"])
@pytest.mark.parametrize("splits", [1, 2, 8, 64])
def test_any_split_gives_the_rows_of_the_log(log: Path, topic: str, splits: int) -> None:
    reading = reader(
        log, subscribe=topic, minPartitions=splits, columns="partition,offset,key,value,timestamp"
    )
    tasks = list(reading.partitions())
    assert len(tasks) >= splits
    names = ("offset", "key", "value", "timestamp")
    assert Counter(rows_of(reading, tasks)) == expected(log, topic, *names)


def test_a_task_holds_no_more_records_than_asked_and_all_are_there(log: Path) -> None:
    reading = reader(log, subscribe="k", maxRecordsPerPartition=100, columns="partition,offset")
    tasks = list(reading.partitions())
    sizes = [len(rows_of(reading, [task])) for task in tasks]
    assert max(sizes) == 100
    assert sum(sizes) == 3000


def test_small_segments_are_merged_into_one_task(log: Path) -> None:
    plan = explain(str(log), subscribe="k")
    assert plan.sources > 10
    assert len(plan.tasks) == 1


def test_columns_have_the_names_order_and_values_of_the_kafka_source(log: Path) -> None:
    first = batch_rows(log, subscribe="f", includeHeaders="true", includeMetadata="true")[1]
    record = records(0, 2, headers=False)[1]
    key, value, topic, partition, offset, timestamp, kind, headers, tag, epoch, segment = first
    assert (key, value, topic, partition, offset) == (record["key"], record["value"], "f", 0, 1)
    assert timestamp.timestamp() * 1000 == START_MS + 1
    assert (kind, headers, tag, epoch, segment) == (0, None, None, 1, "0" * 20 + ".log")


def test_headers_are_read_where_the_format_keeps_them(log: Path) -> None:
    rows = batch_rows(log, subscribe="k", columns="value,headers")
    for value, headers in rows:
        number = value.split()[1]
        assert headers == ((("n", number),) if int(number) % 3 == 0 else None)
    assert len(rows) == 3000


@pytest.mark.parametrize("topic", ["k", "f"])
def test_only_columns_that_are_asked_for_are_gathered(log: Path, topic: str) -> None:
    reading = reader(log, subscribe=topic, columns="offset")
    assert isinstance(reading, BatchReader)
    (piece, *_), *_ = reading.plan().tasks
    from lamina.spark.plan import Wanted

    wanted = Wanted(frozenset({"offset"}), None, fail_on_data_loss=True)
    origin, batch = next(iter(piece.read(wanted)))
    assert batch.schema.names == ["offset"]
    assert origin.topic == topic


def test_segments_outside_of_the_offsets_are_skipped_and_counted(log: Path) -> None:
    offsets = json.dumps({"f": {"0": 2990}})
    plan = explain(str(log), subscribe="f", startingOffsets=offsets)
    whole = explain(str(log), subscribe="f")
    assert plan.sources < 3
    assert plan.sources + plan.segments.skipped == whole.sources
    assert f"{plan.segments.skipped} segments skipped" in str(plan)
    assert plan.size_bytes < whole.size_bytes / 10


def test_keys_are_filtered_in_the_worker(log: Path) -> None:
    rows = batch_rows(log, subscribe="k", keys='["key 3", "key 4"]', columns="key,value")
    numbers = sorted(int(value.split()[1]) for _, value in rows)
    wanted = [n for n in range(3000) if n % 50 in (3, 4) and n % 7]
    assert numbers == wanted


def test_offsets_and_times_bound_what_is_read(log: Path) -> None:
    def numbers(**given: Any) -> list[int]:
        rows = batch_rows(log, subscribe="f", columns="offset", **given)
        return [row[0] for row in rows]

    between = {"startingOffsets": '{"f":{"0":10}}', "endingOffsets": '{"f":{"0":12}}'}
    assert numbers(**between) == [10, 11]
    assert numbers(startingTimestamp=START_MS + 2998) == [2998, 2999]
    assert numbers(endingTimestamp=START_MS + 2) == [0, 1]
    times = {"startingOffsetsByTimestamp": f'{{"f":{{"0":{START_MS + 2999}}}}}'}
    assert numbers(**times) == [2999]
    assert numbers(**between, startingTimestamp=START_MS + 11) == [11]
    assert numbers(endingTimestamp=START_MS + 10**6) == list(range(3000))
    assert numbers(startingOffsets='{"f":{"0":-2}}', endingOffsets='{"f":{"0":-1}}') == numbers()


def test_a_time_after_the_end_is_an_error_unless_latest_is_asked_for(log: Path) -> None:
    with pytest.raises(InvalidRequest, match="no record at or after"):
        batch_rows(log, subscribe="f", startingTimestamp=START_MS + 10**6)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert batch_rows(log, subscribe="f", startingTimestamp=START_MS + 10**6, **strategy) == []


def test_assign_and_pattern_choose_partitions(log: Path) -> None:
    assert {row[0] for row in batch_rows(log, assign='{"k":[1,2]}', columns="partition")} == {1, 2}
    assert {row[0] for row in batch_rows(log, subscribePattern="[a-z]", columns="topic")} == {
        "k",
        "f",
    }
    with pytest.raises(UnknownTopic):
        batch_rows(log, assign='{"k":[3]}')
    with pytest.raises(UnknownTopic):
        batch_rows(log, subscribe="orders")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"subscribe": "k", "assign": '{"k":[0]}'},
        {"subscribe": "k", "startingOffsets": "latest"},
        {"subscribe": "k", "startingOffsets": '{"k":{"0":-1}}'},
        {"subscribe": "k", "endingOffsets": "earliest"},
        {"subscribe": "k", "startingOffset": "earliest"},
        {"subscribe": "k", "kafka.bootstrap.servers": "x"},
        {"subscribe": "k", "failOnDataLoss": "maybe"},
        {"subscribe": "k", "minPartitions": "0"},
        {"subscribe": "k", "startingOffsets": "[1]"},
        {"subscribe": "k", "columns": "offset,colour"},
        {"subscribe": "k", "server": "grpc://localhost"},
        {"subscribePattern": "("},
    ],
)
def test_wrong_options_are_refused(log: Path, given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        batch_rows(log, **given)


def test_offsets_beyond_the_end_are_refused(log: Path) -> None:
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OffsetOutOfRange):
            batch_rows(log, subscribe="f", **{name: '{"f":{"0":3001}}'})


def test_a_schema_of_other_types_is_refused(log: Path) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    from lamina.spark.source import LaminaSource
    from tests.spark.logs import options

    source = LaminaSource(options(log, subscribe="f"))
    with pytest.raises(InvalidRequest, match="value"):
        source.reader(StructType([StructField("value", LongType())]))
    assert source.reader(StructType([StructField("offset", LongType())])) is not None


def test_nothing_to_read_is_one_empty_task(tmp_path: Path) -> None:
    with Store(str(tmp_path / "data")) as store:
        store.create_topic("empty")
    reading = reader(tmp_path / "data", subscribe="empty")
    tasks = list(reading.partitions())
    assert len(tasks) == 1
    assert rows_of(reading, tasks) == []


def test_only_durable_records_of_a_live_writer_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Store(str(path), tick_ms=NEVER_MS) as store:
        store.create_topic("f", format="frame")
        fill(store, "f", 500, headers=False)
        assert batch_rows(path, subscribe="f") == []
        store.maintain()
        assert len(batch_rows(path, subscribe="f")) == 500


def test_records_that_retention_took_are_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "data"
    make_log(path)
    from_start = {"subscribe": "f", "startingOffsets": '{"f":{"0":0}}'}
    with Store(str(path)) as store:
        earliest = store.trim("f", 0, 1000)
        assert 0 < earliest <= 1000
    with pytest.raises(RecordsMissing, match=rf"0 to {earliest} \(trim\)"):
        batch_rows(path, **from_start)
    rows = batch_rows(path, **from_start, failOnDataLoss="false", columns="offset")
    assert [row[0] for row in rows] == list(range(earliest, 3000))
    assert len(batch_rows(path, subscribe="f")) == 3000 - earliest


def test_a_segment_removed_after_planning_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "data"
    make_log(path)
    strict = reader(path, subscribe="f", columns="offset")
    lenient = reader(path, subscribe="f", columns="offset", failOnDataLoss="false")
    tasks, others = list(strict.partitions()), list(lenient.partitions())
    with Store(str(path)) as store:
        earliest = store.trim("f", 0, 1000)
    with pytest.raises(RecordsMissing, match="trim"):
        rows_of(strict, tasks)
    rows = rows_of(lenient, others)
    assert [row[0] for row in rows] == list(range(earliest, 3000))


def test_a_topic_created_again_after_planning_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "data"
    make_log(path, count=500)
    reading = reader(path, subscribe="f")
    tasks = list(reading.partitions())
    with Store(str(path)) as store:
        store.delete_topic("f")
        store.create_topic("f", format="frame")
        fill(store, "f", 500, headers=False)
    with pytest.raises(InvalidRequest, match="created again"):
        rows_of(reading, tasks)


@pytest.mark.parametrize("topic", ["k", "f"])
@pytest.mark.parametrize("splits", [1, 16])
def test_damage_costs_only_the_damaged_records(tmp_path: Path, topic: str, splits: int) -> None:
    path = tmp_path / "data"
    make_log(path, count=1000)
    whole = Counter(batch_rows(path, subscribe=topic, columns="partition,offset"))
    file = sorted((path / "topics" / topic / "0" / "segments").glob("*.log"))[0]
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    file.write_bytes(raw)
    given = {"subscribe": topic, "columns": "partition,offset", "minPartitions": splits}
    with pytest.raises(RecordsMissing, match="lost"):
        batch_rows(path, **given)
    left = Counter(batch_rows(path, **given, failOnDataLoss="false"))
    assert sum((whole - left).values()) == 1
    assert not left - whole


def test_timestamps_are_microseconds_in_utc(log: Path) -> None:
    reading = reader(log, subscribe="f", columns="timestamp")
    batch = next(iter(reading.read(next(iter(reading.partitions())))))
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
