"""Source and sink on a standalone cluster: several machines' worth of processes, and their ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import lamina.spark
from lamina.spark.jobs import archive, verify
from lamina.spark.jobs import export as exporting
from lamina.spark.jobs.credentials import VARIABLES
from lamina.spark.jobs.job import Silent
from lamina.spark.jobs.lakes.parquet_table import ParquetLake
from lamina.spark.jobs.whereabouts import Place
from lamina.store.store import Store
from tests.spark.bulk import CONFIG as BULK
from tests.spark.bulk import NEVER_MS
from tests.spark.cluster import executors, standalone
from tests.spark.killed_driver import start
from tests.spark.logs import fill, make_log, values
from tests.spark.tiers import COUNT, make_mix
from tests.support.s3_servers import BUCKET, CREDENTIALS, S3Server, moto_server

CONFIG = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "640m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with standalone(tmp_path_factory.mktemp("cluster")) as address:
        session = lamina.spark.session(master=address, config=CONFIG)
        session.sparkContext.setLogLevel("OFF")
        yield session
        session.stop()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    make_log(path)
    with Store(str(path)) as store:
        for name in ("copy", "streamed"):
            store.create_topic(name, partitions=2)
    return path


def held(path: Path, topic: str) -> Counter[bytes]:
    with lamina.open(str(path), read_only=True) as store:
        return values(store, topic)


def source(spark: SparkSession, path: Path) -> DataFrame:
    reading = spark.read.format("lamina").option("path", str(path))
    return reading.options(subscribe="k", minPartitions="4").load().select("key", "value")


def write(frame: DataFrame, path: Path) -> None:
    options: dict[str, Any] = {"topic": "copy", "txnAppId": "cluster", "txnVersion": 1}
    frame.write.format("lamina").mode("append").options(path=str(path), **options).save()


def slowed(frame: DataFrame, marks: Path, seconds: float) -> DataFrame:
    """The first attempt that meets a certain row sleeps; it and others leave a mark."""
    mark = str(marks)

    def wait_once(value):  # type: ignore[no-untyped-def]  # Spark reads hints in its own way
        if bytes(value).startswith(b"value 100 "):
            first = not Path(mark).exists()
            Path(mark if first else f"{mark}-again").touch()
            time.sleep(seconds if first else 0)
        return bytes(value)

    return frame.select("key", udf(wait_once, "binary")("value").alias("value"))


def test_rows_read_and_written_by_executors_are_those_of_the_log(
    cluster: SparkSession, log: Path
) -> None:
    frame = source(cluster, log)
    for _ in range(2):
        write(frame, log)
    assert held(log, "copy") == held(log, "k")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = moto_server(tmp_path_factory.mktemp("s3"))
    yield server
    server.kill()


def test_executors_read_objects_with_the_secrets_that_the_query_was_given(
    cluster: SparkSession, s3: S3Server, tmp_path: Path
) -> None:
    """Neither the driver nor a worker has them in its environment."""
    make_mix(tmp_path, 80 << 10, tail=250, topics="f", archive=s3.objects("cold"))
    secrets = {f"archive.{name}": value for name, value in CREDENTIALS.items()}
    secrets["archive.endpoint"] = s3.url
    archive = f"s3://{BUCKET}/cold"
    given = {"data": {"path": str(tmp_path / "data"), "archive": archive}, "s3": {"path": archive}}
    for name, options in given.items():
        reading = cluster.read.format("lamina").options(**options, **secrets)
        frame = reading.options(subscribe="f", minPartitions="8", columns="offset").load()
        found = sorted(row[0] for row in frame.collect())
        assert found == list(range(COUNT if name == "data" else COUNT - 250))
        assert frame.rdd.getNumPartitions() >= 8
        assert CREDENTIALS["secret_access_key"] not in frame._jdf.queryExecution().toString()


def test_jobs_run_on_the_executors_over_an_archive_in_s3(
    cluster: SparkSession, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the driver's environment has the secrets."""
    for name, option in VARIABLES.items():
        monkeypatch.setenv(name, (CREDENTIALS | {"endpoint": s3.url}).get(option, ""))
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    data, url = str(tmp_path / "data"), f"s3://{BUCKET}/jobs"
    with Store(data, archive=url, tick_ms=NEVER_MS) as store:
        store.create_topic("k", config=BULK)
        fill(store, "k", 1000, headers=True)
    done = archive.run(cluster, data, url)
    assert done.totals["objects"] > 1
    assert archive.run(cluster, data, url).totals["objects"] == 0
    checked = verify.run(cluster, data, url)
    assert (checked.rows, checked.has_failed) == ([], False)
    assert checked.totals["records"] == 1000 + done.totals["records"]
    lake = ParquetLake(str(tmp_path / "table"))
    place = Place.of(data, None)
    for count in (1000, 0):
        exported = exporting.export(cluster, place, "k", lake, dry_run=False, progress=Silent())
        assert exported.totals["records"] == count
    found = Counter(pq.read_table(tmp_path / "table")["value"].to_pylist())
    assert found == held(tmp_path / "data", "k")
    objects = s3.objects("jobs")
    lost = next(info.key for info in objects.list("data") if info.key.endswith(".seg"))
    objects.delete(lost)
    assert [row["path"] for row in verify.run(cluster, data, url).rows] == [f"{url}/{lost}"]


def test_an_executor_that_is_killed_costs_and_doubles_nothing(
    cluster: SparkSession, log: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    frame = slowed(source(cluster, log), mark, 30)
    killed: list[int] = []

    def kill() -> None:
        while not mark.exists():
            time.sleep(0.05)
        killed.extend(executors(cluster.sparkContext.applicationId))
        for process in killed:
            os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    write(frame, log)
    killer.join()
    assert killed
    assert held(log, "copy") == held(log, "k")


def test_a_speculative_attempt_is_not_stored_twice(
    cluster: SparkSession, log: Path, tmp_path: Path
) -> None:
    frame = slowed(source(cluster, log), tmp_path / "mark", 60)
    write(frame, log)
    assert (tmp_path / "mark-again").exists()
    assert held(log, "copy") == held(log, "k")


def test_a_stream_goes_on_from_its_checkpoint(
    cluster: SparkSession, log: Path, tmp_path: Path
) -> None:
    for first in (3000, 3500):
        query = start(cluster, str(log), str(tmp_path / "checkpoint"))
        assert query.awaitTermination(200)
        assert held(log, "streamed") == held(log, "k")
        with Store(str(log)) as store:
            fill(store, "k", 500, headers=True, first=first)
