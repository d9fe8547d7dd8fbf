"""Source and sink inside of Spark, on this machine: batch, streams, restarts, failed tasks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udf

import lamina
from lamina.store.store import Store
from tests.spark.logs import fill, make_log, records, values
from tests.spark.tiers import COUNT, append, by_hand, make_mix, make_wal

SMALL = {"segment.bytes": 16 << 10}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "data"
    make_log(path)
    with Store(str(path)) as store:
        for name in ("copy", "streamed", "retried", "columns"):
            store.create_topic(name, partitions=2, config=SMALL)
    return path


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    reading = spark.read.format("lamina").option("path", str(path))
    return reading.options(**options).load()


def held(path: Path, topic: str) -> Counter[bytes]:
    with lamina.open(str(path), read_only=True) as store:
        return values(store, topic)


def collected(frame: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row[0]) for row in frame.select("value").collect())


def test_a_batch_read_has_every_row_in_any_split(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log, subscribe="k", includeHeaders="true", minPartitions="8")
    assert frame.columns[:4] == ["key", "value", "topic", "partition"]
    assert collected(frame) == held(log, "k")
    assert frame.rdd.getNumPartitions() >= 8


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What to load for each mix of tiers, all with the same 3000 records."""
    made = {}
    for name, kept_bytes in {"cold": 0, "mixed": 80 << 10, "hot": -1}.items():
        folder = tmp_path_factory.mktemp("tiers")
        make_mix(folder, kept_bytes, tail=0 if name == "cold" else 500)
        made[name] = {"path": str(folder / "data"), "archive": str(folder / "cold")}
    wal = tmp_path_factory.mktemp("tiers")
    make_wal(wal)
    archive = {"path": made["cold"]["archive"]}
    return made | {"archive": archive, "wal": {"path": str(wal / "data")}}


LONG = pytest.mark.long  # without Spark every number is tried, in test_tiers


@pytest.mark.parametrize(
    "splits", [pytest.param(1, marks=LONG), 2, pytest.param(8, marks=LONG), 64]
)
def test_every_mix_of_tiers_and_any_split_have_the_same_rows(
    spark: SparkSession, tiers: dict[str, dict[str, str]], splits: int
) -> None:
    wanted = Counter(bytes(each["value"]) for each in records(0, COUNT))
    for name, given in tiers.items():
        topic = "w" if name == "wal" else "f" if splits > 2 else "k"
        reading = spark.read.format("lamina").options(**given)
        frame = reading.options(subscribe=topic, minPartitions=splits).load()
        assert collected(frame) == wanted, name


