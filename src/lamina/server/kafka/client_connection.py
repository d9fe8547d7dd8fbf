"""One client's connection: frames are read in place, and answered in their order.

    socket ─▶ buffer ─▶ frame ─▶ handler ─▶ a slot in the queue ─▶ socket, when all before it are

Rules.
1. Answers leave in the order of requests, whatever handler is ready first.
2. Reading pauses while too many answers are owed, while the client takes none, and while the
   server has no room for a large request: that is how Kafka's clients are told to slow down. So
   it does while a key has used up its bytes per second (`throttling`).
3. A frame's length is checked before room is made for it, and room grows with what has come.
4. What cannot be a Kafka client (TLS, HTTP, garbage) is disconnected and logged once.
5. A client is disconnected that needs `idle.ms` for a request of which less than `PROGRESS_BYTES`
   come meanwhile, for presenting its key, or for taking an answer that lies ready. So is one that
   asked for nothing for `SILENT_S`: it may have gone without a word.
6. What requests become in memory counts: bytes of records as they are, all else `PARSED_FACTOR`
   times, because lists of small parts become Python objects.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from lamina.errors import Busy, LaminaError, NotAllowed
from lamina.server import limits
from lamina.server.kafka import handling, throttling
from lamina.server.kafka.sessions import Call, Doorway, Later, Session
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.framing import LENGTH
from lamina.wire.kafka.record_apis import PRODUCE

START_BYTES = 8 << 10
STEP_BYTES = 2 << 20
"""Room for a large request is made in steps of at least this, and of what has come already."""
KEPT_BYTES = 64 << 10
"""A larger buffer is given up as soon as it is empty."""
OWED_MAX = 64
STRANGER_BYTES = 64 << 10
"""How much a client may send at once before it has presented its key."""
SILENT_S = 600.0
"""As long as Kafka's `connections.max.idle.ms`."""
PROGRESS_BYTES = 1 << 20
PARSED_FACTOR = 32
PARSED_FREE_BYTES = 8 << 10
"""A request without records is not counted up to this size."""
_API_KEY = struct.Struct(">h")
_ROOM_PAUSE_S = 0.02
_log = logging.getLogger("lamina.server")
_STRANGERS = {
    b"\x16\x03": "TLS",
    **dict.fromkeys((b"GET ", b"POST", b"HEAD"), "HTTP"),
    b"PRI ": "Arrow Flight, or other HTTP/2",
}


@dataclass(slots=True)
class _Slot:
    """The place of an answer in the queue."""

    pieces: list[Any] | None = None
    is_done: bool = False
    held_bytes: int = 0
    ends: bool = False


def _joined(pieces: list[Any]) -> Iterator[Any]:
    """Yields the pieces of an answer: large ones as they are, small neighbours as one."""
    small: list[Any] = []
    size = 0
    for piece in pieces:
        is_large = len(piece) > KEPT_BYTES
        if small and (is_large or size > KEPT_BYTES):
            yield b"".join(small)
            small, size = [], 0
        if is_large:
            yield piece
        elif len(piece):
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)


