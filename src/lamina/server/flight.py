"""Arrow Flight in front of the broker: open streams for appends, streams of batches for readers.

    DoExchange "append"   batches in, an answer each out, for as long as the producer likes
    DoGet                 a scan, a fetch, a group's poll, a diff (`wire.messages.Ticket`)
    DoAction NAME         an operation of the table (`wire.operations`)

Rules.
1. A failed append is answered on its stream, which goes on; only a broken stream ends it.
2. Every error that leaves is typed and structured; anything else is logged here and leaves as
   one sentence, without a traceback.
"""

from __future__ import annotations

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
from lamina.wire import failures, memory, messages, values
from lamina.wire.operations import OPERATIONS

_log = logging.getLogger("lamina.server")
_Result = TypeVar("_Result")
_HEADERS = "headers"


class _Headers(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no type information
    """Keeps a call's authorization until its handler asks."""

    def __init__(self, authorization: str | None) -> None:
        self.authorization = authorization


class _HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Headers:
        found = next((v for k, v in headers.items() if k.lower() == "authorization"), [])
        return _Headers(str(found[0]) if found else None)


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


class FlightDoor(flight.FlightServerBase):  # type: ignore[misc]
    """The Flight server; it listens as soon as it is made."""

    def __init__(
        self, broker: Broker, location: str, *, tls: tuple[bytes, bytes] | None = None
    ) -> None:
        self._broker = broker
        memory.keep_freed()
        certificates = [tls] if tls is not None else None
        super().__init__(
            location,
            tls_certificates=certificates,
            middleware={_HEADERS: _HeadersFactory()},
        )

    def _caller(self, context: Any) -> Caller:
        headers = context.get_middleware(_HEADERS)
        try:
            return self._broker.caller(bearer(headers.authorization))
        except NotAllowed as error:
            _log.warning("refused a call from %s: %s", context.peer(), error)
            raise

    @_typed
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answers the appends of one producer, one after the other."""
        caller = self._caller(context)
        if descriptor.command != messages.APPEND:
            raise InvalidRequest("the only exchange is 'append'")
        with self._broker.streams.taking():
            while True:
                try:
                    chunk = reader.read_chunk()
                except (StopIteration, flight.FlightError, pa.ArrowException, OSError):
                    return  # the producer is done, or gone
                answer = self._answer(caller, chunk)
                try:
                    writer.write_metadata(answer)
                except (flight.FlightError, pa.ArrowException, OSError):
                    return  # gone before its answer: it will ask again

    def _answer(self, caller: Caller, chunk: Any) -> bytes:
        try:
            if chunk.app_metadata is None:
                raise InvalidRequest("an append says in its metadata where to")
            order, plain = messages.decode_order(chunk.app_metadata.to_pybytes())
            records = plain if plain is not None else chunk.data
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
        asked = messages.decode_question(ticket.ticket)
        if isinstance(asked, messages.Poll):
            return _stream_of(self._broker.poll(caller, asked, context.is_cancelled))
        if isinstance(asked, messages.Difference):
            found = self._broker.diff(caller, asked)
            return _stream_of(found.records, {messages.DIFF: messages.encode_diff(found)})
        if asked.kind == "fetch":
            return _stream_of(self._broker.fetch(caller, asked))
        schema, batches = self._broker.scan(caller, asked)
        return flight.GeneratorStream(schema, _typed_batches(batches))

    @_typed
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Runs an operation of the table."""
        caller = self._caller(context)
        body = action.body
        limits.check_size(body.size, self._broker.settings.request_bytes)
        result = self._broker.call(caller, action.type, messages.decode_call(body.to_pybytes()))
        return [json.dumps(values.to_plain(result)).encode()]

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


def _stream_of(batch: pa.RecordBatch, metadata: dict[bytes, bytes] | None = None) -> Any:
    """One batch, as what a handler gives back."""
    if metadata is not None:
        batch = batch.replace_schema_metadata(metadata)
    return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(batch.schema, [batch]))


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
