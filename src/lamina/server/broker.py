"""The store as callers from elsewhere see it: scopes, limits and counting around each call.

Flight and HTTP both come through here and add nothing but their own encoding.

    edge ──▶ Broker: may the caller? is there room? ──▶ Store ──▶ counted, noted, answered

Rules.
1. Every way in checks the scope and the topic prefix before anything of the store is touched.
2. A refusal is logged with the caller's key id and never with a secret.
3. Nothing waits for a slow caller: what a caller holds is its own thread or task, the batch that
   is sent, and of a scan the next one (`server.ahead`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa

from lamina import received
from lamina.api import UNTIL_ARCHIVED, Acks, Appended, Diff, GroupAcks
from lamina.errors import Busy, InvalidRequest, LaminaError, NotAllowed, StorageFull
from lamina.records import COLUMN_TYPES, OUTPUT_SCHEMAS, Records
from lamina.server import limits, scan_parts, shared_groups, telling
from lamina.server.ahead import Pool, ReadAhead
from lamina.server.auth import ANYBODY, Caller, Keys
from lamina.server.call_arguments import bind, size_of
from lamina.server.connected_client import ConnectedClient
from lamina.server.disk_watch import DiskWatch
from lamina.server.health import Condition, progress_of
from lamina.server.held_answers import Answer, waited
from lamina.server.log_lines import Refusals
from lamina.server.metrics import Metrics, all_families, families_of, page_of
from lamina.server.process_gauges import server_gauges
from lamina.server.quotas import ByteQuotas
from lamina.server.reloading import Reloaded, refuse_reload
from lamina.server.setting_table import ServerSettings
from lamina.server.standing import Place
from lamina.server.tracing import NO_TRACES, Tracing
from lamina.store.store import Store
from lamina.wire import messages
from lamina.wire.messages import Difference, Order, Poll, Question
from lamina.wire.operations import OPERATIONS, Operation, Scope

_log = logging.getLogger("lamina.server")
_STOP_PAUSE_S = 1.0
_Make = Callable[[int, int], pa.RecordBatch]


class Broker:
    """A store that is served, from before it has recovered until it is closed."""

    def __init__(
        self, settings: ServerSettings, keys: Keys | None, disk: DiskWatch | None = None
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.metrics_topics)
        self.streams = limits.Allowance("open streams", settings.connections)
        self.work = limits.Allowance("calls at work", 1 << 62)
        self.inflight = limits.Allowance("bytes at work", settings.inflight_bytes)
        self.waiting = limits.Allowance("long polls", settings.waiting)
        self.calls = limits.Allowance("calls at once", settings.connections)
        self.rate = limits.Rate(settings.rate_requests)
        self.progress = (0, 0)
        self.warming = (0, 0)
        self.stopping = threading.Event()
        self.condition = Condition(disk or DiskWatch())
        self.quotas = ByteQuotas(settings)
        self.refusals = Refusals()
        self.reload: Callable[[], Reloaded] = refuse_reload
        """Reads keys, certificates and settings again; a service gives its own."""
        self.kafka_clients: Callable[[], list[ConnectedClient]] = list
        """Who is connected to the Kafka door: nobody where there is none."""
        self.tracing: Tracing = NO_TRACES
        self.keys = keys
        self._store: Store | None = None
        self.place = Place()
        """This server's place in a cluster, if there is one."""
        self.groups = shared_groups.OpenGroups()
        self._ahead = Pool(self.inflight)
        self.metrics.watch(lambda: server_gauges(self))
        self.metrics.watch(lambda: self.place.standing.gauges())  # noqa: PLW0108 - it changes
        self.metrics.watch(lambda: families_of(self.metrics, self._store))

    # ------------------------------------------------------------------ life

    def serve(self, store: Store) -> None:
        """Is given the recovered store: from now on calls are answered."""
        self.groups = shared_groups.OpenGroups()
        store.transactions.staged_bytes_max = lambda: self.settings.kafka_transaction_bytes
        self._store = store

    def retract(self) -> None:
        """Forgets the store, which is going to be closed: another server holds the cluster."""
        self._store = None

    @property
    def store(self) -> Store:
        """The store, once it has recovered; raises Busy before, and NotPrimary on a standby."""
        self.place.require_holder()
        if self.stopping.is_set():
            raise Busy("the server is stopping", _STOP_PAUSE_S)
        if self._store is None:
            percent = 100 * self.progress[0] // max(1, self.progress[1])
            raise Busy(f"the server is recovering: {percent} % is done", _STOP_PAUSE_S)
        return self._store

    def health(self, caller: Caller | None) -> dict[str, Any]:
        """Returns what is wrong, if anything is; see `server.health`."""
        told = self.condition.told(self._store, self.settings, caller)
        return self.place.added_to_health(told, caller)

    def readiness(self, caller: Caller | None) -> dict[str, Any]:
        """Returns whether calls are answered and, for keys of all topics, how far recovery is."""
        is_there = self.place.is_answering(self._store)
        told = self.condition.readiness(self.settings, is_there, self.stopping.is_set())
        if caller is None or caller.prefix:
            return told | self.place.role()
        progress = progress_of(self._store, self.progress, self.warming)
        return told | self.place.role() | progress

    def metrics_page(self, caller: Caller) -> bytes:
        """Returns what Prometheus reads; with a prefix, the gauges of its topics and no more."""
        if not caller.prefix:
            return self.metrics.page()
        return page_of(lambda: all_families(self.metrics, self.store, caller))

    def room_for(self, wait_ms: int) -> contextlib.AbstractContextManager[None]:
        """Takes the room of one call, or of one that waits; raises Busy if there is none."""
        return self.waiting.taking() if wait_ms > 0 else self.calls.taking()

    @contextlib.contextmanager
    def working_on(self, text: bytes, more_bytes: int = 0) -> Iterator[None]:
        """Counts the objects of a JSON text as bytes at work; raises before any of them is made."""
        cost = limits.check_json(text, self.settings.request_bytes)
        with self.inflight.taking(cost + more_bytes):
            yield

    # ------------------------------------------------------------------ callers

    def caller(self, key: str | None) -> Caller:
        """Returns the caller that a key belongs to; raises NotAllowed."""
        return ANYBODY if self.keys is None else self.keys.caller(key)

    @property
    def asks_for_keys(self) -> bool:
        """Whether callers have to present a key."""
        return self.keys is not None

    def renewed(self, caller: Caller) -> Caller:
        """Returns a caller as its key is now; raises NotAllowed when that was revoked."""
        return caller if self.keys is None else self.keys.renewed(caller)

    def renew(self, settings: ServerSettings, keys: Keys | None) -> None:
        """Takes on settings and keys that were reloaded, from the next call on."""
        self.settings = settings
        self.keys = keys
        self.inflight.resize(settings.inflight_bytes)
        self.waiting.resize(settings.waiting)
        self.rate.change(settings.rate_requests)
        self.metrics.topics.resize(settings.metrics_topics)
        self.quotas.renew(settings, keys.ids() if keys is not None else {ANYBODY.name})

    @contextlib.contextmanager
    def guarded(
        self, caller: Caller, name: str, *, scope: Scope, topic: str | None
    ) -> Iterator[Store]:
        """Surrounds one call: allowed, within the rate, counted by outcome, refusals logged."""
        try:
            caller = self.renewed(caller)
            caller.require(scope, topic, name)
            self.rate.spend(caller.name)
            with self.work.taking(), self.place.answering(name):
                yield self.place.replica_for(name) or self.store
        except LaminaError as error:
            self.note_refused(caller, name, error, topic or "")
            raise
        self.metrics.count(name, "ok")

    def call(
        self, caller: Caller, name: str, given: dict[str, Any], held: bytes | None = None
    ) -> Any:
        """Calls a method of the store by its name in the table of operations.

        `held` are the records that it speaks of as an Arrow stream, where they are no JSON.
        """
        operation = OPERATIONS.get(name)
        if operation is None:
            known = ", ".join(sorted(OPERATIONS))
            raise InvalidRequest(f"there is no operation {name[:80]!r}; there are: {known}")
        if held:
            given["held"] = held
        arguments = bind(operation, given)
        topic = arguments.get(operation.topic) if operation.topic else None
        with self.guarded(caller, name, scope=operation.scope, topic=topic) as store:
            telling.require_rest(caller, store, operation, arguments)
            if held:
                arguments["held"] = messages.decode_held(held, self.settings.request_bytes)
            result = self._run(store, operation, arguments)
            return telling.visible(caller, store, name, result)

    def _run(self, store: Store, operation: Operation, arguments: dict[str, Any]) -> Any:
        if operation.is_of_group:
            where = arguments.pop("topic"), arguments.pop("group")
            with self.groups.using(store, *where) as group:
                return shared_groups.call(group, operation.name.split(".")[1], arguments)
        if operation.name == "group":
            return self.groups.open(store, **arguments).describe()
        waits = arguments.get("wait_ms", 0) > 0
        with self.waiting.taking() if waits else contextlib.nullcontext():
            result = getattr(store, operation.name)(**arguments)
        if operation.name in ("delete_group", "delete_topic"):
            self.groups.forget(arguments[str(operation.topic)], arguments.get("group"))
        return result

    # ------------------------------------------------------------------ records

    def append(
        self,
        caller: Caller,
        order: Order,
        records: Records | pa.Buffer,
        counted_bytes: int | None = None,
    ) -> Appended:
        """Appends, in the caller's own thread; threads that append at once share one commit.

        A buffer holds a batch as an Arrow stream: it is decoded when the append was let in.
        `counted_bytes` are those of rows whose body counts as bytes at work already.
        """
        size_bytes = size_of(records) if counted_bytes is None else 0
        arrived_bytes = size_bytes if counted_bytes is None else counted_bytes
        started = time.perf_counter()
        try:
            caller = self.renewed(caller)
            caller.require("write", order.topic, "append")
            store = self.admit(caller, size_bytes)
            try:
                self.quotas.produce.admit(caller, arrived_bytes)
                if isinstance(records, pa.Buffer):
                    arrived = received.announced(records)
                    most = self.settings.request_bytes
                    size_bytes += limits.take_unpacked(self.inflight, arrived, size_bytes, most)
                    records = received.unpacked(arrived, COLUMN_TYPES, most)
                with self.tracing.span("append", order.topic, records):
                    appended = store.append(
                        order.topic,
                        records,
                        partition=order.partition,
                        acks=cast("Acks", order.acks),
                        timeout_s=self._patience_s(order),
                        producer=order.producer,
                    )
                self.place.confirm()
            finally:
                self.leave(size_bytes)
        except LaminaError as error:
            self.note_refused(caller, "append", error, order.topic)
            raise
        self.note_appended(order.topic, appended.count, arrived_bytes, started)
        return appended

    async def append_async(
        self, caller: Caller, order: Order, records: Records, arrived_bytes: int = 0
    ) -> Appended:
        """Appends from an event loop; tasks share one commit without a thread each.

        The bytes of the records count as at work with the body that they came with. The Kafka door
        counts them itself for its quotas, and says 0 here.
        """
        started = time.perf_counter()
        try:
            caller = self.renewed(caller)
            caller.require("write", order.topic, "append")
            store = self.admit(caller, 0)
            try:
                if arrived_bytes:
                    self.quotas.produce.admit(caller, arrived_bytes)
                with self.tracing.span("append", order.topic, records):
                    appended = await self._appended(store, order, records)
                self.place.confirm()
            finally:
                self.leave(0)
        except LaminaError as error:
            self.note_refused(caller, "append", error, order.topic)
            raise
        self.note_appended(order.topic, appended.count, arrived_bytes, started)
        return appended

    async def _appended(self, store: Store, order: Order, records: Records) -> Appended:
        if order.acks != UNTIL_ARCHIVED:
            given = order.topic, records
            return await store.append_async(
                *given,
                partition=order.partition,
                acks=cast("Acks", order.acks),
                producer=order.producer,
            )
        with self.waiting.taking():  # for an upload: that takes a thread
            return await asyncio.to_thread(
                store.append,
                order.topic,
                records,
                partition=order.partition,
                acks=cast("Acks", order.acks),
                timeout_s=self._patience_s(order),
            )

    def _patience_s(self, order: Order) -> float | None:
        """How long an append may take; nobody waits for an archive without an end."""
        if order.timeout_s is None and order.acks == UNTIL_ARCHIVED:
            return self.settings.wait_ms / 1000
        return order.timeout_s

    def admit(self, caller: Caller, size_bytes: int) -> Store:
        """Admits an append by the shortest way: a lone one waits for this. `leave` ends it."""
        self.rate.spend(caller.name)
        store = self.store
        limits.check_size(size_bytes, self.settings.request_bytes)
        self.work.take()
        try:
            self.inflight.take(size_bytes)
        except BaseException:
            self.work.give_back()
            raise
        return store

    def leave(self, size_bytes: int) -> None:
        """Ends an append that was admitted."""
        self.inflight.give_back(size_bytes)
        self.work.give_back()

    def note_refused(self, caller: Caller, name: str, error: LaminaError, topic: str = "") -> None:
        """Counts a call that failed; what was refused is logged, what was fenced explained."""
        self.metrics.count(name, type(error).__name__, topic)
        telling.withhold(caller, error)
        if isinstance(error, StorageFull):
            self.condition.note_full(str(error))
        if isinstance(error, NotAllowed | Busy):
            kind = f"{name} by {caller.name}: {type(error).__name__}"
            self.refusals.note(kind, "refused %s by %s: %s", name, caller.name, error)
        self.place.explain(error)

    def note_appended(self, topic: str, count: int, size_bytes: int, started: float) -> None:
        """Counts an append that was stored."""
        self.condition.note_room()
        self.metrics.count("append", "ok")
        self.metrics.appended.inc(count)
        self.metrics.topics.appended(topic, count, size_bytes)
        self.metrics.seconds.observe(time.perf_counter() - started)

    def note_read(self, caller: Caller, topic: str, batch: pa.RecordBatch) -> None:
        """Counts records that are sent, for the metrics and the caller's quota."""
        if batch.num_rows:
            size_bytes = batch.get_total_buffer_size()
            self.metrics.read.inc(batch.num_rows)
            self.metrics.topics.read(topic, batch.num_rows, size_bytes)
            self.quotas.fetch.charge(caller, size_bytes)

    def scan(self, caller: Caller, asked: Question) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Starts a scan: its schema, which names the end, and the batches of one part of it."""
        with self.guarded(caller, "scan", scope="read", topic=asked.topic) as store:
            self.quotas.fetch.admit(self.renewed(caller))
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
            described = OUTPUT_SCHEMAS[store.describe_topic(asked.topic).format]
            schema = described if first is None else first.schema
        ahead = ReadAhead(batches, self._ahead)
        sending = scan_parts.Sending(
            self.inflight.taking,
            lambda batch: self._note_sent(caller, asked.topic, batch),
            lambda: not self.quotas.fetch.is_in_debt(caller),
        )
        parts = self._sent(caller, asked.topic, scan_parts.sent(first, ahead, sending))
        return schema.with_metadata({messages.END: str(end)}), parts

    def _note_sent(self, caller: Caller, topic: str, batch: pa.RecordBatch) -> None:
        """Counts a batch of a scan; raises NotAllowed when the key was revoked meanwhile."""
        self.note_read(caller, topic, batch)
        self.renewed(caller).require("read", topic, "scan")
        self.place.confirm_read()

    def _sent(self, caller: Caller, topic: str, parts: scan_parts.Batches) -> scan_parts.Batches:
        try:
            yield from parts
        except LaminaError as error:
            self.note_refused(caller, "scan", error, topic)
            raise

    def answer(self, *, weight: int = 1) -> Answer:
        """Begins an answer, to be closed when it was sent."""
        return Answer(self.inflight, weight=weight)

    def fetch(self, caller: Caller, asked: Question, answer: Answer) -> pa.RecordBatch:
        """Returns one batch, having waited for its first record at most `max.wait.ms`."""
        with self.guarded(caller, "fetch", scope="read", topic=asked.topic) as store:

            def fetch(max_bytes: int, wait_ms: int) -> pa.RecordBatch:
                return store.fetch(
                    asked.topic,
                    asked.partition,
                    asked.start or 0,
                    max_records=asked.max_records,
                    max_bytes=max_bytes,
                    wait_ms=wait_ms,
                    isolation=asked.isolation,  # type: ignore[arg-type]
                )

            return self._waited(fetch, answer, self.renewed(caller), asked)

    def _waited(
        self, make: _Make, answer: Answer, caller: Caller, asked: Question | Poll
    ) -> pa.RecordBatch:
        self.quotas.fetch.admit(caller)
        wanted = asked.max_bytes, asked.wait_ms
        with self.tracing.span("fetch", asked.topic):
            batch = waited(make, answer, wanted, self.settings, lambda: self._is_over(caller))
        self.note_read(caller, asked.topic, batch)
        return batch

    def _is_over(self, caller: Caller) -> bool:
        """Returns whether a wait is to end; raises NotAllowed when its key was revoked."""
        self.renewed(caller)
        return self.stopping.is_set() or self.place.is_leaving()

    def poll(self, caller: Caller, asked: Poll, answer: Answer) -> pa.RecordBatch:
        """Hands out records of a group; a caller that is gone by then does not get to hold them."""
        with (
            self.guarded(caller, "group.poll", scope="write", topic=asked.topic) as store,
            self.groups.using(store, asked.topic, asked.group) as group,
        ):

            def poll(max_bytes: int, wait_ms: int) -> pa.RecordBatch:
                batch = group.poll(
                    asked.max_records,
                    asked.lease_ms,
                    wait_ms=wait_ms,
                    partitions=asked.partitions,
                    max_bytes=max_bytes,
                    acks=cast("GroupAcks", asked.acks),
                )
                if batch.num_rows and answer.is_gone():
                    group.release(batch)
                    return batch.slice(0, 0)
                return batch

            batch = self._waited(poll, answer, self.renewed(caller), asked)
        if batch.num_rows:
            answer.undo_unless_sent(lambda: self._give_back(asked, batch))
        return batch

    def _give_back(self, asked: Poll, batch: pa.RecordBatch) -> None:
        """Gives back what a poll handed out to a caller that was gone before it was answered."""
        store = self._store
        if store is None:  # another server holds the cluster by now, and the leases with it
            return
        try:  # also while the server stops
            with self.groups.using(store, asked.topic, asked.group) as group:
                group.release(batch)
        except LaminaError as error:
            _log.warning("what a lost answer held comes after its deadline: %s", error)

    def diff(self, caller: Caller, asked: Difference, answer: Answer) -> Diff:
        """Returns what is new to a follower."""
        found: list[Diff] = []
        with self.guarded(caller, "diff", scope="read", topic=asked.topic) as store:

            def diff(max_bytes: int, wait_ms: int) -> pa.RecordBatch:
                del wait_ms
                found[:] = [
                    store.diff(
                        asked.topic,
                        asked.partition,
                        asked.start,
                        limit=asked.limit,
                        max_bytes=max_bytes,
                        exclude_node=asked.exclude_node,
                    )
                ]
                return found[0].records

            self.quotas.fetch.admit(self.renewed(caller))
            wanted = min(asked.max_bytes, self.settings.request_bytes)
            self.note_read(caller, asked.topic, answer.of(diff, wanted, 0))
            return found[0]
