"""Servers to test against: in this process, or as a process of their own that can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lamina.api.memberships import Identity, JoinRequest
from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina.store.store import Store

START_S = 60
SESSION_MS = 1_800_000
"""So long a member needs no heartbeat, at most."""


@contextmanager
def served(data: Path, **settings: Any) -> Iterator[Service]:
    """A server in this process, on ports of its own."""
    settings = {"flight_port": 0, "http_port": 0, "kafka_port": -1} | settings
    service = Service(str(data), ServerSettings(**settings))
    service.start()
    try:
        yield service
    finally:
        service.stop()


def joined(
    store: Store, group: str, share: bytes, *, kind: str = "consumer", client_id: str = "till"
) -> Identity:
    """Makes the one member of a group, with this share."""
    request = JoinRequest(
        kind, (("range", b""),), client_id=client_id, client_host="/10.0.0.7",
        session_timeout_ms=SESSION_MS,
    )  # fmt: skip
    answer = store.join_group(group, request, wait_ms=10_000)
    who = Identity(answer.member_id, answer.generation)
    assert store.sync_group(group, who, {who.member_id: share}, wait_ms=10_000).refusal is None
    return who


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`lamina serve` as a process; its ports stay the same when it is started again."""

    def __init__(self, data: Path, *settings: str) -> None:
        self.flight_port, self.http_port = free_port(), free_port()
        self._arguments = [sys.executable, "-m", "lamina.cli.main", "serve", "--data", str(data)]
        self._arguments += [f"--set=flight.port={self.flight_port}"]
        self._arguments += [f"--set=http.port={self.http_port}", "--set=kafka.port=-1"]
        self._arguments += [f"--set={each}" for each in settings]
        self.url = f"grpc://127.0.0.1:{self.flight_port}"
        self.http_url = f"http://127.0.0.1:{self.http_port}"
        self.log = data.parent / f"{data.name}.log"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self._arguments, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        watch = threading.Timer(START_S, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        assert line.startswith("ready "), f"{line!r} {self.log.read_text()[-2000:]}"

    def end(self, number: signal.Signals) -> int:
        """Sends a signal and waits for the end; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(START_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()


class CuttingProxy:
    """Forwards connections; the first is cut after so many bytes in one direction."""

    def __init__(self, target_port: int, *, upstream: int | None, downstream: int | None) -> None:
        self._target = target_port
        self._budgets = {"up": upstream, "down": downstream}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.counted = {"up": 0, "down": 0}
        self.cuts = 0
        self._first = True
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            self._open += [client, server]
            budgets = self._budgets if self._first else {"up": None, "down": None}
            self._first = False
            for name, source, sink in (("up", client, server), ("down", server, client)):
                arguments = (name, source, sink, budgets[name])
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(
        self, name: str, source: socket.socket, sink: socket.socket, budget: int | None
    ) -> None:
        try:
            while data := source.recv(65536):
                if budget is not None and len(data) >= budget:
                    sink.sendall(data[:budget])
                    self.cuts += 1
                    break
                if budget is not None:
                    budget -= len(data)
                sink.sendall(data)
                self.counted[name] += len(data)
        except OSError:
            pass
        for each in (source, sink):
            shut_down(each)

    def close(self) -> None:
        shut_down(self._listener)
        self._listener.close()
        for each in self._open:
            shut_down(each)
            each.close()


def shut_down(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
