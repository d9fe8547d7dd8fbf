"""The store: a data directory, opened for writing. Everything that users do goes through here.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · fetch · trim ─▶ close

Rules.
1. One writer a directory, held by a lock that ends with the process; any number of readers.
2. The checkpoint is written from durable state only, at most once a tick.
3. No storage logic here: topics are the catalog's, records the partitions'.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Self, TypeVar

from lamina import records as record_columns
from lamina.config import TopicSettings, WriterSettings
from lamina.engine import retention
from lamina.engine.appending import Appended, acks_level, has_keys, make_request, split_by_key
from lamina.engine.boot import Boot
from lamina.engine.codec import CODECS
from lamina.engine.maintenance import Maintenance
from lamina.engine.partition import Partition
from lamina.engine.reader import StoreReader
from lamina.engine.reading import PartitionReader
from lamina.engine.report import RecoveryReport
from lamina.engine.view import PartitionView
from lamina.engine.writer import Ack, ProducerStamp
from lamina.errors import Closed, InvalidRequest, StorageFull
from lamina.formats.topic import TopicFile
from lamina.records import Records
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles

TICK_MS = 1000
RECOVERY_REPORT = "meta/recovery.json"
_THREADS = 8
_Result = TypeVar("_Result")


def wall_clock_ms() -> int:
    """Returns milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Store(StoreReader):
    """A data directory, opened for writing. Use `lamina.open`, and close it (or use `with`)."""

    def __init__(
        self,
        path: str,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        writer: WriterSettings = WriterSettings(),
        tick_ms: int = TICK_MS,
    ) -> None:
        started = time.perf_counter()
        self._boot = Boot(files or LocalFiles(), os.path.abspath(path), now_ms)
        self._writer_settings = writer
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-writer")
        self._turn = itertools.count()
        self._changing = threading.Lock()
        self.recovery_report = RecoveryReport()
        self._boot.files.make_directory(self._boot.path(paths.META))
        self._lock = self._boot.files.lock(self._boot.path(paths.LOCK), f"pid {os.getpid()}\n")
        try:
            self.identity = self._boot.identify()
            self._topics: dict[str, TopicFile] = {}
            self._partitions: dict[tuple[str, int], Partition] = {}
            self._recover()
            self.recovery_report.milliseconds = (time.perf_counter() - started) * 1000
            report = self.recovery_report.encode()
            self._boot.files.replace(self._boot.path(RECOVERY_REPORT), report)
        except BaseException:
            self._lock.release()
            raise
        self._maintenance = Maintenance(self._boot, lambda: list(self._partitions.values()))
        self._maintenance.tick()
        self._maintenance.start(min(tick_ms, writer.flush_ms))

    def _recover(self) -> None:
        hints = self._boot.read_checkpoint(self.recovery_report)
        for name, about in self._boot.catalog.load(self.recovery_report).items():
            for number in range(about.partitions):
                hint = hints.get((name, number))
                flushed = hint.last_flushed_offset if hint is not None else None
                self._open_partition(about, number, flushed or 0)
            self._topics[name] = about

    def _open_partition(self, about: TopicFile, number: int, flushed: int) -> None:
        partition = self._boot.open_partition(about, number, flushed, self.recovery_report)
        partition.start(self._writer_settings, self._executor)
        self._partitions[about.name, number] = partition

    def _files_of_topics(self) -> Mapping[str, TopicFile]:
        return self._topics

    def _reader(self, about: TopicFile, partition: int) -> Partition:
        return self._partitions[about.name, partition]

    def _writable(self, topic: str, partition: int) -> Partition:
        self._partition(topic, partition)
        return self._partitions[topic, partition]

    # ------------------------------------------------------------------ topics

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
            about = self._boot.catalog.create(
                name, partitions=partitions, format_name=format, settings=config or {}
            )
            for number in range(partitions):
                self._open_partition(about, number, 0)
            self._topics[name] = about

    def alter_topic(self, name: str, config: Mapping[str, Any]) -> None:
        """Changes settings of a topic; what is not named stays as it is."""
        with self._changing:
            about = self._boot.catalog.alter(self._topic(name), config)
            self._topics[name] = about
            for number in range(about.partitions):
                self._partitions[name, number].settings = TopicSettings.parse(about.settings)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic with all of its records; the same name can be created again."""
        with self._changing:
            about = self._topic(name)
            del self._topics[name]
            for number in range(about.partitions):
                partition = self._partitions.pop((name, number))
                partition.writer.close(Closed(f"topic {name!r} was deleted"))
            self._boot.catalog.delete(about)

    # ------------------------------------------------------------------ appending

    def append(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: object = "all",
        timeout_s: float | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends records and waits until they are as safe as `acks` asks for.

        Without a partition, records with a key go where the hash of their key says, others to one
        partition in turn. With `producer`, a repeated append gets its first answer. Raises
        QueueFull or Unavailable when `timeout_s` is up, StorageFull, Poisoned, InvalidRequest.
        """
        level = acks_level(acks)
        parts = self._parts(topic, records, partition, stamped=producer is not None)
        if len(parts) == 1:
            number, part = parts[0]
            return self._append_to(topic, number, part, level, timeout_s, producer)
        futures = [
            self._executor.submit(self._append_to, topic, number, part, level, timeout_s, producer)
            for number, part in parts
        ]
        answers = [future.result() for future in futures]
        merged = {number: ack for answer in answers for number, ack in answer.parts.items()}
        return Appended(merged, sum(answer.count for answer in answers))

    async def append_async(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: object = "all",
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends from asyncio; many tasks share one commit without a thread each.

        Raises QueueFull at once when the queue is full.
        """
        level = acks_level(acks)
        parts = self._parts(topic, records, partition, stamped=producer is not None)
        acks_of = await asyncio.gather(
            *(
                self._writable(topic, number).writer.append_soon(
                    self._request(topic, number, part, level, producer)
                )
                for number, part in parts
            )
        )
        merged = {number: ack for (number, _), ack in zip(parts, acks_of, strict=True)}
        return Appended(merged, sum(ack.count for ack in acks_of))

    def _request(
        self,
        topic: str,
        partition: int,
        records: Records | bytes,
        level: int,
        producer: ProducerStamp | None,
    ) -> Any:
        target = self._writable(topic, partition)
        return make_request(
            records,
            target.codec.name,
            target.settings,
            acks=level,
            now_ms=self._boot.now_ms(),
            stamp=producer,
        )

    def _append_to(
        self,
        topic: str,
        partition: int,
        records: Records | bytes,
        level: int,
        timeout_s: float | None,
        producer: ProducerStamp | None,
    ) -> Appended:
        request = self._request(topic, partition, records, level, producer)
        if request.count == 0:
            raise InvalidRequest("there are no records to append")
        ack = self._partitions[topic, partition].writer.append(request, timeout_s)
        if ack is None:
            ack = Ack(-1, request.count, "none")
        return Appended({partition: ack}, request.count)

    def _parts(
        self, topic: str, records: Records | bytes, partition: int | None, *, stamped: bool
    ) -> list[tuple[int, Any]]:
        """Decides which partitions take which records."""
        about = self._topic(topic)
        if partition is not None:
            return [(partition, records)]
        if about.partitions == 1:
            return [(0, records)]
        if stamped:
            raise InvalidRequest("an idempotent append names its partition")
        turn = next(self._turn) % about.partitions
        if "key" not in record_columns.KEPT_COLUMNS[about.format] or not has_keys(records):
            return [(turn, records)]
        batch = record_columns.prepare(records, about.format, now_ms=self._boot.now_ms())
        return split_by_key(batch, about.partitions, turn)

    # ------------------------------------------------------------------ keeping and removing

    def trim(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes whole segments below an offset; returns the earliest offset that is left."""
        target = self._writable(topic, partition)
        return self._with_reserve(
            lambda: target.writer.exclusively(lambda: target.trim(before_offset))
        )

    def explain_retention(self, topic: str, partition: int = 0) -> list[retention.Decision]:
        """Says for each segment, oldest first, why it stays or goes."""
        return self._writable(topic, partition).explain_retention()

    def apply_retention(self, topic: str, partition: int = 0) -> int:
        """Removes what retention lets go now; returns how many segments went."""
        target = self._writable(topic, partition)
        return self._with_reserve(lambda: target.writer.exclusively(target.apply_retention))

    def roll(self, topic: str, partition: int = 0) -> None:
        """Seals the active segment, if it holds anything."""
        target = self._writable(topic, partition)
        target.writer.exclusively(target.roll)

    def flush(self) -> None:
        """Makes durable what was written with acks 0 or 1, and the checkpoint current."""
        self._require_open()
        for partition in list(self._partitions.values()):
            partition.writer.exclusively(partition.sync)
        self._maintenance.tick()

    def maintain(self) -> None:
        """Does now what the store otherwise does by itself every second."""
        self._require_open()
        self._maintenance.tick()

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
        self._maintenance.stop()
        for partition in self._partitions.values():
            partition.writer.close(Closed("the store is closed"))
            if not partition.is_poisoned:
                partition.close()
        self._boot.write_checkpoint(list(self._partitions.values()))
        self._executor.shutdown()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReadOnlyStore(StoreReader):
    """A data directory opened for reading, beside a live writer or with none."""

    def __init__(self, path: str, *, files: Files | None = None) -> None:
        self._boot = Boot(files or LocalFiles(), os.path.abspath(path), wall_clock_ms)
        self._boot.require_directory()
        self._views: dict[tuple[str, int, int], PartitionView] = {}

    def _files_of_topics(self) -> Mapping[str, TopicFile]:
        return self._boot.catalog.peek()

    def _reader(self, about: TopicFile, partition: int) -> PartitionReader:
        key = about.name, about.epoch, partition
        if key not in self._views:
            place = self._boot.place(about.name, partition)
            self._views[key] = PartitionView(place, CODECS[about.format])
        view = self._views[key]
        view.refresh(self._durable_to(about.name, partition))
        return view

    def _durable_to(self, topic: str, partition: int) -> int | None:
        """What a live writer has published as durable; None when there is no live writer."""
        if not self._boot.files.is_locked(self._boot.path(paths.LOCK)):
            return None
        entry = self._boot.read_checkpoint(RecoveryReport()).get((topic, partition))
        return 0 if entry is None else entry.last_flushed_offset or 0

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidRequest("the store is open read-only")

    append = append_async = create_topic = alter_topic = delete_topic = _refuse
    trim = apply_retention = roll = flush = _refuse

    def close(self) -> None:
        """Lets the directory go."""
        self._closed = True
        self._views.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