class ClientConnection(asyncio.BufferedProtocol):
    """A connection, from accept to close."""

    def __init__(self, door: Doorway, connections: set[ClientConnection]) -> None:
        self._door = door
        self._connections = connections
        self._fresh(START_BYTES, b"")
        self._owed: deque[_Slot] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pauses: set[str] = set()
        self._unsent_bytes = 0
        self._reserved_bytes = 0
        self._delayed_until = 0.0
        self._idle: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._partial_bytes = 0
        self._transport: asyncio.Transport | None = None
        self.session: Session | None = None

    # ------------------------------------------------------------------ life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins a session, or refuses one too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        peer = transport.get_extra_info("peername") or ("?", 0)
        local = transport.get_extra_info("sockname") or ("127.0.0.1", 0)
        if len(self._connections) > self._door.connections_max:
            self._door.turn_away(str(peer[0]))
            self._transport.close()
            return
        self.session = Session(str(peer[0]), str(local[0]), self, self._door.anybody())
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        wait_s = SILENT_S if self.session.caller is not None else self._idle_s
        self._silence = loop.call_later(wait_s, self._look_for_silence)

    @property
    def _idle_s(self) -> float:
        return self._door.broker.settings.idle_ms / 1000

    def _look_for_silence(self) -> None:
        """Ends a connection that is used for nothing: looked at now and then."""
        assert self.session is not None
        loop = asyncio.get_running_loop()
        if self.session.caller is None:
            self._silence = None
            self._end_with("presented no key in time")
            return
        left_s = self._heard_at + SILENT_S - loop.time() if not self._owed else SILENT_S
        if left_s <= 0:
            self._silence = None
            self.close()
            return
        self._silence = loop.call_later(left_s, self._look_for_silence)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what was being done for the client; what it appended stays."""
        self._connections.discard(self)
        for timer in (self._idle, self._stall, self._silence):
            if timer is not None:
                timer.cancel()
        held = self._unsent_bytes + self._reserved_bytes
        held += sum(slot.held_bytes for slot in self._owed)
        self._owed.clear()
        self._unsent_bytes = self._reserved_bytes = 0
        self._door.broker.inflight.give_back(held)
        self._transport = None
        for task in self._tasks:
            task.cancel()
        for ending in self.session.endings.values() if self.session is not None else ():
            ending()

    def close(self) -> None:
        """Closes the connection once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Closes the connection at once, whatever its client still owes."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ reading

    def _fresh(self, size: int, rest: bytes | memoryview) -> None:
        # Not zeroed: what a client only announces takes no memory before it comes.
        self._buffer = np.empty(max(size, len(rest)), dtype=np.uint8).data
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        self._wanted = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns where the next bytes go."""
        del sizehint
        if self._end == len(self._buffer):
            there = self._end - self._start
            if self._start > 0 and there < len(self._buffer) >> 1:
                self._buffer[:there] = self._buffer[self._start : self._end]
                self._start, self._end = 0, there
            else:
                size = min(max(2 * there, STEP_BYTES), max(self._wanted, there + START_BYTES))
                self._fresh(max(size, there + START_BYTES), self._buffer[self._start : self._end])
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handles every frame that is whole."""
        self._end += nbytes
        self._handle_frames()

    def eof_received(self) -> bool:
        """Closes when the client has closed: nobody waits for answers."""
        return False

    def keep_frame(self) -> None:
        """Gives the buffer to the request that is being handled, and reads on in another."""
        self._fresh(START_BYTES, self._buffer[self._start : self._end])

    def _handle_frames(self) -> None:
        while self._transport is not None and not self._pauses:
            there = self._end - self._start
            if there < LENGTH.size:
                break
            (size,) = LENGTH.unpack_from(self._buffer, self._start)
            takes = self._takes(size, there)
            if takes is None:
                break
            if not takes:
                return
            if there < LENGTH.size + size:
                self._wanted = LENGTH.size + size
                break
            frame = self._buffer[self._start + LENGTH.size : self._start + LENGTH.size + size]
            self._start += LENGTH.size + size
            self._forget_idle()
            self._heard_at = asyncio.get_running_loop().time()
            self._handle(frame)
            frame = self._buffer[:0]
        self._settle()

    def _settle(self) -> None:
        """Makes the buffer small again when it is empty; watches the clock when it is not."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BYTES:
                self._fresh(START_BYTES, b"")
        is_partial = self._start < self._end and not self._pauses
        if is_partial and self._idle is None:
            self._partial_bytes = self._end - self._start
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._idle_s, self._look_for_progress)
        elif not is_partial:
            self._forget_idle()

    def _forget_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _look_for_progress(self) -> None:
        self._idle = None
        if self._end - self._start < self._partial_bytes + PROGRESS_BYTES:
            self._end_with("sent part of a request and no more")
        else:
            self._settle()

    def _takes(self, size: int, there: int) -> bool | None:
        """Checks a frame's length, and reserves room for a large one; False while there is none.

        None where more of it has to come first, to know what it is.
        """
        assert self.session is not None
        limit = self._door.broker.settings.request_bytes + limits.HEAD_BYTES
        if self.session.caller is None:
            limit = STRANGER_BYTES
        if not 0 < size <= limit:
            head = bytes(self._buffer[self._start : self._start + 4])
            kind = next(
                (name for begin, name in _STRANGERS.items() if head.startswith(begin)), None
            )
            self._end_with(f"speaks {kind}" if kind else f"announced a request of {size} bytes")
            return False
        if size <= PARSED_FREE_BYTES:
            return True
        if there < LENGTH.size + _API_KEY.size:
            return None
        (key,) = _API_KEY.unpack_from(self._buffer, self._start + LENGTH.size)
        has_records = key == PRODUCE.key
        if has_records and size <= KEPT_BYTES:
            return True
        return self._reserve(size if has_records else size * PARSED_FACTOR)

    def _reserve(self, cost_bytes: int) -> bool:
        if self._reserved_bytes < cost_bytes:
            missing = cost_bytes - self._reserved_bytes
            try:
                self._door.broker.inflight.take(missing, self._reserved_bytes)
            except Busy:
                self._forget_idle()  # it is not the client who makes us wait
                self._pause("room")
                loop = asyncio.get_running_loop()
                loop.call_later(_ROOM_PAUSE_S, self._resume, "room")
                return False
            self._reserved_bytes = cost_bytes
        return True

    # ------------------------------------------------------------------ answering

    def _handle(self, frame: memoryview) -> None:
        assert self.session is not None
        self._door.received.inc(len(frame))
        slot = _Slot(held_bytes=self._reserved_bytes)
        self._reserved_bytes = 0
        self._owed.append(slot)
        try:
            call, correlation_id, answer = handling.begin(self._door, self.session, frame)
            if isinstance(answer, dict):
                self._answer(slot, call, correlation_id, answer)
                return
            if isinstance(answer, Later):
                answer.send = partial(self._answer_later, slot, call, correlation_id)
                return
        except LaminaError as error:
            self._end_with(str(error))
            return
        except Exception:
            self._failed()
            return
        finally:
            if len(self._owed) >= OWED_MAX:
                self._pause("owed")
        waiting = self._later(slot, call, correlation_id, answer)
        task = asyncio.get_running_loop().create_task(waiting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _answer_later(
        self, slot: _Slot, call: Call, correlation_id: int, answer: Message | None
    ) -> None:
        try:
            self._answer(slot, call, correlation_id, answer)
        except Exception:
            self._failed()

    async def _later(
        self, slot: _Slot, call: Call, correlation_id: int, answer: Awaitable[Message | None]
    ) -> None:
        try:
            self._answer(slot, call, correlation_id, await answer)
        except LaminaError as error:
            self._end_with(str(error))
        except Exception:
            self._failed()

    def end_if_revoked(self) -> None:
        """Hangs up on a client whose key is known no more."""
        if self.session is None or self.session.caller is None:
            return
        try:
            self._door.broker.renewed(self.session.caller)
        except NotAllowed as error:
            self._end_with(str(error))
            self.drop()

    def _answer(self, slot: _Slot, call: Call, correlation_id: int, answer: Message | None) -> None:
        if self._transport is None:  # it hung up: what it held otherwise was given back then
            self._door.broker.inflight.give_back(call.held_bytes)
            return
        slot.held_bytes += call.held_bytes
        slot.is_done, slot.ends = True, call.session.refused
        self._delay(throttling.delay_s(call), answer)
        if answer is not None:
            slot.pieces = handling.answer_frame(call, correlation_id, answer)
        self._send()

    def _delay(self, seconds: float, answer: Message | None) -> None:
        """Reads no more for so long, and says so in the answer: its key has used up its bytes."""
        if not seconds:
            return
        if answer is not None:
            answer["throttle_time_ms"] = throttling.told_ms(seconds)
        loop = asyncio.get_running_loop()
        self._delayed_until = max(self._delayed_until, loop.time() + seconds)
        self._pause("quota")
        loop.call_at(self._delayed_until, self._end_delay)

    def _end_delay(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._delayed_until:
            self._resume("quota")
        else:  # a later delay, or a timer that was early: some loops count whole milliseconds
            loop.call_later(max(0.001, self._delayed_until - loop.time()), self._end_delay)

    def _send(self) -> None:
        """Writes the answers whose turn has come."""
        if self._transport is None:
            return
        while self._owed and self._owed[0].is_done and "client" not in self._pauses:
            slot = self._owed.popleft()
            self._unsent_bytes += slot.held_bytes
            if slot.pieces is not None:
                self._write(self._transport, slot.pieces)
            if slot.ends:
                self._abort()
                return
        if "client" not in self._pauses:
            self._door.broker.inflight.give_back(self._unsent_bytes)
            self._unsent_bytes = 0
        if "owed" in self._pauses and len(self._owed) < OWED_MAX >> 1:
            self._resume("owed")

    def _write(self, transport: asyncio.Transport, pieces: list[Any]) -> None:
        """Hands an answer over by `write` alone.

        `writelines` of some versions of CPython 3.12 and 3.13 raises TypeError where the client has
        just hung up, and never says that its buffer is full.
        """
        was_closing = transport.is_closing()
        for piece in _joined(pieces):
            if transport.is_closing() and not was_closing:
                break  # the client hung up as it was written
            transport.write(memoryview(piece))
            self._door.sent.inc(len(piece))

    def pause_writing(self) -> None:
        """Is told that the client does not take its answers: what it holds, others wait for."""
        self._pause("client")
        if self._stall is None:
            loop = asyncio.get_running_loop()
            self._stall = loop.call_later(self._idle_s, self._stalled)

    def resume_writing(self) -> None:
        """Is told that the client has taken what was written."""
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._resume("client")

    def _stalled(self) -> None:
        self._stall = None
        self._end_with("did not take its answer")
        self.drop()

    def _pause(self, why: str) -> None:
        self._pauses.add(why)
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def _resume(self, why: str) -> None:
        self._pauses.discard(why)
        if self._transport is None:
            return
        if why == "client":
            self._send()
        if not self._pauses:
            self._handle_frames()
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()

    # ------------------------------------------------------------------ ends

    def _end_with(self, why: str) -> None:
        assert self.session is not None
        self._door.note_disconnected(self.session.host, self.session.name, why)
        self._abort()

    def _failed(self) -> None:
        assert self.session is not None
        _log.exception("a request of Kafka client %s failed", self.session.name)
        self._abort()

    def _abort(self) -> None:
        """Reads no more, and closes once what was written is sent."""
        self._pause("ended")
        if self._transport is not None:
            self._transport.close()
