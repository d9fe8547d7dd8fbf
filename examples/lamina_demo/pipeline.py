"""The demo's last chapters: what survived the kill is archived, queried, streamed and verified."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console

from lamina.archive.object_list import Shelf
from lamina.archive.open_archive import open_archive
from lamina.cli import file_reports
from lamina.cli.output import emit
from lamina.errors import InvalidRequest
from lamina.store.archive_store import archived_topics
from lamina.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHORT_LIVED = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
"""A JVM that ends within a minute: what it compiles quickly is good enough."""
_TILLS = "cast(substring(cast(value as string), 7) as long) % 4"


def tell(console: Console, data: str, archive: str, acknowledged: int) -> None:
    """Goes on where a killed producer left a directory that has an archive."""
    found = _archive(console, data, archive, acknowledged)
    if find_spec("pyspark") is None:
        console.print("(Spark is not installed: pip install 'lamina[spark]' to see it query this)")
    else:
        from lamina.cli.pipeline_running import HERE, spark_session

        console.rule("Spark: a query, and a stream that stores every record once")
        with spark_session(HERE, _SHORT_LIVED) as spark:
            _query(console, spark, os.path.abspath(data))
            _stream(console, spark, os.path.abspath(data), found)
    console.rule("every checksum, of the log and of the archive")
    for directory in (data, archive):
        console.print(f"$ lamina verify {directory}")
        file_reports.verify(directory, as_json=False)


def _archive(console: Console, data: str, archive: str, acknowledged: int) -> int:
    console.rule("recovered, sealed, archived")
    with Store(data, archive=archive) as store:
        found = store.latest_offset("orders")
        if found < acknowledged:
            raise InvalidRequest("the demo lost a record: please report this")
        store.roll("orders")
        store.archive()
        store.create_topic("till-3")
    objects = open_archive(archive)
    assert objects is not None, "a directory was named"
    manifest = Shelf(objects, archived_topics(objects)["orders"], 0).load()
    console.print(
        f"{found} records after the kill, {acknowledged} were acknowledged; archived up to offset"
        f" {manifest.end_offset}: {len(manifest.objects)} objects, {manifest.size_bytes} bytes"
    )
    return found


def _query(console: Console, spark: SparkSession, data: str) -> None:
    """Groups the orders by till."""
    console.print('spark.read.format("lamina").load(…, subscribe="orders"), grouped by till')
    orders = spark.read.format("lamina").load(data, subscribe="orders")
    counted = orders.selectExpr(f"{_TILLS} as till").groupBy("till").count().orderBy("till")
    emit([row.asDict() for row in counted.collect()], as_json=False)


def _stream(console: Console, spark: SparkSession, data: str, found: int) -> None:
    """Streams the orders of one till into a topic, twice from one checkpoint."""
    for attempt in ("the stream runs", "it runs again from its checkpoint"):
        _run_stream(spark, data)
        with Store(data) as store:
            stored = store.latest_offset("till-3")
        console.print(f"{attempt}: topic till-3 holds {stored} records")
        if stored != len(range(3, found, 4)):
            raise InvalidRequest("the demo's stream is not exactly once: please report this")


def _run_stream(spark: SparkSession, data: str) -> None:
    orders = (
        spark.readStream.format("lamina")
        .option("path", data)
        .options(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=2000)
        .load()
    )
    (
        orders.where(f"{_TILLS} = 3")
        .select("value")
        .writeStream.format("lamina")
        .option("checkpointLocation", os.path.join(os.path.dirname(data), "checkpoint"))
        .options(path=data, topic="till-3", txnAppId="till-3")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
