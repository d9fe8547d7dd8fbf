"""The way in by TLS: a connection is counted, and can be closed, before its handshake is done.

`create_server(ssl=…)` shows a connection to its protocol only after the handshake: clients that
say nothing would be counted by no limit, and a server that closes could not hang up on them. So
connections are accepted here, one by one, and each shakes hands in a task of its own.

Rule: who comes without TLS, or does not trust the certificate, is logged once, as any client that
cannot be served; a connection that just goes away is not.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sized

from lamina.server.kafka.client_connection import ClientConnection
from lamina.server.kafka.sessions import Doorway

HANDSHAKE_S = 10.0
SHUTDOWN_S = 1.0
PAUSE_S = 0.1
"""After an accept that failed, for want of descriptors say."""


class TlsEntrance:
    """Accepts connections until it is closed; `new_client` takes each when its hands are shaken."""

    def __init__(
        self,
        context: ssl.SSLContext,
        new_client: Callable[[], ClientConnection],
        inside: Sized,
        door: Doorway,
    ) -> None:
        self.context = context
        """Of the handshakes from now on."""
        self._new_client = new_client
        self._inside = inside
        self._door = door
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def open(self, listening: socket.socket) -> None:
        """Begins to accept."""
        listening.setblocking(False)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))

    def close(self) -> None:
        """Accepts no more; those who are shaking hands go on."""
        if self._accepting is not None:
            self._accepting.cancel()

    async def end(self) -> None:
        """Hangs up on those who are still shaking hands."""
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    accepted, peer = await loop.sock_accept(listening)
                except OSError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if len(self._inside) + len(self._handshakes) >= self._door.connections_max:
                    self._door.turn_away(str(peer[0]))
                    accepted.close()
                    continue
                task = loop.create_task(self._shake_hands(accepted, str(peer[0])))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._new_client,
                accepted,
                ssl=self.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (ssl.SSLError, ConnectionAbortedError) as error:  # the latter: not in time
            why = getattr(error, "reason", None) or str(error)
            said = f"no TLS handshake ({why}); this port speaks TLS"
            self._door.note_disconnected(host, f"at {host}", said)
        except (OSError, TimeoutError):
            pass
