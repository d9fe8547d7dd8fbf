"""Many clients at once: everyone is answered, and too many are told to come back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import lamina
from lamina.errors import Busy
from lamina.server.limits import Rate
from tests.server.rig import ServerProcess, served


def connect_many(tmp_path: Path, count: int) -> None:
    with ServerProcess(tmp_path / "data", f"max.connections={count + 10}") as server:
        clients = [lamina.connect(server.url, timeout_s=120) for _ in range(count)]
        clients[0].create_topic("t")
        barrier = threading.Barrier(16)

        def work(number: int) -> list[int]:
            barrier.wait()
            offsets = []
            for _ in range(2):
                for client in clients[number::16]:
                    offsets.append(client.append("t", b"%d" % number, partition=0).base_offset)
            return offsets

        with ThreadPoolExecutor(16) as pool:
            offsets = sorted(each for found in pool.map(work, range(16)) for each in found)
        assert offsets == list(range(2 * count)), "all stay open, all are answered, each once"
        page = httpx.get(f"{server.http_url}/metrics", timeout=60).text
        assert f"lamina_appended_records_total {2.0 * count}" in page
        for client in clients:
            client.close()


def test_two_hundred_connections_append_at_once(tmp_path: Path) -> None:
    connect_many(tmp_path, 200)


@pytest.mark.long
def test_a_thousand_connections_append_at_once(tmp_path: Path) -> None:
    connect_many(tmp_path, 1000)


def test_one_stream_too_many_is_told_to_come_back_and_gets_its_turn(tmp_path: Path) -> None:
    with served(tmp_path / "data", connections=2) as service:
        first, second, third = (lamina.connect(service.flight_url, timeout_s=60) for _ in range(3))
        first.create_topic("t")
        first.append("t", b"1")
        second.append("t", b"2")
        with pytest.raises(Busy, match="open streams") as caught:
            third.append("t", b"3", timeout_s=1)
        assert caught.value.retry_after_s > 0
        first.close()
        assert third.append("t", b"3", timeout_s=60).base_offset == 2
        second.close()
        third.close()


def test_bytes_at_work_are_bounded(tmp_path: Path) -> None:
    with (
        served(tmp_path / "data", inflight_bytes=1 << 10) as service,
        lamina.connect(service.flight_url, timeout_s=60) as store,
        lamina.connect(service.flight_url, timeout_s=1) as hasty,
    ):
        store.create_topic("t")
        store.append("t", [b"x" * 100] * 50)  # what could never fit is let in alone
        with service.broker.inflight.taking(1000):
            with pytest.raises(Busy, match="bytes at work"):
                store.append("t", b"x" * 100, timeout_s=1)
            with pytest.raises(Busy, match="bytes at work"):
                list(hasty.scan("t", start=0))
            body = {"records": [{"value": "x" * 100}]}
            answer = httpx.post(f"{service.http_url}/v1/topics/t/records", json=body)
            assert (answer.status_code, answer.json()["error"]) == (503, "Busy")
        assert store.append("t", b"x" * 100).base_offset == 50


def test_a_key_that_calls_too_fast_is_told_when_to_come_back(tmp_path: Path) -> None:
    with served(tmp_path / "data", rate_requests=1) as service:
        url = f"{service.http_url}/v1/topics"
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: httpx.get(url, timeout=60), range(40)))
        refused = [answer for answer in answers if answer.status_code == 503]
        assert refused
        assert {answer.status_code for answer in answers} == {200, 503}
        assert int(refused[0].headers["retry-after"]) >= 1
        assert refused[0].json()["error"] == "Busy"


def test_a_rate_lets_bursts_through_and_refills_with_time() -> None:
    now = 100.0
    rate = Rate(2, clock=lambda: now)
    rate.spend("a")
    rate.spend("a")
    with pytest.raises(Busy) as caught:
        rate.spend("a")
    assert caught.value.retry_after_s == 0.5
    rate.spend("b")
    now += 0.5
    rate.spend("a")
    with pytest.raises(Busy):
        rate.spend("a")


def test_watchers_beyond_the_limit_are_told_to_come_back(tmp_path: Path) -> None:
    with served(tmp_path / "data", waiting=1) as service:
        with lamina.connect(service.flight_url) as store:
            store.create_topic("t")
        url = f"{service.http_url}/v1/topics/t/partitions/0/"
        with httpx.stream("GET", f"{url}watch", timeout=30) as watching:
            lines = watching.iter_lines()
            assert next(lines) == ": still here"
            answer = httpx.get(f"{url}records?wait_ms=10", timeout=30)
            assert answer.status_code == 503
