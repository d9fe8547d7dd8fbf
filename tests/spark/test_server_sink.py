"""The sink on a server: staged beside it, committed once, whatever is killed or repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lamina
from lamina.errors import InvalidRequest, Unavailable
from lamina.formats.documents.sink_transaction import Transaction
from lamina.formats.documents.topic_file import TopicFile
from lamina.spark.access import ServerAccess, Where
from lamina.spark.commit.sink_target import ServerTarget, Target, target_of
from lamina.spark.commit.staging import Stager, Staging
from lamina.storage.files import LocalFiles
from lamina.store.store import Store
from tests.server.rig import ServerProcess, served
from tests.spark.logs import START_MS, values

KILLED = """
import os, sys
from tests.spark import test_server_sink as sink
from lamina.spark.commit import transaction as transactions
left = int(sys.argv[3])
honest = transactions.Publisher._append
def counting(self, *given):
    global left
    left -= 1
    if left < 0:
        os._exit(9)
    return honest(self, *given)
transactions.Publisher._append = counting
sink.write(sink.target(sys.argv[1], sys.argv[2]), 2)
"""


def target(url: str, staging: str) -> ServerTarget:
    return ServerTarget(ServerAccess(url), staging)


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = [[b"key %d" % (n % 17) for n in numbers], [b"row %d" % n for n in numbers]]
    return pa.record_batch(
        columns, schema=pa.schema([("key", pa.binary()), ("value", pa.binary())])
    )


def write(where: Target, number: int, timeout_ms: int = 60_000) -> None:
    """One whole write, as Spark does it: some tasks, then the commit."""
    topics = where.topics()
    place = Staging(LocalFiles(), where.data, "app", number)
    parts = [
        Stager(place, topics, topic="t", now_ms=START_MS).stage([rows(number * 1000 + 8 * task, 8)])
        for task in range(8)
    ]
    where.publish(Transaction("app", number, "", tuple(parts)), LocalFiles(), timeout_ms)


def expected(*numbers: int) -> Counter[bytes]:
    return Counter(b"row %d" % row for n in numbers for row in range(n * 1000, n * 1000 + 64))


def held(url: str) -> Counter[bytes]:
    with lamina.connect(url) as store:
        return values(store, "t")


def make_topic(data: Path) -> None:
    with Store(str(data)) as store:
        store.create_topic("t", partitions=3, config={"segment.bytes": 1024})


def test_a_repeated_write_is_stored_once(tmp_path: Path) -> None:
    make_topic(tmp_path / "data")
    with served(tmp_path / "data") as service:
        where = target(service.flight_url, str(tmp_path / "staging"))
        for number in (1, 1, 2, 1, 2):
            write(where, number)
        assert held(service.flight_url) == expected(1, 2)


def test_writes_to_a_topic_created_again_since_they_were_decided_are_dropped(
    tmp_path: Path,
) -> None:
    make_topic(tmp_path / "data")
    with served(tmp_path / "data") as service:
        where = target(service.flight_url, str(tmp_path / "staging"))
        topics = where.topics()
        with lamina.connect(service.flight_url) as store:
            store.delete_topic("t")
            store.create_topic("t")
        place = Staging(LocalFiles(), where.data, "app", 1)
        part = Stager(place, topics, topic="t", now_ms=START_MS).stage([rows(0, 8)])
        where.publish(Transaction("app", 1, "", (part,)), LocalFiles(), 10_000)
        assert held(service.flight_url) == Counter()


@pytest.mark.parametrize(
    "appends", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (0, 2, 3))]
)
def test_a_driver_killed_between_appends_is_finished_by_the_next(
    tmp_path: Path, appends: int
) -> None:
    make_topic(tmp_path / "data")
    with served(tmp_path / "data") as service:
        staging = str(tmp_path / "staging")
        where = target(service.flight_url, staging)
        write(where, 1)
        arguments = [sys.executable, "-c", KILLED, service.flight_url, staging, str(appends)]
        ended = subprocess.run(arguments, env=dict(os.environ), timeout=120, check=False)
        assert ended.returncode == (9 if appends < 3 else 0)
        write(where, 2)
        write(where, 3)
        assert held(service.flight_url) == expected(1, 2, 3)


def test_a_commit_goes_on_when_a_killed_server_is_back(tmp_path: Path) -> None:
    make_topic(tmp_path / "data")
    with ServerProcess(tmp_path / "data") as server:
        where = target(server.url, str(tmp_path / "staging"))
        write(where, 1)
        topics = where.topics()
        place = Staging(LocalFiles(), where.data, "app", 2)
        part = Stager(place, topics, topic="t", now_ms=START_MS).stage([rows(2000, 64)])
        server.end(signal.SIGKILL)
        back = threading.Timer(1.0, server.start)
        back.start()
        where.publish(Transaction("app", 2, "", (part,)), LocalFiles(), 60_000)
        back.join()
        write(where, 2)
        assert held(server.url) == expected(1, 2)


def test_no_server_ends_a_commit_when_its_time_is_up(tmp_path: Path) -> None:
    where = ServerTarget(ServerAccess("grpc://127.0.0.1:1"), str(tmp_path))
    place = Staging(LocalFiles(), where.data, "app", 1)
    topics = {"t": TopicFile("t", "keratin", 1, 1, START_MS)}
    part = Stager(place, topics, topic="t", now_ms=START_MS).stage([rows(0, 8)])
    with pytest.raises(Unavailable):
        where.publish(Transaction("app", 1, "", (part,)), LocalFiles(), 200)


def test_a_server_needs_a_place_to_stage_in() -> None:
    server = Where(server=ServerAccess("grpc://h:1"))
    with pytest.raises(InvalidRequest, match="stagingPath"):
        target_of(server, None, None)
    with pytest.raises(InvalidRequest, match="stagingPath"):
        target_of(server, None, "s3://bucket/checkpoint")
    assert target_of(server, None, "/c").data == "/c/lamina-sink"
    assert target_of(server, "/s", "/c").data == "/s"
