"""Garbage, huge lengths, silence: whatever comes in, the server goes on for everybody else."""

from __future__ import annotations

import gzip
import json
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina.server.service import Service
from lamina.wire import failures, messages
from tests.server.rig import served

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = struct.pack(">I", 0)[1:] + bytes([4, 0]) + bytes(4)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("hostile") / "data"
    with served(folder, idle_ms=1000, request_bytes=1 << 20) as running:
        with lamina.connect(running.flight_url) as store:
            store.create_topic("t")
        yield running


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def works(service: Service) -> bool:
    with lamina.connect(service.flight_url, timeout_s=20) as store:
        ack = store.append("t", b"still here")
        read = store.fetch("t", 0, ack.base_offset).column("value")[0].as_py()
    health = httpx.get(f"{service.http_url}/health", timeout=20).json()
    return bool(read == b"still here" and health["status"] == "ok")


def garbage(seed: int) -> bytes:
    drawn = random.Random(seed)
    noise = drawn.randbytes(drawn.choice((1, 40, 5000)))
    head = drawn.choice((b"", PREFACE, PREFACE + SETTINGS, b"GET / HTTP/1.1\r\n", b"POST /v1/"))
    return head + noise


@pytest.mark.parametrize("door", ["flight_url", "http_url"])
def test_garbage_harms_nobody(service: Service, door: str) -> None:
    for seed in range(60):
        with socket.create_connection(("127.0.0.1", port_of(getattr(service, door)))) as client:
            client.sendall(garbage(seed))
            if seed % 2:
                client.shutdown(socket.SHUT_WR)
    assert works(service)


def test_frames_that_claim_huge_lengths_harm_nobody(service: Service) -> None:
    for kind in range(10):
        for length in (0xFFFFFF, 0x7FFFFF, 16385):
            with socket.create_connection(("127.0.0.1", port_of(service.flight_url))) as client:
                frame = struct.pack(">I", length)[1:] + bytes([kind, 4]) + struct.pack(">I", 1)
                client.sendall(PREFACE + SETTINGS + frame + b"x" * 100)
    assert works(service)


def test_an_idle_http_connection_is_closed(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", port_of(service.http_url))) as silent:
        silent.settimeout(30)
        assert silent.recv(10) == b"", "the server closed it"
    with socket.create_connection(("127.0.0.1", port_of(service.http_url))) as slow:
        slow.settimeout(30)
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert slow.recv(10) == b"", "half a request counts as silence"


def test_a_body_that_does_not_come_is_not_waited_for(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", port_of(service.http_url))) as slow:
        slow.settimeout(30)
        head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        slow.sendall(head + b"Connection: close\r\n\r\n{")
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"in time" in answer


@pytest.mark.parametrize("claimed", ["99999999999999", "1048577"])
def test_a_body_that_claims_too_much_is_refused_before_it_comes(
    service: Service, claimed: str
) -> None:
    with socket.create_connection(("127.0.0.1", port_of(service.http_url))) as client:
        client.settimeout(30)
        head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {claimed}\r\n".encode()
        client.sendall(head + b"Connection: close\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"max.request.bytes" in answer


def test_a_body_without_a_length_is_cut_at_the_limit(service: Service) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    answer = httpx.post(f"{service.http_url}/v1/topics/t/records", content=chunks(), timeout=30)
    assert answer.status_code == 400
    assert "max.request.bytes" in answer.json()["message"]


ORDERS: list[bytes] = [
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"topic": 7}',
    b'{"topic": "t", "partition": "0"}',
    b'{"topic": "t", "acks": []}',
    b'{"topic": "t", "timeout_s": "soon"}',
    b'{"topic": "t", "producer": [1]}',
    b'{"topic": "t", "producer": [1, 2, 99999999999999999999999]}',
    b'{"topic": "t", "partition": 0, "producer": [1, 4294967296, 0], "lengths": [1]}\na',
    b'{"topic": "t", "partition": 0, "producer": [1, 0, -1], "lengths": [1]}\na',
    b'{"topic": "t", "lengths": [5]}\nabc',
    b'{"topic": "t", "lengths": [-1, 4]}\nabc',
    b'{"topic": "t", "lengths": [99999999999999]}\nabc',
    b'{"topic": "t", "lengths": ["3"]}\nabc',
    b'{"topic": "' + b"x" * 20_000 + b'"}\n',
    b"[" * 5000,
    b'{"topic": "../../etc", "lengths": [1]}\na',
]


def test_a_wrong_order_is_answered_and_its_stream_goes_on(service: Service) -> None:
    client = flight.connect(service.flight_url)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"append"))
    writer.begin(messages.NO_COLUMNS)
    for order in ORDERS:
        writer.write_metadata(order)
        told = failures.decode(reader.read_chunk().app_metadata.to_pybytes())
        assert isinstance(told, lamina.InvalidRequest), order
    writer.write_metadata(b'{"topic": "t", "lengths": [2]}\nok')
    assert json.loads(reader.read_chunk().app_metadata.to_pybytes())["count"] == 1
    writer.close()
    client.close()


