"""HTTP requests that come in halves, hang up, or are made of nonsense: none holds anything."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

import lamina
from lamina.server import arriving
from lamina.server.auth import Caller
from lamina.server.held_answers import Answer
from lamina.server.log_lines import LINES_PER_MINUTE
from lamina.server.service import Service
from tests.server.rig import served

IDLE_S = 0.6


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("hasty") / "data"
    limits = {"waiting": 4, "request_bytes": 1 << 20, "inflight_bytes": 4 << 20}
    with served(folder, idle_ms=int(IDLE_S * 1000), **limits) as running:
        running.broker.store.create_topic("t")
        running.broker.store.append("t", [b"first", b"second"])
        yield running


def connected(service: Service) -> socket.socket:
    port = int(service.http_url.rsplit(":", 1)[1])
    made = socket.create_connection(("127.0.0.1", port))
    made.settimeout(30)
    return made


def answer_of(client: socket.socket) -> bytes:
    """Reads one answer, up to the end of its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(4096)
        assert part, f"the connection ended: {data!r}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    size = int(lines[0].split(b":")[1]) if lines else 0
    while len(body) < size:
        body += client.recv(4096)
    return head + b"\r\n\r\n" + body


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


WHOLE = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALVES = {
    "of a head": b"GET /ready HTTP/1.1\r\nHost: loc",
    "of a line": b"GE",
    "of a body nobody reads": WHOLE[:-2] + b"Content-Length: 9\r\n\r\n1",
    "of a chunk": WHOLE[:-2] + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
}


@pytest.mark.parametrize("requests", [0, 1, 3])
@pytest.mark.parametrize("half", HALVES)
def test_half_a_request_holds_no_connection(service: Service, requests: int, half: str) -> None:
    """Whether it is the first of its connection or one of many."""
    with connected(service) as client:
        for _ in range(requests):
            client.sendall(WHOLE)
            assert answer_of(client).startswith(b"HTTP/1.1 200")
        client.sendall(HALVES[half])
        began = time.monotonic()
        while client.recv(4096):
            pass
        assert time.monotonic() - began < IDLE_S * 10


def test_bytes_that_trickle_do_not_prolong_the_wait(service: Service) -> None:
    with connected(service) as client:
        client.sendall(WHOLE)
        answer_of(client)
        began = time.monotonic()
        client.settimeout(0.1)
        ended = False
        while not ended and time.monotonic() - began < 20:
            try:
                client.sendall(b"G" if time.monotonic() - began < 0.05 else b"E")
                ended = client.recv(10) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended


def test_a_connection_that_goes_on_asking_is_kept(service: Service) -> None:
    with connected(service) as client:
        began = time.monotonic()
        while time.monotonic() - began < IDLE_S * 2.5:
            client.sendall(WHOLE)
            assert answer_of(client).startswith(b"HTTP/1.1 200")
            time.sleep(IDLE_S / 10)
        client.sendall(WHOLE + WHOLE)
        assert answer_of(client).startswith(b"HTTP/1.1 200")


def test_a_long_poll_may_take_longer_than_the_patience_for_requests(service: Service) -> None:
    path = f"{service.http_url}/v1/topics/t/partitions/0/records"
    end = service.broker.store.latest_offset("t")
    answer = httpx.get(path, params={"start": end, "wait_ms": int(IDLE_S * 2500)}, timeout=30)
    assert answer.json() == {"records": []}


# ---------------------------------------------------------------- hanging up


def test_a_long_poll_of_a_group_that_hung_up_takes_nothing(service: Service) -> None:
    store = service.broker.store
    store.create_topic("queue")
    group = store.group("queue", "g")
    body = b'{"wait_ms": 20000, "lease_ms": 3600000}'
    client = connected(service)
    head = b"POST /v1/topics/queue/groups/g/poll HTTP/1.1\r\nHost: localhost\r\n"
    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert until(lambda: service.broker.waiting.used == 1)
    client.close()
    assert until(lambda: service.broker.waiting.used == 0), "nobody waits for who is gone"
    store.append("queue", [b"a", b"b"])
    assert group.poll(10).num_rows == 2, "nobody holds them"


