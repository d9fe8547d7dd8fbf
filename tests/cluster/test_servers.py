"""Real servers and a real bucket: kills, pauses, hand-overs, and clients that go where it is."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import lamina
from lamina.server.clustered import advertised, charter_of
from lamina.server.setting_table import ServerSettings
from tests.cluster.servers import (
    STEADY_MS,
    TTL_MS,
    Node,
    archive_of,
    connected,
    holder_of,
    in_reach_of,
    judged,
    until,
)
from tests.support.fault_proxy import FaultProxy
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


@pytest.fixture
def steady(bucket: S3Server, tmp_path: Path) -> Iterator[Nodes]:
    """The same, where no ttl passes."""
    archive = archive_of(tmp_path.name)
    with (
        Node(tmp_path, "a", archive, ttl_ms=STEADY_MS) as a,
        Node(tmp_path, "b", archive, ttl_ms=STEADY_MS) as b,
    ):
        yield a, b


@pytest.fixture
def idle(bucket: S3Server, tmp_path: Path) -> Iterator[Nodes]:
    """The same, where nothing is shipped by itself."""
    archive = archive_of(tmp_path.name)
    with (
        Node(tmp_path, "a", archive, "tail.ms=60000") as a,
        Node(tmp_path, "b", archive, "tail.ms=60000") as b,
    ):
        yield a, b


def values(store: Any) -> list[bytes]:
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
    epoch = b.told()["epoch"]
    assert epoch > 1
    a.start()
    until(lambda: a.told().get("epoch", 0) >= epoch, "a sees who holds the cluster")
    assert a.told()["role"] == "standby"


def test_a_holder_that_ends_hands_over_what_it_has(steady: Nodes) -> None:
    a, b = steady
    with connected(a, b) as store:
        store.create_topic("t")
        store.append("t", [b"%d" % number for number in range(100)])
        assert a.end(signal.SIGTERM) == 0
        until(b.is_holder, "b takes what was released")
        assert len(values(store)) == 100
    assert holder_of(b) is b


def test_a_holder_that_was_paused_answers_nothing_and_sets_aside_what_it_never_shipped(
    idle: Nodes,
) -> None:
    a, b = idle
    with connected(a, b) as store:
        store.create_topic("t")
        store.append("t", b"shipped", acks="archived")
    with lamina.connect(a.url, timeout_s=30) as alone:
        alone.append("t", b"never shipped")
        a.pause()
        until(b.is_holder, "b takes over")
        a.go_on()
        until(lambda: a.told().get("role") == "standby", "a stands by")
        with pytest.raises(lamina.LaminaError):
            alone.append("t", b"of nobody")
    report = until_diverged(a)
    assert [(each["topic"], each["end"]) for each in report["ranges"]] == [("t", 2)]
    with connected(a, b) as store:
        assert store.append("t", b"next").base_offset == 1
        assert values(store) == [b"shipped", b"next"]
    with lamina.open(report["kept_in"], read_only=True) as kept:
        assert values(kept)[-1] == b"never shipped"
    assert a.told()["role"] == "standby"


def until_diverged(node: Node) -> dict[str, Any]:
    until(lambda: bool(node.told().get("diverged")), "what was never shipped is set aside")
    found: dict[str, Any] = node.told()["diverged"][0]
    return found


def test_of_two_that_are_started_at_once_one_holds(bucket: S3Server, tmp_path: Path) -> None:
    archive = archive_of(tmp_path.name)
    nodes = [Node(tmp_path, name, archive) for name in ("a", "b")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Node.start, nodes))
    try:
        holder_of(*nodes)
        time.sleep(TTL_MS / 1000)
        assert sorted(each.told()["role"] for each in nodes) == ["holder", "standby"]
        assert len({each.told()["holder"] for each in nodes}) == 1
    finally:
        for each in nodes:
            each.__exit__()


def test_promoting_a_standby_loses_nothing(steady: Nodes) -> None:
    a, b = steady
    with connected(a, b) as store:
        store.create_topic("t")
        store.append("t", [b"%d" % number for number in range(50)])
        said = cli("cluster", "promote", "--url", b.http_url)
        assert "holds the cluster in epoch 2" in said
        assert len(values(store)) == 50
        holder = b.told()["holder"]
        until(lambda: a.told().get("holder") == holder, "a sees who holds the cluster")
        rows = cli("cluster", "status", "--url", f"{a.http_url},{b.http_url}", "--json")
        roles = [json.loads(row)["role"] for row in rows.splitlines()]
        assert roles == ["standby", "holder"]
        row = json.loads(cli("cluster", "status", "--archive", a.archive, "--json"))
        assert (row["epoch"], row["holder"]) == (2, holder)
        cli("cluster", "promote", "--url", a.http_url, "--force")
        assert store.append("t", b"50", acks="archived").base_offset == 50


def test_a_promotion_from_the_archive_alone(steady: Nodes) -> None:
    a, b = steady
    assert "epoch 1 has ended" in cli("cluster", "promote", "--archive", a.archive)
    assert holder_of(b) is b


def cli(*words: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "lamina.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_http_and_kafka_clients_are_sent_to_the_holder(nodes: Nodes) -> None:
    a, b = nodes
    with connected(a, b) as store:
        store.create_topic("t")
        store.append("t", b"one", acks="archived")
    host, port = b.http_url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = json.dumps({"records": [{"value": "eA=="}]})
    connection.request("POST", "/v1/topics/t/records", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("location")) == (
        307,
        f"{a.http_url}/v1/topics/t/records",
    )
    connection.close()
    servers = f"127.0.0.1:{b.kafka_port},127.0.0.1:{a.kafka_port}"
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "metadata.recovery.rebootstrap.trigger.ms": 3000,
        }
    )
    errors: list[Any] = []
    for number in range(20):
        producer.produce("t", b"k%d" % number, on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
        if number == 5:
            wait_until_shipped(a)
            a.kill()
    assert errors == [None] * 20
    with connected(b) as store:
        assert values(store) == [b"one", *(b"k%d" % number for number in range(20))]


def wait_until_shipped(node: Node) -> None:
    until(lambda: node.told().get("unshipped_records") == 0, "everything is shipped")


def test_a_bucket_that_answers_503_for_two_ttls_loses_nothing(
    bucket: S3Server, tmp_path: Path
) -> None:
    proxy = FaultProxy(bucket.address)
    archive = archive_of(tmp_path.name)
    with in_reach_of(bucket, proxy.url):
        a, b = Node(tmp_path, "a", archive), Node(tmp_path, "b", archive)
        with a, b, connected(a, b) as store:
            store.create_topic("t")
            store.append("t", b"before", acks="archived")
            proxy.plan = lambda method, path: "503"
            time.sleep(2 * TTL_MS / 1000)
            assert [each.told()["role"] for each in (a, b)] == ["holder", "standby"]
            with lamina.connect(a.url, timeout_s=3) as alone, pytest.raises(lamina.Unavailable):
                alone.append("t", b"nobody may say that it is stored")
            proxy.plan = lambda method, path: None
            assert store.append("t", b"after", acks="archived").count == 1
            found = values(store)
            assert (found[0], found[-1]) == (b"before", b"after")
    proxy.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"cluster_name": "a/b"}, "a cluster's name is"),
        ({"cluster_name": "c"}, "set archive"),
        ({"cluster_name": "c", "archive": "s3://b/p", "host": "0.0.0.0"}, "set cluster.url"),
        (
            {"cluster_name": "c", "archive": "s3://b/p", "cluster_url": "grpc://a"},
            "cluster.url has",
        ),
    ],
)
def test_settings_that_make_no_cluster_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(lamina.InvalidRequest, match=problem):
        charter_of("data", ServerSettings(**settings), "grpc://127.0.0.1:9300")


def test_a_host_is_told_with_the_ports_that_the_server_has() -> None:
    listening = "grpc+tls://0.0.0.0:9300,https://0.0.0.0:9301,kafka://0.0.0.0:9092"
    assert advertised("a.example.com", listening) == (
        "grpc+tls://a.example.com:9300,https://a.example.com:9301,kafka://a.example.com:9092"
    )
    assert advertised("fd00::1", "grpc://[::]:9300") == "grpc://[fd00::1]:9300"
    assert advertised("grpc://a:1,http://a:2", listening) == "grpc://a:1,http://a:2"


def test_each_metric_of_a_cluster_is_in_the_table_of_the_page(steady: Nodes) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    named = set(re.findall(r"`(lamina_cluster_[a-z_]+)`", page))
    with urllib.request.urlopen(f"{steady[0].http_url}/metrics", timeout=10) as answer:
        found = set(re.findall(r"^(lamina_cluster_[a-z_]+)", answer.read().decode(), re.MULTILINE))
    assert found - {"lamina_cluster_takeovers_created"} <= named
    assert named - found <= {"lamina_cluster_replica_lag_seconds"}, "a holder has no replica"


def killed_again_and_again(nodes: Nodes, kills: int) -> None:
    """Producers go on while one holder after the other is killed, paused or told to end."""
    with judged(*nodes) as history:
        for number in range(kills):
            holder = holder_of(*nodes)
            time.sleep(0.3)
            other = next(each for each in nodes if each is not holder)
            if number % 3 == 0:
                holder.kill()
            elif number % 3 == 1:
                holder.pause()
            else:
                holder.end(signal.SIGTERM)
            until(other.is_holder, "the other one takes over")
            if number % 3 == 1:
                holder.go_on()
            else:
                holder.start()
    assert sum(each.outcome == "ok" for each in history) > 10 * kills


def test_histories_of_archived_appends_hold_through_kills_pauses_and_ends(nodes: Nodes) -> None:
    killed_again_and_again(nodes, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_histories_hold_through_many_of_them(nodes: Nodes) -> None:
    killed_again_and_again(nodes, 60)
