"""Servers of one cluster as processes of their own, and an S3 server that they have in common."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lamina
from lamina.client.remote_store import RemoteStore
from lamina_torture.histories import Operation, judge
from tests.server.rig import ServerProcess
from tests.support.s3_servers import BUCKET, CREDENTIALS, S3Server, free_port

TTL_MS = 2500
"""Where a test waits for its end: longer than a slow machine keeps a process waiting."""
STEADY_MS = 10_000
"""Where no ttl passes: nobody loses the cluster because the machine is slow."""
NAME = "orders"
PATIENCE_S = 40


class Node(ServerProcess):
    """One server of a cluster; its directory outlives its process."""

    def __init__(
        self, folder: Path, name: str, archive: str, *settings: str, ttl_ms: int = TTL_MS
    ) -> None:
        self.kafka_port = free_port()
        super().__init__(
            folder / name,
            *(
                f"archive={archive}",
                f"cluster.name={NAME}",
                f"cluster.ttl.ms={ttl_ms}",
                "tail.ms=100",
            ),
            *(f"kafka.port={self.kafka_port}", *settings),
        )
        self.name, self.data, self.archive = name, folder / name, archive

    def told(self) -> dict[str, Any]:
        """What /health says of the cluster; nothing if nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.http_url}/health", timeout=5) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            found = json.loads(refusal.read())
        except OSError:
            return {}
        about: dict[str, Any] = found["cluster"]
        return about

    def is_holder(self) -> bool:
        return bool(self.told().get("role") == "holder")

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


def until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> float:
    """Waits until something is so; returns for how long."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < patience_s, f"never: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


@contextmanager
def in_reach_of(server: S3Server, url: str = "") -> Iterator[None]:
    """Has processes that are started now find an S3 server, at an address of a proxy's if given."""
    there = {
        "AWS_ENDPOINT_URL": url or server.url,
        "AWS_ACCESS_KEY_ID": CREDENTIALS["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS["secret_access_key"],
        "AWS_REGION": CREDENTIALS["region"],
    }
    before = {name: os.environ.get(name) for name in there}
    os.environ.update(there)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def archive_of(prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}"


def holder_of(*nodes: Node) -> Node:
    """Waits until one of the servers holds the cluster; returns it."""
    until(lambda: any(each.is_holder() for each in nodes), "one of them holds the cluster")
    return next(each for each in nodes if each.is_holder())


def connected(*nodes: Node, timeout_s: float = 60) -> RemoteStore:
    return lamina.connect(",".join(each.url for each in nodes), timeout_s=timeout_s)


@contextmanager
def judged(*nodes: Node, producers: int = 4) -> Iterator[list[Operation]]:
    """Producers go on meanwhile; in the end what they were told is held against what is there."""
    history: list[Operation] = []
    stop = threading.Event()

    def produce(number: int, store: RemoteStore) -> None:
        for count in itertools.count():
            if stop.is_set():
                return
            value, began_ns, found, outcome = f"{number}.{count}", time.monotonic_ns(), -1, "info"
            with contextlib.suppress(lamina.Unavailable):
                ack = store.append("t", value.encode(), partition=0, acks="archived")
                found, outcome = ack.base_offset, "ok"
            history.append(
                Operation(
                    *("send", f"{number}", 0, began_ns, time.monotonic_ns(), outcome),
                    values=(value,),
                    found=((found, value),) if outcome == "ok" else (),
                )
            )

    with connected(*nodes) as store:
        store.create_topic("t", config={"segment.bytes": 16 << 10, "archive.delay.ms": 0})
        threads = [
            threading.Thread(target=produce, args=(each, store)) for each in range(producers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield history
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        final = {
            offset: value.decode()
            for batch in store.scan("t", 0, 0)
            for offset, value in zip(
                batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True
            )
        }
    assert judge(history, {0: final}) == []
