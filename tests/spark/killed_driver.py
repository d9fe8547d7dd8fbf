"""A Spark driver that is killed, with its JVM and workers, before a chosen step of the sink.

Started as `python -m tests.spark.killed_driver <data> <checkpoint> <phase> <step>`: streams topic
`k` into topic `streamed`. The phase is `stage` (in a task) or `commit` (beside the driver); the
step counts what that phase changes on disk.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import lamina.spark
from lamina.spark.sink import StreamWriter
from lamina.spark.source import LaminaSource
from tests.spark.conftest import QUICK
from tests.spark.stepping import Steps, files_with


def kill_spark() -> None:
    """Kills the JVM, which is the parent of the parent of a Python worker, and this process."""
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    jvm = int(status.rpartition(")")[2].split()[1])
    for process in (jvm, os.getppid(), os.getpid()):
        os.kill(process, signal.SIGKILL)


class KillingSource(LaminaSource):
    """The source, with a sink that kills."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        phase, step = self.options.pop("phase"), int(self.options.pop("step"))
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, StreamWriter)
        sink = writer._sink
        method = {"stage": "stage", "commit": "publish"}[phase]
        actual = getattr(sink, method)

        def killing(*arguments: Any) -> Any:
            sink._files = files_with(Steps(step, kill_spark))
            return actual(*arguments)

        setattr(sink, method, killing)
        return writer


def start(spark: SparkSession, data: str, checkpoint: str, **sink: Any) -> Any:
    reading = spark.readStream.format("lamina").option("path", data)
    frame = reading.options(subscribe="k", startingOffsets="earliest").load()
    writing = frame.select("key", "value").writeStream.format("lamina")
    return (
        writing.options(path=data, topic="streamed", txnAppId="killed", **sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    data, checkpoint, phase, step = sys.argv[1:]
    spark = lamina.spark.session(master="local[1]", config=QUICK)
    spark.dataSource.register(KillingSource)
    start(spark, data, checkpoint, phase=phase, step=step).awaitTermination()


if __name__ == "__main__":
    main()
