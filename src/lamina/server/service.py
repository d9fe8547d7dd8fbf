"""A server's life: listen, recover, serve; on a signal drain, answer, checkpoint, end.

    start ─▶ HTTP answers /health and /ready ─▶ kernels are compiled, if they are not there yet
          ─▶ the store recovers ─▶ Flight, HTTP, Kafka serve
             (in a cluster: `lamina.store.cluster_life` opens it when this server holds it)
    SIGHUP ─▶ keys, certificates and settings are read again, all or none of them
    stop  ─▶ new calls get Busy ─▶ calls at work end ─▶ the store answers what it accepted,
             syncs and checkpoints; what it holds of a cluster is handed over ─▶ gone

Rules.
1. Beyond loopback nobody listens without keys.
2. Stopping never loses an answer that a client is still there to hear: the store is closed, which
   answers every accepted append, before the process ends.
3. A reload that fails changes nothing: everything is read and checked before anything is used.
4. A second SIGTERM waits for no calls any more, and keeps rule 2.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from pyarrow import ArrowException

from lamina.errors import InvalidRequest, LaminaError, Unavailable
from lamina.server import auth, certificates, log_lines, reloading
from lamina.server.broker import Broker
from lamina.server.certificates import Certificate
from lamina.server.clustered import ClusterDoors, InCluster, charter_of, replica_of
from lamina.server.disk_watch import DiskWatch
from lamina.server.flight import FlightDoor
from lamina.server.http import HttpDoor
from lamina.server.kafka.listener import KafkaDoor
from lamina.server.listening import refused
from lamina.server.log_lines import told
from lamina.server.process_gauges import build
from lamina.server.reloading import Reloaded, refuse_reload
from lamina.server.setting_table import ServerSettings
from lamina.server.tracing import NO_TRACES, OtelTracing
from lamina.storage import local_sockets, paths
from lamina.storage.descriptors import ConnectionGuard, share_of_door
from lamina.storage.files import LocalFiles
from lamina.store import warming
from lamina.store.cluster_life import Membership
from lamina.store.seat import Seat
from lamina.store.store import Store

REOPEN_S = 5.0
"""How long the Flight door may take to get its port back from itself."""
_log = logging.getLogger("lamina.server")


class Service:
    """A data directory, served. `settle` reads the settings again, where they came from."""

    def __init__(
        self,
        data: str,
        settings: ServerSettings,
        settle: Callable[[], ServerSettings] | None = None,
    ) -> None:
        self._data = data
        self._settle = settle
        keys = auth.Keys(auth.load(settings.keys_file)) if settings.keys_file else None
        if keys is None and not auth.is_loopback(settings.host):
            raise InvalidRequest(
                f"{settings.host} can be reached from other machines, which needs keys:"
                " make one with `lamina key create` and set keys.file"
            )
        self._tls = certificates.load(settings)
        self.broker = Broker(settings, keys, DiskWatch(data))
        self.broker.tracing = OtelTracing() if settings.traces == "otel" else NO_TRACES
        self.broker.reload = self.reload
        self.on_reload: Callable[[ServerSettings], None] = lambda _: None
        """Is called with settings that were reloaded: the log is not the service's own."""
        self._store: Store | None = None
        self._membership: Membership | None = None
        self._flight: FlightDoor | None = None
        self._http: HttpDoor | None = None
        self._local: FlightDoor | None = None
        self._guards: list[ConnectionGuard] = []
        self._claimed: list[str] = []
        self._kafka: KafkaDoor | None = None
        self._reloading = threading.Lock()
        self._ended = threading.Event()
        self._hurried = threading.Event()
        self._wanted = threading.Event()

    @property
    def settings(self) -> ServerSettings:
        """The settings that are in force."""
        return self.broker.settings

    @property
    def flight_url(self) -> str:
        """Where `lamina.connect` finds this server."""
        assert self._flight is not None, "the service was started"
        return self._flight_location(self._flight.port)

    def _flight_location(self, port: int) -> str:
        scheme = "grpc+tls" if self._tls else "grpc"
        return f"{scheme}://{_shown(self.settings.host)}:{port}"

    @property
    def local_urls(self) -> tuple[str, ...]:
        """Where programs of the same user on this machine find it, by `sockets`: Flight, HTTP."""
        if not self._claimed:
            return ()
        flight, http = self._claimed
        return f"grpc+unix://{flight}", f"http+unix://{http}"

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
        return self._kafka_location(self._kafka.port)

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Listens, then recovers; returns when calls are answered."""
        self._say_what_starts()
        context = self._tls.context if self._tls is not None else None
        try:
            self._http = HttpDoor(self.broker, context, self._claim_sockets())
            self._flight = self._open_flight(self.settings.flight_port, self._tls)
            room = share_of_door(self.settings.connections, self.settings.open_files)
            if self._claimed:  # two doors share what Flight may have
                room = max(1, room // 2)
                self._local = self._open_local()
                self._guards.append(ConnectionGuard(self._claimed[0], room))
            self._guards.append(ConnectionGuard(self._flight.port, room))
            if self.settings.kafka_port >= 0:
                self._kafka = KafkaDoor(self.broker, context)
            self._warm()
            if self.settings.cluster_name:
                self._join()
            else:
                self._store = self._open()
                self.broker.serve(self._store)
        except BaseException:
            self._close_doors()
            raise
        if self._kafka is not None:
            self._kafka.serve()
        doors = [self.flight_url, self.http_url]
        if self.kafka_address is not None:
            doors.append(f"kafka://{self.kafka_address}")
        _log.info(
            *("serving %s on %s", self._data, ", ".join(doors)),
            extra=told(
                *("serving",),
                data=self._data,
                flight=self.flight_url,
                http=self.http_url,
                kafka=self.kafka_address,
            ),
        )

    def _open(self, seat: Seat | None = None) -> Store:
        store = Store(
            self._data,
            files=LocalFiles(self.settings.open_files),
            archive=self.settings.archive or None,
            seat=seat,
            on_progress=self._recovering,
        )
        self._say_what_was_recovered(store)
        return store

    def _join(self) -> None:
        """Takes part in the cluster; returns when it is known who holds it."""
        kafka = [] if self._kafka is None else [f"kafka://{self._kafka_location(self._kafka.port)}"]
        listening = ",".join([self.flight_url, self.http_url, *kafka])
        charter = charter_of(self._data, self.settings, listening)
        doors = ClusterDoors(self.broker, self._turn_away)
        doors.is_hurried = self._hurried.is_set
        place = self.broker.place
        self._membership = membership = Membership(
            *(charter, doors, LocalFiles()),
            opening=self._open,
            following=lambda objects: replica_of(objects, place.standing.refusal),
        )
        place.standing = InCluster(membership)
        membership.start()

    def _kafka_location(self, port: int) -> str:
        return f"{_shown(self.settings.host)}:{port}"

    def _turn_away(self) -> None:
        if self._kafka is not None:
            self._kafka.turn_away()

    def _say_what_starts(self) -> None:
        about = build()
        settings = log_lines.settings_of(self.settings)
        chosen = ", ".join(f"{key}={value}" for key, value in settings.items()) or "all defaults"
        _log.info(
            "lamina %s, Python %s, %s; settings: %s",
            *(about["version"], about["python"], about["system"], chosen),
            extra=told("starting", **about, settings=settings),
        )

    def _say_what_was_recovered(self, store: Store) -> None:
        report = store.recovery_report
        found: dict[str, int] = {}
        for each in report.events:
            found[each.kind] = found.get(each.kind, 0) + 1
        text = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
        _log.info(
            "recovered in %d ms: %s",
            *(report.milliseconds, text or "nothing was to be done"),
            extra=told("recovered", milliseconds=report.milliseconds, found=found),
        )

    def _warm(self) -> None:
        """Has all kernels compiled before the first call comes: it would wait for a minute."""
        if warming.is_warm():
            return
        _log.info("compiling kernels, once on this machine: this takes up to a minute")
        try:
            for self.broker.warming in warming.warm():
                pass
        except (OSError, LaminaError) as error:  # no room, say: calls compile what they need
            _log.warning("kernels were not compiled ahead: %s", error)
        else:
            _log.info("compiled all kernels")

    def _claim_sockets(self) -> str | None:
        """Makes the paths of `sockets` free to listen at; returns the one of HTTP."""
        if self.settings.sockets:
            names = (paths.FLIGHT_SOCKET, paths.HTTP_SOCKET)
            # Both first: gRPC removes a socket that it finds, whoever listens there.
            self._claimed = [local_sockets.claim(self.settings.sockets, name) for name in names]
        return self._claimed[1] if self._claimed else None

    def _open_flight(self, port: int, tls: Certificate | None) -> FlightDoor:
        location = self._flight_location(port)
        try:
            return FlightDoor(self.broker, location, tls=tls.pair if tls is not None else None)
        except (OSError, ArrowException) as error:
            raise refused("flight.port", self.settings.host, port, error) from error

    def _open_local(self) -> FlightDoor:
        """Opens the Flight door at its socket; without TLS, as nothing leaves the machine."""
        try:
            return FlightDoor(self.broker, self.local_urls[0])
        except (OSError, ArrowException) as error:
            raise Unavailable(f"cannot listen on {self._claimed[0]}: {error}") from error

    def _recovering(self, done: int, total: int) -> None:
        self.broker.progress = (done, total)

    # ------------------------------------------------------------------ reload

    def reload(self) -> Reloaded:
        """Reads keys, certificates and settings again; raises, and changes nothing, if any is bad.

        What can only be changed by a start is named in the report.
        """
        with self._reloading:
            try:
                report = self._reload()
            except LaminaError as error:
                self.broker.metrics.reloads.labels("refused").inc()
                text = "the reload was refused, everything stays as it was: %s"
                _log.error(text, error, extra=told("reload", outcome="refused", problem=str(error)))
                raise
            self.broker.metrics.reloads.labels("ok").inc()
            fields = {"outcome": "ok", "changed": report.changed}
            fields |= {"needs_restart": report.needs_restart, "revoked": report.keys_revoked}
            _log.info("reloaded: %s", report.sentence(), extra=told("reload", **fields))
            return report

    def _reload(self) -> Reloaded:
        before = self.settings
        wanted = self._settle() if self._settle is not None else before
        settings, sentences = reloading.in_force(before, wanted)
        old_keys = self.broker.keys
        keys = None
        if old_keys is not None:
            keys = auth.Keys(auth.load(settings.keys_file), old_keys)
        tls = certificates.load(settings)
        certificate = "none" if tls is None else "unchanged"
        if tls is not None and not tls.is_same_as(self._tls):
            self._try_certificate(tls)
            certificate = "renewed"
        self._put_in_force(settings, keys, tls if certificate == "renewed" else None)
        return Reloaded(
            reloading.changes(before, settings),
            sentences,
            certificate=certificate,
            **reloading.key_changes(old_keys, keys),
        )

    def _try_certificate(self, tls: Certificate) -> None:
        """Has gRPC look at a certificate, on a port of its own: it says no only when it listens."""
        try:
            trial = FlightDoor(self.broker, "grpc+tls://127.0.0.1:0", tls=tls.pair)
        except Exception as error:  # pyarrow raises what it likes
            raise InvalidRequest(f"Flight cannot use the certificate: {error}") from error
        trial.stop_soon()

    def _put_in_force(
        self, settings: ServerSettings, keys: auth.Keys | None, tls: Certificate | None
    ) -> None:
        self.broker.renew(settings, keys)
        context = tls.context if tls is not None else None
        if tls is not None:
            self._tls = tls
            self._reopen_flight(tls)
        if self._http is not None:
            self._http.renew(settings, context)
        if self._kafka is not None:
            self._kafka.renew(context)
        self.on_reload(settings)

    def _reopen_flight(self, tls: Certificate) -> None:
        """Opens the Flight door again with another certificate, on the port that it gives up.

        gRPC fixes a certificate when it begins to listen. Streams that are open go on at the old
        door until they end; clients come to the new one with their next connection.
        """
        if self._flight is None:
            return
        port, old = self._flight.port, self._flight
        old.stop_soon()
        deadline = time.monotonic() + REOPEN_S
        while True:
            try:
                self._flight = self._open_flight(port, tls)
                return
            except Exception:  # the port is not free yet
                if time.monotonic() > deadline:
                    _log.exception("the Flight door could not be opened again; restart the server")
                    return
            threading.Event().wait(0.01)

    # ------------------------------------------------------------------ stop

    def stop(self) -> None:
        """Drains and closes; every append that was accepted is answered and durable after this."""
        if self.broker.stopping.is_set():
            return
        self.broker.stopping.set()
        for door in (self._flight, self._local, self._kafka):
            if door is not None:
                door.stop_soon()
        drain_s = self.settings.drain_ms / 1000
        if not self.broker.work.wait_until_unused(drain_s, self._hurried.is_set):
            _log.warning("some calls were still at work when the time to drain was up")
        if self._store is not None:
            self._store.close()
        if self._membership is not None:
            self._membership.stop()
        self._close_doors()
        self.broker.tracing.close()
        _log.info("stopped", extra=told("stopped"))

    def _close_doors(self) -> None:
        if self._kafka is not None:
            self._kafka.close()
        if self._http is not None:
            self._http.close()
        for guard in self._guards:
            guard.stop()
        for door in (self._flight, self._local):
            if door is not None:
                door.stop_soon()
        for path in self._claimed:
            local_sockets.give_up(path)
        # The collector cannot look into a Flight server: a way from it back here would keep both,
        # and with them everything that the server ever held.
        self.broker.reload = refuse_reload

    # ------------------------------------------------------------------ signals

    def catch_reloads(self, is_hung_up: Callable[[], bool] = lambda: False) -> None:
        """Makes SIGHUP a reload, or the end where it says that a terminal was closed.

        One that comes before the server serves waits for that.
        """

        def note(number: int, frame: FrameType | None) -> None:
            del number, frame
            (self._ended if is_hung_up() else self._wanted).set()

        signal.signal(signal.SIGHUP, note)

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then stops; a second one waits for no calls."""

        def end(number: int, frame: FrameType | None) -> None:
            del frame
            if self._ended.is_set():
                self._hurried.set()
                return
            name = signal.Signals(number).name
            _log.info("%s: draining", name, extra=told("draining", signal=name))
            self._ended.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        while not self._ended.wait(1.0):  # in slices, or a signal would wait for the wait
            self._look_after()
        self.stop()

    def _look_after(self) -> None:
        """What is to be done each second: reload if asked, look at the disk, count refusals."""
        if self._wanted.is_set():
            self._wanted.clear()
            with contextlib.suppress(LaminaError):  # it was logged
                self.reload()
        self.broker.condition.disk.look(self.settings)
        self.broker.refusals.sweep()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
