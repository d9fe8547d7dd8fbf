"""Fixtures for the tests of programs that use Lamina; pytest finds them where Lamina is installed.

    def test_an_order_is_stored(lamina_store):       # an open store, alone in a fresh directory
        lamina_store.create_topic("orders")

    def test_a_client(lamina_server):                # the same, served by this process
        with lamina_server.connect() as store:
            store.create_topic("orders")

Both are made for one test, closed behind it, and leave nothing outside of its `tmp_path`.

Rules.
1. Nothing of Lamina is loaded before a test asks for a fixture: pytest loads this module in every
   run, also of projects that only have Lamina installed.
2. Servers listen on free ports of this machine alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lamina.client.remote_store import RemoteStore
    from lamina.server.service import Service
    from lamina.store.store import Store


class LaminaServer:
    """A served store: `url` for `lamina.connect`, `http_url`, and `kafka` for Kafka's clients."""

    def __init__(self, service: Service, data: Path) -> None:
        self.data = data
        self.url = service.flight_url
        self.http_url = service.http_url
        self.kafka = service.kafka_address

    def connect(self, **more: Any) -> RemoteStore:
        """Connects a new client; the arguments are those of `lamina.connect`."""
        import lamina

        return lamina.connect(self.url, **more)

    def __repr__(self) -> str:
        return f"<LaminaServer {self.url} {self.http_url} kafka={self.kafka} {str(self.data)!r}>"


@pytest.fixture
def lamina_store(tmp_path: Path) -> Iterator[Store]:
    """An open store in a fresh directory."""
    import lamina

    with lamina.open(tmp_path / "lamina-store") as store:
        yield store


@pytest.fixture
def lamina_server(tmp_path: Path) -> Iterator[LaminaServer]:
    """A served store in a fresh directory, on free ports; Flight, HTTP and Kafka's protocol."""
    from lamina.server.service import Service
    from lamina.server.setting_table import ServerSettings

    data = tmp_path / "lamina-server"
    service = Service(str(data), ServerSettings(flight_port=0, http_port=0, kafka_port=0))
    service.start()
    try:
        yield LaminaServer(service, data)
    finally:
        service.stop()
