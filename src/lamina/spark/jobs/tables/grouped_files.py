"""New files of a table, each of one group of rows: a day (UTC), or a bucket of keys.

    <directory>/2026-01-31-<uuid>.parquet
    <directory>/bucket-0007-<uuid>.parquet

All files lie side by side, so that any reader of Parquet reads the directory, and no column has to
be made up for a folder. The rules of `lakes.parquet_files` hold here, too: an attempt's files have
names of their own, are durable before the task answers, and at most so many are open at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lamina.formats.partitioning import partitions_of
from lamina.spark.jobs.lakes.parquet_files import HELD_BYTES, OPEN_FILES, RowFile, by_day
from lamina.spark.jobs.tables.lake_columns import read_as
from lamina.spark.jobs.tables.table_contract import TableFile
from lamina.spark.typed_columns import KEY, TIMESTAMP
from lamina.storage import paths
from lamina.storage.files import Files

Grouped: TypeAlias = Callable[[pa.RecordBatch], Iterable[tuple[str, pa.RecordBatch]]]
"""Parts a batch by the groups of its rows, order kept."""
READ_ROWS = 1 << 16


def by_time(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Parts rows by the day of their time."""
    return by_day(batch, TIMESTAMP)


def by_bucket(buckets: int) -> Grouped:
    """Parts rows by the hash of their key; rows without one belong to no bucket, and are left."""

    def parted(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        chosen = partitions_of(batch.column(KEY), buckets)
        for number in np.unique(chosen[chosen >= 0]):
            yield bucket_name(int(number)), batch.filter(pa.array(chosen == number))

    return parted


def bucket_name(number: int) -> str:
    """Returns what the files of a bucket begin with."""
    return f"bucket-{number:04}"


class _GroupFile:
    """The open file of one group."""

    def __init__(self, files: Files, directory: str, group: str, schema: pa.Schema) -> None:
        self._name = f"{group}-{uuid.uuid4().hex}.parquet"
        self.file = RowFile(files, directory, self._name, schema)

    def finish(self) -> TableFile:
        size_bytes = self.file.finish()
        return TableFile(self._name, self.file.rows, size_bytes)


def write_grouped(
    files: Files, directory: str, batches: Iterable[pa.RecordBatch], grouped: Grouped
) -> list[TableFile]:
    """Writes rows into files by group; returns them when they are durable."""
    files.make_directory(directory)
    open_ones: dict[str, _GroupFile] = {}
    done: list[TableFile] = []
    for batch in batches:
        for group, rows in grouped(batch):
            if group not in open_ones and len(open_ones) >= OPEN_FILES:
                done.append(open_ones.pop(next(iter(open_ones))).finish())
            if group not in open_ones:
                open_ones[group] = _GroupFile(files, directory, group, batch.schema)
            open_ones[group].file.add(rows)
        if sum(each.file.held_bytes for each in open_ones.values()) >= HELD_BYTES:
            for each in open_ones.values():
                each.file.write()
    return done + [each.finish() for each in open_ones.values()]


def rows_of_files(
    directory: str, files: Iterable[TableFile], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Reads files of a table, one after the other, under the columns that the table has."""
    for file in files:
        with pq.ParquetFile(paths.join(directory, file.name)) as opened:
            for batch in opened.iter_batches(READ_ROWS):
                yield read_as(batch, schema)
