"""Consumer groups, one suite, two doors: in the program and behind a server."""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import lamina
from lamina.client.remote_group import RemoteGroup
from lamina.errors import Closed, InvalidRequest, UnknownGroup
from lamina.groups.group import Group
from lamina.server import shared_groups
from lamina.server.service import Service
from lamina.wire import messages
from tests.server.rig import CuttingProxy, ServerProcess, served


@pytest.fixture(params=["embedded", "served"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with lamina.open(str(tmp_path / "data")) as opened:
            yield opened
    else:
        with served(tmp_path / "data") as service, lamina.connect(service.flight_url) as client:
            yield client


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path / "data") as running:
        yield running


def offsets(batch: pa.RecordBatch) -> list[int]:
    return batch.column("offset").to_pylist()


def test_records_are_polled_acked_released_and_extended(store: Any) -> None:
    store.create_topic("t")
    store.append("t", [b"%d" % n for n in range(10)])
    group = store.group("t", "g")
    assert (group.topic, group.name) == ("t", "g")
    first = group.poll(4, lease_ms=60_000)
    assert first.schema == group.schema
    assert offsets(first) == [0, 1, 2, 3]
    assert first.column("epoch").to_pylist() == [1] * 4
    assert first.column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
    assert group.extend(first, 120_000) == 4
    assert group.ack(first.slice(0, 2)) == 2
    assert group.ack(first.slice(0, 2)) == 0, "again is nothing new"
    assert group.release(first.slice(2)) == 2
    second = group.poll(100)
    assert offsets(second) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert second.column("epoch").to_pylist() == [2, 2] + [1] * 6
    assert group.release(first.slice(2)) == 0, "held under another epoch"
    assert group.poll(1).num_rows == 0
    assert group.poll(1).schema == group.schema
    for held in (2, [3], range(4, 6), np.array([6]), pa.array([7]), pa.table({"offset": [8]})):
        assert group.ack(held) == (2 if isinstance(held, range) else 1)
    assert group.ack([]) == 0
    assert group.reject(9, "broken") == 1
    assert store.fetch("t.dlq", 0, 0).column("value").to_pylist() == [b"9"]
    assert group.committed() == 10
    lag = group.lag()[0]
    assert (lag.partition, lag.committed, lag.end, lag.records, lag.inflight) == (0, 10, 10, 0, 0)
    assert group.describe() == store.describe_group("t", "g")
    assert group.describe().lag == 0


def test_partitions_take_turns_and_are_told_apart(store: Any) -> None:
    store.create_topic("t", partitions=3)
    for number in range(3):
        store.append("t", [b"a", b"b"], partition=number)
    group = store.group("t", "g")
    firsts = [group.poll(1).column("partition")[0].as_py() for _ in range(3)]
    assert sorted(firsts) == [0, 1, 2], "each is the first once"
    rest = group.poll(10)
    assert group.ack(rest) == 3
    assert group.poll(10, partitions=[1]).num_rows == 0
    assert group.commit(2, 1) == 2
    assert group.commit(1, 1) == 2, "it never moves back"
    assert [group.committed(number) for number in range(3)] == [0, 2, 0]
    assert group.ack(np.array([0]), partition=0, acks=1) == 1


def test_a_poll_waits_for_a_record_and_for_a_deadline(store: Any) -> None:
    store.create_topic("t")
    group = store.group("t", "g")
    found: list[pa.RecordBatch] = []
    waiting = threading.Thread(target=lambda: found.append(group.poll(5, 300, wait_ms=60_000)))
    waiting.start()
    store.append("t", b"now")
    waiting.join(50)
    assert not waiting.is_alive()
    assert offsets(found[0]) == [0]
    again = group.poll(5, wait_ms=60_000)
    assert (offsets(again), again.column("epoch").to_pylist()) == ([0], [2])


def test_groups_are_listed_moved_and_deleted(store: Any) -> None:
    store.create_topic("a", partitions=2)
    store.create_topic("b")
    store.append("a", [b"x"] * 5, partition=0)
    store.group("a", "one")
    late = store.group("a", "two", start="latest")
    store.group("b", "one")
    assert store.groups() == [("a", "one"), ("a", "two"), ("b", "one")]
    assert store.groups("b") == [("b", "one")]
    assert late.committed(0) == 5
    planned = store.reset_group("a", "two", to=2, partitions=[0])
    assert [(m.partition, m.before, m.after) for m in planned] == [(0, 5, 2)]
    assert late.committed(0) == 5, "only planned"
    store.reset_group("a", "two", to=2, partitions=[0], execute=True)
    assert late.committed(0) == 2
    store.reset_group("a", "two", shift=-1, partitions=[0], execute=True)
    assert offsets(late.poll(9)) == [1, 2, 3, 4]
    store.reset_group("a", "two", to="latest", execute=True)
    assert late.describe().lag == 0
    store.reset_group("a", "two", timestamp_ms=0, execute=True)
    assert late.describe().lag == 5
    store.delete_group("a", "two")
    assert store.groups("a") == [("a", "one")]
    with pytest.raises(Closed, match=r"group 'two' of 'a' was deleted"):
        late.poll(1)
    with pytest.raises(UnknownGroup):
        store.group("a", "two", start="none")
    assert store.group("a", "one", start="none").committed() == 0


def test_a_deleted_topic_closes_its_groups(store: Any) -> None:
    store.create_topic("t")
    store.append("t", b"v")
    group = store.group("t", "g")
    store.delete_topic("t")
    with pytest.raises(Closed, match="topic 't' was deleted"):
        group.poll(1)
    store.create_topic("t")
    assert store.groups() == []


def test_what_is_gone_is_skipped_and_told(store: Any) -> None:
    store.create_topic("t", config={"segment.bytes": 1024})
    for _ in range(10):
        store.append("t", [b"x" * 300])
    group = store.group("t", "g")
    left = store.trim("t", 0, 5)
    assert left > 0
    assert offsets(group.poll(100))[0] == left
    told = [(each.partition, each.first, each.end, each.reason) for each in group.skipped]
    assert told == [(0, 0, left, "trim")]


@pytest.mark.parametrize("format_name", ["frame", "wal"])
def test_groups_of_every_format(store: Any, format_name: str) -> None:
    store.create_topic("t", format=format_name)
    store.append("t", [b"a", b"b"])
    group = store.group("t", "g")
    batch = group.poll()
    assert batch.schema == group.schema
    assert group.ack(batch) == 2


def test_many_threads_share_a_group_and_no_record_is_with_two(store: Any) -> None:
    store.create_topic("t", partitions=2)
    for number in range(2):
        store.append("t", [b"%d" % n for n in range(300)], partition=number)
    group = store.group("t", "g")
    taken: list[tuple[int, int]] = []

    def work() -> None:
        while (batch := group.poll(20, 60_000)).num_rows:
            taken.extend(zip(batch.column("partition").to_pylist(), offsets(batch), strict=True))
            group.ack(batch)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [(p, n) for p in range(2) for n in range(300)]
    assert group.describe().lag == 0


# ---------------------------------------------------------------- only behind a server


def test_a_group_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    with server, lamina.connect(server.url) as client:
        client.create_topic("t")
        client.append("t", [b"a", b"b", b"c"])
        group = client.group("t", "g")
        held = group.poll(2, 3_600_000)
        group.ack(held.slice(0, 1))
        server.end(signal.SIGKILL)
        server.start()
        assert offsets(group.poll(9)) == [2], "what is held stays held"
        assert group.committed() == 1
        assert group.ack(held) == 1


def test_a_poll_whose_answer_is_cut_comes_again_after_its_deadline(service: Service) -> None:
    with lamina.connect(service.flight_url) as client:
        client.create_topic("t")
        client.append("t", [b"x" * 1000] * 20)
        group = client.group("t", "g")
        assert group.lag()[0].inflight == 0
    port = int(service.flight_url.rsplit(":", 1)[1])
    proxy = CuttingProxy(port, upstream=None, downstream=6000)
    try:
        with lamina.connect(f"grpc://127.0.0.1:{proxy.port}", timeout_s=30) as cut:
            mine = cut.group("t", "g")
            batch = mine.poll(50, 1000, wait_ms=20_000)
            assert proxy.cuts == 1
            assert offsets(batch) == list(range(20))
            assert set(batch.column("epoch").to_pylist()) == {2}, "the first answer was lost"
            assert mine.ack(batch) == 20
    finally:
        proxy.close()


def test_a_consumer_that_vanishes_while_it_waits_holds_nothing(service: Service) -> None:
    with lamina.connect(service.flight_url) as client:
        client.create_topic("t")
        group = client.group("t", "g")
        asked = messages.Poll("t", "g", 10, 3_600_000, 20_000)
        ticket = flight.Ticket(messages.encode_question(asked))
        gone = flight.connect(service.flight_url)
        reader = threading.Thread(target=lambda: _ignored(gone, ticket))
        reader.start()
        while not service.broker.work.used:
            threading.Event().wait(0.01)
        gone.close()
        reader.join()
        while service.broker.work.used:
            threading.Event().wait(0.01)
        client.append("t", b"v")
        batch = group.poll(1, wait_ms=20_000)
        assert (offsets(batch), batch.column("epoch").to_pylist()) == ([0], [1])


def _ignored(client: Any, ticket: Any) -> None:
    options = flight.FlightCallOptions(timeout=1.0)
    with pytest.raises((pa.ArrowException, OSError)):
        client.do_get(ticket, options).read_chunk()


def test_a_poll_for_somebody_who_is_gone_is_given_back(service: Service) -> None:
    with lamina.connect(service.flight_url) as client:
        client.create_topic("t")
        client.append("t", [b"a", b"b"])
        group = client.group("t", "g")
        caller = service.broker.caller(None)
        asked = messages.Poll("t", "g", 10, 3_600_000)
        answer = service.broker.answer()
        answer.is_gone = lambda: True
        assert service.broker.poll(caller, asked, answer).num_rows == 0
        assert offsets(group.poll(10)) == [0, 1]


def test_a_wait_ends_when_the_server_stops(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with served(tmp_path / "data", drain_ms=60_000) as service:
        client = lamina.connect(service.flight_url, timeout_s=5)
        client.create_topic("t")
        group = client.group("t", "g")

        def wait(call: Any) -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        calls = (
            lambda: group.poll(1, wait_ms=60_000),
            lambda: client.fetch("t", 0, 0, wait_ms=60_000),
        )
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        while service.broker.work.used < 2:
            threading.Event().wait(0.01)
        service.stop()
        assert service.broker.work.used == 0, "nobody was still waiting"
        for thread in threads:
            thread.join()
        client.close()
    assert [type(error) for error in errors if not isinstance(error, lamina.Unavailable)] == []


HOSTILE: list[tuple[bytes, bytes, str]] = [
    (b"group.ack", b'{"topic": "t", "group": "g"}', "needs 'held'"),
    (b"group.ack", b'{"topic": "t", "group": "g", "held": "all"}', "a list"),
    (b"group.ack", b'{"topic": "t", "group": "g", "held": [{"partition": 0}]}', "'offset'"),
    (b"group.ack", b'{"topic": "t", "group": "g"}\nno arrow', "no Arrow stream"),
    (b"group.ack", b'{"topic": "t", "group": "x", "held": [0]}', "no group"),
    (b"group.ack", b'{"topic": "t", "group": "g", "held": [0], "acks": []}', "acks"),
    (b"group.commit", b'{"topic": "t", "group": "g", "offset": "0"}', "whole number"),
    (b"group._take", b'{"topic": "t", "group": "g"}', "no operation"),
    (b"group.poll", b'{"topic": "t", "group": "g"}', "no operation"),
    (b"group", b'{"topic": "t", "name": "n", "start": "x"}', "earliest"),
    (b"format_of", b'{"topic": "t", "x": 1}', "takes no 'x'"),
    (b"delete", b'{"topic": "t", "tag": 7}', "text"),
    (b"delete", b'{"topic": "t", "tag": {"base64": "%"}}', "base64"),
    (b"delete", b'{"topic": "t", "offsets": 3}', "a list"),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_wrong_call_is_told_what_is_wrong(tmp_path_factory: Any, number: int) -> None:
    name, body, problem = HOSTILE[number]
    service = _shared(tmp_path_factory)
    client = flight.connect(service.flight_url)
    with pytest.raises(flight.FlightError) as caught:
        list(client.do_action(flight.Action(name.decode(), body)))
    assert problem in str(caught.value)
    assert "Traceback" not in str(caught.value)
    client.close()


_running: list[Any] = []


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Service:
    if not _running:
        context = served(tmp_path_factory.mktemp("hostile") / "data")
        service = context.__enter__()
        with lamina.connect(service.flight_url) as client:
            client.create_topic("t")
            client.group("t", "g")
        _running.extend((service, context))
    found: Service = _running[0]
    return found


@pytest.fixture(scope="module", autouse=True)
def _stop_shared() -> Iterator[None]:
    yield
    while _running:
        _running.pop().__exit__(None, None, None)
        _running.pop()


def test_held_records_with_wrong_columns_are_refused() -> None:
    wrong = pa.RecordBatch.from_pydict({"offset": ["a"]})
    with pytest.raises(InvalidRequest, match="whole numbers"):
        shared_groups.held_of(wrong)
    with pytest.raises(InvalidRequest, match="whole numbers"):
        shared_groups.held_of(pa.RecordBatch.from_pydict({"offset": pa.array([None], pa.int64())}))
    from lamina.wire.operations import Named

    with pytest.raises(InvalidRequest, match="'epoch'"):
        shared_groups.held_of([Named(0, 0, 1), Named(1, 0)])
    made = shared_groups.held_of([Named(0, 0, 1), Named(1, 0, 1)])
    assert isinstance(made, pa.RecordBatch)
    assert made.to_pydict() == {"offset": [0, 1], "partition": [0, 0], "epoch": [1, 1]}


def test_a_remote_group_has_the_methods_of_a_group() -> None:
    for name, member in inspect.getmembers(Group):
        if name.startswith("_"):
            continue
        mine = inspect.getattr_static(RemoteGroup, name)
        assert not getattr(mine, "__isabstractmethod__", False), name
        if inspect.isfunction(member):
            assert inspect.signature(mine) == inspect.signature(member), name


def test_groups_that_were_deleted_are_not_kept(service: Service) -> None:
    with lamina.connect(service.flight_url) as client:
        for topic in ("t", "u"):
            client.create_topic(topic)
            for name in ("g", "h"):
                client.group(topic, name)
        client.delete_group("t", "g")
        client.delete_topic("u")
        assert set(service.broker.groups._open) == {("t", "h")}
