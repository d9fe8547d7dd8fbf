"""Every call is counted: what comes beyond a limit is told to come back, and threads stay few."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyarrow import flight

import lamina
from lamina.errors import Busy, InvalidRequest, Unavailable
from lamina.server.service import Service
from lamina.wire import failures, messages
from tests.server.rig import ServerProcess, served

CONNECTIONS, WAITING = 20, 5
GONE_S = 4
"""After so long a client hangs up, whatever the server does."""


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("limits") / "data"
    limits = (f"max.connections={CONNECTIONS}", f"max.waiting={WAITING}")
    with ServerProcess(folder, *limits) as running:
        with lamina.connect(running.url) as store:
            store.create_topic("t")
            for _ in range(8):
                store.append("t", [b"x" * 100_000] * 40)
            store.group("t", "g")
        yield running


def threads_of(server: ServerProcess) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/task"))


def descriptors_of(server: ServerProcess) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def ticket(**asked: Any) -> flight.Ticket:
    question: Any = messages.Poll(**asked) if "group" in asked else messages.Question(**asked)
    return flight.Ticket(messages.encode_question(question))


QUESTIONS = {
    "scan": ticket(kind="scan", topic="t", start=0, max_records=1),
    "fetch": ticket(kind="fetch", topic="t", start=320, wait_ms=30_000),
    "poll": ticket(topic="t", group="g", max_records=1, wait_ms=30_000, partitions=[0]),
}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_many_flight_calls_take_few_threads_and_leave_none(
    server: ServerProcess, kind: str
) -> None:
    """200 calls at once, of which nobody reads an answer; then all of them hang up."""
    with lamina.connect(server.url) as store:
        group = store.group("t", "g")
        while (held := group.poll(100)).num_rows:
            group.ack(held)
    before, open_before = threads_of(server), descriptors_of(server)
    clients = [flight.connect(server.url) for _ in range(4)]
    refused: list[Any] = []
    readers: list[Any] = []

    def ask(client: Any) -> None:
        try:
            reader = client.do_get(QUESTIONS[kind], flight.FlightCallOptions(timeout=GONE_S))
            readers.append(reader)
            reader.read_chunk()
        except flight.FlightTimedOutError:
            pass  # it waited, and hung up
        except flight.FlightError as error:
            refused.append(failures.decode(error.extra_info or b""))

    askers = [
        threading.Thread(target=ask, args=(clients[number % 4],), daemon=True)
        for number in range(200)
    ]
    for each in askers:
        each.start()
    limit = CONNECTIONS if kind == "scan" else WAITING
    assert until(lambda: len(refused) >= 200 - limit)
    assert all(type(each) is Busy for each in refused)
    assert len(refused) == 200 - limit
    assert until(lambda: threads_of(server) <= before + limit + 10), threads_of(server)
    with lamina.connect(server.url, timeout_s=20) as store:
        assert store.fetch("t", 0, 0, max_records=1).num_rows == 1, "others are answered"
    for reader in readers:
        reader.cancel()
    for client in clients:
        client.close()
    for each in askers:
        each.join(30)
    with lamina.connect(server.url, timeout_s=20) as store:
        assert len(list(store.scan("t", 0, 0, max_records=100))) >= 4
        assert store.fetch("t", 0, 320, wait_ms=50).num_rows == 0
    assert until(lambda: threads_of(server) <= before + 10), threads_of(server)
    assert until(lambda: descriptors_of(server) <= open_before + 10), descriptors_of(server)


def test_a_scan_that_is_given_up_gives_its_stream_back(tmp_path: Path) -> None:
    with served(tmp_path / "data") as service:
        store = service.broker.store
        store.create_topic("t")
        for _ in range(30):
            store.append("t", [b"x" * 100_000] * 10)
        for chunks in (0, 1, 3):
            client = flight.connect(service.flight_url)
            asked = ticket(kind="scan", topic="t", start=0, max_records=10)
            reader = client.do_get(asked)
            for _ in range(chunks):
                reader.read_chunk()
            assert until(lambda: service.broker.streams.used == 1)
            reader.cancel()
            client.close()
            assert until(lambda: service.broker.streams.used == 0), chunks
            assert until(lambda: service.broker.inflight.used == 0), chunks
        client = flight.connect(service.flight_url)
        with pytest.raises(flight.FlightError):
            client.do_get(ticket(kind="scan", topic="none", start=0)).read_all()
        assert service.broker.streams.used == 0
        client.close()


def test_connections_beyond_the_limit_are_told_to_come_back(tmp_path: Path) -> None:
    with served(tmp_path / "data", connections=2) as service:
        kept = [httpx.Client(base_url=service.http_url) for _ in range(2)]
        assert [client.get("/ready").status_code for client in kept] == [200, 200]
        with httpx.Client(base_url=service.http_url) as further:
            answer = further.get("/ready")
        assert (answer.status_code, answer.json()["error"]) == (503, "Busy")
        assert answer.headers["retry-after"]
        for client in kept:
            client.close()
        assert until(lambda: httpx.get(service.http_url + "/ready").status_code == 200)


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("format_name", ["keratin", "frame", "wal"])
def test_a_topic_has_so_many_groups_and_no_more(tmp_path: Path, format_name: str) -> None:
    with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as store:
        store.create_topic("t", format=format_name, config={"max.groups": 3})
        store.create_topic("other", format=format_name)
        store.append("t", b"v")
        for number in range(3):
            store.group("t", f"g{number}")
        for opened in (store, service.broker.store):
            with pytest.raises(InvalidRequest, match=r"max\.groups"):
                opened.group("t", "one more")
        path = f"{service.http_url}/v1/topics/t/groups"
        assert httpx.post(path, json={"name": "one more"}).status_code == 400
        assert store.group("t", "g1").poll(1).num_rows == 1, "those that are there go on"
        store.group("other", "one more")
        store.delete_group("t", "g0")
        store.group("t", "one more")
        store.alter_topic("t", {"max.groups": 1})
        assert len(store.groups("t")) == 3, "nobody's group is taken away"
    with lamina.open(str(tmp_path / "data")) as again:
        assert len(again.groups("t")) == 3


# ---------------------------------------------------------------- acks=archived by every door


def archived(service: Service) -> dict[str, Callable[[str], Any]]:
    """Appends one record with acks=archived by each door; returns its durability or raises."""

    def by_flight(topic: str) -> Any:
        with lamina.connect(service.flight_url) as store:
            return store.append(topic, b"v", acks="archived", timeout_s=120).durability

    def by_http(topic: str) -> Any:
        path = f"{service.http_url}/v1/topics/{topic}/records"
        answer = httpx.post(
            path, json={"records": [{"value": "v"}], "acks": "archived"}, timeout=60
        )
        if answer.status_code != 200:
            raise failures.from_object(answer.json())
        return answer.json()["durability"]

    def embedded(topic: str) -> Any:
        return service.broker.store.append(topic, b"v", acks="archived", timeout_s=120).durability

    return {"flight": by_flight, "http": by_http, "embedded": embedded}


@pytest.mark.parametrize("door", ["flight", "http", "embedded"])
def test_an_append_waits_for_the_archive_by_every_door(tmp_path: Path, door: str) -> None:
    with served(tmp_path / "data", archive=str(tmp_path / "archive")) as service:
        service.broker.store.create_topic("kept", config={"remote.storage.enable": "true"})
        service.broker.store.create_topic("plain")
        assert archived(service)[door]("kept") == "archived"
        with pytest.raises(InvalidRequest, match=r"remote\.storage\.enable"):
            archived(service)[door]("plain")
        assert service.broker.store.latest_offset("plain") == 0, "refused before it was stored"


@pytest.mark.parametrize("door", ["flight", "http", "embedded"])
def test_without_an_archive_it_is_refused_by_one_clear_sentence(tmp_path: Path, door: str) -> None:
    with served(tmp_path / "data") as service:
        service.broker.store.create_topic("plain")
        with pytest.raises(InvalidRequest, match="acks=archived needs"):
            archived(service)[door]("plain")
        assert service.broker.store.latest_offset("plain") == 0


def test_what_is_stored_and_not_archived_in_time_is_not_taken_for_the_next_append(
    tmp_path: Path,
) -> None:
    """Under the number of an append that failed late, the next one would get its answer."""
    folder = tmp_path / "archive"
    with served(tmp_path / "data", archive=str(folder)) as service:
        service.broker.store.create_topic("kept", config={"remote.storage.enable": "true"})
        shutil.rmtree(folder)
        folder.write_bytes(b"no directory any more: nothing can be put there")
        with lamina.connect(service.flight_url) as store:
            with pytest.raises(Unavailable):
                store.append("kept", b"first", acks="archived", timeout_s=1)
            assert store.append("kept", b"second").base_offset == 1
            found = store.fetch("kept", 0, 0).column("value").to_pylist()
            assert found == [b"first", b"second"]
