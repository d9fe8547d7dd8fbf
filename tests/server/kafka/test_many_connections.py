"""Thousands of idle clients: little memory, no threads, one line for those beyond the limit."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from lamina.wire.kafka.record_apis import FETCH, PRODUCE
from lamina.wire.kafka.topic_apis import METADATA
from tests.server.kafka.raw_client import RawClient, fetched, made, produced
from tests.server.rig import ServerProcess, free_port

IDLE, BEYOND = 2_000, 50
BUDGET_BYTES = 24 << 10
"""Of a connection: its 8 KiB to read into, and Python's own for it."""


def status_of(server: ServerProcess, name: str) -> int:
    assert server.process is not None
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_thousands_of_idle_connections_are_cheap_and_those_beyond_are_turned_away(
    tmp_path: Path,
) -> None:
    port = free_port()
    settings = (f"kafka.port={port}", f"max.connections={IDLE + 1}")
    with ServerProcess(tmp_path / "data", *settings) as server, contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{port}"

        def connect() -> RawClient:
            return stack.enter_context(RawClient(address))

        working = connect()
        working.ask(METADATA, 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        working.ask(PRODUCE, 7, produced("t", made([b"first"])))
        before = status_of(server, "VmRSS"), status_of(server, "Threads")
        idle = [connect() for _ in range(IDLE)]
        for client in idle:
            client.ask(METADATA, 4, {"topics": [], "allow_auto_topic_creation": False})
        assert (status_of(server, "VmRSS") - before[0]) * 1024 < IDLE * BUDGET_BYTES
        assert status_of(server, "Threads") <= before[1] + 1  # not one of them has a thread

        refused = [connect() for _ in range(BEYOND)]
        assert all(client.is_closed() for client in refused)
        assert server.log.read_text().count("Kafka clients") == 1, server.log.read_text()

        working.ask(PRODUCE, 7, produced("t", made([b"second"])))
        answer = idle[-1].ask(FETCH, 11, fetched("t", 1))  # it is there, as on the first day
        assert answer["responses"][0]["partitions"][0]["high_watermark"] == 2

        for client in idle[: IDLE // 2]:
            client.socket.close()
        late = [connect() for _ in range(IDLE // 2)]
        for client in late:
            client.ask(METADATA, 4, {"topics": [], "allow_auto_topic_creation": False})
        assert (status_of(server, "VmRSS") - before[0]) * 1024 < IDLE * BUDGET_BYTES
