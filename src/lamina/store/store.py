"""The store: a data directory, opened for writing. Everything that users do goes through here.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · fetch · trim ─▶ close

Rules.
1. One writer a directory, held by a lock that ends with the process; any number of readers.
2. The checkpoint is written from durable state only, at most once a tick; opening writes it if
   it says anything new. What a recovery set aside is reported at once, an empty report in time.
3. No storage logic here: topics are the catalog's, records the partitions'.
4. A store belongs to the process that opened it: after a fork the child's copy is closed.
5. What only some stores need (the write-ahead log, the archive) is imported when one does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from lamina.api import BrokerId, Decision, RecoveryReport, TierStatus
from lamina.archive.open_archive import Archive, Memory
from lamina.config import WalSettings, WriterSettings
from lamina.errors import (
    ArchiveUnavailable,
    Closed,
    InvalidRequest,
    Poisoned,
    UnknownTopic,
    typed_errors,
)
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.formats.documents.topic_file import TopicFile
from lamina.groups.registry import Groups
from lamina.log.interfaces import Deletion, LogWriter
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles, Lock
from lamina.store.disk_reserve import Reserve
from lamina.store.group_calls import GroupAccess
from lamina.store.introspection import InsightAccess
from lamina.store.maintenance import Maintenance
from lamina.store.opening import Boot, steady_clock, wall_clock_ms
from lamina.store.router_rules import RouterAccess

if TYPE_CHECKING:
    from lamina.archive.tier import Tier
    from lamina.wal.engine import WalEngine
    from lamina.wal.wal_partition import WalPartition

TICK_MS = 1000
_THREADS = 8


class Store(RouterAccess, GroupAccess, InsightAccess):
    """A data directory, opened for writing. Use `lamina.open`, and close it (or use `with`)."""

    _lock: Lock | None = None
    _released = False

    @typed_errors("opening the store")
    def __init__(  # noqa: PLR0913 - a store's choices, each by its name
        self,
        path: str,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        writer: WriterSettings = WriterSettings(),
        wal: WalSettings | None = None,
        tick_ms: int = TICK_MS,
        archive: Archive = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        started = time.perf_counter()
        steady_ms = steady_clock(now_ms()) if now_ms is wall_clock_ms else now_ms
        self._boot = Boot(files or LocalFiles(), os.path.abspath(path), now_ms, steady_ms)
        self._path = self._boot.data
        self._reserve = Reserve(self._boot.files, self._path)
        self._writer_settings = writer
        self._wal_settings = wal or WalSettings.from_environment(os.environ)
        self._wal: WalEngine | None = None
        # Leaders have a pool of their own: behind appends that wait for them they would never run.
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-writer")
        self._appending = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-append")
        self._turn = itertools.count()
        self._changing = threading.Lock()
        self._recovery_report = RecoveryReport()
        self._is_reported = False
        memory = Memory(archive, self._boot.files, self._path, self._recovery_report)
        self._tier = self._open_tier(memory)
        self._boot.files.make_directory(self._boot.path(paths.META))
        try:
            self._lock = self._boot.files.lock(self._boot.path(paths.LOCK), f"pid {os.getpid()}\n")
            self._boot, self._identity = self._boot.identified()
            self._topics: dict[str, TopicFile] = {}
            self._partitions: dict[tuple[str, int], Archivable] = {}
            writing = (writer, self._executor)
            self._groups = Groups(self._boot, self, self._partition, writing, steady_ms)
            known = self._reserve.use(lambda: self._recover(on_progress))
            memory.keep(self._tier.lacking if self._tier is not None else list)
            self._recovery_report.milliseconds = (time.perf_counter() - started) * 1000
            self._maintenance = Maintenance(
                self._boot,
                self._reserve,
                self._segmented,
                {
                    "groups": self._flush_groups,
                    "the write-ahead log": self._maintain_wal,
                    "the recovery report": self._save_report,
                },
            )
            self._maintenance.begin(known)
            if self._recovery_report.is_notable:
                self._save_report()
            self._maintenance.start(min(tick_ms, writer.flush_ms))
            if self._tier is not None:
                self._tier.start(tick_ms)
            _OPEN.add(self)
        except BaseException:
            self._abandon()
            raise

    @property
    def path(self) -> str:
        """The data directory, as an absolute path."""
        return self._path

    @property
    def identity(self) -> BrokerId:
        """Whose data directory this is."""
        return self._identity

    @property
    def recovery_report(self) -> RecoveryReport:
        """What recovery did when this store was opened; kept as a file, too."""
        return self._recovery_report

    @property
    def tier(self) -> Tier | None:
        """What looks after the archive."""
        return self._tier

    def _open_tier(self, memory: Memory) -> Tier | None:
        objects = memory.objects
        if objects is None:
            return None
        from lamina.archive.spare_copies import ArchiveSpares
        from lamina.archive.tier import Tier
        from lamina.archive.topic_copies import Metadata

        self._boot = replace(self._boot, spares=ArchiveSpares(objects, memory.is_own))
        metadata = Metadata(objects, lambda: self._groups)
        return Tier(objects, self._archivable, lambda: self._topics, metadata)

    @typed_errors("recovery")
    def _recover(
        self, on_progress: Callable[[int, int], None]
    ) -> dict[tuple[str, int], PartitionCheckpoint]:
        """Recovers everything; returns what the checkpoint said before."""
        report = self._recovery_report
        hints = self._boot.read_checkpoint(report)
        topics = self._boot.catalog.load(report)
        if self._boot.has_wal(topics):
            self._wal = self._new_wal()
            for about in self._wal.load(report, topics.values()).lost_topics(set(topics)):
                if self._boot.catalog.restore(about):
                    report.add("rebuilt", about.name, "its topic.json was gone; the WAL knows it")
                    topics[about.name] = about
        total = sum(about.partitions for about in topics.values())
        for name, about in topics.items():
            for number in range(about.partitions):
                on_progress(len(self._partitions), total)
                self._open_partition(about, number, hints.get((name, number)))
            self._topics[name] = about
            self._attach(about)
        if self._wal is not None:
            self._wal.finish_opening(report)
        self._groups.recover(self._topics, self._recovery_report)
        return hints

    def _new_wal(self) -> WalEngine:
        from lamina.wal.engine import WalEngine
        from lamina.wal.ground import Ground

        boot = self._boot
        ground = Ground.of(boot, self._wal_settings).recalling(writes=True)
        return WalEngine(ground, self._writer_settings, self._executor)

    def write_ahead_log(self) -> WalEngine:
        """Returns the write-ahead log, which begins with the first topic that needs one."""
        if self._wal is None:
            begun = self._new_wal()
            begun.load(self._recovery_report)
            begun.finish_opening(self._recovery_report)
            self._wal = begun
        return self._wal

    def _claim(self, about: TopicFile) -> TopicFile:
        return self.write_ahead_log().claim(about) if about.format == "wal" else about

    def _keep_expired_hidden(self, about: TopicFile) -> None:
        """What has expired does not come back because `retention.ms` grows."""
        if about.topic_ids:
            for partition in self.wal_partitions([about.name]):
                if partition.earliest_offset() > partition.earliest:
                    partition.exclusively(partition.keep_expired_hidden)

    def _open_partition(
        self, about: TopicFile, number: int, hint: PartitionCheckpoint | None = None
    ) -> None:
        if about.topic_ids:
            assert self._wal is not None, "a topic with ids has a write-ahead log"
            opened: Archivable = self._wal.open_topic(about, number)
        else:
            partition = self._boot.open_partition(about, number, hint, self._recovery_report)
            partition.start(self._writer_settings, self._executor)
            opened = partition
        opened.progress = functools.partial(self._groups.progress, about.name, number)
        self._partitions[about.name, number] = opened

    def _segmented(self) -> list[Partition]:
        """Returns the partitions that have a log of their own."""
        return [each for each in self._partitions.values() if isinstance(each, Partition)]

    def _archivable(self) -> list[Archivable]:
        """Returns all partitions; their settings say whether they are archived."""
        return list(self._partitions.values())

    def _flush_groups(self, *, force: bool) -> None:
        self._groups.take_over(self._topics)
        self._groups.flush()  # due or not: it is quick

    def _maintain_wal(self, *, force: bool) -> None:
        if self._wal is not None:
            self._wal.maintain(force=force)

    def _save_report(self, *, force: bool = False) -> None:
        """Keeps what recovery did as a file, once; on a full disk as soon as there is room."""
        if self._is_reported:
            return
        with contextlib.suppress(OSError):
            report = self._recovery_report.encode()
            self._boot.files.replace(self._boot.path(paths.RECOVERY_REPORT), report)
            self._is_reported = True

    def _attach(self, about: TopicFile) -> None:
        """Has the archive looked after, where a topic has one."""
        for number in range(about.partitions):
            if self._tier is not None:
                self._tier.attach(self._partitions[about.name, number])

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

    def _asked(self, topic: str, partition: int) -> LogWriter:
        target = self._writable(topic, partition)
        with contextlib.suppress(ArchiveUnavailable):
            target.ask_archive()  # which has the oldest, and those go first
        return target

    # ------------------------------------------------------------------ keeping and removing

    def trim(self, topic: str, partition: int, before_offset: int) -> int:
        """Removes whole segments below an offset; returns the earliest offset that is left."""
        target = self._asked(topic, partition)
        return self._reserve.use(lambda: target.exclusively(lambda: target.trim(before_offset)))

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
        """Deletes records of a wal topic: what the archive has of them is searched first."""
        target = self._writable(topic, partition)
        chosen = None if offsets is None else tuple(offsets)
        deletion = target.search_archive(Deletion(before, tag, tag_prefix, chosen))
        return self._reserve.use(lambda: target.exclusively(lambda: target.delete(deletion)))

    def explain_retention(self, topic: str, partition: int = 0) -> list[Decision]:
        """Returns for each segment, oldest first, whether it stays or goes, and why."""
        return self._asked(topic, partition).explain_retention()

    def apply_retention(self, topic: str, partition: int = 0) -> int:
        """Removes what retention lets go now; returns how many segments went."""
        target = self._asked(topic, partition)
        return self._reserve.use(lambda: target.exclusively(target.apply_retention))

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
        self._groups.flush()
        self._maintenance.tick()

    def maintain(self) -> None:
        """Does now what the store otherwise does by itself, in time, due or not."""
        self._require_open()
        self._maintenance.tick(force=True)

    def archive(self) -> None:
        """Archives now what is sealed, also where objects stay small; raises what failed."""
        self._require_open()
        if self._tier is None:
            raise InvalidRequest("the store was opened without `archive`")
        self._tier.archive()

    def segmented(self, topics: Collection[str] | None = None) -> list[Partition]:
        """Returns the partitions that have segments of their own, for jobs that work on those."""
        self._require_open()
        return [each for each in self._segmented() if not topics or each.place.topic in topics]

    def wal_partitions(self, topics: Collection[str] | None = None) -> list[WalPartition]:
        """Returns the partitions behind the write-ahead log, for jobs that work on those."""
        from lamina.wal.wal_partition import WalPartition

        self._require_open()
        found = [each for each in self._partitions.values() if isinstance(each, WalPartition)]
        return [each for each in found if not topics or each.place.topic in topics]

    def purge_wal(self) -> None:
        """Copies everything into segments and frees every WAL file that holds a record."""
        self._require_open()
        if self._wal is not None:
            self._wal.purge()

    def tier_status(self) -> list[TierStatus]:
        """Returns for each archived partition how far its archive is behind."""
        self._require_open()
        return self._tier.status() if self._tier is not None else []

    def failures(self) -> dict[str, str]:
        """Returns which partitions and groups are poisoned, and why."""
        partitions = {
            partition.place.name: str(partition.failure)
            for partition in list(self._partitions.values())
            if partition.failure is not None
        }
        return partitions | self._groups.failures()

    def close(self) -> None:
        """Answers what was accepted, makes everything durable and lets the directory go."""
        if self._released:
            return
        self._closed = True  # what an interrupt cuts off here, the next close does
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._release)
            last_to_first.callback(self._executor.shutdown)
            last_to_first.callback(self._appending.shutdown)
            partitions = self._segmented()
            last_to_first.callback(self._maintenance.checkpoint, partitions)
            last_to_first.callback(self._save_report)
            if self._wal is not None:
                last_to_first.callback(self._wal.close)
            for each in self._partitions.values():
                each.end_waits()
            for partition in partitions:
                last_to_first.callback(_close_partition, partition)
            last_to_first.callback(self._groups.close)
            self._maintenance.stop()
            if self._tier is not None:
                self._tier.stop()

    def _release(self) -> None:
        """Lets the directory go, and every file of it that is still open."""
        self._boot.files.kept.release()
        if self._lock is not None:
            self._lock.release()
        self._released = True

    def _abandon(self) -> None:
        """Leaves nothing of an opening that failed: no thread, no file, no lock."""
        self._closed = True
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._release)
            last_to_first.callback(self._executor.shutdown)
            last_to_first.callback(self._appending.shutdown)
            if self._tier is not None:
                last_to_first.callback(self._tier.stop)
            begun = getattr(self, "_maintenance", None)
            if begun is not None:
                last_to_first.callback(begun.stop)

    def _disown(self) -> None:
        """Closes the copy of a store that a forked child has; its locks may be held by nobody."""
        self._closed = self._released = True
        if self._lock is not None:
            self._lock.release()


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
