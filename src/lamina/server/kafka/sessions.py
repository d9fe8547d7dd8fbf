"""What handlers see: the server around them, the client in front of them, and one request.

ClientConnection ──makes──▶ Call(door, session, …) ──▶ a handler ──▶ the response's fields
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from prometheus_client import Counter

from lamina.errors import Busy, LaminaError
from lamina.server import telling
from lamina.server.auth import ANYBODY, Caller
from lamina.server.broker import Broker
from lamina.server.kafka.error_table import code_for
from lamina.server.kafka.share_sessions import ShareSessions
from lamina.server.kafka.topic_ids import TopicIds
from lamina.server.log_lines import printable
from lamina.store.store import Store
from lamina.wire.kafka.codec import Message
from lamina.wire.kafka.error_codes import ErrorCode
from lamina.wire.operations import Scope

FULL_TOLD_S = 60.0
TOLD_MAX = 1000
"""How many reasons to disconnect a host are remembered, each of which is logged once."""
_NUMBER = re.compile(r"-?\d+")
_log = logging.getLogger("lamina.server")
Result = TypeVar("Result")
Handler: TypeAlias = Callable[["Call"], "Message | Later | Awaitable[Message | None]"]
"""Answers a request: at once, or when what it returns is done. None is no answer at all."""
SMALL_BYTES = 64 << 10
"""What is smaller is decoded in the event loop: a thread would cost more than it saves."""


class Later:
    """An answer that a callback will give: cheaper than a task, for what comes often."""

    __slots__ = ("_is_answered", "send")

    def __init__(self) -> None:
        self._is_answered = False
        self.send: Callable[[Message | None], None]
        """Sends the answer; set by the connection as soon as the handler has returned."""

    def answer(self, answer: Message | None) -> None:
        """Sends the answer; a second one, to a client whose time was up, is dropped."""
        if not self._is_answered:
            self._is_answered = True
            self.send(answer)


class Waking(Protocol):
    """What a long poll waits for."""

    def wake(self) -> None:
        """Ends the waiting."""


class Frames(Protocol):
    """The connection as a handler needs it."""

    def keep_frame(self) -> None:
        """Leaves the bytes of the present request alone, also after its handler has returned."""


@dataclass(slots=True)
class Session:
    """A connected client: who it is, and what it does in order."""

    host: str
    local_host: str
    frames: Frames
    caller: Caller | None
    client_id: str = ""
    software: str = ""
    software_version: str = ""
    since_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    mechanism: str | None = None
    turn: asyncio.Future[None] | None = None
    """Done when the Produce request before has entered the log's queue."""
    waiting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one long poll that waits: those behind it are answered after it anyway."""
    told_losses: set[tuple[str, int, int]] = field(default_factory=set)
    """Which losses this client has been told: topic, partition, and where each begins."""
    refused: bool = False
    """Whether the connection ends with the answer that is on its way."""
    endings: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What is done when the connection has ended, by what it is for."""

    @property
    def name(self) -> str:
        """How the log names this client."""
        who = self.caller.name if self.caller else "unknown"
        return f"{printable(self.client_id) or 'without a name'} ({self.host}, key {who})"


