"""The door's own life: where it listens, what it advertises, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

import lamina
from lamina.errors import InvalidRequest, Unavailable
from lamina.server.kafka.listener import advertised_of
from lamina.wire.kafka.record_apis import FETCH
from lamina.wire.kafka.topic_apis import METADATA
from tests.server.kafka.raw_client import RawClient, fetched
from tests.server.kafka.test_clients import PRODUCERS, READERS, RECORDS
from tests.server.rig import served


def test_it_is_off_where_the_port_is_minus_one(tmp_path: Path) -> None:
    with served(tmp_path / "data", kafka_port=-1) as service:
        assert service.kafka_address is None


def test_a_port_that_is_taken_is_named_with_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=r"kafka\.port"):
            served(tmp_path / "data", kafka_port=port).__enter__()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("broker", ("broker", 9)),
        ("broker:7", ("broker", 7)),
        ("[::1]", ("::1", 9)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_an_advertised_address_may_have_a_port(text: str, found: tuple[str, int] | None) -> None:
    assert advertised_of(text, 9) == found


@pytest.mark.parametrize("text", ["broker:", "broker:x", ":7", "broker:70000"])
def test_a_wrong_advertised_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="advertised"):
        advertised_of(text, 9)


def test_clients_are_told_the_advertised_address_or_where_they_came_in(tmp_path: Path) -> None:
    with served(tmp_path / "a", kafka_port=0) as service, RawClient(service.kafka_address) as raw:
        (broker,) = raw.ask(METADATA, 9, {"topics": []})["brokers"]
        assert f"{broker['host']}:{broker['port']}" == service.kafka_address
    told = {"kafka_port": 0, "kafka_advertised": "elsewhere:1"}
    with served(tmp_path / "b", **told) as service, RawClient(service.kafka_address) as raw:
        (broker,) = raw.ask(METADATA, 9, {"topics": []})["brokers"]
        assert (broker["host"], broker["port"]) == ("elsewhere", 1)


def test_clients_are_served_without_uvloop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as where it is not installed
    with served(tmp_path / "data", kafka_port=0) as service:
        assert service._kafka is not None
        assert isinstance(service._kafka._loop, asyncio.BaseEventLoop), "uvloop's is none"
        address = service.kafka_address or ""
        for name, produce in PRODUCERS.items():
            produce(address, name, "none")
            for read in READERS.values():
                assert read(address, name, len(RECORDS)) == RECORDS


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_an_idle_connection_costs_little_memory(tmp_path: Path) -> None:
    count, budget_bytes = 400, 32 << 10  # both ends of each connection, and Python's own for it
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(served(tmp_path / "data", kafka_port=0))
        clients = []

        def connect(number: int) -> None:
            for _ in range(number):
                client = stack.enter_context(RawClient(service.kafka_address))
                client.ask(METADATA, 1, {"topics": []})
                clients.append(client)

        connect(20)  # what the first ones load is not theirs
        before = resident_bytes()
        connect(count)
        assert (resident_bytes() - before) / count < budget_bytes


def test_a_stop_ends_long_polls(tmp_path: Path) -> None:
    with served(tmp_path / "data", kafka_port=0, drain_ms=60_000) as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t")
        client = RawClient(service.kafka_address)
        client.ask(FETCH, 11, fetched("t", 0))
        client.send(FETCH, 11, fetched("t", 0, max_wait_ms=30_000))
        client.send(METADATA, 1, {"topics": []})
        service.stop()
        assert client.is_closed()
        client.socket.close()
