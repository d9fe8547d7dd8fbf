"""The topics of a store that writes, with their partitions open: recovered, found, kept in memory.

Rule: a partition is entered here when it is whole, and leaves before anything of it is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from lamina.api import RecoveryReport
from lamina.api.portraits import Portrait, table_portrait
from lamina.config import TopicSettings
from lamina.errors import UnknownTopic, typed_errors
from lamina.formats.documents.checkpoint import PartitionCheckpoint
from lamina.formats.documents.topic_file import TopicFile
from lamina.log.interfaces import Writing
from lamina.log.partition import Partition
from lamina.log.sealed import Archivable
from lamina.store.lookup import Lookup
from lamina.store.opening import Boot
from lamina.store.write_ahead import WriteAhead

if TYPE_CHECKING:
    from lamina.wal.wal_partition import WalPartition

Hints: TypeAlias = Mapping[tuple[str, int], PartitionCheckpoint]

_ENDS_SHOWN = 8
"""Of how many partitions of a topic a person sees the ends at one glance."""


class OpenTopics:
    """The topics by name and their partitions by (topic, number); `lookup` finds both."""

    def __init__(
        self,
        boot: Boot,
        write_ahead: WriteAhead,
        writing: Writing,
        report: RecoveryReport,
        attach: Callable[[Archivable], None],
    ) -> None:
        self._boot = boot
        self._write_ahead = write_ahead
        self._writing = writing
        self._report = report
        self._attach = attach
        self.topics: dict[str, TopicFile] = {}
        self.made_count = 0
        """Grows with each topic that comes to be."""
        self.partitions: dict[tuple[str, int], Archivable] = {}
        self.lookup: Lookup[Archivable] = Lookup(lambda: self.topics, self._reader)

    def _reader(self, about: TopicFile, partition: int) -> Archivable:
        found = self.partitions.get((about.name, partition))
        if found is None:
            raise UnknownTopic(f"topic {about.name!r} was deleted")
        return found

    @typed_errors("recovery")
    def recover(self, on_progress: Callable[[int, int], None]) -> Hints:
        """Recovers every partition there is; returns the checkpoint as it was before."""
        report = self._report
        self._boot.keep_damaged_checkpoint()
        hints = self._boot.read_checkpoint(report)
        topics = self._boot.catalog.load(report)
        if self._boot.has_wal(topics):
            for about in self._write_ahead.load(topics):
                if self._boot.catalog.restore(about):
                    report.add("rebuilt", about.name, "its topic.json was gone; the WAL knows it")
                    topics[about.name] = about
        for path, why in self._boot.vanished(topics, hints):
            report.add("note", path, why)
        total = sum(about.partitions for about in topics.values())
        for name, about in topics.items():
            for number in range(about.partitions):
                on_progress(len(self.partitions), total)
                self.open(about, number, hints.get((name, number)))
            self.enter(about)
        self._write_ahead.finish_opening()
        return hints

    def open(
        self, about: TopicFile, number: int, hint: PartitionCheckpoint | None = None
    ) -> Archivable:
        """Opens one partition for writing; `hint` is its entry in the checkpoint."""
        opened = self.made(about, number, hint)
        self.partitions[about.name, number] = opened
        return opened

    def made(
        self, about: TopicFile, number: int, hint: PartitionCheckpoint | None = None
    ) -> Archivable:
        """Makes a partition that cannot be looked up yet."""
        if about.topic_ids:
            return self._write_ahead.begun().open_topic(about, number)
        return self._boot.open_partition(about, number, hint, self._report, self._writing)

    def epoch_of(self, topic: str) -> int | None:
        """Returns the epoch of a topic; None for one that there is not."""
        about = self.topics.get(topic)
        return None if about is None else about.epoch

    def groups_max_of(self, topic: str) -> int:
        """Returns how many groups a topic may have."""
        about = self.topics.get(topic)
        return TopicSettings.parse({} if about is None else about.settings).groups_max

    def enter(self, about: TopicFile) -> None:
        """Registers a topic whose partitions are open, here and with the archive."""
        self.topics[about.name] = about
        self.made_count += 1
        for partition in self.of(about):
            self._attach(partition)

    def of(self, about: TopicFile) -> list[Archivable]:
        """Returns the partitions of a topic."""
        return [self.partitions[about.name, number] for number in range(about.partitions)]

    def every(self) -> list[Archivable]:
        """Returns all partitions; whether they are archived is in their settings."""
        return list(self.partitions.values())

    def portrait(self, title: str) -> Portrait:
        """Draws the topics as they are in memory: no archive is asked for what it holds."""
        topics = dict(self.topics)
        rows = (
            (name, about.format, about.partitions, self._ends(about))
            for name, about in sorted(topics.items())
        )
        return table_portrait(
            title, ("topic", "format", "partitions", "durable up to"), rows, len(topics)
        )

    def _ends(self, about: TopicFile) -> str:
        shown = range(min(about.partitions, _ENDS_SHOWN))
        found = (self.partitions.get((about.name, number)) for number in shown)
        ends = [f"{each.end_offset('durable'):,}" for each in found if each is not None]
        return ", ".join(ends) + (", …" if about.partitions > _ENDS_SHOWN else "")

    def segmented(self, topics: Collection[str] | None = None) -> list[Partition]:
        """Returns the partitions that have a log of their own, of some topics or of all."""
        found = [each for each in self.every() if isinstance(each, Partition)]
        return [each for each in found if not topics or each.place.topic in topics]

    def release_files(self) -> None:
        """Lets the files of every partition go as they are."""
        for partition in self.segmented():
            partition.release_files()

    def behind_wal(self, topics: Collection[str] | None = None) -> list[WalPartition]:
        """Returns the partitions behind the write-ahead log, of some topics or of all."""
        found = [each for each in self.every() if not isinstance(each, Partition)]
        kept = [each for each in found if not topics or each.place.topic in topics]
        return cast("list[WalPartition]", kept)
