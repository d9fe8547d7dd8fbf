"""Bytes per second and key, by a clock that the test moves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import lamina
from lamina.errors import Busy, InvalidRequest
from lamina.server import auth
from lamina.server.auth import Caller
from lamina.server.kafka import throttling
from lamina.server.quotas import ByteQuota, ByteQuotas
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.wire.kafka.connection_apis import SASL_AUTHENTICATE, SASL_HANDSHAKE
from lamina.wire.kafka.record_apis import FETCH, PRODUCE
from lamina.wire.messages import Order, Question
from tests.server.kafka.raw_client import RawClient, fetched, made, produced
from tests.server.rig import served


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------- by itself


def test_a_call_may_cost_more_than_a_second_and_the_next_one_waits_for_the_debt() -> None:
    clock = Clock()
    quota = ByteQuota("produce", 1000, clock)
    who = Caller("k")
    quota.admit(who, 3000)
    with pytest.raises(Busy, match="key k may produce 1000 bytes a second") as told:
        quota.admit(who, 1)
    assert told.value.retry_after_s == pytest.approx(2.0)
    clock.now += 1.5
    with pytest.raises(Busy) as told:
        quota.admit(who, 1)
    assert told.value.retry_after_s == pytest.approx(0.5), "a refused call costs nothing"
    clock.now += 0.5
    quota.admit(who, 1)
    assert quota.refused == 2


def test_what_was_not_used_is_not_kept_for_later_and_keys_do_not_share() -> None:
    clock = Clock()
    quota = ByteQuota("fetch", 1000, clock)
    clock.now += 3600
    assert quota.charge(Caller("a"), 2000) == pytest.approx(1.0)
    assert quota.charge(Caller("b"), 500) == 0.0
    assert quota.is_in_debt(Caller("a"))
    assert not quota.is_in_debt(Caller("b"))


def test_a_key_may_have_a_quota_of_its_own_or_none() -> None:
    quota = ByteQuota("produce", 10, Clock())
    free, tight = Caller("free", produce_bytes=-1), Caller("tight", produce_bytes=5)
    for _ in range(3):
        quota.admit(free, 1 << 40)
    assert quota.limit_of(tight) == 5
    assert quota.charge(tight, 10) == pytest.approx(1.0)
    with pytest.raises(InvalidRequest, match="produce_bytes"):
        auth.Key("id", "sha", "read", produce_bytes=0)


def test_a_key_that_is_gone_leaves_nothing() -> None:
    quotas = ByteQuotas(ServerSettings(quota_produce_bytes=10), Clock())
    quotas.produce.charge(Caller("gone"), 100)
    quotas.produce.charge(Caller("here"), 100)
    quotas.renew(ServerSettings(quota_produce_bytes=20), {"here"})
    assert set(quotas.produce._levels) == {"here"}
    assert quotas.produce.per_second == 20


# ---------------------------------------------------------------- by each door


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[Service, str, Clock]]:
    path = str(tmp_path / "keys.json")
    quotas = auth.Quotas(produce_bytes=10_000, fetch_bytes=10_000)
    _, text = auth.create(path, scope="admin", quotas=quotas)
    assert json.loads(Path(path).read_text())["keys"][0]["produce_bytes"] == 10_000
    with served(tmp_path / "data", keys_file=path, kafka_port=0) as service:
        clock = Clock()
        service.broker.quotas = ByteQuotas(service.settings, clock)
        with lamina.connect(service.flight_url, api_key=text) as store:
            store.create_topic("t")
        yield service, text, clock


def test_flight_tells_a_producer_and_a_reader_to_come_back(limited: Any) -> None:
    service, text, clock = limited
    broker, caller = service.broker, service.broker.caller(text)
    order, question = Order("t", None, "all"), Question("scan", "t", 0, 0)
    with lamina.connect(service.flight_url, api_key=text) as store:
        store.append("t", [b"x" * 1000] * 50)
        with pytest.raises(Busy, match="may produce 10000 bytes a second"):
            broker.append(caller, order, [b"more"])
        clock.now += 60
        store.append("t", b"more")
        assert store.fetch("t", 0, 0).num_rows == 51
        with pytest.raises(Busy, match="may fetch 10000 bytes a second"):
            broker.fetch(caller, question, broker.answer())
        with pytest.raises(Busy, match="may fetch"):
            broker.scan(caller, question)
        clock.now += 60
        assert sum(batch.num_rows for batch in store.scan("t", 0, 0)) == 51


def test_a_scan_in_debt_ends_its_part_and_is_asked_to_come_back(limited: Any) -> None:
    service, text, clock = limited
    with lamina.connect(service.flight_url, api_key=text) as store:
        for _ in range(3):
            clock.now += 60
            store.append("t", [b"x" * 1000] * 20)
    caller = service.broker.caller(text)
    asked = Question("scan", "t", 0, 0, max_records=20)
    _, batches = service.broker.scan(caller, asked)
    assert [batch.num_rows for batch in batches] == [20], "one part, and no more on credit"
    with pytest.raises(Busy):
        service.broker.scan(caller, asked)


def test_http_says_when_to_come_back(limited: Any) -> None:
    service, text, clock = limited
    url = f"{service.http_url}/v1/topics/t"
    with httpx.Client(headers={"authorization": f"Bearer {text}"}) as http:
        rows = {"records": [{"value": "x" * 1000}] * 60}
        assert http.post(f"{url}/records", json=rows).status_code == 200
        refused = http.post(f"{url}/records", json=rows)
        assert (refused.status_code, refused.json()["error"]) == (503, "Busy")
        assert refused.headers["retry-after"] == str(round(len(refused.request.content) / 1e4 - 1))
        assert http.get(f"{url}/partitions/0/records").status_code == 200
        assert http.get(f"{url}/partitions/0/records").status_code == 503
        clock.now += 60
        assert http.post(f"{url}/records", json=rows).status_code == 200
        assert http.get(f"{url}/partitions/0/records").status_code == 200
        page = http.get(f"{service.http_url}/metrics").text
    assert 'lamina_quota_refused_calls_total{direction="produce"} 1.0' in page
    assert 'lamina_quota_refused_calls_total{direction="fetch"} 1.0' in page


def test_kafka_answers_at_once_says_how_long_and_does_not_read_for_as_long(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, text, clock = limited
    paused: list[float] = []
    real = throttling.delay_s

    def delay_s(call: Any) -> float:
        seconds = real(call)
        paused.append(seconds)
        clock.now += seconds
        return 0.02 if seconds else 0.0  # the same way, without the wait

    monkeypatch.setattr(throttling, "delay_s", delay_s)
    with RawClient(service.kafka_address) as client:
        client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0any\0" + text.encode()})
        answer = client.ask(PRODUCE, 8, produced("t", made([b"x" * 40_000])))
        assert answer["responses"][0]["partition_responses"][0]["base_offset"] == 0
        assert answer["throttle_time_ms"] == 20
        assert paused[-1] == pytest.approx(3.0, abs=0.1)
        fetch = fetched("t", 0)
        assert client.ask(FETCH, 11, fetch)["throttle_time_ms"] == 20
        assert paused[-1] == pytest.approx(3.0, abs=0.1)
        assert client.ask(FETCH, 11, fetch)["throttle_time_ms"] == 20, "it is read again"
    assert service.broker.quotas.fetch.delayed_ms >= 5900


def test_kafka_does_not_read_a_connection_in_debt_until_its_time_is_up(
    limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, text, _ = limited
    delays: list[float] = []
    monkeypatch.setattr(throttling, "delay_s", lambda _: delays.pop() if delays else 0.0)
    with RawClient(service.kafka_address) as client:
        client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        delays.append(3600.0)
        client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0any\0" + text.encode()})
        client.send(FETCH, 11, fetched("t", 0, max_wait_ms=0))
        (connection,) = service._kafka._connections
        handled = service.broker.metrics.received["kafka"]._value.get()
        assert "quota" in connection._pauses
        assert not connection._transport.is_reading()
        done = threading.Event()

        def end_delay() -> None:
            connection._delayed_until += 1  # an earlier timer of two
            connection._end_delay()
            still_paused.append("quota" in connection._pauses)
            connection._delayed_until = 0.0
            connection._end_delay()
            done.set()

        still_paused: list[bool] = []
        assert service.broker.metrics.received["kafka"]._value.get() == handled
        service._kafka._loop.call_soon_threadsafe(end_delay)
        assert done.wait(60)
        assert client.receive(FETCH, 11)[1]["responses"]
    assert still_paused == [True]