def test_what_was_handed_out_to_somebody_gone_is_given_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller hangs up after the poll's own look, and before its answer is sent."""
    store = service.broker.store
    store.create_topic("late")
    store.append("late", [b"a", b"b"])
    group = store.group("late", "g")
    poll = service.broker.poll
    client = connected(service)
    handed_out = threading.Event()

    def poll_and_wait(caller: object, asked: object, answer: Answer) -> object:
        is_gone, answer.is_gone = answer.is_gone, lambda: False
        batch = poll(caller, asked, answer)  # type: ignore[arg-type]
        client.close()
        assert until(is_gone)
        handed_out.set()
        return batch

    monkeypatch.setattr(service.broker, "poll", poll_and_wait)
    body = b'{"lease_ms": 3600000}'
    head = b"POST /v1/topics/late/groups/g/poll HTTP/1.1\r\nHost: localhost\r\n"
    client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert handed_out.wait(20)
    assert until(lambda: group.poll(10).num_rows == 2)


def test_a_long_poll_of_records_ends_with_its_caller(service: Service) -> None:
    end = service.broker.store.latest_offset("t")
    path = f"/v1/topics/t/partitions/0/records?start={end}&wait_ms=20000".encode()
    clients = [connected(service) for _ in range(4)]
    for client in clients:
        client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert until(lambda: service.broker.waiting.used == 4)
    further = httpx.get(service.http_url + path.decode(), timeout=30)
    assert (further.status_code, further.json()["error"]) == (503, "Busy")
    assert further.headers["retry-after"]
    for client in clients:
        client.close()
    assert until(lambda: service.broker.waiting.used == 0)
    with lamina.connect(service.flight_url) as store:
        assert store.fetch("t", 0, 0).num_rows == 2


