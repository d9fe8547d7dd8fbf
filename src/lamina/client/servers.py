"""The servers of a cluster as a client knows them: one is asked, and which one may change.

    "grpc://a:9300,b:9300" ──▶ a ──NotPrimary, holder b──▶ b ──connection lost──▶ a ──▶ …

With one address there is nobody to turn to: what it answers is what the caller gets, from a standby
too. With several, the client follows whoever holds the cluster, also for what a standby could read.

Rules.
1. A turn is made once for all calls that failed at the same server (`turn_from`): each says at
   which turn it was sent, and a later one stays as it is.
2. Nobody is followed to an address of another scheme: a key that is sent through TLS is not sent in
   the clear because somebody says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from lamina.errors import InvalidRequest, LaminaError, NotPrimary

SCHEMES = ("grpc://", "grpc+tls://", "grpc+unix://")
KNOWN_MAX = 16
"""How many addresses are kept; of a cluster that moves from machine to machine the last ones."""
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class Server:
    """The server that is asked now: its address, its client, and since which turn."""

    url: str
    client: Any
    turn: int


class Servers:
    """The addresses, and the one that is asked."""

    def __init__(self, urls: str, tls_root: bytes | None) -> None:
        self._urls = addresses(urls)
        self._scheme = _scheme_of(self._urls[0])
        self._tls_root = tls_root
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self.follows = len(self._urls) > 1
        """Whether there are several, so that the holder is looked for among them."""
        self.now = Server(self._urls[0], self._client(self._urls[0]), 0)

    def _client(self, url: str) -> Any:
        if url not in self._clients:
            try:
                self._clients[url] = flight.FlightClient(
                    url, tls_root_certs=self._tls_root, generic_options=_CHANNEL
                )
            except (pa.ArrowException, OSError) as error:
                raise InvalidRequest(f"{url!r} is not a server's address: {error}") from error
        return self._clients[url]

    def turn_from(self, turn: int, error: LaminaError) -> None:
        """Turns to another server, because what was sent at this turn failed with an error."""
        with self._lock:
            if not self.follows or self.now.turn != turn:
                return
            url = self._told(error)
            if url is None:
                at = self._urls.index(self.now.url)
                url = self._urls[(at + 1) % len(self._urls)]
            elif url not in self._urls:
                self._urls = [url, *self._urls][:KNOWN_MAX]
            self.now = Server(url, self._client(url), turn + 1)

    def _told(self, error: LaminaError) -> str | None:
        """Returns whom a server has named, unless it is itself or not to be trusted."""
        url = error.address(self._scheme) if isinstance(error, NotPrimary) else None
        return None if url == self.now.url else url

    def close(self) -> None:
        """Ends all connections."""
        with self._lock:
            self.follows = False
            for client in self._clients.values():
                client.close()


def addresses(urls: str) -> list[str]:
    """Returns the addresses in `grpc://a:9300,b:9300`; the first one's scheme is that of others."""
    found: list[str] = []
    for text in urls.split(","):
        each = text.strip()
        if found and "://" not in each:
            each = f"{_scheme_of(found[0])}://{each}"
        if not each.startswith(SCHEMES) or not each.partition("://")[2]:
            raise InvalidRequest(
                "a server is grpc://host:port or grpc+tls://host:port, with its Flight port (9300"
                f" by default), or grpc+unix:///path, not {each!r}"
            )
        if found and _scheme_of(each) != _scheme_of(found[0]):
            raise InvalidRequest(f"servers of one cluster have one scheme, not that of {each!r}")
        if each not in found:
            found.append(each)
    return found


def _scheme_of(url: str) -> str:
    return url.partition("://")[0]
