"""A tap on the wire between Kafka clients and a broker: loses answers, and notes what groups do.

    tap.point_at(port)      the broker listens there
    tap.deafen()            what the broker answers from now on is lost
    tap.cut()               every connection ends; the next ones are of the broker's next life

What was committed and which member was assigned what is read off the wire, whatever library the
client has: libraries send a commit again without a word, and none says which generation it is in.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from lamina.wire.kafka import codec, framing
from lamina.wire.kafka.group_apis import OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP
from lamina.wire.kafka.message_schema import Api
from lamina.wire.kafka.record_apis import PRODUCE
from lamina_torture.group_histories import Commit, Share
from lamina_torture.histories import Outcome

_CORRELATION = struct.Struct(">i")
_COUNT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_STOP_S = 30
_READ = {api.key: api for api in (OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP)}


class _Asked(NamedTuple):
    """A request that was passed on."""

    api_key: int
    version: int
    began_ns: int
    life: int
    request: dict[str, Any] | None


class Tap:
    """Forwards connections to a broker on this machine, frame by frame."""

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.commits: list[Commit] = []
        self.lost_produces = 0
        """Answers to Produce that no client was told."""
        self._life = 0
        self._target = 0
        self._deaf = False
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._accepted, "127.0.0.1", 0)
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def point_at(self, port: int) -> None:
        """Forwards new connections to this port."""
        self._target = port

    def deafen(self) -> None:
        """Loses what the broker answers from now on, until the connections are cut."""
        self._deaf = True

    def cut(self) -> None:
        """Ends every connection that there is."""
        self._in_loop(self._cut)

    def _in_loop(self, action: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(_STOP_S)

    async def _cut(self) -> None:
        for link in list(self._links):
            link.end()
        self._deaf = False
        self._life += 1  # whoever comes from now on meets the next process

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Joins a client with the broker; while that is down, clients are disconnected."""
        with contextlib.suppress(OSError):
            back, broker = await asyncio.open_connection("127.0.0.1", self._target)
            link = _Link(self, (reader, writer), (back, broker))
            self._links.add(link)
            try:
                await link.run(self._life)
            finally:
                self._links.discard(link)
                link.end()
        writer.transport.abort()

    def passes(self, asked: _Asked | None, frame: bytes) -> bool:
        """Notes what an answer says; False if it is lost."""
        if self._deaf:
            self.lost_produces += asked is not None and asked.api_key == PRODUCE.key
            return False
        if asked is not None and asked.request is not None:
            answer = _answer(_READ[asked.api_key], asked.version, frame)
            self._note(asked, asked.request, answer)
        return True

    def _note(self, asked: _Asked, request: dict[str, Any], answer: dict[str, Any]) -> None:
        if asked.api_key == SYNC_GROUP.key:
            if answer["error_code"] == 0:
                who = (request["group_id"], request["generation_id"], request["member_id"])
                given = partitions_of(bytes(answer["assignment"]))
                self.shares.append(Share(asked.life, *who, given))
            return
        times = (asked.began_ns, time.monotonic_ns())
        if asked.api_key == OFFSET_COMMIT.key:
            codes = dict(_fields(answer["topics"], "error_code"))
            for partition, offset in _fields(request["topics"], "committed_offset"):
                outcome: Outcome = "fail" if codes[partition] else "ok"
                self.commits.append(Commit(request["group_id"], partition, offset, *times, outcome))
            return
        for group in answer.get("groups") or [{**answer, "group_id": request["group_id"]}]:
            if group["error_code"] == 0:
                for partition, offset in _fields(group["topics"], "committed_offset"):
                    told = Commit(group["group_id"], partition, offset, *times, is_told=True)
                    self.commits.append(told)

    def unanswered(self, asked: _Asked) -> None:
        """Notes a commit of which nobody was told how it ended."""
        if asked.api_key != OFFSET_COMMIT.key or asked.request is None:
            return
        times = (asked.began_ns, time.monotonic_ns())
        for partition, offset in _fields(asked.request["topics"], "committed_offset"):
            group = asked.request["group_id"]
            self.commits.append(Commit(group, partition, offset, *times, "info"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._in_loop(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        own = asyncio.current_task()
        left = [each for each in asyncio.all_tasks() if each is not own]
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class _Link:
    """One client's connection, and the one to the broker behind it."""

    def __init__(
        self,
        tap: Tap,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._tap = tap
        self._client = client
        self._broker = broker
        self._asked: dict[int, _Asked] = {}

    async def run(self, life: int) -> None:
        """Forwards frames both ways until either side ends."""
        ways = (asyncio.ensure_future(self._up(life)), asyncio.ensure_future(self._down()))
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def end(self) -> None:
        """Ends both connections."""
        for _, writer in (self._client, self._broker):
            writer.transport.abort()
        for asked in self._asked.values():
            self._tap.unanswered(asked)
        self._asked.clear()

    async def _up(self, life: int) -> None:
        while True:
            frame = await _frame(self._client[0])
            header = framing.request_header(memoryview(frame))
            api = _READ.get(header.api_key)
            if api is not None or header.api_key == PRODUCE.key:
                request = _request(api, header, frame) if api is not None else None
                self._asked[header.correlation_id] = _Asked(
                    header.api_key, header.version, time.monotonic_ns(), life, request
                )
            self._broker[1].writelines((framing.LENGTH.pack(len(frame)), frame))
            await self._broker[1].drain()

    async def _down(self) -> None:
        while True:
            frame = await _frame(self._broker[0])
            (number,) = _CORRELATION.unpack_from(frame)
            asked = self._asked.get(number)
            if not self._tap.passes(asked, frame):
                continue  # it stays with the unanswered
            self._asked.pop(number, None)
            self._client[1].writelines((framing.LENGTH.pack(len(frame)), frame))
            await self._client[1].drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = framing.LENGTH.unpack(await reader.readexactly(framing.LENGTH.size))
    return await reader.readexactly(size)


def _request(api: Api, header: framing.RequestHeader, frame: bytes) -> dict[str, Any]:
    view = memoryview(frame)
    position = framing.message_position(header, api, view)
    return codec.parse(api, header.version, "request", view, position)


def _answer(api: Api, version: int, frame: bytes) -> dict[str, Any]:
    view, position = memoryview(frame), _CORRELATION.size
    if api.is_flexible(version):
        position = codec.skip_tags(view, position, len(view))
    return codec.parse(api, version, "response", view, position)


def _fields(topics: list[dict[str, Any]] | None, name: str) -> Iterator[tuple[int, int]]:
    """Goes through the partitions of a message's topics: their numbers, and one field of each."""
    for topic in topics or ():
        for each in topic["partitions"]:
            yield each["partition_index"], each[name]


def partitions_of(assignment: bytes) -> tuple[int, ...]:
    """Reads the partitions of a consumer's assignment; a member may get none at all."""
    if not assignment:
        return ()
    found: list[int] = []
    position = _SHORT.size
    (topics,) = _COUNT.unpack_from(assignment, position)
    position += _COUNT.size
    for _ in range(topics):
        (name_bytes,) = _SHORT.unpack_from(assignment, position)
        position += _SHORT.size + name_bytes
        (count,) = _COUNT.unpack_from(assignment, position)
        position += _COUNT.size
        found += struct.unpack_from(f">{count}i", assignment, position)
        position += count * _COUNT.size
    return tuple(found)