@pytest.mark.parametrize("ticket", [b"", b"{", b"[]", b'{"kind": "x", "topic": "t"}', b"\xff" * 99])
def test_a_wrong_ticket_or_action_gets_a_typed_error_and_no_traceback(
    service: Service, ticket: bytes
) -> None:
    client = flight.connect(service.flight_url)
    calls: list[Any] = [
        lambda: client.do_get(flight.Ticket(ticket)).read_all(),
        lambda: list(client.do_action(flight.Action("describe_topic", ticket))),
        lambda: list(client.do_action(flight.Action("no such thing", b"{}"))),
        lambda: list(client.do_action(flight.Action("__init__", b"{}"))),
    ]
    for call in calls:
        with pytest.raises(flight.FlightError) as caught:
            call()
        assert isinstance(failures.decode(caught.value.extra_info), lamina.InvalidRequest)
        assert "Traceback" not in str(caught.value)
    client.close()


def test_a_batch_over_the_limit_is_refused_and_its_stream_goes_on(service: Service) -> None:
    with lamina.connect(service.flight_url) as store:
        end = store.latest_offset("t")
        with pytest.raises(lamina.InvalidRequest, match=r"max\.request\.bytes"):
            store.append("t", [b"x" * 100_000] * 20)
        assert store.append("t", b"small").base_offset == end


def call_of(path: str, *more: tuple[bytes, bytes]) -> bytes:
    """The first frames of a gRPC call, by hand: a preface, settings and headers."""
    pairs = (
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())),
        *((b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers")),
        *more,
    )
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in pairs
    )
    head = struct.pack(">I", len(block))[1:] + bytes([1, 4]) + struct.pack(">I", 1)
    return PREFACE + SETTINGS + head + block


