"""A standby that is read while the holder appends: by Flight, HTTP, Spark and Kafka's protocol."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

import lamina
import lamina.spark
from lamina.errors import NotPrimary
from lamina.wire import messages
from tests.cluster.servers import STEADY_MS, Node, archive_of, in_reach_of, until
from tests.spark.conftest import QUICK
from tests.support.s3_servers import S3Server, moto_server


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = moto_server(tmp_path_factory.mktemp("s3"))
    with in_reach_of(server):
        yield server
    server.kill()


Nodes = tuple[Node, Node]


@pytest.fixture
def nodes(bucket: S3Server, tmp_path: Path) -> Iterator[Nodes]:
    """Two servers: the first holds the cluster, the second is read."""
    archive = archive_of(tmp_path.name)
    with Node(tmp_path, "a", archive) as a, Node(tmp_path, "b", archive) as b:
        yield a, b


@pytest.fixture
def steady(bucket: S3Server, tmp_path: Path) -> Iterator[Nodes]:
    """The same, and so they stay."""
    archive = archive_of(tmp_path.name)
    with (
        Node(tmp_path, "a", archive, ttl_ms=STEADY_MS) as a,
        Node(tmp_path, "b", archive, ttl_ms=STEADY_MS) as b,
    ):
        yield a, b


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = lamina.spark.session(master="local[2,4]", config=QUICK)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def asked(node: Node, path: str) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection(node.http_url.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), json.loads(answer.read())
    connection.close()
    return found


def values(store: Any) -> list[bytes]:
    return [each for batch in store.scan("t", 0, 0) for each in batch["value"].to_pylist()]


def end_of(store: Any) -> int:
    return int(store.latest_offset("t", 0)) if "t" in store.topics() else 0


def test_a_standby_is_read_while_the_holder_appends(steady: Nodes) -> None:
    a, b = steady
    appended: list[bytes] = []
    stopping = threading.Event()

    def append() -> None:
        with lamina.connect(a.url, timeout_s=30) as store:
            store.create_topic("t", config={"segment.bytes": 4096, "archive.delay.ms": 0})
            while not stopping.is_set():
                value = b"%d " % len(appended) + bytes(60)
                appended.append(value)  # first: what is read was appended
                store.append("t", value, partition=0)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        with lamina.connect(b.url, timeout_s=30) as replica:
            until(lambda: end_of(replica) > 0, "the standby has the topic")
            last, began_s = 0, time.monotonic()
            while time.monotonic() - began_s < 5:
                found = values(replica)
                assert len(found) >= last, "the end never goes back"
                assert found == appended[: len(found)]
                last = len(found)
            batch = next(replica.scan("t", 0, 0))
            assert int(batch.schema.metadata[messages.LAG]) < 30_000
            assert "read from a standby" in repr(replica)
            for call in (lambda: replica.append("t", b"x"), replica.groups):
                with pytest.raises(NotPrimary) as caught:
                    call()
                assert caught.value.address("grpc") == a.url
            status, headers, page = asked(b, "/v1/topics/t/partitions/0/records?max_records=3")
            assert (status, len(page["records"])) == (200, 3)
            assert int(headers["lamina-replica-lag-ms"]) >= 0
            assert page["replica_lag_ms"] < 30_000
            status, headers, _ = asked(b, "/v1/topics/t/partitions/0/records?start=99999999")
            assert (status, headers["location"].startswith(a.http_url)) == (307, True)
            assert b.told()["replica_lag_ms"] < 30_000
    finally:
        stopping.set()
        thread.join()
    with lamina.connect(b.url, timeout_s=30) as replica:
        until(lambda: end_of(replica) == len(appended), "the standby has it all")
        assert values(replica) == appended
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": f"127.0.0.1:{b.kafka_port}", "group.id": "g"}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])  # it goes on at the holder
    message = consumer.poll(30)
    assert message is not None
    assert message.error() is None
    assert message.value() == appended[0]
    consumer.close()


def test_a_standby_goes_on_answering_when_the_holder_is_killed_and_then_takes_over(
    nodes: Nodes,
) -> None:
    a, b = nodes
    with lamina.connect(a.url, timeout_s=30) as store:
        store.create_topic("t")
        for number in range(50):
            store.append("t", b"%d" % number, partition=0, acks="archived")
    wanted = [b"%d" % number for number in range(50)]
    with lamina.connect(b.url, timeout_s=30) as replica:
        until(lambda: end_of(replica) == 50, "the standby has it all")
        a.kill()
        ends = [values(replica)]
        until(lambda: ends.append(values(replica)) is None and b.is_holder(), "b has taken over")
        assert all(each == wanted for each in ends)
        assert replica.append("t", b"50", partition=0).base_offset == 50
        assert values(replica) == [*wanted, b"50"]
        assert "read from a standby" not in repr(replica)


def test_spark_and_a_dataset_read_from_a_standby(steady: Nodes, spark: SparkSession) -> None:
    a, b = steady
    with lamina.connect(a.url, timeout_s=30) as store:
        store.create_topic("t", partitions=2)
        for number in range(20):
            store.append("t", [b"%d" % number] * 10, partition=number % 2, acks="archived")
    with lamina.connect(b.url, timeout_s=30) as replica:
        until(lambda: end_of(replica) == 100, "the standby has it all")
    frame = spark.read.format("lamina").option("server", b.url).option("subscribe", "t").load()
    assert frame.count() == 200
    table = lamina.dataset(b.url, "t").to_table()
    assert table.num_rows == 200
