"""Partitions that a topic gets while Spark reads it: found by batch reads, and by streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

import lamina
from lamina.store.store import Store
from tests.server.rig import served
from tests.spark.logs import NEVER_MS, batch_rows, rows_of, stream

FORMATS = pytest.mark.parametrize("format_name", ["frame", "keratin", "wal"])


def opened(path: Path) -> Store:
    return Store(str(path), tick_ms=NEVER_MS)


@FORMATS
def test_a_reader_of_a_stream_goes_on_with_new_partitions(tmp_path: Path, format_name: str) -> None:
    path = tmp_path / "data"
    with opened(path) as store:
        store.create_topic("t", format=format_name)
        store.append("t", [b"a"] * 3, partition=0)
        store.maintain()
        reading = stream(path, subscribe="t", startingOffsets="earliest")
        start = reading.initialOffset()
        first = reading.latestOffset(start, reading.getDefaultReadLimit())
        assert set(first["t"]) == {"0"}
        store.add_partitions("t", 3)
        assert reading.latestOffset(first, reading.getDefaultReadLimit()) == first
        store.append("t", [b"b"] * 4, partition=2)
        store.maintain()
        second = reading.latestOffset(first, reading.getDefaultReadLimit())
        assert set(second["t"]) == {"0", "2"}
        assert len(rows_of(reading, list(reading.partitions(first, second)))) == 4
        assert len(batch_rows(path, subscribe="t")) == 7
        again = stream(path, subscribe="t", startingOffsets="earliest")
        assert len(rows_of(again, list(again.partitions(first, second)))) == 4


@FORMATS
def test_a_query_reads_them_between_triggers_and_between_runs(
    spark: SparkSession, tmp_path: Path, format_name: str
) -> None:
    path, seen = tmp_path / "data", tmp_path / "seen"

    def query() -> Any:
        reading = spark.readStream.format("lamina").option("path", str(path))
        reading = reading.option("subscribe", "t").option("startingOffsets", "earliest")
        writing = reading.load().select("partition", "offset").writeStream.format("parquet")
        return writing.option("checkpointLocation", str(tmp_path / "checkpoint"))

    def found() -> list[tuple[int, int]]:
        rows = spark.read.parquet(str(seen)).collect()
        return sorted((row["partition"], row["offset"]) for row in rows)

    with opened(path) as store:
        store.create_topic("t", format=format_name)
        first = store.earliest_offset("t")
        store.append("t", [b"a", b"b"], partition=0)
        store.maintain()
        running = query().start(str(seen))
        try:
            running.processAllAvailable()
            store.add_partitions("t", 2)
            store.append("t", [b"c"], partition=1)
            store.maintain()
            running.processAllAvailable()
        finally:
            running.stop()
        assert found() == [(0, first), (0, first + 1), (1, first)]
        store.add_partitions("t", 4)
        store.append("t", [b"d", b"e"], partition=3)
        store.maintain()
        query().trigger(availableNow=True).start(str(seen)).awaitTermination()
        assert found() == [
            *((0, first), (0, first + 1), (1, first)),
            *((3, first), (3, first + 1)),
        ]


@FORMATS
def test_a_query_over_a_server_reads_them_too(
    spark: SparkSession, tmp_path: Path, format_name: str
) -> None:
    with served(tmp_path / "data", kafka_port=0) as service:
        admin = AdminClient({"bootstrap.servers": service.kafka_address or ""})
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t", format=format_name)
            first = store.earliest_offset("t")
            store.append("t", [b"a", b"b"], partition=0)
            reading = spark.readStream.format("lamina").option("server", service.flight_url)
            reading = reading.option("subscribe", "t").option("startingOffsets", "earliest")
            rows = reading.load().select("partition", "offset", "value")
            query = rows.writeStream.format("memory").queryName(f"served_{format_name}").start()

            def found() -> list[tuple[int, int, bytes]]:
                rows = spark.table(f"served_{format_name}").collect()
                return sorted((row[0], row[1], bytes(row[2])) for row in rows)

            try:
                query.processAllAvailable()
                admin.create_partitions([NewPartitions("t", 3)])["t"].result(30)
                store.append("t", [b"c"], partition=2)
                store.append("t", [b"d"], partition=0)
                for _ in range(50):  # one that looked just before may say that nothing is new
                    query.processAllAvailable()
                    if len(found()) == 4:
                        break
            finally:
                query.stop()
            assert found() == [
                *((0, first, b"a"), (0, first + 1, b"b"), (0, first + 2, b"d")),
                (2, first, b"c"),
            ]
            batch = spark.read.format("lamina").option("server", service.flight_url)
            assert batch.option("subscribe", "t").load().count() == 4
