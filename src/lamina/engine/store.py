"""The store: a data directory, opened for writing. Everything that users do goes through here.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · fetch · trim ─▶ close

Rules.
1. One writer a directory, held by a lock that ends with the process; any number of readers.
2. The checkpoint is written from durable state only, at most once a tick.
3. No storage logic here: topics are the catalog's, records the partitions'.
4. A store belongs to the process that opened it: after a fork the child's copy is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Self, TypeVar

from lamina import records as record_columns
from lamina.config import TopicSettings, WalSettings, WriterSettings
from lamina.engine import retention
from lamina.engine.appending import (
    OF_TOPIC,
    Appended,
    acks_level,
    has_keys,
    make_request,
    split_by_key,
)
from lamina.engine.boot import Boot, wall_clock_ms
from lamina.engine.log_reader import Deletion, LogWriter
from lamina.engine.maintenance import Maintenance
from lamina.engine.partition import Partition
from lamina.engine.place import typed_errors
from lamina.engine.reader import StoreReader
from lamina.engine.report import RecoveryReport
from lamina.engine.wal.engine import WalEngine
from lamina.engine.wal.ground import Ground
from lamina.engine.writer import Ack, ProducerStamp, Request
from lamina.errors import Closed, InvalidRequest, Poisoned, StorageFull, UnknownTopic
from lamina.formats.topic import TopicFile
from lamina.records import Records
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles

TICK_MS = 1000
RECOVERY_REPORT = "meta/recovery.json"
_THREADS = 8
_Result = TypeVar("_Result")


class Store(StoreReader):
    """A data directory, opened for writing. Use `lamina.open`, and close it (or use `with`)."""

    @typed_errors("opening the store")
    def __init__(
        self,
        path: str,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        writer: WriterSettings = WriterSettings(),
        wal: WalSettings | None = None,
        tick_ms: int = TICK_MS,
    ) -> None:
        started = time.perf_counter()
        self._boot = Boot(files or LocalFiles(), os.path.abspath(path), now_ms)
        self._writer_settings = writer
        self._wal_settings = wal or WalSettings.from_environment(os.environ)
        self._wal: WalEngine | None = None
        # Leaders have a pool of their own: behind appends that wait for them they would never run.
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-writer")
        self._appending = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-append")
        self._turn = itertools.count()
        self._changing = threading.Lock()
        self.recovery_report = RecoveryReport()
        self._boot.files.make_directory(self._boot.path(paths.META))
        self._lock = self._boot.files.lock(self._boot.path(paths.LOCK), f"pid {os.getpid()}\n")
        try:
            self.identity = self._boot.identify()
            self._topics: dict[str, TopicFile] = {}
            self._partitions: dict[tuple[str, int], LogWriter] = {}
            self._with_reserve(self._recover)
            self.recovery_report.milliseconds = (time.perf_counter() - started) * 1000
            report = self.recovery_report.encode()
            with contextlib.suppress(OSError):  # a full disk can be opened all the same
                self._boot.files.replace(self._boot.path(RECOVERY_REPORT), report)
            self._maintenance = Maintenance(self._boot, self._segmented, self._maintain_wal)
            self._maintenance.tick()
            self._maintenance.start(min(tick_ms, writer.flush_ms))
        except BaseException:
            self._lock.release()
            raise
        _OPEN.add(self)

    @typed_errors("recovery")
    def _recover(self) -> None:
        report = self.recovery_report
        hints = self._boot.read_checkpoint(report)
        topics = self._boot.catalog.load(report)
        if self._boot.has_wal(topics):
            self._wal = self._new_wal()
            for about in self._wal.load(report).lost_topics(set(topics)):
                if self._boot.catalog.restore(about):
                    report.add("rebuilt", about.name, "its topic.json was gone; the WAL knows it")
                    topics[about.name] = about
        for name, about in topics.items():
            for number in range(about.partitions):
                hint = hints.get((name, number))
                flushed = hint.last_flushed_offset if hint is not None else None
                self._open_partition(about, number, flushed or 0)
            self._topics[name] = about
        if self._wal is not None:
            self._wal.finish_opening(report)

    def _new_wal(self) -> WalEngine:
        ground = Ground(self._boot.files, self._boot.data, self._boot.now_ms, self._wal_settings)
        return WalEngine(ground, self._writer_settings, self._executor)

    def _wal_for_new(self) -> WalEngine:
        """Returns the write-ahead log, which begins with the first topic that needs one."""
        if self._wal is None:
            begun = self._new_wal()
            begun.load(self.recovery_report)
            begun.finish_opening(self.recovery_report)
            self._wal = begun
        return self._wal

    def _open_partition(self, about: TopicFile, number: int, flushed: int) -> None:
        if about.topic_ids:
            assert self._wal is not None, "a topic with ids has a write-ahead log"
            opened: LogWriter = self._wal.open_topic(about, number)
        else:
            partition = self._boot.open_partition(about, number, flushed, self.recovery_report)
            partition.start(self._writer_settings, self._executor)
            opened = partition
        self._partitions[about.name, number] = opened

    def _segmented(self) -> list[Partition]:
        """Returns the partitions that have a log of their own."""
        return [each for each in self._partitions.values() if isinstance(each, Partition)]

    def _maintain_wal(self, *, force: bool) -> None:
        if self._wal is not None:
            self._wal.maintain(force=force)

    def _files_of_topics(self) -> Mapping[str, TopicFile]:
        return self._topics

    def _reader(self, about: TopicFile, partition: int) -> LogWriter:
        found = self._partitions.get((about.name, partition))
        if found is None:
            raise UnknownTopic(f"topic {about.name!r} was deleted")
        return found

    def _writable(self, topic: str, partition: int) -> LogWriter:
        self._partition(topic, partition)
        return self._reader(self._topic(topic), partition)

    # ------------------------------------------------------------------ topics

    @typed_errors("creating a topic")
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        format: str = "keratin",  # the word users know
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a topic; it exists for good when this returns."""
        self._require_open()
        with self._changing:
            if name not in self._topics:
                self._boot.forget(name)
            about = self._boot.catalog.create(
                name,
                partitions=partitions,
                format_name=format,
                settings=config or {},
                claim=self._claim,
            )
            try:
                for number in range(partitions):
                    self._open_partition(about, number, 0)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._boot.catalog.mark_deleted(about)
                raise
            self._topics[name] = about

    def _claim(self, about: TopicFile) -> TopicFile:
        return self._wal_for_new().claim(about) if about.format == "wal" else about

    @typed_errors("changing a topic")
    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Changes settings of a topic; what is not named stays as it is."""
        with self._changing:
            about = self._boot.catalog.alter(self._topic(name), config)
            self._topics[name] = about
            for number in range(about.partitions):
                self._partitions[name, number].settings = TopicSettings.parse(about.settings)
            if about.topic_ids and self._wal is not None:
                self._wal.describe(about)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all of its records; the same name can be created again."""
        with self._changing:
            about = self._topic(name)
            try:
                self._boot.catalog.mark_deleted(about)
            except OSError as error:  # perhaps it is: what is appended now might be deleted
                for number in range(about.partitions):
                    self._partitions[name, number].writer.poison(error)
                raise Poisoned(f"deleting topic {name!r} failed: {error}; open again") from error
            del self._topics[name]
            for number in range(about.partitions):
                partition = self._partitions.pop((name, number))
                partition.retire(Closed(f"topic {name!r} was deleted"))
            if about.topic_ids and self._wal is not None:
                self._wal.delete(about)
            with contextlib.suppress(OSError):  # what is left goes when the store is opened again
                self._boot.catalog.remove_deleted(about)
            self._maintenance.tick()  # or the checkpoint would speak of the next topic of this name

    # ------------------------------------------------------------------ appending

    def append(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: object = OF_TOPIC,
        timeout_s: float | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends records and waits until they are as safe as `acks` asks for: fsynced.

        `acks` is 0, 1, "all", or "topic": "all", but for a wal topic its own durability, which
        `acks` can only raise.
        Without a partition, records with a key go where the hash of their key says, others to one
        partition in turn. With `producer`, a repeated append gets its first answer. Raises
        QueueFull or Unavailable when `timeout_s` is up, StorageFull, Poisoned, InvalidRequest.
        """
        requests = self._requests(topic, records, partition, acks, producer)
        if len(requests) == 1:
            return Appended(*self._write(*requests[0], timeout_s))
        futures = [
            self._appending.submit(self._write, target, request, timeout_s)
            for target, request in requests
        ]
        wait(futures)
        return _merged([future.result() for future in futures])

    async def append_async(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: object = OF_TOPIC,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends from asyncio; many tasks share one commit without a thread each.

        Raises QueueFull at once when the queue is full.
        """
        requests = self._requests(topic, records, partition, acks, producer)
        if len(requests) == 1:
            target, request = requests[0]
            ack = await target.writer.append_soon(request)
            return Appended({target.place.partition: ack}, ack.count)
        answers = await asyncio.gather(
            *(target.writer.append_soon(request) for target, request in requests)
        )
        return _merged(
            [
                ({target.place.partition: ack}, ack.count)
                for (target, _), ack in zip(requests, answers, strict=True)
            ]
        )

    def _requests(
        self,
        topic: str,
        records: Records | bytes,
        partition: int | None,
        acks: object,
        producer: ProducerStamp | None,
    ) -> list[tuple[LogWriter, Request]]:
        """Makes a request for each partition that takes some of the records."""
        level = acks_level(acks)
        about = self._topic(topic)
        now_ms = self._boot.now_ms()
        if partition is None and about.partitions == 1:
            partition = 0
        parts = (
            self._spread(about, records, now_ms, stamped=producer is not None)
            if partition is None
            else [(partition, records)]
        )
        requests = []
        for number, part in parts:
            target = self._partitions.get((topic, number)) or self._writable(topic, number)
            request = make_request(
                part,
                about.format,
                target.settings,
                acks=target.level(level),
                now_ms=now_ms,
                stamp=producer,
            )
            target.admit(request)
            if request.count == 0:
                raise InvalidRequest("there are no records to append")
            requests.append((target, request))
        return requests

    def _spread(
        self, about: TopicFile, records: Records | bytes, now_ms: int, *, stamped: bool
    ) -> list[tuple[int, Any]]:
        """Decides which partitions take which records: by key, or all of them in turn."""
        if stamped:
            raise InvalidRequest("an idempotent append names its partition")
        turn = next(self._turn) % about.partitions
        if "key" not in record_columns.KEPT_COLUMNS[about.format] or not has_keys(records):
            return [(turn, records)]
        batch = record_columns.prepare(records, about.format, now_ms=now_ms)
        return split_by_key(batch, about.partitions, turn)

    @staticmethod
    def _write(
        target: LogWriter, request: Request, timeout_s: float | None
    ) -> tuple[dict[int, Ack], int]:
        ack = target.writer.append(request, timeout_s)
        if ack is None:
            ack = Ack(-1, request.count, "none")
        return {target.place.partition: ack}, request.count

    # ------------------------------------------------------------------ keeping and removing

    def trim(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes whole segments below an offset; returns the earliest offset that is left."""
        target = self._writable(topic, partition)
        return self._with_reserve(lambda: target.exclusively(lambda: target.trim(before_offset)))

    def delete(
        self,
        topic: str,
        partition: int = 0,
        *,
        before: int | None = None,
        tag: bytes | None = None,
        tag_prefix: bytes | None = None,
        offsets: Iterable[int] | None = None,
    ) -> int:
        """Deletes records of a wal topic, at once and for good; returns how many.

        Either all before an offset, those with a tag or a tag's beginning, or single ones. Only
        records that are there now are meant, not later ones.
        """
        target = self._writable(topic, partition)
        chosen = None if offsets is None else tuple(offsets)
        deletion = Deletion(before, tag, tag_prefix, chosen)
        return self._with_reserve(lambda: target.exclusively(lambda: target.delete(deletion)))

    def explain_retention(self, topic: str, partition: int = 0) -> list[retention.Decision]:
        """Says for each segment, oldest first, why it stays or goes."""
        return self._writable(topic, partition).explain_retention()

    def apply_retention(self, topic: str, partition: int = 0) -> int:
        """Removes what retention lets go now; returns how many segments went."""
        target = self._writable(topic, partition)
        return self._with_reserve(lambda: target.exclusively(target.apply_retention))

    def roll(self, topic: str, partition: int = 0) -> None:
        """Seals the active segment, if it holds anything."""
        target = self._writable(topic, partition)
        target.exclusively(target.roll)

    def flush(self) -> None:
        """Makes durable what was written with acks 0 or 1, and the checkpoint current."""
        self._require_open()
        for partition in self._segmented():
            partition.writer.exclusively(partition.sync)
        if self._wal is not None:
            self._wal.sync()
        self._maintenance.tick()

    def maintain(self) -> None:
        """Does now what the store otherwise does by itself, in time, due or not."""
        self._require_open()
        self._maintenance.tick(force=True)

    def _with_reserve(self, action: Callable[[], _Result]) -> _Result:
        """Runs an action that frees space; on a full disk with the space kept for it."""
        try:
            return action()
        except StorageFull:
            if not self._boot.release_reserve():
                raise
            return action()

    def close(self) -> None:
        """Answers what was accepted, makes everything durable and lets the directory go."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._lock.release)
            last_to_first.callback(self._executor.shutdown)
            last_to_first.callback(self._appending.shutdown)
            partitions = self._segmented()
            last_to_first.callback(self._maintenance.checkpoint, partitions)
            if self._wal is not None:
                last_to_first.callback(self._wal.close)
            for partition in partitions:
                last_to_first.callback(_close_partition, partition)
            self._maintenance.stop()

    def _disown(self) -> None:
        """Closes the copy of a store that a forked child has; its locks may be held by nobody."""
        self._closed = True
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
"""The open stores, for the moment of a fork."""


def _disown_all() -> None:
    for store in list(_OPEN):
        store._disown()


os.register_at_fork(after_in_child=_disown_all)


def _close_partition(partition: Partition) -> None:
    """Answers what was accepted and makes it durable; a failure leaves the rest to recovery."""
    partition.writer.close(Closed("the store is closed"))
    if partition.is_poisoned:
        return
    try:
        partition.close()
    except OSError as error:
        raise Poisoned(
            f"{partition.place.name}: closing failed ({error}); the next open recovers"
        ) from error


def _merged(answers: list[tuple[dict[int, Ack], int]]) -> Appended:
    parts = {number: ack for acks, _ in answers for number, ack in acks.items()}
    return Appended(parts, sum(count for _, count in answers))
