"""A server that does not hold its cluster: what its doors say, and clients that go where they say.

Two real servers; where they stand is switched by hand here. tests/cluster has real takeovers.
"""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.api import ProducerStamp
from lamina.client.consumer import Consumer
from lamina.client.message import TopicPartition
from lamina.client.producer import Producer
from lamina.errors import NotPrimary, Unavailable
from lamina.server.service import Service
from lamina.store.store import Store
from lamina.wire import failures, messages
from lamina.wire.messages import Order
from tests.server.rig import ServerProcess, served


class Switch:
    """A standing that a test switches."""

    def __init__(self) -> None:
        self.holder: str | None = None
        self.is_holder = True

    def refusal(self, *, was_begun: bool = False) -> NotPrimary | None:
        if self.is_holder:
            return None
        return NotPrimary("another server holds the cluster", self.holder or "")

    def epoch(self) -> int:
        return 7

    def cluster_id(self) -> str:
        return "a cluster"

    def told(self) -> dict[str, Any]:
        return {"role": "holder" if self.is_holder else "standby", "epoch": 7}

    def problems(self) -> list[str]:
        return [] if self.is_holder or self.holder else ["nobody holds the cluster"]

    def promote(self, *, by_force: bool) -> None:
        raise NotImplementedError

    def hand_over(self, timeout_s: float) -> None:
        raise NotImplementedError

    def gauges(self) -> Iterator[Any]:
        return iter(())

    def points_at(self, other: Service) -> None:
        """Makes its server a standby that knows who holds the cluster."""
        kafka = f",kafka://{other.kafka_address}" if other.kafka_address else ""
        self.holder = f"{other.flight_url},{other.http_url}{kafka}"
        self.is_holder = False


@contextmanager
def member(data: Path, **settings: Any) -> Iterator[tuple[Service, Switch]]:
    with served(data, **settings) as service:
        switch = Switch()
        service.broker.place.standing = switch
        service.broker.store.create_topic("t")
        yield service, switch


ONE = {"records": [{"value": "eA=="}]}
Pair = tuple[Service, Switch, Service, Switch]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with member(tmp_path / "a") as (a, of_a), member(tmp_path / "b") as (b, of_b):
        yield a, of_a, b, of_b


def store_of(service: Service) -> Store:
    """The store behind a server, whatever its standing."""
    assert service._store is not None
    return service._store


