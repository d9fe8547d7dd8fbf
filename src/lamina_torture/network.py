"""A proxy on loopback that holds back requests and loses answers, when it is told to.

    network = Network(port)              clients connect to `network.port`
    network.hold()                       what clients send from now on waits
    network.await_held()                 until something does wait
    network.release()                    and arrives, late
    network.deafen()                     what the server answers from now on is lost
    network.cut()                        every connection ends; the next ones are whole again

Rule: it works on bytes as they come, and knows nothing of what they say.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

PATIENCE_S = 60
CHUNK_BYTES = 1 << 16


class Network:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._holds = threading.Event()
        self._deaf = False
        self._sockets: list[socket.socket] = []
        self._pumps: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def hold(self) -> None:
        """Lets nothing through to the server from now on."""
        self._holds.clear()
        self._flows.clear()

    def await_held(self) -> bool:
        """Waits until bytes are held back; False if there are none for long."""
        return self._holds.wait(PATIENCE_S)

    def release(self) -> None:
        """Lets what was held back through, and all that follows."""
        self._flows.set()

    def deafen(self) -> None:
        """Loses what the server answers from now on, until the connection is cut."""
        self._deaf = True

    def cut(self) -> None:
        """Ends every connection that there is."""
        with self._lock:
            ended, self._sockets = self._sockets, []
            pumps, self._pumps = self._pumps, []
        _shut_down(*ended)
        for pump in pumps:
            pump.join(PATIENCE_S)
        for each in ended:
            each.close()
        self._deaf = False

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            pumps = [
                threading.Thread(target=self._up, args=(client, server), daemon=True),
                threading.Thread(target=self._down, args=(server, client), daemon=True),
            ]
            for pump in pumps:
                pump.start()
            with self._lock:
                self._sockets += [client, server]
                self._pumps += pumps

    def _up(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if not self._flows.is_set():
                    self._holds.set()
                    self._flows.wait()
                sink.sendall(data)
        _shut_down(source, sink)

    def _down(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if not self._deaf:
                    sink.sendall(data)
        _shut_down(source, sink)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
        _shut_down(self._listener)
        self._accepting.join(PATIENCE_S)
        self._listener.close()
        self.cut()


def _shut_down(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
