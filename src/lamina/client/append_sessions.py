"""Append sessions: who a client is to the server, and its open stream.

A session is one idempotent producer: it numbers its records for each partition and has one append
on the way at a time. So after a broken connection there is at most one append whose fate is
unknown, and asking again with the same number either gets its first answer or stores it now.

    idle ──take──▶ appending ──answer──▶ idle
                       └──broken──▶ reconnect, same number ──▶ …
                       └──given up──▶ forgotten: its next number is not known

Rules.
1. A number advances only with an answer that says "stored".
2. A session whose last append was given up, or failed in a way that may have left it stored, is
   never used again: under its number, the next append would get the answer of that one.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyarrow import flight

from lamina.api import Appended, ProducerStamp
from lamina.client.connection import Broken, Connection, Patience
from lamina.errors import (
    Busy,
    InvalidRequest,
    LaminaError,
    NotPrimary,
    OutOfSequence,
    Unavailable,
)
from lamina.wire import messages
from lamina.wire.messages import Order

SESSIONS_MAX = 64
_WATCH_S = 0.05
_FRESH_STARTS_MAX = 3


@dataclass(slots=True, eq=False)
class _Stream:
    """An open exchange."""

    writer: Any
    reader: Any
    turn: int
    """At which turn of the connection it was opened: at another one, to another server."""
    deadline: float | None = None
    is_over: bool = False

    def close(self) -> None:
        self.is_over = True
        for end in (self.reader.cancel, self.writer.close):
            with contextlib.suppress(Exception):  # it is given up whatever its ends say
                end()


@dataclass(slots=True, eq=False)
class Session:
    """One producer's numbers and stream; used by one thread at a time."""

    producer_id: int = field(default_factory=lambda: secrets.randbits(62))
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    stream: _Stream | None = None

    def drop_stream(self) -> None:
        """Gives the stream up, if there is one."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()


class Sessions:
    """The sessions of a client: taken for one append, made when all are busy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._idle: list[Session] = []
        self._lock = threading.Lock()
        self._room = threading.Semaphore(SESSIONS_MAX)
        self._watched: set[_Stream] = set()
        self._watchdog: threading.Thread | None = None
        self._closed = threading.Event()

    def append(
        self,
        order: Order,
        records: pa.RecordBatch | list[bytes],
        timeout_s: float,
        *,
        stamps: bool,
    ) -> Appended:
        """Appends to one partition, once, however often it has to be sent.

        Without a stamp, the session's or the caller's own, it is sent only once.
        """
        patience = Patience.of(timeout_s)
        if not self._room.acquire(timeout=patience.left_s):
            raise Unavailable(f"{SESSIONS_MAX} appends of this client are still on their way")
        try:
            with self._lock:
                session = self._idle.pop() if self._idle else Session()
            return self._persist(session, order, records, patience, stamps=stamps)
        finally:
            self._room.release()

    def _persist(
        self, session: Session, order: Order, records: Any, patience: Patience, *, stamps: bool
    ) -> Appended:
        """Sends until an answer comes, and gives the session back if it can go on."""
        starts = 0
        for attempt in itertools.count():
            turn = self._connection.servers.now.turn
            where = (order.topic, order.partition or 0)
            sequence = session.sequences.get(where, 0)
            if stamps:
                stamp = ProducerStamp(session.producer_id, 0, sequence)
                order = Order(order.topic, order.partition, order.acks, producer=stamp)
            try:
                appended = self._once(session, order, records, patience)
                if stamps:
                    session.sequences[where] = sequence + appended.count
                self._give_back(session)
                return appended
            except (Broken, NotPrimary) as error:
                session.drop_stream()
                self._connection.require_open()
                if order.producer is None and _may_be_done(error):
                    raise Unavailable(f"{error}; whether it was stored is not known") from error
                self._connection.look_elsewhere(turn, error)
                patience.pause(attempt, error)
            except OutOfSequence:
                # With one append on the way, this says that it was not stored: the server has
                # forgotten earlier ones (they were not fsynced). Go on as somebody new.
                starts += 1
                if not stamps or starts > _FRESH_STARTS_MAX:
                    raise
                session = Session(stream=session.stream)
            except Busy as error:
                try:
                    patience.pause(attempt, error)
                except Busy:
                    self._give_back(session)
                    raise
            except InvalidRequest:  # refused for what it is: nothing of it was stored
                self._give_back(session)
                raise
            except LaminaError:
                # A failed write may be found again by recovery, and records that are not archived
                # in time are stored all the same. The number may be taken: never use it again.
                self._give_back(Session(stream=session.stream))
                raise
        raise AssertionError("the loop ends by itself")

    def _give_back(self, session: Session) -> None:
        with self._lock:
            closed = self._closed.is_set()
            if not closed:
                self._idle.append(session)
        if closed:
            session.drop_stream()

    def _once(self, session: Session, order: Order, records: Any, patience: Patience) -> Appended:
        stream = self._stream_of(session)
        sent = Order(order.topic, order.partition, order.acks, patience.left_s, order.producer)
        message = messages.encode_append(sent, records)
        stream.deadline = time.monotonic() + self._connection.attempt_s(patience)
        try:
            answer = self._connection.attempt(lambda: _exchange(stream, message))
        except LaminaError:  # it came from the stream itself, which is over
            session.drop_stream()
            raise
        finally:
            stream.deadline = None
        return messages.decode_answer(answer)

    def _stream_of(self, session: Session) -> _Stream:
        server = self._connection.servers.now
        if session.stream is not None and session.stream.turn != server.turn:
            session.drop_stream()
        if session.stream is not None:
            return session.stream

        def start() -> _Stream:
            descriptor = flight.FlightDescriptor.for_command(messages.APPEND)
            options = self._connection.options(None)
            writer, reader = server.client.do_exchange(descriptor, options)
            stream = _Stream(writer, reader, server.turn)
            writer.begin(messages.NO_COLUMNS)
            return stream

        session.stream = stream = self._connection.attempt(start)
        self._watch_over(stream)
        return stream

    # ------------------------------------------------------------------ deadlines

    def _watch_over(self, stream: _Stream) -> None:
        """Cancels the stream when an answer does not come by its deadline."""
        with self._lock:
            self._watched.add(stream)
            if self._watchdog is None:
                self._watchdog = threading.Thread(
                    target=self._watch, name="lamina-client-deadlines", daemon=True
                )
                self._watchdog.start()

    def _watch(self) -> None:
        while not self._closed.wait(_WATCH_S):
            now = time.monotonic()
            with self._lock:
                late = [
                    each
                    for each in self._watched
                    if (deadline := each.deadline) is not None and deadline < now
                ]
                self._watched.difference_update(late)
                self._watched = {each for each in self._watched if not each.is_over}
            for stream in late:
                with contextlib.suppress(Exception):  # gone already
                    stream.reader.cancel()

    def close(self) -> None:
        """Ends all idle streams; those at work end with their answer."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.drop_stream()


def _may_be_done(error: LaminaError) -> bool:
    return not isinstance(error, NotPrimary) or error.was_begun


def _exchange(stream: _Stream, message: pa.Buffer | bytes) -> bytes:
    stream.writer.write_metadata(message)
    answer: bytes = stream.reader.read_chunk().app_metadata.to_pybytes()
    return answer