def test_one_query_goes_from_the_archive_into_the_live_tail(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_mix(tmp_path, 0, topics="f")
    given = {"path": str(tmp_path / "data"), "archive": str(tmp_path / "cold")}
    reading = spark.readStream.format("lamina").options(**given, subscribe="f")
    frame = reading.options(startingOffsets="earliest", maxOffsetsPerTrigger=800).load()
    seen: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        seen.extend(row[0] for row in batch.select("offset").collect())

    query = frame.writeStream.foreachBatch(take).start()
    try:
        with by_hand(tmp_path, archive=given["archive"]) as store:
            for first in (COUNT, COUNT + 500):
                query.processAllAvailable()
                assert sorted(seen) == list(range(first))
                append(store, "f", "frame", first, 500)
                store.roll("f", 0)
                store.archive()
                store.maintain()
            query.processAllAvailable()
            (_, group) = store.groups("f")[0]
            assert sorted(seen) == list(range(COUNT + 1000))
    finally:
        query.stop()
    assert group.startswith("spark-lamina-source-")


def test_filtered_and_unfiltered_use_of_one_frame_agree(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log, subscribe="f")
    some, every = frame.where(col("offset") >= 2500), frame
    assert (some.count(), every.count(), some.count()) == (500, 3000, 500)
    assert some.union(every).count() == 3500


def test_a_schema_prunes_columns(spark: SparkSession, log: Path) -> None:
    reading = spark.read.format("lamina").schema("offset long, timestampType int")
    frame = reading.options(path=str(log), subscribe="f").load()
    found = frame.selectExpr("sum(offset)", "max(timestampType)").first()
    assert found is not None
    assert tuple(found) == (2999 * 1500, 0)


def test_a_wrong_option_is_named(spark: SparkSession, log: Path) -> None:
    with pytest.raises(PySparkException, match=r"did you mean 'startingOffsets'"):
        load(spark, log, subscribe="f", startingOffset="earliest").count()


def write(frame: DataFrame, path: Path, topic: str, version: int, **options: Any) -> None:
    writing = frame.write.format("lamina").mode("append")
    given = {"path": str(path), "topic": topic, "txnAppId": "batch", "txnVersion": version}
    writing.options(**given, **options).save()


def test_a_repeated_batch_write_is_stored_once(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log, subscribe="k", includeHeaders="true", minPartitions="4")
    for version in (1, 1, 2):
        write(frame.drop("partition"), log, "copy", version)
    once = held(log, "k")
    assert held(log, "copy") == once + once
    with lamina.open(str(log), read_only=True) as store:
        table = next(store.scan("copy"))
    with_headers = [row for row in table.to_pylist() if row["headers"]]
    assert with_headers
    for row in with_headers:
        assert row["headers"][0]["value"] == row["value"].split()[1]


def test_overwriting_is_refused(spark: SparkSession, log: Path) -> None:
    frame = load(spark, log, subscribe="f").select("value")
    with pytest.raises(PySparkException, match="appended to"):
        frame.write.format("lamina").mode("overwrite").options(
            path=str(log), topic="copy", txnAppId="x", txnVersion=1
        ).save()


def test_tasks_that_fail_first_are_stored_once(spark: SparkSession, log: Path) -> None:
    """A task fails after some rows, then succeeds: its first attempt leaves nothing behind."""
    marks = str(log.parent / "marks")

    def fail_once(value):  # type: ignore[no-untyped-def]  # Spark reads hints in its own way
        path = Path(marks)
        if value.startswith(b"value 2000") and not path.exists():
            path.touch()
            raise RuntimeError("the first attempt fails")
        return bytes(value)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    frame = load(spark, log, subscribe="k", minPartitions="4")
    failing = udf(fail_once, "binary")
    with_retry = frame.select(failing("value").alias("value"), "key")
    write(with_retry, log, "retried", 10)
    assert Path(marks).exists()
    assert held(log, "retried") == held(log, "k")
    assert not list((log / "sink" / "of-batch").rglob("*.part"))


def start(spark: SparkSession, log: Path, checkpoint: Path, **options: Any) -> Any:
    reading = spark.readStream.format("lamina").option("path", str(log))
    frame = reading.options(subscribe="k", startingOffsets="earliest", **options).load()
    writing = frame.select("key", "value").writeStream.format("lamina")
    return (
        writing.option("checkpointLocation", str(checkpoint))
        .options(path=str(log), topic="streamed", txnAppId="stream")
        .trigger(availableNow=True)
        .start()
    )


def test_a_stream_is_stored_once_over_restarts(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    first = start(spark, log, checkpoint, maxOffsetsPerTrigger=1000)
    assert first.awaitTermination(120)
    assert len(first.recentProgress) >= 3
    source = first.lastProgress["sources"][0]
    assert '"k"' in source["latestOffset"]
    assert '"@epoch"' in source["endOffset"]
    assert held(log, "streamed") == held(log, "k")
    last = max(int(name.name) for name in (checkpoint / "commits").iterdir() if name.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()  # killed behind the sink, before Spark noted it
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    with Store(str(log)) as store:
        fill(store, "k", 500, headers=True, first=3000)
    second = start(spark, log, checkpoint)
    assert second.awaitTermination(120)
    assert held(log, "streamed") == held(log, "k")


def test_a_stream_that_saw_no_data_goes_on_where_it_started_and_its_group_is_where_it_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, checkpoint, seen = tmp_path / "data", str(tmp_path / "checkpoint"), []
    with Store(str(path)) as store:
        store.create_topic("k")
        fill(store, "k", 250, headers=False)

    def note(frame: DataFrame, number: int) -> None:
        rows = [row.offset for row in frame.select("offset").collect()]
        if number == 0 and not (tmp_path / "cut off").exists():
            (tmp_path / "cut off").touch()
            with Store(str(path)) as store:
                fill(store, "k", 250, headers=False, first=250)
            raise RuntimeError("cut off")
        seen.extend(rows)

    reading = spark.readStream.format("lamina").options(
        path=str(path), subscribe="k", **{"group.id": "q"}
    )
    for run in range(3):
        writing = reading.load().writeStream.foreachBatch(note)
        query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        if run == 0:
            with pytest.raises(PySparkException, match="cut off"):
                query.awaitTermination(120)
            continue
        assert query.awaitTermination(120)
        with Store(str(path)) as store:
            (lag,) = store.describe_group("k", "q").partitions
            assert (lag.committed, lag.records) == (250 + 250 * run, 0)
            fill(store, "k", 250, headers=False, first=250 + 250 * run)
    assert sorted(seen) == list(range(250, 750))


def test_a_topic_created_again_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    for count in (250, 500):
        with Store(str(path)) as store:
            if "k" in store.topics():
                store.delete_topic("k")
            store.create_topic("k")
            store.create_topic("streamed") if "streamed" not in store.topics() else None
            fill(store, "k", count, headers=False)
        query = start(spark, path, tmp_path / "checkpoint")
        if count == 250:
            assert query.awaitTermination(120)
            continue
        with pytest.raises(PySparkException, match="deleted and created again"):
            query.awaitTermination(120)
    assert sum(held(path, "streamed").values()) == 250
