"""The log that a shard's writer drives: requests of many topics, one write, one fsync.

A group is encoded by one kernel call, whatever topics its requests are for: every row carries its
own topic and sequence. Sequences are assigned here, and count only once the bytes are written.
What idempotent producers append is in their topics' journals, durably, before it is in the WAL.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lamina.api import DURABLE, Ack
from lamina.config import TopicSettings
from lamina.errors import (
    PASSING,
    Closed,
    InvalidRequest,
    LaminaError,
    Poisoned,
    Unavailable,
    refusal_of,
)
from lamina.formats.kernels.arrow import PlainValues
from lamina.formats.wal import layout, log
from lamina.log.commit import Writer
from lamina.log.directory import Place
from lamina.log.encoder import Stamped, at_time
from lamina.log.interfaces import Writing
from lamina.log.producers import Producers
from lamina.log.requests import Outcome, Request
from lamina.records import INPUT_SCHEMAS, prepare
from lamina.wal.ground import Ground
from lamina.wal.routed import Copy, Route, copies_of, mark_of, refuse_large
from lamina.wal.shard import Shard
from lamina.wal.topic import Arrivals, TopicState

Noted: TypeAlias = "dict[Target, list[Stamped]]"
"""New appends of idempotent producers in the group at hand."""
_HEAD = 64
_FULL = "no space left on the device; nothing of the append was kept"


class _JournalFailed(Exception):
    """A journal of idempotent producers could not be written; nothing of the group was."""


class Target(Protocol):
    """What a shard needs from the partitions whose records it writes."""

    log: ShardLog
    place: Place
    settings: TopicSettings
    written_end: int
    gone: LaminaError | None
    routes: tuple[Route, ...]

    def refusal(self, count: int) -> LaminaError | None:
        """Returns why records cannot be appended now, if they cannot."""

    def known_producers(self) -> Producers:
        """What is known of the idempotent producers."""

    def fail(self, error: BaseException) -> Poisoned:
        """Stops appends to this partition alone, whose own files failed."""


class ShardLog:
    """The tail of a shard, as the `Log` that `commit.Writer` drives."""

    def __init__(
        self,
        ground: Ground,
        shard: Shard,
        arrivals: Arrivals,
        writing: Writing,
    ) -> None:
        self._ground = ground
        self.shard = shard
        self._arrivals = arrivals
        self._plain = PlainValues(INPUT_SCHEMAS["wal"])
        self._buffer: NDArray[np.uint8] = np.empty(
            _HEAD + 2 * writing.settings.batch_bytes, dtype=np.uint8
        )
        self._unsynced: set[TopicState] = set()
        self.writer = Writer(self, writing.settings, writing.executor, writing.gate)

    # ------------------------------------------------------------------ the writer's log

    def write(self, group: Sequence[Request]) -> list[Outcome]:
        """Writes a group of requests behind the tail; see `requests.Log`."""
        noted: Noted = {}
        routed: set[int] = set()
        now_ms = self._ground.now_ms()
        outcomes, accepted = self._number(group, noted, routed, now_ms)
        if not accepted:
            return outcomes
        try:
            self._store(accepted, noted, routed, now_ms)
        except (InvalidRequest, Unavailable):
            self._take_back(noted)
            raise
        except _JournalFailed:  # its topic refuses now, the others of the group are stored
            self._take_back(noted)
            return self.write(group)
        for topic in noted:
            topic.known_producers().keep()
        return outcomes

    def _number(
        self, group: Sequence[Request], noted: Noted, routed: set[int], now_ms: int
    ) -> tuple[list[Outcome], list[tuple[Request, int]]]:
        """Assigns each request its first sequence, or a refusal, or the answer to its first try.

        Copies by routers come behind their sources; `routed` are the places of both.
        """
        outcomes: list[Outcome] = []
        accepted: list[tuple[Request, int]] = []
        nexts: dict[Target, int] = {}
        for request in group:
            topic: Target = request.target
            end, count = topic.written_end, request.count
            base = nexts.get(topic, end)
            refusal: Outcome | None = topic.gone
            if refusal is None and request.stamp is not None:
                refusal = topic.known_producers().judge(request.stamp, count)
            if refusal is None:
                refusal = topic.refusal(base - end + count)
            if topic.log is not self:
                refusal = Unavailable(f"{topic.place.name} has just been routed; append again")
            copies: Sequence[tuple[Request, int]] = ()
            if topic.routes and refusal is None:
                copies, refusal = self._route(request, base + count, nexts, now_ms)
            if refusal is not None:
                outcomes.append(refusal)
                continue
            if request.stamp is not None:
                stamped = Stamped(request.stamp, base, count)
                topic.known_producers().note(stamped)
                noted.setdefault(topic, []).append(stamped)
            nexts[topic] = base + count
            outcomes.append(Ack(base, count, "written"))
            accepted.append((request, base))
            if copies:
                routed.update(range(len(accepted) - 1, len(accepted) + len(copies)))
                accepted += copies
        return outcomes, accepted

    def _route(
        self, request: Request, end: int, nexts: dict[Target, int], now_ms: int
    ) -> tuple[list[tuple[Request, int]], LaminaError | None]:
        """Numbers the copies of a request's records, or returns why a target cannot take them."""
        if type(request.records) is list:  # plain values have neither tag nor node
            return [], None
        source: Target = request.target
        copies: list[tuple[Request, int]] = []
        numbered: dict[Target, int] = {source: end}
        for router, copy in copies_of(_batch(request, now_ms), source.routes, request.acks):
            target: Target = copy.target
            if isinstance(target.gone, Closed):  # deleted just now: the rule ends with it
                continue
            base = numbered.get(target, nexts.get(target, target.written_end))
            refusal = target.refusal(base - target.written_end + copy.count)
            if refusal is None and target.log is not self:
                refusal = target.log.writer.failure or Unavailable(
                    "its target is being moved; append again"
                )
            if refusal is not None:
                refusal = Unavailable(f"router {router!r}: {refusal}; nothing was appended")
            refusal = refusal or refuse_large(router, copy)
            if refusal is not None:
                refusal.speaks_of = (target.place.topic,)
                return [], refusal
            copies.append((copy, base))
            numbered[target] = base + copy.count
        nexts.update(numbered)
        return copies, None

    def _store(
        self,
        accepted: list[tuple[Request, int]],
        noted: Noted,
        routed: set[int],
        now_ms: int,
    ) -> None:
        data, positions = self._encode(accepted, routed, now_ms)
        if noted:
            self._record(noted)
        edges = np.append(positions, len(data))
        if routed:
            row = sum(request.count for request, _ in accepted[: min(routed)])
            data = self._marked(data, int(positions[row]), now_ms)
        places = positions + self._append(data)
        if len(places) == len(accepted):  # a record each
            sizes = np.diff(edges).tolist()
            for (request, _), place, size in zip(accepted, places.tolist(), sizes, strict=True):
                request.target.append_one(place, size)
        else:
            self._note_many(accepted, places, edges)
        self._unsynced.update([request.target for request, _ in accepted])
        self._arrivals.announce(self._unsynced)

    def _marked(self, data: NDArray[np.uint8], first: int, now_ms: int) -> NDArray[np.uint8]:
        """Adds the mark that makes records and their copies count together."""
        mark = np.frombuffer(mark_of(len(data) - first, now_ms), dtype=np.uint8)
        end = _HEAD + len(data) + len(mark)
        if data.base is not self._buffer or end > len(self._buffer):
            return np.concatenate([data, mark])
        self._buffer[end - len(mark) : end] = mark
        return self._buffer[_HEAD:end]

    def _record(self, noted: Noted) -> None:
        """Makes the producers' journal entries durable, before the records are: see `producers`."""
        for topic, stamps in noted.items():
            try:
                topic.known_producers().record(stamps)
            except OSError as error:
                if error.errno not in PASSING:
                    topic.fail(error)
                    raise _JournalFailed from error
                raise refusal_of(error, _FULL) from error

    def _take_back(self, noted: Noted) -> None:
        """Forgets what was noted of a group of which nothing was kept."""
        for topic in noted:
            try:
                topic.known_producers().take_back()
            except OSError as error:
                topic.fail(error)

    def _note_many(
        self,
        accepted: list[tuple[Request, int]],
        places: NDArray[np.int64],
        edges: NDArray[np.int64],
    ) -> None:
        row = 0
        for request, _ in accepted:
            last = row + request.count
            mine = array("q")
            mine.frombytes(places[row:last].data.cast("B"))
            request.target.append(mine, int(edges[last] - edges[row]))
            row = last

    def _encode(
        self, accepted: list[tuple[Request, int]], routed: set[int], now_ms: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        out = self._buffer[_HEAD:]
        owners = _owners(accepted, routed)
        parts = [request.records for request, _ in accepted]
        if all(type(part) is list for part in parts):
            values = list(chain.from_iterable(cast("list[list[bytes]]", parts)))
            self._plain.fill(values, now_ms)
            return log.encode_mixed(self._plain, owners, out)
        batches = [_batch(request, now_ms) for request, _ in accepted]
        joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return log.encode_mixed(joined, owners, out)

    def _append(self, data: NDArray[np.uint8]) -> int:
        """Writes encoded frames with what must come before them; the location of the first."""
        try:
            head = self.shard.begin(len(data))
            if not head:
                return self.shard.append(data.data)
            size = len(head)
            whole = self._buffer[_HEAD - size : _HEAD + len(data)]
            if data.base is not self._buffer:
                whole = np.concatenate([np.frombuffer(head, dtype=np.uint8), data])
            else:
                whole[:size] = np.frombuffer(head, dtype=np.uint8)
            return self.shard.append(whole.data) + size
        except OSError as error:
            if self.shard.failed or error.errno not in PASSING:
                raise self.writer.poison(error) from error
            raise refusal_of(error, _FULL) from error

    def sync(self) -> None:
        """Makes everything written durable and wakes readers that wait for it."""
        topics, self._unsynced = self._unsynced, set()
        ends = [(topic, topic.written_end) for topic in topics]
        try:
            self.shard.sync()
        except OSError as error:
            raise self.writer.poison(error) from error
        for topic, end in ends:
            topic.durable_end = max(topic.durable_end, end)
        self._arrivals.announce(topics)

    def confirm(self) -> None:
        """Writes a barrier behind what is durable, unless there is one. For the leader."""
        if self.has_unsynced or not self.shard.is_unconfirmed:
            return
        try:
            self.shard.confirm()
        except OSError as error:
            if self.shard.failed or error.errno not in PASSING:
                raise self.writer.poison(error) from error

    @property
    def has_unsynced(self) -> bool:
        """Whether records were written that are not durable yet."""
        return bool(self._unsynced)

    # ------------------------------------------------------------------ control frames

    def control(self, frames: bytes) -> None:
        """Writes control frames durably. For the leader."""
        self._append(np.frombuffer(frames, dtype=np.uint8))
        self.sync()


def _owners(accepted: list[tuple[Request, int]], routed: Collection[int]) -> log.Owners:
    """Spells out topic, sequence and flags of every row."""
    counts = [request.count for request, _ in accepted]
    ids = [layout.as_signed(request.target.topic_id) for request, _ in accepted]
    flags = [layout.DURABLE if request.acks == DURABLE else 0 for request, _ in accepted]
    for place in routed:
        flags[place] |= layout.ROUTED
    bases = np.array([base for _, base in accepted], dtype=np.int64)
    topic_ids = np.array(ids, dtype=np.int64)
    marks = np.array(flags, dtype=np.uint8)
    total = sum(counts)
    if total == len(counts):
        return log.Owners(topic_ids, bases, marks)
    repeats = np.array(counts, dtype=np.int64)
    starts = np.cumsum(repeats) - repeats
    sequences = np.repeat(bases - starts, repeats) + np.arange(total, dtype=np.int64)
    return log.Owners(np.repeat(topic_ids, repeats), sequences, np.repeat(marks, repeats))


def _batch(request: Request, now_ms: int) -> pa.RecordBatch:
    if type(request.records) is list:
        return prepare(request.records, "wal", now_ms=now_ms)
    batch = cast("pa.RecordBatch", request.records)
    if request.target.settings.timestamp_type == "LogAppendTime" and type(request) is not Copy:
        return at_time(batch, now_ms)
    return batch