def resident_bytes(process_id: int) -> int:
    with open(f"/proc/{process_id}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize("claimed", [0xFFFFFFFF, 0x7FFFFFFF, 1 << 30])
def test_a_message_that_claims_gigabytes_costs_nothing_until_they_come(
    service: Service, claimed: int
) -> None:
    before = resident_bytes(os.getpid())
    clients = []
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", port_of(service.flight_url)))
        message = b"\0" + struct.pack(">I", claimed) + b"x" * 1000
        frame = struct.pack(">I", len(message))[1:] + bytes([0, 0]) + struct.pack(">I", 1)
        path = "/arrow.flight.protocol.FlightService/DoExchange"
        client.sendall(call_of(path) + frame + message)
        clients.append(client)
    assert works(service)
    assert resident_bytes(os.getpid()) - before < 256 << 20
    for client in clients:
        client.close()
    assert works(service)


def test_a_message_that_grpc_unpacks_comes_as_far_as_the_refusal(service: Service) -> None:
    """40 KiB become 40 MiB below Flight, which offers no bound: the page tells so."""
    size = 40 << 20
    length = bytes((size >> 7 * at & 0x7F) | (0x80 if at < 3 else 0) for at in range(4))
    packed = gzip.compress(b"\x0a\x06topics\x12" + length + bytes(size), 9)
    message = b"\1" + struct.pack(">I", len(packed)) + packed
    sent = call_of("/arrow.flight.protocol.FlightService/DoAction", (b"grpc-encoding", b"gzip"))
    parts = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    for part in parts:
        kind = bytes([0, 1 if part is parts[-1] else 0])
        sent += struct.pack(">I", len(part))[1:] + kind + struct.pack(">I", 1) + part
    answer = b""
    with socket.create_connection(("127.0.0.1", port_of(service.flight_url)), 20) as client:
        client.sendall(sent)
        while b"grpc-message" not in answer and (more := client.recv(1 << 16)):
            answer += more
    assert b"a request of 41943040 bytes is over max.request.bytes" in answer
    assert works(service)


def test_a_message_far_over_the_limit_comes_as_far_as_the_refusal(service: Service) -> None:
    """gRPC lets it in, whatever `max.request.bytes` says: the page tells so."""
    client = flight.connect(service.flight_url)
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"append"))
    batch = pa.RecordBatch.from_pydict({"value": [b"x" * (48 << 20)]})
    writer.begin(messages.NO_COLUMNS)
    writer.write_metadata(messages.encode_append(messages.Order("t"), batch))
    told = failures.decode(reader.read_chunk().app_metadata.to_pybytes())
    assert isinstance(told, lamina.InvalidRequest)
    assert "max.request.bytes" in str(told)
    writer.write_metadata(b'{"topic": "t", "lengths": [2]}\nok')
    assert json.loads(reader.read_chunk().app_metadata.to_pybytes())["count"] == 1
    writer.close()
    body = b" " * (2 << 20)
    with pytest.raises(flight.FlightError, match=r"max\.request\.bytes"):
        list(client.do_action(flight.Action("topics", body)))
    client.close()


def test_a_silent_peer_holds_its_stream_and_nothing_of_others(tmp_path: Path) -> None:
    """A peer that vanished is noticed when the server writes to it: the page tells so, too."""
    with served(tmp_path / "data", connections=2) as service:
        silent = []
        for _ in range(2):
            client = flight.connect(service.flight_url)
            writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"append"))
            writer.begin(messages.NO_COLUMNS)
            silent.append((client, writer, reader))
        while service.broker.streams.used < 2:
            time.sleep(0.01)
        with lamina.connect(service.flight_url, timeout_s=60) as store:
            store.create_topic("t")
            assert store.fetch("t", 0, 0).num_rows == 0, "calls without a stream go on"
            with pytest.raises(lamina.Unavailable, match="open streams"):
                store.append("t", b"v", timeout_s=3)
        for client, _, reader in silent:
            reader.cancel()
            client.close()
        with lamina.connect(service.flight_url, timeout_s=30) as store:
            assert store.append("t", b"v").base_offset == 0


def append_and_vanish(service: Service) -> None:
    """Sends an append and drops the connection; the answer is never read."""
    client = flight.connect(service.flight_url)
    writer, _ = client.do_exchange(flight.FlightDescriptor.for_command(b"append"))
    writer.begin(messages.NO_COLUMNS)
    writer.write_metadata(b'{"topic": "t", "lengths": [2]}\nok')
    client.close()


def test_clients_that_vanish_in_the_middle_hold_nothing(service: Service) -> None:
    started = time.monotonic()
    for _ in range(20):
        append_and_vanish(service)
    assert works(service)
    while service.broker.streams.used and time.monotonic() - started < 60:
        time.sleep(0.05)
    assert service.broker.streams.used == 0
    assert service.broker.inflight.used == 0
    assert service.broker.work.used == 0
