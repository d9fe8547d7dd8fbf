"""Redis Streams: XADD in pipelines, XRANGE in pages; everysec by default, always for fsync."""

from __future__ import annotations

import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.field.system import FSYNC, HOST, IN_FLIGHT, Server, needs_program

KEY = "field"
PAGE = 10_000


class RedisStreams(Server):
    """A Redis server of its own with an append-only file."""

    name = "Redis Streams"
    start_s = 0.2

    @classmethod
    def missing(cls) -> str | None:
        return needs_program("redis-server")

    @classmethod
    def version(cls) -> str:
        import redis

        found = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        number = found.stdout.split("v=")[1].split()[0]
        return f"{number}, prepacked pipelines, redis-benchmark, redis-py {redis.__version__}"

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
        self.socket = socket.create_connection((HOST, self.port))

    def disconnect(self) -> None:
        self.client.close()
        self.socket.close()

    def prepare(self, values: Sequence[Sequence[bytes]]) -> list[tuple[bytes, int]]:
        """The commands of a batch as they go over the wire: no client packs them faster."""
        return [
            (b"".join(packed("XADD", KEY, "*", "v", value) for value in batch), len(batch))
            for batch in values
        ]

    def produce(self, values: Sequence[tuple[bytes, int]]) -> None:
        """Pipelines of several batches, the next under way while the last is answered."""
        self._send(values, IN_FLIGHT)

    def produce_each(self, values: Sequence[tuple[bytes, int]]) -> None:
        self._send(values, 1)

    def _send(self, values: Sequence[tuple[bytes, int]], most: int) -> None:
        waiting: deque[int] = deque()
        for data, count in values:
            self.socket.sendall(data)
            waiting.append(count)
            if len(waiting) >= most:
                self._await(waiting.popleft())
        self._await(sum(waiting))

    _extra_lines = 0

    def _await(self, answers: int) -> None:
        """Waits for so many answers; each is the id of a record in two lines."""
        lines = 2 * answers - self._extra_lines
        while lines > 0:
            received = self.socket.recv(1 << 20)
            assert received, "the server closed the connection"
            assert b"-ERR" not in received, received[:200]
            lines -= received.count(b"\n")
        self._extra_lines = -lines

    def append(self, value: bytes) -> None:
        self.client.execute_command("XADD", KEY, "*", "v", value)

    def append_from(self, producers: int, value: bytes, seconds: float) -> float:
        """By redis-benchmark, the server's own client in C: as many requests as take that long."""
        before = self.client.xlen(KEY)
        count = max(1000, int(self._guess * seconds))
        started = time.perf_counter()
        subprocess.run(
            [
                *("redis-benchmark", "-h", HOST, "-p", str(self.port), "-c", str(producers)),
                *("-n", str(count), "-q", "XADD", KEY, "*", "v", value.decode()),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rate = count / (time.perf_counter() - started)
        assert self.client.xlen(KEY) - before == count, "not everything was stored"
        self._guess = rate
        return rate

    _guess = 10_000.0

    def chunks(self, count: int) -> Iterator[list[tuple[bytes, list[bytes]]]]:
        start = "-"
        while page := self.client.execute_command("XRANGE", KEY, start, "+", "COUNT", PAGE):
            yield page
            start = "(" + page[-1][0].decode()

    def values(self, chunk: list[tuple[bytes, Any]]) -> Sequence[bytes]:
        return [_value(fields) for _, fields in chunk]

    def seek(self, timestamp_ms: int) -> bytes:
        found = self.client.execute_command("XRANGE", KEY, timestamp_ms, "+", "COUNT", 1)
        return _value(found[0][1])


def _value(fields: Any) -> bytes:
    return fields[b"v"] if isinstance(fields, dict) else fields[1]  # type: ignore[no-any-return]


def packed(*parts: str | bytes) -> bytes:
    """A command in Redis' protocol."""
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join([b"*%d\r\n" % len(raw), *(b"$%d\r\n%s\r\n" % (len(p), p) for p in raw)])
