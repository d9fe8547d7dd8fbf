"""Small logs for Spark to read, what they hold, and reading them as Spark's workers do."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from lamina.spark.source import LaminaSource
from lamina.spark.stream import StreamReader
from lamina.store.store import Store

START_MS = 1_700_000_000_000
NEVER_MS = 1 << 30
SEGMENT_BYTES = 16 << 10


def records(first: int, count: int, *, headers: bool = True) -> list[dict[str, Any]]:
    """Records that differ in everything: number n has time START_MS + n."""
    made = []
    for number in range(first, first + count):
        record: dict[str, Any] = {
            "key": None if number % 7 == 0 else b"key %d" % (number % 50),
            "value": b"value %d " % number + b"x" * (number % 90),
            "timestamp": START_MS + number,
        }
        if headers and number % 3 == 0:
            record["headers"] = [{"key": "n", "value": str(number).encode()}]
        made.append(record)
    return made


def fill(store: Store, topic: str, count: int, *, headers: bool, first: int = 0) -> None:
    for start in range(first, first + count, 250):
        store.append(topic, records(start, 250, headers=headers))


def make_log(path: Path, count: int = 3000) -> None:
    """A directory with a topic of each format, sealed segments and a tail each."""
    with Store(str(path)) as store:
        config = {"segment.bytes": SEGMENT_BYTES}
        store.create_topic("k", partitions=3, config=config)
        store.create_topic("f", partitions=1, format="frame", config=config)
        fill(store, "k", count, headers=True)
        fill(store, "f", count, headers=False)


def options(path: Path, **given: Any) -> CaseInsensitiveDict:
    return CaseInsensitiveDict({"path": str(path)} | {name: str(given[name]) for name in given})


def reader(path: Path, **given: Any) -> DataSourceReader:
    source = LaminaSource(options(path, **given))
    return source.reader(source.schema())


def stream(path: Path, **given: Any) -> StreamReader:
    source = LaminaSource(options(path, **given))
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def rows_of(reading: Any, tasks: list[Any]) -> list[tuple[Any, ...]]:
    """The rows of tasks, each read by a copy that went through pickle, as on an executor."""
    found: list[tuple[Any, ...]] = []
    for task in tasks:
        copy, piece = pickle.loads(pickle.dumps((reading, task)))
        for batch in copy.read(piece):
            found += zip(*(_plain(column) for column in batch.columns), strict=True)
    return found


def _plain(column: pa.Array) -> list[Any]:
    return [_hashable(value) for value in column.to_pylist()]


def _hashable(value: Any) -> Any:
    return tuple((item["key"], item["value"]) for item in value) if type(value) is list else value


def batch_rows(path: Path, **given: Any) -> list[tuple[Any, ...]]:
    reading = reader(path, **given)
    return rows_of(reading, list(reading.partitions()))


def stored(store: Any, topic: str, partition: int, *names: str) -> list[tuple[Any, ...]]:
    """What the log itself gives, without Spark."""
    found: list[tuple[Any, ...]] = []
    for batch in store.scan(topic, partition):
        columns = [_plain(batch.column(name)) for name in names]
        found += zip(*columns, strict=True)
    return found


def values(store: Any, topic: str) -> Counter[bytes]:
    """Every value of a topic, counted."""
    counted: Counter[bytes] = Counter()
    for partition in range(len(store.describe_topic(topic).partitions)):
        counted.update(row[0] for row in stored(store, topic, partition, "value"))
    return counted
