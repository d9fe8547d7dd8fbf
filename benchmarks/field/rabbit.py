"""RabbitMQ streams with rstream. They are never fsynced, so there is only the default."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
import time
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.field.queues import with_tasks
from benchmarks.field.system import HOST, Server, answers, free_port, needs_package, needs_program

STREAM = "field"


class RabbitStreams(Server):
    """A node of its own with the stream plugin."""

    name = "RabbitMQ streams"
    durabilities = ("default",)
    start_s = 6
    reuses_batches = False

    @classmethod
    def takes(cls, workload: str, durability: str) -> bool:
        """Started after a kill, too, though none of its records are on the disk for sure."""
        return workload in ("records", "starts")

    @classmethod
    def missing(cls) -> str | None:
        return needs_program("rabbitmq-server") or needs_package("rstream")

    @classmethod
    def version(cls) -> str:
        found = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"],
            check=True,
            capture_output=True,
            text=True,
        )
        return f"{found.stdout.split('-')[0]}, rstream {importlib.metadata.version('rstream')}"

    def command(self) -> list[str]:
        self.stream_port = free_port()
        Path(self.folder, "plugins").write_text("[rabbitmq_stream].\n")
        Path(self.folder, "rabbit.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{self.port}\n"
            f"stream.listeners.tcp.1 = {HOST}:{self.stream_port}\n"
            f"stream.advertised_host = {HOST}\nstream.advertised_port = {self.stream_port}\n"
        )
        return ["/usr/lib/rabbitmq/bin/rabbitmq-server"]

    def environment(self) -> dict[str, str]:
        return {
            "RABBITMQ_NODENAME": f"field{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": os.path.join(self.folder, "rabbit.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(self.folder, "plugins"),
            "RABBITMQ_MNESIA_BASE": os.path.join(self.folder, "data"),
            "RABBITMQ_LOG_BASE": os.path.join(self.folder, "log"),
            "RABBITMQ_PID_FILE": os.path.join(self.folder, "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "HOME": self.folder,
        }

    def connect(self) -> None:
        answers(self.stream_port)
        self.loop = asyncio.new_event_loop()
        try:
            self.loop.run_until_complete(self._connect())
        except BaseException:
            self.loop.close()
            raise

    async def _connect(self) -> None:
        from rstream import Producer

        self.producer = Producer(HOST, self.stream_port, username="guest", password="guest")
        await self.producer.start()
        await self.producer.create_stream(STREAM, exists_ok=True)

    def disconnect(self) -> None:
        if not self.loop.is_closed():
            self.loop.run_until_complete(self.producer.close())
            self.loop.close()

    def prepare(self, values: Sequence[Sequence[bytes]]) -> Any:
        from rstream import RawMessage

        return [[RawMessage(value) for value in batch] for batch in values]

    def produce(self, values: Any) -> None:
        self.loop.run_until_complete(self._produce(values))

    async def _produce(self, values: Any) -> None:
        total = sum(map(len, values))
        confirmed = 0
        done = asyncio.Event()

        def confirm(status: Any) -> None:
            nonlocal confirmed
            confirmed += 1
            if confirmed >= total:
                done.set()

        for batch in values:
            await self.producer.send_batch(STREAM, batch, on_publish_confirm=confirm)
        await asyncio.wait_for(done.wait(), 60)

    def append(self, value: bytes) -> None:
        self.loop.run_until_complete(self.producer.send_wait(STREAM, value))

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        def append() -> Awaitable[object]:
            return self.producer.send_wait(STREAM, value)

        return self.loop.run_until_complete(with_tasks(producers, seconds, append))

    def chunks(self, count: int) -> Iterator[list[bytes]]:
        from rstream import OffsetType

        found: list[bytes] = []
        consumer = self.loop.run_until_complete(self._consumer(found, OffsetType.FIRST, None))
        while count > 0:
            self.loop.run_until_complete(_some(found))
            chunk, found[:] = found[:], []
            count -= len(chunk)
            yield chunk
        self.loop.run_until_complete(consumer.close())

    async def _consumer(self, found: list[bytes], kind: Any, at: int | None) -> Any:
        from rstream import Consumer, ConsumerOffsetSpecification

        consumer = Consumer(HOST, self.stream_port, username="guest", password="guest")

        async def take(message: bytes, context: Any) -> None:
            found.append(message)

        await consumer.start()
        await consumer.subscribe(
            STREAM,
            take,
            offset_specification=ConsumerOffsetSpecification(kind, at),
            initial_credit=100,
        )
        return consumer

    def seek(self, timestamp_ms: int) -> bytes:
        """To the chunk of that time: the server knows no closer."""
        from rstream import OffsetType

        found: list[bytes] = []
        consumer = self.loop.run_until_complete(
            self._consumer(found, OffsetType.TIMESTAMP, timestamp_ms)
        )
        self.loop.run_until_complete(_some(found))
        self.loop.run_until_complete(consumer.close())
        return found[0]


async def _some(found: list[bytes]) -> None:
    """Waits until anything has come."""
    deadline = time.monotonic() + 60
    while not found:
        assert time.monotonic() < deadline, "the server stopped sending"
        await asyncio.sleep(0.001)
