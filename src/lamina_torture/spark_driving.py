"""Spark as a door of the log: batch writes through the sink of a server, batch reads, and a stream.

    spark-write    `df.write`, one version after the other, and some of them once more
    spark-read     `spark.read` of what is new in a partition
    spark-stream   a query that notes its micro-batches, started again where it ended

Each writes its history down as the clients of `driving` do. The sink tells no offsets: what
it has acknowledged must be found where the log is read to its end.
"""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from lamina_torture.driving import PARTITIONS, TOPIC, Note
from lamina_torture.histories import Operation, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

APPLICATION = "torture"
COMMIT_MS = 60_000
_PAUSE_S = 0.02
_REFUSED = "InvalidRequest"


class SparkDoor(Protocol):
    """What Spark does with the topic of a server."""

    def write(self, version: int, partition: int, parts: list[list[bytes]]) -> None:
        """Writes rows, each part by a task of its own, under a version."""

    def read(self, partition: int, start: int) -> list[tuple[int, str]]:
        """Reads from an offset on, in the order in which the rows come."""

    def follow(self, note: Callable[[int, list[tuple[int, int, str]]], None]) -> StreamingQuery:
        """Starts a query, or starts it again; it notes (partition, offset, value) of each batch."""


class ServedDoor:
    """Spark itself, in this process."""

    def __init__(self, spark: SparkSession, url: str, directory: str) -> None:
        self._spark = spark
        self._directory = directory
        self._options = {"server": url}

    def write(self, version: int, partition: int, parts: list[list[bytes]]) -> None:
        """Each part is a task; they are staged at once, and committed in their order."""
        frames = [
            self._spark.createDataFrame(
                [(value, partition) for value in part], "value binary, partition int"
            ).coalesce(1)
            for part in parts
        ]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        writing = whole.write.format("lamina").mode("append").options(**self._options)
        writing.options(
            topic=TOPIC,
            stagingPath=f"{self._directory}/staging",
            txnAppId=APPLICATION,
            txnVersion=version,
            commitTimeoutMs=COMMIT_MS,
        ).save()

    def read(self, partition: int, start: int) -> list[tuple[int, str]]:
        """Reads up to the end as it is when the query is planned."""
        reading = self._spark.read.format("lamina").options(**self._options)
        rows = (
            reading.option("assign", json.dumps({TOPIC: [partition]}))
            .option("startingOffsets", json.dumps({TOPIC: {str(partition): start}}))
            .load()
            .select("offset", "value")
            .collect()
        )
        return [(row["offset"], bytes(row["value"]).decode()) for row in rows]

    def follow(self, note: Callable[[int, list[tuple[int, int, str]]], None]) -> StreamingQuery:
        """The checkpoint says where it goes on."""

        def take(frame: DataFrame, number: int) -> None:
            rows = frame.select("partition", "offset", "value").collect()
            note(number, [(row[0], row[1], bytes(row[2]).decode()) for row in rows])

        reading = self._spark.readStream.format("lamina").options(**self._options)
        writing = (
            reading.option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.foreachBatch(take)
        )
        return writing.option("checkpointLocation", f"{self._directory}/checkpoint").start()


class _SparkClient:
    """What the three have in common: a name, luck, what went wrong, how much was answered."""

    name: str

    def __init__(self, door: SparkDoor, *, first: int, seed: object, note: Note) -> None:
        self._door = door
        self._first = first
        self._luck = random.Random(f"{seed} {self.name}")  # noqa: S311
        self._note = note
        self.answered = 0
        self.errors: list[Exception] = []

    def _asked(self, call: Callable[..., Any], *given: Any) -> tuple[Outcome, Any]:
        """Calls; what Spark raises for a call that was wrong is kept, all else may be repeated."""
        try:
            return "ok", call(*given)
        except Exception as error:  # Spark wraps whatever was raised into a text of its own
            if _REFUSED in str(error):
                self.errors.append(error)
            time.sleep(_PAUSE_S)
            return "info", None


