"""One Spark session for each test module, small and quick to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import lamina.spark

# Four attempts for each task, which local mode does not give by itself.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataProgressEventInterval": "100",
}


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = lamina.spark.session(master="local[2,4]", config=QUICK)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
