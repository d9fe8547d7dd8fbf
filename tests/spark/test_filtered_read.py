"""`lamina.spark.read`: what a filter excludes is not read, and the whole filter is applied."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import lamina
import lamina.spark
from lamina.errors import InvalidRequest, UnknownTopic
from lamina.spark.plan import Pruned
from tests.spark.logs import START_MS, make_log
from tests.spark.tiers import NONE_KEPT, make_mix

COUNT = 3000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filtered") / "data"
    make_log(path)  # untyped topics `k` and `f`
    with lamina.open(path) as store:
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])
        config = {"segment.bytes": 16 << 10}
        store.create_topic("orders", partitions=2, schema=schema, key="id", config=config)
        for first in range(0, COUNT, 250):
            ids = range(first, first + 250)
            times = pa.array([START_MS + each for each in ids], pa.timestamp("ms", tz="UTC"))
            table = pa.table({"id": list(ids), "text": ["x" * 40] * 250, "_timestamp": times})
            store.append("orders", table)
    return path


@pytest.fixture(scope="module")
def every(data: Path, spark: SparkSession) -> DataFrame:
    typed = spark.read.format("lamina").option("schema", "topic")
    return typed.load(str(data), subscribe="orders").cache()


def explained(frame: object) -> Pruned:
    found = lamina.spark.explain(frame)  # type: ignore[call-overload]
    assert isinstance(found, Pruned)
    return found


LATE = f"timestamp_millis({START_MS + 2900})"
FILTERS = {
    f"_timestamp >= {LATE} and id % 2 = 0": "segments",
    "_offset between 100 and 110 or _offset < 5": "segments",
    "not (_offset < 1200 or id = 7)": "segments",
    "_offset in (3, 4, 5)": "segments",
    "_partition = 0 and (_offset > 1300 or text = 'no')": "partitions",
    "_key = '77'": "keys",
    "cast(_key as string) in ('77', '78') and _offset < 9": "keys",
    f"_timestamp > now() - interval {2**20} hours": None,
    "_offset < 0": "all",
    "1 = 0": "all",
    "_offset > 5 and _offset in (select 7)": None,
    "_key = '77' or id = 78": None,
}


@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_leaves_out_what_it_can_and_changes_no_answer(
    data: Path, spark: SparkSession, every: DataFrame, where: str
) -> None:
    frame = lamina.spark.read(spark, "orders", path=data, where=where, columns=["id"])
    assert frame.columns == ["id"]
    plain = (
        spark.read.format("lamina").option("schema", "topic").load(str(data), subscribe="orders")
    )
    wanted = sorted(row.id for row in plain.where(where).collect())
    assert sorted(row.id for row in frame.collect()) == wanted
    found = explained(frame)
    saved = {
        "segments": found.segments.skipped > 10 and found.size_bytes.skipped > 0,
        "partitions": found.partitions.skipped == 1,
        "keys": found.keys is not None,
        "all": found.size_bytes.read == 0 and found.segments.read == 0,
        None: found.size_bytes.skipped == 0 and found.keys is None,
    }
    assert saved[FILTERS[where]], str(found)


def test_a_column_and_sql_text_mean_the_same(data: Path, spark: SparkSession) -> None:
    where = (sql.col("_offset") >= 1000) & (sql.col("_partition") == 1)
    frame = lamina.spark.read(spark, "orders", path=data, where=where)
    assert frame.columns == ["_offset", "_partition", "_timestamp", "_key", "id", "text"]
    found = explained(frame)
    assert found.ranges == {1: (1000, -1)}
    assert "orders: 1 partitions, 1 partitions skipped, " in str(found)
    assert "partition 1: from offset 1000 to the end" in str(found)
    assert f"{found.size_bytes.skipped} bytes skipped" in str(found)


def test_a_topic_without_a_schema_has_the_columns_of_records(
    data: Path, spark: SparkSession
) -> None:
    where = "offset >= 2990 and key is not null"
    frame = lamina.spark.read(spark, "f", path=data, where=where, columns=["value", "offset"])
    assert frame.columns == ["value", "offset"]
    assert [row.offset for row in frame.orderBy("offset").collect()] == [
        each for each in range(2990, 3000) if each % 7
    ]
    assert explained(frame).ranges == {0: (2990, -1)}


def test_only_columns_of_the_answer_and_of_the_filter_are_read(
    data: Path, spark: SparkSession
) -> None:
    frame = lamina.spark.read(spark, "orders", path=data, where="_offset < 9", columns=["text"])
    assert list(explained(frame).plan.columns) == ["text", "_offset"]
    assert list(explained(lamina.spark.read(spark, "orders", path=data)).plan.columns) == [
        "_offset", "_partition", "_timestamp", "_key", "id", "text"]  # fmt: skip


def test_what_where_says_is_not_said_by_options(data: Path, spark: SparkSession) -> None:
    with pytest.raises(InvalidRequest, match="startingOffsets is made here"):
        lamina.spark.read(spark, "orders", path=data, startingOffsets="latest")
    with pytest.raises(UnknownTopic, match="there is no topic 'nothing'"):
        lamina.spark.read(spark, "nothing", path=data)
    with pytest.raises(InvalidRequest, match="only a frame that"):
        lamina.spark.explain(spark.range(1))


def test_objects_of_other_times_are_left_out_at_either_end(
    tmp_path: Path, spark: SparkSession
) -> None:
    make_mix(tmp_path, NONE_KEPT, topics="f")
    between = f"between timestamp_millis({START_MS + 1000}) and timestamp_millis({START_MS + 1400})"
    archive = f"file://{tmp_path}/cold"
    everything = lamina.spark.read(spark, "f", path=archive)
    assert everything.count() == 2500
    frame = lamina.spark.read(
        *(spark, "f"), where=f"timestamp {between}", columns=["offset"], path=archive
    )
    assert sorted(row.offset for row in frame.collect()) == list(range(1000, 1401))
    found = explained(frame)
    assert (found.objects.read, found.objects.skipped) == (1, 5)