class SparkWriter(_SparkClient):
    """Writes batches, each until it is acknowledged; some are repeated, and add nothing."""

    name = "spark-write"

    def run(self, ended: threading.Event) -> None:
        """Writes until it is told to end."""
        version = 0
        while not ended.is_set() and not self.errors:
            version += 1
            partition = self._luck.randrange(PARTITIONS)
            parts = [
                [f"{self.name}-{version}-{part}-{row}" for row in range(self._luck.randint(1, 4))]
                for part in range(self._luck.randint(1, 2))
            ]
            self._write(version, partition, parts, ended)
            if self._luck.randrange(3) == 0:
                self._asked(self._door.write, version, partition, _encoded(parts))

    def _write(
        self, version: int, partition: int, parts: list[list[str]], ended: threading.Event
    ) -> None:
        """One version; a write that failed is repeated, as a job would be."""
        began = time.monotonic_ns()
        asked = [  # each has a time of its own: it is known by that
            Operation("send", self.name, partition, began + row, 1 << 62, "info", tuple(part))
            for row, part in enumerate(parts)
        ]
        outcome: Outcome = "info"
        while outcome != "ok" and not ended.is_set() and not self.errors:
            outcome, _ = self._asked(self._door.write, version, partition, _encoded(parts))
        now = time.monotonic_ns()
        for each in asked:
            self._note(dataclasses.replace(each, ended_ns=now, outcome=outcome))
        self.answered += outcome == "ok"


def _encoded(parts: list[list[str]]) -> list[list[bytes]]:
    return [[value.encode() for value in part] for part in parts]


class SparkReader(_SparkClient):
    """Reads each partition on from where it was."""

    name = "spark-read"

    def run(self, ended: threading.Event) -> None:
        """Reads until it is told to end."""
        positions = dict.fromkeys(range(PARTITIONS), self._first)
        while not ended.is_set() and not self.errors:
            partition = self._luck.randrange(PARTITIONS)
            start, began = positions[partition], time.monotonic_ns()
            outcome, rows = self._asked(self._door.read, partition, start)
            if outcome != "ok":
                continue
            positions[partition] = rows[-1][0] + 1 if rows else start
            now, found = time.monotonic_ns(), tuple(rows)
            self._note(Operation("poll", self.name, partition, began, now, "ok", (), found, start))
            self.answered += 1


class SparkStream(_SparkClient):
    """Follows the topic by a query, which goes on from its checkpoint when it has failed."""

    name = "spark-stream"

    def __init__(self, door: SparkDoor, *, first: int, seed: object, note: Note) -> None:
        super().__init__(door, first=first, seed=seed, note=note)
        self._positions = dict.fromkeys(range(PARTITIONS), first)
        self._batches: dict[int, list[tuple[int, int, str]]] = {}

    def run(self, ended: threading.Event) -> None:
        """Has a query running until it is told to end."""
        while not ended.is_set() and not self.errors:
            outcome, query = self._asked(self._door.follow, self._take)
            if outcome != "ok":
                continue
            while query.isActive and not ended.wait(_PAUSE_S):
                pass
            failed = query.exception()
            query.stop()
            if failed is not None and _REFUSED in str(failed):
                self.errors.append(failed)

    def _take(self, number: int, rows: list[tuple[int, int, str]]) -> None:
        """Notes a micro-batch; the same one once more, as Spark repeats it, is no second one."""
        if self._batches.get(number) == rows:
            return
        self._batches[number] = rows
        began = time.monotonic_ns()
        for partition, found in _by_partition(rows):
            start = self._positions[partition]
            self._positions[partition] = max(start, found[-1][0] + 1)
            now, at = time.monotonic_ns(), began + partition
            self._note(Operation("poll", self.name, partition, at, now, "ok", (), found, start))
        self.answered += bool(rows)


def _by_partition(
    rows: list[tuple[int, int, str]],
) -> Iterator[tuple[int, tuple[tuple[int, str], ...]]]:
    for partition in sorted({row[0] for row in rows}):
        yield partition, tuple(row[1:] for row in rows if row[0] == partition)