def asked(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"content-type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), json.loads(answer.read())
    connection.close()
    return found


def values(store: Any, topic: str = "t") -> list[bytes]:
    return [each for batch in store.scan(topic, 0, 0) for each in batch["value"].to_pylist()]


# ---------------------------------------------------------------------- the error itself


def test_the_error_names_addresses_by_scheme_and_travels_whole() -> None:
    error = NotPrimary("no", "grpc://a:1,http://a:2,kafka://a:3", was_begun=True)
    assert error.address("https", "http") == "http://a:2"
    assert error.address("grpc+tls") is None
    back = failures.decode(failures.encode(error))
    assert isinstance(back, NotPrimary)
    assert (back.holder, back.was_begun) == (error.holder, True)


# ---------------------------------------------------------------------- HTTP


def test_http_sends_clients_to_the_holder(pair: Pair) -> None:
    a, of_a, b, _ = pair
    of_a.points_at(b)
    status, headers, body = asked(a.http_url, "POST", "/v1/topics/t/records", ONE)
    assert status == 307
    assert headers["location"] == f"{b.http_url}/v1/topics/t/records"
    assert headers["lamina-holder"] == of_a.holder
    assert body["error"] == "NotPrimary"
    status, headers, _ = asked(a.http_url, "GET", "/v1/groups?topic=t%2Fu")
    assert (status, headers["location"]) == (307, f"{b.http_url}/v1/groups?topic=t%2Fu")
    status, _, answer = asked(b.http_url, "POST", "/v1/topics/t/records", ONE)
    assert status == 200, answer


def test_http_says_503_while_nobody_is_known_to_hold(pair: Pair) -> None:
    a, of_a, _, _ = pair
    of_a.is_holder = False
    status, headers, body = asked(a.http_url, "POST", "/v1/topics/t/records", ONE)
    assert (status, headers["retry-after"]) == (503, "1")
    assert "location" not in headers
    assert body["error"] == "NotPrimary"


def test_health_and_ready_say_the_role(pair: Pair) -> None:
    a, of_a, b, _ = pair
    assert asked(a.http_url, "GET", "/ready")[2]["role"] == "holder"
    assert asked(a.http_url, "GET", "/health")[2]["cluster"] == {"role": "holder", "epoch": 7}
    of_a.is_holder = False
    status, _, health = asked(a.http_url, "GET", "/health")
    assert (status, health["problems"]) == (503, ["nobody holds the cluster"])
    of_a.points_at(b)
    assert asked(a.http_url, "GET", "/health")[0] == 200
    assert asked(a.http_url, "GET", "/ready")[2]["role"] == "standby"


def test_a_server_without_a_cluster_says_nothing_of_one(tmp_path: Path) -> None:
    with served(tmp_path / "alone") as service:
        for path in ("/health", "/ready"):
            assert not {"role", "cluster"} & set(asked(service.http_url, "GET", path)[2])


# ---------------------------------------------------------------------- Flight


def test_a_client_of_one_server_is_told_who_holds(pair: Pair) -> None:
    a, of_a, b, _ = pair
    of_a.points_at(b)
    with lamina.connect(a.flight_url, timeout_s=10) as store:
        for call in (
            lambda: store.append("t", b"x"),
            lambda: store.latest_offset("t", 0),
            lambda: store.fetch("t", 0, 0),
            lambda: list(store.scan("t", 0, 0)),
            lambda: store.create_topic("u"),
            lambda: store.group("t", "g"),
        ):
            with pytest.raises(NotPrimary) as caught:
                call()
            assert caught.value.holder == of_a.holder
    assert values(store_of(b)) == []


def test_a_standby_answers_reads_from_its_replica_and_nothing_else(pair: Pair) -> None:
    a, of_a, b, _ = pair
    store_of(a).append("t", [b"one", b"two"])
    a.broker.place.replica = store_of(a)
    store_of(a).replica_lag_ms = lambda: 17  # type: ignore[attr-defined]
    of_a.points_at(b)
    with lamina.connect(a.flight_url, timeout_s=10) as store:
        assert values(store) == [b"one", b"two"]
        assert store.topics() == ["t"]
        assert store.latest_offset("t", 0) == 2
        assert store.fetch("t", 0, 1).num_rows == 1
        assert store.diff("t", 0, 0).records.num_rows == 2
        assert store.fetch("t", 0, 1).schema.metadata[messages.LAG] == b"17"
        assert next(store.scan("t", 0, 0)).schema.metadata[messages.LAG] == b"17"
        assert "17 ms old" in repr(store)
        for call in (lambda: store.append("t", b"x"), store.groups, store.flush):
            with pytest.raises(NotPrimary):
                call()
    for path in ("/v1/topics/t/partitions/0/records", "/v1/topics"):
        status, headers, body = asked(a.http_url, "GET", path)
        assert (status, headers["lamina-replica-lag-ms"], body["replica_lag_ms"]) == (200, "17", 17)
        _, headers, body = asked(b.http_url, "GET", path)
        assert "lamina-replica-lag-ms" not in headers
        assert "replica_lag_ms" not in body
    assert asked(a.http_url, "GET", "/v1/groups")[0] == 307
    follower = lamina.connect(f"{a.flight_url},{b.flight_url}", timeout_s=10)
    with follower as store:  # it wants the holder, for reads, too
        assert store.latest_offset("t", 0) == 0


def test_an_answer_that_comes_too_late_is_none(pair: Pair) -> None:
    """A server that lost the cluster while it stored does not say that it has stored."""
    a, of_a, b, _ = pair
    store = store_of(a)
    append = store.append

    def slow(*given: Any, **named: Any) -> Any:
        done = append(*given, **named)
        of_a.points_at(b)
        return done

    store.append = slow  # type: ignore[method-assign]
    remote = lamina.connect(a.flight_url, timeout_s=10, idempotent=False)
    with remote, pytest.raises(Unavailable, match="not known"):
        remote.append("t", b"x")
    assert values(store_of(b)) == []


def test_what_was_read_while_the_cluster_was_lost_is_not_sent(pair: Pair) -> None:
    a, of_a, b, _ = pair
    store = store_of(a)
    latest = store.latest_offset

    def slow(*given: Any, **named: Any) -> int:
        found = latest(*given, **named)
        of_a.points_at(b)
        return found

    store.latest_offset = slow  # type: ignore[method-assign]
    remote = lamina.connect(a.flight_url, timeout_s=10)
    with remote, pytest.raises(NotPrimary) as caught:
        remote.latest_offset("t", 0)
    assert caught.value.was_begun


# ---------------------------------------------------------------------- clients that follow


def test_a_client_follows_the_holder_and_keeps_its_numbers(pair: Pair) -> None:
    a, of_a, b, of_b = pair
    of_b.points_at(a)
    stamps: list[ProducerStamp] = []
    for service in (a, b):
        append = service.broker.append

        def noted(caller: Any, order: Order, records: Any, append: Any = append) -> Any:
            stamps.append(order.producer)
            return append(caller, order, records)

        service.broker.append = noted  # type: ignore[method-assign]
    with lamina.connect(f"{b.flight_url},{a.flight_url}", timeout_s=20) as store:
        assert store.append("t", b"one").base_offset == 0
        # b takes over with what a has: here by hand, under the same stamp
        store_of(b).append("t", b"one", partition=0, producer=stamps[-1])
        of_b.is_holder = True
        of_a.points_at(b)
        assert store.append("t", b"two").base_offset == 1
    assert values(store_of(b)) == [b"one", b"two"]
    assert values(store_of(a)) == [b"one"]
    assert len({stamp.producer_id for stamp in stamps}) == 1
    assert {stamp.sequence for stamp in stamps} == {0, 1}


def test_what_was_stored_without_an_answer_is_not_stored_twice(pair: Pair) -> None:
    a, of_a, b, of_b = pair
    of_b.points_at(a)
    append = store_of(a).append

    def stores_and_loses(topic: str, records: Any, **named: Any) -> Any:
        done = append(topic, records, **named)
        store_of(b).append(topic, records, **named)  # the successor has it, from a window
        of_b.is_holder = True
        of_a.points_at(b)
        return done

    store_of(a).append = stores_and_loses  # type: ignore[method-assign]
    with lamina.connect(f"{a.flight_url},{b.flight_url}", timeout_s=20) as store:
        assert store.append("t", [b"x", b"y"]).base_offset == 0
        assert store.append("t", b"z").base_offset == 2
    assert values(store_of(b)) == [b"x", b"y", b"z"]


def test_a_client_turns_away_from_a_server_that_was_killed(tmp_path: Path) -> None:
    with (
        member(tmp_path / "b") as (b, _),
        ServerProcess(tmp_path / "a") as process,
        lamina.connect(f"{process.url},{b.flight_url}", timeout_s=20) as store,
    ):
        store.create_topic("t")
        store.append("t", b"one")
        process.end(signal.SIGKILL)
        assert store.append("t", b"two").base_offset == 0  # b knows nothing of the first
        assert values(store) == [b"two"]
        assert store.group("t", "g").poll().num_rows == 1


def test_a_client_goes_where_it_is_told_though_it_was_not_named(pair: Pair, tmp_path: Path) -> None:
    a, of_a, b, of_b = pair
    of_b.points_at(a)
    with member(tmp_path / "c") as (c, _):
        of_a.points_at(c)
        with lamina.connect(f"{b.flight_url},{a.flight_url}", timeout_s=20) as store:
            store.append("t", b"x")
        assert values(store_of(c)) == [b"x"]


def test_a_client_gives_up_when_nobody_holds(pair: Pair) -> None:
    a, of_a, b, of_b = pair
    of_a.is_holder = of_b.is_holder = False
    with lamina.connect(f"{a.flight_url},{b.flight_url}", timeout_s=1) as store:
        with pytest.raises(NotPrimary):
            store.append("t", b"x")
        with pytest.raises(NotPrimary):
            store.create_topic("u")


def test_what_may_have_been_done_is_not_repeated_elsewhere(pair: Pair) -> None:
    a, of_a, b, _ = pair
    create = store_of(a).create_topic

    def slow(*given: Any, **named: Any) -> None:
        create(*given, **named)
        of_a.points_at(b)

    store_of(a).create_topic = slow  # type: ignore[method-assign]
    remote = lamina.connect(f"{a.flight_url},{b.flight_url}", timeout_s=10)
    with remote, pytest.raises(NotPrimary) as caught:
        remote.create_topic("u")
    assert caught.value.was_begun
    assert "u" not in store_of(b).topics()


def test_producer_and_consumer_follow(pair: Pair) -> None:
    a, of_a, b, of_b = pair
    of_b.points_at(a)
    reports: list[Any] = []
    urls = f"{a.flight_url},{b.flight_url}"
    with lamina.connect(urls, timeout_s=20) as store, Producer(store) as producer:
        producer.produce("t", b"one", on_delivery=lambda error, _: reports.append(error))
        producer.flush()
        of_b.is_holder = True
        of_a.points_at(b)
        producer.produce("t", b"two", on_delivery=lambda error, _: reports.append(error))
        producer.flush()
        assert reports == [None, None]
        assert values(store_of(b)) == [b"two"]
        settings = {"group.id": "g", "auto.offset.reset": "earliest"}
        with Consumer(store, settings) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            message = consumer.poll(10)
            assert message is not None
            assert message.value() == b"two"
            consumer.commit()
            of_a.is_holder = True
            of_b.points_at(a)
            store_of(a).append("t", b"three")
            message = consumer.poll(10)
            assert message is not None
            assert message.value() == b"three"


def test_many_threads_turn_together(pair: Pair) -> None:
    a, _, b, of_b = pair
    of_b.points_at(a)
    with lamina.connect(f"{b.flight_url},{a.flight_url}", timeout_s=20) as store:
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for each in range(5):
                    store.append("t", f"{number}-{each}".encode(), partition=0)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert len(values(store_of(a))) == 40


@pytest.mark.parametrize(
    "url",
    ["http://a:1", "grpc://a:1,grpc+tls://b:1", "grpc://a:1,", "grpc://", "grpc://a:1, http://b"],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(lamina.InvalidRequest):
        lamina.connect(url)
