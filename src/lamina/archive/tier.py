"""Keeps a store's archive: uploads what is sealed, removes local copies, drops what was removed.

One thread of its own, so that an object store that is slow or down delays nothing else. `tick` is
the whole of it and can be called at any time.

    for each archived partition:
    claim ─ seal (acks=archived) ─ upload ─ metadata ─ join ─ local removal

Rules.
1. A failure is noted in the status and tried again at the next tick; appends and local reads never
   wait for the object store, except those that asked to (acks=archived).
2. A local segment goes only when the list in the store covers it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from lamina.api import TierStatus
from lamina.archive.archiver import Archiver, PartitionSource
from lamina.archive.join import Policy
from lamina.archive.object_list import Shelf, cold_log, lacking
from lamina.archive.object_reader import BlockCache, ColdLog
from lamina.archive.settle_losses import settle
from lamina.archive.terms import ALONE, Terms
from lamina.archive.topic_copies import Metadata
from lamina.config import TopicSettings
from lamina.errors import (
    ArchiveRefused,
    Busy,
    Closed,
    CorruptData,
    Fenced,
    InvalidRequest,
    LaminaError,
    Unavailable,
)
from lamina.formats.documents.archive_manifest import ArchivedObject
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.strm.layout import Compression
from lamina.log.sealed import Archivable
from lamina.storage.objects import Objects

TICK_MS = 1000
DOUBT_S = 60.0
_REFUSALS = (Fenced, InvalidRequest, CorruptData, ArchiveRefused)
"""Errors that no retry changes: callers that wait for the archive get them at once."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    """A partition that is archived."""

    partition: Archivable
    archiver: Archiver
    cold: ColdLog
    claimed: bool = False
    waiting_since: float | None = None
    wanted: int = 0
    wanted_since: float | None = None
    last_error: str = ""
    fenced: bool = False
    refused: LaminaError | None = None
    """Why it was last refused to archive, where trying again changes nothing."""
    begun: int = 0
    """How many tries have begun."""
    refused_try: int = 0
    """The try that was refused: whoever began to wait during it, or after it, is not concerned."""
    doubted_until: float = 0.0
    """When an object that was not whole is looked at again."""
    held: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def shelf(self) -> Shelf:
        return self.archiver.shelf


class Tier:
    """Looks after the archive of a store."""

    def __init__(
        self,
        objects: Objects,
        partitions: Callable[[], list[Archivable]],
        topics: Callable[[], Mapping[str, TopicFile]],
        metadata: Metadata,
        terms: Terms = ALONE,
    ) -> None:
        self.objects = objects
        self.cache = BlockCache()
        self.metadata = metadata
        self._partitions = partitions
        self._topics = topics
        self._writer = uuid.uuid4().hex
        self._terms = terms
        self._kept: dict[Archivable, _Kept] = {}
        self._deleted: list[TopicFile] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._compressing = ThreadPoolExecutor(2, thread_name_prefix="lamina-archive")

    # ------------------------------------------------------------------ the thread

    def start(self, tick_ms: int = TICK_MS) -> None:
        """Starts the thread."""
        name = "lamina-archiver"
        self._thread = threading.Thread(target=self._run, args=(tick_ms,), name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, after the upload that is under way."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():  # or it was never begun
            self._thread.join()
        self._mark_deleted()
        for kept in list(self._kept.values()):
            with kept.changed:
                kept.changed.notify_all()
        self._compressing.shutdown()
        self.cache.close()

    def _run(self, tick_ms: int) -> None:
        while not self._stopping:
            self._wake.wait(self._pause_s(tick_ms))
            self._wake.clear()
            if not self._stopping:
                try:
                    self.tick()
                except Exception:
                    _log.exception("archiving failed; it is tried again at the next tick")

    def _pause_s(self, tick_ms: int) -> float:
        """How long to wait: less when somebody waits for an upload whose window is open."""
        windows = [
            kept.wanted_since + kept.partition.settings.archive_window_ms / 1000 - time.monotonic()
            for kept in list(self._kept.values())
            if kept.wanted_since is not None
        ]
        return max(0.001, min([tick_ms / 1000, *windows]))

    def tick(self, *, force: bool = False) -> list[LaminaError]:
        """Does for each partition what is due; with `force`, also archives small objects.

        Returns what failed, having tried all partitions.
        """
        failed: list[LaminaError] = []
        with self._lock:
            self._mark_deleted()
            for kept in self._current():
                if kept.held:
                    continue
                try:
                    kept.begun += 1
                    self._look_after(kept, force=force)
                    kept.refused = None
                    # A tick that tries nothing must not hide why the last one failed.
                    if not kept.archiver.pending() and not kept.doubted_until:
                        kept.last_error = ""
                except LaminaError as error:
                    failed.append(self._note(kept, error))
                except OSError as error:
                    failed.append(self._note(kept, Unavailable(str(error))))
        return failed

    def archive(self) -> None:
        """Archives now what is sealed; raises what failed, after all partitions were tried."""
        failed = self.tick(force=True)
        if failed:
            worst = max(failed, key=lambda error: isinstance(error, _REFUSALS))
            for other in failed:
                if other is not worst:
                    worst.add_note(str(other))
            raise worst

    def _note(self, kept: _Kept, error: LaminaError) -> LaminaError:
        """Keeps why a partition is not archived; returns it with the partition's name."""
        named = _named(error, kept.partition.place.name)
        if str(error) != kept.last_error:
            _log.warning("archiving %s", str(named))  # not the error: it would keep the store
        kept.last_error = str(error)
        kept.fenced = isinstance(error, Fenced)
        with kept.changed:
            kept.refused = named if isinstance(error, _REFUSALS) else None
            kept.refused_try = kept.begun
            kept.changed.notify_all()
        return named

    def forget(self, about: TopicFile) -> None:
        """Notes that a topic was deleted; its archive is marked so at the next tick."""
        self._deleted.append(about)

    def _mark_deleted(self) -> None:
        """Marks the archives of deleted topics; what fails is tried again."""
        for about in list(self._deleted):
            try:
                self.metadata.mark_deleted(about)
            except (LaminaError, OSError) as error:
                _log.warning("marking the archive of %s as deleted: %s", about.name, error)
            else:
                self._deleted.remove(about)

    def attach(self, partition: Archivable) -> None:
        """Makes the archived part of a partition readable, as soon as the store has answered."""
        is_in_archive = partition.settings.is_archived or partition.ledger.archived()
        if is_in_archive and partition not in self._kept:  # no longer archived, still read
            self._keep(partition)

    def _keep(self, partition: Archivable) -> None:
        shelf = self._shelf_of(partition)
        if shelf is not None:
            cold = cold_log(self.objects, shelf.about, shelf.partition, self.cache)
            archiver = Archiver(shelf, PartitionSource(partition, self._terms), self._compressing)
            self._kept[partition] = _Kept(partition, archiver, cold)
            partition.cold = cold

    def _shelf_of(self, partition: Archivable) -> Shelf | None:
        about = self._topics().get(partition.place.topic)
        if about is None:
            return None
        return Shelf(
            self.objects, about, partition.place.partition, self._writer, self._terms.epoch
        )

    def _current(self) -> list[_Kept]:
        open_now = self._partitions()
        for partition in open_now:
            self.attach(partition)
        before = self._kept
        self._kept = {each: kept for each, kept in before.items() if each in open_now}
        for each, kept in before.items():
            if not self._keeps(each):  # nothing waits for a partition that is not archived any more
                with kept.changed:
                    kept.changed.notify_all()
        return [kept for kept in self._kept.values() if kept.partition.settings.is_archived]

    def lacking(self) -> Iterator[tuple[str, int, int]]:
        """Yields what logs have handed over and the archive does not hold: name, first, end."""
        for kept in self._current():
            partition = kept.partition
            if partition.ledger.archived():
                held = kept.shelf.load().objects
                for first, end in lacking(held, partition.ledger, partition.published):
                    yield partition.place.name, first, end

    def archived(self) -> list[Archivable]:
        """Returns the archived partitions, whose objects jobs may rewrite."""
        with self._lock:
            return [kept.partition for kept in self._current()]

    def holding(self) -> list[Archivable]:
        """Returns the partitions that have objects, also those that are archived no more.

        All of them may still be local: then only the archive itself knows.
        """
        with self._lock:
            self._current()
            for partition in self._partitions():
                shelf = None if partition in self._kept else self._shelf_of(partition)
                if shelf is not None and shelf.load().objects:
                    self._keep(partition)
            return list(self._kept)

    @contextlib.contextmanager
    def hold(self, partition: Archivable, *, claim: bool = True) -> Iterator[Archiver]:
        """Hands a partition's archive to a job: until it ends, nothing else changes the list.

        What the job has listed is shown at its end. Appends with acks=archived wait for it. Without
        `claim` the list is only read.
        """
        with self._lock:
            self.attach(partition)
            kept = self._kept.get(partition)
            if kept is None:
                raise InvalidRequest(
                    f"{partition.place.name} is not archived: set remote.storage.enable"
                )
            if kept.held:
                raise Busy(f"{partition.place.name}: another job has its archive")
            if claim:
                self._claim(kept)
            elif not kept.claimed:
                kept.shelf.load()
            kept.held = True
        try:
            yield kept.archiver
        finally:
            with self._lock:
                kept.held = False
                self._show(kept)
            if kept.wanted_since is not None:
                self._wake.set()

    # ------------------------------------------------------------------ one partition

    def _claim(self, kept: _Kept) -> None:
        """Takes the archive over, once; raises Fenced if another store has it by now."""
        if kept.fenced:
            raise Fenced(f"{kept.shelf.name} was taken over by another store")
        kept.shelf.about = self._topics()[kept.shelf.about.name]
        if not kept.claimed:
            kept.shelf.claim(kept.partition.end_offset("durable"), kept.partition.ledger)
            settle(kept.partition, kept.shelf.manifest.objects, kept.cold)
            kept.claimed = True
            self._show(kept)

    def _look_after(self, kept: _Kept, *, force: bool) -> None:
        self._terms.require()
        self._claim(kept)
        self.metadata.save_topic(kept.shelf.about)  # before objects: it is needed to read them
        self._seal_for_waiting(kept)
        self._upload(kept, force=force)
        self.metadata.save(kept.shelf, kept.partition.published)
        self._drop_removed(kept)
        self._join(kept)
        if force or time.monotonic() >= kept.doubted_until:
            self._remove_local(kept)

    def _seal_for_waiting(self, kept: _Kept) -> None:
        """Seals the active segment when appends with acks=archived have waited their window."""
        since, partition = kept.wanted_since, kept.partition
        if since is None or time.monotonic() < since + partition.settings.archive_window_ms / 1000:
            return
        if partition.sealed_end < kept.wanted:
            partition.exclusively(partition.roll)

    def _upload(self, kept: _Kept, *, force: bool) -> None:
        policy, settings = policy_of(kept.partition.settings), kept.partition.settings
        archiver = kept.archiver
        while archiver.pending() and not self._stopping:
            now = time.monotonic()
            kept.waiting_since = kept.waiting_since or now
            waited_ms = (now - kept.waiting_since) * 1000
            wanted = kept.wanted > archiver.shelf.manifest.end_offset and _is_sealed(kept)
            is_due = force or wanted or waited_ms >= settings.archive_delay_ms
            if not (is_due or archiver.is_worthwhile(policy)):
                return
            archiver.archive_next(policy, kept.partition.place.now_ms())
            kept.waiting_since = None
            self._show(kept)

    def _show(self, kept: _Kept) -> None:
        """Shows readers and waiting appends what is archived now: the store has answered."""
        kept.last_error = ""
        kept.cold.show(kept.shelf.manifest.objects)
        with kept.changed:
            if kept.shelf.manifest.end_offset >= kept.wanted:
                kept.wanted_since = None
            kept.changed.notify_all()

    def _drop_removed(self, kept: _Kept) -> None:
        """Takes out of the list, then out of the store, what retention or a trim has removed."""
        ledger = kept.partition.published

        def goes(entry: ArchivedObject) -> bool:
            return ledger.has_removed(entry.base_offset, entry.next_offset)

        going = [entry for entry in kept.shelf.manifest.objects if goes(entry)]
        if not going:
            return
        kept.shelf.commit(
            lambda now: replace(now, objects=tuple(each for each in now.objects if not goes(each)))
        )
        self._show(kept)
        for entry in going:
            self.objects.delete(kept.shelf.key_of(entry))

    def _join(self, kept: _Kept) -> None:
        """Joins small neighbours; those that they were become orphans."""
        policy, now_ms = policy_of(kept.partition.settings), kept.partition.place.now_ms()
        while not self._stopping and kept.archiver.join_small(
            policy, kept.partition.published, now_ms
        ):
            self._show(kept)

    def _remove_local(self, kept: _Kept) -> None:
        """Removes local copies, object by object, each read once more: ours may be the last one."""
        partition, listed = kept.partition, kept.shelf.manifest
        kept.doubted_until = 0.0
        if partition.writer.failure is not None:
            return
        spanning = [each for each in listed.objects if each.next_offset > partition.local_start]
        ends = [*(each.base_offset for each in spanning[1:]), listed.end_offset]
        for entry, end in zip(spanning, ends, strict=False):
            if not partition.has_local_excess(listed.end_offset):
                return
            kept.doubted_until = time.monotonic() + DOUBT_S
            kept.shelf.judge().require_whole(kept.shelf.key_of(entry), entry)
            kept.doubted_until = 0.0
            if partition.has_local_excess(end):
                partition.check_local_excess(end)
                partition.exclusively(functools.partial(partition.apply_local_retention, end))

    # ------------------------------------------------------------------ waiting and looking

    def wait_archived(
        self, partition: Archivable, end_offset: int, timeout_s: float | None
    ) -> None:
        """Waits until the records below an offset are archived; raises Unavailable if they are not.

        They are durable in any case, and are archived later.
        """
        self.attach(partition)
        kept = self._kept.get(partition)
        if kept is None or not partition.settings.is_archived:
            raise InvalidRequest(
                f"{partition.place.name}: acks=archived needs remote.storage.enable on the topic"
            )
        with kept.changed:
            kept.wanted = max(kept.wanted, end_offset)
            kept.wanted_since = kept.wanted_since or time.monotonic()
            begun = kept.begun
            self._wake.set()
            kept.changed.wait_for(
                lambda: (
                    kept.shelf.manifest.end_offset >= end_offset
                    or self._stopping
                    or (kept.refused is not None and kept.refused_try > begun)
                    or not self._keeps(partition)
                ),
                timeout=timeout_s,
            )
            archived = kept.shelf.manifest.end_offset >= end_offset
        if archived:
            return
        where = f"{partition.place.name}: the records are durable but not archived"
        if self._stopping:
            raise Closed(f"{where}: the store is closed")
        if not self._keeps(partition):
            raise Closed(f"{where}: the topic was deleted, or is archived no more")
        if kept.fenced:
            raise Fenced(f"{where}: {kept.last_error}")
        if kept.refused is not None:
            raise ArchiveRefused(f"{where}: {kept.last_error}") from kept.refused
        raise Unavailable(f"{where} in time: {kept.last_error or 'uploading'}")

    def _keeps(self, partition: Archivable) -> bool:
        return partition.settings.is_archived and partition in self._kept

    def status(self) -> list[TierStatus]:
        """Returns per archived partition how far its archive is behind."""
        return [self._status(kept) for kept in list(self._kept.values())]

    def _status(self, kept: _Kept) -> TierStatus:
        manifest, partition = kept.shelf.manifest, kept.partition
        since = kept.waiting_since
        return TierStatus(
            topic=partition.place.topic,
            partition=partition.place.partition,
            archived_offset=manifest.end_offset,
            objects=len(manifest.objects),
            size_bytes=manifest.size_bytes,
            records_behind=max(0, partition.end_offset("durable") - manifest.end_offset),
            bytes_behind=kept.archiver.pending_bytes(),
            seconds_behind=0.0 if since is None else time.monotonic() - since,
            last_error=kept.last_error,
        )


def _named(error: LaminaError, name: str) -> LaminaError:
    """Returns an error of the same kind whose text names the partition; paths name it anyway."""
    if isinstance(error, CorruptData):
        return error
    named = type(error)(f"{name}: {error}")
    named.__cause__ = error
    return named


def _is_sealed(kept: _Kept) -> bool:
    """Returns whether the records that somebody waits for are in sealed segments."""
    return kept.partition.sealed_end >= kept.wanted


def policy_of(settings: TopicSettings) -> Policy:
    """Reads how a topic wants its objects."""
    compression = Compression[settings.archive_compression.upper()]
    return Policy(compression, settings.archive_object_bytes)
