"""Lamina in this process, in each of its formats."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

import lamina
from benchmarks.field.queues import with_tasks
from benchmarks.field.system import FSYNC, IN_FLIGHT, System

TOPIC = "field"


def batch_of(values: Sequence[bytes]) -> pa.RecordBatch:
    """What a program with Arrow data hands in."""
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def values_in(chunk: pa.RecordBatch) -> Sequence[bytes]:
    """The values as Python objects."""
    return chunk.column("value").to_pylist()  # type: ignore[no-any-return]


def counted_in(chunk: pa.RecordBatch) -> tuple[int, int]:
    """Rows and bytes, without making Python objects of them."""
    return chunk.num_rows, pc.sum(pc.binary_length(chunk.column("value"))).as_py()


class Read:
    """Reading back from a store, here or behind a server."""

    store: Any
    durability: str

    def chunks(self, count: int) -> Iterator[pa.RecordBatch]:
        isolation = "durable" if self.durability == FSYNC else "written"
        return self.store.scan(
            TOPIC, max_bytes=4 << 20, max_records=1 << 20, isolation=isolation, partition=0
        )

    def values(self, chunk: pa.RecordBatch) -> Sequence[bytes]:
        return values_in(chunk)

    def counted(self, chunk: pa.RecordBatch) -> tuple[int, int]:
        return counted_in(chunk)

    def seek(self, timestamp_ms: int) -> bytes:
        offset = self.store.offset_for_time(TOPIC, 0, timestamp_ms)
        assert offset is not None
        found = next(iter(self.store.scan(TOPIC, partition=0, start=offset, max_records=1)))
        return found["value"][0].as_py()  # type: ignore[no-any-return]


class Embedded(Read, System):
    """A store in this process; `fsync` is its default, `default` is acks=1."""

    kind = "embedded"
    format: ClassVar[str]

    @classmethod
    def version(cls) -> str:
        return f"{importlib.metadata.version('lamina')}, in process"

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        return workload == "records" or (workload == "starts" and durability == FSYNC)

    def start(self) -> None:
        self.store = lamina.open(self.folder)
        if TOPIC not in self.store.topics():
            self.store.create_topic(TOPIC, format=self.format)
        self.acks: object = "all" if self.durability == FSYNC else 1

    def stop(self) -> None:
        self.store.close()

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[pa.RecordBatch]:
        """Its producers hold Arrow data; making it of Python objects is not the log's work."""
        return [batch_of(batch) for batch in values]

    def produce(self, values: Sequence[pa.RecordBatch]) -> None:
        asyncio.run(self._pipelined(values))

    async def _pipelined(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Several batches are under way at once, as every client of a broker has them."""
        waiting = iter(batches)

        async def produce() -> None:
            for batch in waiting:
                await self.store.append_async(TOPIC, batch, partition=0, acks=self.acks)

        await asyncio.gather(*(produce() for _ in range(IN_FLIGHT)))

    def produce_each(self, values: Sequence[pa.RecordBatch]) -> None:
        for batch in values:
            self.store.append(TOPIC, batch, partition=0, acks=self.acks)

    def append(self, value: bytes) -> None:
        self.store.append(TOPIC, value, partition=0, acks=self.acks)

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        def append() -> Awaitable[object]:
            return self.store.append_async(TOPIC, value, partition=0, acks=self.acks)

        return asyncio.run(with_tasks(producers, seconds, append))


class Keratin(Embedded):
    name = "Lamina keratin"
    format = "keratin"

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        return workload == "records" or durability == FSYNC


class KeratinObjects(Keratin):
    """The same, from and to Python objects: what a program without Arrow has."""

    name = "Lamina keratin, Python objects"

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        return workload == "records"

    def prepare(self, values: Sequence[Sequence[bytes]]) -> Any:
        return values

    def counted(self, chunk: pa.RecordBatch) -> tuple[int, int]:
        values = values_in(chunk)
        return len(values), sum(map(len, values))


class Frame(Embedded):
    name = "Lamina frame"
    format = "frame"


class Wal(Embedded):
    name = "Lamina wal"
    format = "wal"
