"""Servers as processes that are stopped at each request to the bucket, or whose requests come late.

Each server reaches the bucket by a proxy of its own, which sees every request before the bucket
does: it may stop the server just then, and pass the request on when another one holds the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lamina_torture.histories import Operation
from tests.cluster.servers import (
    STEADY_MS,
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

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
CALLS = 50
STARTS = 200
HOLD_S = 60


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = moto_server(tmp_path_factory.mktemp("s3"))
    yield server
    server.kill()


class Watched:
    """A server, and the proxy by which it reaches the bucket."""

    def __init__(self, folder: Path, name: str, bucket: S3Server) -> None:
        self.proxy = FaultProxy(bucket.address)
        self._bucket = bucket
        self.node = Node(folder, name, archive_of(folder.name))

    def start(self) -> None:
        with in_reach_of(self._bucket, self.proxy.url):
            self.node.start()

    def at_call(self, number: int, do: Callable[[threading.Event], None]) -> threading.Event:
        """Does something when a request to come has arrived, before it is passed on.

        What it does sets the event that is returned.
        """
        happened, lock = threading.Event(), threading.Lock()
        left = number

        def plan(method: str, path: str) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_due = left == 0
            if is_due:
                do(happened)

        self.proxy.plan = plan
        return happened


def until_stored(history: list[Operation]) -> None:
    """Waits until an append is answered: the holder is in use."""
    before = len(history)
    until(
        lambda: any(each.outcome == "ok" for each in history[before:]),
        "an append is answered",
        HOLD_S,
    )


@contextmanager
def watched(folder: Path, bucket: S3Server) -> Iterator[tuple[Watched, Watched]]:
    with ExitStack() as ending:
        servers = []
        for name in ("a", "b"):
            servers.append(Watched(folder, name, bucket))
            ending.callback(servers[-1].proxy.close)
            ending.callback(servers[-1].node.__exit__)
            servers[-1].start()
        yield servers[0], servers[1]


def test_a_server_is_stopped_at_each_of_its_requests(bucket: S3Server, tmp_path: Path) -> None:
    with watched(tmp_path, bucket) as (a, b), judged(a.node, b.node) as history:
        for number in range(1, CALLS + 1):
            holder = holder_of(a.node, b.node)
            until_stored(history)
            stopped = a if holder is a.node else b
            other = b if stopped is a else a

            def stop(
                happened: threading.Event, stopped: Watched = stopped, other: Watched = other
            ) -> None:
                stopped.node.pause()
                happened.set()
                until(other.node.is_holder, "the other one takes over", HOLD_S)

            happened = stopped.at_call(number, stop)
            assert happened.wait(HOLD_S)
            until(other.node.is_holder, "the other one takes over", HOLD_S)
            stopped.node.go_on()
            until(
                lambda stopped=stopped: stopped.node.told().get("role") == "standby",
                "it stands by when it goes on",
            )


def test_a_window_that_comes_late_is_nobodys(bucket: S3Server, tmp_path: Path) -> None:
    with watched(tmp_path, bucket) as (a, b), judged(a.node, b.node) as history:
        for _ in range(10):
            holder = holder_of(a.node, b.node)
            slow, other = (a, b) if holder is a.node else (b, a)
            epoch = slow.node.told()["epoch"]
            until_stored(history)
            is_over = threading.Event()

            def plan(
                method: str, path: str, slow: Watched = slow, is_over: threading.Event = is_over
            ) -> None:
                if method != "GET" and not is_over.is_set():
                    is_over.wait(HOLD_S)

            slow.proxy.plan = plan
            until(
                lambda other=other, epoch=epoch: (
                    other.node.is_holder() and other.node.told()["epoch"] > epoch
                ),
                "the other one takes over",
                HOLD_S,
            )
            time.sleep(0.2)
            is_over.set()
            until(
                lambda slow=slow: slow.node.told().get("role") == "standby", "it stands by", HOLD_S
            )


def test_of_two_that_are_started_at_once_one_holds_each_time(
    bucket: S3Server, tmp_path: Path
) -> None:
    with in_reach_of(bucket):
        nodes = [
            Node(tmp_path, name, archive_of(tmp_path.name), ttl_ms=STEADY_MS) for name in ("a", "b")
        ]
        for number in range(STARTS):
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(Node.start, nodes))
            try:
                holder = holder_of(*nodes)
                roles = sorted(each.told()["role"] for each in nodes)
                assert roles == ["holder", "standby"], f"start {number}"
                with connected(*nodes) as store:
                    if number == 0:
                        store.create_topic("t")
                    appended = store.append("t", b"%d" % number, partition=0, acks="archived")
                    assert appended.base_offset == number
                assert holder.is_holder()
            finally:
                for each in nodes:
                    if number % 2:
                        each.end(15)
                    else:
                        each.kill()
