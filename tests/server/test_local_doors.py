"""The doors at Unix sockets: what the ports answer, for the server's own user alone."""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path

import pytest

import lamina
from lamina.errors import InvalidRequest, NotAllowed, Unavailable
from lamina.server import auth
from tests.server.rig import served


class LocalHttp(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(self._path)


def got(path: str, target: str) -> tuple[int, bytes]:
    connection = LocalHttp(path)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("r") / "run"


def test_flight_and_http_answer_at_their_sockets_as_at_their_ports(
    tmp_path: Path, run: Path
) -> None:
    with served(tmp_path / "data", sockets=str(run)) as service:
        flight, web = service.local_urls
        assert flight == f"grpc+unix://{run}/flight.sock"
        assert web == f"http+unix://{run}/http.sock"
        with lamina.connect(flight) as near, lamina.connect(service.flight_url) as far:
            near.create_topic("t")
            near.append("t", [b"by the socket"])
            far.append("t", [b"by the port"])
            for store in (near, far):
                values = [each for batch in store.scan("t") for each in batch["value"].to_pylist()]
                assert values == [b"by the socket", b"by the port"]
        assert got(f"{run}/http.sock", "/health")[0] == 200
        status, body = got(f"{run}/http.sock", "/v1/topics")
        assert status == 200
        assert b'"t"' in body
    assert os.listdir(run) == []


def test_a_key_is_asked_for_at_a_socket_too(tmp_path: Path, run: Path) -> None:
    keys = tmp_path / "keys.json"
    _, text = auth.create(str(keys), scope="admin")
    with served(tmp_path / "data", sockets=str(run), keys_file=str(keys)) as service:
        url = service.local_urls[0]
        with lamina.connect(url) as stranger, pytest.raises(NotAllowed):
            stranger.create_topic("t")
        with lamina.connect(url, api_key=text) as known:
            known.create_topic("t")
        assert got(f"{run}/http.sock", "/v1/topics")[0] == 401


def test_sockets_of_another_server_are_not_taken_and_left_ones_are(
    tmp_path: Path, run: Path
) -> None:
    with served(tmp_path / "one", sockets=str(run)) as first:
        with pytest.raises(Unavailable, match="another server"):
            served(tmp_path / "two", sockets=str(run)).__enter__()
        with lamina.connect(first.local_urls[0]) as store:
            assert store.topics() == []
    for name in ("flight.sock", "http.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
            left.bind(f"{run}/{name}")
    again = served(tmp_path / "two", sockets=str(run))
    with again as second, lamina.connect(second.local_urls[0]) as store:
        assert store.topics() == []


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, run: Path) -> None:
    run.mkdir()
    run.chmod(0o755)
    with pytest.raises(InvalidRequest, match="not closed to others"):
        served(tmp_path / "data", sockets=str(run)).__enter__()


def test_connections_beyond_the_limit_are_closed_at_a_socket_too(tmp_path: Path, run: Path) -> None:
    with served(tmp_path / "data", sockets=str(run), connections=4) as service:
        held = []
        for _ in range(8):
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client.settimeout(20)
            client.connect(f"{run}/flight.sock")
            held.append(client)
        ended = 0
        for client in held[4:]:
            while chunk := client.recv(4096):  # what gRPC says first, and then the end
                assert chunk
            ended += 1
        assert ended == 4
        for client in held:
            client.close()
        with lamina.connect(service.flight_url) as store:
            assert store.topics() == []
