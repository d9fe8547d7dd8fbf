"""Plain files of Arrow and Parquet: no log, no recovery, no groups; what bytes alone cost."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.field.embedded import batch_of, counted_in, values_in
from benchmarks.field.system import FSYNC, IN_FLIGHT, System


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
        """As many batches share an fsync as the log's producers have under way."""
        for start in range(0, len(values), IN_FLIGHT):
            for batch in values[start : start + IN_FLIGHT]:
                self.writer.write_batch(batch)
            self._sync()

    def produce_each(self, values: Sequence[pa.RecordBatch]) -> None:
        for batch in values:
            self.writer.write_batch(batch)
            self._sync()

    def _sync(self) -> None:
        if self.durability == FSYNC:
            os.fdatasync(self.file.fileno())

    def append(self, value: bytes) -> None:
        self.produce_each([batch_of([value])])

    def chunks(self, count: int) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self.path) as source:
            reader = pa.ipc.open_stream(source)
            while count > 0:  # the stream has no end yet
                batch = reader.read_next_batch()
                count -= batch.num_rows
                yield batch

    def values(self, chunk: pa.RecordBatch) -> Sequence[bytes]:
        return values_in(chunk)

    def counted(self, chunk: pa.RecordBatch) -> tuple[int, int]:
        return counted_in(chunk)


class ParquetFiles(System):
    """A Parquet file a commit: the only way to have it durable before the next one."""

    name = "Parquet files"
    kind = "files"

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        return workload == "records" or (workload != "starts" and durability == FSYNC)

    @classmethod
    def version(cls) -> str:
        return f"pyarrow {pa.__version__}"

    def start(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        self.written = 0
        self.directory = os.open(self.folder, os.O_RDONLY)

    def stop(self) -> None:
        os.close(self.directory)

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[pa.RecordBatch]:
        return [batch_of(batch) for batch in values]

    def produce(self, values: Sequence[pa.RecordBatch]) -> None:
        """As many batches share a file as the log's producers have under way."""
        for start in range(0, len(values), IN_FLIGHT):
            self._write(values[start : start + IN_FLIGHT])

    def produce_each(self, values: Sequence[pa.RecordBatch]) -> None:
        for batch in values:
            self._write([batch])

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        path = os.path.join(self.folder, f"{self.written:08}.parquet")
        with open(path, "wb") as file:
            pq.write_table(pa.Table.from_batches(batches), file, compression="lz4")
            if self.durability == FSYNC:
                file.flush()
                os.fsync(file.fileno())
        if self.durability == FSYNC:
            os.fsync(self.directory)
        self.written += 1

    def chunks(self, count: int) -> Iterator[pa.Table]:
        for number in range(self.written):
            yield pq.read_table(os.path.join(self.folder, f"{number:08}.parquet"))

    def values(self, chunk: pa.Table) -> Sequence[bytes]:
        return values_in(chunk)

    def counted(self, chunk: pa.Table) -> tuple[int, int]:
        return counted_in(chunk)
