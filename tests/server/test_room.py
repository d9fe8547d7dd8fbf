"""A call counts from its first byte to its last: whoever is silent, or never reads, is counted."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina.errors import Busy, InvalidRequest
from lamina.server import arriving, auth, limits, replies
from lamina.server.service import Service
from lamina.wire import failures, messages
from tests.fuzz.arrow import stream_of
from tests.server.http2 import Connection, ticket
from tests.server.rig import served
from tests.server.test_hasty import answer_of, connected, until
from tests.server.test_hostile_arrow import Raw, values

LARGE = [os.urandom(100_000)] * 10
HOUR_MS = 3_600_000


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    limits = {"connections": 8, "waiting": 4, "request_bytes": 1 << 20, "inflight_bytes": 8 << 20}
    with served(tmp_path / "data", idle_ms=600, **limits) as running:
        running.broker.store.create_topic("t")
        running.broker.store.append("t", LARGE)
        running.broker.store.group("t", "g")
        yield running


def flight_port(service: Service) -> int:
    return int(service.flight_url.rsplit(":", 1)[1])


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def nothing_is_held(service: Service) -> bool:
    broker = service.broker
    rooms = (broker.streams, broker.calls, broker.waiting, broker.inflight, broker.work)
    return all(room.used == 0 for room in rooms)


# ---------------------------------------------------------------- Flight


@pytest.mark.parametrize("method", [b"DoExchange", b"DoPut"])
def test_a_stream_that_stays_silent_counts_or_is_refused(service: Service, method: bytes) -> None:
    before = threads()
    with Connection(flight_port(service)) as silent:
        for _ in range(100):
            silent.open(method)
        wanted = 8 if method == b"DoExchange" else 0
        assert until(lambda: service.broker.streams.used == wanted)
        assert until(lambda: threads() < before + 40), "each one held a thread"
        with lamina.connect(service.flight_url, timeout_s=1) as store:
            assert store.topics() == ["t"], "others go on"
            if wanted:
                with pytest.raises(Busy):
                    store.append("t", b"x")
    assert until(lambda: nothing_is_held(service))
    with lamina.connect(service.flight_url) as store:
        assert store.append("t", b"x").base_offset == 10


def test_a_stranger_holds_no_stream(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.json")
    auth.create(path, scope="admin")
    reader = auth.create(path, scope="read")[1]
    with served(tmp_path / "data", keys_file=path) as service:
        before = threads()
        for key in ("", "lamina_none", reader):
            with Connection(flight_port(service), key=key) as stranger:
                for _ in range(100):
                    stranger.open(b"DoExchange")
                assert until(lambda: threads() < before + 40)
                assert service.broker.streams.used == 0


QUESTIONS: dict[str, messages.Ticket] = {
    "fetch": messages.Question("fetch", "t", 0, 0, max_bytes=1 << 20),
    "waited": messages.Question("fetch", "t", 0, 0, max_bytes=1 << 20, wait_ms=1),
    "scan": messages.Question("scan", "t", 0, 0),
    "diff": messages.Difference("t", 0, 0),
}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_an_answer_that_nobody_reads_counts_as_long_as_it_is_there(
    service: Service, kind: str
) -> None:
    """Its handler has long returned: the batch waits in the transport, and its thread with it."""
    before = threads()
    asked = ticket(messages.encode_question(QUESTIONS[kind]))
    with Connection(flight_port(service), window=4096) as reader:
        for _ in range(100):
            reader.open(b"DoGet", asked)
        broker = service.broker
        room = {"waited": broker.waiting, "scan": broker.streams}.get(kind, broker.calls)
        assert until(lambda: room.used >= 4)
        assert until(lambda: broker.inflight.used > 2 << 20), "its bytes count"
        assert broker.inflight.used <= (8 << 20) + 16 * 100_000
        assert until(lambda: threads() < before + 40), "each one held a thread"
        assert room.used >= 4
    assert until(lambda: nothing_is_held(service))


def test_a_poll_whose_answer_did_not_leave_holds_nothing(service: Service) -> None:
    """The caller is killed while its answer waits to be sent."""
    asked = ticket(messages.encode_question(messages.Poll("t", "g", 10, HOUR_MS)))
    with Connection(flight_port(service), window=0) as killed:
        killed.open(b"DoGet", asked)
        group = service.broker.store.group("t", "g")
        assert until(lambda: group.lag()[0].inflight == 10)
        assert service.broker.calls.used == 1
    assert until(lambda: nothing_is_held(service))
    assert group.poll(100).num_rows == 10


def test_a_poll_whose_answer_was_read_is_held(service: Service) -> None:
    with lamina.connect(service.flight_url) as store:
        assert store.group("t", "g").poll(10, HOUR_MS).num_rows == 10
        assert until(lambda: nothing_is_held(service))
        assert service.broker.store.group("t", "g").poll(10).num_rows == 0


def test_a_poll_that_finds_no_room_takes_nothing(service: Service) -> None:
    """Busy is told before anything is handed out: deliveries are counted."""
    service.broker.inflight.take(8 << 20)
    with lamina.connect(service.flight_url, timeout_s=0.3) as store, pytest.raises(Busy):
        store.group("t", "g").poll(10)
    service.broker.inflight.give_back(8 << 20)
    assert service.broker.store.group("t", "g").poll(1).column("epoch").to_pylist() == [1]


def test_a_full_server_hands_out_less(service: Service) -> None:
    service.broker.inflight.take((8 << 20) - (200 << 10))
    with lamina.connect(service.flight_url) as store:
        assert 1 <= store.fetch("t", 0, 0).num_rows < 10
        assert 1 <= store.group("t", "g").poll(10).num_rows < 10
    service.broker.inflight.give_back((8 << 20) - (200 << 10))
    assert until(lambda: nothing_is_held(service))


# ---------------------------------------------------------------- what arrives


def bomb() -> pa.RecordBatch:
    return values().replace_schema_metadata({b"k": bytes(4 << 20)})


def padded() -> bytes:
    """Bytes between the schema and the batch that no buffer covers."""
    stream = stream_of(values())
    return stream + bytes(4 << 20)


@pytest.mark.parametrize("make", [lambda: stream_of(bomb()), padded], ids=["metadata", "padding"])
def test_all_bytes_of_a_message_count_not_only_its_records(service: Service, make: Any) -> None:
    raw = Raw(service.flight_url, "none")
    told = raw.append(make(), "t")
    assert type(told) is InvalidRequest
    assert "max.request.bytes" in str(told)
    assert service.broker.store.latest_offset("t") == 10
    raw.close()


def test_plain_values_are_bounded_before_they_are_copied(service: Service) -> None:
    raw = Raw(service.flight_url, "none")
    writer, reader = raw.exchange(messages.NO_COLUMNS)
    order = json.dumps({"topic": "t", "lengths": [4 << 20]}).encode()
    writer.write_metadata(order + b"\n" + bytes(4 << 20))
    told = failures.decode(reader.read_chunk().app_metadata.to_pybytes())
    assert type(told) is InvalidRequest
    assert "plain values are over" in str(told)
    raw.close()


SMALL_PARTS = [b"{},", b'{"a":1},', b"[],", b'"ab",', b'["",""],']


@pytest.mark.parametrize("part", SMALL_PARTS)
def test_json_of_nothing_but_small_parts_is_refused_before_it_is_read(
    service: Service, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    """A megabyte of them would become thirty."""

    def fail(data: bytes) -> Any:
        raise AssertionError(f"{len(data)} bytes were decoded")

    monkeypatch.setattr(messages, "decode_object", fail)
    monkeypatch.setattr(arriving, "decode_object", fail)
    body = b'{"records":[' + part * ((900 << 10) // len(part)) + b"0]}"
    answer = httpx.post(f"{service.http_url}/v1/topics/t/records", content=body, timeout=30)
    assert (answer.status_code, answer.json()["error"]) == (400, "InvalidRequest")
    assert "send it in parts" in answer.json()["message"]
    raw = Raw(service.flight_url, "none")
    with pytest.raises(flight.FlightError) as caught:
        raw.act("group.ack", b'{"topic":"t","group":"g","held":' + body[11:])
    assert type(failures.decode(caught.value.extra_info)) is InvalidRequest
    raw.close()
    assert until(lambda: nothing_is_held(service))


def test_what_looks_like_small_parts_inside_of_text_is_taken(service: Service) -> None:
    text = '{"a":[1,2,3],"b":"\\\\"},' * 1000
    body = {"records": [{"value": text}] * 30}
    assert len(json.dumps(body)) > 700 << 10
    answer = httpx.post(f"{service.http_url}/v1/topics/t/records", json=body, timeout=30)
    assert answer.json()["count"] == 30


def test_a_body_as_large_as_may_be_is_taken_by_a_server_at_rest(tmp_path: Path) -> None:
    """Its text and its records are not counted one upon the other."""
    settings = {"request_bytes": 1 << 20, "inflight_bytes": 2 << 20}
    with served(tmp_path / "data", **settings) as service:
        service.broker.store.create_topic("t")
        for size in (1000, 1 << 19, (1 << 20) - 200):
            body = {"records": [{"value": "x" * size}]}
            answer = httpx.post(f"{service.http_url}/v1/topics/t/records", json=body, timeout=30)
            assert answer.json().get("count") == 1, answer.text
        assert until(lambda: nothing_is_held(service))


def test_a_large_body_keeps_nobody_waiting(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that serves everybody neither decodes it nor makes records of it."""
    seen: dict[str, str] = {}

    def noting(name: str, function: Any) -> Any:
        def noted(*given: Any) -> Any:
            seen[name] = threading.current_thread().name
            return function(*given)

        return noted

    monkeypatch.setattr(arriving, "decode_object", noting("decode", arriving.decode_object))
    from lamina.server import jsonrows

    monkeypatch.setattr(jsonrows, "parse", noting("parse", jsonrows.parse))
    monkeypatch.setattr(replies, "page_of", noting("render", replies.page_of))
    body = {"records": [{"value": "x" * 100}] * 2000}
    answer = httpx.post(f"{service.http_url}/v1/topics/t/records", json=body, timeout=30)
    assert answer.json()["count"] == 2000
    path = f"{service.http_url}/v1/topics/t/partitions/0/records"
    assert len(httpx.get(path, params={"start": 10}).json()["records"]) == 1000
    assert set(seen) == {"decode", "parse", "render"}
    assert "lamina-http" not in seen.values()


