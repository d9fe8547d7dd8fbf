"""A data directory read beside a live writer, or with none; also what its writer has archived."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from lamina.api import GroupInfo, RecoveryReport, RouterInfo, SegmentFacts, TierStatus, TopicInfo
from lamina.archive.object_list import Shelf, cold_log
from lamina.archive.object_reader import BlockCache
from lamina.archive.open_archive import Archive, open_archive
from lamina.archive.spare_copies import ArchiveSpares
from lamina.config import TopicSettings, WalSettings
from lamina.errors import ArchiveUnavailable, InvalidRequest, typed_errors
from lamina.formats.documents.topic_file import TopicFile
from lamina.formats.log_format import CODECS
from lamina.groups import registry
from lamina.log.interfaces import LogReader
from lamina.log.partition_view import PartitionView
from lamina.storage import paths
from lamina.storage.files import Files, LocalFiles
from lamina.storage.objects import Objects
from lamina.store.opening import Boot, steady_clock, wall_clock_ms
from lamina.store.reads import StoreReader
from lamina.wal.ground import Ground
from lamina.wal.reader import TopicReader
from lamina.wal.topics_view import WalView


def _with_list(reader: LogReader) -> LogReader:
    """Has the list of a partition's archived objects read, where it has any."""
    if isinstance(reader, PartitionView | TopicReader) and reader.cold is not None:
        reader.cold.load()
    return reader


class ReadOnlyStore(StoreReader):
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
        self._boot = Boot(files or LocalFiles(), os.path.abspath(path), now_ms, steady_ms)
        self._boot.require_directory()
        self._archive = open_archive(archive, self._boot.files, self._boot.data)
        if self._archive is not None:
            self._boot = replace(self._boot, spares=ArchiveSpares(self._archive))
        self._cache = BlockCache()
        self._views: dict[tuple[str, int, int], PartitionView] = {}
        ground = Ground.of(self._boot, wal or WalSettings.from_environment(os.environ))
        self._wal = WalView(ground)

    @property
    def path(self) -> str:
        """The data directory."""
        return self._boot.data

    def routers(self) -> list[RouterInfo]:
        """Lists all routers, by name, as they are now."""
        self._require_open()
        return self._wal.routers(self._files_of_topics().values())

    @typed_errors("reading the topics")
    def _files_of_topics(self) -> Mapping[str, TopicFile]:
        return self._boot.catalog.peek(self._wal.lost_topics)

    @typed_errors("looking at a partition")
    def _reader(self, about: TopicFile, partition: int) -> LogReader:
        is_archived = TopicSettings.parse(about.settings).is_archived
        if about.topic_ids:
            reader = self._wal.look(about, partition)
            if self._archive is not None and is_archived:
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
            view.vouched = {entry.active_segment_base_offset}
        view.refresh((entry.last_flushed_offset or 0) if entry else 0, live=live)
        return view

    def segments(self, topic: str, partition: int = 0) -> list[SegmentFacts]:
        """Returns what is known of each segment, oldest first; the last one is active."""
        return _with_list(self._partition(topic, partition)).facts()

    def describe_topic(self, name: str) -> TopicInfo:
        """Describes a topic and its partitions; archived bytes if the archive answers."""
        about = self._topic(name)
        readers = [self._reader(about, number) for number in range(about.partitions)]
        with contextlib.suppress(ArchiveUnavailable):  # the first that fails speaks for all
            for reader in readers:
                _with_list(reader)
        return TopicInfo(
            about.name,
            about.format,
            about.epoch,
            about.created_ms,
            TopicSettings.parse(about.settings).as_dict(),
            tuple(reader.info() for reader in readers),
        )

    def tier_status(self) -> list[TierStatus]:
        """Returns for each archived partition how far its archive is behind its segments."""
        if self._archive is None:
            raise InvalidRequest("the store was opened without `archive`")
        return [
            self._tier_status(self._archive, about, number)
            for _, about in sorted(self._files_of_topics().items())
            if TopicSettings.parse(about.settings).is_archived
            for number in range(about.partitions)
        ]

    def _tier_status(self, objects: Objects, about: TopicFile, partition: int) -> TierStatus:
        manifest = Shelf(objects, about, partition).load()
        end = manifest.end_offset
        reader = self._reader(about, partition)
        waiting = [each for each in reader.facts() if each.sealed and each.next_offset > end]
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

    @typed_errors("looking at groups")
    def groups(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Lists consumer groups as (topic, group), sorted; of one topic or of all."""
        self._require_open()
        return registry.peek(self._boot, self._files_of_topics(), topic)

    @typed_errors("looking at a group")
    def describe_group(self, topic: str, group: str) -> GroupInfo:
        """Returns for each partition what a group has acked, holds, and how far it is behind."""
        return registry.peek_group(
            self._boot, self._files_of_topics(), self._topic(topic), group, self._partition
        )

    def close(self) -> None:
        """Lets the directory go."""
        self._closed = True
        self._views.clear()
        self._cache.close()
