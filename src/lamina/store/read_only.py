"""A data directory read beside a live writer, or with none; also what its writer has archived."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lamina.api import (
    Committed,
    GroupInfo,
    RecoveryReport,
    RouterInfo,
    StoreApi,
    TierStatus,
    TopicInfo,
)
from lamina.api.portraits import Portrait, store_title
from lamina.archive.object_list import Shelf, cold_log
from lamina.archive.object_reader import BlockCache
from lamina.archive.open_archive import Archive, open_archive
from lamina.archive.spare_copies import ArchiveSpares
from lamina.config import TopicSettings, WalSettings
from lamina.errors import ArchiveUnavailable, InvalidRequest, typed_errors
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS
from lamina.groups import registry
from lamina.groups.offset_journal import CommittedOffsets
from lamina.log.interfaces import LogReader
from lamina.log.layers import sealed_of
from lamina.log.partition_view import PartitionView
from lamina.storage import machine, paths
from lamina.storage.files import Files, steady_clock, wall_clock_ms
from lamina.storage.kept_file import local_files
from lamina.storage.objects import Objects
from lamina.store.group_calls import classic_groups, classic_info, committed_in
from lamina.store.lookup import Lookup
from lamina.store.opening import Boot
from lamina.store.parts import answered_by
from lamina.store.reads import Reads, describe
from lamina.store.schema_files import SchemaFiles
from lamina.store.typed_topics import TypedReads, bury_nowhere
from lamina.wal.ground import Ground
from lamina.wal.topics_view import WalView

if TYPE_CHECKING:
    from lamina.store.schema_registry import RegistryReads


class DirectoryView:
    """The topics of a data directory as they are now, and readers of their partitions."""

    def __init__(self, boot: Boot, archive: Objects | None, wal: WalSettings) -> None:
        self._boot = boot
        self._archive = archive
        self._cache = BlockCache()
        self._views: dict[tuple[str, int, int], PartitionView] = {}
        self.wal = WalView(Ground.of(boot, wal))
        self.lookup: Lookup[LogReader] = Lookup(self._topics, self._reader)

    @typed_errors("reading the topics")
    def _topics(self) -> Mapping[str, TopicFile]:
        return self._boot.catalog.peek(self.wal.lost_topics)

    @typed_errors("looking at a partition")
    def _reader(self, about: TopicFile, partition: int) -> LogReader:
        is_archived = TopicSettings.parse(about.settings).is_archived
        if about.topic_ids:
            reader = self.wal.look(about, partition)
            if self._archive is not None and (is_archived or reader.ledger.archived()):
                reader.cold = cold_log(self._archive, about, partition, self._cache)
            return reader
        key = about.name, about.epoch, partition
        if key not in self._views:
            place = self._boot.place_of(about, partition)
            self._views[key] = PartitionView(place, CODECS[about.format])
        view = self._views[key]
        if self._archive is not None and is_archived:
            view.cold = cold_log(self._archive, about, partition, self._cache)
        live = self._boot.files.is_locked(self._boot.path(paths.LOCK))
        entry = self._boot.published_checkpoint(RecoveryReport()).get((about.name, partition))
        if entry is not None:
            view.vouched, view.floor = {entry.active_segment_base_offset}, entry.floor
        view.refresh((entry.last_flushed_offset or 0) if entry else 0, live=live)
        if self._archive is not None and not is_archived and view.ledger.archived():
            view.cold = cold_log(self._archive, about, partition, self._cache)
        return view

    def close(self) -> None:
        """Forgets everything that was read; every further lookup raises Closed."""
        self.lookup.is_closed = True
        self._views.clear()
        self._cache.close()


class ReadOnlyStore(StoreApi, leave=("scan", "fetch")):
    """A data directory opened for reading, beside a live writer or with none."""

    _CANNOT = "the store is open read-only; {call} works on one that is open for writing"

    def __init__(
        self,
        path: str,
        *,
        files: Files | None = None,
        archive: Archive = None,
        wal: WalSettings | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        steady_ms = steady_clock(now_ms()) if now_ms is wall_clock_ms else now_ms
        boot = Boot(files or local_files(), paths.absolute(path), now_ms, steady_ms)
        boot.require_directory()
        self._archive = open_archive(archive, boot.files, boot.data)
        if self._archive is not None:
            boot = replace(boot, spares=ArchiveSpares(self._archive))
        self._boot = boot
        settings = wal or WalSettings.from_environment(machine.ENVIRONMENT)
        self._view = DirectoryView(boot, self._archive, settings)
        self._lookup = self._view.lookup
        self._reads = Reads(self._lookup)
        self._kept = kept = SchemaFiles(boot).document
        self._typed = TypedReads(self._lookup, self._reads, kept, bury_nowhere)
        self.schema_registry = lambda: self._registry  # for servers

    def _portrait(self) -> Portrait:
        return Portrait(store_title(self, self.path, is_open=not self._lookup.is_closed))

    @property
    def path(self) -> str:
        """The data directory."""
        return self._boot.data

    @functools.cached_property
    def _registry(self) -> RegistryReads:
        from lamina.store.schema_registry import RegistryReads

        return RegistryReads(self._lookup, self._reads, self._kept)

    topics = answered_by("_reads", Reads.topics)
    format_of = answered_by("_reads", Reads.format_of)
    scan = answered_by("_reads", Reads.scan)
    fetch = answered_by("_reads", Reads.fetch)
    schema = answered_by("_typed", TypedReads.schema)
    schemas = answered_by("_typed", TypedReads.schemas)
    read = answered_by("_typed", TypedReads.read)
    diff = answered_by("_reads", Reads.diff)
    segments = answered_by("_reads", Reads.segments)
    earliest_offset = answered_by("_reads", Reads.earliest_offset)
    latest_offset = answered_by("_reads", Reads.latest_offset)
    offset_for_time = answered_by("_reads", Reads.offset_for_time)
    gaps = answered_by("_reads", Reads.gaps)
    gone_from = answered_by("_reads", Reads.gone_from)

    def routers(self) -> list[RouterInfo]:
        """Lists all routers, by name, as they are now."""
        return self._view.wal.routers(self._lookup.topics().values())

    def describe_topic(self, name: str) -> TopicInfo:
        """Describes a topic and its partitions; archived bytes if the archive answers."""
        about = self._lookup.topic(name)
        readers = self._lookup.partitions(about)
        with contextlib.suppress(
            ArchiveUnavailable
        ):  # if one does not answer, the others would not, either
            for reader in readers:
                if reader.cold is not None:
                    reader.cold.load()
        return describe(about, readers)

    def tier_status(self) -> list[TierStatus]:
        """Returns for each archived partition how far its archive is behind its segments."""
        if self._archive is None:
            raise InvalidRequest(
                "the store has no archive: open it with archive='s3://bucket/prefix' or a directory"
            )
        return [
            _tier_status(self._archive, about, number, reader)
            for _, about in sorted(self._lookup.topics().items())
            if TopicSettings.parse(about.settings).is_archived
            for number, reader in enumerate(self._lookup.partitions(about))
        ]

    @typed_errors("looking at groups")
    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists consumer groups as (topic, group), sorted; of one topic or of all."""
        share = registry.peek(self._boot, self._lookup.topics(), topic)
        return sorted({*share, *classic_groups(self._offsets(), topic)})

    @typed_errors("looking at a group")
    def describe_group(self, topic: str, group: str) -> GroupInfo:
        """Returns for each partition what a group has acked, holds, and how far it is behind."""
        about = self._lookup.topic(topic)
        committed = committed_in(self._offsets(), about.name, group)
        if committed:
            return classic_info(self._lookup, about, group, committed, self._boot.now_ms())
        return registry.peek_group(
            self._boot, self._lookup.topics(), about, group, self._lookup.partition
        )

    @typed_errors("looking at committed offsets")
    def committed_offsets(self, group: str) -> list[Committed]:
        """Returns what a classic group has committed, as it is now."""
        return list(self._offsets().of(group).values())

    def _offsets(self) -> CommittedOffsets:
        topics = self._lookup.topics()
        epochs = {name: about.epoch for name, about in topics.items()}
        return CommittedOffsets(self._boot, epochs.get).peek(topics)

    def close(self) -> None:
        """Releases the directory."""
        self._view.close()


def _tier_status(
    objects: Objects, about: TopicFile, partition: int, reader: LogReader
) -> TierStatus:
    manifest = Shelf(objects, about, partition).load()
    end = manifest.end_offset
    waiting = [each for each in sealed_of(reader.layers()) if each.next_offset > end]
    return TierStatus(
        topic=about.name,
        partition=partition,
        archived_offset=end,
        objects=len(manifest.objects),
        size_bytes=manifest.size_bytes,
        records_behind=max(0, reader.end_offset("durable") - end),
        bytes_behind=sum(each.size_bytes for each in waiting),
        seconds_behind=0.0,
        last_error="",
    )
