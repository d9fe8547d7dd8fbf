"""Plain files of Arrow and Parquet: no log, no recovery, no groups; what bytes alone cost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.field.embedded import batch_of
from benchmarks.field.system import FSYNC, System

FLUSHED_BATCHES = 16
"""As many batches share an fsync as the embedded log's producers have under way."""


class ArrowFile(System):
    """An Arrow IPC stream: batches are appended to one file."""

    name = "Arrow IPC file"
    kind = "files"

    @classmethod
    def version(cls) -> str:
        return f"pyarrow {pa.__version__}"

    def start(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, "records.arrows")
        self.file = open(self.path, "wb", buffering=0)  # noqa: SIM115
        self.writer = pa.ipc.new_stream(self.file, pa.schema([("value", pa.binary())]))

    def stop(self) -> None:
        self.writer.close()
        self.file.close()

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[pa.RecordBatch]:
        return [batch_of(batch) for batch in values]

    def produce(self, values: Sequence[pa.RecordBatch]) -> None:
        for number, batch in enumerate(values):
            self.writer.write_batch(batch)
            if self.durability == FSYNC and number % FLUSHED_BATCHES == FLUSHED_BATCHES - 1:
                os.fdatasync(self.file.fileno())
        os.fdatasync(self.file.fileno())

    def produce_each(self, values: Sequence[pa.RecordBatch]) -> None:
        for batch in values:
            self.writer.write_batch(batch)
            os.fdatasync(self.file.fileno())

    def append(self, value: bytes) -> None:
        self.produce_each([batch_of([value])])

    def read(self, count: int) -> int:
        with pa.memory_map(self.path) as source:
            return sum(batch.num_rows for batch in _batches(source))


def _batches(source: pa.NativeFile) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_stream(source)
    try:
        yield from reader
    except pa.ArrowInvalid:  # the stream has no end yet
        return


class ParquetFiles(System):
    """A Parquet file a batch: the only way to have it durable before the next one."""

    name = "Parquet files"
    kind = "files"

    @classmethod
    def version(cls) -> str:
        return f"pyarrow {pa.__version__}"

    def start(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.written = 0

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[pa.Table]:
        return [pa.Table.from_batches([batch_of(batch)]) for batch in values]

    def produce(self, values: Sequence[pa.Table]) -> None:
        for table in values:
            path = os.path.join(self.folder, f"{self.written:08}.parquet")
            with open(path, "wb") as file:
                pq.write_table(table, file, compression="lz4")
                if self.durability == FSYNC:
                    file.flush()
                    os.fsync(file.fileno())
            self.written += 1

    produce_each = produce

    def read(self, count: int) -> int:
        return sum(
            pq.read_table(os.path.join(self.folder, f"{number:08}.parquet")).num_rows
            for number in range(self.written)
        )
