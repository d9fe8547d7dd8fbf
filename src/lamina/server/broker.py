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
from typing import Any

import pyarrow as pa

from lamina import received
from lamina.api import UNTIL_ARCHIVED, Appended, Diff
from lamina.errors import Busy, InvalidRequest, LaminaError, NotAllowed, StorageFull
from lamina.records import COLUMN_TYPES, OUTPUT_SCHEMAS, Records
from lamina.server import limits, shared_groups, telling
from lamina.server.ahead import Pool, ReadAhead
from lamina.server.auth import ANYBODY, Caller, Keys
from lamina.server.connected_client import ConnectedClient
from lamina.server.health import WallClock, problems_of
from lamina.server.held_answers import Answer, waited
from lamina.server.metrics import Metrics, page_of, store_gauges
from lamina.server.setting_table import ServerSettings
from lamina.store.store import Store
from lamina.wire import messages, values
from lamina.wire.messages import Difference, Order, Poll, Question
from lamina.wire.operations import OPERATIONS, Operation, Scope

_log = logging.getLogger("lamina.server")

SCAN_BYTES, SCAN_S = 64 << 20, 10.0
"""A scan is sent in parts: about so much, or as much as goes out in this time, whichever is more.
So long a reader may hold a removed segment."""
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
        self.calls = limits.Allowance("calls at once", settings.connections)
        self.rate = limits.Rate(settings.rate_requests)
        self.progress = (0, 0)
        self.warming = (0, 0)
        self.stopping = threading.Event()
        self.clock = WallClock()
        self.kafka_clients: Callable[[], list[ConnectedClient]] = list
        """Who is connected to the Kafka door: nobody where there is none."""
        self._keys = keys
        self._store: Store | None = None
        self._groups = shared_groups.OpenGroups()
        self._full: str | None = None
        self._ahead = Pool(self.inflight)

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
            percent = 100 * done // max(1, total)
            raise Busy(f"the server is recovering: {percent} % is done", _STOP_PAUSE_S)
        return self._store

    def health(self, caller: Caller | None) -> dict[str, Any]:
        """Returns what is wrong, if anything is; see `server.health`.

        A caller without a key learns that something is wrong, but not what.
        """
        prefix = caller.prefix if caller is not None else ""
        problems = []
        if self._store is not None:
            problems = list(problems_of(self._store, self.clock, prefix))
        if self._full is not None:
            problems.append("the disk is full" if prefix else self._full)
        status = "degraded" if problems else "ok"
        return {"status": status, "problems": problems if caller is not None else []}

    def readiness(self, caller: Caller | None) -> dict[str, Any]:
        """Returns whether calls are answered and, for keys of all topics, how far recovery is."""
        done, total = self.progress
        ready = self._store is not None and not self.stopping.is_set()
        report = self._store.recovery_report if self._store is not None else None
        told = {"ready": ready, "stopping": self.stopping.is_set()}
        if caller is None or caller.prefix:
            return told
        compiled, kernels = self.warming
        return told | {
            "compiled_percent": 100 * compiled // kernels if kernels else 100,
            "recovered_partitions": total if report else done,
            "partitions": total,
            "recovery_ms": report.milliseconds if report else None,
        }

    def metrics_page(self, caller: Caller) -> bytes:
        """Returns what Prometheus reads; with a prefix, the gauges of its topics and no more."""
        if not caller.prefix:
            return self.metrics.page()
        store = self.store
        return page_of(lambda: store_gauges(store, caller))

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
            self._note_refused(caller, name, error)
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
        with self._counted(caller, name, scope=operation.scope, topic=topic) as store:
            telling.require_rest(caller, store, operation, arguments)
            if held:
                arguments["held"] = messages.decode_held(held, self.settings.request_bytes)
            result = self._run(store, operation, arguments)
            return telling.visible(caller, store, name, result)

    def _run(self, store: Store, operation: Operation, arguments: dict[str, Any]) -> Any:
        if operation.is_of_group:
            where = arguments.pop("topic"), arguments.pop("group")
            with self._groups.using(store, *where) as group:
                return shared_groups.call(group, operation.name.split(".")[1], arguments)
        if operation.name == "group":
            return self._groups.open(store, **arguments).describe()
        waits = arguments.get("wait_ms", 0) > 0
        with self.waiting.taking() if waits else contextlib.nullcontext():
            result = getattr(store, operation.name)(**arguments)
        if operation.name in ("delete_group", "delete_topic"):
            self._groups.forget(arguments[str(operation.topic)], arguments.get("group"))
        return result

    # ------------------------------------------------------------------ records

    def append(self, caller: Caller, order: Order, records: Records | pa.Buffer) -> Appended:
        """Appends, in the caller's own thread; threads that append at once share one commit.

        A buffer holds a batch as an Arrow stream: it is decoded when the append was let in.
        """
        return self._append(caller, order, records, _size_of(records))

    def append_counted(self, caller: Caller, order: Order, records: Records) -> Appended:
        """Appends what counts as bytes at work already: rows of a body that is being worked on."""
        return self._append(caller, order, records, 0)

    def _append(
        self, caller: Caller, order: Order, records: Records | pa.Buffer, size_bytes: int
    ) -> Appended:
        started = time.perf_counter()
        try:
            caller.require("write", order.topic, "append")
            store = self._admit(caller, size_bytes)
            try:
                if isinstance(records, pa.Buffer):
                    arrived = received.announced(records)
                    size_bytes += self._take_unpacked(arrived, size_bytes)
                    records = self._decoded(arrived)
                appended = store.append(
                    order.topic,
                    records,
                    partition=order.partition,
                    acks=order.acks,
                    timeout_s=self._patience_s(order),
                    producer=order.producer,
                )
            finally:
                self._leave(size_bytes)
        except LaminaError as error:
            self._note_refused(caller, "append", error)
            raise
        self._note_appended(appended, started)
        return appended

    async def append_async(self, caller: Caller, order: Order, records: Records) -> Appended:
        """Appends from an event loop; tasks share one commit without a thread each.

        The bytes of the records count as those of the body that they came with.
        """
        started = time.perf_counter()
        try:
            caller.require("write", order.topic, "append")
            store = self._admit(caller, 0)
            try:
                appended = await self._appended(store, order, records)
            finally:
                self._leave(0)
        except LaminaError as error:
            self._note_refused(caller, "append", error)
            raise
        self._note_appended(appended, started)
        return appended

    async def _appended(self, store: Store, order: Order, records: Records) -> Appended:
        if order.acks != UNTIL_ARCHIVED:
            given = order.topic, records
            return await store.append_async(
                *given, partition=order.partition, acks=order.acks, producer=order.producer
            )
        with self.waiting.taking():  # for an upload: that takes a thread
            return await asyncio.to_thread(
                store.append,
                order.topic,
                records,
                partition=order.partition,
                acks=order.acks,
                timeout_s=self._patience_s(order),
            )

    def _patience_s(self, order: Order) -> float | None:
        """How long an append may take; nobody waits for an archive without an end."""
        if order.timeout_s is None and order.acks == UNTIL_ARCHIVED:
            return self.settings.wait_ms / 1000
        return order.timeout_s

    def _take_unpacked(self, arrived: received.Announced, held: int) -> int:
        """Takes the room of what is made beside the bytes that came; returns how much."""
        limits.check_size(arrived.size_bytes, self.settings.request_bytes)
        more = arrived.size_bytes if arrived.is_compressed else 0
        self.inflight.take(more, held)
        return more

    def _decoded(self, arrived: received.Announced) -> Records:
        return received.unpacked(arrived, COLUMN_TYPES, self.settings.request_bytes)

    def _admit(self, caller: Caller, size_bytes: int) -> Store:
        """Admits an append by the shortest way: a lone one waits for this. `_leave` ends it."""
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

    def _leave(self, size_bytes: int) -> None:
        self.inflight.give_back(size_bytes)
        self.work.give_back()

    def _note_refused(self, caller: Caller, name: str, error: LaminaError) -> None:
        """Counts a call that failed; what was refused is logged."""
        self.metrics.count(name, type(error).__name__)
        telling.withhold(caller, error)
        if isinstance(error, StorageFull):
            self._full = str(error)
        if isinstance(error, NotAllowed | Busy):
            _log.warning("refused %s by %s: %s", name, caller.name, error)

    def _note_appended(self, appended: Appended, started: float) -> None:
        self._full = None
        self.metrics.count("append", "ok")
        self.metrics.appended.inc(appended.count)
        self.metrics.seconds.observe(time.perf_counter() - started)

    def scan(self, caller: Caller, asked: Question) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Starts a scan: its schema, which names the end, and the batches of one part of it."""
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
        sending = self._sent(caller, self._parts(first, batches))
        return schema.with_metadata({messages.END: str(end)}), sending

    def _sent(self, caller: Caller, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from parts
        except LaminaError as error:
            self._note_refused(caller, "scan", error)
            raise

    def _parts(
        self, first: pa.RecordBatch | None, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        ahead = ReadAhead(batches, self._ahead)
        started, sent_bytes, batch = time.monotonic(), 0, first
        try:
            while batch is not None:
                size_bytes = batch.get_total_buffer_size()
                sent_bytes += size_bytes
                goes_on = sent_bytes < SCAN_BYTES or time.monotonic() - started < SCAN_S
                with self.inflight.taking(size_bytes):
                    if goes_on:
                        ahead.begin(size_bytes)
                    yield batch
                self.metrics.read.inc(batch.num_rows)
                batch = ahead.following() if goes_on else None
        finally:
            ahead.close()

    def answer(self, *, weight: int = 1) -> Answer:
        """Begins an answer, to be closed when it was sent."""
        return Answer(self.inflight, weight=weight)

    def fetch(self, caller: Caller, asked: Question, answer: Answer) -> pa.RecordBatch:
        """Returns one batch, having waited for its first record at most `max.wait.ms`."""
        with self._counted(caller, "fetch", scope="read", topic=asked.topic) as store:

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

            return self._waited(fetch, answer, asked)

    def _waited(
        self, make: Callable[[int, int], pa.RecordBatch], answer: Answer, asked: Question | Poll
    ) -> pa.RecordBatch:
        wanted = asked.max_bytes, asked.wait_ms
        batch = waited(make, answer, wanted, self.settings, self.stopping.is_set)
        self.metrics.read.inc(batch.num_rows)
        return batch

    def poll(self, caller: Caller, asked: Poll, answer: Answer) -> pa.RecordBatch:
        """Hands out records of a group; a caller that is gone by then does not get to hold them."""
        with (
            self._counted(caller, "group.poll", scope="write", topic=asked.topic) as store,
            self._groups.using(store, asked.topic, asked.group) as group,
        ):

            def poll(max_bytes: int, wait_ms: int) -> pa.RecordBatch:
                batch = group.poll(
                    asked.max_records,
                    asked.lease_ms,
                    wait_ms=wait_ms,
                    partitions=asked.partitions,
                    max_bytes=max_bytes,
                    acks=asked.acks,
                )
                if batch.num_rows and answer.is_gone():
                    group.release(batch)
                    return batch.slice(0, 0)
                return batch

            batch = self._waited(poll, answer, asked)
        if batch.num_rows:
            answer.undo_unless_sent(lambda: self._give_back(asked, batch))
        return batch

    def _give_back(self, asked: Poll, batch: pa.RecordBatch) -> None:
        """Gives back what a poll handed out to a caller that was gone before it was answered."""
        assert self._store is not None, "it was polled"
        try:  # also while the server stops
            with self._groups.using(self._store, asked.topic, asked.group) as group:
                group.release(batch)
        except LaminaError as error:
            _log.warning("what a lost answer held comes after its deadline: %s", error)

    def diff(self, caller: Caller, asked: Difference, answer: Answer) -> Diff:
        """Returns what is new to a follower."""
        found: list[Diff] = []
        with self._counted(caller, "diff", scope="read", topic=asked.topic) as store:

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

            wanted = min(asked.max_bytes, self.settings.request_bytes)
            self.metrics.read.inc(answer.of(diff, wanted, 0).num_rows)
            return found[0]

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
        name: value
        if isinstance(value, bytes)
        else values.from_plain(operation.hints[name], value, name)
        for name, value in given.items()
    }


def _size_of(records: Records | pa.Buffer) -> int:
    if isinstance(records, pa.Buffer):
        return int(records.size)
    if isinstance(records, pa.RecordBatch | pa.Table):
        return int(records.get_total_buffer_size())
    if all(type(row) is bytes for row in records):
        return sum(map(len, records))
    parts = (row.values() if isinstance(row, dict) else (row,) for row in records)
    return sum(len(part) for row in parts for part in row if isinstance(part, bytes))
