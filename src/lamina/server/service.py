"""A server's life: listen, recover, serve; on a signal drain, answer, checkpoint, end.

    start ─▶ HTTP answers /health and /ready ─▶ kernels are compiled, if they are not there yet
          ─▶ the store recovers ─▶ Flight, HTTP, Kafka serve
    stop  ─▶ new calls get Busy ─▶ calls at work end ─▶ the store answers what it accepted,
             syncs and checkpoints ─▶ gone

Rules.
1. Beyond loopback nobody listens without keys.
2. Stopping never loses an answer that a client is still there to hear: the store is closed, which
   answers every accepted append, before the process ends.
"""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from lamina.errors import InvalidRequest, Unavailable
from lamina.server import auth
from lamina.server.broker import Broker
from lamina.server.flight import FlightDoor
from lamina.server.http import HttpDoor
from lamina.server.kafka.listener import KafkaDoor
from lamina.server.setting_table import ServerSettings
from lamina.storage.descriptors import ConnectionGuard, share_of_door
from lamina.storage.files import LocalFiles
from lamina.storage.paths import absolute
from lamina.store import warming
from lamina.store.store import Store

_log = logging.getLogger("lamina.server")


class Service:
    """A data directory, served."""

    def __init__(self, data: str, settings: ServerSettings) -> None:
        self._data = data
        self.settings = settings
        keys = auth.Keys(auth.load(settings.keys_file)) if settings.keys_file else None
        if keys is None and not auth.is_loopback(settings.host):
            raise InvalidRequest(
                f"{settings.host} can be reached from other machines, which needs keys:"
                " make one with `lamina key create` and set keys.file"
            )
        self._tls = _tls(settings)
        self.broker = Broker(settings, keys)
        self._store: Store | None = None
        self._flight: FlightDoor | None = None
        self._http: HttpDoor | None = None
        self._guard: ConnectionGuard | None = None
        self._kafka: KafkaDoor | None = None

    @property
    def flight_url(self) -> str:
        """Where `lamina.connect` finds this server."""
        assert self._flight is not None, "the service was started"
        scheme = "grpc+tls" if self._tls else "grpc"
        return f"{scheme}://{_shown(self.settings.host)}:{self._flight.port}"

    @property
    def http_url(self) -> str:
        """Where browsers, curl and Prometheus find this server."""
        assert self._http is not None, "the service was started"
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{_shown(self.settings.host)}:{self._http.port}"

    @property
    def kafka_address(self) -> str | None:
        """What Kafka clients call `bootstrap.servers`; None where they are not served."""
        if self._kafka is None:
            return None
        return f"{_shown(self.settings.host)}:{self._kafka.port}"

    def start(self) -> None:
        """Listens, then recovers; returns when calls are answered."""
        try:
            self._http = HttpDoor(self.broker)
            self._flight = self._open_flight()
            room = share_of_door(self.settings.connections, self.settings.open_files)
            self._guard = ConnectionGuard(self._flight.port, room)
            if self.settings.kafka_port >= 0:
                self._kafka = KafkaDoor(self.broker)
            self._warm()
            archive = self.settings.archive or None
            files = LocalFiles(self.settings.open_files)
            self._store = Store(
                self._data, files=files, archive=archive, on_progress=self._recovering
            )
        except BaseException:
            self._close_doors()
            raise
        self.broker.serve(self._store)
        if self._kafka is not None:
            self._kafka.serve()
        _log.info("serving %s on %s and %s", self._data, self.flight_url, self.http_url)

    def _warm(self) -> None:
        """Has all kernels compiled before the first call comes: it would wait for a minute."""
        if warming.is_warm():
            return
        _log.info("compiling kernels, once on this machine: this takes up to a minute")
        try:
            for self.broker.warming in warming.warm():
                pass
        except OSError as error:  # no temporary directory, say: calls compile what they need
            _log.warning("kernels were not compiled ahead: %s", error)
        else:
            _log.info("compiled all kernels")

    def _open_flight(self) -> FlightDoor:
        scheme = "grpc+tls" if self._tls else "grpc"
        location = f"{scheme}://{_shown(self.settings.host)}:{self.settings.flight_port}"
        try:
            return FlightDoor(self.broker, location, tls=self._tls)
        except OSError as error:
            raise Unavailable(f"cannot listen on {location}: {error}") from error

    def _recovering(self, done: int, total: int) -> None:
        self.broker.progress = (done, total)

    def stop(self) -> None:
        """Drains and closes; every append that was accepted is answered and durable after this."""
        if self.broker.stopping.is_set():
            return
        self.broker.stopping.set()
        if self._flight is not None:
            self._flight.stop_soon()
        if self._kafka is not None:
            self._kafka.stop_soon()
        if not self.broker.work.wait_until_unused(self.settings.drain_ms / 1000):
            _log.warning("some calls were still at work when the time to drain was up")
        if self._store is not None:
            self._store.close()
        self._close_doors()
        _log.info("stopped")

    def _close_doors(self) -> None:
        if self._kafka is not None:
            self._kafka.close()
        if self._http is not None:
            self._http.close()
        if self._guard is not None:
            self._guard.stop()
        if self._flight is not None:
            self._flight.stop_soon()

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then stops."""
        ended = threading.Event()

        def end(number: int, frame: FrameType | None) -> None:
            del frame
            _log.info("%s: draining", signal.Signals(number).name)
            ended.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        while not ended.wait(1.0):  # in slices, or a signal would wait for the wait
            pass
        self.stop()


def _tls(settings: ServerSettings) -> tuple[bytes, bytes] | None:
    paths = (settings.tls_certificate, settings.tls_key)
    if not any(paths):
        return None
    if not all(paths):
        raise InvalidRequest("tls.certificate and tls.key are set together or not at all")
    certificate, key = (LocalFiles().read(absolute(path)) for path in paths)
    return certificate, key


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
