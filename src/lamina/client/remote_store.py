"""A served store: the same methods, types and errors as an embedded one.

The methods of the table of operations are made from it; appending and reading, which carry Arrow,
are written out below.

Rule: what a method does, and with which arguments, is said by `StoreApi` alone.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyarrow import flight

from lamina import records as record_columns
from lamina.api import (
    BATCH_BYTES,
    BATCH_RECORDS,
    OF_TOPIC,
    UNTIL_ARCHIVED,
    Acks,
    Appended,
    BatchStream,
    Diff,
    Isolation,
    ProducerStamp,
    Start,
    StoreApi,
    TopicInfo,
    TopicSchema,
    acks_level,
)
from lamina.api.portraits import Portrait, store_title, table_portrait
from lamina.arguments import typed_call, wait_s
from lamina.client import trust, typed_values
from lamina.client.append_sessions import Sessions
from lamina.client.calls import call
from lamina.client.connection import TIMEOUT_S, Broken, Connection, Patience
from lamina.client.key_split import split_by_key
from lamina.client.remote_group import RemoteGroup
from lamina.errors import InvalidRequest, LaminaError, NotPrimary, OffsetOutOfRange, UnknownTopic
from lamina.received import refuse_broken
from lamina.records import OUTPUT_SCHEMAS, Records, as_columns, has_keys, has_typed_columns
from lamina.wire import memory, messages
from lamina.wire.messages import Difference, Order, Question
from lamina.wire.operations import OPERATIONS, Operation

_ACKS = {None: OF_TOPIC, 0: "0", 1: "1", 2: "all"}
_THREADS = 8
_RESHAPING = ("create_topic", "add_partitions", "delete_topic")
GREETING_S = 10.0
"""How long a server may take to give a first sign of life."""
DESCRIBED_S = 5.0
"""How long a client goes by the partitions that a topic had when it asked."""


class RemoteStore(StoreApi):
    """A store behind `lamina serve`. Use `lamina.connect`, and close it (or use `with`).

    Any number of threads may use it. What is sent again after a broken connection is stored once.
    """

    _CANNOT = "{call} is not served; it works on a store opened by this process"

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
        tls_root: bytes | None = None,
        idempotent: bool = True,
    ) -> None:
        key = api_key if api_key is not None else os.environ.get("LAMINA_API_KEY")
        trusted = os.environ.get(trust.VARIABLE) if tls_root is None else None
        if trusted and url.startswith("grpc+tls://"):
            tls_root = trust.certificates(trusted)
        self._connection = Connection(url, key=key, timeout_s=timeout_s, tls_root=tls_root)
        self._sessions = Sessions(self._connection)
        self._idempotent = idempotent
        self._described: dict[str, tuple[TopicInfo, float]] = {}
        self._schemas: dict[str, tuple[TopicSchema, float]] = {}
        self._lag_ms: int | None = None
        """How old the last records may have been when they were sent; None if not by a standby."""
        self._turn = itertools.count()
        self._appending = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-append")

    def _cannot(self, call: str) -> LaminaError:
        self._connection.require_open()
        return super()._cannot(call)

    def _portrait(self) -> Portrait:
        """Shows what is known here: the server is not asked, it may be gone."""
        known = [(about.name, about.format, len(about.partitions)) for about, _ in self._known()]
        title = store_title(self, self._connection.url, is_open=not self._connection.is_closed)
        if self._lag_ms is not None:
            title += f" (read from a standby, {self._lag_ms:,} ms old at most)"
        return table_portrait(title, ("topic", "format", "partitions"), known, len(known))

    def _known(self) -> list[tuple[TopicInfo, float]]:
        return sorted(self._described.copy().values(), key=lambda each: each[0].name)

    # ------------------------------------------------------------------ appending

    def append(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: Acks = OF_TOPIC,
        timeout_s: float | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends records, one order per partition; see `StoreApi`.

        Is sent again after a broken connection until `timeout_s` (the client's own timeout) is up;
        it is stored once. Raises Unavailable then: whether it was stored is not known.
        """
        self._connection.require_open()
        records = as_columns(records)
        if has_typed_columns(records):
            records = self._encoded(topic, records)
        level = UNTIL_ARCHIVED if acks == UNTIL_ARCHIVED else _ACKS[acks_level(acks)]
        timeout_s = self._connection.timeout_s if timeout_s is None else timeout_s
        parts = self._parts(topic, _sendable(records), partition, stamped=producer is not None)
        orders = [(Order(topic, number, level, producer=producer), part) for number, part in parts]
        stamps = self._idempotent and producer is None and level != "0"
        if len(orders) == 1:
            return self._sessions.append(*orders[0], timeout_s, stamps=stamps)
        futures = [
            self._appending.submit(self._sessions.append, *each, timeout_s, stamps=stamps)
            for each in orders
        ]
        answers = [future.result() for future in futures]
        merged = {number: ack for answer in answers for number, ack in answer.parts.items()}
        return Appended(merged, sum(answer.count for answer in answers))

    def _parts(
        self, topic: str, records: Any, partition: int | None, *, stamped: bool
    ) -> list[tuple[int | None, Any]]:
        """Decides which partition takes which records: an idempotent append names its own."""
        if partition is not None or stamped or not self._idempotent:
            return [(partition, records)]
        about = self._about(topic)
        count = len(about.partitions)
        turn = next(self._turn) % count
        keyed = "key" in record_columns.KEPT_COLUMNS[about.format]
        if count == 1 or not keyed or not has_keys(records):
            return [(turn, records)]
        if (
            not isinstance(records, pa.RecordBatch)
            or records.schema.field("key").type != pa.binary()
        ):
            records = record_columns.prepare(
                records, about.format, now_ms=time.time_ns() // 1_000_000
            )
        return list(split_by_key(records, count, turn))

    def _about(self, topic: str) -> TopicInfo:
        """Describes a topic as it was a moment ago: partitions may be added to it."""
        found, asked_s = self._described.get(topic, (None, 0.0))
        if found is None or time.monotonic() - asked_s > DESCRIBED_S:
            found = self.describe_topic(topic)
            self._described[topic] = found, time.monotonic()
        return found

    async def append_async(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: Acks = OF_TOPIC,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends from asyncio, in a thread of its own."""
        return await asyncio.to_thread(
            self.append, topic, records, partition=partition, acks=acks, producer=producer
        )

    # ------------------------------------------------------------------ reading

    def scan(
        self,
        topic: str,
        partition: int = 0,
        start: int | None = None,
        *,
        end: int | None = None,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        isolation: Isolation = "durable",
    ) -> BatchStream:
        """Streams records from `start` to the end as it is now; see `StoreApi`.

        Goes on where it was after a broken connection.
        """
        self._connection.require_open()
        if start is not None and start < 0:
            raise OffsetOutOfRange(f"offsets count from 0, got {start}")
        if start is None:
            start = self.earliest_offset(topic, partition)
        asked = {"max_records": max_records, "max_bytes": max_bytes, "isolation": isolation}
        batches = self._scan(topic, partition, start, end, asked)
        return BatchStream(
            f"{topic}/{partition}", batches, lambda: OUTPUT_SCHEMAS[self.format_of(topic)[0]]
        )

    def _scan(
        self, topic: str, partition: int, start: int, end: int | None, asked: dict[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        patience, attempt = Patience.of(self._connection.timeout_s), 0
        while True:
            asked_from, turn = start, self._connection.servers.now.turn
            ticket = messages.encode_question(
                Question("scan", topic, partition, start, end, **asked)
            )
            try:
                reader, end = self._connection.repeat(
                    functools.partial(self._start_scan, ticket), patience
                )
                while (
                    batch := self._connection.attempt(functools.partial(_next, reader))
                ) is not None:
                    yield batch
                    start = batch.column("offset")[batch.num_rows - 1].as_py() + 1
                    patience, attempt = Patience.of(self._connection.timeout_s), 0
            except (Broken, NotPrimary) as error:
                self._connection.look_elsewhere(turn, error)
                patience.pause(attempt, error)
                attempt += 1
                continue
            if start == asked_from or end is None or start >= end:
                return  # a part without records: what is left of the range was deleted

    def _start_scan(self, ticket: bytes, options: Any) -> tuple[Any, int]:
        del options  # a scan lasts as long as its reader takes; each wait ends with the connection
        client = self._connection.client
        reader = client.do_get(flight.Ticket(ticket), self._connection.options(None))
        self._note_age(reader.schema)
        return reader, int(reader.schema.metadata[messages.END])

    def _note_age(self, schema: pa.Schema) -> None:
        """Takes note of whether a standby has answered, and how old what it sent may be."""
        told = (schema.metadata or {}).get(messages.LAG)
        self._lag_ms = None if told is None else int(told)

    def fetch(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        wait_ms: int = 0,
        isolation: Isolation = "durable",
    ) -> pa.RecordBatch:
        """Returns one batch from `start`, waiting up to `wait_ms` for it; see `StoreApi`."""
        waiting = Patience.of(wait_s(wait_ms))
        while True:
            wait_ms = self._connection.waiting_ms(waiting)
            asked = Question(
                "fetch",
                topic,
                partition,
                start,
                max_records=max_records,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                isolation=isolation,
            )
            ticket = flight.Ticket(messages.encode_question(asked))

            def ask(options: Any, ticket: Any = ticket) -> pa.RecordBatch:
                return self._connection.client.do_get(ticket, options).read_chunk().data

            patience = Patience.of(self._connection.timeout_s)
            batch = self._connection.repeat(ask, patience)
            self._note_age(batch.schema)
            if batch.num_rows or waiting.left_s <= 0.001:
                return batch

    def diff(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        limit: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        exclude_node: bytes | None = None,
    ) -> Diff:
        """Returns what is new from `start` on, over gaps, which it names; see `StoreApi`."""
        asked = Difference(topic, partition, start, limit, max_bytes, exclude_node)
        ticket = flight.Ticket(messages.encode_question(asked))

        def ask(options: Any) -> pa.RecordBatch:
            return self._connection.client.do_get(ticket, options).read_chunk().data

        patience = Patience.of(self._connection.timeout_s)
        found = self._connection.repeat(ask, patience)
        self._note_age(found.schema)
        return messages.decode_diff(found)

    # ------------------------------------------------------------------ typed topics

    def create_topic(  # noqa: PLR0913 - as in StoreApi
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = "keratin",  # the word users know
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
        schema: Any = None,
        encoding: str | None = None,
        key: str | None = None,
    ) -> None:
        """Creates a topic; a schema is sent as its text."""
        given = {"name": name, "partitions": partitions, "format": format, "exist_ok": exist_ok}
        if schema is not None:
            schema = typed_values.schema_text(schema, encoding)
        more = {"config": config, "schema": schema, "encoding": encoding, "key": key}
        given |= {name: value for name, value in more.items() if value is not None}
        try:
            call(self._connection, OPERATIONS["create_topic"], given)
        finally:
            self._described.clear()

    def set_schema(
        self,
        topic: str,
        schema: Any,
        *,
        encoding: str | None = None,
        key: str | None = None,
        compatibility: str | None = None,
        framing: str | None = None,
    ) -> TopicSchema:
        """Gives a topic the next version of its schema, sent as its text."""
        self._schemas.pop(topic, None)
        if encoding is None and (known := self.schemas(topic)):
            encoding = known[-1].encoding
        given = {"topic": topic, "schema": typed_values.schema_text(schema, encoding)}
        more = {"encoding": encoding, "key": key, "compatibility": compatibility}
        more["framing"] = framing
        given |= {name: value for name, value in more.items() if value is not None}
        made: TopicSchema = call(self._connection, OPERATIONS["set_schema"], given)
        return made

    def read(  # noqa: PLR0913 - as in TypedApi
        self,
        topic: str,
        partition: int | None = None,
        start: int | None = None,
        *,
        end: int | None = None,
        columns: Iterable[str] | None = None,
        errors: str = "raise",
        version: int | None = None,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
    ) -> pa.RecordBatchReader:
        """Streams typed columns, decoded here; see `TypedApi`."""
        if partition is None and (start is not None or end is not None):
            raise InvalidRequest("start and end are offsets of one partition: name it")
        numbers = range(self.format_of(topic)[1]) if partition is None else [partition]
        scan = functools.partial(
            self.scan, topic, start=start, end=end, max_records=max_records, max_bytes=max_bytes
        )
        scans = [(each, functools.partial(scan, partition=each)) for each in numbers]
        return typed_values.typed_batches(
            *(topic, self.schemas(topic), scans),
            later=functools.partial(self.schemas, topic),
            version=version,
            columns=columns,
            errors=errors,
        )

    def _encoded(self, topic: str, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Encodes a table with typed columns; the newest schema is asked for now and then."""
        refuse_broken(table)
        found, asked_s = self._schemas.get(topic, (None, 0.0))
        if found is None or time.monotonic() - asked_s > DESCRIBED_S:
            versions = self.schemas(topic)
            if not versions:
                record_columns.refuse_untyped(topic, table.schema.names)
            found = typed_values.newest(topic, versions)
            self._schemas[topic] = found, time.monotonic()
        return typed_values.encoded(found, table)

    # ------------------------------------------------------------------ groups

    def group(self, topic: str, name: str, *, start: Start = "earliest") -> RemoteGroup:
        """Returns a consumer group; the server makes one that is not there; see `StoreApi`."""
        given = {"topic": topic, "name": name, "start": start}
        call(self._connection, OPERATIONS["group"], given)
        format_name, _ = self.format_of(topic)
        return RemoteGroup(self._connection, topic, name, format_name)

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Ends the connection; the server goes on."""
        self._appending.shutdown()
        self._sessions.close()
        self._connection.close()


def _next(reader: Any) -> pa.RecordBatch | None:
    try:
        return reader.read_chunk().data
    except StopIteration:
        return None


def _sendable(records: Records | bytes) -> pa.RecordBatch | list[bytes]:
    """Makes what a stream carries: a few plain values as they are, everything else a batch."""
    if type(records) is bytes:
        records = [records]
    if type(records) is list and all(type(value) is bytes for value in records):
        few = len(records) <= messages.PLAIN_VALUES_MAX
        if few and sum(map(len, records)) <= messages.PLAIN_BYTES_MAX:
            return records
        return pa.RecordBatch.from_arrays([pa.array(records, pa.binary())], ["value"])
    if isinstance(records, pa.RecordBatch | pa.Table):
        refuse_broken(records)
    if isinstance(records, pa.RecordBatch):
        return _bounded(record_columns.exact(records))
    if not isinstance(records, pa.Table | list | tuple):
        record_columns.refuse_kind(records)
    table = record_columns.as_table(records)
    if table.nbytes > messages.BATCH_BYTES_MAX:
        raise InvalidRequest(f"{table.nbytes} bytes are too many for one append; send it in parts")
    batches = table.combine_chunks(memory.pool()).to_batches()
    if len(batches) == 1:
        return _bounded(record_columns.exact(batches[0]))
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in table.schema], schema=table.schema
    )


def _bounded(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.nbytes > messages.BATCH_BYTES_MAX:
        raise InvalidRequest(f"{batch.nbytes} bytes are too many for one append; send it in parts")
    return batch


def _remote(operation: Operation) -> Callable[..., Any]:
    """Makes the client's method of an operation, with the store's own signature and sentence."""

    @functools.wraps(operation.method)
    def method(self: RemoteStore, *given: Any, **named: Any) -> Any:
        bound = operation.signature.bind(*given, **named)
        try:
            return call(self._connection, operation, dict(bound.arguments))
        except UnknownTopic:
            self._described.clear()
            raise
        finally:
            if operation.name in _RESHAPING:
                self._described.clear()

    return method


for _operation in OPERATIONS.values():
    if not _operation.is_of_group and _operation.name not in vars(RemoteStore):
        setattr(RemoteStore, _operation.name, typed_call(_remote(_operation), RemoteStore._RULES))


def greet(store: RemoteStore) -> None:
    """Asks a server for a sign of life; raises Unavailable at once where it gets none.

    Other calls are tried again until their deadline, because a server may be restarting: which
    is no help to somebody who has typed a wrong address.
    """
    connection = store._connection
    asked = flight.Action("topics", messages.encode_call({}, None))
    connection.repeat(
        lambda options: list(connection.client.do_action(asked, options)),
        Patience.of(min(GREETING_S, connection.timeout_s)),
        while_refused=False,
    )
