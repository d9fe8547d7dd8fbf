"""Arrow Flight in front of the broker: open streams for appends, streams of batches for readers.

    DoExchange "append"   batches in, an answer each out, for as long as the producer likes
    DoGet                 a scan, a fetch, a group's poll, a diff (`wire.messages.Ticket`)
    DoAction NAME         an operation of the table (`wire.operations`)

Rules.
1. A failed append is answered on its stream, which goes on; only a broken stream ends it.
2. Every error that leaves is typed and structured; anything else is logged here and leaves as
   one sentence, without a traceback.
3. A call holds its room until Flight says that it is over: not only while its handler runs, but
   also before the first message of a stream came, and while an answer waits to be read.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from lamina.errors import InvalidRequest, LaminaError, NotAllowed, Unavailable
from lamina.server import limits
from lamina.server.auth import Caller, bearer
from lamina.server.broker import Broker
from lamina.server.held_answers import Answer
from lamina.server.tracing import TRACEPARENT, TRACESTATE
from lamina.wire import failures, memory, messages, values
from lamina.wire.operations import OPERATIONS

_log = logging.getLogger("lamina.server")
_Result = TypeVar("_Result")
_CALL = "call"
_STREAMS = (flight.FlightMethod.DO_EXCHANGE, flight.FlightMethod.DO_PUT)
_THERE_ARE = "see DoExchange 'append', DoGet, DoAction"


def _leaving(error: LaminaError) -> Exception:
    """Dresses an error for gRPC; its status is for strangers, the details are for our client."""
    kind: Callable[..., Exception] = flight.FlightServerError
    if isinstance(error, NotAllowed):
        kind = flight.FlightUnauthorizedError
    elif isinstance(error, Unavailable):
        kind = flight.FlightUnavailableError
    described = failures.to_object(error)
    return kind(described["message"], json.dumps(described).encode())


def _typed(handler: Callable[..., _Result]) -> Callable[..., _Result]:
    """Lets only structured errors out of a handler."""

    @functools.wraps(handler)
    def guarded(*arguments: Any) -> _Result:
        try:
            return handler(*arguments)
        except LaminaError as error:
            raise _leaving(error) from None
        except flight.FlightError:
            raise
        except Exception:
            _log.exception("%s failed", handler.__name__)
            raise flight.FlightInternalError("the server failed; its log says how") from None

    return guarded


class _Call(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no type information
    """One call: who makes it, and what it holds from its headers to the end of its answer."""

    def __init__(self, headers: dict[str, str], answer: Answer) -> None:
        self.authorization = headers.get("authorization")
        self.headers = headers
        self.answer = answer

    def call_completed(self, exception: Exception | None) -> None:
        """Gives back what the call held, however it ended."""
        del exception
        self.answer.close()


class _Calls(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Admits calls. A stream takes its room here: its first message may never come."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Call:
        """Begins a call; raises for one that would hold a thread without leave."""
        call = _Call(_looked_at(headers), self._broker.answer())
        if info.method in _STREAMS:
            self._begin_stream(call, info.method)
        return call

    @_typed
    def _begin_stream(self, call: _Call, method: Any) -> None:
        try:
            caller = self._broker.caller(bearer(call.authorization))
        except NotAllowed as error:
            self._broker.refusals.note_stranger("flight", "?", error)
            raise
        if method != flight.FlightMethod.DO_EXCHANGE:
            raise InvalidRequest(f"there is no upload here; {_THERE_ARE}")
        caller.require_scope("write", "append")
        call.answer.hold(self._broker.streams.taking())


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]
    """The Flight server; it listens as soon as it is made."""

    def __init__(
        self, broker: Broker, location: str, *, tls: tuple[bytes, bytes] | None = None
    ) -> None:
        self._broker = broker
        self._metrics = broker.metrics
        memory.keep_freed()
        certificates = [tls] if tls is not None else None
        super().__init__(
            location,
            tls_certificates=certificates,
            middleware={_CALL: _Calls(broker)},
        )

    def _caller(self, context: Any) -> Caller:
        call = context.get_middleware(_CALL)
        try:
            caller = self._broker.caller(bearer(call.authorization))
        except NotAllowed as error:
            self._broker.refusals.note_stranger("flight", context.peer(), error)
            raise
        if messages.HOLDER_ONLY in call.headers:
            self._broker.place.require_holder()
        return caller

    def _within(self, context: Any) -> contextlib.AbstractContextManager[None]:
        """Continues the trace that the headers of a call name."""
        return self._broker.tracing.within(context.get_middleware(_CALL).headers)

    @_typed
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answers the appends of one producer, one after the other."""
        caller = self._caller(context)
        if descriptor.command != messages.APPEND:
            raise InvalidRequest("the only exchange is 'append'")
        caller.require_scope("write", "append")
        _refuse_columns(reader)
        with self._within(context):
            self._take_orders(caller, reader, writer)

    def _take_orders(self, caller: Caller, reader: Any, writer: Any) -> None:
        sent, received = (each["flight"] for each in (self._metrics.sent, self._metrics.received))
        while True:
            try:
                chunk = reader.read_chunk()
            except (StopIteration, flight.FlightError, pa.ArrowException, OSError):
                return  # the producer is done, or gone
            answer = self._answer(caller, chunk)
            received.inc(len(chunk.app_metadata or b""))
            sent.inc(len(answer))
            try:
                writer.write_metadata(answer)
            except (flight.FlightError, pa.ArrowException, OSError):
                return  # gone before its answer: it will ask again
            self._broker.renewed(caller)  # a revoked key ends its stream, with this answer

    def _answer(self, caller: Caller, chunk: Any) -> bytes:
        try:
            if chunk.app_metadata is None:
                raise InvalidRequest("an append says in its metadata where to")
            limit = self._broker.settings.request_bytes
            order, records = messages.decode_order(chunk.app_metadata, limit)
            if records is None:
                raise InvalidRequest("an append has records")
            return messages.encode_appended(self._broker.append(caller, order, records))
        except LaminaError as error:
            return messages.encode_failed(error)
        except Exception:
            _log.exception("an append failed")
            return messages.encode_failed(Unavailable("the server failed; its log says how"))

    @_typed
    def do_get(self, context: Any, ticket: Any) -> Any:
        """Sends records: all of a scan, or one batch."""
        caller = self._caller(context)
        if len(ticket.ticket) > messages.TICKET_BYTES_MAX:
            raise InvalidRequest(f"a ticket has at most {messages.TICKET_BYTES_MAX} bytes")
        asked = messages.decode_question(ticket.ticket)
        answer = context.get_middleware(_CALL).answer
        answer.is_gone = context.is_cancelled
        with self._within(context):
            return self._found(caller, asked, answer)

    def _found(self, caller: Caller, asked: Any, answer: Answer) -> Any:
        if isinstance(asked, messages.Question) and asked.kind == "scan":
            answer.hold(self._broker.streams.taking())
            schema, batches = self._broker.scan(caller, asked)
            schema = schema.with_metadata(schema.metadata | self._age())
            return flight.GeneratorStream(schema, _typed_batches(self._counted(batches)))
        answer.hold(self._broker.room_for(getattr(asked, "wait_ms", 0)))
        if isinstance(asked, messages.Poll):
            batch = self._broker.poll(caller, asked, answer)
            self._metrics.sent["flight"].inc(batch.nbytes)
            return flight.GeneratorStream(batch.schema, _handed_out(batch, answer))
        if isinstance(asked, messages.Difference):
            found = self._broker.diff(caller, asked, answer)
            self._metrics.sent["flight"].inc(found.records.nbytes)
            told = {messages.DIFF: messages.encode_diff(found)}
            return _stream_of(found.records, told | self._age())
        batch = self._broker.fetch(caller, asked, answer)
        self._metrics.sent["flight"].inc(batch.nbytes)
        return _stream_of(batch, self._age() or None)

    def _age(self) -> dict[bytes, bytes]:
        """Returns how old records may be that a standby sends, as metadata of their schema."""
        lag_ms = self._broker.place.lag_ms()
        return {} if lag_ms is None else {messages.LAG: str(lag_ms).encode()}

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._metrics.sent["flight"].inc(batch.nbytes)
            yield batch

    @_typed
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Runs an operation of the table."""
        caller = self._caller(context)
        body = action.body
        limits.check_size(body.size, self._broker.settings.request_bytes)
        answer = context.get_middleware(_CALL).answer
        answer.hold(self._broker.calls.taking())
        header, held = messages.split_call(body.to_pybytes())
        self._metrics.received["flight"].inc(body.size)
        with self._within(context), self._broker.working_on(header, len(held)):
            result = self._broker.call(caller, action.type, messages.decode_object(header), held)
        return [json.dumps(values.to_plain(result)).encode()]

    @_typed
    def list_flights(self, context: Any, criteria: Any) -> None:
        """Refuses: topics are listed by the action 'topics'."""
        del criteria
        self._refuse(context, "ListFlights")

    @_typed
    def get_flight_info(self, context: Any, descriptor: Any) -> None:
        """Refuses: a ticket is made by whoever asks."""
        del descriptor
        self._refuse(context, "GetFlightInfo")

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Returns the schema of every exchange; pyarrow would send a traceback with an error."""
        del context, descriptor
        return flight.SchemaResult(messages.NO_COLUMNS)

    def _refuse(self, context: Any, name: str) -> None:
        self._caller(context)
        raise InvalidRequest(f"there is no {name} here; {_THERE_ARE}")

    @_typed
    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Lists the operations, for clients that are not ours."""
        self._caller(context)
        return [
            (name, (operation.method.__doc__ or "").splitlines()[0])
            for name, operation in OPERATIONS.items()
        ]

    def stop_soon(self) -> None:
        """Takes no new calls; open streams may end by themselves, and are not waited for."""
        threading.Thread(target=self.shutdown, name="lamina-flight-stop", daemon=True).start()


def _looked_at(headers: dict[str, list[str]]) -> dict[str, str]:
    """Returns the headers that anything depends on, by their names in small letters."""
    small = {name.lower(): values for name, values in headers.items()}
    wanted = ("authorization", messages.HOLDER_ONLY, TRACEPARENT, TRACESTATE)
    return {name: str(small[name][0]) for name in wanted if small.get(name)}


def _refuse_columns(reader: Any) -> None:
    """Refuses an exchange that would carry batches of its own.

    Flight hands a batch over only when it has decoded it: decompressed, however large, and with
    offsets that nobody checked. Without columns there is nothing that it could decode.
    """
    try:
        schema = reader.schema
    except (StopIteration, flight.FlightError, pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"an exchange begins with a schema: {str(error)[:200]}") from None
    if len(schema):
        raise InvalidRequest(
            "an append's records travel in the metadata behind its order; the exchange begins with"
            " a schema without columns"
        )


def _stream_of(batch: pa.RecordBatch, metadata: dict[bytes, bytes] | None = None) -> Any:
    """One batch, as what a handler gives back."""
    if metadata is not None:
        batch = batch.replace_schema_metadata(metadata)
    return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(batch.schema, [batch]))


def _handed_out(batch: pa.RecordBatch, answer: Answer) -> Iterator[pa.RecordBatch]:
    """Yields one batch; Flight asks for a second one only if the first has left."""
    yield batch
    answer.sent()


def _typed_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except LaminaError as error:
        raise _leaving(error) from None
    except (flight.FlightError, GeneratorExit):
        raise
    except Exception:
        _log.exception("a scan failed")
        raise flight.FlightInternalError("the server failed; its log says how") from None
