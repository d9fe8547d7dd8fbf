"""Typed frames into a topic: encoded in the tasks, once; what does not fit is refused before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import lamina
from lamina.errors import InvalidRequest, SchemaError
from lamina.spark.source import LaminaSource
from tests.server.rig import served
from tests.spark.logs import options
from tests.spark.test_typed_reading import EVERYTHING, ROW, rows

ORDER = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("item", pa.string(), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("ms", tz="UTC")),
    ]
)


def write(frame: DataFrame, number: int, **where: Any) -> None:
    given = {"topic": "orders", "txnAppId": "typed", "txnVersion": number} | where
    frame.write.format("lamina").mode("append").options(**given).save()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=2, schema=ORDER, key="id")
        store.create_topic("all", schema=EVERYTHING)
        store.create_topic("plain")
    return tmp_path / "data"


def test_typed_rows_are_stored_once_under_their_keys_and_times(
    data: Path, spark: SparkSession
) -> None:
    frame = spark.range(4).selectExpr(
        "cast(id as int) id", "concat('item ', id) item", "timestamp_millis(id) _timestamp",
        "timestamp_micros(1500) at", "-1L _offset", "9 _partition",
    )  # fmt: skip
    for _ in range(2):
        write(frame, 1, path=str(data))
    with lamina.open(data, read_only=True) as store:
        found = sorted(store.read("orders").read_all().to_pylist(), key=lambda row: row["id"])
    assert [row["item"] for row in found] == [f"item {each}" for each in range(4)]
    assert [row["_key"] for row in found] == [b"%d" % each for each in range(4)]
    assert [round(row["_timestamp"].timestamp() * 1000) for row in found] == [0, 1, 2, 3]
    assert {row["at"].microsecond for row in found} == {1000}
    assert {row["price"] for row in found} == {None}
    with pytest.raises(Exception, match="null"):
        write(spark.range(4).selectExpr("nullif(id, 3) id", "'x' item"), 2, path=str(data))
    with lamina.open(data, read_only=True) as store:
        assert store.read("orders").read_all().num_rows == 4


def test_every_type_goes_through_spark_and_back(data: Path, spark: SparkSession) -> None:
    with lamina.open(data) as store:
        store.append("all", pa.Table.from_pylist([ROW], schema=EVERYTHING))
    given = {"subscribe": "all", "schema": "topic"}
    frame = spark.read.format("lamina").options(**given).load(str(data))
    write(frame, 1, path=str(data), topic="all")
    with lamina.open(data, read_only=True) as store:
        first, second = store.read("all").read_all().to_pylist()
    assert second == first | {"_offset": 1}


def test_a_stream_of_typed_rows_is_written_to_a_server(tmp_path: Path, spark: SparkSession) -> None:
    with served(tmp_path / "data") as server, lamina.connect(server.flight_url) as client:
        for name in ("orders", "copy"):
            client.create_topic(name, schema=ORDER)
        client.append("orders", pa.table({"id": [1, 2], "item": ["a", "b"]}))
        query = (
            spark.readStream.format("lamina").option("server", server.flight_url)
            .options(subscribe="orders", schema="topic", startingOffsets="earliest").load()
            .writeStream.format("lamina").option("checkpointLocation", str(tmp_path / "c"))
            .options(server=server.flight_url, topic="copy", txnAppId="copy")
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        assert client.read("copy", columns=["item"]).read_all()["item"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "topic", "problem"),
    [
        ([("id", "long")], "orders", "column 'item' is missing and has no default"),
        ([("id", "string"), ("item", "string")], "orders", "'id' must be bigint, not string"),
        ([("id", "double"), ("item", "string")], "orders", "'id' must be bigint, not double"),
        ([("id", "long"), ("item", "string"), ("prise", "double")], "orders", "no column 'prise'"),
        ([("id", "long"), ("item", "string"), ("_error", "string")], "orders", "_error"),
        ([("id", "long"), ("item", "string"), ("_timestamp", "long")], "orders", "'_timestamp'"),
        ([("id", "long"), ("item", "string"), ("price", "decimal(12,2)")], "orders", "'price'"),
        ([("id", "long")], "plain", "unknown column 'id'"),
        ([("flag", "boolean"), ("tags", "string")], "all", r"'tags' must be array<string>"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_task_runs(
    data: Path, fields: list[tuple[str, str]], topic: str, problem: str
) -> None:
    schema = StructType()
    for name, kind in fields:
        schema = schema.add(name, kind)
    source = LaminaSource(options(data, topic=topic, txnAppId="typed", txnVersion=1))
    with pytest.raises((InvalidRequest, SchemaError), match=problem):
        source.writer(schema, overwrite=False)


def test_fields_of_a_record_must_be_the_schemas_in_its_order(data: Path) -> None:
    address = StructType().add("geo", "string").add("city", "string")
    schema = StructType().add("flag", "boolean").add("address", address)
    source = LaminaSource(options(data, topic="all", txnAppId="typed", txnVersion=1))
    with pytest.raises(SchemaError, match="'address' must have the fields"):
        source.writer(schema, overwrite=False)
    assert rows(data, subscribe="all", schema="topic") == []
