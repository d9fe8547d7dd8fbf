"""Typed columns in Spark: of the topic's schema or one's own, of every type, from every place."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import lamina
from lamina.errors import InvalidRequest, SchemaError, UnknownSchema
from lamina.spark.batch import explain
from lamina.spark.source import LaminaSource
from lamina.storage import paths
from tests.server.rig import served
from tests.spark.logs import options, reader, rows_of, stream

MOMENT = datetime(2026, 11, 18, 12, 30, 0, 123000, tzinfo=UTC)
EVERYTHING = pa.schema(
    [
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field("small", pa.int32()),
        pa.field("big", pa.int64()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("fixed", pa.binary(3)),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time32("ms")),
        pa.field("at_ms", pa.timestamp("ms", tz="UTC")),
        pa.field("at_us", pa.timestamp("us", tz="UTC")),
        pa.field("at_ns", pa.timestamp("ns", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
        pa.field(
            "address",
            pa.struct(
                [
                    pa.field("city", pa.string(), nullable=False),
                    pa.field("geo", pa.list_(pa.float64())),
                ]
            ),
        ),
    ]
)
ROW: dict[str, Any] = {
    **{"flag": True, "small": -7, "big": 1 << 40, "single": 0.5, "double": 0.25, "text": "Grüße"},
    **{"raw": b"\x00\xff", "fixed": b"abc", "money": Decimal("-12.34"), "day": date(2026, 1, 2)},
    **{"clock": time(1, 2, 3, 4000), "at_ms": MOMENT, "at_us": MOMENT, "at_ns": MOMENT},
    **{"local": MOMENT.replace(tzinfo=None), "tags": ["a", "b"], "counts": [("x", 1)]},
    **{"address": {"city": "Bern", "geo": [1.5, None]}},
}
EMPTY: dict[str, Any] = dict.fromkeys(ROW) | {"flag": False}
ORDER = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "item", "type": "string"}]}"""
ORDER_2 = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "item", "type": "string"},
    {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]},
     "default": "S"}]}"""
ORDER_3 = """{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}"""
CLICK = """{"type": "object", "required": ["user"], "properties": {
    "user": {"type": "string"}, "ms": {"type": "integer"}}}"""
TYPED = {"schema": "topic"}


def orders(path: Path, count: int = 6) -> None:
    """Orders of two versions, in two partitions."""
    with lamina.open(path) as store:
        store.create_topic("orders", partitions=2, schema=ORDER, key="id")
        ids = list(range(count))
        store.append("orders", pa.table({"id": ids, "item": [f"item {each}" for each in ids]}))


def clicks(path: Path) -> None:
    with lamina.open(path) as store:
        store.create_topic("clicks")
        store.append("clicks", [b'{"user": "ada", "ms": 12}', b"no", b'{"user": "bob"}', b"{}"])


def rows(path: Path, **given: Any) -> list[tuple[Any, ...]]:
    reading = reader(path, **given)
    return sorted(rows_of(reading, list(reading.partitions())))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typed") / "data"
    orders(path)
    clicks(path)
    return path


def test_every_type_arrives_in_spark_as_it_is_in_the_schema(
    tmp_path: Path, spark: SparkSession
) -> None:
    with lamina.open(tmp_path / "data") as store:
        store.create_topic("all", schema=EVERYTHING)
        store.append("all", pa.Table.from_pylist([ROW, EMPTY], schema=EVERYTHING))
        store.append("all", pa.table({"value": pa.array([None], pa.binary())}))
    typed = spark.read.format("lamina").option("schema", "topic")
    frame = typed.load(str(tmp_path / "data"), subscribe="all")
    wanted = (
        "_offset bigint not null, _partition int not null, _timestamp timestamp not null,"
        " _key binary, flag boolean, small int, big bigint, single float, double double,"
        " text string, raw binary, fixed binary, money decimal(12,2), day date, clock time(6),"
        " at_ms timestamp, at_us timestamp, at_ns timestamp, local timestamp_ntz,"
        " tags array<string>, counts map<string,int>,"
        " address struct<city: string not null, geo: array<double>>"
    )
    plain = StructType.fromDDL(wanted)
    plain["tags"].dataType.containsNull = False
    plain["counts"].dataType.valueContainsNull = False
    assert frame.schema == plain
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    first, second, third = (
        row.asDict(recursive=True) for row in frame.drop("_timestamp").orderBy("_offset").collect()
    )
    naive = MOMENT.astimezone().replace(tzinfo=None)  # as Python gets Spark's timestamps
    placed = {"_partition": 0, "_key": None}
    made = ROW | dict.fromkeys(("at_ms", "at_us", "at_ns"), naive) | {"counts": {"x": 1}}
    assert first == {"_offset": 0, **placed, **made}
    assert second == {"_offset": 1, **placed, **EMPTY}
    assert third == {"_offset": 2, **placed, **dict.fromkeys(ROW)}


def test_a_times_value_that_spark_cannot_count_is_clipped(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("ms", tz="UTC")), ("ns", pa.timestamp("ns", tz="UTC"))])
    table = pa.table(
        [pa.array([1 << 62, -(1 << 62), None]).cast(schema.field(0).type),
         pa.array([-1, 1999, None]).cast(schema.field(1).type)], schema=schema)  # fmt: skip
    with lamina.open(tmp_path) as store:
        store.create_topic("t", schema=schema)
        store.append("t", table)
    reading = reader(tmp_path, subscribe="t", columns="at,ns", **TYPED)
    (batch,) = (each for task in reading.partitions() for each in reading.read(task))
    assert batch.column("at").cast(pa.int64()).to_pylist() == [
        9223372036854775000, -9223372036854775000, None]  # fmt: skip
    assert batch.column("ns").cast(pa.int64()).to_pylist() == [-1, 1, None]


def test_a_user_schema_prunes_and_only_its_columns_are_decoded(log: Path) -> None:
    source = LaminaSource(options(log, subscribe="orders", **TYPED))
    reading = source.reader(StructType().add("id", "long").add("_partition", "integer"))
    found = rows_of(reading, list(reading.partitions()))
    assert sorted(each for each, _ in found) == list(range(6))
    projection = reading._projection
    assert projection.of_records == {"offset", "timestamp", "value"}
    decoder = projection._begun("orders")
    assert [field.name for field in decoder._reader.fields] == ["id"]
    nothing = reader(log, subscribe="orders", columns="_offset", **TYPED)
    assert nothing._projection.of_records == {"offset", "timestamp"}
    assert len(rows_of(nothing, list(nothing.partitions()))) == 6


@pytest.mark.parametrize(
    ("schema", "given", "problem"),
    [
        (("id", "string"), TYPED, "column 'id' of type string"),
        (("price", "double"), TYPED, "column 'price' of type double is not there; version 1 has"),
        (("_error", "string"), TYPED, "'_error'"),
        (None, {"schema": "mine"}, "schema is 'topic'"),
        (None, {"schema": "topic", "valueFormat": "json"}, "schema is 'topic'"),
        (None, {"valueFormat": "json"}, "valueFormat needs valueSchema"),
        (None, {"valueFormat": "xml", "valueSchema": CLICK}, "encoding is one of"),
        (None, {"errors": "null"}, "errors is for typed columns"),
        (None, TYPED | {"errors": "ignore"}, "errors is one of raise, null, deadletter"),
        (None, TYPED | {"schemaVersion": 9}, "versions 1 to 1, not 9"),
        (None, TYPED | {"valueSchema": CLICK}, "valueSchema does not go with schema"),
        (None, TYPED | {"columns": "nothing"}, "unknown column 'nothing'"),
        (None, TYPED | {"includeHeaders": "true"}, "includeHeaders does not go"),
        (None, TYPED | {"errors": "deadletter"}, "needs a topic 'orders.dlq'"),
    ],
)
def test_what_cannot_be_read_is_refused_before_a_task_is_planned(
    log: Path, schema: tuple[str, str] | None, given: dict[str, str], problem: str
) -> None:
    source = LaminaSource(options(log, subscribe="orders", **given))
    with pytest.raises(InvalidRequest, match=problem):
        source.reader(StructType().add(*schema) if schema else source.schema())


def test_typed_columns_are_of_one_topic_that_has_a_schema(log: Path) -> None:
    with pytest.raises(InvalidRequest, match="of one topic"):
        reader(log, subscribe="orders,clicks", **TYPED)
    with pytest.raises(UnknownSchema, match="topic 'clicks' has no schema"):
        reader(log, subscribe="clicks", **TYPED)


def test_values_are_read_by_a_schema_that_the_topic_does_not_have(log: Path) -> None:
    given = {"valueFormat": "json", "valueSchema": CLICK, "subscribe": "clicks"}
    found = rows(log, columns="_offset,user,ms,_error", errors="null", **given)
    bad = [(1, None, None), (3, None, None)]
    assert [row[:3] for row in found] == [(0, "ada", 12), bad[0], (2, "bob", None), bad[1]]
    assert [row[3] is None for row in found] == [True, False, True, False]
    with pytest.raises(SchemaError, match="clicks/0, offset 1: not a JSON object"):
        rows(log, columns="user", **given)


def test_avro_values_with_nothing_in_front_are_read_by_a_given_schema(tmp_path: Path) -> None:
    with lamina.open(tmp_path) as store:
        store.create_topic("t")
        store.append("t", [b"\x02\x04ab", b"\x04\x02c"])
    found = rows(tmp_path, subscribe="t", valueFormat="avro", valueSchema=ORDER, columns="id,item")
    assert found == [(1, "ab"), (2, "c")]


def test_a_bad_record_is_buried_and_the_others_are_read(tmp_path: Path) -> None:
    clicks(tmp_path)
    with lamina.open(tmp_path) as store:
        store.create_topic("clicks.dlq")
    given = {"valueFormat": "json", "valueSchema": CLICK, "subscribe": "clicks"}
    for _ in range(2):  # a second read copies them again, as store.read does
        assert rows(tmp_path, columns="user", errors="deadletter", **given) == [("ada",), ("bob",)]
    with lamina.open(tmp_path) as store:
        (letters,) = store.scan("clicks.dlq")
    assert letters.column("value").to_pylist() == [b"no", b"{}"] * 2
    headers = {each["key"]: each["value"] for each in letters.column("headers")[1].as_py()}
    assert headers["lamina.dlq.offset"] == b"3"
    assert headers["lamina.dlq.topic"] == b"clicks"


def test_old_and_new_versions_are_read_under_the_one_that_is_asked_for(tmp_path: Path) -> None:
    orders(tmp_path)
    with lamina.open(tmp_path) as store:
        store.set_schema("orders", ORDER_2)
        store.append("orders", pa.table({"id": [7], "item": ["new"], "size": ["L"]}))
    found = rows(tmp_path, subscribe="orders", columns="id,size", **TYPED)
    assert found == [*((each, "S") for each in range(6)), (7, "L")]
    found = rows(tmp_path, subscribe="orders", schemaVersion=1, columns="id,item", **TYPED)
    assert found[-1] == (7, "new")


def test_a_version_that_comes_while_a_stream_runs_is_read_under_its_own(tmp_path: Path) -> None:
    orders(tmp_path, count=2)
    given = {"subscribe": "orders", "startingOffsets": "earliest", **TYPED}
    query = stream(tmp_path, columns="id,item", **given)
    start = query.initialOffset()
    middle = query.latestOffset(start, query.getDefaultReadLimit())
    assert len(rows_of(query, query.partitions(start, middle))) == 2
    with lamina.open(tmp_path) as store:
        store.set_schema("orders", ORDER_2)
        store.append("orders", pa.table({"id": [7], "item": ["new"], "size": ["L"]}))
    end = query.latestOffset(middle, query.getDefaultReadLimit())
    assert rows_of(query, query.partitions(middle, end)) == [(7, "new")]
    with lamina.open(tmp_path) as store:
        store.set_schema("orders", ORDER_3, compatibility="NONE")
        store.append("orders", pa.table({"id": [8]}))
    last = query.latestOffset(end, query.getDefaultReadLimit())
    with pytest.raises(SchemaError, match="a version of the schema that the reader's version"):
        rows_of(query, query.partitions(end, last))
    again = stream(tmp_path, columns="id,item", errors="null", schemaVersion=2, **given)
    assert (None, None) in rows_of(again, again.partitions(start, last))


def test_a_query_keeps_its_columns_if_a_version_comes_before_it_starts(tmp_path: Path) -> None:
    orders(tmp_path, count=1)
    source = LaminaSource(options(tmp_path, subscribe="orders", **TYPED))
    schema = source.schema()
    with lamina.open(tmp_path) as store:
        store.set_schema("orders", ORDER_3, compatibility="NONE")
    reading = source.reader(schema)
    assert reading._projection.chosen.version == 1
    assert len(rows_of(reading, list(reading.partitions()))) == 1


def test_typed_topics_are_read_from_the_archive_and_by_the_archives_schema(tmp_path: Path) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    with lamina.open(data, archive=str(cold)) as store:
        config = {"remote.storage.enable": True, "segment.bytes": 4096}
        store.create_topic("orders", schema=ORDER, config=config)
        ids = list(range(500))
        store.append("orders", pa.table({"id": ids, "item": ["x" * 30] * 500}))
        store.append("orders", pa.table({"id": ids, "item": ["y" * 30] * 500}))
        store.archive()
    given = {"subscribe": "orders", "columns": "_offset,id", **TYPED}
    whole = rows(data, **given)
    assert len(whole) == 1000
    archived = rows(cold, **given)
    assert archived
    assert archived == whole[: len(archived)]
    (data / "topics" / "orders" / paths.TOPIC_SCHEMAS).unlink()
    assert rows(data, **given) == whole
    shutil.rmtree(cold)
    with pytest.raises(InvalidRequest):
        rows(data, **given)


def test_the_plan_names_typed_columns_and_how_many_are_left_out(log: Path) -> None:
    said = str(explain(str(log), subscribe="orders", schema="topic", columns="id"))
    assert "columns id, 5 columns skipped" in said


def test_every_way_into_spark_gives_the_same_rows(log: Path, spark: SparkSession) -> None:
    given = {"subscribe": "orders", "schema": "topic"}
    typed = spark.read.schema("id long, item string").format("lamina").options(**given)
    batch = typed.load(str(log))
    wanted = [(each, f"item {each}") for each in range(6)]
    assert sorted(map(tuple, batch.collect())) == wanted
    query = (
        spark.readStream.format("lamina").option("path", str(log))
        .options(**given, startingOffsets="earliest", columns="id,item").load()
        .writeStream.format("memory").queryName("typed").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert sorted(map(tuple, spark.table("typed").collect())) == wanted


def test_typed_columns_and_dead_letters_go_through_a_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        url = server.flight_url
        with lamina.connect(url) as client:
            client.create_topic("clicks", schema=CLICK, encoding="json")
            client.append("clicks", [b'{"user": "ada"}', b"no"])
        given = {"server": url, "subscribe": "clicks", "columns": "_offset,user", **TYPED}
        source = LaminaSource(CaseInsensitiveDict(given | {"errors": "deadletter"}))
        reading = source.reader(source.schema())
        assert rows_of(reading, list(reading.partitions())) == [(0, "ada")]
        with lamina.connect(url) as client:
            (letters,) = client.scan("clicks.dlq")
        assert letters.column("value").to_pylist() == [b"no"]