# ---------------------------------------------------------------- HTTP


def asking(path: str, body: bytes = b"") -> bytes:
    verb = "POST" if body else "GET"
    head = f"{verb} /v1/topics/t/{path} HTTP/1.1\r\nHost: localhost\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Service]:
    """Pages larger than what the system itself keeps of a connection."""
    with served(tmp_path / "roomy", idle_ms=1500) as running:
        running.broker.store.create_topic("t")
        for _ in range(12):
            running.broker.store.append("t", LARGE)
        running.broker.store.group("t", "g")
        yield running


def small_window(service: Service) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", int(service.http_url.rsplit(":", 1)[1])))
    return client


PAGE = b'{"lease_ms": 3600000, "max_bytes": 12000000}'


def test_a_page_that_nobody_reads_counts_until_its_connection_is_cut(roomy: Service) -> None:
    with small_window(roomy) as client:
        client.sendall(asking("partitions/0/records?start=0&max_bytes=12000000"))
        assert until(lambda: roomy.broker.inflight.used > 0)
        assert until(lambda: roomy.broker.calls.used == 0), "it is being sent"
        assert roomy.broker.inflight.used > 11_000_000 * 8
        assert until(lambda: nothing_is_held(roomy)), "idle.ms is over"


def test_a_page_of_many_pieces_comes_whole(roomy: Service) -> None:
    with connected(roomy) as client:
        client.sendall(asking("groups/g/poll", PAGE))
        body = answer_of_stream(client)
    assert len(json.loads(body)["records"]) > 110
    assert until(lambda: nothing_is_held(roomy))
    assert roomy.broker.store.group("t", "g").lag()[0].inflight > 110


