"""Real servers and a real bucket: kills, pauses, hand-overs, and clients that notice little of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import lamina
from lamina.client.remote_store import RemoteStore
from tests.cluster.servers import Node, archive_of, holder_of, in_reach_of, until
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
    """Two servers; a was started first, and holds the cluster."""
    archive = archive_of(tmp_path.name)
    with Node(tmp_path, "a", archive) as a, Node(tmp_path, "b", archive) as b:
        yield a, b


def connected(*nodes: Node) -> RemoteStore:
    return lamina.connect(",".join(each.url for each in nodes), timeout_s=60)


def values(store: RemoteStore) -> list[bytes]:
    return [each for batch in store.scan("t", 0, 0) for each in batch["value"].to_pylist()]


def test_a_killed_holder_is_succeeded_and_clients_follow(nodes: Nodes) -> None:
    a, b = nodes
    assert a.is_holder()
    assert b.told()["role"] == "standby"
    assert b.told()["holder"].startswith(a.url)
    with connected(a, b) as store:
        store.create_topic("t")
        for number in range(10):
            store.append("t", b"%d" % number, acks="archived")
        a.kill()
        assert store.append("t", b"10", acks="all").base_offset == 10
        assert values(store) == [b"%d" % number for number in range(11)]
    assert b.told()["epoch"] == 2
    a.start()
    until(lambda: a.told()["epoch"] == 2, "a sees who holds the cluster")
    assert a.told()["role"] == "standby"


def test_a_holder_that_ends_hands_over_what_it_has(nodes: Nodes) -> None:
    a, b = nodes
    with connected(a, b) as store:
        store.create_topic("t")
        store.append("t", [b"%d" % number for number in range(100)])
        assert a.end(signal.SIGTERM) == 0
        assert until(b.is_holder, "b takes what was released") < 5
        assert len(values(store)) == 100
    assert holder_of(b) is b
