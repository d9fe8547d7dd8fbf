"""kill -9 of a served broker under 16 producers: nothing acknowledged is lost, nothing is twice."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import lamina
from lamina.client.remote_store import RemoteStore
from tests.server.rig import ServerProcess

PRODUCERS = 16


def kill_and_count(tmp_path: Path, kills: int) -> None:
    server = ServerProcess(tmp_path / "data")
    acknowledged: dict[bytes, tuple[int, int]] = {}
    sent: set[bytes] = set()
    problems: list[BaseException] = []
    stop = threading.Event()

    def produce(number: int, client: RemoteStore) -> None:
        count = 0
        try:
            while not stop.is_set():
                values = [b"%d/%d/%d" % (number, count, row) for row in range(1 + count % 3)]
                sent.update(values)
                ack = client.append("t", values, partition=number % 2, acks="all")
                for row, value in enumerate(values):
                    acknowledged[value] = (number % 2, ack.base_offset + row)
                count += 1
        except BaseException as error:
            problems.append(error)

    with server:
        clients = [lamina.connect(server.url, timeout_s=120) for _ in range(4)]
        clients[0].create_topic("t", partitions=2, config={"segment.bytes": 16 << 10})
        threads = [
            threading.Thread(target=produce, args=(number, clients[number % 4]))
            for number in range(PRODUCERS)
        ]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            before = len(acknowledged)
            while len(acknowledged) < before + 100 and not problems:
                time.sleep(0.005)
            server.end(signal.SIGKILL)
            server.start()
        before = len(acknowledged)
        while len(acknowledged) < before + 100 and not problems:
            time.sleep(0.005)
        stop.set()
        for thread in threads:
            thread.join()
        assert problems == []
        found: dict[bytes, tuple[int, int]] = {}
        times: Counter[bytes] = Counter()
        for partition in (0, 1):
            for batch in clients[0].scan("t", partition):
                for offset, value in zip(
                    batch.column("offset").to_pylist(),
                    batch.column("value").to_pylist(),
                    strict=True,
                ):
                    found[value] = (partition, offset)
                    times[value] += 1
        for client in clients:
            client.close()
        assert server.end(signal.SIGTERM) == 0
    assert {value: found.get(value) for value in acknowledged} == acknowledged
    assert {value: count for value, count in times.items() if count > 1} == {}
    assert set(found) <= sent
    with lamina.open(str(tmp_path / "data")) as store:
        assert store.latest_offset("t", 0) + store.latest_offset("t", 1) == len(found)


def test_kills_lose_nothing_and_retries_store_nothing_twice(tmp_path: Path) -> None:
    kill_and_count(tmp_path, 3)


@pytest.mark.long
def test_many_kills_lose_nothing_and_retries_store_nothing_twice(tmp_path: Path) -> None:
    kill_and_count(tmp_path, 40)
