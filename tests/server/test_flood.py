"""A flood of connections takes no descriptor that the store needs."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import lamina
from tests.server.rig import ServerProcess, free_port

LIMIT = 256
FLOOD = 400


@contextlib.contextmanager
def limited(descriptors: int) -> Iterator[None]:
    """Whatever is started inside may have so many descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("door", ["flight", "http", "kafka"])
def test_a_flood_of_connections_leaves_the_store_its_files(tmp_path: Path, door: str) -> None:
    kafka_port = free_port()
    server = ServerProcess(tmp_path / "data", f"kafka.port={kafka_port}")
    ports = {"flight": server.flight_port, "http": server.http_port, "kafka": kafka_port}
    with limited(LIMIT):
        server.start()
    peers: list[socket.socket] = []
    try:
        with lamina.connect(server.url) as store:
            for number in range(20):
                store.create_topic(f"t{number}", config={"segment.bytes": 1024})
                store.append(f"t{number}", [b"before"], partition=0)
            for _ in range(FLOOD):
                with contextlib.suppress(OSError):
                    peers.append(socket.create_connection(("127.0.0.1", ports[door]), timeout=5))
            for turn in range(5):
                for number in range(20):
                    store.append(f"t{number}", [b"x" * 400] * turn or [b"y"], partition=0)
            group = store.group("t0", "g")
            group.ack(group.poll(1))
            assert store.failures() == {}
            assert sum(batch.num_rows for batch in store.scan("t0")) == 12
    finally:
        for each in peers:
            each.close()
        server.end(signal.SIGTERM)
    if door == "flight":
        assert "connections to port" in server.log.read_text()
