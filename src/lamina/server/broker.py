"""The store as callers from elsewhere see it: scopes, limits and counting around each call.

Flight and HTTP both come through here and add nothing but their own encoding.

    edge ──▶ Broker: may the caller? is there room? ──▶ Store ──▶ counted, noted, answered

Rules.
1. Every way in checks the scope and the topic prefix before anything of the store is touched.
2. A refusal is logged with the caller's key id and never with a secret.
3. Nothing waits for a slow caller: what a caller holds is one batch and its own thread or task.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lamina.engine.appending import Appended
from lamina.engine.store import Store
from lamina.errors import Busy, InvalidRequest, LaminaError, NotAllowed, StorageFull
from lamina.records import OUTPUT_SCHEMAS, Records
from lamina.server import limits
from lamina.server.auth import ANYBODY, Caller, Keys
from lamina.server.metrics import Metrics, store_gauges
from lamina.server.options import ServerSettings
from lamina.wire import messages, values
from lamina.wire.messages import Order, Question
from lamina.wire.operations import OPERATIONS, Operation, Scope

_log = logging.getLogger("lamina.server")

SCAN_BYTES = 64 << 20
"""A scan is sent in parts of about this size: so long a slow reader may hold a removed segment."""
_STOP_PAUSE_S = 1.0


class Broker:
    """A store that is served, from before it has recovered until it is closed."""

    def __init__(self, settings: ServerSettings, keys: Keys | None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.streams = limits.Allowance("open streams", settings.connections)
        self.work = limits.Allowance("calls at work", 1 << 62)
        self.inflight = limits.Allowance("bytes at work", settings.inflight_bytes)
        self.waiting = limits.Allowance("long polls", settings.waiting)
        self.rate = limits.Rate(settings.rate_requests)
        self.progress = (0, 0)
        self.stopping = threading.Event()
        self._keys = keys
        self._store: Store | None = None
        self._full: str | None = None

    # ------------------------------------------------------------------ life

    def serve(self, store: Store) -> None:
        """Is given the recovered store: from now on calls are answered."""
        self._store = store
        self.metrics.watch(lambda: store_gauges(store))

    @property
    def store(self) -> Store:
        """The store, once it has recovered; raises Busy before, and when the server stops."""
        if self.stopping.is_set():
            raise Busy("the server is stopping", _STOP_PAUSE_S)
        if self._store is None:
            done, total = self.progress
            raise Busy(f"the server is recovering: {done} of {total} partitions", _STOP_PAUSE_S)
        return self._store

    def health(self) -> dict[str, Any]:
        """Says what is wrong, if anything is: partitions that failed, a disk that is full."""
        failed = self._store.failures() if self._store is not None else {}
        problems = [f"{name}: {why}" for name, why in sorted(failed.items())]
        if self._full is not None:
            problems.append(self._full)
        return {"status": "degraded" if problems else "ok", "problems": problems}

    def readiness(self) -> dict[str, Any]:
        """Says whether calls are answered, and how far recovery is."""
        done, total = self.progress
        ready = self._store is not None and not self.stopping.is_set()
        report = self._store.recovery_report if self._store is not None else None
        return {
            "ready": ready,
            "stopping": self.stopping.is_set(),
            "recovered_partitions": total if report else done,
            "partitions": total,
            "recovery_ms": report.milliseconds if report else None,
        }

    # ------------------------------------------------------------------ callers

    def caller(self, key: str | None) -> Caller:
        """Tells who presents a key; raises NotAllowed."""
        return ANYBODY if self._keys is None else self._keys.caller(key)

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers have to present a key."""
        return self._keys is not None

    def guarded(
        self, caller: Caller, name: str, *, scope: Scope, topic: str | None
    ) -> contextlib.AbstractContextManager[Store]:
        """Lets a caller use the store for one call that is in no table, with the same checks."""
        return self._counted(caller, name, scope=scope, topic=topic)

    @contextlib.contextmanager
    def _counted(
        self, caller: Caller, name: str, *, scope: Scope, topic: str | None
    ) -> Iterator[Store]:
        """Surrounds one call: allowed, within the rate, counted by outcome, refusals logged."""
        try:
            caller.require(scope, topic, name)
            self.rate.spend(caller.name)
            with self.work.taking():
                yield self.store
        except LaminaError as error:
            self.metrics.count(name, type(error).__name__)
            if isinstance(error, NotAllowed | Busy):
                _log.warning("refused %s by %s: %s", name, caller.name, error)
            raise
        self.metrics.count(name, "ok")

    def call(self, caller: Caller, name: str, given: dict[str, Any]) -> Any:
        """Calls a method of the store by its name in the table of operations."""
        operation = OPERATIONS.get(name)
        if operation is None:
            known = ", ".join(sorted(OPERATIONS))
            raise InvalidRequest(f"there is no operation {name[:80]!r}; there are: {known}")
        arguments = bind(operation, given)
        topic = arguments.get(operation.topic) if operation.topic else None
        with self._counted(caller, name, scope=operation.scope, topic=topic) as store:
            result = getattr(store, name)(**arguments)
            return caller.visible(result) if name == "topics" else result

    # ------------------------------------------------------------------ records

    def append(self, caller: Caller, order: Order, records: Records) -> Appended:
        """Appends, in the caller's own thread; threads that append at once share one commit."""
        started = time.perf_counter()
        with self._appending(caller, order, records) as store:
            appended = store.append(
                order.topic,
                records,
                partition=order.partition,
                acks=order.acks,
                timeout_s=order.timeout_s,
                producer=order.producer,
            )
        self._note_appended(appended, started)
        return appended

    async def append_async(self, caller: Caller, order: Order, records: Records) -> Appended:
        """Appends from an event loop; tasks share one commit without a thread each."""
        started = time.perf_counter()
        with self._appending(caller, order, records) as store:
            appended = await store.append_async(
                order.topic, records, partition=order.partition, acks=order.acks
            )
        self._note_appended(appended, started)
        return appended

    @contextlib.contextmanager
    def _appending(self, caller: Caller, order: Order, records: Records) -> Iterator[Store]:
        with self._counted(caller, "append", scope="write", topic=order.topic) as store:
            size_bytes = _size_of(records)
            limits.check_size(size_bytes, self.settings.request_bytes)
            with self.inflight.taking(size_bytes):
                try:
                    yield store
                except StorageFull as error:
                    self._full = str(error)
                    raise

    def _note_appended(self, appended: Appended, started: float) -> None:
        self._full = None
        self.metrics.appended.inc(appended.count)
        self.metrics.seconds.observe(time.perf_counter() - started)

    def scan(self, caller: Caller, asked: Question) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Starts a scan: its schema, which names the end, and its batches, up to `SCAN_BYTES`."""
        with self._counted(caller, "scan", scope="read", topic=asked.topic) as store:
            end = store.latest_offset(asked.topic, asked.partition, isolation=asked.isolation)  # type: ignore[arg-type]
            end = end if asked.end is None else min(end, asked.end)
            batches = store.scan(
                asked.topic,
                asked.partition,
                asked.start,
                end=end,
                max_records=asked.max_records,
                max_bytes=min(asked.max_bytes, self.settings.request_bytes),
                isolation=asked.isolation,  # type: ignore[arg-type]
            )
            first = next(batches, None)
            schema = self._schema(store, asked.topic) if first is None else first.schema
        return schema.with_metadata({messages.END: str(end)}), self._parts(first, batches)

    def _parts(
        self, first: pa.RecordBatch | None, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        sent, batch = 0, first
        while batch is not None:
            with self.inflight.taking(batch.nbytes):
                yield batch
            self.metrics.read.inc(batch.num_rows)
            sent += batch.nbytes
            batch = next(batches, None) if sent < SCAN_BYTES else None

    def fetch(self, caller: Caller, asked: Question) -> pa.RecordBatch:
        """Returns one batch, having waited for its first record at most `max.wait.ms`."""
        with self._counted(caller, "fetch", scope="read", topic=asked.topic) as store:
            batch = store.fetch(
                asked.topic,
                asked.partition,
                asked.start or 0,
                max_records=asked.max_records,
                max_bytes=min(asked.max_bytes, self.settings.request_bytes),
                wait_ms=min(asked.wait_ms, self.settings.wait_ms),
                isolation=asked.isolation,  # type: ignore[arg-type]
            )
            self.metrics.read.inc(batch.num_rows)
            return batch

    @staticmethod
    def _schema(store: Store, topic: str) -> pa.Schema:
        return OUTPUT_SCHEMAS[store.describe_topic(topic).format]


def bind(operation: Operation, given: dict[str, Any]) -> dict[str, Any]:
    """Makes a method's arguments from JSON; raises InvalidRequest naming what does not fit."""
    known = operation.signature.parameters
    for name in given:
        if name not in known:
            raise InvalidRequest(
                f"{operation.name} takes no {name[:80]!r}; only {', '.join(known)}"
            )
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise InvalidRequest(f"{operation.name} needs {name!r}")
    return {
        name: values.from_plain(operation.hints[name], value, name) for name, value in given.items()
    }


def _size_of(records: Records) -> int:
    if isinstance(records, pa.RecordBatch | pa.Table):
        return int(records.get_total_buffer_size())
    parts = (row.values() if isinstance(row, dict) else (row,) for row in records)
    return sum(len(part) for row in parts for part in row if isinstance(part, bytes))