def test_a_watch_ends_with_its_watcher(service: Service) -> None:
    with connected(service) as client:
        client.sendall(b"GET /v1/topics/t/partitions/0/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert until(lambda: service.broker.waiting.used == 1)
    assert until(lambda: service.broker.waiting.used == 0)


def test_a_peer_that_takes_nothing_is_cut_off(service: Service) -> None:
    """A watcher of a long topic that stops to read: its answer waits in memory, for a while."""
    service.broker.store.create_topic("long")
    for _ in range(40):
        service.broker.store.append("long", [b"x" * 50_000] * 10)
    with connected(service) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = b"/v1/topics/long/partitions/0/watch?start=0"
        client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert until(lambda: service.broker.waiting.used == 1)
        assert until(lambda: service.broker.waiting.used == 0), "it is held for ever"


# ---------------------------------------------------------------- nonsense

HOSTS = [
    b"[",
    b"]",
    b"[]",
    b"[::1",
    b"::1",
    b"a b",
    b"\xff\xfe",
    b"x@localhost",
    b"localhost/x",
    b"localhost:x",
    b"localhost:99999",
    b"[::1]x",
    b"a\tb",
    b"%5B",
    b"localhost:",
]
PATHS = [
    b"/v1/topics",
    b"/v1/topics/",
    b"/health",
    b"/ready",
    b"/metrics",
    b"/console",
    b"/",
    b"/x/",
    b"/console/feed/topics",
    b"/console/static/../../x",
    b"/docs",
    b"//",
    b"/v1//topics",
]


def status_of(service: Service, request: bytes) -> int:
    with connected(service) as client:
        client.sendall(request)
        return int(answer_of(client).split(b" ")[1])


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_none_is_a_wrong_request(service: Service, host: bytes) -> None:
    found = {
        path: status_of(service, b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        for path in PATHS
    }
    wrong = {path: status for path, status in found.items() if status >= 500}
    assert not wrong
    if host not in (b"%5B", b"localhost:"):
        assert set(found.values()) == {400}


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:9301", "localhost"),
        ("[::1]", "::1"),
        ("[::1]:9", "::1"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("", ""),
    ],
)
def test_a_host_is_read(header: str, host: str) -> None:
    assert arriving.host_of(header) == host


HEADERS = [
    b"Origin: [",
    b"Origin: http://[",
    b"Origin: \xff",
    b"Origin: null",
    b"Cookie: \xff=;;=\x01a; lamina_console=\xe9",
    b"Cookie: " + b"a=b; " * 2000,
    b"Authorization: Bearer \xff",
    b"Authorization: Bearer",
    b"Authorization: \xff",
    b"Content-Length: -1",
    b"Content-Length: 1e3",
    b"Content-Length: 99999999999999999999",
    b"Expect: 100-continue",
    b"Transfer-Encoding: gzip",
    b"Last-Event-Id: \xff",
    b"Last-Event-Id: -99999999999999999999999",
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings",
    b"X-Forwarded-For: [\r\nX-Forwarded-Proto: \xff",
    b"If-None-Match: \xff",
    b"Host: other",
    b"Sec-Fetch-Site: \xff",
    b"Content-Encoding: gzip",
]
ASKED = [
    b"GET /v1/topics/t/partitions/0/records?start=%ff",
    b"GET /v1/topics/t/partitions/0/records?%5B=1",
    b"GET /v1/topics/%ff/partitions/0/latest",
    b"GET /v1/topics/%00",
    b"GET /v1/topics/..%2f..%2fetc",
    b"GET /v1/topics/t/partitions/99999999999999999999/latest",
    b"GET /v1/topics/t/partitions/-1/latest",
    b"GET /v1/topics/t/partitions/0/offset_for_time?timestamp_ms=-9223372036854775808",
    b"GET /v1/topics/t/partitions/0/records?start=9223372036854775807&max_bytes=922337203685477580",
    b"GET /v1/topics/t/partitions/0/records?start=0&wait_ms=-1",
    b"GET /v1/topics/t/groups/%ff/lag",
    b"GET /v1/topics/t/partitions/0/watch?start=zero",
    b"GET /console/feed/%ff",
    b"GET /console/tail?topic=%ff",
    b"GET /console/tail?topic=t&next=\xc2\xb2:\xc2\xb2",
    b"GET /console/feed/records?topic=t&start=-1",
    b"GET /console/feed/topics?page=99999999999999999999",
    b"OPTIONS *",
    b"GET http://[/v1/topics",
    b"GET *",
    b"DELETE /v1/topics/%2e%2e",
    b"POST /v1/topics/t/records",
    b"PATCH /v1/topics/t",
    b"POST /console/session",
    b"POST /v1/topics/t/groups/g/poll",
    b"HEAD /v1/topics",
    b"HEAD /v1/topics/t/partitions/0/records",
    b"POST /console/do/trim",
    b"GET /v1/topics/t/retention",
    b"BREW /v1/topics",
]


@pytest.mark.parametrize("header", [b"X-Plain: 1", *HEADERS])
def test_no_request_makes_the_server_fail(service: Service, header: bytes) -> None:
    for asked in ASKED:
        with connected(service) as client:
            client.sendall(asked + b" HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
            if not asked.startswith((b"GET", b"HEAD", b"OPTIONS")):
                client.sendall(b"{}")
            status = client.recv(4096).split(b" ")[1:2]
        assert not status or int(status[0]) < 500, (asked, header, status)


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\x00\xffgarbage\r\n\r\n", "Invalid HTTP request received."),
        (
            b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\n\r\n",
            "Unsupported upgrade request.",
        ),
    ],
)
def test_what_strangers_send_is_logged_a_few_times_a_minute(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sent: bytes,
    said: str,
) -> None:
    monkeypatch.setattr(service.broker.refusals, "_clock", lambda: 1e12)
    service.broker.refusals.sweep()  # what other tests have sent is long ago
    caplog.clear()
    for _ in range(2 * LINES_PER_MINUTE):
        with connected(service) as client:
            client.sendall(sent)
            answer_of(client)
    lines = [each for each in caplog.records if each.getMessage() == said]
    assert len(lines) == LINES_PER_MINUTE


def test_bodies_count_as_bytes_at_work(service: Service) -> None:
    """Each on its own is small enough; together they are not let in."""
    head = (
        b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000\r\n\r\n"
    )
    clients = [connected(service) for _ in range(3)]
    for client in clients:
        client.sendall(head + b'{"records": [{"value": "' + b"x" * 300_000)
    answers = []
    for client in clients:
        answers.append(answer_of(client))
        client.close()
    assert any(b'"Busy"' in answer for answer in answers)
    assert until(lambda: service.broker.inflight.used == 0)


def test_a_compressed_body_is_refused(service: Service) -> None:
    answer = httpx.post(
        f"{service.http_url}/v1/topics/t/records",
        content=b"\x1f\x8b" + bytes(100),
        headers={"content-encoding": "gzip"},
    )
    assert answer.status_code == 400
    assert "content-encoding" in answer.json()["message"]


def test_what_a_key_may_not_is_refused_before_its_body_comes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(service.broker, "caller", lambda key: Caller("k", "read", "mine."))
    for path in (b"/v1/topics/t/records", b"/v1/topics/t/groups/g/poll", b"/v1/topics"):
        with connected(service) as client:
            head = (
                b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n"
            )
            client.sendall(head)
            assert answer_of(client).startswith(b"HTTP/1.1 403")
