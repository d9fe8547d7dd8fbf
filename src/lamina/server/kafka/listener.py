"""The Kafka door: a port, one event loop in one thread, and all connections in it.

    open ─▶ listens ─▶ serve: kernels are compiled, connections are answered
    stop_soon ─▶ no new connections, long polls end ─▶ (the store closes) ─▶ close

uvloop runs the loop where it is installed: a small request takes it half the time.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from prometheus_client.core import GaugeMetricFamily

from lamina.errors import InvalidRequest
from lamina.formats.kafka import batch as batches
from lamina.server.broker import Broker
from lamina.server.connected_client import ConnectedClient
from lamina.server.kafka.client_connection import ClientConnection
from lamina.server.kafka.sessions import Doorway, Session
from lamina.server.kafka.tls_entrance import TlsEntrance
from lamina.server.listening import refused
from lamina.storage.descriptors import share_of_door

THREADS = 8
CLOSING_S = 1.0
_log = logging.getLogger("lamina.server")


class KafkaDoor:
    """The server for Kafka clients; it listens when made, and answers from `serve` on."""

    def __init__(self, broker: Broker, context: ssl.SSLContext | None = None) -> None:
        settings = broker.settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (settings.host, settings.kafka_port), family=family, backlog=1024
            )
        except OSError as error:
            raise refused("kafka.port", settings.host, settings.kafka_port, error) from error
        self.port = int(self._socket.getsockname()[1])
        self._broker = broker
        self._advertised = advertised_of(settings.kafka_advertised, self.port)
        self._tls = context
        self._entrance: TlsEntrance | None = None
        self._connections: set[ClientConnection] = set()
        self._loop = _new_loop()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._thread: threading.Thread | None = None
        broker.metrics.watch(self._gauges)
        broker.kafka_clients = self.clients

    def serve(self) -> None:
        """Begins to answer; the store has recovered."""
        self._thread = threading.Thread(target=self._run, name="lamina-kafka", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lamina-kafka")
        settings = self._broker.settings
        door = Doorway(
            *(self._broker, pool, self._advertised, self.port),
            stopping=self._stopping,
            connections_max=share_of_door(settings.connections, settings.open_files),
        )
        warming = self._loop.run_in_executor(pool, _compile)
        warming.add_done_callback(lambda _: door.warm.set())
        entrance = await self._open_entrance(door)
        await self._stopping.wait()
        for bell in list(door.bells):
            bell.wake()
        entrance.close()
        await self._ended.wait()
        if isinstance(entrance, TlsEntrance):
            await entrance.end()
        await self._end_connections()
        pool.shutdown(wait=False, cancel_futures=True)
        for _ in range(2):  # a group of appends that the loop has promised to commit
            await asyncio.sleep(0)

    async def _open_entrance(self, door: Doorway) -> asyncio.AbstractServer | TlsEntrance:
        def new_client() -> ClientConnection:
            return ClientConnection(door, self._connections)

        if self._tls is None:
            return await self._loop.create_server(new_client, sock=self._socket)
        secured = TlsEntrance(self._tls, new_client, self._connections, door)
        secured.open(self._socket)
        self._entrance = secured
        return secured

    def renew(self, context: ssl.SSLContext | None) -> None:
        """Takes on what was reloaded; clients whose keys are gone are disconnected."""
        self._tls = context
        if self._entrance is not None and context is not None:
            self._entrance.context = context
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._end_revoked)

    def _end_revoked(self) -> None:
        for connection in list(self._connections):
            connection.end_if_revoked()

    def turn_away(self) -> None:
        """Disconnects all clients, who look where to go on; new ones may come."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._disconnect)

    def _disconnect(self) -> None:
        for connection in list(self._connections):
            connection.close()

    async def _end_connections(self) -> None:
        """Sends what is owed, and has every socket closed before the loop is.

        A connection ends over several turns of the loop, by TLS only with its client's help:
        a client that does not answer within the patience is dropped.
        """
        for end in (ClientConnection.close, ClientConnection.drop):
            for connection in list(self._connections):
                end(connection)
            patient_until = self._loop.time() + CLOSING_S
            while self._connections and self._loop.time() < patient_until:
                await asyncio.sleep(0.005)

    def stop_soon(self) -> None:
        """Takes no new connections, and ends long polls with what there is."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    def close(self) -> None:
        """Ends all connections; what was accepted has been answered by now."""
        if self._thread is None:
            self._socket.close()
            return
        self.stop_soon()
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def clients(self) -> list[ConnectedClient]:
        """Describes who is connected, the first to come first; any thread may ask.

        The loop goes on meanwhile: the set is copied in one step, and of a session each field is
        read once.
        """
        sessions = [each.session for each in self._connections.copy()]
        found = [_described(each) for each in sessions if each is not None]
        return sorted(found, key=lambda each: each.since_ms)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("lamina_kafka_connections", "Connected Kafka clients")
        gauge.add_metric([], len(self._connections))
        yield gauge


def _described(session: Session) -> ConnectedClient:
    caller = session.caller
    return ConnectedClient(
        client_id=session.client_id,
        software=session.software,
        version=session.software_version,
        host=session.host,
        key=caller.name if caller is not None else "",
        since_ms=session.since_ms,
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made


def advertised_of(text: str, port: int) -> tuple[str, int] | None:
    """Reads `kafka.advertised`: host or host:port; empty means where a client has come in."""
    if not text:
        return None
    host, colon, number = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text.strip("[]"), port
    if not number.isdecimal() or not host or not 0 < int(number) < 1 << 16:
        raise InvalidRequest(f"kafka.advertised is host or host:port, not {text!r}")
    return host.strip("[]"), int(number)


def _compile() -> None:
    """Has the kernels compiled, or loaded: on a new machine this takes half a minute."""
    column = pa.RecordBatch.from_pylist(
        [{"offset": 0, "timestamp": 0, "value": b"", "headers": [{"key": "", "value": b""}]}],
        schema=batches.INPUT_SCHEMA,
    )
    batches.decode(bytes(batches.encode(column)), 1 << 10)
