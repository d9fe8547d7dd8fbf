"""Redis Streams: XADD in pipelines, XRANGE in pages; everysec by default, always for fsync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from benchmarks.field.system import FSYNC, HOST, Server, needs_program

KEY = "field"
PAGE = 10_000


class RedisStreams(Server):
    """A Redis server of its own with an append-only file."""

    name = "Redis Streams"

    @classmethod
    def missing(cls) -> str | None:
        return needs_program("redis-server")

    @classmethod
    def version(cls) -> str:
        import subprocess

        import redis

        found = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        number = found.stdout.split("v=")[1].split()[0]
        return f"{number}, redis-py {redis.__version__}"

    def command(self) -> list[str]:
        sync = "always" if self.durability == FSYNC else "everysec"
        return [
            *("redis-server", "--port", str(self.port), "--bind", HOST, "--dir", self.folder),
            *("--appendonly", "yes", "--appendfsync", sync, "--save", ""),
            *("--auto-aof-rewrite-percentage", "0", "--stream-node-max-entries", "1000"),
        ]

    def connect(self) -> None:
        import redis

        self.client = redis.Redis(HOST, self.port)
        self.client.ping()

    def disconnect(self) -> None:
        self.client.close()

    def produce(self, values: Sequence[Sequence[bytes]]) -> None:
        for batch in values:
            pipe = self.client.pipeline(transaction=False)
            for value in batch:
                pipe.execute_command("XADD", KEY, "*", "v", value)
            pipe.execute()

    produce_each = produce

    def append(self, value: bytes) -> None:
        self.client.execute_command("XADD", KEY, "*", "v", value)

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        import redis.asyncio

        async def run() -> float:
            deadline = time.perf_counter() + seconds
            count = 0

            async def produce() -> None:
                nonlocal count
                client = redis.asyncio.Redis(host=HOST, port=self.port)
                while time.perf_counter() < deadline:
                    await client.execute_command("XADD", KEY, "*", "v", value)
                    count += 1
                await client.aclose()

            started = time.perf_counter()
            await asyncio.gather(*(produce() for _ in range(producers)))
            return count / (time.perf_counter() - started)

        return asyncio.run(run())

    def read(self, count: int) -> int:
        found, start = 0, "-"
        while page := self.client.execute_command("XRANGE", KEY, start, "+", "COUNT", PAGE):
            found += len(page)
            start = "(" + page[-1][0].decode()
        return found

    def seek(self, timestamp_ms: int) -> None:
        self.client.execute_command("XRANGE", KEY, timestamp_ms, "+", "COUNT", 1)
