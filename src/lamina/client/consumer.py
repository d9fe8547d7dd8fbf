"""A consumer in the manner of confluent-kafka, over an embedded or a served store.

It reads its partitions in turn, and keeps its place in each. A commit says what was processed, and
only the program knows that: `enable.auto.commit` is off unless asked for.

With `group.id`, consumers that subscribe share the partitions: each is a member of the classic
group of that name (`client.group_member`), as Kafka's consumers are, and `poll` gets its share.

Rules.
1. A position is the next offset to read; `commit` stores positions, `seek` changes them.
2. Without a committed position `auto.offset.reset` decides; its default `none` is an error.
3. A gap is raised as RecordsMissing, once; the position is then behind the gap.
4. What is committed by itself was handed out by an earlier call, and the program came back for
   more or closed the consumer: never what it is still at work on.
5. A share changes inside of `poll` and `consume` only: what is due is committed and `on_revoke`
   called before partitions are given up, `on_assign` before the first record of those that come.
   With a cooperative assignor only what moves is given up; the rest is read on meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa

from lamina.api import Start, StoreApi
from lamina.api.memberships import Identity
from lamina.arguments import count, refuse_no_store, text, typed_calls
from lamina.client.assignors import Share
from lamina.client.committed import InGroup, InMemory, Positions
from lamina.client.consumer_settings import commit_interval_s, member_settings, settings_of
from lamina.client.group_member import PARTITIONS_CHECKED_S, GroupMember
from lamina.client.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    PLACES,
    FrameKind,
    Message,
    TopicPartition,
    frame_of,
    messages_of,
)
from lamina.errors import (
    Closed,
    Fenced,
    InvalidRequest,
    LaminaError,
    OffsetOutOfRange,
    RecordsMissing,
)

_SLICE_MS = 50
_JOIN_MS = 1_000
Callback: TypeAlias = Callable[["Consumer", list[TopicPartition]], None]
"""Is told of the partitions that a consumer has got, or is about to lose."""
Place: TypeAlias = tuple[str, int]


@typed_calls(PLACES)
class Consumer:
    """Reads topics and keeps its place. For one thread; close it, or use `with`."""

    def __init__(
        self,
        store: StoreApi,
        config: Mapping[str, Any] | None = None,
        *,
        positions: Positions | None = None,
    ) -> None:
        refuse_no_store("Consumer", store, "fetch")
        settings = settings_of(config)
        self._store = store
        self._reset: Start = settings["auto.offset.reset"]
        self._max_records = count("max.poll.records", settings["max.poll.records"])
        self._max_bytes = count("fetch.max.bytes", settings["fetch.max.bytes"])
        group = text("group.id", settings["group.id"])
        self._member = GroupMember(store, group, member_settings(settings)) if group else None
        self._positions = positions or (
            InGroup(store, group, self._identity) if group else InMemory()
        )
        self._share: set[Place] | None = None
        self._callbacks: tuple[Callback | None, Callback | None] = (None, None)
        self._auto_s = commit_interval_s(settings)
        self._committed_at = time.monotonic()
        self._next: dict[tuple[str, int], int] = {}
        self._paused: set[tuple[str, int]] = set()
        self._buffer: list[Message] = []
        self._turn = 0
        self._subscribed: list[str] = []
        self._counted_s = 0.0
        self._closed = False

    # ------------------------------------------------------------------ what to read

    def subscribe(
        self,
        topics: Iterable[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
    ) -> None:
        """Reads topics from where the group is; the members of a group share their partitions.

        With `group.id` the share comes with the first polls, and changes when members come and
        go: `on_revoke` and `on_assign` are called, in `poll`, with this consumer and the
        partitions. Without, all partitions are read at once.
        """
        names = list(topics)
        if self._member is None:
            self.assign(
                TopicPartition(topic, part.partition)
                for topic in names
                for part in self._store.describe_topic(topic).partitions
            )
            self._subscribed, self._counted_s = names, time.monotonic()
            return
        self._require_open()
        for topic in names:
            self._store.format_of(topic)  # a name that is wrong is told now, not never
        self._revoke(self._share or set())
        self._callbacks = (on_assign, on_revoke)
        self._share = set()
        self._member.subscribe(names)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, from their offsets; they are shared with nobody."""
        self._require_open()
        if self._member is not None and self._share is not None:
            self._member.subscribe([])
            self._share = None
        self._subscribed = []
        self._drop(set(self._next))
        self._take(partitions)

    def _take(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads partitions beside those that are read already."""
        found, begun = {}, []
        for each in partitions:
            offset, is_new = self._resolve(each)
            found[each.topic, each.partition] = offset
            if is_new:
                begun.append((each.topic, each.partition, offset))
        if begun:
            self._positions.begin(begun)
        self._next |= found

    def _drop(self, places: set[Place]) -> None:
        """Reads partitions no more."""
        self._rewind()
        self._next = {where: at for where, at in self._next.items() if where not in places}
        self._paused -= places

    def unsubscribe(self) -> None:
        """Reads nothing any more."""
        self.assign([])

    def assignment(self) -> list[TopicPartition]:
        """Returns what is read."""
        return [TopicPartition(topic, number) for topic, number in self._next]

    def seek(self, partition: TopicPartition) -> None:
        """Goes on at another offset of a partition that is read."""
        where = self._require_assigned(partition)
        self._next[where], _ = self._resolve(partition)
        self._buffer = [m for m in self._buffer if (m.topic(), m.partition()) != where]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads nothing of some partitions until they are resumed."""
        self._paused |= {self._require_assigned(each) for each in partitions}
        self._rewind()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads paused partitions again."""
        self._paused -= {self._require_assigned(each) for each in partitions}

    def _rewind(self) -> None:
        """Puts what was fetched but not given out back: positions are those of the user."""
        for message in reversed(self._buffer):
            self._next[message.topic(), message.partition()] = message.offset()
        self._buffer = []

    def _resolve(self, asked: TopicPartition) -> tuple[int, bool]:
        """Returns where to read on, and whether that is for want of a committed offset."""
        topic, partition, offset = asked.topic, asked.partition, asked.offset
        is_new = False
        if offset >= 0:
            return offset, False
        if offset == OFFSET_STORED:
            committed = self._positions.load(topic, partition)
            if committed is not None:
                return committed, False
            if self._reset == "none":
                raise OffsetOutOfRange(
                    f"{topic}-{partition} has no committed offset; set auto.offset.reset to"
                    " earliest or latest, or assign an offset"
                )
            offset = OFFSET_BEGINNING if self._reset == "earliest" else OFFSET_END
            is_new = True
        if offset == OFFSET_BEGINNING:
            return self._store.earliest_offset(topic, partition), is_new
        if offset == OFFSET_END:
            return self._store.latest_offset(topic, partition), is_new
        raise InvalidRequest(f"{offset} is not an offset")

    # ------------------------------------------------------------------ sharing

    def _identity(self) -> Identity | None:
        return self._member.identity if self._member is not None else None

    def _keep_share(self, wait_ms: int) -> None:
        """Takes part in the group: gives up a share that ended, takes the next one."""
        if self._member is None or self._share is None:
            self._take_added()
            return
        self._member.note_poll()
        if not self._member.is_called:
            return
        if self._share and self._member.must_give_up:
            self._revoke(self._share)
        if self._share:  # which is read on meanwhile
            wait_ms = min(wait_ms, _SLICE_MS)
        given = self._member.drive(wait_ms, _by_topic(self._share))
        if given is None:
            return
        share = {(topic, number) for topic, numbers in given.items() for number in numbers}
        if lost := self._share - share:
            self._revoke(lost)
            self._member.rejoin()  # others have waited for these: they get them at the next meeting
        gained = sorted(share - self._share)
        try:
            self._take(TopicPartition(*where) for where in gained)
        except BaseException:
            self._member.rejoin()  # it has no place to begin at: the next poll says so again
            raise
        self._share = share
        self._call(self._callbacks[0], gained)

    def _take_added(self) -> None:
        """Reads, without a group, the partitions too that subscribed topics have got since."""
        if not self._subscribed or time.monotonic() - self._counted_s < PARTITIONS_CHECKED_S:
            return
        self._counted_s = time.monotonic()
        for topic in self._subscribed:
            for number in range(self._store.format_of(topic)[1]):
                if (topic, number) not in self._next:
                    self._next[topic, number] = self._store.earliest_offset(topic, number)

    def _revoke(self, places: set[Place]) -> None:
        """Gives partitions up; what is committed by itself is tried for a last time."""
        if not places or self._share is None:
            return
        if self._auto_s is not None:
            with contextlib.suppress(LaminaError):  # too late: others go on from the last commit
                self.commit()
        self._share = self._share - places
        self._call(self._callbacks[1], sorted(places))
        self._drop(places)

    def _call(self, callback: Callback | None, places: list[Place]) -> None:
        if callback is not None:
            callback(self, [TopicPartition(*where) for where in places])

    # ------------------------------------------------------------------ reading

    def poll(self, timeout: float = 0) -> Message | None:
        """Returns the next record, waiting for it; None when the time is up."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Returns up to so many records as soon as there are any; -1 waits for ever."""
        self._require_open()
        if num_messages < 1:
            raise InvalidRequest(f"a call returns 1 record or more, not {num_messages}")
        self._commit_if_due()
        if self._buffer:
            self._keep_share(0)
        if not self._buffer:
            for topic, partition, batch in self._fetch(timeout, self._max_records):
                self._buffer += messages_of(topic, partition, batch)
        taken, self._buffer = self._buffer[:num_messages], self._buffer[num_messages:]
        return taken

    def consume_batch(
        self, num_messages: int = 10_000, timeout: float = -1, *, kind: FrameKind = "arrow"
    ) -> Any:
        """Returns records of all partitions as one table (or frame) with topic and partition."""
        self._commit_if_due()
        self._rewind()
        parts = [
            pa.Table.from_batches([batch])
            .append_column("topic", pa.array([topic] * batch.num_rows, pa.string()))
            .append_column("partition", pa.array([number] * batch.num_rows, pa.int32()))
            for topic, number, batch in self._fetch(timeout, num_messages)
        ]
        whole = pa.concat_tables(parts, promote_options="default") if parts else pa.table({})
        return frame_of(whole, kind)

    def _fetch(self, timeout: float, records: int) -> list[tuple[str, int, pa.RecordBatch]]:
        """Fetches from each partition in turn; when there is nothing, waits for something."""
        self._require_open()
        deadline = None if timeout < 0 else time.monotonic() + timeout
        wait_ms = 0
        while True:
            self._keep_share(_JOIN_MS if deadline is None else _left_ms(deadline))
            places = [where for where in self._next if where not in self._paused]
            self._turn += 1
            found: list[tuple[str, int, pa.RecordBatch]] = []
            for number in range(len(places)):
                where = places[(number + self._turn) % len(places)]
                try:
                    batch = self._fetch_one(where, records, 0 if found else wait_ms)
                except LaminaError as error:
                    if found:  # positions have moved past it: it is handed out first
                        break
                    if isinstance(error, RecordsMissing):
                        self._next[where] = max(self._next[where], error.end)
                    raise
                if batch.num_rows:
                    found.append((*where, batch))
                    records -= batch.num_rows
                if records <= 0:
                    break
            if found:
                return found
            left_s = _SLICE_MS / 1000 if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return []
            if not places:
                time.sleep(min(left_s, _SLICE_MS / 1000))
            whole_ms = 1000 if len(places) == 1 else _SLICE_MS
            wait_ms = max(1, whole_ms if deadline is None else min(whole_ms, int(left_s * 1000)))

    def _fetch_one(self, where: tuple[str, int], records: int, wait_ms: int) -> pa.RecordBatch:
        batch = self._store.fetch(
            *where,
            self._next[where],
            max_records=records,
            max_bytes=self._max_bytes,
            wait_ms=wait_ms,
        )
        if batch.num_rows:
            self._next[where] = batch.column("offset")[batch.num_rows - 1].as_py() + 1
        return batch

    # ------------------------------------------------------------------ places

    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the next offset that each partition gives."""
        places = dict(self._next)
        for message in reversed(self._buffer):
            places[message.topic(), message.partition()] = message.offset()
        return [
            TopicPartition(each.topic, each.partition, places[self._require_assigned(each)])
            for each in partitions
        ]

    def commit(
        self,
        message: Message | None = None,
        offsets: Iterable[TopicPartition] | None = None,
    ) -> list[TopicPartition]:
        """Commits the place behind a message, given offsets, or all positions.

        It is durable when this returns, and may move back. Raises Fenced where the partitions are
        another member's by now. Returns what was committed.
        """
        if message is not None and offsets is not None:
            raise InvalidRequest("a commit is of a message or of offsets, not of both")
        if message is not None:
            offsets = [TopicPartition(message.topic(), message.partition(), message.offset() + 1)]
        done = list(offsets) if offsets is not None else self.position(self.assignment())
        for each in done:
            if each.offset < 0:
                raise InvalidRequest(f"{each.offset} cannot be committed")
        self._positions.save([(each.topic, each.partition, each.offset) for each in done])
        return done

    def _commit_if_due(self) -> None:
        """Commits what earlier calls handed out, where that is to be done and the time has come."""
        if self._auto_s is None or self._closed:
            return
        if time.monotonic() - self._committed_at >= self._auto_s:
            try:
                self.commit()
            except Fenced:
                if not self._share:
                    raise
                # Its share has moved on, which the next poll finds out.
            self._committed_at = time.monotonic()

    def committed(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the committed offset of each partition; -1000 where none is."""
        return [
            TopicPartition(
                each.topic,
                each.partition,
                OFFSET_STORED
                if (at := self._positions.load(each.topic, each.partition)) is None
                else at,
            )
            for each in partitions
        ]

    def get_watermark_offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """Returns the earliest offset of a partition and one past its latest."""
        where = partition.topic, partition.partition
        return self._store.earliest_offset(*where), self._store.latest_offset(*where)

    def offsets_for_times(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the first offset at or after each partition's `offset`, taken as a time."""
        found = []
        for each in partitions:
            at = self._store.offset_for_time(each.topic, each.partition, each.offset)
            found.append(
                TopicPartition(each.topic, each.partition, OFFSET_END if at is None else at)
            )
        return found

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """Reads no more and leaves the group; `enable.auto.commit` commits for a last time."""
        if self._closed:
            return
        try:
            if self._auto_s is not None:
                self.commit()
            self._auto_s = None
            self._revoke(self._share or set())
        finally:
            self._closed = True
            if self._member is not None:
                with contextlib.suppress(LaminaError):  # its session ends by itself
                    self._member.leave()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the consumer is closed")

    def _require_assigned(self, asked: TopicPartition) -> tuple[str, int]:
        where = asked.topic, asked.partition
        if where not in self._next:
            raise InvalidRequest(f"{asked.topic}-{asked.partition} is not read by this consumer")
        return where

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # what it was at work on is not done
            self._auto_s = None
        self.close()


def _left_ms(deadline: float) -> int:
    return max(0, min(_JOIN_MS, int((deadline - time.monotonic()) * 1000)))


def _by_topic(places: Iterable[Place]) -> Share:
    found: Share = {}
    for topic, number in sorted(places):
        found.setdefault(topic, []).append(number)
    return found
