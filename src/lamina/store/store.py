"""The store: a data directory, opened for writing. Every call of a user comes in here.

    open ─ lock ─ identity ─ checkpoint ─ recover ─▶ append · scan · fetch · trim ─▶ close

A store is composed of parts, and passes each call to the part that implements it:

    `open_topics`  topics and open partitions, and the lookup of both
    `appends`      which partitions take which records       `reads`          one stream each
    `topics`       create, alter, delete                     `router_rules`   copies between topics
    `keeping`      trim, delete, retention                   `introspection`  layers, writers, sinks
    `write_ahead`  the log of wal topics                     `maintenance`    what runs by itself
    `group_calls`  consumer groups of both kinds             `transactions`   of Kafka's producers
    `typed_topics` schemas, and values as columns            `lamina.archive.tier`  the archive

Rules.
1. One writer per directory, by a lock that ends with its process; any number of readers.
2. The checkpoint is written from durable state only, at most once per tick; opening writes it if
   anything has changed. A report of anything notable is saved at once, an empty one later.
3. No storage logic here: this module makes the parts in order, and ends them in reverse.
4. A store belongs to the process that opened it: after a fork the child's copy is closed.
5. What only some stores need (the write-ahead log, the archive) is imported by those that do.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lamina.api import (
    OF_TOPIC,
    Acks,
    Appended,
    BrokerId,
    ProducerStamp,
    RecoveryReport,
    Start,
    StoreApi,
)
from lamina.api.portraits import Portrait, store_title
from lamina.archive.open_archive import Archive, Memory
from lamina.config import WalSettings, WriterSettings
from lamina.errors import LaminaError, typed_errors
from lamina.groups.coordinator import Coordinator
from lamina.groups.dead_letters import bury
from lamina.groups.lending import LendingGroup
from lamina.groups.offset_journal import CommittedOffsets
from lamina.groups.registry import Groups
from lamina.log.interfaces import Writing
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.records import Records
from lamina.storage import machine, paths
from lamina.storage.files import Files, Lock, steady_clock, wall_clock_ms
from lamina.storage.kept_file import local_files
from lamina.store import open_stores
from lamina.store.appends import Appends
from lamina.store.closing import close_partition, end_durably, take_all
from lamina.store.decided_appends import DecidedAppends
from lamina.store.disk_reserve import Reserve
from lamina.store.group_calls import GroupCalls
from lamina.store.introspection import Introspection
from lamina.store.keeping import Keeping
from lamina.store.maintenance import Chore, Maintenance
from lamina.store.no_transactions import NoTransactions
from lamina.store.open_topics import Hints, OpenTopics
from lamina.store.opening import Boot
from lamina.store.parts import answered_by
from lamina.store.producer_ids import ProducerIds
from lamina.store.reads import Reads
from lamina.store.router_rules import RouterRules
from lamina.store.schema_files import SchemaFiles
from lamina.store.server_calls import ServerCalls
from lamina.store.topics import TopicChanges
from lamina.store.transactions import Transactions
from lamina.store.typed_topics import TypedTopics
from lamina.store.write_ahead import WriteAhead

if TYPE_CHECKING:
    from lamina.archive.tier import Tier
    from lamina.store.seat import Seat
    from lamina.wal.engine import WalEngine
    from lamina.wal.wal_partition import WalPartition

TICK_MS = 1000
_THREADS = 8


class Store(StoreApi, leave=("append", "append_async", "scan", "fetch")):
    """A data directory, opened for writing. Use `lamina.open`, and close it (or use `with`)."""

    _is_released = False
    _lock: Lock | None = None
    _tier: Tier | None = None
    _seat: Seat | None = None

    def __init__(  # noqa: PLR0913 - the options of a store, by keyword
        self,
        path: str,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        writer: WriterSettings = WriterSettings(),
        wal: WalSettings | None = None,
        tick_ms: int = TICK_MS,
        archive: Archive = None,
        seat: Seat | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        started = time.perf_counter()
        steady_ms = steady_clock(now_ms()) if now_ms is wall_clock_ms else now_ms
        try:
            with typed_errors("opening the store"):
                boot = Boot(files or local_files(), paths.absolute(path), now_ms, steady_ms)
                self._seat = seat
                memory = self._take(boot, archive)
                self._compose(writer, wal or WalSettings.from_environment(machine.ENVIRONMENT))
                known = self._reserve.use(lambda: self._recover(on_progress))
                memory.keep(self._tier.lacking if self._tier is not None else list)
                self._recovery_report.milliseconds = (time.perf_counter() - started) * 1000
                self._maintenance.begin(known)
                if self._recovery_report.is_notable:
                    self._save_report()
                self._maintenance.start(min(tick_ms, writer.flush_ms))
                if self._tier is not None:
                    self._tier.start(tick_ms)
                if seat is not None:
                    seat.start()
                open_stores.OPEN.add(self)
        except BaseException:  # an interrupt, too, may come at any step
            self._abandon()
            raise

    def _take(self, boot: Boot, archive: Archive) -> Memory:
        """Locks the directory, and reads its identity and where its archive is."""
        self._boot = boot
        self._reported_events = -1
        self._recovery_report = RecoveryReport()
        memory = Memory(archive, boot.files, boot.data, self._recovery_report)
        boot, self._tier = self._with_tier(boot, memory)
        self._lock = open_stores.lock(boot)
        self._boot, self._identity = boot.identified()
        if self._seat is not None:
            self._seat.prepare(self._boot, memory.objects, self._recovery_report)
        else:
            self._boot.refuse_seat()
        return memory

    def _with_tier(self, boot: Boot, memory: Memory) -> tuple[Boot, Tier | None]:
        """Returns the directory and the tier that looks after its archive, if it has one."""
        objects = memory.objects
        if objects is None:
            return boot, None
        from lamina.archive.spare_copies import ArchiveSpares
        from lamina.archive.terms import ALONE
        from lamina.archive.tier import Tier
        from lamina.archive.topic_copies import Metadata

        kept = SchemaFiles(boot).own_bytes
        metadata = Metadata(objects, lambda: self._groups, lambda: self._coordinator.offsets, kept)
        terms = ALONE if self._seat is None else self._seat.terms()
        tier = Tier(objects, self._every, lambda: self._open.topics, metadata, terms)
        return replace(boot, spares=ArchiveSpares(objects, memory.is_own)), tier

    def _compose(self, writer: WriterSettings, wal: WalSettings) -> None:
        """Makes the parts of the store; none of them reads or writes anything yet."""
        boot, tier, report = self._boot, self._tier, self._recovery_report
        # Leaders have a pool of their own: behind the appends that wait for them they would starve.
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-writer")
        self._appending = ThreadPoolExecutor(_THREADS, thread_name_prefix="lamina-append")
        seat = self._seat
        gate = None if seat is None else seat.refusal
        writing = Writing(writer, self._executor, self._progress, gate)
        self._reserve = spare = Reserve(boot.files, boot.data)
        self._write_ahead = WriteAhead(boot, wal, writing, report)
        self._open = OpenTopics(
            *(boot, self._write_ahead, writing, report),
            attach=tier.attach if tier is not None else lambda partition: None,
        )
        self._lookup = lookup = self._open.lookup
        self._partitions = self._open.partitions
        leading = writer, self._executor, gate
        self._groups = Groups(boot, self, lookup.partition, leading, boot.steady)
        offsets = CommittedOffsets(boot, self._open.epoch_of, self._open.groups_max_of)
        self._coordinator = classic = Coordinator(offsets, self._groups.knows)
        self._group_calls = GroupCalls(lookup, self._groups, classic, boot.now_ms, spare)
        self._producer_ids = ids = ProducerIds(boot, self._highest_producer_id)
        self.transactions = (Transactions if seat is None else NoTransactions)(
            *(boot, self._coordinator.offsets, DecidedAppends(self._open), self._appending),
            new_producer_id=ids.take,
        )
        failing = (self._groups, self._coordinator, self.transactions)
        self._server_calls = ServerCalls(lookup, self._open, self._write_ahead, ids, tier, failing)
        chores: dict[str, Chore] = {
            "groups": self._flush_groups,
            "transactions": self.transactions.tend,
            "the write-ahead log": self._write_ahead.maintain,
            "the recovery report": self._save_report,
        }
        self._maintenance = Maintenance(boot, self._reserve, self._open.segmented, chores)
        self._reads = Reads(lookup)
        self.topic_changes = TopicChanges(
            *(boot, self._open, self._write_ahead, self._groups),
            reserve=self._reserve,
            tier=tier,
            checkpoint=self._maintenance.tick,
        )
        changing = self.topic_changes.changing
        schema_files = SchemaFiles(boot, report)
        self._typed = TypedTopics(schema_files, lookup, self._reads, self._bury, self)
        self.topic_changes.typed, self.schema_registry = self._typed, self._typed.schema_registry
        safe = (
            tier
            if seat is None
            else seat.board(
                *(self._open, self._groups, classic, schema_files, self.topic_changes, tier)
            )
        )
        self.appends = Appends(
            *(self._open, boot.now_ms, self._appending, safe), encoded=self._typed.encoded
        )
        self._routers = RouterRules(lookup, self._write_ahead, self._reserve, changing)
        self._keeping = Keeping(lookup, self._reserve)
        self._introspection = Introspection(boot, self._open, self._write_ahead)

    def _bury(self, topic: str, partition: int, batch: pa.RecordBatch, why: list[str]) -> None:
        """Copies records that are not what the schema says to the dead letters of the topic."""
        bury(self, (topic, partition), batch, why)

    def _every(self) -> list[Archivable]:
        return self._open.every()

    def _progress(self, topic: str, partition: int) -> Mapping[str, int]:
        """Returns what each group has acked; a method, as groups are made after topics."""
        return self._group_calls.progress(topic, partition)

    def _highest_producer_id(self) -> int:
        stored = (each.highest_kafka_producer() for each in self._open.every())
        return max([self.transactions.highest_producer_id(), *stored])

    @typed_errors("recovery")
    def _recover(self, on_progress: Callable[[int, int], None]) -> Hints:
        known = self._open.recover(on_progress)
        self._groups.recover(self._open.topics, self._recovery_report)
        self._coordinator.offsets.recover(self._recovery_report, self._open.topics)
        self._coordinator.share_settings.recover(self._recovery_report)
        self.transactions.recover(self._recovery_report)
        self._typed.recover()
        return known

    # ------------------------------------------------------------------ life

    def _portrait(self) -> Portrait:
        is_open = not self._lookup.is_closed
        title = store_title(self, self.path, is_open=is_open)
        return Portrait(title) if not is_open else self._open.portrait(title)

    @property
    def path(self) -> str:
        """The data directory, as an absolute path."""
        return self._boot.data

    @property
    def identity(self) -> BrokerId:
        """The identity of the data directory."""
        return self._identity

    @property
    def recovery_report(self) -> RecoveryReport:
        """What recovery did when this store was opened; `meta/recovery.json` has a copy."""
        return self._recovery_report

    def _flush_groups(self, *, force: bool) -> None:
        self._groups.take_over(self._open.topics)
        self._groups.flush()  # even if it is not due: it is cheap
        self._coordinator.expire(self._boot.steady())

    def _save_report(self, *, force: bool = False) -> None:
        """Saves the recovery report when it has grown; on a full disk, once there is room."""
        count = len(self._recovery_report.events)
        if self._reported_events == count:
            return
        with contextlib.suppress(OSError):
            report = self._recovery_report.encode()
            self._boot.files.replace(self._boot.path(paths.RECOVERY_REPORT), report)
            self._reported_events = count

    def close(self) -> None:
        """Answers accepted requests, makes everything durable and releases the directory."""
        if self._is_released:
            return
        try:
            try:
                self._finish()
            except LaminaError:
                raise
            except BaseException:  # interrupted: run again, steps that are done do nothing
                self._finish()
                raise
        finally:
            try:
                self._let_go()
            except BaseException:
                self._let_go()
                raise

    def _finish(self) -> None:
        """Takes every step of closing, even if some of them fail."""
        self._lookup.is_closed = True
        partitions, engine = self._open.segmented(), self._write_ahead.engine
        steps = [each.end_waits for each in self._open.every()]
        steps.append(self._maintenance.stop)
        if self._tier is not None:
            steps.append(self._tier.stop)
        steps += [self.transactions.close, self._coordinator.close, self._groups.close]
        if self._seat is not None:
            steps.insert(0, self._seat.halt)
            steps += [
                *(functools.partial(end_durably, each) for each in partitions),
                self._seat.finish,
            ]
        steps += [functools.partial(close_partition, each) for each in partitions]
        if engine is not None:
            steps.append(engine.close)
        steps += [self._save_report, functools.partial(self._maintenance.checkpoint, partitions)]
        take_all(steps)

    def _abandon(self) -> None:
        """Undoes an opening that failed: leaves no thread, no open file, no lock."""
        begun = vars(self)  # the opening may have failed at any step
        if "_lookup" in begun:
            self._lookup.is_closed = True
        steps = [begun[name].stop for name in ("_maintenance", "_tier") if begun.get(name)]
        if self._seat is not None:
            steps.append(self._seat.halt)
        if "_coordinator" in begun:
            steps.append(self._coordinator.close)
        take_all([*steps, self._let_go])

    def _let_go(self) -> None:
        """Ends the threads, closes every file as it is, and releases the directory."""
        begun = vars(self)
        for name in begun.keys() & {"_appending", "_executor"}:
            begun[name].shutdown()
        for name in ("_groups", "_open", "_write_ahead"):
            if name in begun:
                begun[name].release_files()
        if "_boot" in begun:
            self._boot.files.kept.release()
        if self._lock is not None:
            self._lock.release()
        self._is_released = True

    def _disown(self) -> None:
        """Closes a forked child's copy without taking locks: they might never be released."""
        self._lookup.is_closed = self._is_released = True
        if self._lock is not None:
            self._lock.release()

    # ------------------------------------------------------------------ which part answers what

    topics = answered_by("_reads", Reads.topics)
    describe_topic = answered_by("_reads", Reads.describe_topic)
    format_of = answered_by("_reads", Reads.format_of)
    create_topic = answered_by("topic_changes", TopicChanges.create_topic)
    alter_topic = answered_by("topic_changes", TopicChanges.alter_topic)
    add_partitions = answered_by("topic_changes", TopicChanges.add_partitions)
    delete_topic = answered_by("topic_changes", TopicChanges.delete_topic)
    set_schema = answered_by("_typed", TypedTopics.set_schema)
    schema = answered_by("_typed", TypedTopics.schema)
    schemas = answered_by("_typed", TypedTopics.schemas)
    read = answered_by("_typed", TypedTopics.read)
    routers = answered_by("_routers", RouterRules.routers)
    create_router = answered_by("_routers", RouterRules.create_router)
    alter_router = answered_by("_routers", RouterRules.alter_router)
    delete_router = answered_by("_routers", RouterRules.delete_router)

    def append(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: Acks = OF_TOPIC,
        timeout_s: float | None = None,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends records. Written out, because it is the hottest call."""
        return self.appends.append(topic, records, partition, acks, timeout_s, producer)

    async def append_async(
        self,
        topic: str,
        records: Records | bytes,
        *,
        partition: int | None = None,
        acks: Acks = OF_TOPIC,
        producer: ProducerStamp | None = None,
    ) -> Appended:
        """Appends from asyncio: the writer resolves a future, and no thread waits."""
        return await self.appends.append_async(topic, records, partition, acks, producer)

    producer_position = answered_by("appends", Appends.producer_position)
    scan = answered_by("_reads", Reads.scan)
    fetch = answered_by("_reads", Reads.fetch)
    diff = answered_by("_reads", Reads.diff)
    segments = answered_by("_reads", Reads.segments)
    earliest_offset = answered_by("_reads", Reads.earliest_offset)
    latest_offset = answered_by("_reads", Reads.latest_offset)
    offset_for_time = answered_by("_reads", Reads.offset_for_time)
    gaps = answered_by("_reads", Reads.gaps)
    gone_from = answered_by("_reads", Reads.gone_from)
    trim = answered_by("_keeping", Keeping.trim)
    delete_records = answered_by("_keeping", Keeping.delete_records)
    delete = answered_by("_keeping", Keeping.delete)
    explain_retention = answered_by("_keeping", Keeping.explain_retention)
    apply_retention = answered_by("_keeping", Keeping.apply_retention)
    roll = answered_by("_keeping", Keeping.roll)
    layers = answered_by("_introspection", Introspection.layers)
    blocks = answered_by("_introspection", Introspection.blocks)
    raw_record = answered_by("_introspection", Introspection.raw_record)
    extents = answered_by("_introspection", Introspection.extents)
    writers = answered_by("_introspection", Introspection.writers)
    sinks = answered_by("_introspection", Introspection.sinks)
    groups = answered_by("_group_calls", GroupCalls.groups)
    describe_group = answered_by("_group_calls", GroupCalls.describe_group)
    reset_group = answered_by("_group_calls", GroupCalls.reset_group)
    delete_group = answered_by("_group_calls", GroupCalls.delete_group)
    join_group = answered_by("_group_calls", GroupCalls.join_group)
    sync_group = answered_by("_group_calls", GroupCalls.sync_group)
    heartbeat = answered_by("_group_calls", GroupCalls.heartbeat)
    leave_group = answered_by("_group_calls", GroupCalls.leave_group)
    commit_offsets = answered_by("_group_calls", GroupCalls.commit_offsets)
    committed_offsets = answered_by("_group_calls", GroupCalls.committed_offsets)
    describe_members = answered_by("_group_calls", GroupCalls.describe_members)
    failures = answered_by("_server_calls", ServerCalls.failures)
    new_producer_id = answered_by("_server_calls", ServerCalls.new_producer_id)
    archive = answered_by("_server_calls", ServerCalls.archive)
    tier_status = answered_by("_server_calls", ServerCalls.tier_status)
    purge_wal = answered_by("_server_calls", ServerCalls.purge_wal)

    def segmented(self, topics: Collection[str] | None = None) -> list[Partition]:
        """Written out, as the two below, for the types that only the engine knows."""
        return self._server_calls.segmented(topics)

    def wal_partitions(self, topics: Collection[str] | None = None) -> list[WalPartition]:
        """Returns the partitions behind the write-ahead log."""
        return self._server_calls.wal_partitions(topics)

    def write_ahead_log(self) -> WalEngine:
        """Returns the write-ahead log, which is created for the first topic that needs it."""
        return self._server_calls.write_ahead_log()

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of classic groups, for the doors that speak its protocol."""
        return self._coordinator

    @property
    def tier(self) -> Tier | None:
        """The part that looks after the archive; None without one."""
        return self._tier

    @property
    def seat(self) -> Seat | None:
        """The store's hold on a cluster; None without one."""
        return self._seat

    def group(self, topic: str, name: str, *, start: Start = "earliest") -> LendingGroup:
        """Returns a consumer group, which is created if there is none of this name."""
        return self._group_calls.group(topic, name, start=start)

    # ------------------------------------------------------------------ maintenance

    def flush(self) -> None:
        """Makes durable what was written with acks 0 or 1, and updates the checkpoint."""
        self._lookup.require_open()
        for partition in self._open.segmented():
            partition.writer.exclusively(partition.sync)
        if self._write_ahead.engine is not None:
            self._write_ahead.engine.sync()
        self._groups.flush()
        self._maintenance.tick()

    def maintain(self) -> None:
        """Runs all maintenance now, whether it is due or not."""
        self._lookup.require_open()
        self._maintenance.tick(force=True)
