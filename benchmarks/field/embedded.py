"""Lamina in this process, in each of its formats."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Sequence
from typing import ClassVar

import pyarrow as pa

import lamina
from benchmarks.field.queues import with_tasks
from benchmarks.field.system import FSYNC, System

IN_FLIGHT = 16
TOPIC = "field"


def batch_of(values: Sequence[bytes]) -> pa.RecordBatch:
    """What a program with Arrow data hands in."""
    return pa.record_batch({"value": pa.array(values, pa.binary())})


class Embedded(System):
    """A store in this process; `fsync` is its default, `default` is acks=1."""

    kind = "embedded"
    format: ClassVar[str]

    @classmethod
    def version(cls) -> str:
        return f"{importlib.metadata.version('lamina')}, in process"

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

    def read(self, count: int) -> int:
        isolation = "durable" if self.durability == FSYNC else "written"
        return sum(
            batch.num_rows
            for batch in self.store.scan(
                TOPIC, max_bytes=4 << 20, max_records=1 << 20, isolation=isolation
            )
        )

    def seek(self, timestamp_ms: int) -> None:
        offset = self.store.offset_for_time(TOPIC, 0, timestamp_ms)
        assert offset is not None
        next(iter(self.store.scan(TOPIC, partition=0, start=offset, max_records=1)))


class Keratin(Embedded):
    name = "Lamina keratin"
    format = "keratin"


class Frame(Embedded):
    name = "Lamina frame"
    format = "frame"


class Wal(Embedded):
    name = "Lamina wal"
    format = "wal"