@dataclass(slots=True)
class Doorway:
    """What all connections share."""

    broker: Broker
    pool: ThreadPoolExecutor
    advertised: tuple[str, int] | None
    port: int
    warm: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the kernels are compiled, which may take a while on a new machine."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    topic_ids: TopicIds = field(default_factory=TopicIds)
    shares: ShareSessions = field(default_factory=ShareSessions)
    connections_max: int = 1
    turned_away: int = 0
    """Clients that came beyond `connections_max`, of which the log does not tell yet."""
    told_full_at: float = -math.inf
    is_leading: bool = False
    """Whether the loop is going to commit a group of appends in its next turn."""
    told: set[tuple[str, str]] = field(default_factory=set)
    """Why clients of a host were disconnected: the log says it once."""
    bells: set[Waking] = field(default_factory=set)
    """What long polls wait for: a stop wakes them."""

    def turn_away(self, host: str) -> None:
        """Counts a client that is one too many; the log tells of them once a minute."""
        now = asyncio.get_running_loop().time()
        self.turned_away += 1
        if now < self.told_full_at + FULL_TOLD_S:
            return
        _log.warning(
            "turned Kafka clients away, %d since this was said last, the latest from %s: there is"
            " room for %d, by max.connections or by the descriptors that the process may have",
            *(self.turned_away, host, self.connections_max),
        )
        self.turned_away, self.told_full_at = 0, now

    def note_disconnected(self, host: str, name: str, why: str) -> None:
        """Logs why a client was disconnected, once.

        Reasons that differ in a number alone are of one kind, of which few are logged a minute and
        the rest counted: who sends garbage has a new number each time.
        """
        text = "disconnected Kafka client %s: %s"
        if (host, why) in self.told:
            _log.debug(text, name, why)
            return
        if len(self.told) < TOLD_MAX:
            self.told.add((host, why))
        kind = f"Kafka client of {host}: {_NUMBER.sub('N', why)}"
        self.broker.refusals.note(kind, text, name, why, door="kafka", host=host)

    @property
    def received(self) -> Counter:
        """Counts the bytes of requests."""
        return self.broker.metrics.received["kafka"]

    @property
    def sent(self) -> Counter:
        """Counts the bytes of answers."""
        return self.broker.metrics.sent["kafka"]

    def lead_soon(self, lead: Callable[[object], None], token: object) -> bool:
        """Has the loop commit a group when it has read what lies ready in all connections.

        One partition in a turn: the others are written by threads, at the same time.
        """
        if self.is_leading:
            return False
        self.is_leading = True
        asyncio.get_running_loop().call_soon(self._lead, lead, token)
        return True

    def _lead(self, lead: Callable[[object], None], token: object) -> None:
        self.is_leading = False
        lead(token)

    def anybody(self) -> Caller | None:
        """Who a client is before it has said anything."""
        return None if self.broker.asks_for_keys else ANYBODY


@dataclass(slots=True)
class Call:
    """One request."""

    door: Doorway
    session: Session
    name: str
    version: int
    request: Message
    size_bytes: int
    held_bytes: int = 0
    """Of `max.inflight.bytes`: given back when the answer was taken."""

    @property
    def store(self) -> Store:
        """The store; raises Busy while the server stops."""
        return self.door.broker.store

    @property
    def node_id(self) -> int:
        """The number of the broker that holds everything: 1, or the epoch of its cluster."""
        return max(1, self.door.broker.place.standing.epoch())

    @property
    def caller(self) -> Caller:
        """Who asks; nobody gets here without having been let in."""
        assert self.session.caller is not None
        return self.session.caller

    async def in_pool(self, action: Callable[..., Result], *arguments: Any) -> Result:
        """Runs what may take a while in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.door.pool, action, *arguments)

    def asks_archive(self, topic: str) -> bool:
        """Returns whether where a topic begins may be up to its archive: no question for the loop.

        Records of wal topics expire one by one, also those that only the archive has.
        """
        try:
            settings = self.store.topic_changes.settings_in_force(topic)
            return settings.is_archived and self.store.format_of(topic)[0] == "wal"
        except LaminaError:
            return False

    def may(self, scope: Scope, topic: str | None) -> bool:
        """Returns whether the caller's key covers this."""
        try:
            self.caller.require(scope, topic, self.name)
        except LaminaError:
            return False
        return True

    def told(self, error: LaminaError) -> tuple[ErrorCode, str]:
        """Returns what a caller is told of an error: the number, and the words it may know."""
        telling.withhold(self.caller, error)
        code = code_for(self.name, error)
        self.door.broker.metrics.count(f"kafka.{self.name}", type(error).__name__)
        return code, str(error)


@contextlib.contextmanager
def at_work(call: Call) -> Iterator[None]:
    """Counts a request while it is being answered, so that a stop waits for it."""
    broker = call.door.broker
    if broker.stopping.is_set():
        raise Busy("the server is stopping")
    with broker.work.taking():
        yield
    broker.metrics.count(f"kafka.{call.name}", "ok")
