"""A live broker to look at, with an archive, and with producers that do not stop."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import lamina
from lamina.server.service import Service
from lamina.store.store import Store
from tests.server.rig import served

MARKUP = (
    '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script><b>x</b>'
)
SMALL = {"segment.bytes": 40_000}
ARCHIVED = SMALL | {
    "remote.storage.enable": "true",
    "local.retention.bytes": 90_000,
    "archive.delay.ms": 3_600_000,
}


class Broker:
    """A server, the store inside it, and producers that can be stopped."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = service.http_url
        assert service._store is not None
        self.store: Store = service._store
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.closing: list[Callable[[], None]] = []

    def keep(self, work: Callable[[], None], every_s: float) -> None:
        """Does something again and again, until the broker ends."""

        def run() -> None:
            while not self._stopping.wait(every_s):
                work()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for close in self.closing:
            close()


@contextmanager
def broker(data: Path, **settings: Any) -> Iterator[Broker]:
    """A served store with an archive in a directory beside it."""
    with served(data / "data", archive=str(data / "archive"), **settings) as service:
        live = Broker(service)
        try:
            yield live
        finally:
            live.stop()


def order(number: int) -> dict[str, Any]:
    value = {"order": number, "amount": number % 97 + 0.5, "items": ["lamp", "rug"][: number % 3]}
    return {
        "key": b"customer-%d" % (number % 50),
        "value": json.dumps(value).encode(),
        "headers": [{"key": "source", "value": b"web"}],
    }


def typed_topic(store: Store) -> None:
    """Makes a topic of two schema versions, with a record that is not what they say."""
    first = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, %s]}'
    item = '{"name": "item", "type": "string"}'
    items = [f"item {number}" for number in range(70)]
    store.create_topic("typed", schema=first % item)
    store.append("typed", pa.table({"id": list(range(70)), "item": items}))
    more = item + ', {"name": "discount", "type": ["null", "double"], "default": null}'
    store.set_schema("typed", first % more)
    store.append("typed", pa.table({"id": [70], "item": [MARKUP], "discount": [0.5]}))
    store.append("typed", [b"no Avro"])


def under_load(live: Broker) -> None:
    """Has a client append to `orders` through the front door, all the time."""
    client = lamina.connect(live.service.flight_url)
    live.closing.append(client.close)
    numbers = iter(range(1 << 30))

    def append() -> None:
        client.append("orders", [order(next(numbers)) for _ in range(20)], partition=0)

    live.keep(append, 0.04)


def until(holds: Callable[[], object], timeout_s: float = 30) -> None:
    """Waits for something that the broker does in its own time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