def test_a_poll_whose_page_did_not_leave_holds_nothing(roomy: Service) -> None:
    with small_window(roomy) as client:
        client.sendall(asking("groups/g/poll", PAGE))
        group = roomy.broker.store.group("t", "g")
        assert until(lambda: group.lag()[0].inflight > 110)
        assert until(lambda: roomy.broker.calls.used == 0), "it is being sent"
    assert until(lambda: nothing_is_held(roomy))
    assert until(lambda: group.lag()[0].inflight == 0), "the leases are given back behind the room"


def test_a_page_has_so_many_records_at_most(service: Service) -> None:
    service.broker.store.append("t", [b""] * (replies.RECORDS_MAX + 5))
    path = f"{service.http_url}/v1/topics/t/partitions/0/records"
    asked = {"start": 10, "max_records": 1 << 40, "max_bytes": 1 << 40}
    found = httpx.get(path, params=asked).json()["records"]
    assert 0 < len(found) <= replies.RECORDS_MAX


@pytest.mark.parametrize("early", [b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /re"])
def test_a_request_that_comes_early_hides_no_hanging_up(service: Service, early: bytes) -> None:
    """The connection was not read while an answer was due, once more had come."""
    group = service.broker.store.group("t", "g")
    group.commit(10)
    for number, sent in enumerate((1, 2)):
        client = connected(service)
        poll = asking("groups/g/poll", b'{"wait_ms": 20000, "lease_ms": 3600000}')
        client.sendall(poll + early if sent == 1 else poll)
        assert until(lambda: service.broker.waiting.used == 1)
        if sent == 2:
            client.sendall(early)
        client.close()
        assert until(lambda: service.broker.waiting.used == 0)
        service.broker.store.append("t", b"next")
        assert group.poll(10).column("offset").to_pylist() == [10 + number]


def test_requests_that_come_early_are_answered_in_turn(service: Service) -> None:
    """Many at once, some with bodies, cut anywhere."""
    produce = asking("records", b'{"records": [{"value": "' + b"v" * 30_000 + b'"}]}')
    latest = asking("partitions/0/latest")
    sent = (produce + latest) * 6
    with connected(service) as client:
        sender = threading.Thread(
            target=lambda: [
                client.sendall(sent[at : at + 7000]) for at in range(0, len(sent), 7000)
            ]
        )
        sender.start()
        answers = [answer_of_stream(client) for _ in range(12)]
        sender.join()
    assert [json.loads(each)["result"] for each in answers[1::2]] == [11, 12, 13, 14, 15, 16]


def answer_of_stream(client: socket.socket) -> bytes:
    """Reads exactly one answer of several."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    size, body = int(lines[0].split(b":")[1]), b""
    while len(body) < size:
        body += client.recv(size - len(body))
    return body


def test_connections_far_beyond_the_limit_are_closed_at_once(service: Service) -> None:
    held = [connected(service) for _ in range(8 + 64 + 30)]
    try:
        closed = 0
        for client in held:
            client.setblocking(False)
        assert until(lambda: count_closed(held) >= 30)
        closed = count_closed(held)
        assert closed < 60, "those within the limit stay"
    finally:
        for client in held:
            client.close()
    assert until(lambda: httpx.get(f"{service.http_url}/ready").status_code == 200)


def count_closed(clients: list[socket.socket]) -> int:
    closed = 0
    for client in clients:
        try:
            closed += client.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            continue
        except OSError:
            closed += 1
    return closed


def test_a_target_with_a_host_is_a_path(service: Service) -> None:
    for target, status in (
        (b"http://localhost/v1/topics/t/format", 200),
        (b"HTTP://localhost:1/v1/topics/t/format", 200),
        (b"http://evil.example/v1/topics/t/format", 403),
        (b"http://[/v1/topics/t/format", 400),
        (b"http://localhost", 307),
    ):
        with connected(service) as client:
            client.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert answer_of(client).split(b" ")[1] == str(status).encode(), target


def test_two_lengths_for_one_body_are_refused_and_end_the_connection(service: Service) -> None:
    """Or a proxy in front and this server would not agree where the next request begins."""
    with connected(service) as client:
        head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        told = answer_of(client)
        assert told.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in told
        assert client.recv(10) == b""


def test_what_is_not_there_is_told_in_json(service: Service) -> None:
    for verb, path, status in (("GET", "/v1/nothing", 404), ("PUT", "/v1/topics", 405)):
        answer = httpx.request(verb, service.http_url + path)
        assert (answer.status_code, answer.json()["error"]) == (status, "InvalidRequest")


def test_room_is_granted_in_part_or_not_at_all() -> None:
    room = limits.Allowance("bytes", 100)
    assert room.take_up_to(1000, 200) == 200, "alone, whatever it is"
    room.give_back(200)
    room.take(60)
    assert room.take_up_to(1000, 10) == 40
    with pytest.raises(Busy):
        room.take_up_to(5, 5)
    room.give_back(40)
    with pytest.raises(Busy):
        room.take(60)
    room.take(60, held=60)
    assert room.used == 120
