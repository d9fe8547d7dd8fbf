"""A producer in the manner of confluent-kafka, over an embedded or a served store.

`produce` only queues; one thread gathers what is queued into one append for each partition, and
delivery callbacks are run by whoever calls `poll` or `flush`.

    produce ──▶ queue (bounded) ──▶ gathered by partition ──▶ store.append ──▶ reports ──▶ poll

Rule: every accepted record gets exactly one report, with an offset or an error.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa

from lamina.api import Appended, StoreApi, checked_acks
from lamina.arguments import count, mapping, refuse_no_store, text, typed_calls
from lamina.client.key_split import split_by_key
from lamina.client.message import Header, Message, arrow_of
from lamina.errors import Closed, InvalidRequest, LaminaError, QueueFull, Unavailable
from lamina.records import KEPT_COLUMNS

SHAPE_S = 5.0
"""How long a producer goes by the partitions that a topic had when it asked."""
Delivery: TypeAlias = Callable[[LaminaError | None, Message], None]

_DEFAULTS: dict[str, Any] = {
    "acks": "all",
    "linger.ms": 5,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 100_000,
}


def _callback(name: str, value: object) -> Delivery:
    if not callable(value):
        raise InvalidRequest(f"{name} must be a function, not a {type(value).__name__}")
    return value


@typed_calls({"Delivery": _callback})
class Producer:
    """Queues records and appends them in batches. Flush or close it, or use `with`."""

    def __init__(self, store: StoreApi, config: Mapping[str, Any] | None = None) -> None:
        refuse_no_store("Producer", store, "append")
        settings = _DEFAULTS | dict(mapping("config", config or {}))
        for key in settings:
            if key not in _DEFAULTS:
                raise InvalidRequest(
                    f"unknown producer setting {key!r}; known: {', '.join(_DEFAULTS)}"
                )
        self._store = store
        self._acks = settings["acks"]
        self._linger_s = count("linger.ms", settings["linger.ms"], 0) / 1000
        self._batch = count("batch.num.messages", settings["batch.num.messages"])
        self._queued: queue.Queue[tuple[Message, Delivery | None] | None] = queue.Queue(
            count("queue.buffering.max.messages", settings["queue.buffering.max.messages"])
        )
        self._reports: queue.SimpleQueue[tuple[Message, Delivery]] = queue.SimpleQueue()
        self._shapes: dict[str, tuple[tuple[str, int], float]] = {}
        self._turn = 0
        self._changed = threading.Condition()
        self._outstanding = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="lamina-producer", daemon=True)
        self._thread.start()

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        *,
        on_delivery: Delivery | None = None,
        timestamp: int = 0,
        headers: Mapping[str, bytes | None] | Sequence[Header] | None = None,
    ) -> None:
        """Queues a record; raises QueueFull when there is no room, then poll or flush first."""
        if self._closed:
            raise Closed("the producer is closed")
        message = Message(
            topic, partition, -1, _bytes(key), _bytes(value), timestamp, _headers(headers)
        )
        with self._changed:
            self._outstanding += 1
        try:
            self._queued.put_nowait((message, on_delivery))
        except queue.Full:
            self._settle(1)
            raise QueueFull(f"{self._queued.maxsize} records wait to be sent") from None

    def produce_batch(
        self, topic: str, frame: Any, *, partition: int | None = None, acks: object = None
    ) -> Appended:
        """Appends an Arrow batch or table, a pandas or a polars frame at once, and waits."""
        chosen = checked_acks(self._acks if acks is None else acks)
        return self._store.append(topic, arrow_of(frame), partition=partition, acks=chosen)

    def poll(self, timeout: float = 0) -> int:
        """Runs the callbacks of deliveries that are known; returns how many."""
        served = 0
        deadline = time.monotonic() + timeout
        while True:
            try:
                wait_s = max(0.0, deadline - time.monotonic()) if served == 0 else 0.0
                message, report = self._reports.get(wait_s > 0, wait_s or None)
            except queue.Empty:
                return served
            served += 1
            report(message.error(), message)

    def flush(self, timeout: float = -1) -> int:
        """Waits until everything is delivered, running callbacks; returns how many are left."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            self.poll(0)
            with self._changed:
                if self._outstanding == 0:
                    break
                left_s = 0.05 if deadline is None else min(0.05, deadline - time.monotonic())
                if left_s <= 0:
                    return self._outstanding
                self._changed.wait(left_s)
        self.poll(0)
        return 0

    def __len__(self) -> int:
        """The number of records that are not delivered yet."""
        return self._outstanding

    def close(self) -> None:
        """Delivers what is queued and stops; the store stays open."""
        if not self._closed:
            self.flush()
            self._closed = True
            self._queued.put(None)
            self._thread.join()
            self.poll(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (first := self._queued.get()) is not None:
            gathered = [first]
            deadline = time.monotonic() + self._linger_s
            with contextlib.suppress(queue.Empty):
                while len(gathered) < self._batch:
                    wait_s = deadline - time.monotonic()
                    entry = self._queued.get(wait_s > 0, wait_s if wait_s > 0 else None)
                    if entry is None:
                        self._queued.put(None)
                        break
                    gathered.append(entry)
            self._deliver(gathered)

    def _deliver(self, gathered: list[tuple[Message, Delivery | None]]) -> None:
        by_topic: dict[str, list[tuple[Message, Delivery | None]]] = {}
        for entry in gathered:
            by_topic.setdefault(entry[0].topic(), []).append(entry)
        for topic, entries in by_topic.items():
            messages = [message for message, _ in entries]
            try:
                self._place(topic, messages)
                by_partition: dict[int, list[Message]] = {}
                for message in messages:
                    by_partition.setdefault(message.partition(), []).append(message)
                for partition, group in by_partition.items():
                    self._append(topic, partition, group)
            except Exception as error:  # whatever it is, it is told: a dead thread tells nothing
                self._shapes.pop(topic, None)
                told = error if isinstance(error, LaminaError) else Unavailable(f"{error!r}")
                for message in messages:
                    if message.offset() < 0 and message.error() is None:
                        message._error = told
            for message, report in entries:
                if report is not None:
                    self._reports.put((message, report))
        self._settle(len(gathered))

    def _append(self, topic: str, partition: int, group: list[Message]) -> None:
        """Appends to one partition and notes each record's offset, or why it has none."""
        rows = [_row(message) for message in group]
        try:
            ack = self._store.append(topic, rows, partition=partition, acks=self._acks)
        except LaminaError as error:
            for message in group:
                message._error = error
            return
        for number, message in enumerate(group):
            message._offset = ack.base_offset + number if ack.base_offset >= 0 else -1

    def _shape(self, topic: str) -> tuple[str, int]:
        """Returns a topic's format and how many partitions it had a moment ago."""
        found, asked_s = self._shapes.get(topic, (None, 0.0))
        if found is None or time.monotonic() - asked_s > SHAPE_S:
            found = self._store.format_of(topic)
            self._shapes[topic] = found, time.monotonic()
        return found

    def _place(self, topic: str, messages: list[Message]) -> None:
        """Gives a partition to each record that names none: by key, or all of them in turn."""
        free = [message for message in messages if message.partition() < 0]
        if not free:
            return
        format_name, count = self._shape(topic)
        self._turn = (self._turn + 1) % count
        keys = [m.key() for m in free] if "key" in KEPT_COLUMNS[format_name] else [None] * len(free)
        numbered = pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.binary()), pa.array(range(len(free)), pa.int64())], ["key", "row"]
        )
        for partition, part in split_by_key(numbered, count, self._turn):
            for row in part.column("row").to_pylist():
                free[row]._partition = partition

    def _settle(self, count: int) -> None:
        with self._changed:
            self._outstanding -= count
            self._changed.notify_all()


def _row(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"value": message.value()}
    if message.key() is not None:
        row["key"] = message.key()
    if message.headers():
        row["headers"] = [{"key": name, "value": value} for name, value in message.headers()]
    if message.timestamp()[1]:
        row["timestamp"] = message.timestamp()[1]
    return row


def _bytes(given: bytes | str | None) -> bytes | None:
    return given.encode() if isinstance(given, str) else given


def _headers(given: Any) -> list[Header]:
    """Reads headers, as a mapping or as pairs."""
    pairs = list(given.items()) if isinstance(given, Mapping) else given or []
    if not isinstance(pairs, list | tuple):
        raise InvalidRequest(f"headers are a mapping or pairs, not a {type(given).__name__}")
    found = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidRequest("a header is a pair of its name and its value")
        name, value = pair
        if value is not None and not isinstance(value, bytes):
            raise InvalidRequest(f"a header's value must be bytes, not a {type(value).__name__}")
        found.append((text("a header's name", name), value))
    return found
