"""A process that serves a store and uses it from threads of its own; it can be killed.

Started as `python -m lamina_torture.hosting DIRECTORY FORMAT FLIGHT HTTP KAFKA PAUSE LIFE`, it says
`ready`, then every operation of its clients as a line of JSON, and ends when its input does.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import subprocess
import sys
import threading
from typing import Any

from lamina.server.service import Service
from lamina.server.setting_table import ServerSettings
from lamina_torture.budgets import open_below
from lamina_torture.driving import PARTITIONS, TOPIC, Client, StoreDoor
from lamina_torture.histories import Operation
from lamina_torture.rows import demand

CLIENTS = 2
_READY = "ready"
_START_S = 120
_HOLDS = 5
"""How a process ends that keeps files of its store open behind its end."""


def first_offset(format_name: str) -> int:
    """Returns the offset of a topic's first record."""
    return int(format_name == "wal")


class Host:
    """The process, as the one that started it sees it; starting it again is its next life."""

    def __init__(
        self, directory: str, format_name: str, ports: tuple[int, int, int], pause_s: float = 0.0
    ) -> None:
        self._words = [directory, format_name, *map(str, ports), str(pause_s)]
        self._process: subprocess.Popen[str] | None = None
        self._hearing: threading.Thread | None = None
        self._life = 0
        self.history: list[Operation] = []

    def start(self) -> None:
        """Starts the process and waits until it serves."""
        words = [sys.executable, "-m", "lamina_torture.hosting", *self._words, str(self._life)]
        self._life += 1
        self._process = subprocess.Popen(  # noqa: S603
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        watch = threading.Timer(_START_S, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        demand(line.strip() == _READY, "I12", f"the server did not start: {line!r}")
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        """Keeps what was said last of each operation; a line that was cut off says nothing."""
        assert self._process is not None
        assert self._process.stdout is not None
        told: dict[tuple[str, int], Operation] = {}
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break
            each = Operation.from_plain(json.loads(line))
            told[each.client, each.began_ns] = each
        self.history += told.values()

    def kill(self) -> None:
        """Ends the process by SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._over()

    def stop(self) -> None:
        """Lets the process end by itself: it drains, answers and closes."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._over()
        code = self._process.returncode
        demand(code != _HOLDS, "I12", "let go: files of the store are open behind its end")
        demand(code == 0, "I12", f"ended with {code}")

    def _over(self) -> None:
        assert self._process is not None
        assert self._hearing is not None
        self._process.wait(_START_S)
        self._hearing.join(_START_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _say(lock: threading.Lock, operation: Operation) -> None:
    line = json.dumps(dataclasses.asdict(operation)) + "\n"
    with lock:
        os.write(1, line.encode())


def main(words: list[str]) -> None:
    """Serves, and uses what it serves, until its input ends."""
    directory, format_name, *ports, pause_s, life = words
    names = ("flight_port", "http_port", "kafka_port")
    settings: dict[str, Any] = dict(zip(names, map(int, ports), strict=True))
    service = Service(directory, ServerSettings(**settings))
    service.start()
    store = service.broker.store
    if TOPIC not in store.topics():
        config = {"segment.bytes": 64 << 10}
        store.create_topic(TOPIC, format=format_name, partitions=PARTITIONS, config=config)
    os.write(1, f"{_READY}\n".encode())
    ended, lock = threading.Event(), threading.Lock()
    clients = [
        Client(
            f"embedded{number}.{life}",
            StoreDoor(store),
            first=first_offset(format_name),
            seed=life,
            note=lambda operation: _say(lock, operation),
            pause_s=float(pause_s),
        )
        for number in range(CLIENTS)
    ]
    threads = [threading.Thread(target=client.run, args=(ended,)) for client in clients]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    service.stop()
    gc.collect()
    held = open_below(f"{os.path.abspath(directory)}/")
    if held:
        os.write(2, f"still open: {held[:5]}\n".encode())
    os._exit(_HOLDS if held else 0)  # streams of clients would be waited for


if __name__ == "__main__":
    main(sys.argv[1:])
