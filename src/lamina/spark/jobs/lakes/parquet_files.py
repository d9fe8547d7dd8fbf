"""Parquet files of a topic's rows, one for each day (UTC) that a task meets; written by executors.

    <directory>/date=2026-01-31/<uuid>.parquet

Rules.
1. Each attempt of a task has names of its own: retries and speculation never meet.
2. A file and its name are durable before the task answers.
3. At most `HELD_BYTES` of rows wait to be written, in at most `OPEN_FILES` files; a topic whose
   times jump back and forth gets more files, not more memory.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import Buffer

from lamina.storage import paths
from lamina.storage.files import File, Files

GROUP_BYTES, HELD_BYTES, OPEN_FILES = 16 << 20, 64 << 20, 32
COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A written file: where it is below its directory, and what is in it."""

    path: str
    date: str
    rows: int
    size_bytes: int
    first_offset: int
    last_offset: int


class Output(io.RawIOBase):
    """A new file that a Parquet writer writes to."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0

    def writable(self) -> bool:
        """Returns True: it can be written to."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Writes behind what was written before."""
        view = memoryview(data)
        self._file.write_at(self._position, view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Returns how much was written."""
        return self._position

    def finish(self) -> int:
        """Makes the file durable; returns its size."""
        self._file.sync()
        self._file.close()
        return self._position


class RowFile:
    """A new Parquet file in a directory that is there; rows are held until a row group is full."""

    def __init__(self, files: Files, folder: str, name: str, schema: pa.Schema) -> None:
        self._files, self._folder = files, folder
        self._output = Output(files.create(paths.join(folder, name)))
        self._writer = pq.ParquetWriter(self._output, schema, compression=COMPRESSION)
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows; writes when there are enough for a row group."""
        self.rows += batch.num_rows
        self._held.append(batch)
        self.held_bytes += batch.nbytes
        if self.held_bytes >= GROUP_BYTES:
            self.write()

    def write(self) -> None:
        """Writes what is held as one row group."""
        if self._held:
            self._writer.write_batch(pa.concat_batches(self._held))
        self._held, self.held_bytes = [], 0

    def finish(self) -> int:
        """Writes the rest and makes the file durable; returns its size."""
        self.write()
        self._writer.close()
        size_bytes = self._output.finish()
        self._files.sync_directory(self._folder)
        return size_bytes


class DayFile:
    """The open file of one day."""

    def __init__(self, files: Files, directory: str, date: str, schema: pa.Schema) -> None:
        folder = paths.join(directory, f"date={date}")
        files.make_directory(folder)
        self._date, self._name = date, f"{uuid.uuid4().hex}.parquet"
        self._file = RowFile(files, folder, self._name, schema)
        self.write = self._file.write
        self._first, self._last = 1 << 62, -1

    @property
    def held_bytes(self) -> int:
        """How many bytes of rows wait to be written."""
        return self._file.held_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows of this day."""
        span = pc.min_max(batch.column("offset")).as_py()
        self._first, self._last = min(self._first, span["min"]), max(self._last, span["max"])
        self._file.add(batch)

    def finish(self) -> DataFile:
        """Writes the rest and makes the file durable."""
        size_bytes = self._file.finish()
        path = f"date={self._date}/{self._name}"
        return DataFile(path, self._date, self._file.rows, size_bytes, self._first, self._last)


FIRST_US, END_US = (
    int(np.datetime64(day, "us").astype(np.int64)) for day in ("0001-01-01", "10000-01-01")
)
"""The years 1 to 9999: what dates and times of tables can be for all who read them."""


def write_by_day(files: Files, directory: str, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Writes rows with `timestamp` and `offset` into files by day; returns them when durable."""
    open_ones: dict[str, DayFile] = {}
    done: list[DataFile] = []
    for batch in batches:
        for date, rows in by_day(batch):
            if date not in open_ones and len(open_ones) >= OPEN_FILES:
                done.append(open_ones.pop(next(iter(open_ones))).finish())
            if date not in open_ones:
                open_ones[date] = DayFile(files, directory, date, batch.schema)
            open_ones[date].add(rows)
        if sum(each.held_bytes for each in open_ones.values()) >= HELD_BYTES:
            for each in open_ones.values():
                each.write()
    return done + [each.finish() for each in open_ones.values()]


def by_day(batch: pa.RecordBatch, name: str = "timestamp") -> Iterator[tuple[str, pa.RecordBatch]]:
    """Parts rows by the day of their time, order kept."""
    batch = in_calendars(batch, name)
    days = batch.column(name).cast(pa.date32()).cast(pa.int32()).to_numpy()
    if not len(days):
        return
    if days.min() == days.max():
        yield str(np.datetime64(int(days[0]), "D")), batch
        return
    for day in np.unique(days):
        yield str(np.datetime64(int(day), "D")), batch.filter(pa.array(days == day))


def in_calendars(batch: pa.RecordBatch, name: str = "timestamp") -> pa.RecordBatch:
    """Gives times that tables do not have the first or the last one that they have."""
    row = batch.schema.get_field_index(name)
    column = batch.column(row)
    times = column.cast(pa.int64()).to_numpy()
    if not len(times) or (times.min() >= FIRST_US and times.max() < END_US):
        return batch
    clipped = pa.array(np.clip(times, FIRST_US, END_US - 1)).cast(column.type)
    return batch.set_column(row, batch.schema.field(row), clipped)
